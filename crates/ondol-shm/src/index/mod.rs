//! Which objects there are and where they lie, for readers in other processes that ask nobody.
//!
//! The index is a sealed memory file that the server writes and clients map for reading. [`IndexWriter`] is the server's
//! side, [`IndexReader`] a client's.

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
