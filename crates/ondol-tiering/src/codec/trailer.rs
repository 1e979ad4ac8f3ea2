//! The trailer of a stored object, as `docs/l2-format.md` draws it.

use ondol_plugin::{Key, MAX_KEY_BYTES};
use ondol_shm::{LayoutFingerprint, ObjectMeta};
use xxhash_rust::xxh3::xxh3_64;

use super::stored::Stored;
use super::{CodecError, Refusal};

const HEAD: [u8; 8] = *b"ONDOLTRL";
const END: [u8; 8] = *b"ONDOLOBJ";
const VERSION: u8 = 1;
/// What stands behind the key.
const FOOT_LEN: usize = 80;
/// The end of that, by which the rest is found: length, flags, version, checksum, mark.
const END_LEN: usize = 24;
/// Everything but the key's bytes: its tag is one of these.
const FIXED_LEN: usize = HEAD.len() + 1 + FOOT_LEN;
const MAX_LEN: usize = FIXED_LEN + MAX_KEY_BYTES;
/// The most that a trailer can be away from the end and is still looked for: some storage is written in blocks.
const SEARCHED_LEN: usize = 4096 + MAX_LEN;
/// The most transforms that there is room for.
pub(super) const MAX_CHAIN: usize = 8;

const HAS_LAYOUT: u8 = 1;
const HAS_OBJECT_CHECKSUM: u8 = 2;
const HAS_BODY_CHECKSUM: u8 = 4;
const WITHHELD: u8 = 8;
const KNOWN_FLAGS: u8 = 15;

/// What is known about a stored object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trailer {
    /// Length of the object.
    pub(super) object_len: u64,
    /// Length of what is stored of it, without the trailer.
    pub(super) body_len: u64,
    pub(super) layout: Option<LayoutFingerprint>,
    pub(super) object_checksum: ObjectChecksum,
    /// xxh3-64 of what is stored of it.
    pub(super) body_checksum: Option<u64>,
    /// Numbers of the transforms, the first that was applied first; 0 behind the last.
    pub(super) chain: [u8; MAX_CHAIN],
}

/// The checksum that an object has in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectChecksum {
    /// It has none.
    None,
    Known(u64),
    /// It has one that does not stand here, as it would tell something of what is encrypted.
    Withheld,
}

/// Length of the trailer of this key's object.
pub(super) fn trailer_len(key: &Key) -> usize {
    FIXED_LEN + key.bytes().len()
}

impl Trailer {
    /// What is known about the object that is not its bytes; without a checksum that is withheld.
    pub(super) fn meta(&self) -> ObjectMeta {
        ObjectMeta {
            layout: self.layout,
            checksum: match self.object_checksum {
                ObjectChecksum::Known(checksum) => Some(checksum),
                ObjectChecksum::None | ObjectChecksum::Withheld => None,
            },
        }
    }

    /// Numbers of the transforms, the first that was applied first.
    pub(super) fn transforms(&self) -> impl DoubleEndedIterator<Item = u8> {
        self.chain.into_iter().filter(|id| *id != 0)
    }

    /// Whether the body is the object as it is.
    pub(super) fn is_plain(&self) -> bool {
        self.transforms().next().is_none()
    }

    pub(super) fn to_bytes(self, key: &Key) -> Vec<u8> {
        let len = trailer_len(key);
        let mut bytes = Vec::with_capacity(len);
        bytes.extend(HEAD);
        bytes.push(key.tag() as u8);
        bytes.extend(key.bytes());
        let (checksum, checksum_flag) = match self.object_checksum {
            ObjectChecksum::None => (0, 0),
            ObjectChecksum::Known(checksum) => (checksum, HAS_OBJECT_CHECKSUM),
            ObjectChecksum::Withheld => (0, HAS_OBJECT_CHECKSUM | WITHHELD),
        };
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let flags = checksum_flag
            | flag(self.layout.is_some(), HAS_LAYOUT)
            | flag(self.body_checksum.is_some(), HAS_BODY_CHECKSUM);
        bytes.extend(self.object_len.to_le_bytes());
        bytes.extend(self.body_len.to_le_bytes());
        bytes.extend(checksum.to_le_bytes());
        bytes.extend(self.body_checksum.unwrap_or(0).to_le_bytes());
        bytes.extend(self.layout.map_or([0; 16], |layout| layout.0));
        bytes.extend(self.chain);
        bytes.extend((len as u32).to_le_bytes());
        bytes.extend([flags, 0, 0, VERSION]);
        bytes.extend(xxh3_64(&bytes).to_le_bytes());
        bytes.extend(END);
        bytes
    }

