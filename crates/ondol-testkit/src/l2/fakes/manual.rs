use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ondol_plugin::l2::{
    AdapterStatus, Bitmap, CloseReport, Completions, DeleteResult, EventFds, KeyPage, L2Adapter,
    ListRequest, LoadItem, LoadOutcome, LoadResult, Loaded, Locks, LookupResult, ObjectKey,
    StoreItem, StoreResult, TaskId, Ticket, Usage,
};

/// How long a test waits for a task that it expects.
const WATCHDOG: Duration = Duration::from_secs(60);

/// An adapter whose tasks end when and how the test says. Clones are the same adapter: give one away and keep one.
///
/// ```
/// use ondol_plugin::l2::{L2Adapter, StoreResult};
/// use ondol_testkit::l2::ManualAdapter;
///
/// let manual = ManualAdapter::new()?;
/// let adapter: Box<dyn L2Adapter> = Box::new(manual.clone());
/// let task = adapter.submit_store(Vec::new())?;
/// assert!(adapter.pop_completed_stores().is_empty());
/// manual.next_store().end(StoreResult::stored(0));
/// assert_eq!(adapter.pop_completed_stores(), [(task, StoreResult::stored(0))]);
/// # Ok::<(), anyhow::Error>(())
/// ```
#[derive(Clone)]
pub struct ManualAdapter(Arc<Inner>);

struct Inner {
    completions: Completions,
    locks: Locks,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    stores: VecDeque<(Vec<StoreItem>, Ticket<StoreResult>)>,
    lookups: VecDeque<(Vec<ObjectKey>, Ticket<LookupResult>)>,
    loads: VecDeque<(Vec<LoadItem>, Ticket<LoadResult>)>,
    lost: Vec<Lost>,
    refusal: Option<String>,
    blocked: bool,
    cancelled: Vec<TaskId>,
    deleted: Vec<ObjectKey>,
    usage: Usage,
    status: AdapterStatus,
    listing: KeyPage,
    closed: bool,
}

/// A task that never ends, with its buffers.
#[expect(dead_code, reason = "what is in it is kept, not read")]
enum Lost {
    Store(Vec<StoreItem>, Ticket<StoreResult>),
    Lookup(Ticket<LookupResult>),
    Load(Vec<LoadItem>, Ticket<LoadResult>),
}

/// A store that waits for the test. Dropping it fails it.
pub struct HeldStore {
    /// What is to be stored.
    pub batch: Vec<StoreItem>,
    ticket: Ticket<StoreResult>,
    adapter: ManualAdapter,
}

/// A lookup that waits for the test. Dropping it fails it.
pub struct HeldLookup {
    /// What is looked up.
    pub keys: Vec<ObjectKey>,
    ticket: Ticket<LookupResult>,
    adapter: ManualAdapter,
}

/// A load that waits for the test. Dropping it fails it, and lets its pages go.
pub struct HeldLoad {
    /// What is to be loaded.
    pub batch: Vec<LoadItem>,
    ticket: Ticket<LoadResult>,
    adapter: ManualAdapter,
}

