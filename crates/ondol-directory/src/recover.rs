//! A directory of what the last run left.
//!
//! Everything that has to be decided before the first request is decided here, on the plain [`Image`]: who is dead,
//! whose leases still count, which bytes are gone. The objects become entries later, while requests are served.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use foldhash::fast::RandomState;
use ondol_catalog::{Policy, failpoint};
use ondol_memory::{
    ApplyError, Change, ClientRecord, Image, Journal, JournalError, PageState, RemoveReason,
    StoredObject,
};
use ondol_plugin::{Key, RegionId};
use ondol_shm::{BackingId, BookedLease, ClientId, Grant, LeaseLedger, PageId};
use parking_lot::{Mutex, RwLock};

use crate::client::{AdoptedClient, Booked, Client, Newcomer, Reclaimed};
use crate::directory::Directory;
use crate::entry::Entry;
use crate::metrics::Counters;
use crate::shards::Shards;
use crate::slots::Slots;
use crate::state::State;
use crate::verify::Verifier;

/// So many changes of a recovery wait in the journal's memory at most.
const FLUSHED_AT_ONCE: u32 = 4096;

/// What is known of the last run besides its image.
#[derive(Debug, Default)]
pub struct LastRun {
    /// Clients that are not proven dead. What the others held is taken back.
    pub adopted: Vec<AdoptedClient>,
    /// Backings whose bytes are gone.
    pub lost: BTreeSet<BackingId>,
    /// Whether the machine was restarted since. Who is dead could not be told any more at the next start, so all of it
    /// has to be recorded at this one.
    pub rebooted: bool,
    /// What compares objects with their checksums before they are served; without it they are taken as they are.
    pub verifier: Option<Arc<dyn Verifier>>,
}

/// What a directory was recovered from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Objects that are there.
    pub objects: u64,
    /// Objects that were removed because their bytes are gone.
    pub lost: u64,
    /// Clients that are dead and forgotten, with what was taken back from them.
    pub dead: Vec<(ClientId, Reclaimed)>,
    /// Clients that are dead and still known, as not all that they held could be recorded as taken back, with what was.
    /// [`Directory::detach`] takes back the rest.
    pub unforgotten: Vec<(ClientId, Reclaimed)>,
    /// Why something of the dead, or a page that nobody reads any more, could not be recorded as taken back, or why that
    /// is not durable yet; nothing if all is.
    pub refused: Option<JournalError>,
    /// Leases of living clients that keep a page from reuse, and pages that they hold by their slots.
    pub leases: u64,
    /// Leases that had ended: their page holds something else by now.
    pub unmatched: u64,
}

/// Why no directory can be made of an image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecoverError {
    /// The image contradicts itself.
    #[error("the log does not describe a pool: {0}")]
    Corrupt(String),
    /// What has to be changed before anything is served could not be recorded.
    #[error("what was lost since the last run cannot be recorded: {}", .0.0)]
    Journal(JournalError),
}

impl From<JournalError> for RecoverError {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

impl From<ApplyError> for RecoverError {
    fn from(error: ApplyError) -> Self {
        Self::Corrupt(error.to_string())
    }
}

impl Directory {
    /// A directory of what the last run left. What has to change first is recorded in `journal` and durable when this
    /// returns; nothing is served before. Objects are loaded when they are asked for, and by
    /// [`load_some`](Self::load_some), to be called until all are.
    ///
    /// What the dead held is taken back as far as the journal takes it; the rest stays theirs until
    /// [`detach`](Self::detach), and pages of removed objects stay captive until somebody needs them. Objects whose bytes
    /// are gone, and everything after a restart of the machine, cannot wait: then it is an error.
    ///
    /// In the eyes of the policies objects were last used in the order in which they were committed; those that are
    /// leased or pinned, or asked for while they are loaded, later than all others.
    ///
    /// # Errors
    /// [`RecoverError`].
    pub fn recover(
        image: Image,
        journal: Arc<dyn Journal>,
        policy: &'static Policy,
        last: LastRun,
    ) -> Result<(Self, Recovery), RecoverError> {
        let LastRun {
            mut adopted,
            lost,
            rebooted,
            verifier,
        } = last;
        let mut past = Past {
            unflushed: 0,
            image,
            journal: Arc::clone(&journal),
            report: Recovery::default(),
        };
        let living: BTreeSet<_> = adopted.iter().map(|client| client.id).collect();
        if let Some(unknown) = living
            .iter()
            .find(|client| !past.image.clients.contains_key(client))
        {
            return Err(RecoverError::Corrupt(format!(
                "there is a lease book of client {unknown}, which it does not know"
            )));
        }
        let mut slots = Slots::default();
        for client in &mut adopted {
            if let Some(table) = client.slots.take() {
                slots.adopt(client.id, table);
            }
        }
        // Nothing that is not seen now will be read under the last index.
        slots.scan();
        let booked = adopted.iter().flat_map(|client| &client.leases);
        let leased: HashSet<PageId, RandomState> =
            booked.map(|lease| lease.page).chain(slots.held()).collect();
        let names = past.check(&leased)?;
        let lost = past.regions_on(&lost);
        let may_wait = lost.is_empty() && !rebooted;
        past.reclaim(&living, may_wait)?;
        failpoint!("recover.reclaimed");
        past.lose(&lost)?;
        past.release(&adopted, &slots, may_wait)?;
        failpoint!("recover.released");
        let flushed = journal
            .flush(journal.position())
            .map_err(RecoverError::from);
        past.excuse(flushed, may_wait)?;
        failpoint!("recover.flushed");

        let Past {
            image, mut report, ..
        } = past;
        let directory = Self::of(
            image,
            journal,
            policy,
            verifier,
            adopted,
            slots,
            &names,
            &mut report,
        );
        Ok((directory, report))
    }

