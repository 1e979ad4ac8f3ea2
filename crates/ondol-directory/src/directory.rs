use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ondol_catalog::{Counter, Policy, failpoint};
use ondol_memory::{Change, Journal, JournalError, Pool, Position, RemoveReason, StoredObject};
use ondol_plugin::Key;
use ondol_protocol::{
    Breakdown, ClassStats, ClientStats, Commit, CommitOutcome, DeleteOutcome, EngineStats, Hit,
    Listing, ObjectInfo, Pin, PinOutcome, PoolStats, RefusedCommit, Retrieve, Retrieved,
};
use ondol_shm::{ClientId, Grant, LeaseBook, LeaseRef, LeaseRefusal, LeaseTableError, StaleReason};
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::client::{Client, Newcomer, Reclaimed};
use crate::entry::Entry;
use crate::metrics::Counters;
use crate::room::NoRoom;
use crate::shards::Shards;
use crate::state::{Removal, State};
use crate::verify::Verifier;

/// How often a grant waits for objects that are being committed before it says that the pool is full.
const WAITS_FOR_COMMITS: u32 = 3;
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

/// Objects that were found and are held, though no lease is booked yet.
pub(crate) struct Found {
    /// One for each key; it may end before the last key.
    pub(crate) entries: Vec<Option<Arc<Entry>>>,
    /// Objects that were there under another layout.
    pub(crate) mismatches: u32,
}

/// Why there is no page for a grant.
enum Obstacle {
    /// The objects of the last run have to be loaded first.
    Loading,
    Refused(DirectoryError),
}

impl From<NoRoom> for Obstacle {
    fn from(error: NoRoom) -> Self {
        match error {
            NoRoom::Full(breakdown) => Self::Refused(DirectoryError::Full(breakdown)),
            NoRoom::Journal(error) => error.into(),
            NoRoom::Loading => Self::Loading,
        }
    }
}

impl From<JournalError> for Obstacle {
    fn from(error: JournalError) -> Self {
        Self::Refused(error.into())
    }
}

/// The directory of one pool.
#[derive(Debug)]
pub struct Directory {
    pub(crate) shards: Shards,
    /// Counts reads and commits; orders uses of objects.
    pub(crate) clock: AtomicU64,
    pub(crate) state: Mutex<State>,
    pub(crate) clients: RwLock<BTreeMap<ClientId, Arc<Client>>>,
    pub(crate) counters: Counters,
    /// The writer's, to wait for without the writer's lock.
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) verifier: Option<Arc<dyn Verifier>>,
}

impl Directory {
    /// An empty directory over `pool`, every change of which goes to `journal` first.
    pub fn new(pool: Pool, journal: Arc<dyn Journal>, policy: &'static Policy) -> Self {
        Self {
            shards: Shards::with_capacity(0),
            clock: AtomicU64::new(1),
            state: Mutex::new(State::new(pool, Arc::clone(&journal), policy)),
            clients: RwLock::default(),
            counters: Counters::new(),
            journal,
            verifier: None,
        }
    }

    /// Waits, without the writer's lock, until everything that was recorded so far is durable, and makes visible what
    /// waited for that. Nothing is answered before.
    fn flush(&self, state: MutexGuard<'_, State>) -> Result<(), JournalError> {
        let position = self.journal.position();
        let is_pending = !state.pending.is_empty();
        drop(state);
        self.journal.flush(position)?;
        if is_pending {
            failpoint!("commit.flushed");
            self.publish(position);
        }
        Ok(())
    }

