use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{
    AdapterStatus, Bitmap, CloseReport, Completions, DeleteResult, EventFds, KeyPage, L2Adapter,
    ListRequest, LoadItem, LoadOutcome, LoadResult, Loaded, Locks, LookupResult, ObjectKey,
    ObjectRef, PageMut, StoreError, StoreItem, StoreResult, TaskId, Usage, WorkerPool,
};

/// A storage backend that blocks: one object at a time, from several threads. [`WorkerAdapter`] makes an adapter of it.
pub trait BlockingBackend: Send + Sync + 'static {
    /// Stores an object; bytes transferred, 0 if it was there already. It is visible whole or not at all.
    ///
    /// # Errors
    /// [`StoreError`].
    fn store(&self, key: &ObjectKey, object: &ObjectRef) -> Result<u64, StoreError>;

    /// The stored length of an object, 0 if that is not known; `None` if it is not there.
    ///
    /// # Errors
    /// If that cannot be said.
    fn lookup(&self, key: &ObjectKey) -> anyhow::Result<Option<u64>>;

    /// Loads an object into a page.
    fn load(&self, key: &ObjectKey, page: &mut PageMut) -> LoadOutcome;

    /// Deletes an object; whether it was there.
    ///
    /// # Errors
    /// If it may still be there.
    fn delete(&self, key: &ObjectKey) -> anyhow::Result<bool>;

    /// What is stored.
    fn usage(&self) -> Usage;

    /// A page of the objects that are there.
    ///
    /// # Errors
    /// A cursor that is none of this backend's, or a backend that cannot list.
    fn list_keys(&self, request: &ListRequest) -> anyhow::Result<KeyPage>;

    /// How the backend fares.
    fn status(&self) -> AdapterStatus {
        AdapterStatus::default()
    }

    /// The adapter closes: calls that wait for something end soon, with an error if need be. Called once or more; does nothing
    /// unless it is overridden.
    fn close(&self) {}
}

/// The adapter of a [`BlockingBackend`]: its tasks run on a pool of threads, and it counts the locks.
///
/// A batch runs on one thread, object by object; batches run side by side. A backend that evicts by itself does so within
/// [`unless_locked`](Locks::unless_locked) of the locks that it was made [with](Self::with_locks).
///
/// A task that is cancelled, or still runs when the adapter closes, ends before its next object. Dropping the adapter closes it
/// without waiting.
pub struct WorkerAdapter<B> {
    backend: Arc<B>,
    locks: Arc<Locks>,
    completions: Completions,
    tasks: Arc<Tasks>,
    workers: WorkerPool,
}

impl<B: BlockingBackend> WorkerAdapter<B> {
    /// An adapter of `backend` with so many threads, called `name`.
    ///
    /// # Errors
    /// If the system has no thread or descriptor left.
    pub fn new(name: &str, threads: usize, backend: B) -> io::Result<Self> {
        Self::with_locks(name, threads, backend, Arc::default())
    }

    /// As [`new`](Self::new), with locks that the backend looks at too.
    ///
    /// # Errors
    /// As there.
    pub fn with_locks(
        name: &str,
        threads: usize,
        backend: B,
        locks: Arc<Locks>,
    ) -> io::Result<Self> {
        Ok(Self {
            backend: Arc::new(backend),
            locks,
            completions: Completions::new()?,
            tasks: Arc::default(),
            workers: WorkerPool::new(name, threads)?,
        })
    }

    /// The backend.
    pub fn backend(&self) -> &B {
        &self.backend
    }
}

impl<B: BlockingBackend> L2Adapter for WorkerAdapter<B> {
    fn event_fds(&self) -> EventFds<'_> {
        self.completions.event_fds()
    }

    fn submit_store(&self, batch: Vec<StoreItem>) -> anyhow::Result<TaskId> {
        let unanswered = StoreResult::failed("the store ended unfinished");
        let ticket = self.completions.stores.ticket(unanswered);
        let (task, backend) = (ticket.task(), Arc::clone(&self.backend));
        let running = self.tasks.begin(task);
        self.workers.run(move || {
            let stored = store_each(&*backend, &batch, &running);
            // Let go before anybody is told, the backend too: it may have to end with its adapter.
            drop((batch, running, backend));
            ticket.complete(StoreResult(stored));
        });
        Ok(task)
    }

    fn pop_completed_stores(&self) -> Vec<(TaskId, StoreResult)> {
        self.completions.stores.take_all()
    }

    fn submit_lookup_and_lock(&self, keys: Vec<ObjectKey>) -> anyhow::Result<TaskId> {
        let unanswered = LookupResult::failed(keys.len(), "the lookup ended unfinished");
        let ticket = self.completions.lookups.ticket(unanswered);
        let (task, backend) = (ticket.task(), Arc::clone(&self.backend));
        let locks = Arc::clone(&self.locks);
        let running = self.tasks.begin(task);
        self.workers.run(move || {
            let found = look_up_each(&*backend, &keys, &locks, &running);
            drop((running, backend));
            ticket.complete(found);
        });
        Ok(task)
    }

    fn query_lookup_and_lock(&self, task: TaskId) -> Option<LookupResult> {
        self.completions.lookups.take(task)
    }

    fn submit_unlock(&self, keys: &[ObjectKey]) {
        keys.iter().for_each(|key| self.locks.unlock(key));
    }

    fn submit_load(&self, batch: Vec<LoadItem>) -> anyhow::Result<TaskId> {
        let unanswered = LoadResult::failed(batch.len(), "the load ended unfinished");
        let ticket = self.completions.loads.ticket(unanswered);
        let (task, backend) = (ticket.task(), Arc::clone(&self.backend));
        let running = self.tasks.begin(task);
        self.workers.run(move || {
            let load = |LoadItem { key, mut page }: LoadItem| Loaded {
                outcome: if running.is_cancelled() {
                    LoadOutcome::Failed(CANCELLED.to_owned())
                } else {
                    backend.load(&key, &mut page)
                },
                page: Some(page),
            };
            let loaded = batch.into_iter().map(load).collect();
            drop((running, backend));
            ticket.complete(LoadResult(loaded));
        });
        Ok(task)
    }

    fn query_load(&self, task: TaskId) -> Option<LoadResult> {
        self.completions.loads.take(task)
    }

    fn delete(&self, keys: &[ObjectKey]) -> anyhow::Result<DeleteResult> {
        let mut result = DeleteResult {
            gone: Bitmap::new(keys.len()),
            locked: Bitmap::new(keys.len()),
        };
        for (index, key) in keys.iter().enumerate() {
            match self.locks.unless_locked(key, || self.backend.delete(key)) {
                None => result.locked.set(index),
                Some(Ok(_)) => result.gone.set(index),
                // It may be there still, and the others are worth a try.
                Some(Err(_)) => {}
            }
        }
        Ok(result)
    }

    fn usage(&self) -> Usage {
        self.backend.usage()
    }

    fn list_keys(&self, request: &ListRequest) -> anyhow::Result<KeyPage> {
        self.backend.list_keys(request)
    }

    fn status(&self) -> AdapterStatus {
        self.backend.status()
    }

    fn cancel(&self, task: TaskId) {
        self.tasks.cancel(task);
    }

    fn close(&self, deadline: Duration) -> CloseReport {
        self.tasks.cancel_all();
        self.backend.close();
        CloseReport {
            abandoned: self.workers.close(deadline) as u64,
        }
    }
}

