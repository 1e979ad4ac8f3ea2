//! The table of lease words that a client and the server share, with the book that each side keeps of it.
//!
//! The table is a sealed memory file: a 64-byte header and [`LEASE_SLOTS`] words of 8 bytes. The client maps it
//! for writing, the server for reading.

use std::fmt;
use std::io;
use std::mem::offset_of;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use ondol_catalog::{FrozenField, FrozenLayout, LAYOUTS, linkme::distributed_slice};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fstat, memfd_create,
};

use crate::fences::Real;
use crate::free_slots::FreeSlots;
use crate::lease::{self, LeaseRef};
use crate::sealed::cannot_shrink;
use crate::sync::AtomicU64;
use crate::{ForkGuard, LeaseBook, Location, ReadMapping, WriteMapping};

/// Number of leases that one client can hold at once.
pub const LEASE_SLOTS: u32 = 65_536;

const MAGIC: u64 = u64::from_le_bytes(*b"ONDOLLSE");
const VERSION: u32 = 1;

/// The head of a lease table; the words follow at once.
#[repr(C)]
struct Header {
    magic: u64,
    version: u32,
    slots: u32,
    reserved: [u64; 6],
}

const HEADER_BYTES: usize = size_of::<Header>();
const TABLE_BYTES: u64 = HEADER_BYTES as u64 + LEASE_SLOTS as u64 * 8;
const _: () = assert!(HEADER_BYTES == 64);

#[distributed_slice(LAYOUTS)]
#[linkme(crate = ondol_catalog::linkme)]
static HEADER_LAYOUT: FrozenLayout = FrozenLayout {
    name: "LeaseTableHeader",
    revision: 1,
    size: HEADER_BYTES,
    align: align_of::<Header>(),
    fields: &[
        FrozenField {
            name: "magic",
            offset: offset_of!(Header, magic),
            size: 8,
        },
        FrozenField {
            name: "version",
            offset: offset_of!(Header, version),
            size: 4,
        },
        FrozenField {
            name: "slots",
            offset: offset_of!(Header, slots),
            size: 4,
        },
        FrozenField {
            name: "reserved",
            offset: offset_of!(Header, reserved),
            size: 48,
        },
    ],
};

/// Why a lease table cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseTableError {
    /// The file could not be made or mapped.
    #[error("lease table: {0}")]
    Io(#[from] io::Error),
    /// The file is not a lease table of this version.
    #[error(
        "lease table: found magic {magic:#x}, version {version}, {slots} slots; expected version {VERSION} with {LEASE_SLOTS} slots"
    )]
    Foreign {
        /// Magic found.
        magic: u64,
        /// Version found.
        version: u32,
        /// Slots found.
        slots: u32,
    },
    /// The file's owner could pull its bytes away under whoever maps it.
    #[error(
        "lease table: the file is no memory file that is sealed against shrinking; pass the descriptor that the server gave"
    )]
    Unsealed,
}

/// Makes an empty lease table: a memory file that can neither grow nor shrink.
///
/// # Errors
/// If the system has no memory or no descriptor left.
pub fn create_lease_table() -> io::Result<OwnedFd> {
    let file = memfd_create(
        "ondol-leases",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )?;
    fallocate(&file, FallocateFlags::empty(), 0, TABLE_BYTES)?;
    let mut header = [0; 16];
    header[..8].copy_from_slice(&MAGIC.to_le_bytes());
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..].copy_from_slice(&LEASE_SLOTS.to_le_bytes());
    rustix::io::pwrite(&file, &header, 0)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Whether the file is a table that can be mapped without danger, whoever made it.
