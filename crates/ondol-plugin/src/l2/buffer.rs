use std::any::Any;
use std::fmt;
use std::sync::{Arc, Weak};

/// The longest trailer of an object, in bytes.
pub const MAX_TRAILER_BYTES: usize = 2048;

/// The bytes of an object that is to be stored, readable for as long as this guard or a clone of it lives.
///
/// What is stored are two parts, one behind the other: the *body* and a *trailer* of at most [`MAX_TRAILER_BYTES`] that the
/// core has made, and that may be empty. A backend stores both and gives back both; what is in them is not its concern.
#[derive(Clone)]
pub struct ObjectRef {
    body: Arc<dyn AsRef<[u8]> + Send + Sync>,
    trailer: Arc<[u8]>,
}

impl ObjectRef {
    /// An object of these bytes alone.
    pub fn new(body: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self::with_trailer(body, [])
    }

    /// An object of a body and a trailer.
    ///
    /// # Panics
    /// If the trailer is longer than [`MAX_TRAILER_BYTES`].
    pub fn with_trailer(
        body: impl AsRef<[u8]> + Send + Sync + 'static,
        trailer: impl Into<Arc<[u8]>>,
    ) -> Self {
        let trailer = trailer.into();
        assert!(
            trailer.len() <= MAX_TRAILER_BYTES,
            "trailer of {} bytes; expected at most {MAX_TRAILER_BYTES}",
            trailer.len()
        );
        Self {
            body: Arc::new(body),
            trailer,
        }
    }

    /// The first part.
    pub fn body(&self) -> &[u8] {
        (*self.body).as_ref()
    }

    /// The second part, which follows the first; often empty.
    pub fn trailer(&self) -> &[u8] {
        &self.trailer
    }

    /// Bytes of both parts.
    pub fn stored_len(&self) -> usize {
        self.body().len() + self.trailer.len()
    }

    /// A watch that says whether anybody still holds this object, and holds it not.
    pub fn watch(&self) -> ObjectWatch {
        ObjectWatch(Arc::downgrade(&self.body))
    }

    /// Both parts in one piece.
    pub fn to_vec(&self) -> Vec<u8> {
        [self.body(), self.trailer()].concat()
    }
}

/// Says whether anybody still holds an [`ObjectRef`], or a clone of it.
#[derive(Clone)]
pub struct ObjectWatch(Weak<dyn AsRef<[u8]> + Send + Sync>);

impl ObjectWatch {
    /// Whether it is held.
    pub fn is_held(&self) -> bool {
        self.0.strong_count() > 0
    }
}

impl fmt::Debug for ObjectWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectWatch")
            .field("is_held", &self.is_held())
            .finish()
    }
}

impl fmt::Debug for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectRef")
            .field("body", &self.body().len())
            .field("trailer", &self.trailer.len())
            .finish()
    }
}

/// Memory that a stored object is to be loaded into, written by nobody else for as long as this guard lives.
///
/// It has two parts as [`ObjectRef`] has: what is stored fills the body first and goes on in the trailer. Give the page
/// back in the result of its load, also when it was not filled.
pub struct PageMut {
    body: Box<dyn PageMemory>,
    trailer: Vec<u8>,
}

/// Memory behind a [`PageMut`].
trait PageMemory: Send {
    fn bytes(&self) -> &[u8];
    fn bytes_mut(&mut self) -> &mut [u8];
    /// Copies bytes to the start of the memory, which has room for them.
    fn copy_in(&mut self, bytes: &[u8]) {
        self.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
    }
    fn any(&self) -> &dyn Any;
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

impl<T: AsRef<[u8]> + AsMut<[u8]> + Send + 'static> PageMemory for T {
    fn bytes(&self) -> &[u8] {
        self.as_ref()
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.as_mut()
    }
    fn any(&self) -> &dyn Any {
        self
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// Memory that somebody knows a better way to copy to.
struct Copied<T> {
    memory: T,
    copy: fn(&mut [u8], &[u8]),
}

impl<T: AsRef<[u8]> + AsMut<[u8]> + Send + 'static> PageMemory for Copied<T> {
    fn bytes(&self) -> &[u8] {
        self.memory.as_ref()
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.as_mut()
    }
    fn copy_in(&mut self, bytes: &[u8]) {
        (self.copy)(&mut self.memory.as_mut()[..bytes.len()], bytes);
    }
    fn any(&self) -> &dyn Any {
        &self.memory
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        Box::new(self.memory)
    }
}

/// That what is stored does not fit the page that it is to be loaded into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stored object has {found} bytes; expected at most {room}")]
pub struct StoredTooLong {
    /// Its length.
    pub found: usize,
    /// Bytes that fit.
    pub room: usize,
}

impl PageMut {
    /// Memory with room for a body that fills `memory` and a trailer of `trailer` bytes.
    pub fn new(memory: impl AsRef<[u8]> + AsMut<[u8]> + Send + 'static, trailer: usize) -> Self {
        Self {
            body: Box::new(memory),
            trailer: vec![0; trailer],
        }
    }

    /// As [`new`](Self::new), for memory to which [`fill`](Self::fill) shall copy with `copy`, which is given two slices of
    /// one length.
    pub fn with_copy(
        memory: impl AsRef<[u8]> + AsMut<[u8]> + Send + 'static,
        trailer: usize,
        copy: fn(&mut [u8], &[u8]),
    ) -> Self {
        Self {
            body: Box::new(Copied { memory, copy }),
            trailer: vec![0; trailer],
        }
    }

    /// Bytes that fit: body and trailer.
    pub fn room(&self) -> usize {
        self.body.bytes().len() + self.trailer.len()
    }

    /// Both parts, to read.
    pub fn parts(&self) -> (&[u8], &[u8]) {
        (self.body.bytes(), &self.trailer)
    }

    /// Both parts, to be filled one after the other.
    pub fn parts_mut(&mut self) -> (&mut [u8], &mut [u8]) {
        (self.body.bytes_mut(), &mut self.trailer)
    }

    /// Copies a stored object in, and returns its length. Into shared memory this is faster than a copy to
    /// [`parts_mut`](Self::parts_mut): the core knows how its memory takes it best.
    ///
    /// # Errors
    /// [`StoredTooLong`]; then nothing is copied.
    pub fn fill(&mut self, stored: &[u8]) -> Result<u64, StoredTooLong> {
        let room = self.room();
        if stored.len() > room {
            return Err(StoredTooLong {
                found: stored.len(),
                room,
            });
        }
        let in_body = stored.len().min(self.body.bytes().len());
        let (first, second) = stored.split_at(in_body);
        self.body.copy_in(first);
        self.trailer[..second.len()].copy_from_slice(second);
        Ok(stored.len() as u64)
    }

    /// The memory that this page was made of, and the trailer; the page itself, unchanged, if it was made of something else.
    ///
    /// # Errors
    /// The page, if its memory is no `T`.
    pub fn into_memory<T: 'static>(self) -> Result<(T, Vec<u8>), Self> {
        // Looked at before it is taken apart, so that the guard is never lost.
        if !self.body.any().is::<T>() {
            return Err(self);
        }
        match self.body.into_any().downcast::<T>() {
            Ok(memory) => Ok((*memory, self.trailer)),
            Err(_) => unreachable!("the type was looked at"),
        }
    }
}

impl fmt::Debug for PageMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageMut")
            .field("body", &self.body.bytes().len())
            .field("trailer", &self.trailer.len())
            .finish()
    }
}
