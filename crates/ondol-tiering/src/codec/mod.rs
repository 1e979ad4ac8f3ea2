//! What is stored of an object: transforms of its bytes, and the trailer by which it is known again.

mod chain;
mod parameters;
mod stored;
mod trailer;
mod transforms;

#[cfg(test)]
mod tests;

use ondol_catalog::TransformedObject;
use ondol_plugin::Key;
use ondol_plugin::l2::{ObjectKey, ObjectRef, PageMut};
use ondol_shm::{ObjectMeta, checksum};
use serde_json::{Map, Value};

use self::chain::{Chain, Configured};
use self::stored::Stored;
use self::trailer::{ObjectChecksum, Trailer};
use crate::Leased;
use crate::naming::named_by_lmcache;

/// Why an object cannot be stored, or what is stored is not the object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct CodecError(pub(crate) String);

/// Why what is stored is not served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// It is not what was stored of the object, so it is of no use to anybody.
    #[error(transparent)]
    Corrupt(#[from] CodecError),
    /// It is not damaged, as far as can be seen, and not to be read like this: it may be LMCache's, a newer release's, or stored
    /// with transforms that are configured otherwise here. Who reads it otherwise has use of it.
    #[error(transparent)]
    Foreign(CodecError),
}

/// The transforms of one backend.
#[derive(Debug)]
pub(crate) struct Codec {
    chain: Chain,
    /// Whether bodies are compared with their checksum here, and not by the adapter.
    compares: bool,
    /// Whether what has no checksum is refused.
    require: bool,
}