    #[expect(clippy::too_many_arguments, reason = "all that was found out so far")]
    fn of(
        image: Image,
        journal: Arc<dyn Journal>,
        policy: &'static Policy,
        verifier: Option<Arc<dyn Verifier>>,
        adopted: Vec<AdoptedClient>,
        slots: Slots,
        names: &HashMap<PageId, Key, RandomState>,
        report: &mut Recovery,
    ) -> Self {
        let Image {
            pool,
            objects,
            removed,
            mut clients,
            ..
        } = image;
        let count = objects.len();
        report.objects = count as u64;
        let shards = Shards::with_capacity(count);
        shards.set_loading(count > 0);
        let counters = Counters::new();
        counters.recovered_objects.add(count as u64);
        counters.lost_objects.add(report.lost);
        for (_, reclaimed) in report.dead.iter().chain(&report.unforgotten) {
            counters.dead_clients.increment();
            counters.reclaimed_pins.add(reclaimed.pins);
            counters.reclaimed_grants.add(reclaimed.grants);
        }
        let mut state = State::new(pool, Arc::clone(&journal), policy);
        state.objects.reserve(count);
        state.verify = verifier.is_some();
        for object in objects.values() {
            let usage = state.usage.entry(object.client).or_default();
            usage.objects += 1;
            usage.bytes += object.location.len;
        }
        state.unloaded = objects;
        // Uses of this run are later than every place in the order of the commits.
        let now = count as u64 + 1;

        let retired: HashMap<PageId, Arc<Entry>> = removed
            .into_iter()
            .map(|(page, (key, object))| (page, state.retire(key, object)))
            .collect();
        let adopted = adopted.into_iter().filter_map(|client| {
            let AdoptedClient {
                id, book, leases, ..
            } = client;
            let ClientRecord {
                process,
                instance,
                pins,
            } = clients.remove(&id)?;
            let since = Instant::now();
            let mut held = Vec::with_capacity(leases.len());
            for BookedLease {
                lease,
                page,
                generation,
            } in leases
            {
                let visible = names
                    .get(&page)
                    .and_then(|key| state.find(&shards, &counters, key, now));
                let entry = visible.or_else(|| retired.get(&page).cloned());
                match entry.filter(|entry| {
                    entry.location.page == page && entry.location.generation == generation
                }) {
                    Some(entry) => {
                        entry.lease();
                        held.push((lease, Booked::new(entry, since)));
                        report.leases += 1;
                    }
                    None => report.unmatched += 1,
                }
            }
            let pinned = state.pin_again(&shards, &counters, pins, now);
            counters.adopted_clients.increment();
            let who = Newcomer { process, instance };
            let ledger = LeaseLedger::adopt(book, held);
            Some((id, Arc::new(Client::adopted(id, who, ledger, pinned))))
        });
        let mut all: BTreeMap<_, _> = adopted.collect();
        // The others are dead.
        for (id, client) in clients {
            let ClientRecord {
                process,
                instance,
                pins,
            } = client;
            let pinned = state.pin_again(&shards, &counters, pins, now);
            let who = Newcomer { process, instance };
            all.insert(id, Arc::new(Client::dead(id, who, pinned)));
        }
        state.retired = retired.into_values().collect();
        for key in slots.held().filter_map(|page| names.get(&page)) {
            state.find(&shards, &counters, key, now);
            report.leases += 1;
        }
        state.slots = slots;
        counters.unmatched_leases.add(report.unmatched);
        Self {
            shards,
            clock: AtomicU64::new(now + 1),
            state: Mutex::new(state),
            is_filling: AtomicBool::new(false),
            clients: RwLock::new(all),
            counters,
            journal,
            verifier,
            returns: Arc::default(),
            listener: OnceLock::new(),
        }
    }