impl ManualAdapter {
    /// An adapter without tasks.
    ///
    /// # Errors
    /// If the system has no descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(Inner {
            completions: Completions::new()?,
            locks: Locks::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
        })))
    }

    /// The next store; waits until there is one.
    ///
    /// # Panics
    /// If none comes within a minute; so do the others.
    pub fn next_store(&self) -> HeldStore {
        let (batch, ticket) = self.next("store", |state| state.stores.pop_front());
        HeldStore {
            batch,
            ticket,
            adapter: self.clone(),
        }
    }

    /// The next lookup.
    pub fn next_lookup(&self) -> HeldLookup {
        let (keys, ticket) = self.next("lookup", |state| state.lookups.pop_front());
        HeldLookup {
            keys,
            ticket,
            adapter: self.clone(),
        }
    }

    /// The next load.
    pub fn next_load(&self) -> HeldLoad {
        let (batch, ticket) = self.next("load", |state| state.loads.pop_front());
        HeldLoad {
            batch,
            ticket,
            adapter: self.clone(),
        }
    }

    /// How many stores, lookups and loads wait for the test now.
    pub fn waiting(&self) -> (usize, usize, usize) {
        let state = self.state();
        (state.stores.len(), state.lookups.len(), state.loads.len())
    }

    /// The locks that lookups took and that were not given back.
    pub fn locks(&self) -> &Locks {
        &self.0.locks
    }

    /// From now on every submit fails for this reason, or none does.
    pub fn refuse_submits(&self, reason: Option<&str>) {
        self.state().refusal = reason.map(str::to_owned);
    }

    /// From now on every submit and delete hangs, until this is called with `false`.
    pub fn block_calls(&self, block: bool) {
        self.state().blocked = block;
        self.0.changed.notify_all();
    }

    /// Tasks that were cancelled, in their order.
    pub fn cancelled(&self) -> Vec<TaskId> {
        self.state().cancelled.clone()
    }

    /// Keys that were deleted, in their order; those that were locked are not among them.
    pub fn deleted(&self) -> Vec<ObjectKey> {
        self.state().deleted.clone()
    }

    /// What `usage` answers from now on.
    pub fn set_usage(&self, usage: Usage) {
        self.state().usage = usage;
    }

    /// What `status` answers from now on.
    pub fn set_status(&self, status: AdapterStatus) {
        self.state().status = status;
    }

    /// What `list_keys` answers from now on, whatever is asked.
    pub fn set_listing(&self, listing: KeyPage) {
        self.state().listing = listing;
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.state().closed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, once calls are not blocked.
    fn enter(&self) -> MutexGuard<'_, State> {
        let waited = self
            .0
            .changed
            .wait_while(self.state(), |state| state.blocked);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(&self, add: impl FnOnce(&mut State) -> TaskId) -> anyhow::Result<TaskId> {
        let mut state = self.enter();
        if state.closed {
            anyhow::bail!("the adapter is closed");
        }
        if let Some(reason) = &state.refusal {
            anyhow::bail!("{reason}");
        }
        let task = add(&mut state);
        self.0.changed.notify_all();
        Ok(task)
    }

    fn next<T>(&self, what: &str, take: impl Fn(&mut State) -> Option<T>) -> T {
        let mut taken = None;
        let waited = self
            .0
            .changed
            .wait_timeout_while(self.state(), WATCHDOG, |state| {
                taken = take(state);
                taken.is_none()
            });
        drop(waited);
        taken.unwrap_or_else(|| panic!("no {what} was submitted within {WATCHDOG:?}"))
    }

    fn lose(&self, task: Lost) {
        self.state().lost.push(task);
    }
}

impl HeldStore {
    /// Its task.
    pub fn task(&self) -> TaskId {
        self.ticket.task()
    }

    /// Ends it so.
    pub fn end(self, result: StoreResult) {
        drop(self.batch);
        self.ticket.complete(result);
    }

    /// Ends it as stored, every byte of it transferred.
    pub fn succeed(self) {
        let bytes = self.batch.iter().map(|item| item.object.stored_len());
        let bytes = bytes.sum::<usize>() as u64;
        self.end(StoreResult::stored(bytes));
    }

    /// Never ends it, and keeps its buffers until the adapter is dropped.
    pub fn lose(self) {
        self.adapter.lose(Lost::Store(self.batch, self.ticket));
    }
}

impl HeldLookup {
    /// Its task.
    pub fn task(&self) -> TaskId {
        self.ticket.task()
    }

    /// Ends it so, and locks what was found.
    pub fn end(self, result: LookupResult) {
        let found = result.found.gather(&self.keys);
        found
            .into_iter()
            .for_each(|key| self.adapter.0.locks.lock(key));
        self.ticket.complete(result);
    }

    /// Ends it with what `find` says of each key: its stored length, or `None` if it is not there.
    pub fn find(self, find: impl FnMut(&ObjectKey) -> Option<u64>) {
        let result = LookupResult::new(self.keys.iter().map(find).collect::<Vec<_>>());
        self.end(result);
    }

    /// Never ends it.
    pub fn lose(self) {
        self.adapter.lose(Lost::Lookup(self.ticket));
    }
}

impl HeldLoad {
    /// Its task.
    pub fn task(&self) -> TaskId {
        self.ticket.task()
    }

    /// Ends it so. The pages that are not in the result are let go.
    pub fn end(self, result: LoadResult) {
        drop(self.batch);
        self.ticket.complete(result);
    }

    /// Ends it with what `load` makes of each page.
    pub fn each(self, mut load: impl FnMut(&mut LoadItem) -> LoadOutcome) {
        let load = |mut item: LoadItem| Loaded {
            outcome: load(&mut item),
            page: Some(item.page),
        };
        let loaded = self.batch.into_iter().map(load).collect();
        self.ticket.complete(LoadResult(loaded));
    }

