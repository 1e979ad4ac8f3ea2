use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ondol_catalog::{Counter, Policy};
use ondol_memory::{Change, Journal, JournalError, Pool, RemoveReason};
use ondol_plugin::Key;
use ondol_protocol::{
    Breakdown, ClassStats, ClientStats, Commit, CommitOutcome, DeleteOutcome, EngineStats, Hit,
    Listing, ObjectInfo, Pin, PinOutcome, PoolStats, RefusedCommit, Retrieve, Retrieved,
};
use ondol_shm::{ClientId, Grant, LeaseRef, LeaseTableError, StaleReason};
use parking_lot::{Mutex, RwLock};

use crate::client::{Client, Reclaimed};
use crate::entry::Entry;
use crate::metrics::Counters;
use crate::room::NoRoom;
use crate::shards::Shards;
use crate::state::{Removal, State};

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
    /// The journal refused.
    Journal(JournalError),
}

impl From<JournalError> for DirectoryError {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

impl From<NoRoom> for DirectoryError {
    fn from(error: NoRoom) -> Self {
        match error {
            NoRoom::Full(breakdown) => Self::Full(breakdown),
            NoRoom::Journal(error) => Self::Journal(error),
        }
    }
}

/// The directory of one pool.
#[derive(Debug)]
pub struct Directory {
    shards: Shards,
    /// Counts reads and commits; orders uses of objects.
    clock: AtomicU64,
    state: Mutex<State>,
    clients: RwLock<BTreeMap<ClientId, Arc<Client>>>,
    counters: Counters,
}

impl Directory {
    /// An empty directory over `pool`, every change of which goes to `journal` first.
    pub fn new(pool: Pool, journal: Box<dyn Journal>, policy: &'static Policy) -> Self {
        Self {
            shards: Shards::new(),
            clock: AtomicU64::new(1),
            state: Mutex::new(State::new(pool, journal, policy)),
            clients: RwLock::default(),
            counters: Counters::new(),
        }
    }

    /// Lets a client in, whose leases stand in `lease_table`.
    ///
    /// # Errors
    /// [`LeaseTableError`] if that is no lease table.
    pub fn attach(
        &self,
        client: ClientId,
        lease_table: BorrowedFd<'_>,
    ) -> Result<(), LeaseTableError> {
        let entry = Arc::new(Client::new(client, lease_table)?);
        self.clients.write().insert(client, entry);
        Ok(())
    }

