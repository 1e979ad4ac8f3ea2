//! What the storage tier's control path costs: CPU time of the process per key, beside what LMCache 0.5.6 was measured to
//! take. Prints figures and asserts nothing.
//!
//! `cargo bench -p ondol-tiering --bench control_path` prints the best of several rounds. The backends do next to nothing, and the
//! objects are small, so that what is left is the bookkeeping: queues, leases, names, trailers, tasks, marks.
//!
//! With `--once stored`, `--once prefetch` or `--once memory`, each of which does what the one before does and more, it runs once,
//! for a profiler.

mod keeping;
mod null;
mod prefetch;
#[allow(dead_code, reason = "the tests use more of it")]
#[path = "../../src/memory/testing.rs"]
mod testing;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ondol_host::l2::{Backend, LaneOptions};
use ondol_plugin::l2::L2Adapter;
use ondol_plugin::{Key, KeyTag};
use ondol_protocol::{Commit, CommitOutcome};
use ondol_shm::{Location, ObjectMeta};
use ondol_tiering::{Memory, Tiering, TieringConfig};
use rustix::time::{ClockId, clock_gettime};

use null::NullAdapter;
use testing::{CLIENT, L1};

const ROUNDS: usize = 7;
const BATCH: usize = 64;
const KEYS: usize = 256 * BATCH;
/// Bytes of an object, and of the page that it lies in.
const LEN: u64 = 64;
const STRIDE: u64 = 4096;

/// CPU time of this process in microseconds.
fn cpu_us() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 * 1e6 + now.tv_nsec as f64 / 1e3
}

/// Keys as LMCache's clients name objects.
fn keys() -> Vec<Key> {
    let name = |number| format!("meta-llama/Llama-3.1-8B@01000100@0@{number:064x}");
    (0..KEYS)
        .map(|number| Key::new(KeyTag::LmCache, name(number).as_bytes()).expect("it is short"))
        .collect()
}

/// Commits one batch as a client does, without writing its bytes.
fn commit(l1: &L1, request: u64, keys: &[Key]) -> Vec<(Key, u64)> {
    let count = keys.len() as u32;
    let grants = l1
        .directory
        .grant(CLIENT, request, STRIDE, count, u64::MAX)
        .expect("there is room");
    let commits: Vec<_> = grants
        .iter()
        .zip(keys)
        .map(|(grant, key)| Commit {
            key: key.clone(),
            location: Location {
                page: grant.page,
                generation: grant.generation,
                len: LEN,
            },
            meta: ObjectMeta::default(),
        })
        .collect();
    let outcomes = l1.directory.commit(CLIENT, &commits).expect("it commits");
    assert!(
        outcomes
            .iter()
            .all(|it| matches!(it, CommitOutcome::Stored))
    );
    keys.iter().map(|key| (key.clone(), LEN)).collect()
}

fn tier(l1: &L1, adapter: Box<dyn L2Adapter>) -> Arc<Tiering> {
    let spec = r#"{"type":"null"}"#.parse().expect("a specification");
    let options = LaneOptions::default();
    let backend = Backend::start("null#0", spec, false, adapter, options);
    let backends = vec![backend.expect("a lane")];
    let tiering = Tiering::start(Arc::clone(&l1.memory), backends, TieringConfig::default());
    tiering.expect("the storage tier starts")
}

/// CPU time per key of a store: all of it from the grant on, and the storage tier's part.
fn store(keys: &[Key]) -> (f64, f64) {
    let l1 = L1::new((KEYS as u64 * STRIDE).next_multiple_of(2 << 20) + (8 << 20));
    let (adapter, stored) = NullAdapter::new();
    let tiering = tier(&l1, Box::new(adapter));
    let begin = cpu_us();
    let batches: Vec<_> = keys.chunks(BATCH).zip(1..).collect();
    let batches: Vec<_> = batches
        .into_iter()
        .map(|(keys, request)| commit(&l1, request, keys))
        .collect();
    let committed = cpu_us();
    // A server's pool is in memory, and in its mapping, from the start.
    for keys in keys.chunks(BATCH) {
        let leases = l1.memory.lease(keys);
        let bytes = leases.iter().flatten().map(|lease| lease.as_ref()[0]);
        std::hint::black_box(bytes.map(u64::from).sum::<u64>());
    }
    let warm = cpu_us();
    for batch in &batches {
        tiering.committed(batch);
    }
    while stored.get() < KEYS || l1.memory.unstored(&keys[KEYS - BATCH..]).count_ones() > 0 {
        thread::sleep(Duration::from_millis(2));
    }
    let end = cpu_us();
    assert_eq!(l1.memory.unstored(keys).count_ones(), 0);
    tiering.close(Duration::from_secs(10));
    let per_key = |us: f64| us / KEYS as f64;
    (per_key(end - warm + committed - begin), per_key(end - warm))
}

fn print(what: &str, ours: f64, reference: f64) {
    println!(
        "{what:<44} {ours:>7.3} us/key   LMCache {reference:>5.1}   ratio {:>6.3}",
        ours / reference
    );
}

/// Runs a part once and prints nothing.
fn once(keys: &[Key], part: &str) {
    let fetches = ["stored", "prefetch", "memory"];
    let fetches = fetches.iter().position(|known| *known == part);
    let fetches = fetches.expect("--once stored, prefetch or memory");
    let (_l1, tiering) = prefetch::stored(keys);
    for _ in 0..fetches {
        prefetch::fetch(&tiering, keys);
    }
    tiering.close(Duration::from_secs(10));
}

fn main() {
    let keys = keys();
    let mut args = std::env::args();
    if args.any(|arg| arg == "--once") {
        return once(&keys, &args.next().unwrap_or_default());
    }
    let best = |rounds: &[(f64, f64)], part: fn(&(f64, f64)) -> f64| {
        rounds.iter().map(part).fold(f64::INFINITY, f64::min)
    };
    let rounds: Vec<_> = (0..ROUNDS).map(|_| store(&keys)).collect();
    print(
        "store: grant, commit, null backend",
        best(&rounds, |it| it.0),
        13.7,
    );
    print(
        "store: the storage tier's part of it",
        best(&rounds, |it| it.1),
        13.7,
    );
    let best = |measure: fn(&[Key]) -> f64| {
        let rounds = (0..ROUNDS).map(|_| measure(&keys));
        rounds.fold(f64::INFINITY, f64::min)
    };
    print(
        "prefetch: from a backend",
        best(prefetch::from_backend),
        22.2,
    );
    print("prefetch: all in memory", best(prefetch::from_memory), 6.4);
}
