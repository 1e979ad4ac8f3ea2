//! How a reader holds a page without asking the server: a hazard pointer across processes.
//!
//! The reader has found an object. It writes the object's page into a slot of its own ([`publish`]), passes a fence
//! ([`published`]) and looks once more at every word that the server changes before it reuses the page ([`is_still`]): the
//! version of the object's record, the index's state, and the index that the reader's slots may be used with. If all are
//! as they were the page is held until the slot is emptied ([`withdraw`]); else it never was.
//!
//! The server changes such a word, passes a fence ([`made_unfindable`]) and reads the slots of all readers; a page that stands in none
//! of them ([`scanned`]) is its own again.
//!
//! One of the two fences comes first. If it is the reader's, the server's scan sees the slot. If it is the server's, the
//! reader's second look sees the change. So a page that was reused is not read, and without either fence it could be,
//! which the models below show.
//!
//! Which part of its table the server has to scan a reader says in a word with a bit for each block of slots
//! ([`use_block`]). Bits are only added, before the slot is written, so the same fences order them.

use crate::fences::Fences;
use crate::sync::{AtomicU64, Ordering};

/// What an empty slot holds.
pub(crate) const EMPTY: u64 = 0;

/// The reader, before it writes a slot: the server is to scan the block that this bit stands for.
pub(crate) fn use_block(blocks: &AtomicU64, bit: u64) {
    if blocks.load(Ordering::Relaxed) & bit == 0 {
        blocks.fetch_or(bit, Ordering::Relaxed);
    }
}

/// The reader: writes a page into an empty slot.
pub(crate) fn publish(slot: &AtomicU64, page: u64) {
    slot.store(page, Ordering::Relaxed);
}

/// The reader, between the last slot that it wrote and its second look.
pub(crate) fn published<F: Fences>() {
    F::full();
}

/// The reader's second look at one word.
pub(crate) fn is_still(word: &AtomicU64, seen: u64) -> bool {
    word.load(Ordering::Relaxed) == seen
}

/// The reader: empties a slot after its last access to the page.
pub(crate) fn withdraw<F: Fences>(slot: &AtomicU64) {
    F::release();
    slot.store(EMPTY, Ordering::Relaxed);
}

/// The server, between the change of a word and the scan.
pub(crate) fn made_unfindable<F: Fences>() {
    F::full();
}

/// The server, between the scan and the reuse of a page that it did not find.
pub(crate) fn scanned<F: Fences>() {
    F::acquire();
}
