//! Drives an adapter as the core does: a task is asked for once, when its descriptor has signalled.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use ondol_plugin::l2::{
    CloseReport, DeleteResult, EventFds, EventNotifier, KeyEntry, KeyPage, L2Adapter, ListRequest,
    LoadItem, LoadOutcome, LoadResult, LookupResult, ObjectKey, StoreItem, StoreResult, TaskId,
    Usage,
};
use rustix::event::{PollFd, PollFlags, poll};

use super::DropCounter;
use super::samples::Sample;
use crate::apart::{Complaint, Outcome, Whereabouts, complaint};

/// An adapter at work, with a thread that waits for its signals.
pub(super) struct Driver {
    shared: Arc<Shared>,
    stop: Arc<EventNotifier>,
    poller: Option<thread::JoinHandle<()>>,
    at: Whereabouts,
    patience: Duration,
    usage_completes: bool,
}

struct Shared {
    adapter: Box<dyn L2Adapter>,
    /// Held to read while a task is submitted and written down, so that its signal is not answered in between.
    gate: RwLock<()>,
    table: Mutex<Table>,
    changed: Condvar,
    /// From then on a descriptor may be dead.
    is_closing: AtomicBool,
}

#[derive(Default)]
struct Table {
    waiting: HashMap<TaskId, Waiting>,
    /// Signals seen so far, by kind.
    signals: [u64; 3],
    ended: HashMap<TaskId, Ended>,
    given: HashSet<TaskId>,
    fault: Option<Complaint>,
    poller_is_gone: bool,
}

/// A task that has not ended, and the signals of its kind before it began.
struct Waiting {
    kind: Kind,
    signals: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Store,
    Lookup,
    Load,
}

enum Ended {
    Store(StoreResult),
    Lookup(LookupResult),
    Load(LoadResult),
}

impl Kind {
    const ALL: [Self; 3] = [Self::Store, Self::Lookup, Self::Load];

    const fn query(self) -> &'static str {
        match self {
            Self::Store => "pop_completed_stores",
            Self::Lookup => "query_lookup_and_lock",
            Self::Load => "query_load",
        }
    }

    pub(super) const fn fd<'a>(self, fds: &EventFds<'a>) -> BorrowedFd<'a> {
        match self {
            Self::Store => fds.store,
            Self::Lookup => fds.lookup,
            Self::Load => fds.load,
        }
    }
}

impl Driver {
    pub(super) fn new(
        adapter: Box<dyn L2Adapter>,
        at: &Whereabouts,
        patience: Duration,
        usage_completes: bool,
    ) -> Outcome<Self> {
        let notifier = EventNotifier::new();
        let stop = Arc::new(notifier.or_else(|error| complaint("testkit", error.to_string()))?);
        let shared = Arc::new(Shared {
            adapter,
            gate: RwLock::new(()),
            table: Mutex::default(),
            changed: Condvar::new(),
            is_closing: AtomicBool::new(false),
        });
        let poller = thread::spawn({
            let (shared, stop) = (Arc::clone(&shared), Arc::clone(&stop));
            move || {
                let _gone = PollerIsGone(&shared);
                shared.poll(&stop);
            }
        });
        Ok(Self {
            shared,
            stop,
            poller: Some(poller),
            at: at.clone(),
            patience,
            usage_completes,
        })
    }

    /// The adapter, which is about to be called so.
    pub(super) fn adapter(&self, place: &'static str) -> &dyn L2Adapter {
        self.at.set(place);
        &*self.shared.adapter
    }

    /// Submits a task and expects that it is taken.
    pub(super) fn submit(
        &self,
        kind: Kind,
        place: &'static str,
        submit: impl FnOnce(&dyn L2Adapter) -> anyhow::Result<TaskId>,
    ) -> Outcome<TaskId> {
        self.try_submit(kind, place, submit)?
            .or_else(|error| complaint(place, format!("was refused: {error:#}")))
    }

