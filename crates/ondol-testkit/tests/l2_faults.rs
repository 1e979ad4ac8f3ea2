//! Adapters that are wrong in one way each: the suite must say in which.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ondol_plugin::l2::{
    AdapterStatus, BlockingBackend, CloseReport, DeleteResult, EventFds, EventNotifier, Health,
    KeyPage, L2Adapter, ListRequest, LoadItem, LoadOutcome, LoadResult, Locks, LookupResult,
    ObjectKey, ObjectRef, PageMut, StoreError, StoreItem, StoreResult, TaskId, Usage,
    WorkerAdapter,
};
use ondol_testkit::l2::{Capabilities, Check, MapBackend, Subject};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    SharedDescriptor,
    SignalBeforeResult,
    LostSignal,
    ResultGivenTwice,
    ResultOfAnotherKind,
    LostCompletion,
    NumberUsedTwice,
    StrangeTask,
    WrongSize,
    WrongByte,
    ShortRead,
    TruncatedToThePage,
    DroppedTrailer,
    IgnoredSalt,
    DuplicateTransferred,
    MissingIsFailed,
    PageLost,
    HalfVisible,
    BufferKept,
    LockIgnored,
    LockNotCounted,
    MissingKeyLocked,
    DeleteLies,
    DuplicateCounted,
    SaltNotCounted,
    DeletedStaysCounted,
    UsageForgottenAtRestart,
    ObjectsForgottenAtRestart,
    LocksKeptAtRestart,
    ListRepeats,
    ListEndless,
    ListIncomplete,
    CursorIgnored,
    LostByCancel,
    PanicInLookup,
    HangInSubmit,
    HangInClose,
    LostAtClose,
    WorksAfterClose,
    BeyondCapacity,
    LockedEvicted,
    Unhealthy,
}

use Fault as F;

const CAPACITY: u64 = 1 << 20;

/// What outlives an adapter, as a disk does.
#[derive(Default)]
struct Storage {
    objects: MapBackend,
    locks: Arc<Locks>,
    order: Mutex<VecDeque<ObjectKey>>,
}

/// That somebody has seen something; waited for, but not for ever.
#[derive(Default)]
struct Seen(AtomicBool);

