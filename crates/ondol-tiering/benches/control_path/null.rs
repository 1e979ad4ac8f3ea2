use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ondol_plugin::l2::{
    AdapterStatus, Bitmap, CloseReport, Completions, DeleteResult, EventFds, KeyPage, L2Adapter,
    ListRequest, LoadItem, LoadResult, LookupResult, ObjectKey, StoreItem, StoreResult, TaskId,
    Usage,
};

/// A backend that ends every task within its submit and keeps nothing.
pub(crate) struct NullAdapter {
    completions: Completions,
    stored: Stored,
}

/// How many objects it was given to store.
#[derive(Clone, Default)]
pub(crate) struct Stored(Arc<AtomicUsize>);

impl Stored {
    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl NullAdapter {
    pub(crate) fn new() -> (Self, Stored) {
        let stored = Stored::default();
        let adapter = Self {
            completions: Completions::new().expect("three descriptors"),
            stored: stored.clone(),
        };
        (adapter, stored)
    }
}

impl L2Adapter for NullAdapter {
    fn event_fds(&self) -> EventFds<'_> {
        self.completions.event_fds()
    }

    fn submit_store(&self, batch: Vec<StoreItem>) -> anyhow::Result<TaskId> {
        let bytes: usize = batch.iter().map(|item| item.object.stored_len()).sum();
        let count = batch.len();
        drop(batch);
        let ticket = self.completions.stores.ticket(StoreResult::failed(""));
        let task = ticket.task();
        ticket.complete(StoreResult::stored(bytes as u64));
        self.stored.0.fetch_add(count, Ordering::Relaxed);
        Ok(task)
    }

    fn pop_completed_stores(&self) -> Vec<(TaskId, StoreResult)> {
        self.completions.stores.take_all()
    }

    fn submit_lookup_and_lock(&self, keys: Vec<ObjectKey>) -> anyhow::Result<TaskId> {
        let nothing = LookupResult::new(keys.iter().map(|_| None));
        let ticket = self.completions.lookups.ticket(nothing);
        Ok(ticket.task())
    }

    fn query_lookup_and_lock(&self, task: TaskId) -> Option<LookupResult> {
        self.completions.lookups.take(task)
    }

    fn submit_unlock(&self, _: &[ObjectKey]) {}

    fn submit_load(&self, batch: Vec<LoadItem>) -> anyhow::Result<TaskId> {
        let failed = LoadResult::failed(batch.len(), "nothing is kept");
        Ok(self.completions.loads.ticket(failed).task())
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
