//! How the values travel of which messages consist. All numbers are little-endian.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use ondol_plugin::{Key, RegionId, RegionSpan};
use ondol_shm::{BackingId, Generation, LeaseRef, Location, PageId, RegionHandle};
use smallvec::SmallVec;

use crate::{
    Access, Breakdown, ClientId, ClientInfo, Commit, CommitOutcome, ControlError, DeleteOutcome,
    Grant, GrantRequest, Hit, LayoutFingerprint, ObjectInfo, ObjectMeta, Pin, PinOutcome,
    RefusedCommit, RegionInfo, StaleReason,
};

use super::reader::Reader;
use super::{DecodeError, MAX_TEXT_BYTES};

/// A value with a place in a message.
pub(super) trait Wire: Sized {
    /// The fewest bytes that a value takes.
    const MIN: usize;

    fn put(&self, out: &mut Vec<u8>);

    fn get(reader: &mut Reader<'_>) -> Result<Self, DecodeError>;
}

pub(super) fn put_all<T: Wire>(values: &[T], out: &mut Vec<u8>) {
    put_count(values.len(), out);
    values.iter().for_each(|value| value.put(out));
}

/// Batches are checked to be far below 2³² before they are encoded.
pub(super) fn put_count(count: usize, out: &mut Vec<u8>) {
    put_u32(u32::try_from(count).unwrap_or(u32::MAX), out);
}

pub(super) fn get_all<T: Wire>(
    reader: &mut Reader<'_>,
    what: &'static str,
) -> Result<Vec<T>, DecodeError> {
    let count = reader.count(T::MIN, what)?;
    let mut values = Vec::with_capacity(count);
    for _ in 0..count {
        values.push(T::get(reader)?);
    }
    Ok(values)
}

/// As [`get_all`]; a single value is not put on the heap.
pub(super) fn get_few<T: Wire>(
    reader: &mut Reader<'_>,
    what: &'static str,
) -> Result<SmallVec<[T; 1]>, DecodeError> {
    let count = reader.count(T::MIN, what)?;
    let mut values = SmallVec::with_capacity(count);
    for _ in 0..count {
        values.push(T::get(reader)?);
    }
    Ok(values)
}

pub(super) fn put_u32(value: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(super) fn put_u64(value: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_short(bytes: &[u8], out: &mut Vec<u8>) {
    let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&bytes[..len.into()]);
}

fn get_short<'a>(
    reader: &mut Reader<'a>,
    limit: usize,
    what: &'static str,
) -> Result<&'a [u8], DecodeError> {
    let len = reader.u16(what)?;
    if usize::from(len) > limit {
        return Err(DecodeError::Value {
            what,
            found: len.into(),
            expected: "a length of at most 4096 bytes",
        });
    }
    reader.bytes(len.into(), what)
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    let cut = text.floor_char_boundary(MAX_TEXT_BYTES);
    put_short(&text.as_bytes()[..cut], out);
}

fn get_text(reader: &mut Reader<'_>, what: &'static str) -> Result<String, DecodeError> {
    let bytes = get_short(reader, MAX_TEXT_BYTES, what)?;
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => Err(DecodeError::NotText { what }),
    }
}

fn unknown(what: &'static str, found: u8, expected: &'static str) -> DecodeError {
    DecodeError::Value {
        what,
        found: found.into(),
        expected,
    }
}

impl<T: Wire> Wire for Option<T> {
    const MIN: usize = 1;

    fn put(&self, out: &mut Vec<u8>) {
        out.push(self.is_some().into());
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader
            .bool("mark of an optional value")?
            .then(|| T::get(reader))
            .transpose()
    }
}

impl Wire for u64 {
    const MIN: usize = 8;

    fn put(&self, out: &mut Vec<u8>) {
        put_u64(*self, out);
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.u64("number")
    }
}

impl Wire for bool {
    const MIN: usize = 1;

    fn put(&self, out: &mut Vec<u8>) {
        out.push((*self).into());
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.bool("mark")
    }
}

impl Wire for Key {
    const MIN: usize = 3;

