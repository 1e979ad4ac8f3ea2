use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ondol_plugin::Key;

use super::IndexedObject;
use crate::{SlotLease, SlotTable};

/// Why a file is no index that can be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// The file could not be mapped.
    #[error("index: {0}")]
    Io(#[from] io::Error),
}

/// What the index says to a key.
#[derive(Debug)]
pub enum Looked<T> {
    /// There is an object.
    Found(T),
    /// There is none.
    Absent,
    /// The index cannot tell; the server can.
    Ask,
}

/// A client's view of an index. Readers never wait for the writer, and trust nothing that they read to lie inside.
#[derive(Debug)]
pub struct IndexReader {}

impl IndexReader {
    /// Maps an index.
    ///
    /// # Errors
    /// [`IndexError`] if it is none of this version, not sealed, or cannot be mapped.
    pub fn open(_file: BorrowedFd<'_>) -> Result<Self, IndexError> {
        todo!()
    }

    /// The name of this index.
    pub fn incarnation(&self) -> u64 {
        todo!()
    }

    /// Whether the server keeps this index up to date; if not, there is another one.
    pub fn is_current(&self) -> bool {
        todo!()
    }

    /// Looks objects up without holding them: `answer` is called once for each key, in order.
    pub fn look(&self, _keys: &[Key], _answer: impl FnMut(usize, Looked<IndexedObject>)) {
        todo!()
    }

    /// Finds and leases objects: `answer` is called once for each key, in order. All leases of a call were confirmed
    /// after the last of up to [`BATCH`](Self::BATCH) was published. Where slots run out the answer is [`Looked::Ask`].
    pub fn lease(
        &self,
        _slots: &Arc<SlotTable>,
        _keys: &[Key],
        _answer: impl FnMut(usize, Looked<(IndexedObject, SlotLease)>),
    ) {
        todo!()
    }

    /// So many keys are looked up with one fence.
    pub const BATCH: usize = 256;
}
