//! What is stored of an object: transforms of its bytes, and the trailer by which it is known again.

use ondol_plugin::Key;
use ondol_plugin::l2::{ObjectKey, ObjectRef, PageMut};
use ondol_shm::ObjectMeta;
use serde_json::{Map, Value};

use crate::Leased;

/// Why an object cannot be stored, or what is stored is not the object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct CodecError(pub(crate) String);

/// The transforms of one backend.
#[derive(Debug)]
pub(crate) struct Codec {}

/// What was found in a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checked {
    /// Length of the object.
    pub(crate) len: u64,
    /// What is known about it.
    pub(crate) meta: ObjectMeta,
    /// Whether its bytes were compared with a checksum; a file of LMCache's has none.
    pub(crate) verified: bool,
    /// Whether the object lies whole in the page's body. A file without a trailer may go on in the trailer's room; then it is to be
    /// decoded from both parts.
    pub(crate) in_place: bool,
}

/// What was found in stored bytes.
#[derive(Debug)]
pub(crate) struct Decoded {
    /// Length of the object.
    pub(crate) len: u64,
    /// What is known about it.
    pub(crate) meta: ObjectMeta,
    /// Whether its bytes were compared with a checksum.
    pub(crate) verified: bool,
    /// The object.
    pub(crate) bytes: Vec<u8>,
}

impl Codec {
    /// The codec of a backend with these transforms.
    pub(crate) fn new(
        transforms: &[Map<String, Value>],
        verifies: bool,
    ) -> Result<Self, CodecError> {
        let _ = (transforms, verifies);
        Ok(Self {})
    }

    /// Whether the bytes are stored as they are, so that an object can be loaded straight into its page.
    pub(crate) fn is_plain(&self) -> bool {
        true
    }

    /// Length of the trailer of this key's object.
    pub(crate) fn trailer_len(&self, key: &Key) -> usize {
        let _ = key;
        0
    }

    /// What is to be stored of an object. Without transforms its bytes are not copied.
    pub(crate) fn encode(
        &self,
        key: &Key,
        name: &ObjectKey,
        object: Leased,
    ) -> Result<ObjectRef, CodecError> {
        let _ = (key, name);
        Ok(ObjectRef::new(object))
    }

    /// The longest that an object of `len` bytes can be when it is stored, trailer included.
    pub(crate) fn stored_bound(&self, key: &Key, len: u64) -> u64 {
        let _ = key;
        len
    }

    /// Checks what was loaded straight into a page; for a plain codec.
    pub(crate) fn check(
        &self,
        key: &Key,
        name: &ObjectKey,
        page: &PageMut,
        filled: u64,
    ) -> Result<Checked, CodecError> {
        let _ = (key, name, page, filled);
        Err(CodecError(String::new()))
    }

    /// Makes an object of stored bytes; for any codec.
    pub(crate) fn decode(
        &self,
        key: &Key,
        name: &ObjectKey,
        stored: &[u8],
    ) -> Result<Decoded, CodecError> {
        let _ = (key, name, stored);
        Err(CodecError(String::new()))
    }
}