impl<B> fmt::Debug for WorkerAdapter<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerAdapter")
            .field("workers", &self.workers)
            .field("completions", &self.completions)
            .finish_non_exhaustive()
    }
}

const CANCELLED: &str = "the task was cancelled, or the adapter was closed";

/// Stores what can be stored, whatever becomes of the rest. The batch can be tried again if any of it can.
fn store_each(
    backend: &impl BlockingBackend,
    batch: &[StoreItem],
    running: &Running,
) -> Result<u64, StoreError> {
    let mut bytes = 0;
    let mut failed: Option<StoreError> = None;
    for item in batch {
        if running.is_cancelled() {
            return StoreResult::retryable(CANCELLED).0;
        }
        match backend.store(&item.key, &item.object) {
            Ok(stored) => bytes += stored,
            Err(error) => match &mut failed {
                None => failed = Some(error),
                Some(first) => first.retryable |= error.retryable,
            },
        }
    }
    failed.map_or(Ok(bytes), Err)
}

fn look_up_each(
    backend: &impl BlockingBackend,
    keys: &[ObjectKey],
    locks: &Locks,
    running: &Running,
) -> LookupResult {
    let mut locked = Locked::new(locks);
    let mut found = Vec::with_capacity(keys.len());
    for key in keys {
        if running.is_cancelled() {
            return LookupResult::failed(keys.len(), CANCELLED);
        }
        // Locked first, so that what is found cannot be deleted before it is locked.
        locked.lock(key);
        match backend.lookup(key) {
            Ok(size) => {
                if size.is_none() {
                    locked.unlock_last();
                }
                found.push(size);
            }
            Err(error) => return LookupResult::failed(keys.len(), format!("{error:#}")),
        }
    }
    locked.keep();
    LookupResult::new(found)
}

/// Tasks that have not ended, and whether they are to.
#[derive(Default)]
struct Tasks(Mutex<HashMap<TaskId, Arc<AtomicBool>>>);

impl Tasks {
    fn begin(self: &Arc<Self>, task: TaskId) -> Running {
        let cancelled = Arc::clone(self.tasks().entry(task).or_default());
        Running {
            task,
            cancelled,
            tasks: Arc::clone(self),
        }
    }

    fn cancel(&self, task: TaskId) {
        if let Some(cancelled) = self.tasks().get(&task) {
            cancelled.store(true, Ordering::Relaxed);
        }
    }

    fn cancel_all(&self) {
        for cancelled in self.tasks().values() {
            cancelled.store(true, Ordering::Relaxed);
        }
    }

    fn tasks(&self) -> MutexGuard<'_, HashMap<TaskId, Arc<AtomicBool>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A task that has not ended.
struct Running {
    task: TaskId,
    cancelled: Arc<AtomicBool>,
    tasks: Arc<Tasks>,
}

impl Running {
    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tasks.tasks().remove(&self.task);
    }
}

/// Locks that are given back unless they are kept.
struct Locked<'a> {
    locks: &'a Locks,
    keys: Vec<ObjectKey>,
}

impl<'a> Locked<'a> {
    fn new(locks: &'a Locks) -> Self {
        Self {
            locks,
            keys: Vec::new(),
        }
    }

    fn lock(&mut self, key: &ObjectKey) {
        self.locks.lock(key);
        self.keys.push(key.clone());
    }

    fn unlock_last(&mut self) {
        if let Some(key) = self.keys.pop() {
            self.locks.unlock(&key);
        }
    }

    fn keep(mut self) {
        self.keys.clear();
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.keys.iter().for_each(|key| self.locks.unlock(key));
    }
}
