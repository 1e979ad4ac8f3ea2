use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use ondol_plugin::l2::{
    AdapterStatus, CloseReport, Completions, DeleteResult, EventFds, KeyPage, L2Adapter,
    ListRequest, LoadItem, LoadOutcome, LoadResult, Loaded, LookupResult, ObjectKey, StoreItem,
    StoreResult, TaskId, Usage, WorkerPool,
};

use crate::backend::Backend;
use crate::config::FsConfig;
use crate::error::{OpenError, StoreFailure};
use crate::task::{Batch, Kind, Tasks};

/// Keys that one thread looks for before another one may go on.
const LOOKED_FOR_AT_ONCE: usize = 64;

const ENDED: &str = "the task was cancelled, or the adapter closed, before this was begun";
const LOST: &str = "this was begun and did not end; see the log";

/// The storage backend in a directory of files.
pub struct FsAdapter {
    backend: Arc<Backend>,
    completions: Completions,
    tasks: Arc<Tasks>,
    workers: WorkerPool,
    threads: usize,
}

impl FsAdapter {
    /// Opens a directory; `name` is that of the backend in logs and of its threads.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(name: &str, config: &FsConfig) -> Result<Self, OpenError> {
        let completions = Completions::new()?;
        let backend = Arc::new(Backend::open(config)?);
        let workers = WorkerPool::new(name, config.workers)?;
        let adapter = Self {
            backend: Arc::clone(&backend),
            completions,
            tasks: Arc::default(),
            workers,
            threads: config.workers,
        };
        thread::Builder::new()
            .name(format!("{name} scan"))
            .spawn(move || backend.scan())?;
        Ok(adapter)
    }

    /// The directory.
    pub fn base_path(&self) -> &Path {
        self.backend.place.base_path()
    }

    fn check_open(&self) -> anyhow::Result<()> {
        if self.backend.is_closing.load(Ordering::Relaxed) {
            anyhow::bail!("the adapter is closed");
        }
        Ok(())
    }

    /// Has a batch worked off by as many threads as it has parts for.
    fn start<K: Kind>(
        &self,
        batch: &Arc<Batch<K>>,
        items: usize,
        most: usize,
        work: impl Fn(&Backend, Vec<K::Item>) -> Vec<K::Part> + Clone + Send + 'static,
    ) {
        // Every thread gets something to do before one gets much.
        let at_once = items.div_ceil(self.threads).clamp(1, most);
        for _ in 0..items.div_ceil(at_once).min(self.threads) {
            let (batch, backend, work) =
                (Arc::clone(batch), Arc::clone(&self.backend), work.clone());
            self.workers
                .run(move || batch.work(at_once, |items| work(&backend, items)));
        }
    }
}

impl L2Adapter for FsAdapter {
    fn event_fds(&self) -> EventFds<'_> {
        self.completions.event_fds()
    }

    fn submit_store(&self, batch: Vec<StoreItem>) -> anyhow::Result<TaskId> {
        self.check_open()?;
        let ticket = self.completions.stores.ticket(StoreResult::retryable(LOST));
        let (task, items) = (ticket.task(), batch.len());
        let batch = Batch::new(Stores, &self.tasks, ticket, batch);
        self.start(
            &batch,
            items,
            self.backend.engine.group(),
            |backend, items| backend.store(&items),
        );
        Ok(task)
    }

    fn pop_completed_stores(&self) -> Vec<(TaskId, StoreResult)> {
        self.completions.stores.take_all()
    }

    fn submit_lookup_and_lock(&self, keys: Vec<ObjectKey>) -> anyhow::Result<TaskId> {
        self.check_open()?;
        let failed = LookupResult::failed(keys.len(), LOST);
        let ticket = self.completions.lookups.ticket(failed);
        let task = ticket.task();
        let known = self.backend.lock_known(&keys);
        let unknown: Vec<_> = keys
            .iter()
            .zip(&known)
            .filter(|(_, known)| known.is_none())
            .map(|(key, _)| key.clone())
            .collect();
        if unknown.is_empty() {
            ticket.complete(LookupResult::new(known));
            return Ok(task);
        }
        let items = unknown.len();
        let kind = Lookups {
            backend: Arc::clone(&self.backend),
            keys,
            known,
        };
        let batch = Batch::new(kind, &self.tasks, ticket, unknown);
        self.start(&batch, items, LOOKED_FOR_AT_ONCE, |backend, keys| {
            keys.iter().map(|key| backend.look_and_lock(key)).collect()
        });
        Ok(task)
    }

    fn query_lookup_and_lock(&self, task: TaskId) -> Option<LookupResult> {
        self.completions.lookups.take(task)
    }

    fn submit_unlock(&self, keys: &[ObjectKey]) {
        self.backend.unlock(keys);
    }

    fn submit_load(&self, batch: Vec<LoadItem>) -> anyhow::Result<TaskId> {
        self.check_open()?;
        let failed = LoadResult::failed(batch.len(), LOST);
        let ticket = self.completions.loads.ticket(failed);
        let (task, items) = (ticket.task(), batch.len());
        let batch = Batch::new(Loads, &self.tasks, ticket, batch);
        self.start(
            &batch,
            items,
            self.backend.reads().group(),
            |backend, items| backend.load(items),
        );
        Ok(task)
    }

    fn query_load(&self, task: TaskId) -> Option<LoadResult> {
        self.completions.loads.take(task)
    }

    fn delete(&self, keys: &[ObjectKey]) -> anyhow::Result<DeleteResult> {
        Ok(self.backend.delete(keys))
    }

    fn usage(&self) -> Usage {
        self.backend.usage()
    }

    fn list_keys(&self, request: &ListRequest) -> anyhow::Result<KeyPage> {
        self.backend.list(request)
    }

    fn status(&self) -> AdapterStatus {
        self.backend.status()
    }

    fn cancel(&self, task: TaskId) {
        self.tasks.stop(task);
    }

    fn close(&self, deadline: Duration) -> CloseReport {
        if self.backend.is_closing.swap(true, Ordering::Relaxed) {
            return CloseReport::default();
        }
        self.tasks.stop_all();
        self.workers.close(deadline);
        let abandoned = self.tasks.end_all();
        if abandoned == 0 {
            self.backend.writer.retire(&self.backend.place);
        }
        CloseReport { abandoned }
    }
}

