//! Objects become visible.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ondol_catalog::failpoint;
use ondol_memory::{JournalError, Pool, Position, StoredObject};
use ondol_plugin::Key;
use ondol_protocol::{Commit, CommitOutcome, CommitOutcomes, RefusedCommit};
use ondol_shm::{ClientId, Grant};
use parking_lot::MutexGuard;

use crate::directory::{Directory, DirectoryError};
use crate::state::State;

/// Clients are asked what they found, before they forget the oldest of it, whenever so many objects were committed.
const ASKED_EVERY: usize = 64;

/// Hears of objects that became visible, other than by [`Directory::admit`], and is asked for room.
pub trait CommitListener: Send + Sync + fmt::Debug {
    /// These objects are visible, with their lengths in bytes. Called by the thread that committed them, or one that
    /// made them durable, under no lock; what was committed later may be told earlier.
    fn committed(&self, objects: &[(Key, u64)]);

    /// A client wants a page and there is none: lets go of objects that are held for nobody yet; whether there were any.
    /// Called under no lock.
    fn let_go(&self) -> bool {
        false
    }

    /// Whether [`used`](Self::used) is to be called.
    fn counts_uses(&self) -> bool {
        false
    }

    /// Clients have found these objects by themselves. Called now and then, under no lock; some finds are never told.
    fn used(&self, _keys: &[Key]) {}
}

impl Directory {
    /// From now on `listener` hears of every object that becomes visible; the first one that is set stays.
    pub fn set_commit_listener(&self, listener: Arc<dyn CommitListener>) {
        let _ = self.listener.set(listener);
    }

    /// Waits, without the writer's lock, until everything that was recorded so far is durable, and makes visible what
    /// waited for that. Nothing is answered before.
    pub(crate) fn flush(&self, mut state: MutexGuard<'_, State>) -> Result<(), JournalError> {
        let position = self.journal.position();
        let is_pending = !state.pending.is_empty();
        let have_returned = state.slots.have_returned();
        let used = std::mem::take(&mut state.used);
        drop(state);
        if !used.is_empty()
            && let Some(listener) = self.listener.get()
        {
            listener.used(&used);
        }
        self.journal.flush(position)?;
        if is_pending {
            failpoint!("commit.flushed");
            self.publish(position);
        } else if have_returned {
            self.state.lock().slots.drop_returned(position);
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
        let listener = self.listener.get();
        let mut committed = Vec::new();
        let mut state = self.state.lock();
        state.publish(&self.shards, &self.counters, durable, |entry| {
            // What comes from a backend need not go there.
            if listener.is_some() && !entry.is_stored() {
                committed.push((entry.key.clone(), entry.location.len));
            }
        });
        state.slots.drop_returned(durable);
        let plan = state.shelf.plan();
        drop(state);
        self.make_index(plan);
        if let Some(listener) = listener
            && !committed.is_empty()
        {
            listener.committed(&committed);
        }
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
    ) -> Result<CommitOutcomes, DirectoryError> {
        self.client(client)?;
        let first = self
            .clock
            .fetch_add(commits.len() as u64, Ordering::Relaxed);
        let mut state = self.state.lock();
        if state.unasked >= ASKED_EVERY {
            self.take_hits(&mut state);
        }
        // Or else what was read before would count as used after what is stored now.
        self.note_reads(&mut state);
        let mut outcomes = CommitOutcomes::with_capacity(commits.len());
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
}

pub(crate) fn check_commit(
    pool: &Pool,
    client: ClientId,
    commit: &Commit,
) -> Result<(), RefusedCommit> {
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