    pub(super) fn try_submit(
        &self,
        kind: Kind,
        place: &'static str,
        submit: impl FnOnce(&dyn L2Adapter) -> anyhow::Result<TaskId>,
    ) -> Outcome<anyhow::Result<TaskId>> {
        self.at.set(place);
        let _gate = self
            .shared
            .gate
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let signals = self.shared.table().signals[kind as usize];
        let task = match submit(&*self.shared.adapter) {
            Ok(task) => task,
            Err(error) => return Ok(Err(error)),
        };
        let mut table = self.shared.table();
        let waiting = Waiting { kind, signals };
        let is_new = table.waiting.insert(task, waiting).is_none() && !table.given.contains(&task);
        if !is_new {
            return complaint(
                place,
                format!(
                    "gave the number {} to a second task; expected one of its own",
                    task.0
                ),
            );
        }
        Ok(Ok(task))
    }

    pub(super) fn submit_store(&self, batch: Vec<StoreItem>) -> Outcome<TaskId> {
        self.submit(Kind::Store, "submit_store", |adapter| {
            adapter.submit_store(batch)
        })
    }

    pub(super) fn submit_lookup(&self, keys: Vec<ObjectKey>) -> Outcome<TaskId> {
        self.submit(Kind::Lookup, "submit_lookup_and_lock", |adapter| {
            adapter.submit_lookup_and_lock(keys)
        })
    }

    pub(super) fn submit_load(&self, batch: Vec<LoadItem>) -> Outcome<TaskId> {
        self.submit(Kind::Load, "submit_load", |adapter| {
            adapter.submit_load(batch)
        })
    }

    /// Waits for a store.
    pub(super) fn stored(&self, task: TaskId) -> Outcome<StoreResult> {
        match self.wait(task, Kind::Store)? {
            Ended::Store(result) => Ok(result),
            _ => complaint("testkit", "a store has another result"),
        }
    }

    /// Waits for a lookup.
    pub(super) fn found(&self, task: TaskId, keys: usize) -> Outcome<LookupResult> {
        let Ended::Lookup(result) = self.wait(task, Kind::Lookup)? else {
            return complaint("testkit", "a lookup has another result");
        };
        let lens = (result.found.len(), result.sizes.len());
        if lens != (keys, keys) {
            return complaint(
                "query_lookup_and_lock",
                format!(
                    "spoke of {} keys and {} sizes; expected {keys}, one for each key asked",
                    lens.0, lens.1
                ),
            );
        }
        if result.error.is_some() && result.found.count_ones() > 0 {
            return complaint(
                "query_lookup_and_lock",
                "found keys and reported an error; a lookup that fails finds and locks nothing",
            );
        }
        Ok(result)
    }

    /// Waits for a load.
    pub(super) fn loaded(&self, task: TaskId, keys: usize) -> Outcome<LoadResult> {
        let Ended::Load(result) = self.wait(task, Kind::Load)? else {
            return complaint("testkit", "a load has another result");
        };
        if result.0.len() != keys {
            return complaint(
                "query_load",
                format!(
                    "spoke of {} keys; expected {keys}, one for each key asked",
                    result.0.len()
                ),
            );
        }
        Ok(result)
    }

    /// Stores samples and expects that this succeeds; bytes transferred.
    pub(super) fn store(&self, samples: &[Sample]) -> Outcome<u64> {
        let task = self.submit_store(store_batch(samples, &DropCounter::new()))?;
        match self.stored(task)?.0 {
            Ok(bytes) => Ok(bytes),
            Err(error) => complaint("submit_store", format!("failed: {error}")),
        }
    }

    /// Looks keys up and expects that this succeeds.
    pub(super) fn lookup(&self, keys: Vec<ObjectKey>) -> Outcome<LookupResult> {
        let count = keys.len();
        let task = self.submit_lookup(keys)?;
        let result = self.found(task, count)?;
        match &result.error {
            None => Ok(result),
            Some(error) => complaint("submit_lookup_and_lock", format!("failed: {error}")),
        }
    }

    pub(super) fn unlock(&self, keys: &[ObjectKey]) {
        self.adapter("submit_unlock").submit_unlock(keys);
    }

    /// Gives back the locks that a lookup took.
    pub(super) fn unlock_found(&self, result: &LookupResult, keys: &[ObjectKey]) {
        let found: Vec<_> = result.found.gather(keys).into_iter().cloned().collect();
        self.unlock(&found);
    }

