//! Where what lies in the file, and the words that both sides write and read.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd};

use ondol_catalog::{FrozenField, FrozenLayout, LAYOUTS, linkme::distributed_slice};
use rustix::fs::{FileType, fstat};
use rustix::io::pread;

/// Number of objects that one client can hold at once without asking the server.
pub const SLOTS: u32 = 65_536;
/// Number of found objects that a table remembers for the server.
pub const HIT_PLACES: u32 = 16_384;
pub(super) const RETURN_PLACES: u32 = 4_096;
/// Number of slots for which one bit says whether they may be in use.
pub(super) const BLOCK: u32 = SLOTS / 64;

const MAGIC: u64 = u64::from_le_bytes(*b"ONDOLSLT");
const VERSION: u32 = 1;

#[repr(C)]
pub(super) struct Header {
    magic: u64,
    version: u32,
    slots: u32,
    hit_places: u32,
    return_places: u32,
    reserved: [u64; 5],
    pub(super) server: ServerLine,
    pub(super) blocks: Line<1>,
    pub(super) counts: Line<2>,
    pub(super) found: Line<1>,
    pub(super) returned: Line<1>,
    unused: [u64; 16],
}

/// The line that only the server writes.
#[repr(C, align(64))]
pub(super) struct ServerLine {
    /// The index that the table may be used with; 0 for none.
    pub(super) incarnation: u64,
    /// The position after the last return that the server has written down.
    pub(super) returns_taken: u64,
}

/// Words that the client writes, on a line of their own.
#[repr(C, align(64))]
pub(super) struct Line<const WORDS: usize> {
    pub(super) words: [u64; WORDS],
}

/// One slot.
#[repr(C, align(16))]
pub(super) struct Slot {
    pub(super) page: u64,
    /// Milliseconds of the monotonic clock.
    pub(super) since: u64,
}

/// A page that the client gave back.
#[repr(C, align(16))]
pub(super) struct Return {
    pub(super) page: u64,
    pub(super) generation: u64,
}

pub(super) const HEADER_BYTES: usize = size_of::<Header>();
pub(super) const SLOT_BYTES: usize = size_of::<Slot>();
pub(super) const RETURN_BYTES: usize = size_of::<Return>();
const HITS: usize = HEADER_BYTES + SLOTS as usize * SLOT_BYTES;
const RETURNS: usize = HITS + HIT_PLACES as usize * 8;
pub(super) const TABLE_BYTES: u64 = (RETURNS + RETURN_PLACES as usize * RETURN_BYTES) as u64;
const _: () = assert!(HEADER_BYTES == 512 && SLOT_BYTES == 16 && RETURN_BYTES == 16);
const _: () = assert!(
    SLOTS.is_multiple_of(64),
    "a group of slots can be without one that is taken"
);
const _: () = assert!(HIT_PLACES.is_power_of_two() && RETURN_PLACES.is_power_of_two());

pub(super) const fn slot_at(slot: u32) -> usize {
    HEADER_BYTES + slot as usize * SLOT_BYTES
}

pub(super) const fn hit_at(position: u64) -> usize {
    HITS + (position % HIT_PLACES as u64) as usize * 8
}

pub(super) const fn return_at(position: u32) -> usize {
    RETURNS + (position % RETURN_PLACES) as usize * RETURN_BYTES
}

/// The bit of a slot's block.
pub(super) const fn block_bit(slot: u32) -> u64 {
    1 << (slot / BLOCK)
}

const fn field(name: &'static str, offset: usize, size: usize) -> FrozenField {
    FrozenField { name, offset, size }
}

#[distributed_slice(LAYOUTS)]
#[linkme(crate = ondol_catalog::linkme)]
static HEADER_LAYOUT: FrozenLayout = FrozenLayout {
    name: "SlotTableHeader",
    revision: 1,
    size: HEADER_BYTES,
    align: align_of::<Header>(),
    fields: &[
        field("magic", offset_of!(Header, magic), 8),
        field("version", offset_of!(Header, version), 4),
        field("slots", offset_of!(Header, slots), 4),
        field("hit_places", offset_of!(Header, hit_places), 4),
        field("return_places", offset_of!(Header, return_places), 4),
        field("reserved", offset_of!(Header, reserved), 40),
        field("incarnation", offset_of!(Header, server.incarnation), 8),
        field("returns_taken", offset_of!(Header, server.returns_taken), 8),
        field("blocks", offset_of!(Header, blocks), 8),
        field("counts", offset_of!(Header, counts), 16),
        field("found", offset_of!(Header, found), 8),
        field("returned", offset_of!(Header, returned), 8),
        field("unused", offset_of!(Header, unused), 128),
    ],
};

#[distributed_slice(LAYOUTS)]
#[linkme(crate = ondol_catalog::linkme)]
static SLOT_LAYOUT: FrozenLayout = FrozenLayout {
    name: "SlotTableSlot",
    revision: 1,
    size: SLOT_BYTES,
    align: align_of::<Slot>(),
    fields: &[
        field("page", offset_of!(Slot, page), 8),
        field("since", offset_of!(Slot, since), 8),
    ],
};

#[distributed_slice(LAYOUTS)]
#[linkme(crate = ondol_catalog::linkme)]
static RETURN_LAYOUT: FrozenLayout = FrozenLayout {
    name: "SlotTableReturn",
    revision: 1,
    size: RETURN_BYTES,
    align: align_of::<Return>(),
    fields: &[
        field("page", offset_of!(Return, page), 8),
        field("generation", offset_of!(Return, generation), 8),
    ],
};

/// The bytes of the header that never change.
pub(super) fn identity() -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
    let numbers = [VERSION, SLOTS, HIT_PLACES, RETURN_PLACES];
    for (part, number) in bytes[8..].chunks_exact_mut(4).zip(numbers) {
        part.copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

/// Refuses a file that is no whole table of this version.
pub(super) fn check(file: BorrowedFd<'_>) -> io::Result<()> {
    let stat = fstat(file)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind != FileType::RegularFile || stat.st_size as u64 != TABLE_BYTES {
        return Err(io::Error::other(format!(
            "found {kind:?} of {} bytes; expected a slot table, a regular file of {TABLE_BYTES} bytes",
            stat.st_size
        )));
    }
    let mut found = [0; 24];
    let read = pread(file.as_fd(), &mut found, 0)?;
    if read != found.len() || found != identity() {
        return Err(io::Error::other(format!(
            "found a file that begins with {:02x?}; expected a slot table of version {VERSION}, {:02x?}",
            &found[..read],
            identity()
        )));
    }
    Ok(())
}
