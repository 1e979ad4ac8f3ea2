//! Regions as this process knows them, mapped when they are first needed.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwap, Guard};
use ondol_plugin::RegionId;
use ondol_protocol::{Access, ControlError, ControlPlane, Hit, RegionInfo};
use ondol_shm::{BackingId, Hold, ReadMapping, ReadRegion, WriteMapping, WriteRegion};
use parking_lot::Mutex;

use crate::batch::Sighting;
use crate::{HandlerError, Object};

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
    fn id(&self) -> RegionId {
        self.info.handle.span.region_id
    }

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
    known: ArcSwap<Known>,
    /// Locked while the list is fetched anew, so that of two lists the later one stays.
    backings: Mutex<HashMap<BackingId, Arc<Backing>>>,
}

/// Regions in the order of their ids.
#[derive(Debug, Default)]
struct Known(Vec<Arc<KnownRegion>>);

impl Known {
    /// The place of a region. Ids are given one after the other, so it is mostly where it would be if none were gone.
    fn place(&self, id: RegionId) -> Option<usize> {
        let id_at = |place: usize| self.0.get(place).map(|region| region.id());
        let distance = id.0.checked_sub(id_at(0)?.0)?;
        let guess = usize::try_from(distance).unwrap_or(usize::MAX);
        if id_at(guess) == Some(id) {
            return Some(guess);
        }
        self.0.binary_search_by_key(&id, |region| region.id()).ok()
    }

    fn get(&self, id: RegionId) -> Option<&Arc<KnownRegion>> {
        self.0.get(self.place(id)?)
    }
}

impl Regions {
    /// The region, if it was heard of.
    pub(crate) fn known(&self, id: RegionId) -> Option<Arc<KnownRegion>> {
        self.known.load().get(id).cloned()
    }

    /// The region; the list is fetched anew if it is not on it. Regions that are gone leave the list then.
    pub(crate) fn get(
        &self,
        plane: &dyn ControlPlane,
        id: RegionId,
    ) -> Result<Arc<KnownRegion>, HandlerError> {
        match self.known(id) {
            Some(region) => Ok(region),
            None => self.fetch(plane, id),
        }
    }

    /// As they are known now, for many looks at them.
    pub(crate) fn view<'a>(&'a self, plane: &'a dyn ControlPlane) -> RegionsView<'a> {
        RegionsView {
            regions: self,
            plane,
            known: self.known.load(),
            fetched: None,
        }
    }

    fn fetch(
        &self,
        plane: &dyn ControlPlane,
        id: RegionId,
    ) -> Result<Arc<KnownRegion>, HandlerError> {
        let list = plane.regions()?;
        let mut backings = self.backings.lock();
        let known = self.known.load_full();
        // Ids only grow: what is above all of the list may be on a newer one that another thread fetched meanwhile.
        let newest = list.iter().map(|info| info.handle.span.region_id).max();
        let newer = known.0.iter().filter(|region| Some(region.id()) > newest);
        let mut next: Vec<_> = newer.cloned().collect();
        for info in list {
            // A region that stays keeps its entry, with the claims of pages that are being written.
            let region = known.get(info.handle.span.region_id).cloned();
            next.push(region.unwrap_or_else(|| {
                let backing = Arc::clone(backings.entry(info.backing).or_default());
                Arc::new(KnownRegion {
                    info,
                    backing,
                    read: OnceLock::new(),
                    write: OnceLock::new(),
                })
            }));
        }
        next.sort_unstable_by_key(|region| region.id());
        let next = Known(next);
        let found = next.get(id).cloned();
        self.known.store(Arc::new(next));
        found.ok_or_else(|| {
            ControlError::Protocol(format!(
                "the engine named region {id}, which is not on its list"
            ))
            .into()
        })
    }

    pub(crate) fn mapped_count(&self) -> u64 {
        let known = self.known.load();
        known.0.iter().filter(|region| region.is_mapped()).count() as u64
    }
}

/// Regions as they were when the view was taken, and what a look at another one brought.
pub(crate) struct RegionsView<'a> {
    regions: &'a Regions,
    plane: &'a dyn ControlPlane,
    known: Guard<Arc<Known>>,
    fetched: Option<Arc<KnownRegion>>,
}

impl RegionsView<'_> {
    /// As [`Regions::get`].
    pub(crate) fn get(&mut self, id: RegionId) -> Result<&KnownRegion, HandlerError> {
        if let Some(place) = self.known.place(id) {
            return Ok(&self.known.0[place]);
        }
        let fetched = self.regions.get(self.plane, id)?;
        self.known = self.regions.known.load();
        Ok(self.fetched.insert(fetched))
    }

    /// The object of a hit; maps its region if need be.
    pub(crate) fn object(&mut self, hit: Hit, hold: Hold) -> Result<Object, HandlerError> {
        let plane = self.plane;
        let region = self.get(hit.location.page.region)?.read(plane)?;
        Ok(Object::new(region.view(hit.location, hold)?, hit.meta))
    }

    /// The object of a hit if its region is mapped, else where it lies.
    pub(crate) fn sight(&mut self, hit: Hit, hold: Hold) -> Result<Sighting, HandlerError> {
        let region = self.get(hit.location.page.region)?;
        let elsewhere = Sighting::Elsewhere {
            handle: region.info.handle.span,
            kv_offset: u64::from(hit.location.page.index) * region.info.stride,
            kv_length: hit.location.len,
        };
        let bytes = region
            .mapped()
            .and_then(|region| region.view(hit.location, hold).ok());
        Ok(bytes.map_or(elsewhere, |bytes| {
            Sighting::Mapped(Object::new(bytes, hit.meta))
        }))
    }
}
