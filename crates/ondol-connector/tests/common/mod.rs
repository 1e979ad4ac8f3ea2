//! A connector that does what a test tells it to, and waiting for what must happen.

#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ondol_connector::{Bridge, BridgeOptions};
use ondol_plugin::l2::{
    AdapterStatus, Completion, EventNotifier, FutureId, Health, KvRank, L2Adapter, LoadItem,
    LoadResult, LookupResult, NativeConnector, ObjectKey, ObjectRef, PageMut, StoreItem,
    StoreResult, TaskId,
};
use parking_lot::Mutex;

/// No test measures time; this is when a hang is called one.
const WATCHDOG: Duration = Duration::from_secs(60);

/// A time-out that is short, for tests in which one must strike.
pub(crate) const SHORT: Duration = Duration::from_millis(150);

/// A request that a puppet has taken.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) future: u64,
    pub(crate) what: What,
    pub(crate) keys: Vec<String>,
    pub(crate) pages: Vec<PageMut>,
    pub(crate) objects: Vec<ObjectRef>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Get,
    Set,
    Exists,
    Delete,
}

impl Taken {
    /// The completion that says yes to everything.
    pub(crate) fn succeed(self) -> Completion {
        Completion {
            future: self.future,
            ok: true,
            pages: self.pages,
            ..Completion::default()
        }
    }
}

type SubmitHook = dyn Fn(&Strings, u64) -> u64 + Send + Sync;
type DrainHook = dyn Fn(&Strings) + Send + Sync;

/// What a puppet hangs by.
pub(crate) struct Strings {
    notifier: EventNotifier,
    /// The descriptor that is shown instead of the notifier.
    shown: Option<OwnedFd>,
    taken: Mutex<VecDeque<Taken>>,
    ready: Mutex<Vec<Completion>>,
    next: AtomicU64,
    on_submit: Mutex<Option<Arc<SubmitHook>>>,
    on_drain: Mutex<Option<Arc<DrainHook>>>,
    on_close: Mutex<Option<Arc<DrainHook>>>,
    pub(crate) can_delete: AtomicBool,
    pub(crate) keeps_signal: AtomicBool,
    pub(crate) drains: AtomicUsize,
}

pub(crate) struct Puppet(pub(crate) Arc<Strings>);

impl Strings {
    pub(crate) fn new() -> Arc<Self> {
        Self::with_fd(None)
    }

    pub(crate) fn with_fd(shown: Option<OwnedFd>) -> Arc<Self> {
        Arc::new(Self {
            notifier: EventNotifier::new().unwrap(),
            shown,
            taken: Mutex::default(),
            ready: Mutex::default(),
            next: AtomicU64::new(1),
            on_submit: Mutex::new(None),
            on_drain: Mutex::new(None),
            on_close: Mutex::new(None),
            can_delete: AtomicBool::new(true),
            keeps_signal: AtomicBool::new(false),
            drains: AtomicUsize::new(0),
        })
    }

    /// A bridge over a puppet that hangs by these.
    pub(crate) fn bridge(self: &Arc<Self>, task_timeout: Duration) -> Bridge {
        let options = BridgeOptions {
            task_timeout,
            delete_timeout: SHORT,
            ..BridgeOptions::default()
        };
        Bridge::new("puppet", Box::new(Puppet(Arc::clone(self))), options).unwrap()
    }

    /// The next request, which the puppet then no longer has.
    pub(crate) fn next(&self) -> Taken {
        wait_for("a request", || self.taken.lock().pop_front())
    }

    /// Completes without a signal.
    pub(crate) fn complete_in_silence(&self, completion: Completion) {
        self.ready.lock().push(completion);
    }

    pub(crate) fn complete(&self, completion: Completion) {
        self.complete_in_silence(completion);
        self.notifier.notify();
    }

    pub(crate) fn on_submit(&self, hook: impl Fn(&Self, u64) -> u64 + Send + Sync + 'static) {
        *self.on_submit.lock() = Some(Arc::new(hook));
    }

    pub(crate) fn on_drain(&self, hook: impl Fn(&Self) + Send + Sync + 'static) {
        *self.on_drain.lock() = Some(Arc::new(hook));
    }

    pub(crate) fn on_close(&self, hook: impl Fn(&Self) + Send + Sync + 'static) {
        *self.on_close.lock() = Some(Arc::new(hook));
    }

    pub(crate) fn behave(&self) {
        *self.on_submit.lock() = None;
        *self.on_drain.lock() = None;
    }

    /// Whether so many requests wait to be taken by the test.
    pub(crate) fn is_taken(&self, count: usize) -> bool {
        self.taken.lock().len() >= count
    }

    /// Whether everything that was completed was drained.
    pub(crate) fn is_drained(&self) -> bool {
        self.ready.lock().is_empty()
    }

    pub(crate) fn signal(&self) {
        self.notifier.notify();
    }

