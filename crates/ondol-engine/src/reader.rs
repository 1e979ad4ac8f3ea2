use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use ondol_directory::Verifier;
use ondol_memory::{Backing, Device, DeviceUri, Extent};
use ondol_plugin::RegionSpan;
use ondol_shm::{
    BackingId, LeaseSlots, LeaseTableError, Location, ReadMapping, ReadRegion, checksum,
    create_lease_table,
};
use parking_lot::Mutex;
use xxhash_rust::xxh3::Xxh3;

/// Bytes that are read at once.
const CHUNK: u64 = 256 << 10;

/// Reads the objects of the pool in this process, to compare them with their checksums.
///
/// Files are read, not mapped: a disk that fails, or a file that somebody shortened, is an error then and not the end of
/// the process. Only a `dax:` device, which cannot be read, is mapped.
#[derive(Debug)]
pub(crate) struct Reader {
    devices: Arc<[Device]>,
    dax: Mutex<HashMap<BackingId, Arc<ReadMapping>>>,
    /// What stands behind a view of a mapping; the directory's own lease keeps the page.
    slots: Arc<LeaseSlots>,
}

impl Reader {
    pub(crate) fn new(devices: Arc<[Device]>) -> Result<Self, LeaseTableError> {
        let table = create_lease_table()?;
        Ok(Self {
            devices,
            dax: Mutex::default(),
            slots: LeaseSlots::open(table.as_fd())?,
        })
    }

    fn backing(&self, id: BackingId) -> Option<(&Device, &Backing)> {
        let devices = self.devices.iter();
        let mut files =
            devices.flat_map(|device| device.backings().iter().map(move |file| (device, file)));
        files.nth(id.0 as usize)
    }

    /// The xxh3-64 of an object in a device that is mapped.
    fn sum_mapped(
        &self,
        file: &Backing,
        extent: Extent,
        stride: u64,
        location: &Location,
    ) -> Result<u64, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let mapping = {
            let mut mapped = self.dax.lock();
            if let Some(mapping) = mapped.get(&extent.backing) {
                Arc::clone(mapping)
            } else {
                let opened = file.open_read().map_err(|error| text(&error))?;
                let mapping = ReadMapping::new(opened.as_fd(), file.len());
                let mapping = Arc::new(mapping.map_err(|error| text(&error))?);
                mapped.insert(extent.backing, Arc::clone(&mapping));
                mapping
            }
        };
        let span = RegionSpan {
            region_id: location.page.region,
            offset: extent.offset,
            length: extent.len,
        };
        let region = ReadRegion::new(mapping, span, stride).map_err(|error| text(&error))?;
        let lease = self
            .slots
            .propose()
            .ok_or("too many objects are being checked at once")?;
        let bytes = region
            .view(*location, lease)
            .map_err(|error| text(&error))?;
        Ok(checksum(&bytes))
    }
}

/// The xxh3-64 of `len` bytes of a file.
fn sum_read(file: &File, mut offset: u64, len: u64) -> io::Result<u64> {
    let mut sum = Xxh3::new();
    let mut buffer = vec![0; len.min(CHUNK) as usize];
    let mut left = len;
    while left > 0 {
        let part = &mut buffer[..left.min(CHUNK) as usize];
        file.read_exact_at(part, offset)?;
        sum.update(part);
        offset += part.len() as u64;
        left -= part.len() as u64;
    }
    Ok(sum.digest())
}

impl Verifier for Reader {
    fn fits(
        &self,
        extent: Extent,
        stride: u64,
        location: &Location,
        checksum: u64,
    ) -> Result<bool, String> {
        let (device, file) = self
            .backing(extent.backing)
            .ok_or_else(|| format!("there is no backing {}", extent.backing.0))?;
        let start = u64::from(location.page.index) * stride;
        if location.len > stride || start + location.len > extent.len {
            return Err(format!("{location:?} does not lie in its region"));
        }
        let sum = if matches!(device.uri(), DeviceUri::Dax { .. }) {
            self.sum_mapped(file, extent, stride, location)?
        } else {
            let opened = file.open_read().map(File::from);
            opened
                .and_then(|file| sum_read(&file, extent.offset + start, location.len))
                .map_err(|error| error.to_string())?
        };
        Ok(sum == checksum)
    }
}
