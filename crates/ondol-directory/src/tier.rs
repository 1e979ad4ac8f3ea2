//! What the storage tier does here. It is a client of the engine's own: its leases end and its pages come back without
//! a message, it has no share, and what it does counts as nobody's use of an object.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use ondol_catalog::failpoint;
use ondol_memory::{RemoveReason, StoredObject};
use ondol_plugin::Key;
use ondol_protocol::{Commit, Hit, RefusedCommit};
use ondol_shm::{ClientId, Grant, LeaseRef, LeaseRefusal};

use crate::client::{Booked, Ledger};
use crate::commits::check_commit;
use crate::directory::{Directory, DirectoryError, Found, Wanted};
use crate::entry::Entry;
use crate::grants::{Obstacle, WAITS_FOR_COMMITS};
use crate::state::Removal;

/// An object that was loaded and is to be visible and leased in one step.
#[derive(Clone, Debug)]
pub struct Admission {
    /// The object, in a page that is granted to the storage tier.
    pub commit: Commit,
    /// The lease that is proposed; without one the object is visible only.
    pub lease: Option<LeaseRef>,
}

/// What became of an [`Admission`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admitted {
    /// The object is visible and, if it was proposed, leased.
    Visible(Hit),
    /// An object of that name was there before, and that one is leased. The page stays granted.
    Present(Hit),
    /// An object of that name was there before and has yet to be compared with its checksum, so it is not leased. The
    /// page stays granted.
    Unverified,
    /// The object is visible, though its lease could not be booked.
    Unleased,
    /// Nothing changed.
    Refused(RefusedCommit),
}

impl Directory {
    /// Says that this client is the storage tier: what it holds counts as captive, its pages come back by
    /// [`returns`](Self::returns), and objects that are not stored in a backend are evicted later than others.
    pub fn set_tier(&self, client: ClientId) {
        self.state.lock().tier = Some(client);
    }

    /// The pages that are granted to the storage tier, and their bytes.
    pub fn tier_grants(&self) -> (u64, u64) {
        let mut state = self.state.lock();
        self.take_returned(&mut state);
        state
            .tier
            .map_or((0, 0), |tier| state.pool.granted_to(tier))
    }

    /// Leases what there is of these objects. `propose` is asked for a lease for each; where it has none, the object is
    /// not leased.
    ///
    /// # Errors
    /// [`DirectoryError`]; the client ends the leases that it proposed.
    pub fn lease(
        &self,
        client: ClientId,
        keys: &[Key],
        mut propose: impl FnMut() -> Option<LeaseRef>,
    ) -> Result<Vec<Option<Hit>>, DirectoryError> {
        let record = self.client(client)?;
        self.load_asked_for(keys);
        let Found { entries, .. } = self.hold_verified(Wanted {
            keys,
            group: 1,
            prefix: false,
            expect: None,
        })?;
        let mut ledger = record.ledger.lock();
        if ledger.closed {
            entries.iter().flatten().for_each(|entry| entry.release());
            return Err(DirectoryError::UnknownClient);
        }
        ledger.sweep_if_due();
        let since = Instant::now();
        let mut refused = None;
        let hits = entries
            .into_iter()
            .map(|entry| {
                let entry = entry?;
                let hit = entry.hit();
                let Some(lease) = propose() else {
                    entry.release();
                    self.counters.unleased.increment();
                    return None;
                };
                match book(&mut ledger, lease, entry, since) {
                    Ok(()) => Some(hit),
                    Err(error) => {
                        refused = Some(error);
                        None
                    }
                }
            })
            .collect();
        refused.map_or(Ok(hits), Err)
    }

    /// Which of these objects are there; `accept` may ask for more.
    fn which(&self, keys: &[Key], mut accept: impl FnMut(usize, &Entry)) {
        self.load_asked_for(keys);
        for (index, key) in keys.iter().enumerate() {
            self.shards.look(key, |entry| accept(index, entry));
        }
    }

    /// Calls `found` with the place of each of these keys whose object is there.
    pub fn find_all(&self, keys: &[Key], mut found: impl FnMut(usize)) {
        self.which(keys, |index, _| found(index));
    }

