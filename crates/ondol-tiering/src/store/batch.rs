use std::collections::HashMap;

use ondol_plugin::Key;
use ondol_plugin::l2::{ObjectKey, ObjectWatch};

use super::inbox::Waiting;

/// Objects that were handed to the backend in one task.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) keys: Vec<Key>,
    /// As long as `keys`.
    pub(super) objects: Vec<Submitted>,
    pub(super) bytes: u64,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Submitted {
    pub(super) name: ObjectKey,
    /// Length in memory, and of what is stored.
    pub(super) len: u64,
    pub(super) stored_len: u64,
    pub(super) attempts: u32,
    pub(super) alone: bool,
    /// Whether the adapter may still read it.
    pub(super) watch: ObjectWatch,
}

/// An object whose store has failed and that the adapter may still read. It stays leased, and is not stored anew, until the
/// adapter lets go of it.
#[derive(Debug)]
pub(super) struct Captive {
    pub(super) waiting: Waiting,
    pub(super) watch: ObjectWatch,
    pub(super) retryable: bool,
    pub(super) was_alone: bool,
}

/// What was submitted and has no outcome yet.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    batches: HashMap<u64, Batch, foldhash::fast::RandomState>,
    last: u64,
}

impl InFlight {
    /// The number that a batch is known by.
    pub(super) fn insert(&mut self, batch: Batch) -> u64 {
        self.last += 1;
        self.batches.insert(self.last, batch);
        self.last
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Batch> {
        self.batches.remove(&number)
    }

    /// The objects of all batches.
    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.batches.values().flat_map(|batch| &batch.keys)
    }

    pub(super) fn len(&self) -> usize {
        self.batches.len()
    }
}