impl Seen {
    fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn wait(&self) {
        let begun = Instant::now();
        while !self.0.load(Ordering::Acquire) && begun.elapsed() < Duration::from_secs(10) {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

struct Backend {
    storage: Arc<Storage>,
    fault: Fault,
    half_is_seen: Seen,
    extra: AtomicU64,
    at_start: Usage,
}

impl Backend {
    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    fn name(&self, key: &ObjectKey) -> ObjectKey {
        if !self.is(F::IgnoredSalt) {
            return key.clone();
        }
        ObjectKey::new(key.model_name(), key.kv_rank(), 0, key.chunk_hash(), "").unwrap()
    }

    fn make_room(&self, bytes: u64) {
        let mut order = self.storage.order.lock().unwrap();
        while self.storage.objects.usage().used_bytes + bytes > CAPACITY {
            let oldest = order.pop_front().unwrap();
            self.storage.objects.delete(&oldest).unwrap();
        }
    }
}

impl BlockingBackend for Backend {
    fn store(&self, key: &ObjectKey, object: &ObjectRef) -> Result<u64, StoreError> {
        let objects = &self.storage.objects;
        let bytes = object.stored_len() as u64;
        if self.is(F::DroppedTrailer) && !object.trailer().is_empty() {
            objects.put(key.clone(), object.body());
            return Ok(bytes);
        }
        if self.is(F::HalfVisible) && objects.get(key).is_none() {
            objects.put(key.clone(), &object.body()[..object.body().len() / 2]);
            self.half_is_seen.wait();
            objects.put(key.clone(), object.to_vec());
            return Ok(bytes);
        }
        if self.is(F::DuplicateCounted) && objects.get(key).is_some() {
            self.extra.fetch_add(bytes, Ordering::Relaxed);
        }
        if self.is(F::DuplicateTransferred) {
            objects.put(key.clone(), object.to_vec());
            return Ok(bytes);
        }
        if self.is(F::LockedEvicted) {
            self.make_room(bytes);
            self.storage.order.lock().unwrap().push_back(key.clone());
        }
        objects.store(&self.name(key), object)
    }

    fn lookup(&self, key: &ObjectKey) -> anyhow::Result<Option<u64>> {
        let size = self.storage.objects.lookup(&self.name(key))?;
        if self.is(F::MissingKeyLocked) && size.is_none() {
            self.storage.locks.lock(key);
        }
        if self.is(F::HalfVisible) {
            // Only a load sees the half.
            return Ok(size.filter(|size| *size > 1 << 20));
        }
        Ok(size.map(|size| size + u64::from(self.is(F::WrongSize))))
    }

    fn load(&self, key: &ObjectKey, page: &mut PageMut) -> LoadOutcome {
        let key = self.name(key);
        let Some(mut stored) = self.storage.objects.get(&key) else {
            return match self.is(F::MissingIsFailed) {
                true => LoadOutcome::Failed("it is not there".to_owned()),
                false => LoadOutcome::Missing,
            };
        };
        self.half_is_seen.set();
        let whole = stored.len() as u64;
        if self.is(F::WrongByte)
            && let Some(last) = stored.last_mut()
        {
            *last ^= 1;
        }
        if self.is(F::ShortRead) {
            stored.truncate(stored.len() / 2);
        }
        if self.is(F::TruncatedToThePage) {
            stored.truncate(page.room());
        }
        match page.fill(&stored) {
            Ok(_) => LoadOutcome::Found(whole.min(page.room() as u64)),
            Err(error) => LoadOutcome::Failed(error.to_string()),
        }
    }

    fn delete(&self, key: &ObjectKey) -> anyhow::Result<bool> {
        if self.is(F::DeleteLies) {
            return Ok(true);
        }
        if self.is(F::DeletedStaysCounted)
            && let Some(stored) = self.storage.objects.get(key)
        {
            self.extra.fetch_add(stored.len() as u64, Ordering::Relaxed);
        }
        self.storage.objects.delete(&self.name(key))
    }

    fn usage(&self) -> Usage {
        let mut usage = self.storage.objects.usage();
        if self.is(F::SaltNotCounted) {
            usage.bytes_by_salt.clear();
        }
        if self.is(F::UsageForgottenAtRestart) {
            usage.objects -= self.at_start.objects;
        }
        if matches!(self.fault, F::BeyondCapacity | F::LockedEvicted) {
            usage.capacity_bytes = Some(CAPACITY);
        }
        let extra = self.extra.load(Ordering::Relaxed);
        usage.used_bytes += extra;
        if extra > 0 {
            *usage.bytes_by_salt.entry(String::new()).or_default() += extra;
        }
        usage
    }

    fn list_keys(&self, request: &ListRequest) -> anyhow::Result<KeyPage> {
        let mut request = request.clone();
        if self.is(F::CursorIgnored)
            && let Some(cursor) = &request.cursor
            && cursor.parse::<ObjectKey>().is_err()
        {
            request.cursor = None;
        }
        let mut page = self.storage.objects.list_keys(&request)?;
        if self.is(F::ListRepeats) && page.next_cursor.is_none() && page.entries.len() > 1 {
            // A page that begins where the last one did not end.
            page.entries.remove(1);
            page.entries.push(page.entries[0].clone());
        }
        if self.is(F::ListEndless) {
            page.next_cursor = page.next_cursor.or(request.cursor);
        }
        if self.is(F::ListIncomplete) && page.entries.len() > 1 {
            page.entries.pop();
        }
        Ok(page)
    }

    fn status(&self) -> AdapterStatus {
        let mut status = AdapterStatus::default();
        if self.is(F::Unhealthy) {
            status.health = Health::Degraded;
        }
        status
    }
}

struct Suspect {
    inner: WorkerAdapter<Backend>,
    fault: Fault,
    silent: EventNotifier,
    held_stores: Mutex<Vec<(TaskId, StoreResult)>>,
    seen_lookups: Mutex<HashMap<TaskId, LookupResult>>,
    loads: Mutex<HashSet<TaskId>>,
    kept: Mutex<Vec<ObjectRef>>,
    calls: AtomicU64,
    is_closed: AtomicBool,
    cancelled: Mutex<Vec<TaskId>>,
}

impl Suspect {
    fn open(storage: &Arc<Storage>, fault: Fault) -> anyhow::Result<Box<dyn L2Adapter>> {
        let locks = match fault {
            F::LocksKeptAtRestart | F::MissingKeyLocked => Arc::clone(&storage.locks),
            _ => Arc::default(),
        };
        let backend = Backend {
            storage: Arc::clone(storage),
            fault,
            half_is_seen: Seen::default(),
            extra: AtomicU64::new(0),
            at_start: storage.objects.usage(),
        };
        Ok(Box::new(Self {
            inner: WorkerAdapter::with_locks("suspect", 2, backend, locks)?,
            fault,
            silent: EventNotifier::new()?,
            held_stores: Mutex::default(),
            seen_lookups: Mutex::default(),
            loads: Mutex::default(),
            kept: Mutex::default(),
            calls: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            cancelled: Mutex::default(),
        }))
    }

    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }
}

impl L2Adapter for Suspect {
    fn event_fds(&self) -> EventFds<'_> {
        let mut fds = self.inner.event_fds();
        if self.is(F::SharedDescriptor) {
            fds.lookup = fds.load;
        }
        if self.is(F::LostSignal) {
            fds.load = self.silent.as_fd();
        }
        fds
    }

    fn submit_store(&self, batch: Vec<StoreItem>) -> anyhow::Result<TaskId> {
        if self.is(F::HangInSubmit) {
            loop {
                thread::park();
            }
        }
        if self.is(F::BufferKept) {
            let objects = batch.iter().map(|item| item.object.clone());
            self.kept.lock().unwrap().extend(objects);
        }
        if self.is(F::WorksAfterClose) && self.is_closed.load(Ordering::Relaxed) {
            let task = TaskId(1 << 40);
            let done = (task, StoreResult::stored(0));
            self.held_stores.lock().unwrap().push(done);
            return Ok(task);
        }
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        if self.is(F::LostCompletion) && call == 0 {
            return Ok(TaskId(1 << 40));
        }
        if self.is(F::LostAtClose) && call > 16 {
            // What waits in a queue when the close comes.
            return Ok(TaskId((1 << 40) + call));
        }
        let task = self.inner.submit_store(batch)?;
        match self.is(F::NumberUsedTwice) {
            true => Ok(TaskId(1)),
            false => Ok(task),
        }
    }

    fn pop_completed_stores(&self) -> Vec<(TaskId, StoreResult)> {
        let mut done = self.inner.pop_completed_stores();
        if self.is(F::NumberUsedTwice) {
            done.iter_mut().for_each(|(task, _)| *task = TaskId(1));
        }
        if self.is(F::StrangeTask) && !done.is_empty() {
            done.push((TaskId(4711), StoreResult::stored(0)));
        }
        let mut held = self.held_stores.lock().unwrap();
        if self.is(F::SignalBeforeResult) {
            return std::mem::replace(&mut held, done);
        }
        done.append(&mut held);
        done
    }

    fn submit_lookup_and_lock(&self, keys: Vec<ObjectKey>) -> anyhow::Result<TaskId> {
        assert!(!self.is(F::PanicInLookup), "as it should");
        self.inner.submit_lookup_and_lock(keys)
    }

    fn query_lookup_and_lock(&self, task: TaskId) -> Option<LookupResult> {
        let result = self.inner.query_lookup_and_lock(task);
        let mut seen = self.seen_lookups.lock().unwrap();
        if self.is(F::ResultGivenTwice)
            && let Some(result) = &result
        {
            seen.insert(task, result.clone());
        } else if result.is_none() {
            return seen.remove(&task);
        }
        result
    }

    fn submit_unlock(&self, keys: &[ObjectKey]) {
        self.inner.submit_unlock(keys);
        if self.is(F::LockNotCounted) {
            for _ in 0..9 {
                self.inner.submit_unlock(keys);
            }
        }
    }

    fn submit_load(&self, batch: Vec<LoadItem>) -> anyhow::Result<TaskId> {
        let task = self.inner.submit_load(batch)?;
        self.loads.lock().unwrap().insert(task);
        Ok(task)
    }

    fn query_load(&self, task: TaskId) -> Option<LoadResult> {
        if self.cancelled.lock().unwrap().contains(&task) {
            return None;
        }
        let mut result = self.inner.query_load(task);
        if self.is(F::PageLost)
            && let Some(result) = &mut result
        {
            for loaded in &mut result.0 {
                if loaded.outcome == LoadOutcome::Missing {
                    loaded.page = None;
                }
            }
        }
        let is_other = !self.loads.lock().unwrap().contains(&task);
        if self.is(F::ResultOfAnotherKind) && is_other {
            return Some(LoadResult::default());
        }
        result
    }

    fn delete(&self, keys: &[ObjectKey]) -> anyhow::Result<DeleteResult> {
        if self.is(F::LockIgnored) {
            for _ in 0..9 {
                self.inner.submit_unlock(keys);
            }
        }
        self.inner.delete(keys)
    }

    fn usage(&self) -> Usage {
        self.inner.usage()
    }

    fn list_keys(&self, request: &ListRequest) -> anyhow::Result<KeyPage> {
        self.inner.list_keys(request)
    }

    fn status(&self) -> AdapterStatus {
        self.inner.status()
    }

    fn cancel(&self, task: TaskId) {
        if self.is(F::LostByCancel) {
            self.cancelled.lock().unwrap().push(task);
        }
        self.inner.cancel(task);
    }

    fn close(&self, deadline: Duration) -> CloseReport {
        if self.is(F::HangInClose) {
            loop {
                thread::park();
            }
        }
        self.is_closed.store(true, Ordering::Relaxed);
        self.inner.close(deadline)
    }
}

/// Opens suspects with this fault; one storage for each directory.
fn subject(fault: Fault) -> Subject {
    let storages: Mutex<HashMap<std::path::PathBuf, Arc<Storage>>> = Mutex::default();
    let subject = Subject::opened_by(move |dir| {
        let mut storages = storages.lock().unwrap();
        if fault == F::ObjectsForgottenAtRestart {
            storages.clear();
        }
        let storage = Arc::clone(storages.entry(dir.to_owned()).or_default());
        Suspect::open(&storage, fault)
    });
    let mut capabilities = Capabilities::default().persisting();
    if matches!(fault, F::BeyondCapacity | F::LockedEvicted) {
        capabilities = capabilities.evicting();
    }
    subject.with_capabilities(capabilities)
}

/// Runs one check on a suspect with this fault, and expects that it is found in this place, for this reason.
#[track_caller]
fn expect(fault: Fault, check: Check, place: &str, what: &str) {
    let subject = match fault {
        // What never ends is waited for, so not for long.
        F::SignalBeforeResult
        | F::LostSignal
        | F::LostCompletion
        | F::LostByCancel
        | F::HangInSubmit
        | F::HangInClose => subject(fault).with_patience(Duration::from_secs(1)),
        _ => subject(fault),
    };
    let report = check.run(&subject);
    let [violation] = report.violations() else {
        panic!("{fault:?} was not found: {report}");
    };
    assert_eq!(
        (violation.check, violation.place.as_str()),
        (check.name(), place),
        "{report}"
    );
    assert!(
        violation.what.contains(what),
        "{fault:?}: {what:?} is not in {report}"
    );
}

#[test]
fn one_descriptor_for_two_kinds() {
    expect(
        F::SharedDescriptor,
        Check::Descriptors,
        "event_fds",
        "expected six different ones",
    );
}

#[test]
fn a_signal_before_its_result() {
    expect(
        F::SignalBeforeResult,
        Check::OneShot,
        "pop_completed_stores",
        "publish the result first",
    );
}

#[test]
fn a_signal_that_is_lost() {
    expect(
        F::LostSignal,
        Check::OneShot,
        "query_load",
        "no signal came",
    );
}

#[test]
fn a_result_that_is_given_twice() {
    expect(
        F::ResultGivenTwice,
        Check::OneShot,
        "query_lookup_and_lock",
        "twice",
    );
}

#[test]
fn a_result_for_a_task_of_another_kind() {
    expect(
        F::ResultOfAnotherKind,
        Check::OneShot,
        "query_load",
        "none of its kind",
    );
}

#[test]
fn a_completion_that_is_lost() {
    expect(
        F::LostCompletion,
        Check::RoundTrip,
        "pop_completed_stores",
        "every task must end",
    );
}

#[test]
fn one_number_for_two_tasks() {
    expect(
        F::NumberUsedTwice,
        Check::RoundTrip,
        "submit_store",
        "to a second task",
    );
}

#[test]
fn a_task_that_was_never_submitted() {
    expect(
        F::StrangeTask,
        Check::RoundTrip,
        "pop_completed_stores",
        "none of its own",
    );
}

#[test]
fn a_size_that_is_wrong() {
    expect(
        F::WrongSize,
        Check::RoundTrip,
        "submit_lookup_and_lock",
        "bytes; expected",
    );
}

#[test]
fn a_byte_that_is_wrong() {
    expect(F::WrongByte, Check::RoundTrip, "submit_load", "other bytes");
}

#[test]
fn a_short_read_that_is_called_found() {
    expect(F::ShortRead, Check::Sizes, "submit_load", "other bytes");
}

#[test]
fn an_object_that_is_cut_to_its_page() {
    expect(
        F::TruncatedToThePage,
        Check::SmallPages,
        "submit_load",
        "since it is not whole",
    );
}

#[test]
fn a_trailer_that_is_dropped() {
    expect(
        F::DroppedTrailer,
        Check::RoundTrip,
        "submit_lookup_and_lock",
        "body and trailer",
    );
}

#[test]
fn a_salt_that_is_ignored() {
    expect(
        F::IgnoredSalt,
        Check::MissingKeys,
        "submit_lookup_and_lock",
        "found 1 of three keys",
    );
}

#[test]
fn a_duplicate_that_is_transferred() {
    expect(
        F::DuplicateTransferred,
        Check::RoundTrip,
        "submit_store",
        "objects that were there",
    );
}

#[test]
fn a_missing_key_that_is_called_a_failure() {
    expect(
        F::MissingIsFailed,
        Check::MissingKeys,
        "submit_load",
        "expected Missing",
    );
}

#[test]
fn a_page_that_does_not_come_back() {
    expect(F::PageLost, Check::Buffers, "query_load", "pages back");
}

#[test]
fn an_object_that_is_visible_in_part() {
    expect(
        F::HalfVisible,
        Check::Atomicity,
        "submit_load",
        "has 1048576 bytes; expected",
    );
}

#[test]
fn a_buffer_that_is_kept() {
    expect(
        F::BufferKept,
        Check::Buffers,
        "submit_store",
        "kept 16 of 16 buffers",
    );
}

#[test]
fn a_lock_that_delete_ignores() {
    expect(
        F::LockIgnored,
        Check::Locks,
        "delete",
        "with two locks said gone",
    );
}

#[test]
fn locks_that_are_not_counted() {
    expect(
        F::LockNotCounted,
        Check::Locks,
        "delete",
        "with one of two locks given back said gone",
    );
}

#[test]
fn a_lock_on_a_key_that_was_not_found() {
    expect(
        F::MissingKeyLocked,
        Check::Locks,
        "delete",
        "that a lookup did not find said locked",
    );
}

#[test]
fn a_delete_that_lies() {
    expect(F::DeleteLies, Check::Deletion, "delete", "left objects");
}

#[test]
fn a_duplicate_that_is_counted() {
    expect(
        F::DuplicateCounted,
        Check::Usage,
        "usage",
        "after the same stores again",
    );
}

#[test]
fn a_salt_that_is_not_counted() {
    expect(F::SaltNotCounted, Check::Usage, "usage", "under salts");
}

#[test]
fn a_deleted_object_that_stays_counted() {
    expect(
        F::DeletedStaysCounted,
        Check::Usage,
        "usage",
        "after two were deleted",
    );
}

#[test]
fn usage_that_is_forgotten_at_a_restart() {
    expect(
        F::UsageForgottenAtRestart,
        Check::Restart,
        "usage",
        "after a close",
    );
}

#[test]
fn objects_that_are_forgotten_at_a_restart() {
    expect(
        F::ObjectsForgottenAtRestart,
        Check::Restart,
        "submit_lookup_and_lock",
        "did not find",
    );
}

#[test]
fn locks_that_outlive_a_restart() {
    expect(
        F::LocksKeptAtRestart,
        Check::Restart,
        "delete",
        "locked before a close",
    );
}

#[test]
fn a_list_that_repeats_keys() {
    expect(F::ListRepeats, Check::Listing, "list_keys", "twice");
}

#[test]
fn a_list_that_never_ends() {
    expect(F::ListEndless, Check::Listing, "list_keys", "never end");
}

#[test]
fn a_list_that_leaves_keys_out() {
    expect(
        F::ListIncomplete,
        Check::Listing,
        "list_keys",
        "expected 31",
    );
}

#[test]
fn a_strange_cursor_that_is_taken() {
    expect(F::CursorIgnored, Check::Listing, "list_keys", "never gave");
}

#[test]
fn a_task_that_is_lost_by_its_cancel() {
    expect(
        F::LostByCancel,
        Check::Cancel,
        "query_load",
        "every task must end",
    );
}

#[test]
fn a_panic_in_a_submit() {
    expect(
        F::PanicInLookup,
        Check::RoundTrip,
        "submit_lookup_and_lock",
        "panicked: as it should",
    );
}

#[test]
fn a_submit_that_hangs() {
    expect(
        F::HangInSubmit,
        Check::RoundTrip,
        "submit_store",
        "did not return",
    );
}

#[test]
fn a_close_that_hangs() {
    expect(F::HangInClose, Check::Close, "close", "did not return");
}

#[test]
fn a_task_that_is_lost_at_the_close() {
    expect(F::LostAtClose, Check::Close, "close", "without a result");
}

#[test]
fn work_after_the_close() {
    expect(
        F::WorksAfterClose,
        Check::AfterClose,
        "submit",
        "after the close",
    );
}

#[test]
fn a_capacity_that_is_not_kept() {
    expect(F::BeyondCapacity, Check::Eviction, "usage", "of a capacity");
}

#[test]
fn an_eviction_of_what_is_locked() {
    expect(F::LockedEvicted, Check::Eviction, "eviction", "locked");
}

#[test]
fn an_adapter_that_is_ill() {
    expect(F::Unhealthy, Check::Status, "status", "healthy");
}

/// Registrations that are wrong; the adapter is a good one.
mod registrations {
    use ondol_plugin::l2::{AdapterConfig, L2AdapterFactory, OpenContext, Parameter};
    use ondol_plugin::{inventory, package};

