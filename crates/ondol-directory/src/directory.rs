use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use ondol_catalog::{Counter, Policy, SaltLimits, failpoint};
use ondol_memory::{Change, Journal, JournalError, Pool, RemoveReason};
use ondol_plugin::Key;
use ondol_protocol::{Breakdown, DeleteOutcome, Hit, Pin, PinOutcome, Retrieve, Retrieved};
use ondol_shm::{ClientId, LayoutFingerprint, LeaseRef, LeaseRefusal, LeaseTableError};
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::client::{Booked, Client};
use crate::commits::CommitListener;
use crate::entry::Entry;
use crate::metrics::Counters;
use crate::returns::Returns;
use crate::shards::Shards;
use crate::state::{Removal, State};
use crate::verify::Verifier;

/// Objects of the last run that are loaded under one hold of the writer's lock.
const LOADED_AT_ONCE: usize = 1024;

/// Why the directory did not do what was asked. What a batch asked for before the part that failed is done; asking again
/// for all of it is safe.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DirectoryError {
    /// Nothing can be freed.
    Full(Breakdown),
    /// The client holds as many granted bytes as it may.
    ShareExceeded {
        /// Bytes held.
        held: u64,
    },
    /// The client is not attached.
    UnknownClient,
    /// A lease was proposed that the client's table does not allow.
    BadLease(LeaseRef),
    /// The request contradicts itself.
    Malformed(&'static str),
    /// The journal refused, or could not make durable what it recorded. What was asked for may be done or not; asking
    /// again is safe.
    Journal(JournalError),
    /// A lease could not be written down, so that a restart would forget it; the reason in words.
    LeaseNotBooked(String),
    /// The bytes of an object could not be compared with its checksum; the reason in words.
    Unverifiable(String),
}

impl From<JournalError> for DirectoryError {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

/// Why a client is not let in, or not let in again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// Its lease table is none.
    #[error(transparent)]
    Table(#[from] LeaseTableError),
    /// It could not be recorded.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// There is no client of that name that was there before the restart and did not come back yet.
    #[error("no client of that name waits to come back")]
    Unknown,
}

/// What is to be found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) keys: &'a [Key],
    /// So many keys in a row are found all or not at all.
    pub(crate) group: u32,
    /// Whether to stop at the first group that is not there whole.
    pub(crate) prefix: bool,
    pub(crate) expect: Option<LayoutFingerprint>,
}

/// Objects that were found and are held, though no lease is booked yet.
pub(crate) struct Found {
    /// One for each key; it may end before the last key.
    pub(crate) entries: Vec<Option<Arc<Entry>>>,
    /// Objects that were there under another layout.
    pub(crate) mismatches: u32,
}

/// The directory of one pool.
#[derive(Debug)]
pub struct Directory {
    pub(crate) shards: Shards,
    /// Counts reads and commits; orders uses of objects.
    pub(crate) clock: AtomicU64,
    pub(crate) state: Mutex<State>,
    /// Whether a larger index may have to be filled.
    pub(crate) is_filling: AtomicBool,
    pub(crate) clients: RwLock<BTreeMap<ClientId, Arc<Client>>>,
    pub(crate) counters: Counters,
    /// The writer's, to wait for without the writer's lock.
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) verifier: Option<Arc<dyn Verifier>>,
    /// Pages of the storage tier's that nobody writes any more.
    pub(crate) returns: Arc<Returns>,
    pub(crate) listener: OnceLock<Arc<dyn CommitListener>>,
}

impl Directory {
    /// An empty directory over `pool`, every change of which goes to `journal` first.
    pub fn new(pool: Pool, journal: Arc<dyn Journal>, policy: &'static Policy) -> Self {
        Self {
            shards: Shards::with_capacity(0),
            clock: AtomicU64::new(1),
            state: Mutex::new(State::new(pool, Arc::clone(&journal), policy)),
            is_filling: AtomicBool::new(false),
            clients: RwLock::default(),
            counters: Counters::new(),
            journal,
            verifier: None,
            returns: Arc::default(),
            listener: OnceLock::new(),
        }
    }