/// What was found in a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checked {
    /// Length of the object.
    pub(crate) len: u64,
    /// What is known about it.
    pub(crate) meta: ObjectMeta,
    /// Whether its bytes were compared with a checksum; a file of LMCache's has none.
    pub(crate) verified: bool,
    /// Whether the object lies whole in the page's body. If not, it is to be decoded from both parts: a file without a
    /// trailer may go on in the trailer's room, and an object may have been stored with transforms.
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
    /// The codec of a backend with these transforms; `verifies` says that its adapter itself checks that it gives back what
    /// was stored.
    ///
    /// # Errors
    /// A transform that is not linked in or a parameter that it does not take; the message names both.
    pub(crate) fn new(
        transforms: &[Map<String, Value>],
        verifies: bool,
    ) -> Result<Self, CodecError> {
        let Configured { chain, check } = Chain::configured(transforms)?;
        Ok(Self {
            chain,
            // Who asks for checksums gets them.
            compares: !verifies || check.is_some(),
            require: check.unwrap_or(false),
        })
    }

    /// Whether the bytes are stored as they are, so that an object can be loaded straight into its page.
    pub(crate) fn is_plain(&self) -> bool {
        self.chain.is_empty()
    }

    /// Length of the trailer of this key's object.
    pub(crate) fn trailer_len(&self, key: &Key) -> usize {
        trailer::trailer_len(key)
    }

    /// What is to be stored of an object. Without transforms its bytes are not copied.
    ///
    /// # Errors
    /// If a transform cannot be applied, or an object that is to be encrypted does not fit its own checksum.
    pub(crate) fn encode(
        &self,
        key: &Key,
        name: &ObjectKey,
        object: Leased,
    ) -> Result<ObjectRef, CodecError> {
        let meta = object.meta();
        self.encode_bytes(key, name, object, meta)
    }

    /// As [`encode`](Self::encode), of bytes wherever they lie.
    pub(crate) fn encode_bytes(
        &self,
        key: &Key,
        name: &ObjectKey,
        object: impl AsRef<[u8]> + Send + Sync + 'static,
        meta: ObjectMeta,
    ) -> Result<ObjectRef, CodecError> {
        let bytes = object.as_ref();
        let mut trailer = Trailer {
            object_len: bytes.len() as u64,
            body_len: bytes.len() as u64,
            layout: meta.layout,
            object_checksum: meta
                .checksum
                .map_or(ObjectChecksum::None, ObjectChecksum::Known),
            body_checksum: meta.checksum,
            chain: self.chain.ids(),
        };
        if self.is_plain() {
            if self.compares && trailer.body_checksum.is_none() {
                trailer.body_checksum = Some(checksum(bytes));
            }
            return Ok(ObjectRef::with_trailer(object, trailer.to_bytes(key)));
        }
        if self.chain.is_secret() {
            // It is made anew of the bytes that come back, so they must be right when they go.
            if let Some(expected) = meta.checksum {
                fits(checksum(bytes), expected)?;
                trailer.object_checksum = ObjectChecksum::Withheld;
            }
        }
        let body = with_identity(key, name, &trailer, |identity| {
            self.chain.encode(identity, bytes)
        })?;
        trailer.body_len = body.len() as u64;
        trailer.body_checksum = self.compares.then(|| checksum(&body));
        Ok(ObjectRef::with_trailer(body, trailer.to_bytes(key)))
    }

    /// The longest that an object of `len` bytes can be when it is stored, trailer included.
    pub(crate) fn stored_bound(&self, key: &Key, len: u64) -> u64 {
        let body = self.chain.max_encoded_len(len);
        body.saturating_add(self.trailer_len(key) as u64)
    }

    /// Checks what was loaded straight into a page; for a plain codec.
    ///
    /// # Errors
    /// If it is damaged or another object.
    pub(crate) fn check(
        &self,
        key: &Key,
        name: &ObjectKey,
        page: &PageMut,
        filled: u64,
    ) -> Result<Checked, Refusal> {
        let stored = Stored::in_page(page, filled).ok_or_else(|| {
            CodecError(format!(
                "the adapter says that it filled {filled} bytes; expected at most {}",
                page.room()
            ))
        })?;
        let Some(trailer) = Trailer::find(&stored, key)? else {
            self.may_be_bare(&stored, key, name)?;
            return Ok(Checked {
                len: filled,
                meta: ObjectMeta::default(),
                verified: false,
                in_place: self.is_plain() && stored.first(filled).is_some(),
            });
        };
        let mut checked = Checked {
            len: trailer.object_len,
            meta: trailer.meta(),
            verified: false,
            in_place: false,
        };
        // What is yet to be decoded is checked then.
        if let Some(body) = stored.first(trailer.body_len)
            && self.is_plain()
            && trailer.is_plain()
        {
            checked.verified = self.check_body(&trailer, body)?;
            checked.in_place = true;
        }
        Ok(checked)
    }

    /// Makes an object of at most `limit` bytes of stored bytes; for any codec. Whatever a trailer or a compressed frame says, it
    /// takes no more memory than a few times that.
    ///
    /// # Errors
    /// If they are damaged or another object, or what was done to them cannot be undone here.
    pub(crate) fn decode(
        &self,
        key: &Key,
        name: &ObjectKey,
        stored: &[u8],
        limit: u64,
    ) -> Result<Decoded, Refusal> {
        let whole = Stored::in_one_piece(stored);
        let Some(trailer) = Trailer::find(&whole, key)? else {
            self.may_be_bare(&whole, key, name)?;
            let decoded = self.chain.decode_bare(name.cache_salt(), stored, limit);
            let bytes = decoded.map_err(Refusal::Foreign)?;
            return Ok(Decoded {
                len: bytes.len() as u64,
                meta: ObjectMeta::default(),
                verified: false,
                bytes,
            });
        };
        if trailer.object_len > limit {
            let found = trailer.object_len;
            let reason = format!("it is an object of {found} bytes; expected at most {limit}");
            return Err(Refusal::Foreign(CodecError(reason)));
        }
        let body = &stored[..trailer.body_len as usize];
        let mut verified = self.check_body(&trailer, body)?;
        let decoded = with_identity(key, name, &trailer, |identity| {
            self.chain.decode(trailer.transforms(), identity, body)
        });
        // What is as it was stored needs other transforms: another key perhaps.
        let bytes = decoded.map_err(|error| match verified {
            true => Refusal::Foreign(error),
            false => Refusal::Corrupt(error),
        })?;
        if bytes.len() as u64 != trailer.object_len {
            let (found, expected) = (bytes.len(), trailer.object_len);
            let reason = format!("it decodes to {found} bytes; expected {expected}");
            return Err(CodecError(reason).into());
        }
        let mut meta = trailer.meta();
        match trailer.object_checksum {
            ObjectChecksum::None => {}
            ObjectChecksum::Withheld => meta.checksum = Some(checksum(&bytes)),
            ObjectChecksum::Known(expected) => {
                if !trailer.is_plain() {
                    fits(checksum(&bytes), expected)?;
                    verified = true;
                }
            }
        }
        Ok(Decoded {
            len: trailer.object_len,
            meta,
            verified,
            bytes,
        })
    }

    /// Compares the body with its checksum; whether that, or the adapter, shows that it is right.
    fn check_body(&self, trailer: &Trailer, body: &[u8]) -> Result<bool, Refusal> {
        if trailer.is_plain() && trailer.body_len != trailer.object_len {
            let (found, expected) = (trailer.body_len, trailer.object_len);
            let reason = format!("its body has {found} bytes; expected {expected}");
            return Err(CodecError(reason).into());
        }
        if !self.compares {
            return Ok(true);
        }
        match trailer.body_checksum {
            Some(expected) => {
                fits(checksum(body), expected)?;
                Ok(true)
            }
            None if self.require => Err(Refusal::Foreign(CodecError(
                "its trailer has no checksum, and serde \"checksum\" has \"require\": true"
                    .to_owned(),
            ))),
            None => Ok(false),
        }
    }

    /// Whether something without a trailer can be an object of LMCache's. Everything of Ondol's has a trailer, so what has none is
    /// damaged unless LMCache can have written it.
    fn may_be_bare(&self, stored: &Stored<'_>, key: &Key, name: &ObjectKey) -> Result<(), Refusal> {
        let none = |why| CodecError(format!("it has no trailer{why}"));
        if named_by_lmcache(key).as_ref() != Some(name) {
            return Err(none(": it is no object of LMCache's, which alone have none").into());
        }
        if self.require {
            let why = ": serde \"checksum\" has \"require\": true";
            return Err(Refusal::Foreign(none(why)));
        }
        if trailer::ends_unwritten(stored, key) {
            let why = " and ends in zeros, as if its end had never been written";
            return Err(Refusal::Foreign(none(why)));
        }
        Ok(())
    }
}

fn fits(found: u64, expected: u64) -> Result<(), CodecError> {
    if found == expected {
        return Ok(());
    }
    Err(CodecError(format!(
        "its checksum is {found:016x}; expected {expected:016x}"
    )))
}

fn with_identity<T>(
    key: &Key,
    name: &ObjectKey,
    trailer: &Trailer,
    work: impl FnOnce(&TransformedObject<'_>) -> T,
) -> T {
    work(&TransformedObject {
        name: &name.to_string(),
        salt: name.cache_salt(),
        key_tag: key.tag() as u8,
        key: key.bytes(),
        len: trailer.object_len,
        layout: trailer.layout.map(|layout| layout.0),
    })
}