    fn put(&self, out: &mut Vec<u8>) {
        out.push(self.tag() as u8);
        put_short(self.bytes(), out);
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let tag = reader.u8("key tag")?;
        let len = reader.u16("key length")?;
        let bytes = reader.bytes(len.into(), "key")?;
        Ok(Self::from_wire(tag, bytes)?)
    }
}

impl Wire for LeaseRef {
    const MIN: usize = 12;

    fn put(&self, out: &mut Vec<u8>) {
        put_u32(self.slot, out);
        put_u64(self.sequence, out);
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            slot: reader.u32("lease slot")?,
            sequence: reader.u64("lease sequence")?,
        })
    }
}

impl Wire for PageId {
    const MIN: usize = 12;

    fn put(&self, out: &mut Vec<u8>) {
        put_u64(self.region.0, out);
        put_u32(self.index, out);
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            region: RegionId(reader.u64("region id")?),
            index: reader.u32("page index")?,
        })
    }
}

impl Wire for Location {
    const MIN: usize = 28;

    fn put(&self, out: &mut Vec<u8>) {
        self.page.put(out);
        put_u64(self.generation.0, out);
        put_u64(self.len, out);
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            page: PageId::get(reader)?,
            generation: Generation(reader.u64("page generation")?),
            len: reader.u64("object length")?,
        })
    }
}

impl Wire for LayoutFingerprint {
    const MIN: usize = 16;

    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.array("layout fingerprint").map(Self)
    }
}

impl Wire for ObjectMeta {
    const MIN: usize = 2;

    fn put(&self, out: &mut Vec<u8>) {
        self.layout.put(out);
        self.checksum.put(out);
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            layout: Wire::get(reader)?,
            checksum: Wire::get(reader)?,
        })
    }
}

impl Wire for Hit {
    const MIN: usize = Location::MIN + ObjectMeta::MIN;

    fn put(&self, out: &mut Vec<u8>) {
        self.location.put(out);
        self.meta.put(out);
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            location: Wire::get(reader)?,
            meta: Wire::get(reader)?,
        })
    }
}

impl Wire for ObjectInfo {
    const MIN: usize = Key::MIN + Hit::MIN + 8;

    fn put(&self, out: &mut Vec<u8>) {
        self.key.put(out);
        self.location.put(out);
        self.meta.put(out);
        put_u32(self.leases, out);
        put_u32(self.pins, out);
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            key: Wire::get(reader)?,
            location: Wire::get(reader)?,
            meta: Wire::get(reader)?,
            leases: reader.u32("count of leases")?,
            pins: reader.u32("count of pins")?,
        })
    }
}

impl Wire for Commit {
    const MIN: usize = Key::MIN + Hit::MIN;

    fn put(&self, out: &mut Vec<u8>) {
        self.key.put(out);
        self.location.put(out);
        self.meta.put(out);
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            key: Wire::get(reader)?,
            location: Wire::get(reader)?,
            meta: Wire::get(reader)?,
        })
    }
}

impl Wire for Grant {
    const MIN: usize = PageId::MIN + 8;

    fn put(&self, out: &mut Vec<u8>) {
        self.page.put(out);
        put_u64(self.generation.0, out);
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            page: Wire::get(reader)?,
            generation: Generation(reader.u64("page generation")?),
        })
    }
}

impl Wire for GrantRequest {
    const MIN: usize = 20;

    fn put(&self, out: &mut Vec<u8>) {
        put_u64(self.request, out);
        put_u64(self.stride, out);
        put_u32(self.count, out);
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            request: reader.u64("number of the grant request")?,
            stride: reader.u64("page stride")?,
            count: reader.u32("count of pages")?,
        })
    }
}

impl Wire for RegionHandle {
    const MIN: usize = 56;

    fn put(&self, out: &mut Vec<u8>) {
        put_u64(self.span.region_id.0, out);
        put_u64(self.span.offset, out);
        put_u64(self.span.length, out);
        out.extend_from_slice(&self.token);
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            span: RegionSpan {
                region_id: RegionId(reader.u64("region id")?),
                offset: reader.u64("region offset")?,
                length: reader.u64("region length")?,
            },
            token: reader.array("region token")?,
        })
    }
}