    /// Tells policies how many bytes the objects of a cache salt may have. To be called before there are objects.
    pub fn set_salt_limits(&self, limits: Arc<dyn SaltLimits>) {
        self.state.lock().policy_context.quotas = Some(limits);
    }

    /// Notes what others did since: ended leases, pages that were let go, and the order of reads.
    pub(crate) fn settle(&self, state: &mut State) {
        for client in self.clients.read().values() {
            client.ledger.lock().sweep();
        }
        self.take_returned(state);
        self.take_returned_by(state, None);
        self.take_hits(state);
        self.note_reads(state);
    }

    /// Tells the policies what was read since; while objects of the last run are loaded, that waits for their end.
    pub(crate) fn note_reads(&self, state: &mut State) {
        if self.shards.is_loading() {
            return;
        }
        for (_, stride, id) in self.shards.take_reads() {
            if let Some(policy) = state.policies.get_mut(&stride) {
                policy.accessed(id);
            }
        }
    }

    /// Loads some of the objects of the last run; whether all of them are.
    pub fn load_some(&self) -> bool {
        if !self.shards.is_loading() {
            return true;
        }
        let mut state = self.state.lock();
        state.load(&self.shards, LOADED_AT_ONCE);
        let is_loaded = state.unloaded.is_empty();
        if is_loaded && self.shards.is_loading() {
            state.finish_loading(&self.shards);
        }
        let plan = state.shelf.plan();
        // Those who ask for an object meanwhile need not wait for all of them.
        MutexGuard::unlock_fair(state);
        self.make_index(plan);
        is_loaded
    }

    /// Whether every object of the last run is loaded.
    pub fn is_loaded(&self) -> bool {
        !self.shards.is_loading()
    }

    pub(crate) fn load_all(&self) {
        while !self.load_some() {}
    }

    /// Loads those of these objects that are not, so that one that is not found after this is absent.
    pub(crate) fn load_asked_for(&self, keys: &[Key]) {
        if !self.shards.is_loading() {
            return;
        }
        let missing = keys.iter().filter(|key| self.shards.get(key).is_none());
        let mut missing = missing.peekable();
        if missing.peek().is_none() {
            return;
        }
        let now = self.clock.load(Ordering::Relaxed);
        let mut state = self.state.lock();
        for key in missing {
            state.find(&self.shards, &self.counters, key, now);
        }
    }

    /// The object of this name for one who holds the writer's lock.
    pub(crate) fn find(&self, state: &mut State, key: &Key) -> Option<Arc<Entry>> {
        let now = self.clock.load(Ordering::Relaxed);
        state.find(&self.shards, &self.counters, key, now)
    }

    /// Finds and leases objects in one step; see [`Retrieve`]. It never waits for storage.
    pub fn retrieve(
        &self,
        client: ClientId,
        request: &Retrieve,
    ) -> Result<Retrieved, DirectoryError> {
        Ok(self
            .retrieve_if(client, request, false)?
            .unwrap_or_default())
    }

    /// As [`retrieve`](Self::retrieve) if every object is there; else nothing, and nothing is leased or counted.
    pub fn retrieve_whole(
        &self,
        client: ClientId,
        request: &Retrieve,
    ) -> Result<Option<Retrieved>, DirectoryError> {
        self.retrieve_if(client, request, true)
    }