fn check(file: BorrowedFd<'_>) -> Result<(), LeaseTableError> {
    if !cannot_shrink(file) {
        return Err(LeaseTableError::Unsealed);
    }
    let mut header = [0; 16];
    let read = rustix::io::pread(file, &mut header, 0).map_err(io::Error::from)?;
    let (magic, rest) = header.split_at(8);
    let (version, slots) = rest.split_at(4);
    let magic = u64::from_le_bytes(magic.try_into().unwrap_or_default());
    let version = u32::from_le_bytes(version.try_into().unwrap_or_default());
    let slots = u32::from_le_bytes(slots.try_into().unwrap_or_default());
    let size = fstat(file).map_err(io::Error::from)?.st_size as u64;
    if read != header.len()
        || (magic, version, slots) != (MAGIC, VERSION, LEASE_SLOTS)
        || size != TABLE_BYTES
    {
        return Err(LeaseTableError::Foreign {
            magic,
            version,
            slots,
        });
    }
    Ok(())
}

fn word_offset(slot: u32) -> usize {
    HEADER_BYTES + slot as usize * 8
}

/// The client's side: proposes leases and ends them.
pub struct LeaseSlots {
    mapping: WriteMapping,
    free: FreeSlots,
    fork: ForkGuard,
}

impl LeaseSlots {
    /// Maps the table that the server made for this client.
    ///
    /// # Errors
    /// [`LeaseTableError`] if it is not one or cannot be mapped.
    pub fn open(table: BorrowedFd<'_>) -> Result<Arc<Self>, LeaseTableError> {
        check(table)?;
        let mapping = WriteMapping::new(table, TABLE_BYTES)?;
        Ok(Arc::new(Self {
            mapping,
            free: FreeSlots::new(LEASE_SLOTS),
            fork: ForkGuard::new(),
        }))
    }

    /// A lease to put into a request; `None` if all slots are in use. It ends when it is dropped, whether the
    /// server granted it or not.
    pub fn propose(self: &Arc<Self>) -> Option<Lease> {
        let slot = self.free.take()?;
        let last = self.word(slot).load(crate::sync::Ordering::Relaxed);
        Some(Lease {
            slots: Arc::clone(self),
            lease: LeaseRef {
                slot,
                sequence: last + 1,
            },
        })
    }

    /// Number of leases in use.
    pub fn in_use(&self) -> usize {
        self.free.taken()
    }

    fn word(&self, slot: u32) -> &AtomicU64 {
        // SAFETY: the word lies inside the mapping (checked), is aligned, lives as long as `self`, and is only
        // ever accessed atomically: written by this process, read by the server.
        unsafe { &*self.mapping.word(word_offset(slot)).cast() }
    }
}

impl fmt::Debug for LeaseSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseSlots")
            .field("in_use", &self.in_use())
            .finish_non_exhaustive()
    }
}

/// A reader's hold on an object; ends when dropped, without a message and without a lock.
pub struct Lease {
    slots: Arc<LeaseSlots>,
    lease: LeaseRef,
}

impl Lease {
    /// The slot and number that name this lease to the server.
    pub fn reference(&self) -> LeaseRef {
        self.lease
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // A forked child inherits the guard but not the lease; ending it there would end the parent's.
        if self.slots.fork.is_home() {
            lease::end::<Real>(self.slots.word(self.lease.slot), self.lease.sequence);
            self.slots.free.give_back(self.lease.slot);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lease.fmt(f)
    }
}

/// Why a lease was not booked; what it would have protected comes back.
#[derive(Debug)]
pub struct RefusedLease<T> {
    /// What the lease would have protected.
    pub protects: T,
    /// What was wrong.
    pub reason: LeaseRefusal,
}

/// What was wrong with a lease.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseRefusal {
    /// The slot does not exist, holds a lease that has not ended, or was proposed out of order: the client broke the
    /// protocol.
    #[error("the lease's slot does not exist, is in use, or had a later lease already")]
    OutOfOrder,
    /// The lease could not be written down, and would not outlive the server.
    #[error("the lease cannot be written to the client's lease book: {0}")]
    NotBooked(io::Error),
}

/// The server's side: which leases a client holds, and what each protects.
pub struct LeaseLedger<T> {
    /// The client's words; `None` until a client that outlived an earlier server shows its table.
    table: Option<ReadMapping>,
    book: Option<LeaseBook>,
    held: Vec<Option<(u64, T)>>,
    slots: Vec<u32>,
}

