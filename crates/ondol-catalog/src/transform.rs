use std::fmt;

use linkme::distributed_slice;
use serde_json::{Map, Value};

/// Changes the bytes of objects on their way to a storage backend, and back.
pub trait Transform: Send + Sync + fmt::Debug {
    /// What is to be stored of `bytes`.
    ///
    /// # Errors
    /// Why they cannot be changed, in words.
    fn encode(&self, object: &TransformedObject<'_>, bytes: &[u8]) -> Result<Vec<u8>, String>;

    /// The bytes that [`encode`](Self::encode) made `stored` of; at most `limit` of them. No input makes it take much more memory
    /// than that, nor panic.
    ///
    /// # Errors
    /// Why `stored` is not what was made of the bytes of this object, in words.
    fn decode(
        &self,
        object: &TransformedObject<'_>,
        stored: &[u8],
        limit: u64,
    ) -> Result<Vec<u8>, String>;

    /// The most bytes that [`encode`](Self::encode) makes of `len` bytes; not less for more.
    fn max_encoded_len(&self, len: u64) -> u64;

    /// Whether it keeps the bytes secret.
    fn secrecy(&self) -> Secrecy {
        Secrecy::None
    }

    /// Decodes what was stored with nothing said beside it, if others than Ondol write such.
    ///
    /// # Errors
    /// As for [`decode`](Self::decode). The default refuses everything.
    fn decode_bare(&self, salt: &str, stored: &[u8], limit: u64) -> Result<Vec<u8>, String> {
        let _ = (salt, stored, limit);
        Err("it has no trailer, and so it is not known what was done to it".to_owned())
    }
}

/// Whether a transform keeps bytes secret: then only those who know the secret learn anything of them, or make what decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secrecy {
    /// It does not.
    None,
    /// It does, and objects that were stored without it are read all the same.
    Optional,
    /// It does, and objects that were stored without it are refused.
    Required,
}

/// What a transform is told of the object whose bytes it changes.
#[derive(Clone, Copy, Debug)]
pub struct TransformedObject<'a> {
    /// The object's name in storage backends.
    pub name: &'a str,
    /// The cache salt of that name.
    pub salt: &'a str,
    /// The number of its key's tag.
    pub key_tag: u8,
    /// Its key's bytes.
    pub key: &'a [u8],
    /// Its length before all transforms, in bytes.
    pub len: u64,
    /// The fingerprint of its layout, if it has one.
    pub layout: Option<[u8; 16]>,
}

/// A transform that can be chosen by name.
#[derive(Clone, Copy, Debug)]
pub struct TransformRow {
    /// Stands for the transform in what is stored; never used again for another one. 0 is for those that leave the bytes as they are.
    pub id: u8,
    /// Name in lower case, as `"type"` takes it.
    pub name: &'static str,
    /// The transform in one sentence.
    pub summary: &'static str,
    /// What may be configured: name, and what it means.
    pub parameters: &'static [(&'static str, &'static str)],
    /// Makes one of its parameters.
    pub build: fn(&Map<String, Value>) -> Result<BuiltTransform, String>,
}

/// What a [`TransformRow`] makes.
#[derive(Debug)]
pub enum BuiltTransform {
    /// The bytes are changed.
    Bytes(Box<dyn Transform>),
    /// The bytes stay as they are; this says how they are checked.
    Check {
        /// Whether objects that cannot be checked are refused.
        require: bool,
    },
}

/// Every transform that is linked in.
#[distributed_slice]
pub static TRANSFORMS: [TransformRow];

/// Every transform that is linked in, by name.
pub fn transforms() -> Vec<&'static TransformRow> {
    crate::sorted_by_name(&TRANSFORMS, |row| row.name)
}

/// The transform of this name.
pub fn transform(name: &str) -> Option<&'static TransformRow> {
    TRANSFORMS.iter().find(|row| row.name == name)
}
