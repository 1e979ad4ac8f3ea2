#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::HashMap;
use std::io::PipeReader;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use ondol_host::l2::{AdapterSpec, Backend, LaneOptions, TaskError};
use ondol_plugin::l2::{
    AdapterStatus, CloseReport, DeleteResult, EventFds, EventNotifier, KeyPage, KvRank, L2Adapter,
    ListRequest, LoadItem, LoadResult, LookupResult, ObjectKey, StoreItem, StoreResult, TaskId,
    Usage,
};
use ondol_testkit::l2::ManualAdapter;

const WATCHDOG: Duration = Duration::from_secs(60);

pub(crate) fn key(number: u8) -> ObjectKey {
    ObjectKey::new("model", KvRank(0x0100_0100), 0, [number; 4], "").unwrap()
}

pub(crate) fn keys(count: usize) -> Vec<ObjectKey> {
    (0..count as u8).map(key).collect()
}

/// Waits until it is so.
#[track_caller]
pub(crate) fn soon(mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + WATCHDOG;
    while !is_so() {
        assert!(Instant::now() < end, "it did not come to be");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Lanes that call nothing a hang that is merely slow.
pub(crate) fn options() -> LaneOptions {
    let mut options = LaneOptions::default();
    options.hang_after = WATCHDOG;
    options.figures_timeout = Duration::from_secs(1);
    options
}

pub(crate) fn spec() -> AdapterSpec {
    r#"{"type":"rogue"}"#.parse().unwrap()
}

pub(crate) fn start(rogue: Rogue, options: LaneOptions) -> std::io::Result<Arc<Backend>> {
    let adapter = Box::new(Guest(rogue));
    Backend::start("rogue#0", spec(), false, adapter, options)
}

pub(crate) fn backend(options: LaneOptions) -> (Arc<Backend>, Rogue) {
    backend_of(Rogue::new(), options)
}

pub(crate) fn backend_of(rogue: Rogue, options: LaneOptions) -> (Arc<Backend>, Rogue) {
    (start(rogue.clone(), options).unwrap(), rogue)
}

/// What a callback was given.
pub(crate) struct Answer<T>(Receiver<Result<T, TaskError>>);

impl<T: Send + 'static> Answer<T> {
    pub(crate) fn of(submit: impl FnOnce(Box<dyn FnOnce(Result<T, TaskError>) + Send>)) -> Self {
        let (sender, receiver) = channel();
        submit(Box::new(move |result| {
            let _ = sender.send(result);
        }));
        Self(receiver)
    }

    /// Waits for it. A callback that was dropped uncalled fails the test.
    #[track_caller]
    pub(crate) fn wait(self) -> Result<T, TaskError> {
        self.0
            .recv_timeout(WATCHDOG)
            .expect("nobody was called back")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Where {
    EventFds,
    SubmitStore,
    SubmitLookup,
    SubmitLoad,
    Unlock,
    PopStores,
    QueryLookup,
    QueryLoad,
    Cancel,
    Delete,
    ListKeys,
    Usage,
    Status,
    Close,
    Drop,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mishap {
    Hang,
    Panic,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Descriptors {
    Proper,
    One,
    Silent,
    DeadStore,
}

/// An adapter whose tasks the test ends, and whose methods hang or panic where it says.
#[derive(Clone)]
pub(crate) struct Rogue {
    pub(crate) manual: ManualAdapter,
    descriptors: Descriptors,
    inner: Arc<Inner>,
}

struct Inner {
    mishaps: Mutex<HashMap<Where, Mishap>>,
    changed: Condvar,
    hanging: AtomicUsize,
    calls: AtomicUsize,
    forged: Mutex<Vec<TaskId>>,
    number: Mutex<Option<TaskId>>,
    silent: [EventNotifier; 3],
    dead: PipeReader,
}

impl Rogue {
    pub(crate) fn new() -> Self {
        let silent = || EventNotifier::new().unwrap();
        Self {
            manual: ManualAdapter::new().unwrap(),
            descriptors: Descriptors::Proper,
            inner: Arc::new(Inner {
                mishaps: Mutex::default(),
                changed: Condvar::new(),
                hanging: AtomicUsize::new(0),
                calls: AtomicUsize::new(0),
                forged: Mutex::default(),
                number: Mutex::default(),
                silent: [silent(), silent(), silent()],
                dead: std::io::pipe().unwrap().0,
            }),
        }
    }

    pub(crate) fn with_one_descriptor(mut self) -> Self {
        self.descriptors = Descriptors::One;
        self
    }

    pub(crate) fn without_signals(mut self) -> Self {
        self.descriptors = Descriptors::Silent;
        self
    }

    pub(crate) fn with_dead_store_descriptor(mut self) -> Self {
        self.descriptors = Descriptors::DeadStore;
        self
    }

    pub(crate) fn set(&self, at: Where, mishap: Mishap) {
        self.inner.mishaps.lock().unwrap().insert(at, mishap);
    }

    /// Lets everything that hangs go on.
    pub(crate) fn release(&self) {
        self.inner.mishaps.lock().unwrap().clear();
        self.inner.changed.notify_all();
    }

    pub(crate) fn is_hanging(&self) -> bool {
        self.inner.hanging.load(Ordering::SeqCst) > 0
    }

    /// Calls that were made.
    pub(crate) fn calls(&self) -> usize {
        self.inner.calls.load(Ordering::SeqCst)
    }

    /// Has a store that nobody submitted finish.
    pub(crate) fn forge_store(&self, task: TaskId) {
        self.inner.forged.lock().unwrap().push(task);
    }

    /// Gives every new task this number.
    pub(crate) fn number_all(&self, number: TaskId) {
        *self.inner.number.lock().unwrap() = Some(number);
    }

    fn numbered(&self, task: TaskId) -> TaskId {
        self.inner.number.lock().unwrap().unwrap_or(task)
    }

    fn enter(&self, at: Where) -> &ManualAdapter {
        let inner = &*self.inner;
        inner.calls.fetch_add(1, Ordering::SeqCst);
        let mut mishaps = inner.mishaps.lock().unwrap();
        if mishaps.get(&at) == Some(&Mishap::Panic) {
            drop(mishaps);
            panic!("as told");
        }
        inner.hanging.fetch_add(1, Ordering::SeqCst);
        while mishaps.get(&at) == Some(&Mishap::Hang) {
            mishaps = inner.changed.wait(mishaps).unwrap();
        }
        inner.hanging.fetch_sub(1, Ordering::SeqCst);
        &self.manual
    }
}

/// The adapter that a backend owns.
pub(crate) struct Guest(pub(crate) Rogue);

impl Drop for Guest {
    fn drop(&mut self) {
        self.0.enter(Where::Drop);
    }
}

impl L2Adapter for Guest {
    fn event_fds(&self) -> EventFds<'_> {
        let proper = self.0.enter(Where::EventFds).event_fds();
        match self.0.descriptors {
            Descriptors::Proper => proper,
            Descriptors::One => EventFds {
                lookup: proper.store,
                ..proper
            },
            Descriptors::Silent => {
                let [store, lookup, load] = self.0.inner.silent.each_ref().map(AsFd::as_fd);
                EventFds {
                    store,
                    lookup,
                    load,
                }
            }
            Descriptors::DeadStore => EventFds {
                store: self.0.inner.dead.as_fd(),
                ..proper
            },
        }
    }

    fn submit_store(&self, batch: Vec<StoreItem>) -> anyhow::Result<TaskId> {
        let task = self.0.enter(Where::SubmitStore).submit_store(batch)?;
        Ok(self.0.numbered(task))
    }

    fn pop_completed_stores(&self) -> Vec<(TaskId, StoreResult)> {
        let mut results = self.0.enter(Where::PopStores).pop_completed_stores();
        let forged = std::mem::take(&mut *self.0.inner.forged.lock().unwrap());
        results.extend(
            forged
                .into_iter()
                .map(|task| (task, StoreResult::stored(1))),
        );
        results
    }

    fn submit_lookup_and_lock(&self, keys: Vec<ObjectKey>) -> anyhow::Result<TaskId> {
        self.0
            .enter(Where::SubmitLookup)
            .submit_lookup_and_lock(keys)
    }

    fn query_lookup_and_lock(&self, task: TaskId) -> Option<LookupResult> {
        self.0.enter(Where::QueryLookup).query_lookup_and_lock(task)
    }

    fn submit_unlock(&self, keys: &[ObjectKey]) {
        self.0.enter(Where::Unlock).submit_unlock(keys);
    }

    fn submit_load(&self, batch: Vec<LoadItem>) -> anyhow::Result<TaskId> {
        self.0.enter(Where::SubmitLoad).submit_load(batch)
    }

    fn query_load(&self, task: TaskId) -> Option<LoadResult> {
        self.0.enter(Where::QueryLoad).query_load(task)
    }

    fn delete(&self, keys: &[ObjectKey]) -> anyhow::Result<DeleteResult> {
        self.0.enter(Where::Delete).delete(keys)
    }

    fn usage(&self) -> Usage {
        self.0.enter(Where::Usage).usage()
    }

    fn list_keys(&self, request: &ListRequest) -> anyhow::Result<KeyPage> {
        self.0.enter(Where::ListKeys).list_keys(request)
    }

    fn status(&self) -> AdapterStatus {
        self.0.enter(Where::Status).status()
    }

    fn cancel(&self, task: TaskId) {
        self.0.enter(Where::Cancel).cancel(task);
    }

    fn close(&self, deadline: Duration) -> CloseReport {
        self.0.enter(Where::Close).close(deadline)
    }
}