impl<T> LeaseLedger<T> {
    /// Maps a table made by [`create_lease_table`]. With a book, each lease is written there before
    /// [`grant`](Self::grant) returns.
    ///
    /// # Errors
    /// [`LeaseTableError`] if it is not one or cannot be mapped.
    pub fn open(table: BorrowedFd<'_>, book: Option<LeaseBook>) -> Result<Self, LeaseTableError> {
        Ok(Self {
            table: Some(map_table(table)?),
            book,
            held: Vec::new(),
            slots: Vec::new(),
        })
    }

    /// The ledger of a client that outlived an earlier server: `leases` stand in `book`, one a slot. There is no table
    /// yet, so none of them ends before [`take_table`](Self::take_table), but by [`end_all`](Self::end_all).
    pub fn adopt(book: LeaseBook, leases: Vec<(LeaseRef, T)>) -> Self {
        let mut ledger = Self {
            table: None,
            book: Some(book),
            held: Vec::new(),
            slots: Vec::with_capacity(leases.len()),
        };
        for (lease, protects) in leases {
            ledger.hold(lease, protects);
        }
        ledger
    }

    /// The ledger of a client that is dead: it holds nothing, and nothing is to be granted to it.
    pub fn ended() -> Self {
        Self {
            table: None,
            book: None,
            held: Vec::new(),
            slots: Vec::new(),
        }
    }

    /// Maps the table of a client that came back: from now on its words say which leases have ended.
    ///
    /// # Errors
    /// [`LeaseTableError`] if it is not one that can be mapped without danger.
    pub fn take_table(&mut self, table: BorrowedFd<'_>) -> Result<(), LeaseTableError> {
        self.table = Some(map_table(table)?);
        Ok(())
    }

    /// Books a lease that the client proposed, on the object at `location`. What an earlier lease of the same slot
    /// protected goes to `released`.
    ///
    /// # Errors
    /// [`RefusedLease`] gives `protects` back; then nothing has changed.
    pub fn grant(
        &mut self,
        lease: LeaseRef,
        location: &Location,
        protects: T,
        released: impl FnOnce(T),
    ) -> Result<(), RefusedLease<T>> {
        if !self.can_grant(lease) {
            let reason = LeaseRefusal::OutOfOrder;
            return Err(RefusedLease { protects, reason });
        }
        if let Some(book) = &mut self.book
            && let Err(error) = book.write(lease, location)
        {
            let reason = LeaseRefusal::NotBooked(error);
            return Err(RefusedLease { protects, reason });
        }
        if let Some(earlier) = self.hold(lease, protects) {
            released(earlier);
        }
        Ok(())
    }

    fn can_grant(&self, lease: LeaseRef) -> bool {
        if lease.slot >= LEASE_SLOTS {
            return false;
        }
        match self.held.get(lease.slot as usize) {
            Some(Some((sequence, _))) => {
                *sequence < lease.sequence && self.has_ended(lease.slot, *sequence)
            }
            _ => true,
        }
    }

    fn hold(&mut self, lease: LeaseRef, protects: T) -> Option<T> {
        let slot = lease.slot as usize;
        if slot >= self.held.len() {
            self.held.resize_with(slot + 1, || None);
        }
        let earlier = self.held[slot].replace((lease.sequence, protects));
        if earlier.is_none() {
            self.slots.push(lease.slot);
        }
        earlier.map(|(_, protected)| protected)
    }

    /// Gives what ended leases protected to `released`; returns how many ended.
    pub fn sweep(&mut self, mut released: impl FnMut(T)) -> usize {
        let mut slots = std::mem::take(&mut self.slots);
        let before = slots.len();
        slots.retain(|&slot| {
            let entry = &self.held[slot as usize];
            let ended = entry
                .as_ref()
                .is_none_or(|(sequence, _)| self.has_ended(slot, *sequence));
            if ended && let Some((_, protected)) = self.held[slot as usize].take() {
                self.erase(slot);
                released(protected);
            }
            !ended
        });
        self.slots = slots;
        before - self.slots.len()
    }