    fn retrieve_if(
        &self,
        client: ClientId,
        request: &Retrieve,
        whole: bool,
    ) -> Result<Option<Retrieved>, DirectoryError> {
        let Retrieve {
            keys,
            leases,
            group,
            prefix,
            expect,
            ..
        } = request;
        if *group == 0 || leases.len() != keys.len() {
            return Err(DirectoryError::Malformed(
                "one lease for each key and groups of at least one are expected",
            ));
        }
        let client = self.client(client)?;
        self.fill_index();
        self.load_asked_for(keys);
        let Found {
            entries,
            mismatches,
        } = self.hold_verified(Wanted {
            keys,
            group: *group,
            prefix: *prefix,
            expect: *expect,
        })?;
        if whole && entries.iter().flatten().count() < keys.len() {
            entries.iter().flatten().for_each(|entry| entry.release());
            return Ok(None);
        }
        failpoint!("retrieve.leased");
        let mut found = entries.into_iter().enumerate();
        // The client ends the leases that were booked when it learns that the request failed.
        let give_up = |rest: &mut dyn Iterator<Item = (usize, Option<Arc<Entry>>)>, error| {
            rest.filter_map(|(_, entry)| entry)
                .for_each(|entry| entry.release());
            Err(error)
        };
        let mut ledger = client.ledger.lock();
        if ledger.closed {
            return give_up(&mut found, DirectoryError::UnknownClient);
        }
        ledger.sweep_if_due();
        let first = self.clock.fetch_add(keys.len() as u64, Ordering::Relaxed);
        let since = Instant::now();
        let mut hits = vec![None; keys.len()];
        while let Some((index, entry)) = found.next() {
            let Some(entry) = entry else { continue };
            let (hit, now) = (entry.hit(), first + index as u64);
            entry.touch(now);
            self.shards.note_read(now, &entry);
            let lease = leases[index];
            let booked =
                ledger
                    .leases
                    .grant(lease, &hit.location, Booked::new(entry, since), |ended| {
                        ended.release();
                    });
            if let Err(refused) = booked {
                refused.protects.release();
                let error = match refused.reason {
                    LeaseRefusal::NotBooked(error) => {
                        DirectoryError::LeaseNotBooked(error.to_string())
                    }
                    _ => DirectoryError::BadLease(lease),
                };
                return give_up(&mut found, error);
            }
            hits[index] = Some(hit);
        }
        drop(ledger);
        failpoint!("retrieve.booked");
        let found = hits.iter().flatten().count() as u64;
        self.counters.hits.add(found);
        self.counters.misses.add(keys.len() as u64 - found);
        self.counters.layout_mismatches.add(mismatches.into());
        Ok(Some(Retrieved {
            hits,
            mismatches,
            pending: false,
        }))
    }

    /// Takes a hold on each object of the groups that are there whole.
    pub(crate) fn hold(&self, wanted: Wanted<'_>) -> Found {
        let Wanted {
            keys,
            group,
            prefix,
            expect,
        } = wanted;
        let mut mismatches = 0;
        let mut found = Vec::with_capacity(keys.len());
        for group in keys.chunks(group as usize) {
            let start = found.len();
            for key in group {
                let entry = self.shards.get_if(key, |entry| {
                    let fits = expect.is_none() || entry.meta.layout == expect;
                    if fits {
                        entry.lease();
                    }
                    fits
                });
                match entry {
                    Ok(Some(entry)) => found.push(Some(entry)),
                    Ok(None) => break,
                    Err(()) => {
                        mismatches += 1;
                        break;
                    }
                }
            }
            if found.len() < start + group.len() {
                found
                    .drain(start..)
                    .flatten()
                    .for_each(|entry| entry.release());
                if prefix {
                    break;
                }
                found.resize(start + group.len(), None);
            }
        }
        Found {
            entries: found,
            mismatches,
        }
    }

    /// Where objects lie, without a lease and without counting as a use.
    pub fn locate(&self, keys: &[Key]) -> Vec<Option<Hit>> {
        self.fill_index();
        self.load_asked_for(keys);
        keys.iter()
            .map(|key| self.shards.get(key).map(|entry| entry.hit()))
            .collect()
    }

