use std::sync::Mutex;
use std::time::Duration;

use ondol_plugin::l2::{
    AdapterStatus, Bitmap, CloseReport, Completions, DeleteResult, EventFds, KeyPage, L2Adapter,
    ListRequest, LoadItem, LoadOutcome, LoadResult, Loaded, LookupResult, ObjectKey, StoreItem,
    StoreResult, TaskId, Usage,
};

/// A backend that ends every task within its submit and keeps what is stored. The objects are numbered, and the number
/// is the end of the hash in their names: so that finding them costs next to nothing.
pub(crate) struct KeepingAdapter {
    completions: Completions,
    objects: Mutex<Vec<Vec<u8>>>,
}

impl KeepingAdapter {
    /// One with room for the objects of the numbers below `count`.
    pub(crate) fn new(count: usize) -> Self {
        Self {
            completions: Completions::new().expect("three descriptors"),
            objects: Mutex::new(vec![Vec::new(); count]),
        }
    }
}

fn number(key: &ObjectKey) -> usize {
    let hash = key.chunk_hash();
    let end = hash[hash.len() - 8..].try_into().expect("eight bytes");
    u64::from_be_bytes(end) as usize
}

impl L2Adapter for KeepingAdapter {
    fn event_fds(&self) -> EventFds<'_> {
        self.completions.event_fds()
    }

    fn submit_store(&self, batch: Vec<StoreItem>) -> anyhow::Result<TaskId> {
        let mut objects = self.objects.lock().expect("nobody panics");
        let mut bytes = 0;
        for item in batch {
            let stored = item.object.to_vec();
            bytes += stored.len() as u64;
            objects[number(&item.key)] = stored;
        }
        let ticket = self.completions.stores.ticket(StoreResult::failed(""));
        let task = ticket.task();
        ticket.complete(StoreResult::stored(bytes));
        Ok(task)
    }

    fn pop_completed_stores(&self) -> Vec<(TaskId, StoreResult)> {
        self.completions.stores.take_all()
    }

    fn submit_lookup_and_lock(&self, keys: Vec<ObjectKey>) -> anyhow::Result<TaskId> {
        let objects = self.objects.lock().expect("nobody panics");
        let stored = keys.iter().map(|key| objects[number(key)].len() as u64);
        let found = LookupResult::new(stored.map(|len| (len > 0).then_some(len)));
        Ok(self.completions.lookups.ticket(found).task())
    }

    fn query_lookup_and_lock(&self, task: TaskId) -> Option<LookupResult> {
        self.completions.lookups.take(task)
    }

    fn submit_unlock(&self, _: &[ObjectKey]) {}

    fn submit_load(&self, batch: Vec<LoadItem>) -> anyhow::Result<TaskId> {
        let objects = self.objects.lock().expect("nobody panics");
        let load = |LoadItem { key, mut page }: LoadItem| {
            let filled = page.fill(&objects[number(&key)]).expect("it fits");
            Loaded {
                outcome: LoadOutcome::Found(filled),
                page: Some(page),
            }
        };
        let loaded = LoadResult(batch.into_iter().map(load).collect());
        Ok(self.completions.loads.ticket(loaded).task())
    }

    fn query_load(&self, task: TaskId) -> Option<LoadResult> {
        self.completions.loads.take(task)
    }

    fn delete(&self, keys: &[ObjectKey]) -> anyhow::Result<DeleteResult> {
        Ok(DeleteResult {
            gone: Bitmap::new(keys.len()),
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