    /// Loads samples into pages that fit them.
    pub(super) fn load(&self, samples: &[Sample]) -> Outcome<LoadResult> {
        let task = self.submit_load(load_batch(samples, &DropCounter::new()))?;
        self.loaded(task, samples.len())
    }

    /// Expects that all samples are there, whole, for lookups and for loads.
    pub(super) fn expect_all(&self, samples: &[Sample], knows_sizes: bool) -> Outcome<()> {
        let keys = super::samples::keys(samples);
        let found = self.lookup(keys.clone())?;
        for (index, sample) in samples.iter().enumerate() {
            if !found.found.test(index) {
                return complaint(
                    "submit_lookup_and_lock",
                    format!("did not find {}, which was stored", sample.key),
                );
            }
            let size = found.sizes[index];
            let right = sample.stored_len() as u64;
            if size != right && (knows_sizes || size != 0) {
                return complaint(
                    "submit_lookup_and_lock",
                    format!(
                        "said that {} has {size} bytes; expected {right}, body and trailer",
                        sample.key
                    ),
                );
            }
        }
        let loaded = self.load(samples)?;
        for (index, sample) in samples.iter().enumerate() {
            expect_loaded(&loaded, index, sample)?;
        }
        self.unlock(&keys);
        Ok(())
    }

    pub(super) fn delete(&self, keys: &[ObjectKey]) -> Outcome<DeleteResult> {
        let result = self.adapter("delete").delete(keys);
        let result = result.or_else(|error| complaint("delete", format!("failed: {error:#}")))?;
        if (result.gone.len(), result.locked.len()) != (keys.len(), keys.len()) {
            return complaint("delete", "did not speak of each key");
        }
        if (&result.gone & &result.locked).count_ones() > 0 {
            return complaint(
                "delete",
                "said of a key that it is gone and that it is locked",
            );
        }
        Ok(result)
    }

