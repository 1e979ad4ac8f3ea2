use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use foldhash::fast::RandomState;
use ondol_catalog::EntryId;
use ondol_plugin::Key;
use parking_lot::RwLock;

use crate::entry::Entry;

const SHARDS: usize = 64;
/// Reads of one shard that are remembered until the policy next hears of them; older ones are forgotten.
const REMEMBERED_READS: usize = 1024;

pub(crate) type Objects = HashMap<Key, Arc<Entry>, RandomState>;

/// The readers' side: visible objects by key.
#[derive(Debug)]
pub(crate) struct Shards {
    shards: Box<[Shard]>,
    hasher: RandomState,
}

#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) objects: RwLock<Objects>,
    /// When and which objects were read, for the policy.
    pub(crate) reads: ArrayQueue<(u64, u64, EntryId)>,
}

impl Shards {
    pub(crate) fn new() -> Self {
        let hasher = RandomState::default();
        let shard = |_| Shard {
            objects: RwLock::new(HashMap::with_hasher(hasher.clone())),
            reads: ArrayQueue::new(REMEMBERED_READS),
        };
        Self {
            shards: (0..SHARDS).map(shard).collect(),
            hasher,
        }
    }

    pub(crate) fn shard(&self, key: &Key) -> &Shard {
        // The map uses the low bits of the same hash, so the shard is chosen by the high ones.
        &self.shards[(self.hasher.hash_one(key) >> (64 - SHARDS.ilog2())) as usize]
    }

    /// All shards, in no order that means anything.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Shard> {
        self.shards.iter()
    }

    pub(crate) fn of(&self, key: &Key) -> &RwLock<Objects> {
        &self.shard(key).objects
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Entry>> {
        self.of(key).read().get(key).cloned()
    }
}