    use super::*;

    type Opened = anyhow::Result<Box<dyn L2Adapter>>;

    fn careless(_: AdapterConfig, _: &OpenContext<'_>) -> Opened {
        Suspect::open(&Arc::default(), F::Unhealthy)
    }

    fn vague(config: AdapterConfig, context: &OpenContext<'_>) -> Opened {
        anyhow::ensure!(
            config.parameters().contains_key("size"),
            "something is wrong"
        );
        careless(config, context)
    }

    fn brittle(config: AdapterConfig, context: &OpenContext<'_>) -> Opened {
        let size = config.parameters().get("size");
        assert!(!size.is_some_and(serde_json::Value::is_object), "no object");
        careless(config, context)
    }

    inventory::submit! {
        L2AdapterFactory::new("careless", module_path!(), "Careless", package!(), careless)
            .parameters(&[Parameter::required("size", "its size")])
    }

    inventory::submit! {
        L2AdapterFactory::new("vague", module_path!(), "Vague", package!(), vague)
            .parameters(&[Parameter::required("size", "its size")])
    }

    inventory::submit! {
        L2AdapterFactory::new("brittle", module_path!(), "Brittle", package!(), brittle)
            .parameters(&[Parameter::optional("size", "0", "its size")])
    }

    #[track_caller]
    fn expect(config: serde_json::Value, place: &str, what: &str) {
        let subject = Subject::linked(env!("CARGO_PKG_NAME"), move |_| config.clone());
        let report = Check::Configuration.run(&subject);
        let [violation] = report.violations() else {
            panic!("nothing was found: {report}");
        };
        assert_eq!(violation.place, place, "{report}");
        assert!(violation.what.contains(what), "{what:?} is not in {report}");
    }

    #[test]
    fn a_type_that_nobody_registered() {
        let config = serde_json::json!({"type": "no such type"});
        expect(config, "registration", "inventory::submit!");
    }

    #[test]
    fn a_parameter_that_is_not_listed() {
        let config = serde_json::json!({"type": "careless", "secret": 1, "eviction": {}});
        expect(config, "parameters", "`secret`");
    }

    #[test]
    fn a_required_parameter_that_is_not_required() {
        expect(
            serde_json::json!({"type": "careless", "size": 1}),
            "open",
            "did well without `size`",
        );
    }

    #[test]
    fn a_required_parameter_that_is_not_named() {
        expect(
            serde_json::json!({"type": "vague", "size": 1}),
            "open",
            "did not name it",
        );
    }

    #[test]
    fn a_parameter_that_makes_it_panic() {
        let config = serde_json::json!({"type": "brittle"});
        expect(config, "open", "panicked: no object");
    }
}
