use std::io;
use std::time::Duration;

use ondol_plugin::l2::{
    AdapterStatus, Bitmap, CloseReport, Completions, DeleteResult, EventFds, KeyPage, L2Adapter,
    ListRequest, LoadItem, LoadOutcome, LoadResult, Loaded, LookupResult, ObjectKey, StoreItem,
    StoreResult, TaskId, Usage,
};

/// An adapter whose tasks finish while they are submitted. It moves no bytes and takes no locks.
#[derive(Debug)]
pub struct NullAdapter {
    completions: Completions,
    found: Option<u64>,
}

impl NullAdapter {
    /// One that stores everything and finds nothing.
    ///
    /// # Errors
    /// If the system has no descriptors left.
    pub fn empty() -> io::Result<Self> {
        Ok(Self {
            completions: Completions::new()?,
            found: None,
        })
    }

    /// One that finds every key, with this stored length (0: not known), and whose loads fill their pages without writing
    /// to them.
    ///
    /// # Errors
    /// If the system has no descriptors left.
    pub fn full(stored_len: u64) -> io::Result<Self> {
        Ok(Self {
            found: Some(stored_len),
            ..Self::empty()?
        })
    }
}

impl L2Adapter for NullAdapter {
    fn event_fds(&self) -> EventFds<'_> {
        self.completions.event_fds()
    }

    fn submit_store(&self, batch: Vec<StoreItem>) -> anyhow::Result<TaskId> {
        let bytes = batch.iter().map(|item| item.object.stored_len() as u64);
        let ticket = self
            .completions
            .stores
            .ticket(StoreResult::stored(bytes.sum()));
        drop(batch);
        Ok(ticket.task())
    }

    fn pop_completed_stores(&self) -> Vec<(TaskId, StoreResult)> {
        self.completions.stores.take_all()
    }

    fn submit_lookup_and_lock(&self, keys: Vec<ObjectKey>) -> anyhow::Result<TaskId> {
        let found = LookupResult::new(keys.iter().map(|_| self.found));
        Ok(self.completions.lookups.ticket(found).task())
    }

    fn query_lookup_and_lock(&self, task: TaskId) -> Option<LookupResult> {
        self.completions.lookups.take(task)
    }

    fn submit_unlock(&self, _: &[ObjectKey]) {}

    fn submit_load(&self, batch: Vec<LoadItem>) -> anyhow::Result<TaskId> {
        let load = |LoadItem { page, .. }| Loaded {
            outcome: match self.found {
                None => LoadOutcome::Missing,
                Some(0) => LoadOutcome::Found(page.room() as u64),
                Some(bytes) => LoadOutcome::Found(bytes.min(page.room() as u64)),
            },
            page: Some(page),
        };
        let loaded = LoadResult(batch.into_iter().map(load).collect());
        Ok(self.completions.loads.ticket(loaded).task())
    }

    fn query_load(&self, task: TaskId) -> Option<LoadResult> {
        self.completions.loads.take(task)
    }

    fn delete(&self, keys: &[ObjectKey]) -> anyhow::Result<DeleteResult> {
        Ok(DeleteResult {
            gone: Bitmap::with_prefix(keys.len(), keys.len()),
            locked: Bitmap::new(keys.len()),
        })
    }

    fn usage(&self) -> Usage {
        Usage {
            is_complete: true,
            ..Usage::default()
        }
    }

    fn list_keys(&self, _: &ListRequest) -> anyhow::Result<KeyPage> {
        Ok(KeyPage::default())
    }

    fn status(&self) -> AdapterStatus {
        AdapterStatus::default()
    }

    fn cancel(&self, _: TaskId) {}

    fn close(&self, _: Duration) -> CloseReport {
        CloseReport::default()
    }
}
