use std::fmt;
use std::io;
use std::mem::offset_of;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, PoisonError};

use ondol_plugin::RegionId;

use super::SLOTS;
use super::layout::{
    Header, RETURN_PLACES, Return, Slot, TABLE_BYTES, block_bit, check, hit_at, return_at, slot_at,
};
use crate::fences::Real;
use crate::free_slots::{FreeSlots, SlotGroup, Taken};
use crate::sync::{AtomicU64, Ordering};
use crate::{ForkGuard, Grant, PageId, WriteMapping, hazard, return_ring};

/// More clones of a lease than memory could hold, unless they are forgotten.
const MAX_SHARES: u32 = u32::MAX / 2;

/// The client's side of its slot table.
///
/// A forked child of the client has the value but not the table: there nothing is published, noted or given back.
pub struct SlotTable {
    mapping: WriteMapping,
    free: FreeSlots,
    fork: ForkGuard,
    /// How many leases hold each slot, besides the one that took it.
    shares: Box<[AtomicU32]>,
    /// The position after the last page that was given back.
    returned: Mutex<u32>,
}

/// A hold on a page that stands in a slot; it ends when its last clone is dropped, without a message.
///
/// # Invariant
/// Its slot is taken, and each group of slots of which one is taken owns a count of the table's `Arc`. So the table
/// lives at least as long, and a batch of leases costs as many atomic operations for that as it has groups.
pub struct SlotLease {
    table: NonNull<SlotTable>,
    region: u32,
    index: u32,
    slot: u32,
}

// SAFETY: a lease gives access to the table, which threads may share, and moving it moves a count of an `Arc`.
unsafe impl Send for SlotLease {}
// SAFETY: as above.
unsafe impl Sync for SlotLease {}

impl SlotTable {
    /// Maps the table that the server made for this client, and for nobody before.
    ///
    /// # Errors
    /// If it is none, was opened before, or cannot be mapped.
    pub fn open(file: BorrowedFd<'_>) -> io::Result<Arc<Self>> {
        check(file)?;
        let mapping = WriteMapping::new(file, TABLE_BYTES)?;
        // The file has its memory already; an older system maps each page at its first use.
        let _ = mapping.populate(0..mapping.len());
        let table = Self {
            mapping,
            free: FreeSlots::new(SLOTS),
            fork: ForkGuard::new(),
            shares: (0..SLOTS).map(|_| AtomicU32::new(0)).collect(),
            returned: Mutex::new(0),
        };
        // Nobody has opened it if no block is in use, and from here on one is.
        let blocks = table.word(offset_of!(Header, blocks));
        let first = block_bit(0);
        let opened = blocks.compare_exchange(0, first, Ordering::Relaxed, Ordering::Relaxed);
        if opened.is_err() {
            return Err(io::Error::other(
                "the slot table was opened before; a client maps its table once and keeps it",
            ));
        }
        Ok(Arc::new(table))
    }

    /// The index that this table may be used with; 0 for none. It is the server's word.
    pub fn incarnation(&self) -> u64 {
        if !self.fork.is_home() {
            return 0;
        }
        self.word(offset_of!(Header, server.incarnation))
            .load(Ordering::Relaxed)
    }

    /// Whether the table may be used with the index of this name, as the second look at a hold has to find.
    pub(crate) fn is_for(&self, incarnation: u64) -> bool {
        self.fork.is_home()
            && hazard::is_still(
                self.word(offset_of!(Header, server.incarnation)),
                incarnation,
            )
    }

    /// Publishes holds on pages, at most `wanted` of them, each since `now` in milliseconds of the monotonic clock.
    pub(crate) fn publisher(self: &Arc<Self>, wanted: usize, now: u64) -> Publisher<'_> {
        Publisher {
            table: self,
            now,
            wanted: if self.fork.is_home() { wanted } else { 0 },
            slots: SlotGroup::EMPTY,
        }
    }

    /// Counts finds and misses, for the server's figures.
    pub fn count(&self, hits: u64, misses: u64) {
        if !self.fork.is_home() {
            return;
        }
        for (number, more) in [hits, misses].into_iter().enumerate() {
            if more > 0 {
                self.word(offset_of!(Header, counts) + number * 8)
                    .fetch_add(more, Ordering::Relaxed);
            }
        }
    }

    /// Notes that the objects in these pages were used; the oldest of too many notes are lost.
    pub fn note_hits(&self, pages: impl ExactSizeIterator<Item = PageId>) {
        if pages.len() == 0 || !self.fork.is_home() {
            return;
        }
        let next = self.word(offset_of!(Header, found));
        let first = next.fetch_add(pages.len() as u64, Ordering::Relaxed);
        for (page, number) in pages.zip(0..) {
            let word = page.to_word().unwrap_or_default();
            self.word(hit_at(first.wrapping_add(number)))
                .store(word, Ordering::Relaxed);
        }
    }

    /// Notes that the object in this page was used; the oldest of too many notes are lost.
    pub fn note_hit(&self, page: PageId) {
        self.note_hits([page].into_iter());
    }

    /// Gives a granted page back; whether there was room for that. If there was not, the server has to be told.
    pub fn give_back(&self, grant: Grant) -> bool {
        let Some(page) = grant.page.to_word().filter(|_| self.fork.is_home()) else {
            return false;
        };
        let mut returned = self.returned.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = return_ring::taken::<Real>(self.word(offset_of!(Header, server.returns_taken)));
        let waiting = taken.map(|taken| returned.wrapping_sub(taken));
        if waiting.is_none_or(|waiting| waiting >= RETURN_PLACES) {
            return false;
        }
        let place = return_at(*returned);
        self.word(place + offset_of!(Return, page))
            .store(page, Ordering::Relaxed);
        self.word(place + offset_of!(Return, generation))
            .store(grant.generation.0, Ordering::Relaxed);
        *returned = returned.wrapping_add(1);
        return_ring::given::<Real>(self.word(offset_of!(Header, returned)), *returned);
        true
    }

    /// Number of leases in use.
    pub fn in_use(&self) -> usize {
        self.free.taken()
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the word lies inside the mapping (checked), is aligned, lives as long as `self`, and is only ever
        // accessed atomically by this process; the server reads and writes the file with system calls. The mapping was
        // made writable, and callers are in the process that made it.
        unsafe { &*self.mapping.word(offset).cast() }
    }

    fn slot(&self, slot: u32) -> &AtomicU64 {
        self.word(slot_at(slot) + offset_of!(Slot, page))
    }
}

