//! Clients on this host find objects by themselves.

use std::sync::atomic::Ordering;

use ondol_protocol::IndexFiles;
use ondol_shm::{ClientId, SlotTableView};
use parking_lot::MutexGuard;

use crate::directory::{Directory, DirectoryError};
use crate::index::{MOVED_AT_ONCE, Plan};
use crate::state::State;

/// Keys of used objects that are kept for the listener; further ones it does not hear of.
const REMEMBERED_USES: usize = 4096;

impl Directory {
    /// From now on there is an index that clients read by themselves, those that have a slot table. Without memory for it
    /// they go on to ask.
    pub fn open_index(&self) {
        let mut state = self.state.lock();
        let objects = (state.objects.len() + state.unloaded.len()) as u64;
        let pool_bytes = state.pool.extents().total_bytes();
        let plan = state.shelf.open(pool_bytes, objects);
        drop(state);
        self.make_index(plan);
    }

    /// Makes what was planned under the writer's lock, without it.
    pub(crate) fn make_index(&self, plan: Option<Plan>) {
        let Some(plan) = plan else { return };
        let made = plan.make();
        let mut state = self.state.lock();
        let State { shelf, objects, .. } = &mut *state;
        shelf.begin(plan, made, objects);
        self.fill(state);
    }

    /// Goes on to fill a larger index, if nobody else is at work. Commits do that too, but when none come the index would
    /// never be complete, and all that is missing in it would be asked for.
    pub(crate) fn fill_index(&self) {
        if self.is_filling.load(Ordering::Relaxed)
            && let Some(state) = self.state.try_lock()
        {
            self.fill(state);
        }
    }

    fn fill(&self, mut state: MutexGuard<'_, State>) {
        state.build_index(MOVED_AT_ONCE);
        let is_filling = state.shelf.is_filling();
        self.is_filling.store(is_filling, Ordering::Relaxed);
        // If that one is full as well.
        let plan = state.shelf.plan();
        drop(state);
        self.make_index(plan);
    }

    /// There is no index any more: from now on clients ask. What they hold they go on to hold.
    pub fn close_index(&self) {
        let mut state = self.state.lock();
        state.shelf.close();
        state.slots.set_index(0);
    }

    /// The client reads the index by itself and writes down in this table what it reads. To be called when it was let in,
    /// before it can ask for either; of one that is dead already nothing is kept.
    pub fn set_slots(&self, client: ClientId, slots: SlotTableView) {
        let mut state = self.state.lock();
        if self.client(client).is_ok() {
            state.slots.add(client, slots);
        }
    }

    /// The index and the client's slot table; nothing if there is no index, or the client has no table.
    ///
    /// # Errors
    /// [`DirectoryError::UnknownClient`] if it has left.
    pub fn index(&self, client: ClientId) -> Result<Option<IndexFiles>, DirectoryError> {
        let record = self.client(client)?;
        let mut state = self.state.lock();
        let unloaded = state.unloaded.len() as u64;
        if let Some(plan) = state.shelf.plan_again(unloaded) {
            drop(state);
            self.make_index(Some(plan));
            state = self.state.lock();
        }
        if record.ledger.lock().closed {
            return Err(DirectoryError::UnknownClient);
        }
        state.build_index(MOVED_AT_ONCE);
        let Some((name, index)) = state.shelf.open_for_reader() else {
            return Ok(None);
        };
        let files = index.and_then(|index| {
            let slots = state.slots.give(client, name)?;
            Ok(slots.map(|slots| IndexFiles { index, slots }))
        });
        Ok(files.unwrap_or_else(|error| {
            tracing::warn!(%error, %client, "a client cannot be given the index; it asks for everything");
            None
        }))
    }

    /// Notes what clients found by themselves since, as [`note_reads`](Self::note_reads) is told.
    pub(crate) fn take_hits(&self, state: &mut State) {
        state.unasked = 0;
        let listener = self.listener.get();
        let counts_uses = listener.is_some_and(|listener| listener.counts_uses());
        let State {
            slots, pages, used, ..
        } = state;
        slots.take_hits(|page| {
            // It may be gone since, or be another object: then that one is taken to be used.
            let Some(entry) = pages.get(page) else { return };
            let now = self.clock.fetch_add(1, Ordering::Relaxed);
            entry.touch(now);
            self.shards.note_read(now, entry);
            if counts_uses && used.len() < REMEMBERED_USES {
                used.push(entry.key.clone());
            }
        });
    }

    /// Takes over what clients counted by themselves since.
    pub(crate) fn take_counts(&self, state: &mut State) {
        let (hits, misses) = state.slots.take_counts();
        self.count_found(hits, misses);
    }

    pub(crate) fn count_found(&self, hits: u64, misses: u64) {
        self.counters.hits.add(hits);
        self.counters.misses.add(misses);
        self.counters.index_hits.add(hits);
        self.counters.index_misses.add(misses);
    }
}