    /// The usage, once it is complete if it ever will be.
    pub(super) fn usage(&self) -> Outcome<Usage> {
        let begun = std::time::Instant::now();
        loop {
            let usage = self.adapter("usage").usage();
            let by_salt: u64 = usage.bytes_by_salt.values().sum();
            let is_final = usage.is_complete || !self.usage_completes;
            if is_final && by_salt != usage.used_bytes {
                return complaint(
                    "usage",
                    format!(
                        "has {} bytes, of which {by_salt} under salts; expected the same",
                        usage.used_bytes
                    ),
                );
            }
            if is_final {
                return Ok(usage);
            }
            if begun.elapsed() > self.patience {
                return complaint(
                    "usage",
                    format!("was not complete within {:?}", self.patience),
                );
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub(super) fn list_page(&self, request: &ListRequest) -> Outcome<KeyPage> {
        let page = self.adapter("list_keys").list_keys(request);
        let page = page.or_else(|error| complaint("list_keys", format!("failed: {error:#}")))?;
        if page.entries.len() > request.page_size {
            return complaint(
                "list_keys",
                format!(
                    "gave {} keys; expected at most {}",
                    page.entries.len(),
                    request.page_size
                ),
            );
        }
        Ok(page)
    }

    /// Everything that is listed, in pages of this size.
    pub(super) fn list(&self, page_size: usize, model: Option<&str>) -> Outcome<Vec<KeyEntry>> {
        let mut request = ListRequest {
            model_name: model.map(str::to_owned),
            page_size,
            cursor: None,
        };
        let mut entries = Vec::new();
        let mut seen = HashSet::new();
        let mut cursors = HashSet::new();
        loop {
            let page = self.list_page(&request)?;
            for entry in page.entries {
                if !seen.insert(entry.key.clone()) {
                    return complaint("list_keys", format!("gave {} twice", entry.key));
                }
                entries.push(entry);
            }
            let Some(cursor) = page.next_cursor else {
                return Ok(entries);
            };
            if !cursors.insert(cursor.clone()) {
                return complaint(
                    "list_keys",
                    format!("gave the cursor {cursor:?} twice; it would never end"),
                );
            }
            request.cursor = Some(cursor);
        }
    }

    pub(super) fn close(&self) -> CloseReport {
        self.shared.is_closing.store(true, Ordering::Release);
        self.adapter("close").close(self.patience)
    }

    /// Takes the results that are there, signal or not; how many tasks have none.
    pub(super) fn sweep(&self) -> Outcome<usize> {
        let _gate = self
            .shared
            .gate
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        Kind::ALL
            .into_iter()
            .for_each(|kind| self.shared.take(kind));
        let mut table = self.shared.table();
        match table.fault.take() {
            Some(fault) => Err(fault),
            None => Ok(table.waiting.len()),
        }
    }

    /// The results that were taken and that nobody waited for; those of stores and loads that hold.
    pub(super) fn drop_results(&self) -> (Vec<TaskId>, Vec<TaskId>) {
        let ended = std::mem::take(&mut self.shared.table().ended);
        let (mut stored, mut loaded) = (Vec::new(), Vec::new());
        for (task, ended) in ended {
            match ended {
                Ended::Store(result) if result.0.is_ok() => stored.push(task),
                Ended::Load(result) if result.found().count_ones() > 0 => loaded.push(task),
                _ => {}
            }
        }
        (stored, loaded)
    }

    fn wait(&self, task: TaskId, kind: Kind) -> Outcome<Ended> {
        let waited =
            self.shared
                .changed
                .wait_timeout_while(self.shared.table(), self.patience, |table| {
                    !table.ended.contains_key(&task)
                        && table.fault.is_none()
                        && !table.poller_is_gone
                });
        let (mut table, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if let Some(fault) = table.fault.take() {
            return Err(fault);
        }
        if let Some(ended) = table.ended.remove(&task) {
            return Ok(ended);
        }
        if table.poller_is_gone {
            return complaint(kind.query(), "panicked");
        }
        let before = table
            .waiting
            .get(&task)
            .map_or(0, |waiting| waiting.signals);
        let was_signalled = table.signals[kind as usize] > before;
        drop(table);
        let gate = &self.shared.gate;
        let _gate = gate.write().unwrap_or_else(PoisonError::into_inner);
        self.shared.take(kind);
        let is_there = self.shared.table().ended.contains_key(&task);
        let what = match (is_there, was_signalled) {
            (true, true) => {
                "had no result at its signal, and has one now; publish the result first, then signal".to_owned()
            }
            (true, false) => "has a result of which no signal came".to_owned(),
            (false, _) => format!("had no result within {:?}; every task must end", self.patience),
        };
        complaint(kind.query(), what)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.stop.notify();
        if let Some(poller) = self.poller.take() {
            // What went wrong there was reported where somebody waited.
            let _ = poller.join();
        }
    }
}

struct PollerIsGone<'a>(&'a Shared);

impl Drop for PollerIsGone<'_> {
    fn drop(&mut self) {
        self.0.table().poller_is_gone = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accuse(&self, place: &str, what: String) {
        let place = place.to_owned();
        let mut table = self.table();
        table.fault.get_or_insert(Complaint { place, what });
        self.changed.notify_all();
    }

    fn poll(&self, stop: &EventNotifier) {
        let fds = self.adapter.event_fds();
        let stop = stop.as_fd();
        loop {
            let mut polled = [fds.store, fds.lookup, fds.load, stop]
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            if poll(&mut polled, None).is_err() {
                continue;
            }
            let [store, lookup, load, stopped] = polled.map(|fd| fd.revents());
            if !stopped.is_empty() {
                return;
            }
            let woken = [store, lookup, load];
            for (kind, events) in Kind::ALL.into_iter().zip(woken) {
                if events.is_empty() {
                    continue;
                }
                if !events.contains(PollFlags::IN) || !consume(kind.fd(&fds)) {
                    if !self.is_closing.load(Ordering::Acquire) {
                        let what = format!("of {} is dead ({events:?})", kind.query());
                        self.accuse("event_fds", what);
                    }
                    return;
                }
                self.table().signals[kind as usize] += 1;
                // Whoever is submitting writes the task down first.
                let _gate = self.gate.write().unwrap_or_else(PoisonError::into_inner);
                self.take(kind);
            }
        }
    }

    /// Asks for every task of this kind that has not ended, once.
    fn take(&self, kind: Kind) {
        if kind == Kind::Store {
            for (task, result) in self.adapter.pop_completed_stores() {
                self.end(task, kind, Ended::Store(result));
            }
            return;
        }
        let waiting: Vec<_> = {
            let table = self.table();
            let of_kind = table.waiting.iter().filter(|(_, task)| task.kind == kind);
            of_kind.map(|(task, _)| *task).collect()
        };
        for task in waiting {
            let ended = match kind {
                Kind::Lookup => self.adapter.query_lookup_and_lock(task).map(Ended::Lookup),
                _ => self.adapter.query_load(task).map(Ended::Load),
            };
            let Some(ended) = ended else { continue };
            let again = match kind {
                Kind::Lookup => self.adapter.query_lookup_and_lock(task).is_some(),
                _ => self.adapter.query_load(task).is_some(),
            };
            if again {
                self.accuse(
                    kind.query(),
                    "gave a result twice; expected once".to_owned(),
                );
            }
            self.end(task, kind, ended);
        }
    }

    fn end(&self, task: TaskId, kind: Kind, ended: Ended) {
        let mut table = self.table();
        match table.waiting.get(&task) {
            Some(waiting) if waiting.kind == kind => {
                table.waiting.remove(&task);
                table.given.insert(task);
                table.ended.insert(task, ended);
                self.changed.notify_all();
            }
            _ => {
                let was_given = table.given.contains(&task);
                drop(table);
                let what = match was_given {
                    true => format!("gave the result of task {} twice; expected once", task.0),
                    false => format!(
                        "gave the result of task {}, which is none of its own",
                        task.0
                    ),
                };
                self.accuse(kind.query(), what);
            }
        }
    }
}

/// Reads eight bytes, as who waits on a descriptor does; `false` if it is dead. It may have been read by nobody else.
fn consume(fd: BorrowedFd<'_>) -> bool {
    match rustix::io::read(fd, &mut [0; 8]) {
        Ok(bytes) => bytes > 0,
        Err(error) => error == rustix::io::Errno::AGAIN || error == rustix::io::Errno::INTR,
    }
}

/// Samples as a batch to store, in buffers that are counted.
pub(super) fn store_batch(samples: &[Sample], counter: &DropCounter) -> Vec<StoreItem> {
    let item = |sample: &Sample| StoreItem {
        key: sample.key.clone(),
        object: counter.object_with_trailer(sample.body.clone(), sample.trailer.clone()),
    };
    samples.iter().map(item).collect()
}

/// A batch to load samples into pages that fit them, which are counted.
pub(super) fn load_batch(samples: &[Sample], counter: &DropCounter) -> Vec<LoadItem> {
    let item = |sample: &Sample| LoadItem {
        key: sample.key.clone(),
        page: counter.page(sample.body.len(), sample.trailer.len()),
    };
    samples.iter().map(item).collect()
}

/// Expects that a sample was loaded, whole and unchanged.
pub(super) fn expect_loaded(result: &LoadResult, index: usize, sample: &Sample) -> Outcome<()> {
    let loaded = &result.0[index];
    let key = &sample.key;
    let LoadOutcome::Found(bytes) = loaded.outcome else {
        return complaint(
            "submit_load",
            format!("answered {:?} for {key}, which was stored", loaded.outcome),
        );
    };
    let Some(page) = &loaded.page else {
        return complaint(
            "query_load",
            format!("found {key} and did not give its page back"),
        );
    };
    let right = sample.stored();
    if bytes != right.len() as u64 {
        return complaint(
            "submit_load",
            format!(
                "said that {key} has {bytes} bytes; expected {}, body and trailer",
                right.len()
            ),
        );
    }
    let (body, trailer) = page.parts();
    if [body, trailer].concat()[..right.len()] != right {
        return complaint(
            "submit_load",
            format!("gave other bytes for {key} than were stored"),
        );
    }
    Ok(())
}
