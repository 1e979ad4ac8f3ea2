use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{
    AdapterStatus, Bitmap, CloseReport, Completions, DeleteResult, EventFds, KeyPage, L2Adapter,
    ListRequest, LoadItem, LoadOutcome, LoadResult, Loaded, LookupResult, ObjectKey, ObjectRef,
    PageMut, StoreError, StoreItem, StoreResult, TaskId, Usage,
};

type Job = Box<dyn FnOnce() + Send>;

/// Threads that run jobs from a queue.
///
/// A job that panics ends its thread, and another one takes its place.
#[derive(Clone)]
pub struct WorkerPool(Arc<Crew>);

struct Crew {
    name: String,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: std::collections::VecDeque<Job>,
    running: usize,
    closed: bool,
}

impl WorkerPool {
    /// Starts `threads` threads, at least one, called `name`.
    ///
    /// # Errors
    /// If the system has no thread left.
    pub fn new(name: &str, threads: usize) -> io::Result<Self> {
        let crew = Arc::new(Crew {
            name: name.to_owned(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let pool = Self(crew);
        for _ in 0..threads.max(1) {
            if let Err(error) = start(&pool.0) {
                pool.close(Duration::ZERO);
                return Err(error);
            }
        }
        Ok(pool)
    }

    /// Gives a job to the first thread that is free; `false`, and the job is dropped, if the pool is closed.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.0.lock();
        if state.closed {
            return false;
        }
        state.jobs.push_back(Box::new(job));
        drop(state);
        self.0.changed.notify_all();
        true
    }

    /// Takes no more jobs, drops those that have not begun, and waits for the running ones; how many go on.
    pub fn close(&self, deadline: Duration) -> usize {
        let end = Instant::now() + deadline;
        let mut state = self.0.lock();
        state.closed = true;
        let dropped = std::mem::take(&mut state.jobs);
        drop(state);
        // A job that is dropped may call back.
        drop(dropped);
        self.0.changed.notify_all();
        let mut state = self.0.lock();
        while state.running > 0 {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.0.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.running
    }
}

impl fmt::Debug for WorkerPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WorkerPool").field(&self.0.name).finish()
    }
}

impl Crew {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No job runs under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn start(crew: &Arc<Crew>) -> io::Result<()> {
    let crew = Arc::clone(crew);
    thread::Builder::new()
        .name(crew.name.clone())
        .spawn(move || {
            while let Some(job) = next(&crew) {
                let running = Running(&crew);
                job();
                drop(running);
            }
        })
        .map(drop)
}

fn next(crew: &Crew) -> Option<Job> {
    let mut state = crew.lock();
    loop {
        if let Some(job) = state.jobs.pop_front() {
            state.running += 1;
            return Some(job);
        }
        if state.closed {
            return None;
        }
        let woken = crew.changed.wait(state);
        state = woken.unwrap_or_else(PoisonError::into_inner);
    }
}

/// A job that runs; when it ends by a panic, its thread goes with it and another one comes.
struct Running<'a>(&'a Arc<Crew>);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.running -= 1;
        let is_open = !state.closed;
        drop(state);
        self.0.changed.notify_all();
        if thread::panicking() && is_open {
            // Without another thread the rest of the crew goes on.
            let _ = start(self.0);
        }
    }
}

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
}

/// The adapter of a [`BlockingBackend`]: its tasks run on a pool of threads, and it counts the locks.
///
/// A backend that evicts by itself asks [`is_locked`](Locks::is_locked) first.
pub struct WorkerAdapter<B> {
    backend: Arc<B>,
    locks: Arc<Locks>,
    completions: Completions,
    workers: WorkerPool,
}

/// How often each key is locked.
#[derive(Debug, Default)]
pub struct Locks(Mutex<HashMap<ObjectKey, u64>>);

impl Locks {
    /// Whether a key is locked.
    pub fn is_locked(&self, key: &ObjectKey) -> bool {
        self.held().contains_key(key)
    }

    /// Takes a lock.
    pub fn lock(&self, key: &ObjectKey) {
        *self.held().entry(key.clone()).or_default() += 1;
    }

    /// Gives a lock back, if there is one.
    pub fn unlock(&self, key: &ObjectKey) {
        let mut held = self.held();
        if let Some(count) = held.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                held.remove(key);
            }
        }
    }

    /// Runs `remove` unless the key is locked, and lets nobody lock it meanwhile; `None` if it is.
    pub fn unless_locked<T>(&self, key: &ObjectKey, remove: impl FnOnce() -> T) -> Option<T> {
        let held = self.held();
        (!held.contains_key(key)).then(remove)
    }

    fn held(&self) -> MutexGuard<'_, HashMap<ObjectKey, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
        self.workers.run(move || {
            let stored = batch
                .iter()
                .map(|item| backend.store(&item.key, &item.object))
                .sum();
            drop(batch);
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
        self.workers.run(move || {
            let mut locked = Locked::new(&locks);
            let mut found = Vec::with_capacity(keys.len());
            for key in &keys {
                // Locked first, so that what is found cannot be deleted before it is locked.
                locked.lock(key);
                match backend.lookup(key) {
                    Ok(size) => {
                        if size.is_none() {
                            locked.unlock_last();
                        }
                        found.push(size);
                    }
                    Err(error) => {
                        let failed = LookupResult::failed(keys.len(), format!("{error:#}"));
                        drop(locked);
                        ticket.complete(failed);
                        return;
                    }
                }
            }
            locked.keep();
            ticket.complete(LookupResult::new(found));
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
        self.workers.run(move || {
            let load = |LoadItem { key, mut page }: LoadItem| Loaded {
                outcome: backend.load(&key, &mut page),
                page: Some(page),
            };
            let loaded = batch.into_iter().map(load).collect();
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

    fn cancel(&self, _: TaskId) {}

    fn close(&self, deadline: Duration) -> CloseReport {
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
