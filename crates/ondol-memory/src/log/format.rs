//! The frames around what a log says: file headers and records.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::PoolId;

/// The format that this build writes, and the only one that it reads.
pub(super) const VERSION: u32 = 1;
/// Length of the header of every file.
pub(super) const FILE_HEADER: usize = 64;
/// Length of the header of every record.
pub(super) const RECORD_HEADER: usize = 16;
/// Records begin at multiples of this.
pub(super) const ALIGNMENT: usize = 8;
/// No record's payload is longer, so that a damaged length is known as such.
pub(super) const MAX_PAYLOAD: usize = 2048;

/// Kind of the record that ends a segment: what follows stands in the next one.
pub(super) const END: u8 = 254;
/// Kind of the record that a clean stop leaves.
pub(super) const CLOSED: u8 = 255;

pub(super) const SEGMENT_MAGIC: [u8; 8] = *b"ONDOLLOG";
pub(super) const CHECKPOINT_MAGIC: [u8; 8] = *b"ONDOLIMG";

/// Whose log it is. The pool's name goes into every checksum, so that bytes of another pool's log never fit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity {
    pub(super) pool: PoolId,
    seed: u64,
}

impl Identity {
    pub(super) fn new(pool: PoolId) -> Self {
        Self {
            pool,
            seed: xxh3_64(&pool.0),
        }
    }

    /// The checksum of bytes that stand at this place of the log, so that they do not fit elsewhere.
    pub(super) fn checksum(&self, place: u64, bytes: &[u8]) -> u64 {
        xxh3_64_with_seed(bytes, self.seed.wrapping_add(place))
    }
}

/// The first bytes of a file of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileHeader {
    pub(super) magic: [u8; 8],
    pub(super) pool: PoolId,
    /// A segment's first byte, as a place in the log; of a checkpoint, the place up to which it holds all changes.
    pub(super) position: u64,
    /// Length of a segment's file; 0 in a checkpoint.
    pub(super) len: u64,
}

/// Why bytes are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadHeader {
    Damaged,
    Version(u32),
}

impl FileHeader {
    pub(super) fn encode(&self) -> [u8; FILE_HEADER] {
        let mut bytes = [0; FILE_HEADER];
        bytes[0..8].copy_from_slice(&self.magic);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.pool.0);
        bytes[32..40].copy_from_slice(&self.position.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.len.to_le_bytes());
        let checksum = xxh3_64(&bytes[..56]);
        bytes[56..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8], magic: [u8; 8]) -> Result<Self, BadHeader> {
        let bytes: &[u8; FILE_HEADER] = bytes.first_chunk().ok_or(BadHeader::Damaged)?;
        if bytes[..8] != magic || u64_at(bytes, 56) != xxh3_64(&bytes[..56]) {
            return Err(BadHeader::Damaged);
        }
        match u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) {
            VERSION => {}
            other => return Err(BadHeader::Version(other)),
        }
        let mut pool = [0; 16];
        pool.copy_from_slice(&bytes[16..32]);
        Ok(Self {
            magic,
            pool: PoolId(pool),
            position: u64_at(bytes, 32),
            len: u64_at(bytes, 40),
        })
    }
}

/// The eight bytes at `at`, which must be there.
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

/// A record whose checksum is right.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'a> {
    pub(super) kind: u8,
    pub(super) version: u8,
    /// Where the batch begins that it was written with.
    pub(super) batch: u64,
    pub(super) payload: &'a [u8],
    /// Its length with header and padding.
    pub(super) size: usize,
}

/// Makes room for a record's header at the end of `out`; [`finish_record`] fills it.
pub(super) fn begin_record(out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; RECORD_HEADER]);
    start
}

/// Completes the record that begins at `start` of `out` and at `position` of the log, in the batch that begins at
/// `batch`.
pub(super) fn finish_record(
    out: &mut Vec<u8>,
    start: usize,
    kind: u8,
    position: u64,
    batch: u64,
    identity: &Identity,
) {
    let payload = out.len() - start - RECORD_HEADER;
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
    let distance = (position - batch) / ALIGNMENT as u64;
    let header = &mut out[start + 8..start + RECORD_HEADER];
    header[0..2].copy_from_slice(&(payload as u16).to_le_bytes());
    header[2] = kind;
    header[3] = VERSION as u8;
    header[4..8].copy_from_slice(&(distance as u32).to_le_bytes());
    let checksum = identity.checksum(position, &out[start + 8..]);
    out[start..start + 8].copy_from_slice(&checksum.to_le_bytes());
}

/// The record that begins at `bytes` and at `position` of the log, if there is a whole one.
pub(super) fn read_record<'a>(
    bytes: &'a [u8],
    position: u64,
    identity: &Identity,
) -> Option<Record<'a>> {
    let header: &[u8; RECORD_HEADER] = bytes.first_chunk()?;
    // Most places at which no record stands are zeros: that is told without a checksum.
    if u64_at(header, 8) == 0 {
        return None;
    }
    let len = usize::from(u16::from_le_bytes([header[8], header[9]]));
    let distance = u32::from_le_bytes([header[12], header[13], header[14], header[15]]);
    let batch = position.checked_sub(u64::from(distance) * ALIGNMENT as u64)?;
    let size = RECORD_HEADER + len.next_multiple_of(ALIGNMENT);
    if len > MAX_PAYLOAD || bytes.len() < size {
        return None;
    }
    if identity.checksum(position, &bytes[8..size]) != u64_at(header, 0) {
        return None;
    }
    Some(Record {
        kind: header[10],
        version: header[11],
        batch,
        payload: &bytes[RECORD_HEADER..RECORD_HEADER + len],
        size,
    })
}
