use std::fmt;
use std::sync::Arc;

use ondol_directory::Returns;
use ondol_shm::{Grant, LeasedBytes, ObjectMeta, PageBytes};

/// An object in memory that stays there for as long as this guard or a clone of it lives.
#[derive(Clone)]
pub struct Leased {
    bytes: Arc<dyn AsRef<[u8]> + Send + Sync>,
    meta: ObjectMeta,
}

struct View(LeasedBytes);

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Leased {
    pub(super) fn new(bytes: LeasedBytes, meta: ObjectMeta) -> Self {
        Self {
            bytes: Arc::new(View(bytes)),
            meta,
        }
    }

    /// One that lies in no pool.
    #[cfg(test)]
    pub(crate) fn of(bytes: impl AsRef<[u8]> + Send + Sync + 'static, meta: ObjectMeta) -> Self {
        Self {
            bytes: Arc::new(bytes),
            meta,
        }
    }

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
        f.debug_struct("Leased")
            .field("len", &self.as_ref().len())
            .field("meta", &self.meta)
            .finish()
    }
}

/// A page that is to be filled; let go, it is free again.
///
/// It is nobody else's for as long as this guard lives, whatever becomes of the request that it was reserved for, and also
/// when the engine is closed meanwhile.
pub struct Page {
    // Dropped first: the page is given back once nobody here may write it.
    bytes: PageBytes,
    granted: Granted,
}

impl Page {
    pub(super) fn new(bytes: PageBytes, granted: Granted) -> Self {
        Self { bytes, granted }
    }

    /// Ends writing; the page is granted still.
    pub(super) fn finish(self) -> Granted {
        self.granted
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
        self.bytes.fmt(f)
    }
}

/// A granted page that nobody writes; given back when this is dropped.
#[derive(Debug)]
pub(super) struct Granted {
    grant: Grant,
    returns: Option<Arc<Returns>>,
}

impl Granted {
    pub(super) fn new(grant: Grant, returns: Arc<Returns>) -> Self {
        Self {
            grant,
            returns: Some(returns),
        }
    }

    pub(super) fn grant(&self) -> Grant {
        self.grant
    }

    /// It holds an object now, or may.
    pub(super) fn keep(mut self) {
        self.returns = None;
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        if let Some(returns) = &self.returns {
            returns.push(self.grant);
        }
    }
}