    fn erase(&mut self, slot: u32) {
        if let Some(book) = &mut self.book {
            book.erase(slot);
        }
    }

    /// What the leases protect that have not been swept.
    pub fn protected(&self) -> impl Iterator<Item = &T> {
        self.held.iter().flatten().map(|(_, protected)| protected)
    }

    /// Number of leases that have not been swept.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether every lease has been swept.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Ends every lease, as its client is dead, and gives what they protected to `released`; returns how many.
    pub fn end_all(&mut self, released: impl FnMut(T)) -> usize {
        let slots = std::mem::take(&mut self.slots);
        slots.iter().for_each(|slot| self.erase(*slot));
        self.held
            .drain(..)
            .flatten()
            .map(|(_, protected)| protected)
            .for_each(released);
        slots.len()
    }

    fn has_ended(&self, slot: u32, sequence: u64) -> bool {
        let Some(table) = &self.table else {
            return false;
        };
        // SAFETY: the word lies inside the mapping (checked), is aligned, lives as long as `self`, and is only
        // ever accessed atomically; an `AtomicU64` may be read through a read-only mapping.
        let word: &AtomicU64 = unsafe { &*table.word(word_offset(slot)).cast() };
        lease::has_ended::<Real>(word, sequence)
    }
}

fn map_table(table: BorrowedFd<'_>) -> Result<ReadMapping, LeaseTableError> {
    check(table)?;
    Ok(ReadMapping::new(table, TABLE_BYTES)?)
}

