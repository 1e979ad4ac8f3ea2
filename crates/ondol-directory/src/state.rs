//! What one writer at a time may change.

use std::collections::HashMap;
use std::sync::Arc;

use ondol_catalog::{EntryId, EvictionPolicy, Policy};
use ondol_memory::{Change, Journal, JournalError, Pool, RemoveReason};
use ondol_plugin::Key;
use ondol_shm::{ClientId, Location, ObjectMeta, PageId};

use crate::entry::Entry;
use crate::shards::Shards;

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
    journal: Box<dyn Journal>,
    policy: &'static Policy,
    /// One instance for each page size.
    pub(crate) policies: HashMap<u64, Box<dyn EvictionPolicy>>,
    pub(crate) objects: HashMap<EntryId, Arc<Entry>>,
    pub(crate) at_page: HashMap<PageId, Arc<Entry>>,
    /// Removed objects that readers still hold.
    pub(crate) retired: Vec<Arc<Entry>>,
    pub(crate) usage: HashMap<ClientId, Usage>,
    /// Pages evicted per page size since a region was last taken from another one.
    pub(crate) hunger: HashMap<u64, u64>,
    next_entry: EntryId,
}

impl State {
    pub(crate) fn new(pool: Pool, journal: Box<dyn Journal>, policy: &'static Policy) -> Self {
        Self {
            pool,
            journal,
            policy,
            policies: HashMap::new(),
            objects: HashMap::new(),
            at_page: HashMap::new(),
            retired: Vec::new(),
            usage: HashMap::new(),
            hunger: HashMap::new(),
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
        Ok(())
    }

    pub(crate) fn policy_name(&self) -> &'static str {
        self.policy.name
    }

    /// Makes an object visible; its page is granted to `client` and the key is not in use.
    pub(crate) fn insert(
        &mut self,
        shards: &Shards,
        client: ClientId,
        key: &Key,
        location: Location,
        meta: ObjectMeta,
        now: u64,
    ) -> Result<(), JournalError> {
        self.change(&Change::Commit {
            key: key.clone(),
            location,
            meta,
            client,
        })?;
        let stride = self
            .pool
            .region(location.page.region)
            .map_or(0, |region| region.stride());
        let id = self.next_entry;
        self.next_entry += 1;
        let entry = Arc::new(Entry::new(
            id,
            key.clone(),
            location,
            meta,
            stride,
            client,
            now,
        ));
        self.objects.insert(id, Arc::clone(&entry));
        self.at_page.insert(location.page, Arc::clone(&entry));
        let build = self.policy.build;
        self.policies
            .entry(stride)
            .or_insert_with(build)
            .inserted(id);
        let usage = self.usage.entry(client).or_default();
        usage.objects += 1;
        usage.bytes += location.len;
        shards.of(key).write().insert(key.clone(), entry);
        Ok(())
    }

    /// Removes a visible object. One that is pinned is kept, one that is leased is kept too unless `leased` is
    /// allowed: then its page stays captive until the last lease has ended.
    pub(crate) fn remove(
        &mut self,
        shards: &Shards,
        entry: &Arc<Entry>,
        reason: RemoveReason,
        leased: bool,
    ) -> Result<Removal, JournalError> {
        {
            let mut objects = shards.of(&entry.key).write();
            let is_visible = objects
                .get(&entry.key)
                .is_some_and(|visible| Arc::ptr_eq(visible, entry));
            if !is_visible || entry.pins() > 0 || (entry.leases() > 0 && !leased) {
                return Ok(Removal::Kept);
            }
            let change = Change::Remove {
                key: entry.key.clone(),
                location: entry.location,
                reason,
            };
            self.change(&change)?;
            objects.remove(&entry.key);
        }
        self.objects.remove(&entry.id);
        self.at_page.remove(&entry.location.page);
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
        if entry.leases() > 0 {
            self.retired.push(Arc::clone(entry));
        } else if let Err(error) = self.change(&release) {
            // The object is gone all the same; its page follows once the journal records it.
            tracing::warn!(%error, page = %entry.location.page, "the page of a removed object stays captive for now");
            self.retired.push(Arc::clone(entry));
        }
        Ok(Removal::Removed)
    }

    /// Frees the pages of removed objects that no reader holds any more.
    ///
    /// # Errors
    /// If one of them could not be recorded; it stays captive, and the others are free.
    pub(crate) fn release_retired(&mut self) -> Result<(), JournalError> {
        let mut refused = None;
        for entry in std::mem::take(&mut self.retired) {
            if entry.leases() > 0 {
                self.retired.push(entry);
                continue;
            }
            let page = entry.location.page;
            if let Err(error) = self.change(&Change::Release { page }) {
                self.retired.push(entry);
                refused = Some(error);
            }
        }
        refused.map_or(Ok(()), Err)
    }
}