    /// The client leaves: its pins end now and nothing more is granted to it. Its leases end when their readers drop
    /// them, its grants when they are returned: an address that it may still use is not given to somebody else.
    pub fn leave(&self, client: ClientId) -> Result<Reclaimed, DirectoryError> {
        let record = self.client(client)?;
        let mut state = self.state.lock();
        record.ledger.lock().closed = true;
        let pins = self.end_pins(&mut state, &record)?;
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
        for grant in state.pool.grants_of(client) {
            state.change(&Change::Return { grant, client })?;
            reclaimed.grants += 1;
            self.counters.reclaimed_grants.increment();
        }
        self.clients.write().remove(&client);
        if let Err(error) = state.release_retired() {
            tracing::warn!(%error, "pages of removed objects stay captive for now");
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

    /// Grants up to `count` pages of `stride` bytes, at least one. A `request` that was answered before is
    /// answered with the same pages.
    ///
    /// # Errors
    /// [`DirectoryError::Full`], [`DirectoryError::ShareExceeded`] beyond `share_limit` bytes granted at once;
    /// a client that holds nothing may have one page of any size.
    pub fn grant(
        &self,
        client: ClientId,
        request: u64,
        stride: u64,
        count: u32,
        share_limit: u64,
    ) -> Result<Vec<Grant>, DirectoryError> {
        let record = self.client(client)?;
        let mut state = self.state.lock();
        let mut book = record.open_book()?;
        if let Some(grants) = book.answered(request) {
            return Ok(grants.to_vec());
        }
        let (_, held) = state.pool.granted_to(client);
        let affordable = share_limit.saturating_sub(held) / stride.max(1);
        let allowed = u64::from(count).min(if held == 0 {
            affordable.max(1)
        } else {
            affordable
        });
        if allowed == 0 {
            return Err(DirectoryError::ShareExceeded { held });
        }
        let mut grants = Vec::new();
        while (grants.len() as u64) < allowed {
            match self.grant_one(
                &mut state,
                client,
                request,
                stride,
                allowed,
                grants.is_empty(),
            ) {
                Ok(Some(grant)) => grants.push(grant),
                Ok(None) => break,
                // What was granted before must reach the client.
                Err(_) if !grants.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        self.counters.granted_pages.add(grants.len() as u64);
        book.remember(request, &grants);
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
    ) -> Result<Option<Grant>, DirectoryError> {
        if state.pool.find_free(stride).is_none() {
            if !first && state.pool.plan_carve(stride).is_none() {
                return Ok(None);
            }
            self.settle(state);
            state
                .make_room(&self.shards, &self.counters, stride, wanted)
                .inspect_err(|_| {
                    self.counters.full.increment();
                })?;
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

    /// Tells the policies what was read since.
    fn note_reads(&self, state: &mut State) {
        let mut reads: Vec<_> = Vec::new();
        for shard in self.shards.iter() {
            reads.extend(std::iter::from_fn(|| shard.reads.pop()));
        }
        reads.sort_unstable();
        for (_, stride, id) in reads {
            if let Some(policy) = state.policies.get_mut(&stride) {
                policy.accessed(id);
            }
        }
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
        Ok(answers)
    }

    /// Makes objects visible whose bytes are complete. The first registration of a key wins; one that is asked
    /// again for the same page is answered as the first time.
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
            if let Some(present) = self.shards.get(key) {
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
            if let Err(error) = state.insert(&self.shards, client, key, *location, *meta, now) {
                tracing::warn!(%error, %key, "commit not recorded");
                outcomes.push(CommitOutcome::Refused(RefusedCommit::NotRecorded));
                continue;
            }
            self.counters.commits.increment();
            self.counters.committed_bytes.add(location.len);
            outcomes.push(CommitOutcome::Stored);
        }
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
            prefix,
            expect,
        } = request;
        if *group == 0 || leases.len() != keys.len() {
            return Err(DirectoryError::Malformed(
                "one lease for each key and groups of at least one are expected",
            ));
        }
        let client = self.client(client)?;
        let mut ledger = client.ledger.lock();
        if ledger.closed {
            return Err(DirectoryError::UnknownClient);
        }
        ledger.sweep_if_due();
        let first = self.clock.fetch_add(keys.len() as u64, Ordering::Relaxed);
        let mut answer = Retrieved {
            hits: vec![None; keys.len()],
            mismatches: 0,
        };
        let mut found: Vec<Arc<Entry>> = Vec::with_capacity((*group as usize).min(keys.len()));
        for (start, group) in (0..)
            .step_by(*group as usize)
            .zip(keys.chunks(*group as usize))
        {
            found.clear();
            for key in group {
                let objects = self.shards.of(key).read();
                let Some(entry) = objects.get(key) else { break };
                if expect.is_some() && entry.meta.layout != *expect {
                    answer.mismatches += 1;
                    break;
                }
                entry.lease();
                found.push(Arc::clone(entry));
            }
            if found.len() < group.len() {
                found.drain(..).for_each(|entry| entry.release());
                if *prefix {
                    break;
                }
                continue;
            }
            let mut refused = None;
            for (index, entry) in (start..).zip(found.drain(..)) {
                let (hit, now) = (entry.hit(), first + index as u64);
                entry.touch(now);
                let read = (now, entry.stride, entry.id);
                let _ = self.shards.shard(&entry.key).reads.force_push(read);
                let booked = ledger
                    .leases
                    .grant(leases[index], entry, |ended| ended.release());
                if let Err(entry) = booked {
                    entry.release();
                    refused = Some(leases[index]);
                } else {
                    answer.hits[index] = Some(hit);
                }
            }
            // The client ends the leases that were booked when it learns that the request failed.
            if let Some(lease) = refused {
                return Err(DirectoryError::BadLease(lease));
            }
        }
        let hits = answer.hits.iter().flatten().count() as u64;
        self.counters.hits.add(hits);
        self.counters.misses.add(keys.len() as u64 - hits);
        self.counters
            .layout_mismatches
            .add(answer.mismatches.into());
        Ok(answer)
    }

    /// Where objects lie, without a lease and without counting as a use.
    pub fn locate(&self, keys: &[Key]) -> Vec<Option<Hit>> {
        keys.iter()
            .map(|key| self.shards.get(key).map(|entry| entry.hit()))
            .collect()
    }

    /// Pins objects.
    pub fn pin(&self, client: ClientId, pins: &[Pin]) -> Result<Vec<PinOutcome>, DirectoryError> {
        let record = self.client(client)?;
        let mut state = self.state.lock();
        let mut book = record.open_book()?;
        let mut pin = |Pin { key, number }: &Pin| -> Result<PinOutcome, DirectoryError> {
            let made = book.pins.get(key);
            if made.is_some_and(|(_, numbers)| numbers.contains(number)) {
                return Ok(PinOutcome::Done);
            }
            let Some(entry) = self.shards.get(key) else {
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
        pins.iter().map(&mut pin).collect()
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
        pins.iter().map(&mut unpin).collect()
    }

    /// Removes objects for every later reader.
    pub fn delete(&self, keys: &[Key]) -> Result<Vec<DeleteOutcome>, DirectoryError> {
        let mut state = self.state.lock();
        self.settle(&mut state);
        let mut delete = |key: &Key| -> Result<DeleteOutcome, DirectoryError> {
            let Some(entry) = self.shards.get(key) else {
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
        keys.iter().map(&mut delete).collect()
    }

    /// Visible objects in the order of their keys, from the first behind `after`, at most `limit`,
    /// or one if that is 0.
    pub fn list(&self, after: Option<&Key>, limit: u32) -> Listing {
        // None at all would look like an end that is none.
        let limit = limit.max(1) as usize;
        let mut keys: BTreeSet<Key> = BTreeSet::new();
        let mut more = false;
        for shard in self.shards.iter() {
            for key in shard
                .objects
                .read()
                .keys()
                .filter(|key| after.is_none_or(|after| *key > after))
            {
                keys.insert(key.clone());
                if keys.len() > limit {
                    keys.pop_last();
                    more = true;
                }
            }
        }
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
            objects: state.objects.len() as u64,
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