    /// Pins objects. A pin that exists is not made again.
    pub fn pin(&self, client: ClientId, pins: &[Pin]) -> Result<Vec<PinOutcome>, DirectoryError> {
        let record = self.client(client)?;
        let mut state = self.state.lock();
        let mut book = record.open_book()?;
        let mut pin = |Pin { key, number }: &Pin| -> Result<PinOutcome, DirectoryError> {
            let made = book.pins.get(key);
            if made.is_some_and(|(_, numbers)| numbers.contains(number)) {
                return Ok(PinOutcome::Done);
            }
            let Some(entry) = self.find(&mut state, key) else {
                return Ok(PinOutcome::Absent);
            };
            // Only the writer removes objects, so the object cannot go between the look and the pin.
            state.change(&Change::Pin {
                key: key.clone(),
                client,
                pin: *number,
            })?;
            entry.pin();
            let (_, numbers) = book
                .pins
                .entry(key.clone())
                .or_insert((entry, BTreeSet::new()));
            numbers.insert(*number);
            Ok(PinOutcome::Done)
        };
        let outcomes = pins.iter().map(&mut pin).collect::<Result<Vec<_>, _>>()?;
        drop(book);
        failpoint!("pin.recorded");
        self.flush(state)?;
        failpoint!("pin.flushed");
        Ok(outcomes)
    }

    /// Takes back pins of this client's.
    pub fn unpin(&self, client: ClientId, pins: &[Pin]) -> Result<Vec<PinOutcome>, DirectoryError> {
        let record = self.client(client)?;
        let mut state = self.state.lock();
        let mut book = record.open_book()?;
        let mut unpin = |Pin { key, number }: &Pin| -> Result<PinOutcome, DirectoryError> {
            let Some((entry, numbers)) = book.pins.get_mut(key) else {
                return Ok(PinOutcome::Absent);
            };
            if !numbers.contains(number) {
                return Ok(PinOutcome::Absent);
            }
            state.change(&Change::Unpin {
                key: key.clone(),
                client,
                pin: *number,
            })?;
            entry.unpin();
            numbers.remove(number);
            if numbers.is_empty() {
                book.pins.remove(key);
            }
            Ok(PinOutcome::Done)
        };
        let outcomes = pins.iter().map(&mut unpin).collect::<Result<Vec<_>, _>>()?;
        drop(book);
        failpoint!("unpin.recorded");
        self.flush(state)?;
        failpoint!("unpin.flushed");
        Ok(outcomes)
    }

    /// Removes objects for every later reader.
    pub fn delete(&self, keys: &[Key]) -> Result<Vec<DeleteOutcome>, DirectoryError> {
        let mut state = self.state.lock();
        self.settle(&mut state);
        let mut delete = |key: &Key| -> Result<DeleteOutcome, DirectoryError> {
            let Some(entry) = self.find(&mut state, key) else {
                return Ok(DeleteOutcome::Absent);
            };
            Ok(
                match state.remove(&self.shards, &entry, RemoveReason::Deleted, true)? {
                    Removal::Removed => {
                        self.counters.deletes.increment();
                        DeleteOutcome::Deleted
                    }
                    Removal::Kept => DeleteOutcome::Pinned,
                },
            )
        };
        let outcomes = keys.iter().map(&mut delete).collect::<Result<Vec<_>, _>>();
        if let Err(error) = state.release_retired() {
            tracing::warn!(%error, "pages of deleted objects stay captive for now");
        }
        let outcomes = outcomes?;
        failpoint!("delete.recorded");
        self.flush(state)?;
        failpoint!("delete.flushed");
        Ok(outcomes)
    }

    /// What was counted since the directory was made.
    pub fn counters(&self) -> impl Iterator<Item = &Counter> {
        self.counters.iter()
    }

    /// Calls `read` with the pool, while no change is made.
    pub fn with_pool<T>(&self, read: impl FnOnce(&Pool) -> T) -> T {
        read(&self.state.lock().pool)
    }

    pub(crate) fn client(&self, client: ClientId) -> Result<Arc<Client>, DirectoryError> {
        self.clients
            .read()
            .get(&client)
            .cloned()
            .ok_or(DirectoryError::UnknownClient)
    }
}
