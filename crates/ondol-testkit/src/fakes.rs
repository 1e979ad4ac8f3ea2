use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ondol_plugin::{BatchEntry, BatchSource, HandlerView, Key, RegionId, RegionSpan};

/// A handler as a hook sees it, with the regions that a test gives it.
#[derive(Debug, Default)]
pub struct FakeView {
    regions: Mutex<HashMap<RegionId, Region>>,
}

#[derive(Clone, Debug)]
struct Region {
    path: Option<PathBuf>,
    is_mapped: bool,
}

impl FakeView {
    /// A handler that knows no region.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with a region that is mapped and has this path.
    #[must_use]
    pub fn with_region(self, region: RegionId, path: impl Into<PathBuf>) -> Self {
        self.with(region, Some(path.into()), true)
    }

    /// The same with a region that is mapped and has no path, as one of memory without a name.
    #[must_use]
    pub fn with_nameless_region(self, region: RegionId) -> Self {
        self.with(region, None, true)
    }

    /// The same with a region that is known but not mapped.
    #[must_use]
    pub fn with_unmapped_region(self, region: RegionId, path: impl Into<PathBuf>) -> Self {
        self.with(region, Some(path.into()), false)
    }

    /// Unmaps a region, as a close does while hooks may still run. Its path stays known.
    pub fn unmap(&self, region: RegionId) {
        if let Some(region) = self.lock().get_mut(&region) {
            region.is_mapped = false;
        }
    }

    fn with(self, region: RegionId, path: Option<PathBuf>, is_mapped: bool) -> Self {
        self.lock().insert(region, Region { path, is_mapped });
        self
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RegionId, Region>> {
        // The map is whole even if a thread panicked while it held the lock.
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HandlerView for FakeView {
    fn is_region_mapped(&self, region: RegionId) -> bool {
        self.lock()
            .get(&region)
            .is_some_and(|region| region.is_mapped)
    }

    fn get_region_dax_path(&self, region: RegionId) -> Option<PathBuf> {
        self.lock().get(&region)?.path.clone()
    }
}

/// A batch of entries that a test makes up; see [`ondol_plugin::RetrievedBatch::new`].
#[derive(Clone, Debug, Default)]
pub struct FakeBatch {
    entries: Vec<(Key, Option<Place>)>,
}

#[derive(Clone, Debug)]
struct Place {
    region: RegionSpan,
    offset: u64,
    length: u64,
    bytes: Option<Vec<u8>>,
}

impl FakeBatch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with an object in a region that is mapped: its entry has `bytes`.
    #[must_use]
    pub fn with_object(
        self,
        key: Key,
        region: RegionSpan,
        offset: u64,
        bytes: impl Into<Vec<u8>>,
    ) -> Self {
        let bytes = bytes.into();
        let length = bytes.len() as u64;
        self.with(key, region, offset, length, Some(bytes))
    }

    /// The same with an object in a region that is not mapped: its entry has a place and no bytes.
    #[must_use]
    pub fn with_unmapped_object(
        self,
        key: Key,
        region: RegionSpan,
        offset: u64,
        length: u64,
    ) -> Self {
        self.with(key, region, offset, length, None)
    }

    /// The same with a key that was not found.
    #[must_use]
    pub fn with_missed(mut self, key: Key) -> Self {
        self.entries.push((key, None));
        self
    }

    fn with(
        mut self,
        key: Key,
        region: RegionSpan,
        offset: u64,
        length: u64,
        bytes: Option<Vec<u8>>,
    ) -> Self {
        let place = Place {
            region,
            offset,
            length,
            bytes,
        };
        self.entries.push((key, Some(place)));
        self
    }
}

impl BatchSource for FakeBatch {
    fn len(&self) -> usize {
        self.entries.len()
    }

    fn entry(&self, index: usize) -> BatchEntry<'_> {
        let (key, place) = &self.entries[index];
        match place {
            Some(place) => BatchEntry::located(
                key,
                place.region,
                place.offset,
                place.length,
                place.bytes.as_deref(),
            ),
            None => BatchEntry::missed(key),
        }
    }
}
