use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use ondol_directory::Verifier;
use ondol_memory::{Device, Extent};
use ondol_plugin::RegionSpan;
use ondol_shm::{
    BackingId, LeaseSlots, LeaseTableError, Location, ReadMapping, ReadRegion, create_lease_table,
};
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

/// Reads the objects of the pool in this process, to compare them with their checksums.
#[derive(Debug)]
pub(crate) struct Reader {
    devices: Arc<[Device]>,
    mappings: Mutex<HashMap<BackingId, Arc<ReadMapping>>>,
    /// What stands behind a view of a mapping; the directory's own lease keeps the page.
    slots: Arc<LeaseSlots>,
}

impl Reader {
    pub(crate) fn new(devices: Arc<[Device]>) -> Result<Self, LeaseTableError> {
        let table = create_lease_table()?;
        Ok(Self {
            devices,
            mappings: Mutex::default(),
            slots: LeaseSlots::open(table.as_fd())?,
        })
    }

    fn mapping(&self, backing: BackingId) -> Result<Arc<ReadMapping>, String> {
        let mut mappings = self.mappings.lock();
        if let Some(mapping) = mappings.get(&backing) {
            return Ok(Arc::clone(mapping));
        }
        let mut files = self.devices.iter().flat_map(Device::backings);
        let file = files
            .nth(backing.0 as usize)
            .ok_or_else(|| format!("there is no backing {}", backing.0))?;
        let mapped = file
            .open_read()
            .and_then(|opened| ReadMapping::new(opened.as_fd(), file.len()));
        let mapping = Arc::new(mapped.map_err(|error| error.to_string())?);
        mappings.insert(backing, Arc::clone(&mapping));
        Ok(mapping)
    }
}

impl Verifier for Reader {
    fn fits(
        &self,
        extent: Extent,
        stride: u64,
        location: &Location,
        checksum: u64,
    ) -> Result<bool, String> {
        let span = RegionSpan {
            region_id: location.page.region,
            offset: extent.offset,
            length: extent.len,
        };
        let region = ReadRegion::new(self.mapping(extent.backing)?, span, stride)
            .map_err(|error| error.to_string())?;
        let lease = self
            .slots
            .propose()
            .ok_or("too many objects are being checked at once")?;
        let bytes = region
            .view(*location, lease)
            .map_err(|error| error.to_string())?;
        Ok(xxh3_64(&bytes) == checksum)
    }
}
