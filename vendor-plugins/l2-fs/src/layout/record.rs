//! What stands behind an object's bytes in a file of the sharded layout; all numbers are little-endian:
//!
//! ```text
//!  offset   size  what
//!       0      N  the object: its body, then its trailer, as they were given
//!       N      8  N
//!     N+8      8  xxh3-64 of the N bytes
//!    N+16      K  the key's canonical string, UTF-8
//!  N+16+K      4  K
//!  N+20+K      4  version, 1
//!  N+24+K      8  xxh3-64 of the bytes from N on, up to here
//!  N+32+K      8  "ONDOLFS1"
//! ```
//!
//! It stands at the end so that an object lies in its file as it does in memory, on the same boundaries.

use std::os::fd::BorrowedFd;

use ondol_plugin::l2::ObjectKey;
use rustix::io::Errno;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

const MAGIC: &[u8; 8] = b"ONDOLFS1";
const VERSION: u32 = 1;
/// Bytes besides the key.
const FIXED: u64 = 40;
/// Bytes behind the key.
const END: usize = 24;
/// Longer than any key that somebody would use; what says more is damaged.
const MAX_KEY: u64 = 1 << 20;

/// A record in the bytes of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record(Vec<u8>);

/// Why a file is not the one that its record describes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadRecord {
    #[error("it is cut off, or its description is damaged")]
    Damaged,
    #[error("its description has version {0}; expected {VERSION}")]
    Version(u32),
    #[error("it is the object {0}")]
    OtherKey(String),
    #[error("its bytes have the checksum {found:016x}; expected {expected:016x}")]
    Checksum { found: u64, expected: u64 },
    #[error("cannot be read: {0}")]
    Io(Errno),
}

impl Record {
    /// The record of an object of these parts.
    pub(crate) fn new<'a>(key: &ObjectKey, parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let (length, sum) = sum(parts);
        let text = key.to_string();
        let mut bytes = Vec::with_capacity(FIXED as usize + text.len());
        bytes.extend(length.to_le_bytes());
        bytes.extend(sum.to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes.extend((text.len() as u32).to_le_bytes());
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(xxh3_64(&bytes).to_le_bytes());
        bytes.extend(MAGIC);
        Self(bytes)
    }

    /// Bytes of the record of this key's objects.
    pub(crate) fn len(key: &ObjectKey) -> u64 {
        FIXED + key.to_string().len() as u64
    }

    /// The record in its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Compares a record that was read with the key and the parts that it should describe.
    ///
    /// # Errors
    /// [`BadRecord`].
    pub(crate) fn check<'a>(
        read: &[u8],
        key: &ObjectKey,
        parts: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), BadRecord> {
        let Described {
            key: found,
            length,
            sum: expected,
        } = describe(read)?;
        if found != key.to_string() {
            return Err(BadRecord::OtherKey(found.to_owned()));
        }
        let (have, found) = sum(parts);
        if have != length {
            return Err(BadRecord::Damaged);
        }
        if found != expected {
            return Err(BadRecord::Checksum { found, expected });
        }
        Ok(())
    }
}

struct Described<'a> {
    key: &'a str,
    length: u64,
    sum: u64,
}

fn describe(read: &[u8]) -> Result<Described<'_>, BadRecord> {
    let damaged = BadRecord::Damaged;
    let (body, magic) = read.split_last_chunk::<8>().ok_or(damaged.clone())?;
    let (covered, own_sum) = body.split_last_chunk::<8>().ok_or(damaged.clone())?;
    if magic != MAGIC || u64::from_le_bytes(*own_sum) != xxh3_64(covered) {
        return Err(damaged);
    }
    let (rest, version) = covered.split_last_chunk::<4>().ok_or(damaged.clone())?;
    let version = u32::from_le_bytes(*version);
    if version != VERSION {
        return Err(BadRecord::Version(version));
    }
    let (rest, key_len) = rest.split_last_chunk::<4>().ok_or(damaged.clone())?;
    let (length, rest) = rest.split_first_chunk::<8>().ok_or(damaged.clone())?;
    let (sum, key) = rest.split_first_chunk::<8>().ok_or(damaged.clone())?;
    if key.len() as u64 != u64::from(u32::from_le_bytes(*key_len)) {
        return Err(damaged);
    }
    Ok(Described {
        key: str::from_utf8(key).map_err(|_| damaged)?,
        length: u64::from_le_bytes(*length),
        sum: u64::from_le_bytes(*sum),
    })
}