impl Wire for PathBuf {
    const MIN: usize = 2;

    fn put(&self, out: &mut Vec<u8>) {
        put_short(self.as_os_str().as_bytes(), out);
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        get_short(reader, MAX_TEXT_BYTES, "path").map(|bytes| OsStr::from_bytes(bytes).into())
    }
}

impl Wire for RegionInfo {
    const MIN: usize = RegionHandle::MIN + 21;

    fn put(&self, out: &mut Vec<u8>) {
        self.handle.put(out);
        put_u64(self.stride, out);
        put_u32(self.backing.0, out);
        put_u64(self.backing_len, out);
        // No system call takes a longer path, so one that is longer is as good as none.
        let usable = |path: &&PathBuf| path.as_os_str().len() <= MAX_TEXT_BYTES;
        match self.path.as_ref().filter(usable) {
            Some(path) => {
                out.push(1);
                path.put(out);
            }
            None => out.push(0),
        }
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            handle: Wire::get(reader)?,
            stride: reader.u64("page stride")?,
            backing: BackingId(reader.u32("backing id")?),
            backing_len: reader.u64("backing length")?,
            path: Wire::get(reader)?,
        })
    }
}

impl Wire for Access {
    const MIN: usize = 1;

    fn put(&self, out: &mut Vec<u8>) {
        out.push(match self {
            Self::Read => 0,
            Self::Write => 1,
        });
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let write = reader.bool("access")?;
        Ok(if write { Self::Write } else { Self::Read })
    }
}

impl Wire for ClientInfo {
    const MIN: usize = 32;

    fn put(&self, out: &mut Vec<u8>) {
        put_u64(self.id.0, out);
        put_u64(self.share_limit, out);
        put_u64(self.max_page_bytes, out);
        put_u64(self.incarnation, out);
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            id: ClientId(reader.u64("client id")?),
            share_limit: reader.u64("share limit")?,
            max_page_bytes: reader.u64("longest page")?,
            incarnation: reader.u64("incarnation")?,
        })
    }
}

impl Wire for StaleReason {
    const MIN: usize = 1;

    fn put(&self, out: &mut Vec<u8>) {
        out.push(match self {
            Self::UnknownPage => 1,
            Self::OldGeneration => 2,
            Self::NotGranted => 3,
        });
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match reader.u8("reason")? {
            1 => Ok(Self::UnknownPage),
            2 => Ok(Self::OldGeneration),
            3 => Ok(Self::NotGranted),
            found => Err(unknown("reason", found, "1, 2 or 3")),
        }
    }
}

impl Wire for Result<(), StaleReason> {
    const MIN: usize = 1;

    fn put(&self, out: &mut Vec<u8>) {
        self.err().put(out);
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Option::get(reader)?.map_or(Ok(()), Err))
    }
}

impl Wire for CommitOutcome {
    const MIN: usize = 1;

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Stored => out.push(0),
            Self::AlreadyPresent => out.push(1),
            Self::Refused(RefusedCommit::Stale(reason)) => {
                out.push(2);
                reason.put(out);
            }
            Self::Refused(RefusedCommit::TooLong { len, stride }) => {
                out.push(3);
                put_u64(*len, out);
                put_u64(*stride, out);
            }
            Self::Refused(RefusedCommit::NotRecorded) => out.push(4),
        }
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match reader.u8("commit outcome")? {
            0 => Ok(Self::Stored),
            1 => Ok(Self::AlreadyPresent),
            2 => Ok(Self::Refused(StaleReason::get(reader)?.into())),
            3 => Ok(Self::Refused(RefusedCommit::TooLong {
                len: reader.u64("object length")?,
                stride: reader.u64("page stride")?,
            })),
            4 => Ok(Self::Refused(RefusedCommit::NotRecorded)),
            found => Err(unknown("commit outcome", found, "0 to 4")),
        }
    }
}

