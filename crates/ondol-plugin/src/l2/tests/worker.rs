use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{WATCHDOG, key};
use crate::l2::{
    BlockingBackend, KeyPage, L2Adapter, ListRequest, LoadItem, LoadOutcome, LoadResult, Locks,
    LookupResult, ObjectKey, ObjectRef, PageMut, StoreError, StoreItem, StoreResult, TaskId, Usage,
    WorkerAdapter,
};

/// A map of objects, with keys that cannot be used, and a gate that can be shut.
#[derive(Default)]
struct Backend {
    objects: Mutex<BTreeMap<ObjectKey, Vec<u8>>>,
    broken: Mutex<BTreeSet<ObjectKey>>,
    gate: Arc<Gate>,
    closed: AtomicBool,
}

#[derive(Default)]
struct Gate {
    shut: Mutex<bool>,
    changed: Condvar,
    arrived: AtomicUsize,
}

impl Gate {
    fn set(&self, shut: bool) {
        *self.shut.lock().unwrap() = shut;
        self.changed.notify_all();
    }

    fn pass(&self) {
        self.arrived.fetch_add(1, Ordering::Relaxed);
        let shut = self.shut.lock().unwrap();
        drop(self.changed.wait_while(shut, |shut| *shut).unwrap());
    }
}

impl Backend {
    fn is_broken(&self, key: &ObjectKey) -> bool {
        self.broken.lock().unwrap().contains(key)
    }
}

impl BlockingBackend for Backend {
    fn store(&self, key: &ObjectKey, object: &ObjectRef) -> Result<u64, StoreError> {
        self.gate.pass();
        if self.is_broken(key) {
            return Err(StoreError {
                reason: format!("{key} is broken"),
                retryable: key.chunk_hash() == [9],
            });
        }
        let mut objects = self.objects.lock().unwrap();
        objects.insert(key.clone(), object.to_vec());
        Ok(object.stored_len() as u64)
    }

    fn lookup(&self, key: &ObjectKey) -> anyhow::Result<Option<u64>> {
        anyhow::ensure!(!self.is_broken(key), "{key} is broken");
        let objects = self.objects.lock().unwrap();
        Ok(objects.get(key).map(|stored| stored.len() as u64))
    }

    fn load(&self, key: &ObjectKey, page: &mut PageMut) -> LoadOutcome {
        self.gate.pass();
        assert!(!self.is_broken(key), "a broken key");
        match self.objects.lock().unwrap().get(key) {
            None => LoadOutcome::Missing,
            Some(stored) => match page.fill(stored) {
                Ok(bytes) => LoadOutcome::Found(bytes),
                Err(error) => LoadOutcome::Failed(error.to_string()),
            },
        }
    }

    fn delete(&self, key: &ObjectKey) -> anyhow::Result<bool> {
        anyhow::ensure!(!self.is_broken(key), "{key} is broken");
        Ok(self.objects.lock().unwrap().remove(key).is_some())
    }

    fn usage(&self) -> Usage {
        Usage::default()
    }

    fn list_keys(&self, _: &ListRequest) -> anyhow::Result<KeyPage> {
        Ok(KeyPage::default())
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }
}

fn adapter(threads: usize) -> WorkerAdapter<Backend> {
    WorkerAdapter::new("test", threads, Backend::default()).unwrap()
}

fn item(number: u8) -> StoreItem {
    StoreItem {
        key: key(number),
        object: ObjectRef::with_trailer(vec![number; 4], [number; 2]),
    }
}

fn wait(fd: BorrowedFd<'_>) {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let timeout = Timespec::try_from(WATCHDOG).unwrap();
    assert_eq!(poll(&mut fds, Some(&timeout)).unwrap(), 1, "no signal");
    rustix::io::read(fd, &mut [0; 8]).unwrap();
}

fn stored(adapter: &impl L2Adapter, task: TaskId) -> StoreResult {
    wait(adapter.event_fds().store);
    let results = adapter.pop_completed_stores();
    assert_eq!(results.len(), 1);
    assert_eq!(results[0].0, task);
    results[0].1.clone()
}

fn store(adapter: &impl L2Adapter, numbers: &[u8]) -> StoreResult {
    let batch = numbers.iter().map(|number| item(*number)).collect();
    let task = adapter.submit_store(batch).unwrap();
    stored(adapter, task)
}

