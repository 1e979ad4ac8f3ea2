//! What one writer at a time may change.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashlink::LinkedHashMap;
use ondol_catalog::{EntryId, EvictionPolicy, Policy, PolicyContext, failpoint};
use ondol_memory::{Change, Journal, JournalError, Pool, Position, RemoveReason, StoredObject};
use ondol_plugin::Key;
use ondol_shm::ClientId;

use crate::client::Pins;
use crate::entry::Entry;
use crate::index::{MOVED_AT_ONCE, Objects, Shelf, Shown};
use crate::metrics::Counters;
use crate::pages::Pages;
use crate::policy::admitted;
use crate::shards::Shards;
use crate::slots::Slots;

/// Objects and bytes that a client stored and that are still there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
}

/// What became of an attempt to remove an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removal {
    Removed,
    /// It is leased or pinned, or somebody removed it before.
    Kept,
}

/// The pool and the writer's side of the directory.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) pool: Pool,
    pub(crate) journal: Arc<dyn Journal>,
    policy: &'static Policy,
    /// What policies are told when they are made. The room of one page size changes, so they are told no capacity.
    pub(crate) policy_context: PolicyContext,
    /// One instance for each page size.
    pub(crate) policies: HashMap<u64, Box<dyn EvictionPolicy>, RandomState>,
    pub(crate) objects: Objects,
    pub(crate) pages: Pages,
    /// Visible objects, as clients on this host find them.
    pub(crate) shelf: Shelf,
    pub(crate) slots: Slots,
    /// Keys of objects that clients found by themselves, for the listener; not more than [`REMEMBERED_USES`].
    pub(crate) used: Vec<Key>,
    /// Objects that were committed since clients were last asked what they found.
    pub(crate) unasked: usize,
    /// Objects that were recorded and wait to be durable; they can be neither found nor evicted.
    pub(crate) pending: HashMap<Key, Arc<Entry>, RandomState>,
    /// The same in the order of their records, with the end of each record.
    unpublished: VecDeque<(Position, Arc<Entry>)>,
    /// Objects of the last run that have not become entries yet, in the order of their commits.
    pub(crate) unloaded: LinkedHashMap<Key, StoredObject, RandomState>,
    /// Objects that policies hear of once all of the last run are loaded, with their first use.
    deferred: Vec<(u64, u64, EntryId)>,
    /// Whether objects of the last run are to be compared with their checksums.
    pub(crate) verify: bool,
    /// Removed objects that readers hold, or may hold.
    pub(crate) retired: Vec<Arc<Entry>>,
    pub(crate) usage: HashMap<ClientId, Usage>,
    /// Pages evicted per page size since a region was last taken from another one.
    pub(crate) hunger: HashMap<u64, u64>,
    /// The storage tier as a client of the directory.
    pub(crate) tier: Option<ClientId>,
    next_entry: EntryId,
}

impl State {
    pub(crate) fn new(pool: Pool, journal: Arc<dyn Journal>, policy: &'static Policy) -> Self {
        Self {
            pool,
            journal,
            policy,
            policy_context: PolicyContext::default(),
            policies: HashMap::default(),
            objects: HashMap::default(),
            pages: Pages::default(),
            shelf: Shelf::default(),
            slots: Slots::default(),
            used: Vec::new(),
            unasked: 0,
            pending: HashMap::default(),
            unpublished: VecDeque::new(),
            unloaded: LinkedHashMap::default(),
            deferred: Vec::new(),
            verify: false,
            retired: Vec::new(),
            usage: HashMap::new(),
            hunger: HashMap::new(),
            tier: None,
            next_entry: 1,
        }
    }

    /// The one place that every change passes: recorded first, then applied.
    ///
    /// # Panics
    /// If the change does not fit the pool's state; callers check first, so it would be a fault of theirs.
    pub(crate) fn change(&mut self, change: &Change) -> Result<(), JournalError> {
        self.journal.record(change)?;
        if let Err(error) = self.pool.apply(change) {
            unreachable!("a checked change did not fit: {error}");
        }
        if let Change::Dissolve { region } = change {
            self.pages.dissolve(*region);
        }
        Ok(())
    }

