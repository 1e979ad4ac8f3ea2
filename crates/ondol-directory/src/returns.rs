//! Pages come back without a message: who lets go of one puts it on a list, or on a ring of its slot table, and the writer
//! reads that before it makes room.

use ondol_catalog::failpoint;
use ondol_memory::Change;
use ondol_shm::{ClientId, ForkGuard, Grant};
use parking_lot::Mutex;

use crate::directory::Directory;
use crate::state::State;

/// Pages that were granted to the storage tier and that nobody writes any more.
#[derive(Debug)]
pub struct Returns {
    pages: Mutex<Vec<Grant>>,
    home: ForkGuard,
}

impl Default for Returns {
    fn default() -> Self {
        Self {
            pages: Mutex::default(),
            home: ForkGuard::new(),
        }
    }
}

impl Returns {
    /// Gives a page back that was not committed; from any thread, without waiting for anything. In a forked child it does
    /// nothing.
    pub fn push(&self, page: Grant) {
        if self.home.is_home() {
            self.pages.lock().push(page);
        }
    }

    fn take(&self) -> Vec<Grant> {
        std::mem::take(&mut self.pages.lock())
    }
}

impl Directory {
    /// Where the storage tier gives pages back.
    pub fn returns(&self) -> &std::sync::Arc<Returns> {
        &self.returns
    }

    /// Frees the pages that were given back.
    pub(crate) fn take_returned(&self, state: &mut State) {
        let Some(client) = state.tier else { return };
        for grant in self.returns.take() {
            // One that was committed meanwhile is not the tier's any more.
            if state.pool.check_grant(client, grant).is_err() {
                continue;
            }
            if let Err(error) = state.change(&Change::Return { grant, client }) {
                tracing::warn!(%error, page = %grant.page, "a page that was given back stays captive for now");
                self.returns.push(grant);
            }
        }
    }

    /// Frees the pages that this client, or each, gave back by its ring. One that is read there again after a crash is not
    /// the client's any more, or is in another generation.
    pub(crate) fn take_returned_by(&self, state: &mut State, client: Option<ClientId>) {
        let taken = state.slots.take_returns(client);
        if taken.is_empty() {
            return;
        }
        let mut refused = Vec::new();
        for &(client, grant) in &taken {
            if state.pool.check_grant(client, grant).is_err() {
                self.counters.stale_returns.increment();
            } else if let Err(error) = state.change(&Change::Return { grant, client }) {
                tracing::warn!(%error, page = %grant.page, "a page that was given back stays granted for now");
                refused.push((client, grant));
            }
        }
        failpoint!("slots.returned");
        let position = self.journal.position();
        state.slots.settle_returns(&taken, refused, position);
    }
}