impl fmt::Debug for SlotTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotTable")
            .field("in_use", &self.in_use())
            .finish_non_exhaustive()
    }
}

/// Publishes holds of one batch; it takes free slots group by group and gives back those that it did not use.
pub(crate) struct Publisher<'t> {
    table: &'t Arc<SlotTable>,
    now: u64,
    wanted: usize,
    slots: SlotGroup,
}

impl Publisher<'_> {
    /// Publishes a hold on a page, which is none before it is confirmed: after [`hazard::published`], and a second look
    /// at what could have ended it. `None` if all slots are in use, or the page fits into none.
    pub(crate) fn publish(&mut self, page: PageId) -> Option<SlotLease> {
        let word = page.to_word()?;
        if self.slots.is_empty() {
            self.refill()?;
        }
        let slot = self.slots.pop()?;
        self.table
            .word(slot_at(slot) + offset_of!(Slot, since))
            .store(self.now, Ordering::Relaxed);
        hazard::publish(self.table.slot(slot), word);
        Some(SlotLease {
            table: NonNull::from(&**self.table),
            region: (word >> 32) as u32,
            index: page.index,
            slot,
        })
    }

    fn refill(&mut self) -> Option<()> {
        let Taken { slots, was_idle } = self.table.free.take_some(self.wanted)?;
        if was_idle {
            // The group's count. None of its slots was taken; those that are now stay so until it is there.
            let _ = Arc::into_raw(Arc::clone(self.table));
        }
        self.wanted -= slots.len();
        // A group of slots lies in one block.
        let bit = block_bit(slots.first());
        hazard::use_block(self.table.word(offset_of!(Header, blocks)), bit);
        self.slots = slots;
        Some(())
    }
}

impl Drop for Publisher<'_> {
    fn drop(&mut self) {
        if !self.slots.is_empty() && self.table.free.returning(self.slots).give() {
            // SAFETY: the group's count of this `Arc`, added when its first slot was taken; the last one was just given
            // back.
            unsafe { Arc::decrement_strong_count(Arc::as_ptr(self.table)) };
        }
    }
}

impl SlotLease {
    fn table(&self) -> &SlotTable {
        // SAFETY: the pointer is an `Arc`'s, of which the slot's group owns a count as long as the slot is taken, which it is
        // while there is a lease.
        unsafe { self.table.as_ref() }
    }

    /// The page that is held.
    pub fn page(&self) -> PageId {
        PageId {
            region: RegionId(u64::from(self.region)),
            index: self.index,
        }
    }
}

impl Clone for SlotLease {
    fn clone(&self) -> Self {
        let shares = &self.table().shares[self.slot as usize];
        // As with an `Arc`: whoever has a lease to clone keeps the slot meanwhile.
        let before = shares.fetch_add(1, Ordering::Relaxed);
        assert!(
            before < MAX_SHARES,
            "a lease has been cloned {before} times"
        );
        Self { ..*self }
    }
}

impl Drop for SlotLease {
    fn drop(&mut self) {
        let table = self.table();
        // A forked child has the value but not the hold, which is its parent's.
        if !table.fork.is_home() {
            return;
        }
        // Acquire: what other clones read was read before the page is let go. None can be made of the last one.
        let shares = &table.shares[self.slot as usize];
        if shares.load(Ordering::Acquire) > 0 {
            if shares.fetch_sub(1, Ordering::AcqRel) > 0 {
                return;
            }
            shares.store(0, Ordering::Relaxed);
        }
        hazard::withdraw::<Real>(table.slot(self.slot));
        // From here on the table may be gone, unless the group's count is this lease's to end.
        if table.free.returning(SlotGroup::of(self.slot)).give() {
            // SAFETY: the pointer is an `Arc`'s, and this the group's count: it was added when the group's first slot
            // was taken, and the last one was just given back.
            unsafe { Arc::decrement_strong_count(self.table.as_ptr()) };
        }
    }
}

impl fmt::Debug for SlotLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotLease")
            .field("page", &self.page())
            .field("slot", &self.slot)
            .finish()
    }
}