    pub(crate) fn policy_name(&self) -> &'static str {
        self.policy.name
    }

    /// Records an object, which becomes visible by [`publish`](Self::publish); its page is granted to its client and
    /// the key is not in use.
    pub(crate) fn commit(
        &mut self,
        key: &Key,
        object: StoredObject,
        now: u64,
    ) -> Result<Arc<Entry>, JournalError> {
        self.change(&Change::Commit {
            key: key.clone(),
            location: object.location,
            meta: object.meta,
            client: object.client,
        })?;
        let entry = self.entry(key.clone(), object, now, false);
        let end = self.journal.position();
        self.pending.insert(key.clone(), Arc::clone(&entry));
        self.unpublished.push_back((end, Arc::clone(&entry)));
        Ok(entry)
    }

    /// Makes visible what is durable up to this place, and shows it to `visible`.
    pub(crate) fn publish(
        &mut self,
        shards: &Shards,
        counters: &Counters,
        durable: Position,
        mut visible: impl FnMut(&Entry),
    ) {
        let mut published = 0;
        while let Some((_, entry)) = self.unpublished.pop_front_if(|(end, _)| *end <= durable) {
            published += 1;
            self.pending.remove(&entry.key);
            counters.commits.increment();
            counters.committed_bytes.add(entry.location.len);
            let usage = self.usage.entry(entry.owner).or_default();
            usage.objects += 1;
            usage.bytes += entry.location.len;
            let now = entry.last_use();
            visible(&entry);
            self.show(shards, entry, shards.is_loading().then_some(now));
        }
        self.unasked += published;
        // So a larger index is complete before it is full, too.
        self.build_index(MOVED_AT_ONCE.max(4 * published));
    }

    /// Moves some objects to a larger index, if one is needed.
    pub(crate) fn build_index(&mut self, count: usize) {
        let unloaded = self.unloaded.len() as u64;
        if let Some(index) = self.shelf.build(&mut self.objects, count, unloaded) {
            self.slots.set_index(index);
        }
    }

    fn entry(&mut self, key: Key, object: StoredObject, now: u64, unverified: bool) -> Arc<Entry> {
        let region = self.pool.region(object.location.page.region);
        let stride = region.map_or(0, |region| region.stride());
        let id = self.next_entry;
        self.next_entry += 1;
        Arc::new(Entry::new(id, key, object, stride, now, unverified))
    }

    /// Makes an entry visible; its policy hears of it at once, or as used at `deferred`.
    fn show(&mut self, shards: &Shards, entry: Arc<Entry>, deferred: Option<u64>) {
        match deferred {
            Some(now) => self.deferred.push((now, entry.stride, entry.id)),
            None => self.policy_of(entry.stride).inserted(admitted(&entry)),
        }
        let place = self.shelf.insert(&entry);
        self.shelf.tell(self.unloaded.len() as u64);
        self.pages.insert(Arc::clone(&entry));
        shards.insert(Arc::clone(&entry));
        self.objects.insert(entry.id, Shown { entry, place });
    }

    /// Clients on this host need not ask for this object any more, if it is visible.
    pub(crate) fn show_verified(&mut self, entry: &Entry) {
        if let Some(shown) = self.objects.get(&entry.id) {
            self.shelf.set_verified(shown.place);
        }
    }

    fn policy_of(&mut self, stride: u64) -> &mut Box<dyn EvictionPolicy> {
        let build = || (self.policy.build)(&self.policy_context);
        self.policies.entry(stride).or_insert_with(build)
    }

    /// The object of this name, loaded if it was not.
    pub(crate) fn find(
        &mut self,
        shards: &Shards,
        counters: &Counters,
        key: &Key,
        now: u64,
    ) -> Option<Arc<Entry>> {
        if let Some(entry) = shards.get(key) {
            return Some(entry);
        }
        let (key, object) = self.unloaded.remove_entry(key)?;
        counters.demand_loads.increment();
        let entry = self.revive(key, object, now);
        self.show(shards, Arc::clone(&entry), Some(now));
        Some(entry)
    }

    /// Loads at most `count` objects of the last run, those that were committed first first.
    pub(crate) fn load(&mut self, shards: &Shards, count: usize) {
        for _ in 0..count {
            let Some((key, object)) = self.unloaded.pop_front() else {
                break;
            };
            // Their order is all that is known of their uses. The clock begins behind the last of them.
            let now = self.next_entry;
            let entry = self.revive(key, object, now);
            self.show(shards, entry, None);
        }
        self.build_index(count);
    }

    fn revive(&mut self, key: Key, object: StoredObject, now: u64) -> Arc<Entry> {
        let unverified = self.verify && object.meta.checksum.is_some();
        self.entry(key, object, now, unverified)
    }

    /// The entry of an object of the last run that was removed and whose page is captive.
    pub(crate) fn retire(&mut self, key: Key, object: StoredObject) -> Arc<Entry> {
        self.entry(key, object, 0, false)
    }

    /// The pins that a client of the last run had.
    pub(crate) fn pin_again(
        &mut self,
        shards: &Shards,
        counters: &Counters,
        pins: BTreeMap<Key, BTreeSet<u64>>,
        now: u64,
    ) -> Pins {
        let mut pinned = Pins::new();
        for (key, numbers) in pins {
            if let Some(entry) = self.find(shards, counters, &key, now) {
                numbers.iter().for_each(|_| entry.pin());
                pinned.insert(key, (entry, numbers));
            }
        }
        pinned
    }

    /// Tells the policies what happened while objects of the last run were loaded: all of it came later than those.
    pub(crate) fn finish_loading(&mut self, shards: &Shards) {
        let inserted = std::mem::take(&mut self.deferred).into_iter();
        let read = shards.take_reads().into_iter();
        let mut uses: Vec<_> = inserted
            .map(|(now, stride, id)| (now, false, stride, id))
            .chain(read.map(|(now, stride, id)| (now, true, stride, id)))
            .collect();
        uses.sort_unstable();
        for (_, read, stride, id) in uses {
            let Some(entry) = self.objects.get(&id).map(|shown| Arc::clone(&shown.entry)) else {
                continue;
            };
            let policy = self.policy_of(stride);
            if read {
                policy.accessed(id);
            } else {
                policy.inserted(admitted(&entry));
            }
        }
        shards.set_loading(false);
    }

    /// Removes a visible object. One that is pinned is kept, one that is leased is kept too unless `leased` is
    /// allowed: then its page stays captive until the last lease has ended. Leases in clients' slots are those that were
    /// seen there last. A page that a client may hold in one since is released by
    /// [`release_retired`](Self::release_retired) only, which is to be called once for all objects that are removed
    /// together.
    ///
    /// The object is gone for readers before the record is durable. That is sound, since nothing depends on it yet: if
    /// the process ends before, the next one finds the object with its bytes untouched. Its page is handed out again
    /// only by a grant, and a grant is answered after everything before it is durable, this removal among it.
    pub(crate) fn remove(
        &mut self,
        shards: &Shards,
        entry: &Arc<Entry>,
        reason: RemoveReason,
        leased: bool,
    ) -> Result<Removal, JournalError> {
        {
            let mut shard = shards.lock(&entry.key);
            let is_leased = entry.leases() > 0 || self.slots.hold(entry.location.page);
            if !shard.holds(entry) || entry.pins() > 0 || (is_leased && !leased) {
                return Ok(Removal::Kept);
            }
            self.change(&Change::Remove {
                key: entry.key.clone(),
                location: entry.location,
                reason,
            })?;
            failpoint!("evict.recorded");
            shard.remove(entry);
        }
        failpoint!("evict.unindexed");
        if let Some(shown) = self.objects.remove(&entry.id) {
            self.shelf.remove(entry, shown.place);
            self.shelf.tell(self.unloaded.len() as u64);
        }
        failpoint!("index.removed");
        self.pages.remove(entry.location.page);
        if let Some(policy) = self.policies.get_mut(&entry.stride) {
            policy.removed(entry.id);
        }
        if let Some(usage) = self.usage.get_mut(&entry.owner) {
            usage.objects -= 1;
            usage.bytes -= entry.location.len;
            if usage.objects == 0 {
                self.usage.remove(&entry.owner);
            }
        }
        let release = Change::Release {
            page: entry.location.page,
        };
        if entry.leases() > 0 || !self.slots.are_unused() {
            self.retired.push(Arc::clone(entry));
        } else if let Err(error) = self.change(&release) {
            // The object is gone all the same; its page follows once the journal records it.
            tracing::warn!(%error, page = %entry.location.page, "the page of a removed object stays captive for now");
            self.retired.push(Arc::clone(entry));
        }
        failpoint!("evict.released");
        Ok(Removal::Removed)
    }

    /// Frees the pages of removed objects that no reader holds any more.
    ///
    /// # Errors
    /// If one of them could not be recorded; it stays captive, and the others are free.
    pub(crate) fn release_retired(&mut self) -> Result<(), JournalError> {
        if self.retired.is_empty() {
            return Ok(());
        }
        self.slots.scan();
        self.release_unheld()
    }

    /// The same, if clients' slots were scanned since the last object was removed.
    pub(crate) fn release_unheld(&mut self) -> Result<(), JournalError> {
        let mut refused = None;
        for entry in std::mem::take(&mut self.retired) {
            let page = entry.location.page;
            if entry.leases() > 0 || self.slots.hold(page) {
                self.retired.push(entry);
                continue;
            }
            if let Err(error) = self.change(&Change::Release { page }) {
                self.retired.push(entry);
                refused = Some(error);
            }
        }
        refused.map_or(Ok(()), Err)
    }
}
