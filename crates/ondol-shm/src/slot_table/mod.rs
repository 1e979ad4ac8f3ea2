//! What one client tells the server without a message: which pages it reads, what it found, which pages it gives back.
//!
//! [`SlotTable`] is the client's side, which maps the file; [`SlotTableView`] the server's, which reads and writes it
//! with system calls, so that a client that cuts the file short harms itself only. The client writes everything but the
//! server's line.
//!
//! ```text
//!      0  magic, version, numbers of slots and places: written once
//!     64  the server's line: incarnation, returns taken
//!    128  the client's lines: blocks in use
//!    192                      hits, misses
//!    256                      found
//!    320                      returned
//!    512  slots          65 536 × { page, since }
//!         found objects  16 384 × { page }
//!         returned pages  4 096 × { page, generation }
//! ```
//!
//! *Pages* are words: the region in the upper half, the page's number and one in the lower; 0 is none. A page that does
//! not fit into such a word is held by a lease of the server's.
//!
//! *Slots* are hazard pointers; the crate's module `hazard` has the protocol. A block is 1 024 slots, and the word
//! *blocks in use* has a bit for each. The first bit is set by whoever opens the table, so that nobody opens it twice: two
//! handles would take the same slots, each over the other's holds. *Incarnation* is the name of the only index under which
//! a slot counts; a new server writes 0 before it looks at the tables of its predecessor's clients, which ends what those
//! had looked up and not yet confirmed.
//!
//! *Found objects* is a ring that forgets: the client writes on, and the server, which remembers how far it has read,
//! skips what was overwritten. *Returned pages* is one that does not: *returns taken* says how far the server has read
//! **and written down** what it read, and the client does not go further than one round beyond. Both ends of that ring
//! are positions modulo 2³² whose complement stands in the word's upper half.
//!
//! # Torn words
//! A system call may copy a word byte by byte while the other side writes it. So nothing depends on a word that changes:
//! a slot that matters to a scan was written before and stays until after; in the word of blocks in use bits are only
//! added; an incarnation that is being replaced equals the new one only when it is written as a whole, and the old one
//! only as long as nothing is; a position shows whether it is whole. A page that is none of the client's is held once
//! too often, or found by nobody.

mod client;
#[cfg(test)]
mod hostile;
mod layout;
mod server;
#[cfg(test)]
mod tests;

use rustix::time::{ClockId, clock_gettime};

pub use client::{SlotLease, SlotTable};
pub use layout::{HIT_PLACES, SLOTS};
pub use server::{HeldPage, SlotTableView};

/// Milliseconds of the monotonic clock, as coarse as the system's ticks. No system call.
pub fn monotonic_ms() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}
