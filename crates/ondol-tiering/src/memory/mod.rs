//! The memory tier as the controllers use it: leases, pages, admission.

use std::fmt;

use ondol_plugin::Key;
use ondol_plugin::l2::Bitmap;
use ondol_shm::ObjectMeta;

/// Why the memory tier cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct MemoryError(pub String);

/// The memory tier.
#[derive(Debug)]
pub struct Memory {}

/// An object in memory that stays there for as long as this guard or a clone of it lives.
#[derive(Clone)]
pub struct Leased {
    bytes: std::sync::Arc<dyn AsRef<[u8]> + Send + Sync>,
    meta: ObjectMeta,
}

/// A page that is to be filled; let go, it is free again.
pub struct Page {
    bytes: Vec<u8>,
}

impl Memory {
    /// Leases the objects of these keys.
    pub fn lease(&self, keys: &[Key]) -> Vec<Option<Leased>> {
        keys.iter().map(|_| None).collect()
    }

    /// Which objects are there now.
    pub fn contains(&self, keys: &[Key]) -> Bitmap {
        Bitmap::new(keys.len())
    }

    /// Pages of exactly these lengths; `None` for those that there is no room for.
    pub fn reserve(&self, lengths: &[u64]) -> Vec<Option<Page>> {
        lengths.iter().map(|_| None).collect()
    }

    /// Makes loaded objects visible and leases them in one step: the first `len` bytes of each page. Where an object of that key
    /// is there already, that one is leased and the page let go. They count as stored in a backend, and nobody is told
    /// that they were committed. `None` where nothing could be recorded.
    pub fn admit(&self, objects: Vec<(Key, Page, u64, ObjectMeta)>) -> Vec<Option<Leased>> {
        objects.iter().map(|_| None).collect()
    }

    /// Notes that these objects are safe in a backend, so that they are evicted before others.
    pub fn mark_stored(&self, keys: &[Key]) {
        let _ = keys;
    }

    /// Which of these objects are there and not known to be safe in a backend.
    pub fn unstored(&self, keys: &[Key]) -> Bitmap {
        Bitmap::new(keys.len())
    }

    /// Removes objects unless somebody holds them.
    pub fn evict(&self, keys: &[Key]) -> u64 {
        let _ = keys;
        0
    }

    /// Keys of objects, in their order, from the first behind `after`.
    pub fn list(&self, after: Option<&Key>, limit: usize) -> Vec<Key> {
        let _ = (after, limit);
        Vec::new()
    }

    /// Bytes of the pool.
    pub fn capacity_bytes(&self) -> u64 {
        0
    }
}

impl Leased {
    /// What is known about it.
    pub fn meta(&self) -> ObjectMeta {
        self.meta
    }
}

impl AsRef<[u8]> for Leased {
    fn as_ref(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }
}

impl fmt::Debug for Leased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leased").finish_non_exhaustive()
    }
}

impl AsRef<[u8]> for Page {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Page {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page").finish_non_exhaustive()
    }
}