fn lookup(adapter: &impl L2Adapter, numbers: &[u8]) -> LookupResult {
    let keys = numbers.iter().map(|number| key(*number)).collect();
    let task = adapter.submit_lookup_and_lock(keys).unwrap();
    wait(adapter.event_fds().lookup);
    let result = adapter.query_lookup_and_lock(task).unwrap();
    assert_eq!(adapter.query_lookup_and_lock(task), None);
    result
}

fn submit_load(adapter: &impl L2Adapter, numbers: &[u8]) -> TaskId {
    let batch = numbers.iter().map(|number| LoadItem {
        key: key(*number),
        page: PageMut::new(vec![0; 4], 2),
    });
    adapter.submit_load(batch.collect()).unwrap()
}

fn loaded(adapter: &impl L2Adapter, task: TaskId) -> LoadResult {
    wait(adapter.event_fds().load);
    let result = adapter.query_load(task).unwrap();
    assert!(adapter.query_load(task).is_none());
    result
}

#[test]
fn what_was_stored_is_found_and_loaded() {
    let adapter = adapter(2);
    assert_eq!(store(&adapter, &[1, 2]), StoreResult::stored(12));
    let found = lookup(&adapter, &[1, 3, 2]);
    assert_eq!(found.found.to_string(), "101");
    assert_eq!(found.sizes, [6, 0, 6]);
    let task = submit_load(&adapter, &[1, 3, 2]);
    let result = loaded(&adapter, task);
    assert_eq!(result.found().to_string(), "101");
    let page = result.0[2].page.as_ref().unwrap();
    assert_eq!(page.parts(), (&[2; 4][..], &[2; 2][..]));
    assert_eq!(result.0[1].outcome, LoadOutcome::Missing);
}

#[test]
fn one_object_that_fails_does_not_keep_the_others_of_its_batch_out() {
    let adapter = adapter(1);
    adapter.backend().broken.lock().unwrap().insert(key(2));
    let failed = store(&adapter, &[1, 2, 3]).0.unwrap_err();
    assert!(
        !failed.retryable && failed.reason.contains("broken"),
        "{failed}"
    );
    assert_eq!(lookup(&adapter, &[1, 3]).found.to_string(), "11");
    // Something of it can be tried again, and what is there then is skipped.
    adapter.backend().broken.lock().unwrap().insert(key(9));
    assert!(store(&adapter, &[2, 9]).0.unwrap_err().retryable);
}

#[test]
fn a_locked_object_is_not_deleted_until_every_lock_is_given_back() {
    let adapter = adapter(1);
    store(&adapter, &[1, 2]);
    lookup(&adapter, &[1]);
    lookup(&adapter, &[1]);
    adapter.submit_unlock(&[key(1)]);
    let result = adapter.delete(&[key(1), key(2), key(3)]).unwrap();
    assert_eq!(result.locked.to_string(), "100");
    assert_eq!(result.gone.to_string(), "011");
    adapter.submit_unlock(&[key(1), key(1), key(7)]);
    assert_eq!(adapter.delete(&[key(1)]).unwrap().gone.to_string(), "1");
    assert_eq!(lookup(&adapter, &[1]).found.to_string(), "0");
}

#[test]
fn an_object_that_cannot_be_deleted_is_neither_gone_nor_locked() {
    let adapter = adapter(1);
    adapter.backend().broken.lock().unwrap().insert(key(1));
    let result = adapter.delete(&[key(1), key(2)]).unwrap();
    assert_eq!(result.gone.to_string(), "01");
    assert_eq!(result.locked.to_string(), "00");
}

#[test]
fn a_lookup_that_fails_leaves_nothing_locked() {
    let locks: Arc<Locks> = Arc::default();
    let adapter =
        WorkerAdapter::with_locks("test", 1, Backend::default(), Arc::clone(&locks)).unwrap();
    store(&adapter, &[1, 2]);
    adapter.backend().broken.lock().unwrap().insert(key(3));
    let result = lookup(&adapter, &[1, 2, 3]);
    assert_eq!(result.found.to_string(), "000");
    assert!(result.error.unwrap().contains("broken"));
    assert!(!locks.is_locked(&key(1)) && !locks.is_locked(&key(2)));
    // What is not found is not locked either.
    lookup(&adapter, &[1, 8]);
    assert!(locks.is_locked(&key(1)) && !locks.is_locked(&key(8)));
}