    /// Ends it with what is stored under each key: body and trailer, or `None` if it is not there.
    pub fn fill(self, mut stored: impl FnMut(&ObjectKey) -> Option<Vec<u8>>) {
        self.each(|item| match stored(&item.key) {
            None => LoadOutcome::Missing,
            Some(stored) => match item.page.fill(&stored) {
                Ok(bytes) => LoadOutcome::Found(bytes),
                Err(error) => LoadOutcome::Failed(error.to_string()),
            },
        });
    }

    /// Never ends it, and keeps its pages until the adapter is dropped.
    pub fn lose(self) {
        self.adapter.lose(Lost::Load(self.batch, self.ticket));
    }
}

impl L2Adapter for ManualAdapter {
    fn event_fds(&self) -> EventFds<'_> {
        self.0.completions.event_fds()
    }

    fn submit_store(&self, batch: Vec<StoreItem>) -> anyhow::Result<TaskId> {
        self.submit(|state| {
            let unanswered = StoreResult::retryable("the test dropped the store");
            let ticket = self.0.completions.stores.ticket(unanswered);
            let task = ticket.task();
            state.stores.push_back((batch, ticket));
            task
        })
    }

    fn pop_completed_stores(&self) -> Vec<(TaskId, StoreResult)> {
        self.0.completions.stores.take_all()
    }

    fn submit_lookup_and_lock(&self, keys: Vec<ObjectKey>) -> anyhow::Result<TaskId> {
        self.submit(|state| {
            let unanswered = LookupResult::failed(keys.len(), "the test dropped the lookup");
            let ticket = self.0.completions.lookups.ticket(unanswered);
            let task = ticket.task();
            state.lookups.push_back((keys, ticket));
            task
        })
    }

    fn query_lookup_and_lock(&self, task: TaskId) -> Option<LookupResult> {
        self.0.completions.lookups.take(task)
    }

    fn submit_unlock(&self, keys: &[ObjectKey]) {
        keys.iter().for_each(|key| self.0.locks.unlock(key));
    }

    fn submit_load(&self, batch: Vec<LoadItem>) -> anyhow::Result<TaskId> {
        self.submit(|state| {
            let unanswered = LoadResult::failed(batch.len(), "the test dropped the load");
            let ticket = self.0.completions.loads.ticket(unanswered);
            let task = ticket.task();
            state.loads.push_back((batch, ticket));
            task
        })
    }

    fn query_load(&self, task: TaskId) -> Option<LoadResult> {
        self.0.completions.loads.take(task)
    }

    fn delete(&self, keys: &[ObjectKey]) -> anyhow::Result<DeleteResult> {
        let mut state = self.enter();
        let locked: Bitmap = keys.iter().map(|key| self.0.locks.is_locked(key)).collect();
        let gone = !&locked;
        state.deleted.extend(gone.gather(keys).into_iter().cloned());
        Ok(DeleteResult { gone, locked })
    }

    fn usage(&self) -> Usage {
        self.state().usage.clone()
    }

    fn list_keys(&self, _: &ListRequest) -> anyhow::Result<KeyPage> {
        Ok(self.state().listing.clone())
    }

    fn status(&self) -> AdapterStatus {
        self.state().status.clone()
    }

    fn cancel(&self, task: TaskId) {
        self.state().cancelled.push(task);
    }

    /// Fails what waits. What the test has taken and not ended, and what it lost, is abandoned.
    fn close(&self, _: Duration) -> CloseReport {
        let mut state = self.state();
        state.closed = true;
        let stores = std::mem::take(&mut state.stores);
        let lookups = std::mem::take(&mut state.lookups);
        let loads = std::mem::take(&mut state.loads);
        drop(state);
        drop((stores, lookups, loads));
        CloseReport {
            abandoned: self.0.completions.pending(),
        }
    }
}

impl fmt::Debug for ManualAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualAdapter")
            .field("completions", &self.0.completions)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for HeldStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HeldStore").field(&self.task()).finish()
    }
}

impl fmt::Debug for HeldLookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HeldLookup").field(&self.task()).finish()
    }
}

impl fmt::Debug for HeldLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HeldLoad").field(&self.task()).finish()
    }
}