impl Wire for Pin {
    const MIN: usize = Key::MIN + 8;

    fn put(&self, out: &mut Vec<u8>) {
        self.key.put(out);
        put_u64(self.number, out);
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            key: Wire::get(reader)?,
            number: reader.u64("number of the pin")?,
        })
    }
}

impl Wire for PinOutcome {
    const MIN: usize = 1;

    fn put(&self, out: &mut Vec<u8>) {
        out.push(match self {
            Self::Done => 0,
            Self::Absent => 1,
        });
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let absent = reader.bool("pin outcome")?;
        Ok(if absent { Self::Absent } else { Self::Done })
    }
}

impl Wire for DeleteOutcome {
    const MIN: usize = 1;

    fn put(&self, out: &mut Vec<u8>) {
        out.push(match self {
            Self::Deleted => 0,
            Self::Absent => 1,
            Self::Pinned => 2,
        });
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match reader.u8("delete outcome")? {
            0 => Ok(Self::Deleted),
            1 => Ok(Self::Absent),
            2 => Ok(Self::Pinned),
            found => Err(unknown("delete outcome", found, "0, 1 or 2")),
        }
    }
}

impl Wire for Breakdown {
    const MIN: usize = 64;

    fn put(&self, out: &mut Vec<u8>) {
        let Self {
            asked,
            leased,
            pinned,
            granted,
            captive,
            other_classes,
            free,
            largest_free_extent,
        } = *self;
        for value in [
            asked,
            leased,
            pinned,
            granted,
            captive,
            other_classes,
            free,
            largest_free_extent,
        ] {
            put_u64(value, out);
        }
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            asked: reader.u64("bytes asked for")?,
            leased: reader.u64("bytes leased")?,
            pinned: reader.u64("bytes pinned")?,
            granted: reader.u64("bytes granted")?,
            captive: reader.u64("bytes captive")?,
            other_classes: reader.u64("bytes in other page sizes")?,
            free: reader.u64("bytes free")?,
            largest_free_extent: reader.u64("largest free extent")?,
        })
    }
}

/// A text longer than [`MAX_TEXT_BYTES`] is cut there.
impl Wire for ControlError {
    const MIN: usize = 3;

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::PoolFull(breakdown) => {
                out.push(1);
                breakdown.put(out);
            }
            Self::ShareExceeded { asked, held, limit } => {
                out.push(2);
                put_u64(*asked, out);
                put_u64(*held, out);
                put_u64(*limit, out);
            }
            Self::Refused(text) => {
                out.push(3);
                put_text(text, out);
            }
            Self::Failed(text) => {
                out.push(4);
                put_text(text, out);
            }
            Self::Disconnected { reason, sent } => {
                out.push(5);
                out.push((*sent).into());
                put_text(reason, out);
            }
            Self::TimedOut { waited_ms } => {
                out.push(6);
                put_u64(*waited_ms, out);
            }
            Self::Protocol(text) => {
                out.push(7);
                put_text(text, out);
            }
            Self::UnknownClient(text) => {
                out.push(8);
                put_text(text, out);
            }
        }
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        const TEXT: &str = "text of the error";
        match reader.u8("kind of error")? {
            1 => Breakdown::get(reader).map(Self::PoolFull),
            2 => Ok(Self::ShareExceeded {
                asked: reader.u64("bytes asked for")?,
                held: reader.u64("bytes held")?,
                limit: reader.u64("share limit")?,
            }),
            3 => get_text(reader, TEXT).map(Self::Refused),
            4 => get_text(reader, TEXT).map(Self::Failed),
            5 => Ok(Self::Disconnected {
                sent: reader.bool("mark of a request that was sent")?,
                reason: get_text(reader, TEXT)?,
            }),
            6 => Ok(Self::TimedOut {
                waited_ms: reader.u64("milliseconds waited")?,
            }),
            7 => get_text(reader, TEXT).map(Self::Protocol),
            8 => get_text(reader, TEXT).map(Self::UnknownClient),
            found => Err(unknown("kind of error", found, "1 to 8")),
        }
    }
}
