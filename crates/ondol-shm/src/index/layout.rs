//! The words of an index, and how many of them there are. The module above draws them.

use std::mem::offset_of;
use std::sync::atomic::AtomicU32;

use ondol_catalog::{FrozenField, FrozenLayout, LAYOUTS, linkme::distributed_slice};
use ondol_plugin::MAX_KEY_BYTES;

use crate::home::HUGE_PAGE;
use crate::sync::AtomicU64;

pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"ONDOLIDX");
pub(super) const VERSION: u64 = 1;
pub(super) const CURRENT: u64 = 1;
pub(super) const RETIRED: u64 = 2;

/// The head of an index. What readers take for granted stands on the first line, what changes on the second.
#[repr(C, align(64))]
pub(super) struct Header {
    pub(super) magic: AtomicU64,
    pub(super) version: AtomicU64,
    pub(super) buckets: AtomicU64,
    pub(super) cells: AtomicU64,
    pub(super) seed: AtomicU64,
    pub(super) incarnation: AtomicU64,
    reserved: [AtomicU64; 2],
    /// [`CURRENT`] or [`RETIRED`].
    pub(super) state: AtomicU64,
    /// How many visible objects the index does not hold.
    pub(super) unindexed: AtomicU64,
    /// The thread of the server that keeps the index, as the kernel marks it.
    pub(super) owner: AtomicU32,
    reserved_word: AtomicU32,
    reserved_line: [AtomicU64; 5],
}

/// Number of the header's words that a reader must know before it maps the index.
pub(super) const HEADER_WORDS: usize = offset_of!(Header, reserved) / 8;

pub(super) const SLOTS: usize = 7;

/// One cache line of the hash table.
#[repr(C, align(64))]
pub(super) struct Bucket {
    /// How many objects lie in a later bucket because this one was full.
    pub(super) overflow: AtomicU64,
    /// Of each object the tag of its fingerprint, in the upper half, and its record's first cell; 0 if there is none.
    pub(super) slots: [AtomicU64; SLOTS],
}

/// One cache line of the records.
pub(super) type Cell = [AtomicU64; 8];

/// One object, in consecutive cells; its key's bytes follow.
#[repr(C)]
struct Record {
    version: u64,
    fingerprint: [u64; 2],
    page: u64,
    generation: u64,
    len: u64,
    key_and_flags: u64,
    checksum: u64,
    layout: [u64; 2],
}

/// Numbers of a record's words.
pub(super) mod word {
    use super::{Record, offset_of};

    pub(in super::super) const VERSION: usize = offset_of!(Record, version) / 8;
    pub(in super::super) const FINGERPRINT: usize = offset_of!(Record, fingerprint) / 8;
    pub(in super::super) const PAGE: usize = offset_of!(Record, page) / 8;
    pub(in super::super) const GENERATION: usize = offset_of!(Record, generation) / 8;
    pub(in super::super) const LEN: usize = offset_of!(Record, len) / 8;
    pub(in super::super) const KEY_AND_FLAGS: usize = offset_of!(Record, key_and_flags) / 8;
    pub(in super::super) const CHECKSUM: usize = offset_of!(Record, checksum) / 8;
    pub(in super::super) const LAYOUT: usize = offset_of!(Record, layout) / 8;
    /// The first of the key's words, after those that every record has.
    pub(in super::super) const KEY: usize = size_of::<Record>() / 8;
}

/// Bits of the word that holds the key's length (16 bits) and tag (8 bits).
pub(super) mod flag {
    pub(in super::super) const HAS_LAYOUT: u64 = 1 << 24;
    pub(in super::super) const HAS_CHECKSUM: u64 = 1 << 25;
    /// Readers are to ask the server for the object.
    pub(in super::super) const UNVERIFIED: u64 = 1 << 26;
    pub(in super::super) const KEY_LENGTH: u64 = (1 << 16) - 1;
    /// What is no flag: length and tag of the key.
    pub(in super::super) const KEY_MASK: u64 = (1 << 24) - 1;
}

const HEADER_BYTES: usize = size_of::<Header>();
const _: () = assert!(HEADER_BYTES == 128 && offset_of!(Header, state) == 64);
const _: () = assert!(size_of::<Bucket>() == 64 && size_of::<Cell>() == 64);

/// Number of cells of a record whose key has so many bytes.
#[inline]
pub(super) const fn record_cells(key_bytes: usize) -> usize {
    (word::KEY * 8 + key_bytes).div_ceil(size_of::<Cell>())
}

/// So many buckets at most hold an object or pass it on.
pub(super) const MAX_PROBE: usize = 32;

/// Buckets and cells of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) buckets: usize,
    pub(super) cells: usize,
}

impl Geometry {
    /// Room for so many objects whose keys have so many bytes on average. `None` if cells could not be numbered.
    pub(super) fn for_objects(objects: u64, key_bytes: u64) -> Option<Self> {
        let objects = usize::try_from(objects.clamp(1, 1 << 40)).ok()?;
        let key_bytes = usize::try_from(key_bytes.min(MAX_KEY_BYTES as u64)).ok()?;
        // Four of seven slots filled: few buckets overflow, and most misses cost one line.
        let buckets = objects.div_ceil(4).max(MAX_PROBE);
        // Lengths differ, and records of one length leave no room to those of another.
        let cells = objects
            .checked_mul(record_cells(key_bytes))?
            .checked_add(objects / 8 + 64)?;
        let asked = Self { buckets, cells };
        // Whole huge pages, if it comes to more than one.
        let bytes = usize::try_from(asked.bytes()).ok()?;
        let rest = match bytes {
            ..HUGE_PAGE => 0,
            _ => bytes.next_multiple_of(HUGE_PAGE) - bytes,
        };
        Self::new(buckets as u64, (cells + rest / size_of::<Cell>()) as u64)
    }