    /// Waits until everything that was recorded so far is durable.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn make_durable(&self) -> Result<(), JournalError> {
        self.flush(self.state.lock())
    }

    fn publish(&self, durable: Position) {
        let mut state = self.state.lock();
        state.publish(&self.shards, &self.counters, durable);
    }

    /// Lets a client in, whose leases stand in `lease_table` and, for the next server, in `book`. Names only grow.
    ///
    /// # Errors
    /// [`AttachError`]; if the client was recorded but is not durable, it is known until [`detach`](Self::detach).
    pub fn attach(
        &self,
        client: ClientId,
        who: Newcomer,
        lease_table: BorrowedFd<'_>,
        book: Option<LeaseBook>,
    ) -> Result<(), AttachError> {
        let entry = Arc::new(Client::new(client, who, lease_table, book)?);
        let mut state = self.state.lock();
        state.change(&Change::Attach {
            client,
            process: who.process,
            instance: who.instance,
        })?;
        failpoint!("attach.recorded");
        self.clients.write().insert(client, entry);
        self.flush(state)?;
        failpoint!("attach.flushed");
        Ok(())
    }

    /// Lets a client of the last run come back, whose leases stand in `lease_table`: from now on they end by it.
    ///
    /// # Errors
    /// [`AttachError`]; then it still waits.
    pub fn resume(&self, client: ClientId, lease_table: BorrowedFd<'_>) -> Result<(), AttachError> {
        let client = self.client(client).map_err(|_| AttachError::Unknown)?;
        let mut ledger = client.ledger.lock();
        if !ledger.adopted || ledger.closed {
            return Err(AttachError::Unknown);
        }
        ledger.leases.take_table(lease_table)?;
        ledger.adopted = false;
        self.counters.resumed_clients.increment();
        Ok(())
    }

    /// The client leaves: its pins end now and nothing more is granted to it. Its leases end when their readers drop
    /// them, its grants when they are returned: an address that it may still use is not given to somebody else.
    pub fn leave(&self, client: ClientId) -> Result<Reclaimed, DirectoryError> {
        let record = self.client(client)?;
        let mut state = self.state.lock();
        record.ledger.lock().closed = true;
        let pins = self.end_pins(&mut state, &record)?;
        failpoint!("detach.unpinned");
        self.flush(state)?;
        Ok(Reclaimed {
            pins,
            ..Reclaimed::default()
        })
    }

    /// Whether the client has left and holds neither lease nor grant any more, so that it may be forgotten.
    pub fn is_gone(&self, client: ClientId) -> bool {
        let Ok(record) = self.client(client) else {
            return true;
        };
        let mut ledger = record.ledger.lock();
        ledger.sweep();
        let is_idle = ledger.closed && ledger.leases.is_empty();
        drop(ledger);
        is_idle && self.state.lock().pool.granted_to(client).0 == 0
    }

    /// Forgets a client that is dead, or gone, and takes back what it held.
    ///
    /// # Errors
    /// [`DirectoryError::Journal`]: what was not recorded the client still holds, and it is not forgotten; asked
    /// again, the rest is taken back.
    pub fn detach(&self, client: ClientId) -> Result<Reclaimed, DirectoryError> {
        let mut state = self.state.lock();
        let record = self.client(client)?;
        let mut reclaimed = Reclaimed::default();
        let mut ledger = record.ledger.lock();
        let left = std::mem::replace(&mut ledger.closed, true);
        ledger.sweep();
        reclaimed.leases = ledger.leases.end_all(|entry| entry.release()) as u64;
        drop(ledger);
        self.counters.reclaimed_leases.add(reclaimed.leases);
        if !left {
            self.counters.dead_clients.increment();
        }
        reclaimed.pins = self.end_pins(&mut state, &record)?;
        failpoint!("detach.unpinned");
        for grant in state.pool.grants_of(client) {
            state.change(&Change::Return { grant, client })?;
            reclaimed.grants += 1;
            self.counters.reclaimed_grants.increment();
        }
        failpoint!("detach.returned");
        state.change(&Change::Detach { client })?;
        failpoint!("detach.recorded");
        self.clients.write().remove(&client);
        if let Err(error) = state.release_retired() {
            tracing::warn!(%error, "pages of removed objects stay captive for now");
        }
        // Nobody waits for this answer: if the record is lost with this process, the next one finds the client dead
        // or gone and takes back the same.
        if let Err(error) = self.flush(state) {
            tracing::warn!(%error, %client, "that a client is gone is not durable yet");
        }
        Ok(reclaimed)
    }

    fn end_pins(&self, state: &mut State, client: &Client) -> Result<u64, JournalError> {
        let mut book = client.book.lock();
        // A request that was already on its way finds the book closed, so nothing is given to a client that is gone.
        book.closed = true;
        let mut ended = 0;
        let mut refused = None;
        let mut pins = std::mem::take(&mut book.pins).into_iter();
        'pins: for (key, (entry, mut numbers)) in pins.by_ref() {
            while let Some(&pin) = numbers.first() {
                let change = Change::Unpin {
                    key: key.clone(),
                    client: client.id,
                    pin,
                };
                if let Err(error) = state.change(&change) {
                    refused = Some(error);
                    book.pins.insert(key, (entry, numbers));
                    break 'pins;
                }
                numbers.remove(&pin);
                entry.unpin();
                ended += 1;
            }
        }
        book.pins.extend(pins);
        self.counters.reclaimed_pins.add(ended);
        refused.map_or(Ok(ended), Err)
    }

    /// Grants up to `count` pages of `stride` bytes, at least one. A `request` that was answered before is answered
    /// with those of its pages that are still granted; if there are none, as before.
    ///
    /// # Errors
    /// [`DirectoryError::Full`], [`DirectoryError::ShareExceeded`] beyond `share_limit` bytes granted at once;
    /// a client that holds nothing may have one page of any size. Both are remembered: the same request, should it
    /// come late, grants nothing.
    pub fn grant(
        &self,
        client: ClientId,
        request: u64,
        stride: u64,
        count: u32,
        share_limit: u64,
    ) -> Result<Vec<Grant>, DirectoryError> {
        let record = self.client(client)?;
        let mut waits = 0;
        loop {
            let mut state = self.state.lock();
            let mut book = record.open_book()?;
            let granted = state.pool.granted_under(client, request);
            if !granted.is_empty() {
                drop(book);
                self.flush(state)?;
                return Ok(granted);
            }
            if let Some(answer) = book.answered(request).cloned() {
                return answer;
            }
            match self.grant_pages(&mut state, client, request, stride, count, share_limit) {
                Ok(grants) => {
                    failpoint!("grant.recorded");
                    self.counters.granted_pages.add(grants.len() as u64);
                    book.remember(request, Ok(grants.clone()));
                    drop(book);
                    self.flush(state)?;
                    failpoint!("grant.flushed");
                    return Ok(grants);
                }
                Err(Obstacle::Loading) => {
                    drop(book);
                    drop(state);
                    self.load_all();
                }
                Err(Obstacle::Refused(DirectoryError::Full(_)))
                    if !state.pending.is_empty() && waits < WAITS_FOR_COMMITS =>
                {
                    // Once they are durable they can be evicted.
                    waits += 1;
                    drop(book);
                    self.flush(state)?;
                }
                Err(Obstacle::Refused(error)) => {
                    match error {
                        DirectoryError::Full(_) => self.counters.full.increment(),
                        DirectoryError::ShareExceeded { .. } => {}
                        // Nothing is settled; asked again, it may do.
                        _ => return Err(error),
                    }
                    book.remember(request, Err(error.clone()));
                    return Err(error);
                }
            }
        }
    }

    /// Grants the pages of a request that is new.
    fn grant_pages(
        &self,
        state: &mut State,
        client: ClientId,
        request: u64,
        stride: u64,
        count: u32,
        share_limit: u64,
    ) -> Result<Vec<Grant>, Obstacle> {
        let (_, held) = state.pool.granted_to(client);
        let affordable = share_limit.saturating_sub(held) / stride.max(1);
        let allowed = u64::from(count).min(if held == 0 {
            affordable.max(1)
        } else {
            affordable
        });
        if allowed == 0 {
            return Err(Obstacle::Refused(DirectoryError::ShareExceeded { held }));
        }
        let mut grants = Vec::new();
        while (grants.len() as u64) < allowed {
            match self.grant_one(state, client, request, stride, allowed, grants.is_empty()) {
                Ok(Some(grant)) => grants.push(grant),
                Ok(None) => break,
                // What was granted before must reach the client.
                Err(_) if !grants.is_empty() => break,
                Err(obstacle) => return Err(obstacle),
            }
        }
        Ok(grants)
    }

    /// Grants one page. For the first of a batch room is made; for the others only what is free or carved is used.
    fn grant_one(
        &self,
        state: &mut State,
        client: ClientId,
        request: u64,
        stride: u64,
        wanted: u64,
        first: bool,
    ) -> Result<Option<Grant>, Obstacle> {
        if state.pool.find_free(stride).is_none() {
            if !first && state.pool.plan_carve(stride).is_none() {
                return Ok(None);
            }
            self.settle(state);
            state.make_room(&self.shards, &self.counters, stride, wanted)?;
        }
        let Some(grant) = state.pool.find_free(stride) else {
            return Ok(None);
        };
        state.change(&Change::Grant {
            grant,
            client,
            request,
        })?;
        Ok(Some(grant))
    }

    /// Notes what readers did since: ended leases and the order of reads.
    fn settle(&self, state: &mut State) {
        for client in self.clients.read().values() {
            client.ledger.lock().sweep();
        }
        self.note_reads(state);
    }

    /// Tells the policies what was read since; while objects of the last run are loaded, that waits for their end.
    fn note_reads(&self, state: &mut State) {
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
        // Those who ask for an object meanwhile need not wait for all of them.
        MutexGuard::unlock_fair(state);
        is_loaded
    }

    /// Whether every object of the last run is loaded.
    pub fn is_loaded(&self) -> bool {
        !self.shards.is_loading()
    }

    fn load_all(&self) {
        while !self.load_some() {}
    }

    /// Loads those of these objects that are not, so that one that is not found after this is absent.
    fn load_asked_for(&self, keys: &[Key]) {
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
    fn find(&self, state: &mut State, key: &Key) -> Option<Arc<Entry>> {
        let now = self.clock.load(Ordering::Relaxed);
        state.find(&self.shards, &self.counters, key, now)
    }

    /// Takes back granted pages that were not committed.
    pub fn return_pages(
        &self,
        client: ClientId,
        grants: &[Grant],
    ) -> Result<Vec<Result<(), StaleReason>>, DirectoryError> {
        let mut state = self.state.lock();
        let mut answers = Vec::with_capacity(grants.len());
        for &grant in grants {
            let answer = state.pool.check_grant(client, grant);
            match answer {
                Ok(()) => state.change(&Change::Return { grant, client })?,
                Err(_) => self.counters.stale_returns.increment(),
            }
            answers.push(answer);
        }
        failpoint!("return.recorded");
        self.flush(state)?;
        failpoint!("return.flushed");
        Ok(answers)
    }

    /// Makes objects visible whose bytes are complete. The first registration of a key wins; one that is asked
    /// again for the same page is answered as the first time.
    ///
    /// An object is recorded, then made durable, then visible; until then it is neither found nor evicted, and whoever
    /// commits the same key waits for the same record.
    pub fn commit(
        &self,
        client: ClientId,
        commits: &[Commit],
    ) -> Result<Vec<CommitOutcome>, DirectoryError> {
        self.client(client)?;
        let first = self
            .clock
            .fetch_add(commits.len() as u64, Ordering::Relaxed);
        let mut state = self.state.lock();
        // Or else what was read before would count as used after what is stored now.
        self.note_reads(&mut state);
        let mut outcomes = Vec::with_capacity(commits.len());
        for (commit, now) in commits.iter().zip(first..) {
            let Commit {
                key,
                location,
                meta,
            } = commit;
            let pending = state.pending.get(key).cloned();
            if let Some(present) = pending.or_else(|| self.find(&mut state, key)) {
                let again = present.location == *location && present.owner == client;
                if !again {
                    self.counters.duplicates.increment();
                }
                outcomes.push(if again {
                    CommitOutcome::Stored
                } else {
                    CommitOutcome::AlreadyPresent
                });
                continue;
            }
            if let Err(refused) = check_commit(&state.pool, client, commit) {
                self.counters.refused_commits.increment();
                outcomes.push(CommitOutcome::Refused(refused));
                continue;
            }
            let object = StoredObject {
                location: *location,
                meta: *meta,
                client,
            };
            if let Err(error) = state.commit(key, object, now) {
                tracing::warn!(%error, %key, "commit not recorded");
                outcomes.push(CommitOutcome::Refused(RefusedCommit::NotRecorded));
                continue;
            }
            outcomes.push(CommitOutcome::Stored);
        }
        failpoint!("commit.recorded");
        self.flush(state)?;
        failpoint!("commit.published");
        Ok(outcomes)
    }

    /// Finds and leases objects in one step; see [`Retrieve`].
    pub fn retrieve(
        &self,
        client: ClientId,
        request: &Retrieve,
    ) -> Result<Retrieved, DirectoryError> {
        let Retrieve {
            keys,
            leases,
            group,
            ..
        } = request;
        if *group == 0 || leases.len() != keys.len() {
            return Err(DirectoryError::Malformed(
                "one lease for each key and groups of at least one are expected",
            ));
        }
        let client = self.client(client)?;
        self.load_asked_for(keys);
        let Found {
            entries,
            mismatches,
        } = self.hold_verified(request)?;
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
        let mut hits = vec![None; keys.len()];
        while let Some((index, entry)) = found.next() {
            let Some(entry) = entry else { continue };
            let (hit, now) = (entry.hit(), first + index as u64);
            entry.touch(now);
            self.shards.note_read(now, &entry);
            let lease = leases[index];
            let booked = ledger
                .leases
                .grant(lease, &hit.location, entry, |ended| ended.release());
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
        Ok(Retrieved { hits, mismatches })
    }

    /// Takes a hold on each object of the groups that are there whole.
    pub(crate) fn hold(&self, request: &Retrieve) -> Found {
        let Retrieve {
            keys,
            group,
            prefix,
            expect,
            ..
        } = request;
        let mut mismatches = 0;
        let mut found = Vec::with_capacity(keys.len());
        for group in keys.chunks(*group as usize) {
            let start = found.len();
            for key in group {
                let entry = self.shards.get_if(key, |entry| {
                    let fits = expect.is_none() || entry.meta.layout == *expect;
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
                if *prefix {
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
        let outcomes = keys
            .iter()
            .map(&mut delete)
            .collect::<Result<Vec<_>, _>>()?;
        failpoint!("delete.recorded");
        self.flush(state)?;
        failpoint!("delete.flushed");
        Ok(outcomes)
    }

    /// Visible objects in the order of their keys, from the first behind `after`, at most `limit`,
    /// or one if that is 0.
    pub fn list(&self, after: Option<&Key>, limit: u32) -> Listing {
        // None at all would look like an end that is none.
        let limit = limit.max(1) as usize;
        self.load_all();
        let mut keys: BTreeSet<Key> = BTreeSet::new();
        let mut more = false;
        self.shards.for_each(|entry| {
            let key = &entry.key;
            let is_full = keys.len() == limit;
            if after.is_some_and(|after| key <= after) {
                return;
            }
            if is_full && keys.last().is_some_and(|last| key > last) {
                more = true;
                return;
            }
            keys.insert(key.clone());
            if is_full {
                keys.pop_last();
                more = true;
            }
        });
        let objects = keys.into_iter().filter_map(|key| {
            let entry = self.shards.get(&key)?;
            let (leases, pins) = (entry.leases(), entry.pins());
            Some(ObjectInfo {
                key,
                location: entry.location,
                meta: entry.meta,
                leases,
                pins,
            })
        });
        Listing {
            objects: objects.collect(),
            more,
        }
    }

    /// Figures of pool and directory; `pool.devices` and the clients' process ids are left to the caller.
    pub fn stats(&self) -> EngineStats {
        let mut state = self.state.lock();
        self.settle(&mut state);
        if let Err(error) = state.release_retired() {
            tracing::warn!(%error, "pages of removed objects stay captive");
        }
        let extents = state.pool.extents();
        let pool = PoolStats {
            devices: Vec::new(),
            total_bytes: extents.total_bytes(),
            free_bytes: extents.free_bytes(),
            largest_free_extent: extents.find_largest().map_or(0, |extent| extent.len),
            regions: state.pool.regions().count() as u64,
        };
        let classes = state.pool.classes().map(|(stride, regions)| {
            let mut class = ClassStats {
                stride,
                ..ClassStats::default()
            };
            for (_, region) in regions {
                class.regions += 1;
                class.pages += u64::from(region.page_count());
                class.free += u64::from(region.free_count());
                class.granted += u64::from(region.granted_count());
                class.committed += u64::from(region.committed_count());
            }
            class
        });
        let classes = classes.collect();
        let clients = self.clients.read();
        let clients = clients.values().map(|client| {
            let (granted_pages, granted_bytes) = state.pool.granted_to(client.id);
            let usage = state.usage.get(&client.id).copied().unwrap_or_default();
            ClientStats {
                id: client.id.0,
                pid: 0,
                granted_pages,
                granted_bytes,
                leases: client.ledger.lock().leases.len() as u64,
                pins: client.book.lock().pin_count(),
                objects: usage.objects,
                object_bytes: usage.bytes,
            }
        });
        EngineStats {
            pool,
            classes,
            clients: clients.collect(),
            objects: (state.objects.len() + state.unloaded.len()) as u64,
            object_bytes: state.usage.values().map(|usage| usage.bytes).sum(),
            retired: state.retired.len() as u64,
            policy: state.policy_name().to_owned(),
            counters: self
                .counters()
                .map(|counter| (counter.metric().name.to_owned(), counter.get()))
                .collect(),
        }
    }

    /// What was counted since the directory was made.
    pub fn counters(&self) -> impl Iterator<Item = &Counter> {
        self.counters.iter()
    }

    /// Calls `read` with the pool, while no change is made.
    pub fn with_pool<T>(&self, read: impl FnOnce(&Pool) -> T) -> T {
        read(&self.state.lock().pool)
    }

    fn client(&self, client: ClientId) -> Result<Arc<Client>, DirectoryError> {
        self.clients
            .read()
            .get(&client)
            .cloned()
            .ok_or(DirectoryError::UnknownClient)
    }
}

fn check_commit(pool: &Pool, client: ClientId, commit: &Commit) -> Result<(), RefusedCommit> {
    let location = commit.location;
    pool.check_grant(
        client,
        Grant {
            page: location.page,
            generation: location.generation,
        },
    )?;
    let stride = pool
        .region(location.page.region)
        .map_or(0, |region| region.stride());
    if location.len > stride {
        return Err(RefusedCommit::TooLong {
            len: location.len,
            stride,
        });
    }
    Ok(())
}
