//! Regions as this process knows them, mapped when they are first needed.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};

use ondol_plugin::RegionId;
use ondol_protocol::{Access, ControlError, ControlPlane, RegionInfo};
use ondol_shm::{BackingId, ReadMapping, ReadRegion, WriteMapping, WriteRegion};
use parking_lot::{Mutex, RwLock};

use crate::HandlerError;

/// A file of the pool; mapped once for reading and once for writing, whole, so that regions come and go in it
/// without a system call.
#[derive(Debug, Default)]
struct Backing {
    read: Mutex<Option<Arc<ReadMapping>>>,
    write: Mutex<Option<Arc<WriteMapping>>>,
}

/// One region.
#[derive(Debug)]
pub(crate) struct KnownRegion {
    pub(crate) info: RegionInfo,
    backing: Arc<Backing>,
    read: OnceLock<ReadRegion>,
    write: OnceLock<Arc<WriteRegion>>,
}

impl KnownRegion {
    pub(crate) fn is_mapped(&self) -> bool {
        self.read.get().is_some() || self.write.get().is_some()
    }

    /// The region for reading, if it is mapped.
    pub(crate) fn mapped(&self) -> Option<&ReadRegion> {
        self.read.get()
    }

    /// The region for reading.
    pub(crate) fn read(&self, plane: &dyn ControlPlane) -> Result<&ReadRegion, HandlerError> {
        if let Some(region) = self.read.get() {
            return Ok(region);
        }
        let mapping = self.map(plane, &self.backing.read, Access::Read, |file, len| {
            ReadMapping::new(file, len)
        })?;
        let region = ReadRegion::new(mapping, self.info.handle.span, self.info.stride)?;
        Ok(self.read.get_or_init(|| region))
    }

    /// The region for writing.
    pub(crate) fn write(
        &self,
        plane: &dyn ControlPlane,
    ) -> Result<&Arc<WriteRegion>, HandlerError> {
        if let Some(region) = self.write.get() {
            return Ok(region);
        }
        let mapping = self.map(plane, &self.backing.write, Access::Write, |file, len| {
            WriteMapping::new(file, len)
        })?;
        let region = Arc::new(WriteRegion::new(
            mapping,
            self.info.handle.span,
            self.info.stride,
        )?);
        Ok(self.write.get_or_init(|| region))
    }

    fn map<M>(
        &self,
        plane: &dyn ControlPlane,
        place: &Mutex<Option<Arc<M>>>,
        access: Access,
        map: impl FnOnce(std::os::fd::BorrowedFd<'_>, u64) -> std::io::Result<M>,
    ) -> Result<Arc<M>, HandlerError> {
        let known = place.lock().clone();
        if let Some(mapping) = known {
            return Ok(mapping);
        }
        // Asked without the lock: readers that wait for each other's answers would wait for a server that gives none in
        // turn.
        let file = plane.open_backing(&self.info.handle, access)?;
        let mut mapped = place.lock();
        if let Some(mapping) = &*mapped {
            return Ok(Arc::clone(mapping));
        }
        let region = self.info.handle.span.region_id.0;
        let mapping = map(file.as_fd(), self.info.backing_len);
        let mapping = Arc::new(mapping.map_err(|source| HandlerError::Map { region, source })?);
        *mapped = Some(Arc::clone(&mapping));
        Ok(mapping)
    }
}

/// Every region that this process has heard of and that existed when the list was last fetched.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    known: RwLock<HashMap<RegionId, Arc<KnownRegion>>>,
    backings: Mutex<HashMap<BackingId, Arc<Backing>>>,
}

impl Regions {
    /// The region, if it was heard of.
    pub(crate) fn known(&self, id: RegionId) -> Option<Arc<KnownRegion>> {
        self.known.read().get(&id).cloned()
    }

    /// The region; the list is fetched anew if it is not on it. Regions that are gone leave the list then.
    pub(crate) fn get(
        &self,
        plane: &dyn ControlPlane,
        id: RegionId,
    ) -> Result<Arc<KnownRegion>, HandlerError> {
        if let Some(region) = self.known(id) {
            return Ok(region);
        }
        let list = plane.regions()?;
        let mut backings = self.backings.lock();
        let mut known = self.known.write();
        let mut next = HashMap::with_capacity(list.len());
        // Ids only grow: what is above all of the list may be on a newer one that another thread fetched meanwhile.
        let newest = list.iter().map(|info| info.handle.span.region_id).max();
        let newer = |(id, _): &(&RegionId, &Arc<KnownRegion>)| Some(**id) > newest;
        next.extend(
            known
                .iter()
                .filter(newer)
                .map(|(id, region)| (*id, Arc::clone(region))),
        );
        for info in list {
            let id = info.handle.span.region_id;
            // A region that stays keeps its entry, with the claims of pages that are being written.
            let region = known.remove(&id).unwrap_or_else(|| {
                let backing = Arc::clone(backings.entry(info.backing).or_default());
                Arc::new(KnownRegion {
                    info,
                    backing,
                    read: OnceLock::new(),
                    write: OnceLock::new(),
                })
            });
            next.insert(id, region);
        }
        *known = next;
        known.get(&id).cloned().ok_or_else(|| {
            ControlError::Protocol(format!(
                "the engine named region {id}, which is not on its list"
            ))
            .into()
        })
    }

    pub(crate) fn mapped_count(&self) -> u64 {
        self.known
            .read()
            .values()
            .filter(|region| region.is_mapped())
            .count() as u64
    }
}
