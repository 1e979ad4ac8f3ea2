//! What a lane costs: processor time and time per batch, from the call to its callback, over an adapter that does nothing. Prints
//! figures and asserts nothing: `cargo bench -p ondol-host --bench lane`.

use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use ondol_host::l2::{Backend, LaneOptions};
use ondol_plugin::l2::{KvRank, LoadItem, ObjectKey, ObjectRef, PageMut, StoreItem};
use ondol_testkit::l2::NullAdapter;
use rustix::time::{ClockId, clock_gettime};

const KEYS: usize = 64;
const BATCHES: u32 = 20_000;
const BODY: u64 = 4096;

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// Runs batches with so many under way at once.
fn measure(what: &str, under_way: u32, submit: impl Fn(Sender<()>)) {
    let (sender, done) = channel();
    let (start, processor) = (Instant::now(), processor_time());
    for batch in 0..BATCHES {
        submit(sender.clone());
        if batch >= under_way {
            done.recv().unwrap();
        }
    }
    for _ in 0..under_way.min(BATCHES) {
        done.recv().unwrap();
    }
    let per_batch = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(BATCHES);
    println!(
        "{what:8} {under_way:3} under way: {:7.2} us of processor time a batch of {KEYS}, {:7.2} us in all",
        per_batch(processor_time() - processor),
        per_batch(start.elapsed()),
    );
}

fn main() {
    let adapter = NullAdapter::full(BODY).unwrap();
    let spec = r#"{"type":"null"}"#.parse().unwrap();
    let backend = Backend::start(
        "null#0",
        spec,
        true,
        Box::new(adapter),
        LaneOptions::default(),
    );
    let backend = backend.unwrap();
    let timeout = Duration::from_secs(60);
    let key = |n: usize| {
        ObjectKey::new(
            "model",
            KvRank(0x0100_0100),
            0,
            (n as u64).to_le_bytes(),
            "",
        )
        .unwrap()
    };
    let keys: Vec<_> = (0..KEYS).map(key).collect();
    let object = ObjectRef::new(vec![0_u8; BODY as usize]);
    for under_way in [1, 16] {
        measure("store", under_way, |done| {
            let item = |key: &ObjectKey| StoreItem {
                key: key.clone(),
                object: object.clone(),
            };
            let batch = keys.iter().map(item).collect();
            backend.store(batch, timeout, move |_| done.send(()).unwrap());
        });
        measure("lookup", under_way, |done| {
            backend.lookup(keys.clone(), timeout, move |_| done.send(()).unwrap());
            backend.unlock(keys.clone());
        });
        measure("load", under_way, |done| {
            let item = |key: &ObjectKey| LoadItem {
                key: key.clone(),
                page: PageMut::new(Vec::new(), 0),
            };
            let batch = keys.iter().map(item).collect();
            backend.load(batch, timeout, move |_| done.send(()).unwrap());
        });
    }
}