    /// Compares what there is with an image: the first difference, in words. For tests of recovery.
    #[doc(hidden)]
    pub fn difference(&self, image: &Image) -> Option<String> {
        let state = self.state.lock();
        if state.pool != image.pool {
            return Some(format!("pools: {:?}, image {:?}", state.pool, image.pool));
        }
        let visible = state.objects.values().map(|shown| &shown.entry);
        let entries = visible.chain(state.pending.values());
        let entries = entries.map(|entry| (entry.key.clone(), entry.object()));
        let unloaded = state.unloaded.iter();
        let objects: HashMap<Key, StoredObject> = entries
            .chain(unloaded.map(|(key, object)| (key.clone(), *object)))
            .collect();
        let expected: HashMap<_, _> = image.objects.iter().map(|(k, o)| (k.clone(), *o)).collect();
        if objects != expected {
            return Some(format!("objects: {objects:?}, image {expected:?}"));
        }
        let retired = state.retired.iter();
        let retired: HashMap<_, _> = retired
            .map(|entry| (entry.location.page, (entry.key.clone(), entry.object())))
            .collect();
        let expected: HashMap<_, _> = image.removed.clone().into_iter().collect();
        if retired != expected {
            return Some(format!("removed: {retired:?}, image {expected:?}"));
        }
        let clients = self.clients.read();
        let clients = clients.iter().map(|(id, client)| (*id, client.record()));
        let clients: HashMap<_, _> = clients.collect();
        let expected: HashMap<_, _> = image.clients.clone().into_iter().collect();
        (clients != expected).then(|| format!("clients: {clients:?}, image {expected:?}"))
    }
}

/// The image, and the journal that hears of what is changed in it.
struct Past {
    /// Changes since the last flush.
    unflushed: u32,
    image: Image,
    journal: Arc<dyn Journal>,
    report: Recovery,
}

impl Past {
    fn change(&mut self, change: &Change) -> Result<(), RecoverError> {
        self.journal.record(change)?;
        self.image.apply(change)?;
        self.unflushed += 1;
        if self.unflushed >= FLUSHED_AT_ONCE {
            self.unflushed = 0;
            // If it cannot be done now, that shows at the end; here it is only that not all of it waits in memory.
            let _ = self.journal.flush(self.journal.position());
        }
        Ok(())
    }

    /// Whether every object lies in a page that holds it and every page that holds one has one; the names of those in
    /// `leased`.
    fn check(
        &self,
        leased: &HashSet<PageId, RandomState>,
    ) -> Result<HashMap<PageId, Key, RandomState>, RecoverError> {
        let Image {
            pool,
            objects,
            removed,
            clients,
            ..
        } = &self.image;
        let corrupt = |text: String| Err(RecoverError::Corrupt(text));
        let mut names = HashMap::default();
        let regions: HashMap<RegionId, _, RandomState> = pool.regions().collect();
        for (key, object) in objects {
            let page = object.location.page;
            let fits = regions.get(&page.region).is_some_and(|region| {
                object.location.len <= region.stride()
                    && region.page(page.index)
                        == Some((object.location.generation, PageState::Committed))
            });
            if !fits {
                return corrupt(format!(
                    "object {key} is said to lie at {:?}, which holds something else",
                    object.location
                ));
            }
            if !leased.is_empty() && leased.contains(&page) {
                names.insert(page, key.clone());
            }
        }
        for (page, (key, object)) in removed {
            if object.location.page != *page || pool.state(*page) != Some(PageState::Retired) {
                return corrupt(format!(
                    "the removed object {key} does not hold page {page}"
                ));
            }
        }
        let (mut committed, mut retired) = (0, 0);
        for region in regions.values() {
            let in_use = region.page_count() - region.free_count() - region.granted_count();
            committed += region.committed_count() as usize;
            retired += (in_use - region.committed_count()) as usize;
        }
        if (committed, retired) != (objects.len(), removed.len()) {
            return corrupt(format!(
                "it names {} objects and {} removed ones, but {committed} and {retired} pages hold such",
                objects.len(),
                removed.len(),
            ));
        }
        for (id, client) in clients {
            if let Some(key) = client.pins.keys().find(|key| !objects.contains_key(*key)) {
                return corrupt(format!("client {id} pins {key}, which is not there"));
            }
        }
        Ok(names)
    }

