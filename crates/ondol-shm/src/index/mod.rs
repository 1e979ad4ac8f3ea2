//! Which objects there are and where they lie, for readers in other processes that ask nobody.
//!
//! The index is a sealed memory file that the server writes and clients map for reading. [`IndexWriter`] is the server's
//! side, [`IndexReader`] a client's.

#[allow(dead_code, reason = "until the index calls it")]
mod owner;
mod reader;
mod writer;

use crate::{Location, ObjectMeta};

pub use reader::{IndexError, IndexReader, Looked};
pub use writer::{IndexFull, IndexWriter, RecordId};

/// What the index says of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexedObject {
    /// Where it lies.
    pub location: Location,
    /// What is known about it.
    pub meta: ObjectMeta,
}