impl<T> fmt::Debug for LeaseLedger<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseLedger")
            .field("held", &self.slots.len())
            .field("has_table", &self.table.is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BookedLease, Generation, PageId};
    use ondol_plugin::RegionId;
    use std::fs;
    use std::os::fd::AsFd;
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::path::PathBuf;

    const PAGE: Location = Location {
        page: PageId {
            region: RegionId(1),
            index: 2,
        },
        generation: Generation(3),
        len: 4,
    };

    fn pair() -> (Arc<LeaseSlots>, LeaseLedger<&'static str>) {
        let table = create_lease_table().unwrap();
        (
            LeaseSlots::open(table.as_fd()).unwrap(),
            LeaseLedger::open(table.as_fd(), None).unwrap(),
        )
    }

    fn swept(ledger: &mut LeaseLedger<&'static str>) -> Vec<&'static str> {
        let mut released = Vec::new();
        ledger.sweep(|protected| released.push(protected));
        released
    }

    #[test]
    fn a_lease_lasts_until_its_guard_is_dropped() {
        let (slots, mut ledger) = pair();
        let [a, b] = [slots.propose().unwrap(), slots.propose().unwrap()];
        ledger.grant(a.reference(), &PAGE, "a", drop).unwrap();
        ledger.grant(b.reference(), &PAGE, "b", drop).unwrap();
        assert!(swept(&mut ledger).is_empty());
        drop(a);
        assert_eq!(swept(&mut ledger), ["a"]);
        assert_eq!(ledger.protected().collect::<Vec<_>>(), [&"b"]);
        drop(b);
        assert_eq!(swept(&mut ledger), ["b"]);
        assert!(ledger.is_empty());
    }

    #[test]
    fn a_lease_that_its_client_gave_up_is_over_before_it_begins() {
        let (slots, mut ledger) = pair();
        let given_up = slots.propose().unwrap();
        let reference = given_up.reference();
        drop(given_up);
        ledger.grant(reference, &PAGE, "late", drop).unwrap();
        assert_eq!(swept(&mut ledger), ["late"]);
    }

    #[test]
    fn a_slot_that_is_still_held_is_not_granted_again() {
        let (slots, mut ledger) = pair();
        let lease = slots.propose().unwrap();
        ledger
            .grant(lease.reference(), &PAGE, "first", drop)
            .unwrap();
        let next = LeaseRef {
            sequence: lease.reference().sequence + 1,
            ..lease.reference()
        };
        let far = LeaseRef {
            slot: LEASE_SLOTS,
            sequence: 1,
        };
        for refused in [next, lease.reference(), far] {
            let RefusedLease { protects, reason } =
                ledger.grant(refused, &PAGE, "back", drop).unwrap_err();
            assert_eq!(protects, "back");
            assert!(matches!(reason, LeaseRefusal::OutOfOrder), "{refused:?}");
        }
        let mut replaced = None;
        drop(lease);
        ledger
            .grant(next, &PAGE, "second", |earlier| replaced = Some(earlier))
            .unwrap();
        assert_eq!(replaced, Some("first"));
    }

    #[test]
    fn slots_run_out_and_come_back() {
        let (slots, _ledger) = pair();
        let all: Vec<_> = (0..LEASE_SLOTS).map(|_| slots.propose().unwrap()).collect();
        assert!(slots.propose().is_none());
        drop(all);
        assert_eq!(slots.in_use(), 0);
        assert!(slots.propose().is_some());
    }

    #[test]
    fn a_table_cannot_be_shrunk_and_a_foreign_file_is_refused() {
        let table = create_lease_table().unwrap();
        assert!(rustix::fs::ftruncate(&table, 0).is_err());
        let made = |flags, len, seals| {
            let file = memfd_create("ondol-test", flags | MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&file, len).unwrap();
            let _ = fcntl_add_seals(&file, seals);
            file
        };
        let sealable = MemfdFlags::ALLOW_SEALING;
        for (len, seals) in [
            (TABLE_BYTES, SealFlags::SHRINK),
            (TABLE_BYTES - 1, SealFlags::SHRINK),
            (0, SealFlags::SHRINK),
        ] {
            let foreign = made(sealable, len, seals);
            assert!(matches!(
                LeaseSlots::open(foreign.as_fd()),
                Err(LeaseTableError::Foreign { magic: 0, .. })
            ));
        }
        // The right bytes in a file whose owner could still cut it.
        let mut bytes = vec![0; TABLE_BYTES as usize];
        rustix::io::pread(&table, &mut bytes, 0).unwrap();
        let plain = tempfile::tempfile().unwrap();
        plain.write_all_at(&bytes, 0).unwrap();
        let unsealed = made(sealable, TABLE_BYTES, SealFlags::GROW);
        rustix::io::pwrite(&unsealed, &bytes, 0).unwrap();
        for file in [plain.as_fd(), unsealed.as_fd()] {
            assert!(matches!(
                LeaseLedger::<()>::open(file, None),
                Err(LeaseTableError::Unsealed)
            ));
        }
    }

    #[test]
    fn a_table_of_another_length_or_version_is_refused() {
        let table = |len: u64, header: &[u8]| {
            let file = memfd_create("ondol-test", MemfdFlags::ALLOW_SEALING).unwrap();
            rustix::fs::ftruncate(&file, len).unwrap();
            rustix::io::pwrite(&file, header, 0).unwrap();
            fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
            file
        };
        let mut header = [0; 16];
        rustix::io::pread(create_lease_table().unwrap(), &mut header, 0).unwrap();
        let opens = |file: OwnedFd| LeaseLedger::<()>::open(file.as_fd(), None).is_ok();
        assert!(opens(table(TABLE_BYTES, &header)));
        assert!(!opens(table(TABLE_BYTES + 8, &header)));
        assert!(!opens(table(TABLE_BYTES - 8, &header)));
        header[8] += 1;
        assert!(!opens(table(TABLE_BYTES, &header)));
    }

    /// A place for a book that a test makes.
    fn book() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("7");
        (dir, path)
    }

    fn page(index: u32) -> Location {
        let page = PageId { index, ..PAGE.page };
        Location { page, ..PAGE }
    }

    /// What stands in a book: slot, number and page of each lease.
    fn entries(path: &std::path::Path) -> Vec<(u32, u64, u32)> {
        let (_, leases) = LeaseBook::open(path).unwrap();
        let entry = |entry: BookedLease| {
            assert_eq!(entry.generation, PAGE.generation);
            assert_eq!(entry.page.region, PAGE.page.region);
            (entry.lease.slot, entry.lease.sequence, entry.page.index)
        };
        leases.into_iter().map(entry).collect()
    }

    #[test]
    fn a_book_holds_the_leases_that_were_granted_and_not_swept() {
        let (_dir, path) = book();
        let table = create_lease_table().unwrap();
        let slots = LeaseSlots::open(table.as_fd()).unwrap();
        let mut ledger =
            LeaseLedger::open(table.as_fd(), Some(LeaseBook::create(&path).unwrap())).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let [a, b] = [slots.propose().unwrap(), slots.propose().unwrap()];
        ledger.grant(a.reference(), &page(10), "a", drop).unwrap();
        ledger.grant(b.reference(), &page(11), "b", drop).unwrap();
        assert_eq!(entries(&path), [(0, 1, 10), (1, 1, 11)]);
        // Refused: the book stays as it is.
        ledger
            .grant(a.reference(), &page(12), "c", drop)
            .unwrap_err();
        assert_eq!(entries(&path), [(0, 1, 10), (1, 1, 11)]);
        drop(a);
        // Ended and not swept: a superset.
        assert_eq!(entries(&path), [(0, 1, 10), (1, 1, 11)]);
        let again = slots.propose().unwrap();
        ledger
            .grant(again.reference(), &page(13), "d", drop)
            .unwrap();
        assert_eq!(entries(&path), [(0, 2, 13), (1, 1, 11)]);
        drop(b);
        assert_eq!(ledger.sweep(drop), 1);
        assert_eq!(entries(&path), [(0, 2, 13)]);
        assert_eq!(ledger.end_all(drop), 1);
        assert_eq!(entries(&path), []);
    }

    #[test]
    fn adopted_leases_last_until_their_client_is_back_and_ends_them() {
        let (_dir, path) = book();
        let table = create_lease_table().unwrap();
        let slots = LeaseSlots::open(table.as_fd()).unwrap();
        let leases: Vec<_> = (0..3).map(|_| slots.propose().unwrap()).collect();
        let [a, b, c] = <[Lease; 3]>::try_from(leases).unwrap();
        {
            let mut before =
                LeaseLedger::open(table.as_fd(), Some(LeaseBook::create(&path).unwrap())).unwrap();
            before.grant(a.reference(), &page(1), "a", drop).unwrap();
            before.grant(b.reference(), &page(2), "b", drop).unwrap();
            before.grant(c.reference(), &page(3), "c", drop).unwrap();
        }
        drop(b);
        let (book, leases) = LeaseBook::open(&path).unwrap();
        let leases = leases
            .iter()
            .map(|entry| (entry.lease, ["a", "b", "c"][entry.page.index as usize - 1]))
            .collect();
        let mut ledger = LeaseLedger::adopt(book, leases);
        assert!(swept(&mut ledger).is_empty(), "nobody can tell yet");
        assert_eq!(ledger.len(), 3);

        let foreign = memfd_create("ondol-test", MemfdFlags::CLOEXEC).unwrap();
        ledger.take_table(foreign.as_fd()).unwrap_err();
        assert!(swept(&mut ledger).is_empty());
        ledger.take_table(table.as_fd()).unwrap();
        assert_eq!(swept(&mut ledger), ["b"]);
        drop(c);
        let _in_the_slot_of_b = slots.propose().unwrap();
        let next = slots.propose().unwrap();
        let mut released = None;
        ledger
            .grant(next.reference(), &page(4), "d", |earlier| {
                released = Some(earlier);
            })
            .unwrap();
        assert_eq!(released, Some("c"));
        assert_eq!(entries(&path), [(0, 1, 1), (2, 2, 4)]);
        assert_eq!(ledger.end_all(drop), 2);
        assert_eq!(entries(&path), []);
    }
}
