//! The rooms of the storage tier together: a real pool and directory, real lanes, adapters that do as a test says.

mod attach;
mod delete;
mod evict;
mod hangs;
mod shelf;
mod store;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ondol_host::l2::{AdapterSpec, Backend, LaneOptions};
use ondol_plugin::Key;
use ondol_plugin::l2::{L2Adapter, WorkerAdapter};

use crate::memory::testing::L1;
use crate::{Tiering, TieringConfig};
use shelf::Shelf;

/// How long a test waits for what must happen.
const WATCHDOG: Duration = Duration::from_secs(60);
/// Bytes of an object.
const LEN: usize = 4096;

fn l1() -> L1 {
    L1::new(16 << 20)
}

/// Waits until something holds.
#[track_caller]
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + WATCHDOG;
    while !holds() {
        assert!(Instant::now() < end, "within {WATCHDOG:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn backend(adapter: impl L2Adapter + 'static, json: &str) -> Arc<Backend> {
    let spec: AdapterSpec = json.parse().expect("a specification");
    let name = format!("{}#0", spec.type_name);
    Backend::start(
        &name,
        spec,
        false,
        Box::new(adapter),
        LaneOptions::default(),
    )
    .expect("a lane")
}

/// A shelf as a backend, with more of its configuration.
fn shelf_backend(shelf: &Shelf, more: &str) -> Arc<Backend> {
    let adapter = WorkerAdapter::new("shelf", 2, shelf.clone()).expect("threads");
    backend(adapter, &format!(r#"{{"type":"shelf"{more}}}"#))
}

fn config() -> TieringConfig {
    TieringConfig {
        store_backoff: Duration::from_millis(5),
        breaker_pause: Duration::from_millis(50),
        ..TieringConfig::default()
    }
}

/// The storage tier. Over an empty pool it has looked through it when this returns.
fn start(l1: &L1, backends: Vec<Arc<Backend>>, config: TieringConfig) -> Arc<Tiering> {
    let (walks, is_empty) = (backends.len() as u64, l1.memory.list(None, 1).is_empty());
    let tiering = Tiering::start(Arc::clone(&l1.memory), backends, config);
    let tiering = tiering.expect("the storage tier starts");
    if is_empty && walks > 0 {
        until("all have walked", || count(&tiering, "walks") == walks);
    }
    tiering
}

fn key(number: u64) -> Key {
    Key::integer(number)
}

fn bytes(number: u64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().repeat(LEN / 8);
    bytes[LEN - 1] = 0x5a;
    bytes
}

/// Commits objects in memory, and says so to nobody.
fn put(l1: &L1, numbers: impl IntoIterator<Item = u64>) -> Vec<(Key, u64)> {
    let put = |number| {
        assert!(l1.put(&key(number), &bytes(number)), "{number} is new");
        (key(number), LEN as u64)
    };
    numbers.into_iter().map(put).collect()
}

/// Commits objects in memory as a client does.
fn commit(l1: &L1, tiering: &Tiering, numbers: impl IntoIterator<Item = u64>) {
    tiering.committed(&put(l1, numbers));
}

fn unstored(l1: &L1, numbers: impl IntoIterator<Item = u64>) -> usize {
    let keys: Vec<_> = numbers.into_iter().map(key).collect();
    l1.memory.unstored(&keys).count_ones()
}

/// A counter of all backends together.
fn count(tiering: &Tiering, name: &str) -> u64 {
    let name = format!("ondol_l2_{name}_total");
    let counters = tiering.stats().counters;
    *counters
        .get(&name)
        .unwrap_or_else(|| panic!("no counter {name}"))
}