    fn take(
        &self,
        what: What,
        keys: &[String],
        pages: Vec<PageMut>,
        objects: Vec<ObjectRef>,
    ) -> FutureId {
        let future = self.next.fetch_add(1, Ordering::Relaxed);
        let hook = self.on_submit.lock().clone();
        self.taken.lock().push_back(Taken {
            future,
            what,
            keys: keys.to_vec(),
            pages,
            objects,
        });
        FutureId(hook.map_or(future, |hook| hook(self, future)))
    }
}

impl NativeConnector for Puppet {
    fn event_fd(&self) -> BorrowedFd<'_> {
        match &self.0.shown {
            Some(shown) => shown.as_fd(),
            None => self.0.notifier.as_fd(),
        }
    }

    fn submit_batch_get(&self, keys: &[String], pages: Vec<PageMut>) -> anyhow::Result<FutureId> {
        Ok(self.0.take(What::Get, keys, pages, Vec::new()))
    }

    fn submit_batch_set(
        &self,
        keys: &[String],
        objects: Vec<ObjectRef>,
    ) -> anyhow::Result<FutureId> {
        Ok(self.0.take(What::Set, keys, Vec::new(), objects))
    }

    fn submit_batch_exists(&self, keys: &[String]) -> anyhow::Result<FutureId> {
        Ok(self.0.take(What::Exists, keys, Vec::new(), Vec::new()))
    }

    fn submit_batch_delete(&self, keys: &[String]) -> anyhow::Result<Option<FutureId>> {
        if !self.0.can_delete.load(Ordering::Relaxed) {
            return Ok(None);
        }
        Ok(Some(self.0.take(
            What::Delete,
            keys,
            Vec::new(),
            Vec::new(),
        )))
    }

    fn drain_completions(&self) -> Vec<Completion> {
        self.0.drains.fetch_add(1, Ordering::Relaxed);
        let hook = self.0.on_drain.lock().clone();
        if let Some(hook) = hook {
            hook(&self.0);
        }
        if !self.0.keeps_signal.load(Ordering::Relaxed) {
            self.0.notifier.consume();
        }
        std::mem::take(&mut *self.0.ready.lock())
    }

    fn close(&self) {
        let hook = self.0.on_close.lock().clone();
        if let Some(hook) = hook {
            hook(&self.0);
        }
    }
}

/// Asks until there is an answer.
pub(crate) fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begun.elapsed() < WATCHDOG, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn store_result(adapter: &impl L2Adapter, task: TaskId) -> StoreResult {
    wait_for("a store", || {
        let mut popped = adapter.pop_completed_stores().into_iter();
        popped
            .find(|(found, _)| *found == task)
            .map(|(_, result)| result)
    })
}

pub(crate) fn lookup_result(adapter: &impl L2Adapter, task: TaskId) -> LookupResult {
    wait_for("a lookup", || adapter.query_lookup_and_lock(task))
}

pub(crate) fn load_result(adapter: &impl L2Adapter, task: TaskId) -> LoadResult {
    wait_for("a load", || adapter.query_load(task))
}

pub(crate) fn key(number: u8) -> ObjectKey {
    ObjectKey::new("org/model", KvRank(0x0100_0100), 0, [number; 8], "").unwrap()
}

pub(crate) fn keys(numbers: impl IntoIterator<Item = u8>) -> Vec<ObjectKey> {
    numbers.into_iter().map(key).collect()
}

pub(crate) fn item(number: u8, length: usize) -> StoreItem {
    StoreItem {
        key: key(number),
        object: ObjectRef::new(vec![number; length]),
    }
}

/// A page, and a way to see whether somebody still has it.
pub(crate) fn page(length: usize, trailer: usize) -> (PageMut, Arc<()>) {
    let alive = Arc::new(());
    let memory = Guarded {
        bytes: vec![0; length],
        _alive: Arc::clone(&alive),
    };
    (PageMut::new(memory, trailer), alive)
}

struct Guarded {
    bytes: Vec<u8>,
    _alive: Arc<()>,
}

impl AsRef<[u8]> for Guarded {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Guarded {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

/// Items to load, and for each page whether it still is somewhere.
pub(crate) fn load_items(numbers: impl IntoIterator<Item = u8>) -> (Vec<LoadItem>, Vec<Arc<()>>) {
    numbers
        .into_iter()
        .map(|number| {
            let (page, alive) = page(16, 0);
            let key = key(number);
            (LoadItem { key, page }, alive)
        })
        .unzip()
}

/// Whether a page of [`page`] is still somewhere.
pub(crate) fn is_held(alive: &Arc<()>) -> bool {
    Arc::strong_count(alive) > 1
}

pub(crate) fn figure(adapter: &impl L2Adapter, name: &str) -> u64 {
    let status = adapter.status();
    status.figures[name].as_u64().unwrap()
}

pub(crate) fn expect_health(
    adapter: &impl L2Adapter,
    health: Health,
    reason: &str,
) -> AdapterStatus {
    let status = adapter.status();
    assert_eq!(status.health, health, "{status:?}");
    let found = status.reason.clone().unwrap_or_default();
    assert!(found.contains(reason), "{found:?} does not say {reason:?}");
    status
}
