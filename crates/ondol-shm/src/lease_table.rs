//! The table of lease words that a client and the server share, with the book that each side keeps of it.
//!
//! The table is a sealed memory file: a 64-byte header and [`LEASE_SLOTS`] words of 8 bytes. The client maps it
//! for writing, the server for reading.

use std::fmt;
use std::io;
use std::mem::offset_of;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use ondol_catalog::{FrozenField, FrozenLayout, LAYOUTS, linkme::distributed_slice};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fstat, memfd_create,
};

use crate::fences::Real;
use crate::lease::{self, LeaseRef};
use crate::sync::AtomicU64;
use crate::{ForkGuard, ReadMapping, WriteMapping};

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

fn check(file: BorrowedFd<'_>) -> Result<(), LeaseTableError> {
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
    free: ArrayQueue<u32>,
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
        let free = ArrayQueue::new(LEASE_SLOTS as usize);
        for slot in 0..LEASE_SLOTS {
            let _ = free.push(slot);
        }
        Ok(Arc::new(Self {
            mapping,
            free,
            fork: ForkGuard::new(),
        }))
    }

    /// A lease to put into a request; `None` if all slots are in use. It ends when it is dropped, whether the
    /// server granted it or not.
    pub fn propose(self: &Arc<Self>) -> Option<Lease> {
        let slot = self.free.pop()?;
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
        LEASE_SLOTS as usize - self.free.len()
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
            let _ = self.slots.free.push(self.lease.slot);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lease.fmt(f)
    }
}

/// The server's side: which leases a client holds, and what each protects.
pub struct LeaseLedger<T> {
    mapping: ReadMapping,
    held: Vec<Option<(u64, T)>>,
    slots: Vec<u32>,
}

impl<T> LeaseLedger<T> {
    /// Maps a table made by [`create_lease_table`].
    ///
    /// # Errors
    /// [`LeaseTableError`] if it is not one or cannot be mapped.
    pub fn open(table: BorrowedFd<'_>) -> Result<Self, LeaseTableError> {
        check(table)?;
        Ok(Self {
            mapping: ReadMapping::new(table, TABLE_BYTES)?,
            held: Vec::new(),
            slots: Vec::new(),
        })
    }

    /// Books a lease that the client proposed. What an earlier lease of the same slot protected goes to
    /// `released`.
    ///
    /// # Errors
    /// Gives `protects` back if the slot does not exist, holds a lease that has not ended, or was proposed out
    /// of order: the client broke the protocol.
    pub fn grant(
        &mut self,
        lease: LeaseRef,
        protects: T,
        released: impl FnOnce(T),
    ) -> Result<(), T> {
        if lease.slot >= LEASE_SLOTS {
            return Err(protects);
        }
        let slot = lease.slot as usize;
        if slot >= self.held.len() {
            self.held.resize_with(slot + 1, || None);
        }
        match &self.held[slot] {
            Some((sequence, _))
                if *sequence >= lease.sequence || !self.has_ended(lease.slot, *sequence) =>
            {
                return Err(protects);
            }
            Some(_) => {}
            None => self.slots.push(lease.slot),
        }
        if let Some((_, earlier)) = self.held[slot].replace((lease.sequence, protects)) {
            released(earlier);
        }
        Ok(())
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
                released(protected);
            }
            !ended
        });
        self.slots = slots;
        before - self.slots.len()
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
        let ended = self.slots.len();
        self.slots.clear();
        self.held
            .drain(..)
            .flatten()
            .map(|(_, protected)| protected)
            .for_each(released);
        ended
    }

    fn has_ended(&self, slot: u32, sequence: u64) -> bool {
        // SAFETY: the word lies inside the mapping (checked), is aligned, lives as long as `self`, and is only
        // ever accessed atomically; an `AtomicU64` may be read through a read-only mapping.
        let word: &AtomicU64 = unsafe { &*self.mapping.word(word_offset(slot)).cast() };
        lease::has_ended::<Real>(word, sequence)
    }
}

impl<T> fmt::Debug for LeaseLedger<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseLedger")
            .field("held", &self.slots.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn pair() -> (Arc<LeaseSlots>, LeaseLedger<&'static str>) {
        let table = create_lease_table().unwrap();
        (
            LeaseSlots::open(table.as_fd()).unwrap(),
            LeaseLedger::open(table.as_fd()).unwrap(),
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
        ledger.grant(a.reference(), "a", drop).unwrap();
        ledger.grant(b.reference(), "b", drop).unwrap();
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
        ledger.grant(reference, "late", drop).unwrap();
        assert_eq!(swept(&mut ledger), ["late"]);
    }

    #[test]
    fn a_slot_that_is_still_held_is_not_granted_again() {
        let (slots, mut ledger) = pair();
        let lease = slots.propose().unwrap();
        ledger.grant(lease.reference(), "first", drop).unwrap();
        let next = LeaseRef {
            sequence: lease.reference().sequence + 1,
            ..lease.reference()
        };
        assert_eq!(ledger.grant(next, "second", drop), Err("second"));
        assert_eq!(ledger.grant(lease.reference(), "again", drop), Err("again"));
        assert_eq!(
            ledger.grant(
                LeaseRef {
                    slot: LEASE_SLOTS,
                    sequence: 1
                },
                "far",
                drop
            ),
            Err("far")
        );
        let mut replaced = None;
        drop(lease);
        ledger
            .grant(next, "second", |earlier| replaced = Some(earlier))
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
        let foreign = memfd_create("ondol-test", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&foreign, TABLE_BYTES).unwrap();
        assert!(matches!(
            LeaseSlots::open(foreign.as_fd()),
            Err(LeaseTableError::Foreign { magic: 0, .. })
        ));
    }
}
