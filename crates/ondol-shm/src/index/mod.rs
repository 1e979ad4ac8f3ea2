//! Which objects there are and where they lie, for readers in other processes that ask nobody.
//!
//! [`IndexWriter`] is the server's side, [`IndexReader`] a client's. The index is a memory file that the server writes and
//! clients map for reading; it is sealed, so that it can neither shrink under a reader nor be mapped for writing by one. It
//! does not grow: a larger one takes its place.
//!
//! ```text
//! header    0  magic "ONDOLIDX"    8  version           16  buckets        24  cells
//!          32  seed of the hash   40  incarnation       48  reserved
//!          64  state              72  unindexed         80  owner (4)      84  reserved
//! buckets 128  each 64:  0 overflow   8, 16 … 56  slots: fingerprint's lower 32 bits ‖ number of a cell
//! cells        each 64: in each record
//!           0  version             8  fingerprint (16)  24  page           32  generation
//!          40  length of object   48  length of key (2), tag of key (1), flags (1), reserved (4)
//!          56  checksum           64  layout (16)       80  key, padded with zeros to a multiple of 8
//! ```
//!
//! Words of 8 bytes in this machine's order, unless a number in brackets says otherwise. All are accessed as relaxed atomics,
//! between fences. *State* is 1 for current and 2 for retired. *Flags*: 1 there is a layout, 2 there is a checksum, 4
//! readers are to ask the server. A *page* is its region in the upper half and its number and one in the lower; 0 is a page
//! that does not fit, for which readers ask. The *fingerprint* is xxh3-128 of the key's bytes; the seed is random, plus the key's tag.
//!
//! *Buckets* are a hash table. A key's home is the bucket at its fingerprint's upper word, scaled to their number. If
//! that is full the object goes to the next one that is not, at most 32 buckets from home, and each bucket that it
//! passes counts it in *overflow*; so a search ends at a bucket that nothing passed. Nothing moves while it is there: a reader
//! does not miss what was there all the time. A slot is 0 or a whole entry, so it takes no lock to change one.
//!
//! *Records* are consecutive cells, as many as their key needs. *Version* is a sequence lock; see `version`. Where a
//! record began once, records of that many cells begin for ever, so that a version is never anything else.
//!
//! # What a reader relies on
//! * **A hit is the key's**: it compares the whole key. The record's version was the same even number before and after.
//! * **A lease holds**: the page stands in a slot of the reader's own, and after a fence the version, the index's state and
//!   the incarnation that the server allows this reader are still the same; the crate's module `hazard` has the argument.
//! * **An absence is one**: *unindexed* was 0 before the search and the index current after it. An object that is visible is
//!   in the current index, or is counted in its *unindexed* since before it became visible; see `absence`.
//! * **Nothing else**: lengths and numbers are compared with what the file's length allows before they are followed, and a
//!   search has an end whatever stands there. A record that stays unfinished, as a writer that was killed leaves it, is a
//!   reason to ask the server, and so is a server that is dead (*owner*; see `owner`).

pub(crate) mod absence;
#[cfg(not(loom))]
mod cells;
#[cfg(not(loom))]
mod layout;
#[cfg(not(loom))]
mod owner;
#[cfg(not(loom))]
mod query;
#[cfg(not(loom))]
mod reader;
#[cfg(not(loom))]
mod record;
pub(crate) mod version;
#[cfg(not(loom))]
mod writer;

#[cfg(not(loom))]
use crate::{Location, ObjectMeta};

#[cfg(not(loom))]
pub use reader::{IndexError, IndexReader, Looked};
#[cfg(not(loom))]
pub use writer::{IndexFull, IndexWriter, RecordId};

/// What the index says of one object.
#[cfg(not(loom))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexedObject {
    /// Where it lies.
    pub location: Location,
    /// What is known about it.
    pub meta: ObjectMeta,
}

#[cfg(all(test, not(loom)))]
mod tests;