    /// Calls `found` with the place of each of these keys whose object is there and not known to be in a backend.
    pub fn find_unstored(&self, keys: &[Key], mut found: impl FnMut(usize)) {
        self.which(keys, |index, entry| {
            if !entry.is_stored() {
                found(index);
            }
        });
    }

    /// Notes whether a backend has these objects, too.
    pub fn mark_stored(&self, keys: &[Key], stored: bool) {
        self.which(keys, |_, entry| entry.set_stored(stored));
    }

    /// The visible objects of one part of the directory that are not known to be in a backend, with their lengths; `None`
    /// behind the last part. All parts together are all objects.
    pub fn unstored_part(&self, part: usize) -> Option<Vec<(Key, u64)>> {
        self.part_of(part, |entry| !entry.is_stored())
    }

    /// The visible objects of one part of the directory, with their lengths; `None` behind the last part.
    pub fn part(&self, part: usize) -> Option<Vec<(Key, u64)>> {
        self.part_of(part, |_| true)
    }

    fn part_of(&self, part: usize, wanted: fn(&Entry) -> bool) -> Option<Vec<(Key, u64)>> {
        if part == 0 {
            self.load_all();
        }
        let mut objects = Vec::new();
        self.shards.for_each_of(part, |entry| {
            if wanted(entry) {
                objects.push((entry.key.clone(), entry.location.len));
            }
        })?;
        Some(objects)
    }

    /// Grants `count` pages of `stride` bytes, or as many as can be freed.
    ///
    /// # Errors
    /// [`DirectoryError::Full`] if not even one can be.
    pub fn grant_all(
        &self,
        client: ClientId,
        request: u64,
        stride: u64,
        count: usize,
    ) -> Result<Vec<Grant>, DirectoryError> {
        let record = self.client(client)?;
        let mut grants = Vec::with_capacity(count);
        let mut waits = 0;
        let mut obstacle = Ok(());
        let mut state = self.state.lock();
        drop(record.open_book()?);
        self.take_returned(&mut state);
        while grants.len() < count {
            let wanted = (count - grants.len()) as u64;
            match self.grant_one(&mut state, client, request, stride, wanted, true) {
                Ok(Some(grant)) => grants.push(grant),
                Ok(None) => break,
                Err(Obstacle::Loading) => {
                    drop(state);
                    self.load_all();
                    state = self.state.lock();
                }
                Err(Obstacle::Refused(DirectoryError::Full(_)))
                    if !state.pending.is_empty() && waits < WAITS_FOR_COMMITS =>
                {
                    // Once they are durable they can be evicted.
                    waits += 1;
                    let flushed = self.flush(state);
                    state = self.state.lock();
                    if let Err(error) = flushed {
                        obstacle = Err(error.into());
                        break;
                    }
                }
                Err(Obstacle::Refused(error)) => {
                    obstacle = Err(error);
                    break;
                }
            }
        }
        failpoint!("grant.recorded");
        self.counters.granted_pages.add(grants.len() as u64);
        if let Err(error) = self.flush(state) {
            // Whether they are granted is not settled, so nobody may write them.
            grants
                .into_iter()
                .for_each(|grant| self.returns.push(grant));
            return Err(error.into());
        }
        failpoint!("grant.flushed");
        match obstacle {
            Err(error) if grants.is_empty() => {
                if matches!(error, DirectoryError::Full(_)) {
                    self.counters.full.increment();
                }
                Err(error)
            }
            _ => Ok(grants),
        }
    }