    /// A geometry that was read; `None` if it is none.
    pub(super) fn new(buckets: u64, cells: u64) -> Option<Self> {
        let numbered = (2..=u64::from(u32::MAX)).contains(&cells);
        let geometry = Self {
            buckets: usize::try_from(buckets).ok()?,
            cells: usize::try_from(cells).ok()?,
        };
        (buckets > 0 && numbered && buckets <= u64::from(u32::MAX)).then_some(geometry)
    }

    /// With more objects too many buckets would overflow.
    pub(super) fn max_objects(self) -> u64 {
        self.buckets as u64 * 5
    }

    /// Bytes of the whole file.
    pub(super) fn bytes(self) -> u64 {
        (HEADER_BYTES + (self.buckets + self.cells) * size_of::<Cell>()) as u64
    }
}

/// The words of a mapped index.
#[derive(Clone, Copy)]
pub(super) struct Segment<'a> {
    pub(super) header: &'a Header,
    pub(super) buckets: &'a [Bucket],
    /// The first cell is never used, as its number stands for none.
    pub(super) cells: &'a [Cell],
}

impl<'a> Segment<'a> {
    /// # Safety
    /// At `first`, aligned to a line, [`Geometry::bytes`] bytes are mapped for as long as `'a`, which all processes
    /// access as atomic words only. If the mapping is for reading, nothing is stored through the result.
    #[inline]
    pub(super) unsafe fn new(first: *const u64, geometry: Geometry) -> Self {
        let header = first.cast::<Header>();
        let buckets = first.wrapping_byte_add(HEADER_BYTES).cast::<Bucket>();
        let cells = buckets.wrapping_add(geometry.buckets).cast::<Cell>();
        // SAFETY: the caller vouches for the memory, and all values are atomics.
        let header = unsafe { &*header };
        // SAFETY: as above; the buckets follow the header.
        let buckets = unsafe { std::slice::from_raw_parts(buckets, geometry.buckets) };
        // SAFETY: as above; the cells follow the buckets.
        let cells = unsafe { std::slice::from_raw_parts(cells, geometry.cells) };
        Self {
            header,
            buckets,
            cells,
        }
    }

    /// The words of a record of so many cells, if they lie inside.
    #[inline]
    pub(super) fn record(&self, first: u32, cells: usize) -> Option<&'a [AtomicU64]> {
        let cells = self.cells.get(first as usize..)?.get(..cells)?;
        Some(cells.as_flattened())
    }

    /// The bucket that lies so many after the one at `home`.
    #[inline]
    pub(super) fn bucket(&self, home: usize, distance: usize) -> &'a Bucket {
        let at = home + distance;
        let count = self.buckets.len();
        &self.buckets[if at < count { at } else { (at - count) % count }]
    }
}

const fn field(name: &'static str, offset: usize, size: usize) -> FrozenField {
    FrozenField { name, offset, size }
}

#[distributed_slice(LAYOUTS)]
#[linkme(crate = ondol_catalog::linkme)]
static HEADER_LAYOUT: FrozenLayout = FrozenLayout {
    name: "IndexHeader",
    revision: 1,
    size: HEADER_BYTES,
    align: align_of::<Header>(),
    fields: &[
        field("magic", offset_of!(Header, magic), 8),
        field("version", offset_of!(Header, version), 8),
        field("buckets", offset_of!(Header, buckets), 8),
        field("cells", offset_of!(Header, cells), 8),
        field("seed", offset_of!(Header, seed), 8),
        field("incarnation", offset_of!(Header, incarnation), 8),
        field("reserved", offset_of!(Header, reserved), 16),
        field("state", offset_of!(Header, state), 8),
        field("unindexed", offset_of!(Header, unindexed), 8),
        field("owner", offset_of!(Header, owner), 4),
        field("reserved_word", offset_of!(Header, reserved_word), 4),
        field("reserved_line", offset_of!(Header, reserved_line), 40),
    ],
};

#[distributed_slice(LAYOUTS)]
#[linkme(crate = ondol_catalog::linkme)]
static BUCKET_LAYOUT: FrozenLayout = FrozenLayout {
    name: "IndexBucket",
    revision: 1,
    size: size_of::<Bucket>(),
    align: align_of::<Bucket>(),
    fields: &[
        field("overflow", offset_of!(Bucket, overflow), 8),
        field("slots", offset_of!(Bucket, slots), 56),
    ],
};

#[distributed_slice(LAYOUTS)]
#[linkme(crate = ondol_catalog::linkme)]
static RECORD_LAYOUT: FrozenLayout = FrozenLayout {
    name: "IndexRecord",
    revision: 1,
    size: size_of::<Record>(),
    align: align_of::<Record>(),
    fields: &[
        field("version", offset_of!(Record, version), 8),
        field("fingerprint", offset_of!(Record, fingerprint), 16),
        field("page", offset_of!(Record, page), 8),
        field("generation", offset_of!(Record, generation), 8),
        field("len", offset_of!(Record, len), 8),
        field("key_and_flags", offset_of!(Record, key_and_flags), 8),
        field("checksum", offset_of!(Record, checksum), 8),
        field("layout", offset_of!(Record, layout), 16),
    ],
};
