//! What the bridge costs: processor time for each key, of all threads, over a connector that does nothing.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ondol_connector::{Bridge, BridgeOptions};
use ondol_plugin::l2::{
    Completion, EventNotifier, FutureId, KvRank, L2Adapter, LoadItem, NativeConnector, ObjectKey,
    ObjectRef, PageMut, StoreItem,
};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{ClockId, clock_gettime};

const ROUNDS: u64 = 2000;

struct Null {
    notifier: EventNotifier,
    next: AtomicU64,
    ready: Mutex<Vec<Completion>>,
}

impl Null {
    fn complete(&self, pages: Vec<PageMut>) -> FutureId {
        let future = self.next.fetch_add(1, Ordering::Relaxed);
        self.ready.lock().push(Completion {
            future,
            ok: true,
            pages,
            ..Completion::default()
        });
        self.notifier.notify();
        FutureId(future)
    }
}

impl NativeConnector for Null {
    fn event_fd(&self) -> BorrowedFd<'_> {
        self.notifier.as_fd()
    }

    fn submit_batch_get(&self, _: &[String], pages: Vec<PageMut>) -> anyhow::Result<FutureId> {
        Ok(self.complete(pages))
    }

    fn submit_batch_set(&self, _: &[String], _: Vec<ObjectRef>) -> anyhow::Result<FutureId> {
        Ok(self.complete(Vec::new()))
    }

    fn submit_batch_exists(&self, _: &[String]) -> anyhow::Result<FutureId> {
        Ok(self.complete(Vec::new()))
    }

    fn drain_completions(&self) -> Vec<Completion> {
        self.notifier.consume();
        std::mem::take(&mut *self.ready.lock())
    }

    fn close(&self) {}
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        time.tv_nsec.unsigned_abs() as u32,
    )
}

fn wait(fd: BorrowedFd<'_>) {
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).expect("poll");
    rustix::io::read(fd, &mut [0; 8]).expect("an event");
}

fn measure(what: &str, keys: &[ObjectKey], mut round: impl FnMut()) {
    round();
    let begun = processor_time();
    (0..ROUNDS).for_each(|_| round());
    let spent = (processor_time() - begun).as_secs_f64() * 1e6;
    let operations = (ROUNDS * keys.len() as u64) as f64;
    println!(
        "{what:7} batches of {:3}: {:6.2} µs/key",
        keys.len(),
        spent / operations
    );
}

fn main() {
    let connector = Null {
        notifier: EventNotifier::new().expect("a descriptor"),
        next: AtomicU64::new(1),
        ready: Mutex::default(),
    };
    let bridge = Bridge::new("null", Box::new(connector), BridgeOptions::default());
    let bridge = bridge.expect("threads");
    let fds = bridge.event_fds();
    let object = ObjectRef::new(Vec::new());
    for batch in [1_u32, 64, 256] {
        let keys: Vec<_> = (0..batch)
            .map(|number| {
                let mut hash = [0x5a; 32];
                hash[..4].copy_from_slice(&number.to_be_bytes());
                ObjectKey::new("org/model", KvRank(0x0100_0100), 0, hash, "").expect("a key")
            })
            .collect();
        measure("store", &keys, || {
            let items = keys.iter().map(|key| StoreItem {
                key: key.clone(),
                object: object.clone(),
            });
            bridge.submit_store(items.collect()).expect("a store");
            wait(fds.store);
            assert_eq!(bridge.pop_completed_stores().len(), 1);
        });
        measure("lookup", &keys, || {
            let task = bridge
                .submit_lookup_and_lock(keys.clone())
                .expect("a lookup");
            wait(fds.lookup);
            assert!(bridge.query_lookup_and_lock(task).is_some());
            bridge.submit_unlock(&keys);
        });
        measure("load", &keys, || {
            let items = keys.iter().map(|key| LoadItem {
                key: key.clone(),
                page: PageMut::new(Vec::new(), 0),
            });
            let task = bridge.submit_load(items.collect()).expect("a load");
            wait(fds.load);
            assert!(bridge.query_load(task).is_some());
        });
    }
}
