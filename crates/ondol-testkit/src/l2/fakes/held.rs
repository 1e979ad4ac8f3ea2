use std::sync::Arc;

use ondol_plugin::l2::{ObjectRef, PageMut};

/// Counts the buffers that it has made and that somebody still holds.
///
/// ```
/// use ondol_testkit::l2::DropCounter;
///
/// let counter = DropCounter::new();
/// let page = counter.page(4096, 0);
/// assert_eq!(counter.held(), 1);
/// drop(page);
/// assert_eq!(counter.held(), 0);
/// ```
#[derive(Clone, Debug, Default)]
pub struct DropCounter(Arc<()>);

/// Memory that is counted while it lives.
struct Counted {
    bytes: Vec<u8>,
    _alive: Arc<()>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Counted {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl DropCounter {
    /// A counter of no buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many buffers are held.
    pub fn held(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }

    /// An object of these bytes.
    pub fn object(&self, body: impl Into<Vec<u8>>) -> ObjectRef {
        self.object_with_trailer(body, [])
    }

    /// An object of a body and a trailer.
    pub fn object_with_trailer(
        &self,
        body: impl Into<Vec<u8>>,
        trailer: impl Into<Arc<[u8]>>,
    ) -> ObjectRef {
        ObjectRef::with_trailer(self.counted(body.into()), trailer)
    }

    /// A page with room for a body and a trailer of these lengths, full of the byte 0xa5 in its body, so that what was not
    /// written is seen.
    pub fn page(&self, body: usize, trailer: usize) -> PageMut {
        PageMut::new(self.counted(vec![0xa5; body]), trailer)
    }

    fn counted(&self, bytes: Vec<u8>) -> Counted {
        Counted {
            bytes,
            _alive: Arc::clone(&self.0),
        }
    }
}