    /// Makes objects visible that were loaded from a backend, and leases them before anybody could evict them. Where an
    /// object of that name is there, or is being committed, that one is leased. Nobody hears of it as a commit.
    ///
    /// # Errors
    /// [`DirectoryError`]; then nothing is leased, once the client has ended the leases that it proposed.
    pub fn admit(
        &self,
        client: ClientId,
        admissions: &[Admission],
    ) -> Result<Vec<Admitted>, DirectoryError> {
        let record = self.client(client)?;
        let first = self
            .clock
            .fetch_add(admissions.len() as u64, Ordering::Relaxed);
        let mut state = self.state.lock();
        self.note_reads(&mut state);
        let mut ledger = record.ledger.lock();
        if ledger.closed {
            return Err(DirectoryError::UnknownClient);
        }
        ledger.sweep_if_due();
        let since = Instant::now();
        let mut outcomes = Vec::with_capacity(admissions.len());
        for (Admission { commit, lease }, now) in admissions.iter().zip(first..) {
            let mut hold = |entry: Arc<Entry>, outcome: fn(Hit) -> Admitted| {
                let hit = entry.hit();
                let Some(lease) = *lease else {
                    return outcome(hit);
                };
                entry.lease();
                match book(&mut ledger, lease, entry, since) {
                    Ok(()) => outcome(hit),
                    Err(error) => {
                        tracing::warn!(?error, "an object that was loaded is not leased");
                        Admitted::Unleased
                    }
                }
            };
            let Commit {
                key,
                location,
                meta,
            } = commit;
            let pending = state.pending.get(key).cloned();
            if let Some(present) = pending.or_else(|| self.find(&mut state, key)) {
                self.counters.duplicates.increment();
                present.set_stored(true);
                outcomes.push(if present.is_unverified() {
                    Admitted::Unverified
                } else {
                    match hold(present, Admitted::Present) {
                        // The page is the client's still.
                        Admitted::Unleased => Admitted::Unverified,
                        present => present,
                    }
                });
                continue;
            }
            if let Err(refused) = check_commit(&state.pool, client, commit) {
                self.counters.refused_commits.increment();
                outcomes.push(Admitted::Refused(refused));
                continue;
            }
            let object = StoredObject {
                location: *location,
                meta: *meta,
                client,
            };
            match state.commit(key, object, now) {
                Ok(entry) => {
                    entry.set_stored(true);
                    self.counters.admitted.increment();
                    outcomes.push(hold(entry, Admitted::Visible));
                }
                Err(error) => {
                    tracing::warn!(%error, %key, "admission not recorded");
                    outcomes.push(Admitted::Refused(RefusedCommit::NotRecorded));
                }
            }
        }
        drop(ledger);
        failpoint!("admit.recorded");
        self.flush(state)?;
        failpoint!("admit.published");
        Ok(outcomes)
    }

    /// Removes objects that a backend has, unless somebody holds them; how many.
    ///
    /// # Errors
    /// [`DirectoryError::Journal`]; those that were removed before are gone.
    pub fn let_go(&self, keys: &[Key]) -> Result<u64, DirectoryError> {
        let mut state = self.state.lock();
        self.settle(&mut state);
        state.slots.scan();
        let mut gone = 0;
        let mut refused = Ok(());
        for key in keys {
            let Some(entry) = self.shards.get(key) else {
                continue;
            };
            match state.remove(&self.shards, &entry, RemoveReason::Evicted, false) {
                Ok(Removal::Removed) => {
                    self.counters.let_go.increment();
                    gone += 1;
                }
                Ok(Removal::Kept) => {}
                Err(error) => {
                    refused = Err(error);
                    break;
                }
            }
        }
        let released = state.release_retired();
        refused.and(released)?;
        Ok(gone)
    }

    /// Counts objects that a client found because they were brought from storage while it waited.
    pub fn count_l2_hits(&self, client: ClientId, hits: u64) {
        self.counters.l2_hits.add(hits);
        if let Ok(client) = self.client(client) {
            client.l2_hits.fetch_add(hits, Ordering::Relaxed);
        }
    }

    /// Frees the pages that the storage tier has given back, and makes that durable.
    ///
    /// # Errors
    /// [`DirectoryError::Journal`].
    pub fn flush_returns(&self) -> Result<(), DirectoryError> {
        let mut state = self.state.lock();
        self.take_returned(&mut state);
        self.flush(state)?;
        Ok(())
    }
}

/// Books a lease on an object that is held; if that fails, it is not held any more.
fn book(
    ledger: &mut Ledger,
    lease: LeaseRef,
    entry: Arc<Entry>,
    since: Instant,
) -> Result<(), DirectoryError> {
    let location = entry.location;
    let booked = ledger
        .leases
        .grant(lease, &location, Booked::new(entry, since), |ended| {
            ended.release();
        });
    booked.map_err(|refused| {
        refused.protects.release();
        match refused.reason {
            LeaseRefusal::NotBooked(error) => DirectoryError::LeaseNotBooked(error.to_string()),
            _ => DirectoryError::BadLease(lease),
        }
    })
}
