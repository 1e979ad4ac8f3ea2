//! Pages to write: granted, and taken back.

use ondol_catalog::failpoint;
use ondol_memory::{Change, JournalError};
use ondol_shm::{ClientId, Grant, StaleReason};

use crate::directory::{Directory, DirectoryError};
use crate::room::NoRoom;
use crate::state::State;

/// How often a grant waits for objects that are being committed before it says that the pool is full.
pub(crate) const WAITS_FOR_COMMITS: u32 = 3;

/// Why there is no page for a grant.
pub(crate) enum Obstacle {
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

impl Directory {
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
        let mut has_asked = false;
        loop {
            let mut state = self.state.lock();
            self.take_returned_by(&mut state, Some(client));
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
                Err(Obstacle::Refused(DirectoryError::Full(_))) if !has_asked => {
                    has_asked = true;
                    drop(book);
                    drop(state);
                    if let Some(listener) = self.listener.get() {
                        listener.let_go();
                    }
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
    pub(crate) fn grant_one(
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
            // What was evicted could not be freed, as the journal refused that.
            let full = || Obstacle::Refused(DirectoryError::Full(state.breakdown(stride)));
            return if first { Err(full()) } else { Ok(None) };
        };
        state.change(&Change::Grant {
            grant,
            client,
            request,
        })?;
        Ok(Some(grant))
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
}