    /// The trailer of what is stored of this key's object; `None` if nothing looks as if there were one or had been.
    ///
    /// # Errors
    /// A trailer that is damaged, cut off, not at the end, or another object's.
    pub(super) fn find(stored: &Stored<'_>, key: &Key) -> Result<Option<Self>, Refusal> {
        let end = stored.tail(END_LEN);
        if end.len() < END_LEN || !end.ends_with(&END) {
            return match Self::trace(stored) {
                Some(trace) => Err(CodecError(trace.to_owned()).into()),
                None => Ok(None),
            };
        }
        let damaged = |what| CodecError(format!("its trailer is damaged: {what}"));
        let mut end = Fields(&end);
        let len = end.u32() as usize;
        let [flags, _, _, version] = end.take();
        if version != VERSION {
            // It may be a newer release's.
            return Err(Refusal::Foreign(CodecError(format!(
                "its trailer has version {version}; expected {VERSION}"
            ))));
        }
        if !(FIXED_LEN..=MAX_LEN).contains(&len) || len as u64 > stored.len() {
            return Err(damaged("its length cannot be").into());
        }
        let checksum = u64::from_le_bytes(end.take());
        let bytes = stored.tail(len);
        if checksum != xxh3_64(&bytes[..len - 16]) || !bytes.starts_with(&HEAD) {
            return Err(damaged("it does not fit its checksum").into());
        }
        if flags & !KNOWN_FLAGS != 0 {
            return Err(Refusal::Foreign(damaged("it has flags that are not known")));
        }
        let (found, foot) = bytes[HEAD.len()..].split_at(len - HEAD.len() - FOOT_LEN);
        if found[0] != key.tag() as u8 || found[1..] != *key.bytes() {
            let found = match Key::from_wire(found[0], &found[1..]) {
                Ok(found) => format!("{found:?}"),
                Err(_) => "of a kind that is not known".to_owned(),
            };
            let reason = format!("it is another object: its key is {found}; expected {key:?}");
            return Err(CodecError(reason).into());
        }
        let mut foot = Fields(foot);
        let trailer = Self {
            object_len: u64::from_le_bytes(foot.take()),
            body_len: u64::from_le_bytes(foot.take()),
            object_checksum: {
                let checksum = u64::from_le_bytes(foot.take());
                match (flags & HAS_OBJECT_CHECKSUM, flags & WITHHELD) {
                    (0, _) => ObjectChecksum::None,
                    (_, 0) => ObjectChecksum::Known(checksum),
                    _ => ObjectChecksum::Withheld,
                }
            },
            body_checksum: {
                let checksum = u64::from_le_bytes(foot.take());
                (flags & HAS_BODY_CHECKSUM != 0).then_some(checksum)
            },
            layout: {
                let layout = LayoutFingerprint(foot.take());
                (flags & HAS_LAYOUT != 0).then_some(layout)
            },
            chain: foot.take(),
        };
        let expected = trailer.body_len.checked_add(len as u64);
        if expected != Some(stored.len()) {
            let (found, body) = (stored.len(), trailer.body_len);
            let reason = format!("it has {found} bytes; expected {body} and a trailer of {len}");
            return Err(CodecError(reason).into());
        }
        Ok(Some(trailer))
    }

    /// What shows that bytes which do not end in a trailer are not what was stored.
    fn trace(stored: &Stored<'_>) -> Option<&'static str> {
        let tail = stored.tail(SEARCHED_LEN);
        if tail.is_empty() {
            return Some("it is empty, and has no trailer");
        }
        if has_mark(&tail) {
            return Some("its trailer is damaged, cut off or not at the end");
        }
        None
    }
}

/// Whether it ends in as many zeros as a trailer of this key would be long: so a file system leaves a file whose end had not been
/// written when the power failed.
pub(super) fn ends_unwritten(stored: &Stored<'_>, key: &Key) -> bool {
    let end = stored.tail(trailer_len(key));
    end.iter().all(|byte| *byte == 0)
}

/// Whether one of our marks is among these bytes. They are looked at for every file without a trailer, so blocks without the first
/// two letters, which both marks share, are passed by quickly.
fn has_mark(bytes: &[u8]) -> bool {
    const BLOCK: usize = 64;
    let may_begin = |block: &[u8], next: &[u8]| {
        let pairs = block.iter().zip(next);
        pairs.fold(false, |any, (first, second)| {
            any | ((*first == HEAD[0]) & (*second == HEAD[1]))
        })
    };
    let places = (bytes.len() + 1).saturating_sub(HEAD.len());
    (0..places).step_by(BLOCK).any(|at| {
        let end = (at + BLOCK).min(places);
        may_begin(&bytes[at..end], &bytes[at + 1..=end])
            && bytes[at..end + HEAD.len() - 1]
                .windows(HEAD.len())
                .any(|bytes| bytes == HEAD || bytes == END)
    })
}

/// Takes fields of constant length from the front of bytes that are long enough.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_at(N);
        self.0 = rest;
        let mut bytes = [0; N];
        bytes.copy_from_slice(field);
        bytes
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_found_wherever_it_stands() {
        for len in [0, 7, 8, 63, 64, 71, 72, 200] {
            let plain = vec![b'O'; len];
            assert!(!has_mark(&plain), "{len}");
            for mark in [HEAD, END] {
                for at in 0..(len + 1).saturating_sub(mark.len()) {
                    let mut bytes = plain.clone();
                    bytes[at..at + mark.len()].copy_from_slice(&mark);
                    assert!(has_mark(&bytes), "{len} {at}");
                }
            }
        }
    }
}