fn sum<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> (u64, u64) {
    let mut hasher = Xxh3::new();
    let mut length = 0;
    for part in parts {
        hasher.update(part);
        length += part.len() as u64;
    }
    (length, hasher.digest())
}

/// The key that stands in a file of `length` bytes; its object's bytes are not checked.
///
/// # Errors
/// [`BadRecord`].
pub(crate) fn record_of(file: BorrowedFd<'_>, length: u64) -> Result<ObjectKey, BadRecord> {
    let read = |at: u64, into: &mut [u8]| -> Result<(), BadRecord> {
        let mut done = 0;
        while done < into.len() {
            match rustix::io::pread(file, &mut into[done..], at + done as u64) {
                Ok(0) => return Err(BadRecord::Damaged),
                Ok(bytes) => done += bytes,
                Err(Errno::INTR) => {}
                Err(error) => return Err(BadRecord::Io(error)),
            }
        }
        Ok(())
    };
    let mut end = [0; END];
    let at = length.checked_sub(END as u64).ok_or(BadRecord::Damaged)?;
    read(at, &mut end)?;
    let key_len = u64::from(u32::from_le_bytes([end[0], end[1], end[2], end[3]]));
    let whole = FIXED + key_len;
    if key_len > MAX_KEY || whole > length {
        return Err(BadRecord::Damaged);
    }
    let mut record = vec![0; whole as usize];
    read(length - whole, &mut record)?;
    let described = describe(&record)?;
    if described.length.checked_add(whole) != Some(length) {
        return Err(BadRecord::Damaged);
    }
    described.key.parse().map_err(|_| BadRecord::Damaged)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use ondol_plugin::l2::KvRank;

    use super::*;

    fn key(model: &str) -> ObjectKey {
        ObjectKey::new(model, KvRank(1), 0, [1, 2], "salt").unwrap()
    }

    #[test]
    fn the_bytes_are_the_ones_that_are_drawn() {
        let record = Record::new(&key("m"), [&b"ab"[..], b"c"]);
        let text = b"m@00000001@0@0102@salt";
        let mut expected = 3_u64.to_le_bytes().to_vec();
        expected.extend(xxh3_64(b"abc").to_le_bytes());
        expected.extend(text);
        expected.extend([text.len() as u8, 0, 0, 0, 1, 0, 0, 0]);
        expected.extend(xxh3_64(&expected).to_le_bytes());
        expected.extend(b"ONDOLFS1");
        assert_eq!(record.bytes(), expected);
        assert_eq!(record.bytes().len() as u64, Record::len(&key("m")));
    }

    #[test]
    fn any_flipped_bit_is_found() {
        let record = Record::new(&key("m"), [&b"abc"[..]]);
        assert_eq!(
            Record::check(record.bytes(), &key("m"), [&b"abc"[..]]),
            Ok(())
        );
        for bit in 0..record.bytes().len() * 8 {
            let mut bytes = record.bytes().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(
                Record::check(&bytes, &key("m"), [&b"abc"[..]]).is_err(),
                "{bit}"
            );
        }
        let other = Record::check(record.bytes(), &key("n"), [&b"abc"[..]]);
        assert!(matches!(other, Err(BadRecord::OtherKey(_))));
        let changed = Record::check(record.bytes(), &key("m"), [&b"abd"[..]]);
        assert!(matches!(changed, Err(BadRecord::Checksum { .. })));
    }

    #[test]
    fn the_key_is_read_from_the_file_and_a_cut_file_has_none() {
        let record = Record::new(&key("m"), [&b"abc"[..]]);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"abc").unwrap();
        file.write_all(record.bytes()).unwrap();
        let length = 3 + record.bytes().len() as u64;
        assert_eq!(record_of(file.as_fd(), length), Ok(key("m")));
        for cut in 0..length {
            file.set_len(cut).unwrap();
            assert!(record_of(file.as_fd(), cut).is_err(), "{cut}");
        }
    }
}