#[test]
fn a_backend_that_panics_fails_its_task_and_no_other() {
    let adapter = adapter(1);
    store(&adapter, &[1]);
    adapter.backend().broken.lock().unwrap().insert(key(2));
    let task = submit_load(&adapter, &[1, 2]);
    let result = loaded(&adapter, task);
    assert!(result.0.iter().all(|loaded| loaded.page.is_none()));
    assert!(matches!(result.0[0].outcome, LoadOutcome::Failed(_)));
    assert_eq!(lookup(&adapter, &[1]).found.to_string(), "1");
}

#[test]
fn a_cancelled_task_ends_before_its_next_object() {
    let adapter = adapter(1);
    store(&adapter, &[1, 2]);
    adapter.backend().gate.set(true);
    let task = submit_load(&adapter, &[1, 2]);
    let queued = adapter.submit_store(vec![item(3)]).unwrap();
    adapter.cancel(queued);
    adapter.cancel(TaskId(4711));
    adapter.cancel(task);
    adapter.backend().gate.set(false);
    let result = loaded(&adapter, task);
    assert!(matches!(result.0[1].outcome, LoadOutcome::Failed(_)));
    assert!(result.0.iter().all(|loaded| loaded.page.is_some()));
    assert!(stored(&adapter, queued).0.unwrap_err().retryable);
    assert_eq!(lookup(&adapter, &[3]).found.to_string(), "0");
    // Cancelling what has ended is nothing.
    adapter.cancel(task);
}

#[test]
fn closing_ends_every_task_and_says_how_many_still_touch_their_buffers() {
    let adapter = adapter(1);
    store(&adapter, &[1]);
    let gate = Arc::clone(&adapter.backend().gate);
    gate.set(true);
    let arrived = gate.arrived.load(Ordering::Relaxed);
    let held = Arc::new(());
    let guard = |number| StoreItem {
        key: key(number),
        object: ObjectRef::new(Guard(Arc::clone(&held))),
    };
    let running = adapter.submit_store(vec![guard(1), guard(2)]).unwrap();
    let queued = adapter.submit_store(vec![guard(3)]).unwrap();
    let queued_load = submit_load(&adapter, &[1]);
    let begun = std::time::Instant::now();
    while gate.arrived.load(Ordering::Relaxed) == arrived {
        assert!(begun.elapsed() < WATCHDOG);
        std::thread::yield_now();
    }
    assert_eq!(adapter.close(Duration::ZERO).abandoned, 1);
    assert!(adapter.backend().closed.load(Ordering::Relaxed));
    assert!(adapter.query_load(queued_load).is_some());
    gate.set(false);
    assert_eq!(adapter.close(WATCHDOG).abandoned, 0);
    // It ended before its second object.
    assert_eq!(gate.arrived.load(Ordering::Relaxed), arrived + 1);
    let mut ended: Vec<_> = adapter.pop_completed_stores();
    ended.sort_by_key(|(task, _)| *task);
    assert_eq!(
        ended.iter().map(|(task, _)| *task).collect::<Vec<_>>(),
        [running, queued]
    );
    assert!(ended.iter().all(|(_, result)| result.0.is_err()));
    assert_eq!(Arc::strong_count(&held), 1, "a buffer was kept");
    // Afterwards tasks fail and let their buffers go.
    let late = adapter.submit_store(vec![guard(4)]).unwrap();
    assert_eq!(Arc::strong_count(&held), 1);
    assert_eq!(adapter.pop_completed_stores()[0].0, late);
}

struct Guard(#[expect(dead_code, reason = "it is counted")] Arc<()>);

impl AsRef<[u8]> for Guard {
    fn as_ref(&self) -> &[u8] {
        b"guarded"
    }
}

#[test]
fn buffers_are_let_go_before_the_result_is_there() {
    let adapter = adapter(1);
    let held = Arc::new(());
    for number in 0..100 {
        let item = StoreItem {
            key: key(number),
            object: ObjectRef::new(Guard(Arc::clone(&held))),
        };
        let task = adapter.submit_store(vec![item]).unwrap();
        stored(&adapter, task).0.unwrap();
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
