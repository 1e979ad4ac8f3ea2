use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_queue::ArrayQueue;
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use ondol_catalog::EntryId;
use ondol_plugin::Key;
use parking_lot::{RwLock, RwLockWriteGuard};

use crate::entry::Entry;

const SHARDS: usize = 64;
/// Reads of one shard that are remembered until the policy next hears of them; older ones are forgotten.
const REMEMBERED_READS: usize = 1024;

/// The readers' side: visible objects by key.
#[derive(Debug)]
pub(crate) struct Shards {
    shards: Box<[Shard]>,
    hasher: RandomState,
    loading: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct Shard {
    objects: RwLock<HashTable<Arc<Entry>>>,
    /// When and which objects were read, for the policy.
    reads: ArrayQueue<(u64, u64, EntryId)>,
}

/// The objects of one shard, locked for the one who changes them.
pub(crate) struct LockedShard<'a> {
    objects: RwLockWriteGuard<'a, HashTable<Arc<Entry>>>,
    hash: u64,
}

impl Shards {
    /// Empty shards with room for so many objects.
    pub(crate) fn with_capacity(objects: usize) -> Self {
        // Hashes are spread evenly, though not quite.
        let each = objects / SHARDS + objects / SHARDS / 16;
        let shard = |_| Shard {
            objects: RwLock::new(HashTable::with_capacity(each)),
            reads: ArrayQueue::new(REMEMBERED_READS),
        };
        Self {
            shards: (0..SHARDS).map(shard).collect(),
            hasher: RandomState::default(),
            loading: AtomicBool::new(false),
        }
    }

    fn shard(&self, hash: u64) -> &Shard {
        // The table uses the low bits and the top seven of the hash, so the shard is chosen by others.
        &self.shards[(hash >> 40) as usize % SHARDS]
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Entry>> {
        self.get_if(key, |_| true).ok().flatten()
    }

    /// The object of this name, looked at by `accept` while nobody can remove it.
    ///
    /// # Errors
    /// If there is one that was not accepted.
    pub(crate) fn get_if(
        &self,
        key: &Key,
        accept: impl FnOnce(&Entry) -> bool,
    ) -> Result<Option<Arc<Entry>>, ()> {
        let hash = self.hasher.hash_one(key);
        let objects = self.shard(hash).objects.read();
        match objects.find(hash, |entry| entry.key == *key) {
            None => Ok(None),
            Some(entry) if accept(entry) => Ok(Some(Arc::clone(entry))),
            Some(_) => Err(()),
        }
    }

    /// Shows the object of this name, if there is one, while nobody can remove it.
    pub(crate) fn look(&self, key: &Key, visit: impl FnOnce(&Entry)) {
        let hash = self.hasher.hash_one(key);
        let objects = self.shard(hash).objects.read();
        if let Some(entry) = objects.find(hash, |entry| entry.key == *key) {
            visit(entry);
        }
    }

    /// Makes an object visible; none of its name is.
    pub(crate) fn insert(&self, entry: Arc<Entry>) {
        let hash = self.hasher.hash_one(&entry.key);
        let mut objects = self.shard(hash).objects.write();
        objects.insert_unique(hash, entry, |entry| self.hasher.hash_one(&entry.key));
    }

    /// Keeps readers away from the objects that share a shard with this name.
    pub(crate) fn lock(&self, key: &Key) -> LockedShard<'_> {
        let hash = self.hasher.hash_one(key);
        LockedShard {
            objects: self.shard(hash).objects.write(),
            hash,
        }
    }

    /// Calls `visit` with every visible object, in no order that means anything.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&Entry)) {
        for part in 0..SHARDS {
            self.for_each_of(part, &mut visit);
        }
    }

    /// The same for one part of [`SHARDS`]; `None` if there is no such part.
    pub(crate) fn for_each_of(&self, part: usize, mut visit: impl FnMut(&Entry)) -> Option<()> {
        let objects = self.shards.get(part)?.objects.read();
        objects.iter().for_each(|entry| visit(entry));
        Some(())
    }

    pub(crate) fn note_read(&self, now: u64, entry: &Entry) {
        // Which queue it is means nothing, so long as neighbours do not share one.
        let shard = &self.shards[entry.id as usize % SHARDS];
        let _ = shard.reads.force_push((now, entry.stride, entry.id));
    }

    /// Takes the reads that were noted: when, of which page size, which object; in their order.
    pub(crate) fn take_reads(&self) -> Vec<(u64, u64, EntryId)> {
        let mut reads: Vec<_> = Vec::new();
        for shard in &self.shards {
            reads.extend(std::iter::from_fn(|| shard.reads.pop()));
        }
        reads.sort_unstable();
        reads
    }

    /// Whether objects of the last run may be missing here, so that an object that is not found is not absent.
    pub(crate) fn is_loading(&self) -> bool {
        self.loading.load(Ordering::Acquire)
    }

    pub(crate) fn set_loading(&self, loading: bool) {
        self.loading.store(loading, Ordering::Release);
    }
}

impl LockedShard<'_> {
    /// Whether this very object is the visible one of its name.
    pub(crate) fn holds(&self, entry: &Arc<Entry>) -> bool {
        self.objects
            .find(self.hash, |visible| Arc::ptr_eq(visible, entry))
            .is_some()
    }

    pub(crate) fn remove(&mut self, entry: &Arc<Entry>) {
        let found = self
            .objects
            .find_entry(self.hash, |visible| Arc::ptr_eq(visible, entry));
        if let Ok(found) = found {
            found.remove();
        }
    }
}