    /// Passes on an error of the journal unless it `may_wait`: then it is reported.
    fn excuse(
        &mut self,
        result: Result<(), RecoverError>,
        may_wait: bool,
    ) -> Result<(), RecoverError> {
        match result {
            Err(RecoverError::Journal(error)) if may_wait => {
                self.report.refused.get_or_insert(error);
                Ok(())
            }
            other => other,
        }
    }

    /// Takes back what the dead held.
    fn reclaim(&mut self, living: &BTreeSet<ClientId>, may_wait: bool) -> Result<(), RecoverError> {
        let dead = self.image.clients.keys();
        let dead: Vec<_> = dead
            .filter(|client| !living.contains(client))
            .copied()
            .collect();
        for client in dead {
            let mut reclaimed = Reclaimed::default();
            let forgotten = self.forget(client, &mut reclaimed);
            let list = if forgotten.is_ok() {
                &mut self.report.dead
            } else {
                &mut self.report.unforgotten
            };
            list.push((client, reclaimed));
            self.excuse(forgotten, may_wait)?;
        }
        Ok(())
    }

    fn forget(&mut self, client: ClientId, reclaimed: &mut Reclaimed) -> Result<(), RecoverError> {
        let pins = self.image.clients.get(&client);
        let pins = pins.map(|record| record.pins.clone()).unwrap_or_default();
        for (key, numbers) in pins {
            for pin in numbers {
                let key = key.clone();
                self.change(&Change::Unpin { key, client, pin })?;
                reclaimed.pins += 1;
            }
        }
        for grant in self.image.pool.grants_of(client) {
            self.change(&Change::Return { grant, client })?;
            reclaimed.grants += 1;
        }
        self.change(&Change::Detach { client })
    }

    fn regions_on(&self, backings: &BTreeSet<BackingId>) -> BTreeSet<RegionId> {
        let regions = self.image.pool.regions();
        let regions = regions.filter(|(_, region)| backings.contains(&region.extent().backing));
        regions.map(|(id, _)| id).collect()
    }

    /// Removes the objects whose bytes are gone, and the regions that held them.
    fn lose(&mut self, regions: &BTreeSet<RegionId>) -> Result<(), RecoverError> {
        let objects = self.image.objects.iter();
        let objects = objects.filter(|(_, object)| regions.contains(&object.location.page.region));
        let objects: Vec<_> = objects
            .map(|(key, object)| (key.clone(), object.location))
            .collect();
        for (key, location) in objects {
            self.change(&Change::Remove {
                key,
                location,
                reason: RemoveReason::Lost,
            })?;
            self.report.lost += 1;
        }
        let removed = self.image.removed.keys();
        let removed: Vec<_> = removed
            .filter(|page| regions.contains(&page.region))
            .copied()
            .collect();
        for page in removed {
            self.change(&Change::Release { page })?;
        }
        for &region in regions {
            self.change(&Change::Dissolve { region })?;
        }
        Ok(())
    }

    /// Frees the pages of removed objects that no living client reads.
    fn release(
        &mut self,
        adopted: &[AdoptedClient],
        slots: &Slots,
        may_wait: bool,
    ) -> Result<(), RecoverError> {
        let leases = adopted.iter().flat_map(|client| &client.leases);
        let leased: HashSet<_> = leases
            .map(|lease| Grant {
                page: lease.page,
                generation: lease.generation,
            })
            .collect();
        let removed = self.image.removed.iter();
        let free: Vec<_> = removed
            .filter(|(page, (_, object))| {
                !slots.hold(**page)
                    && !leased.contains(&Grant {
                        page: **page,
                        generation: object.location.generation,
                    })
            })
            .map(|(page, _)| *page)
            .collect();
        for page in free {
            let released = self.change(&Change::Release { page });
            let is_refused = released.is_err();
            self.excuse(released, may_wait)?;
            if is_refused {
                break;
            }
        }
        Ok(())
    }
}