/// What is in flight keeps what it needs, and its guards, until the kernel is done with it.
impl Drop for FsAdapter {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}

impl fmt::Debug for FsAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FsAdapter")
            .field("base_path", &self.base_path())
            .field("completions", &self.completions)
            .finish_non_exhaustive()
    }
}

struct Stores;

impl Kind for Stores {
    type Item = StoreItem;
    type Part = Result<u64, StoreFailure>;
    type Result = StoreResult;

    fn not_begun(&self, _: StoreItem) -> Self::Part {
        Err(StoreFailure::NotBegun)
    }

    fn result(&self, parts: Vec<Option<Self::Part>>) -> StoreResult {
        let mut bytes = 0;
        let mut worst: Option<StoreFailure> = None;
        for part in parts {
            match part.unwrap_or(Err(StoreFailure::Lost)) {
                Ok(stored) => bytes += stored,
                // A batch that holds something worth another try is worth it.
                Err(failure) => {
                    if worst.as_ref().is_none_or(|worst| !worst.is_retryable()) {
                        worst = Some(failure);
                    }
                }
            }
        }
        StoreResult(worst.map_or(Ok(bytes), |failure| Err(failure.into())))
    }
}

struct Lookups {
    backend: Arc<Backend>,
    keys: Vec<ObjectKey>,
    /// What was known at once.
    known: Vec<Option<u64>>,
}

impl Kind for Lookups {
    type Item = ObjectKey;
    type Part = rustix::io::Result<Option<u64>>;
    type Result = LookupResult;

    fn not_begun(&self, _: ObjectKey) -> Self::Part {
        Err(rustix::io::Errno::CANCELED)
    }

    fn result(&self, parts: Vec<Option<Self::Part>>) -> LookupResult {
        let mut parts = parts.into_iter();
        let mut error = None;
        let mut found = Vec::with_capacity(self.keys.len());
        for known in &self.known {
            found.push(known.or_else(|| match parts.next()? {
                Some(Ok(found)) => found,
                Some(Err(errno)) => {
                    error = Some(errno.to_string());
                    None
                }
                None => {
                    error = Some(LOST.to_owned());
                    None
                }
            }));
        }
        let Some(error) = error else {
            return LookupResult::new(found);
        };
        let locked = self
            .keys
            .iter()
            .zip(&found)
            .filter(|(_, found)| found.is_some());
        self.backend.unlock(locked.map(|(key, _)| key));
        LookupResult::failed(self.keys.len(), error)
    }
}

struct Loads;

impl Kind for Loads {
    type Item = LoadItem;
    type Part = Loaded;
    type Result = LoadResult;

    fn not_begun(&self, item: LoadItem) -> Loaded {
        Loaded {
            page: Some(item.page),
            outcome: LoadOutcome::Failed(ENDED.into()),
        }
    }

    fn result(&self, parts: Vec<Option<Loaded>>) -> LoadResult {
        let lost = || Loaded {
            page: None,
            outcome: LoadOutcome::Failed(LOST.into()),
        };
        LoadResult(
            parts
                .into_iter()
                .map(|part| part.unwrap_or_else(lost))
                .collect(),
        )
    }
}
