//! Prefetches of small objects that were stored before, from a backend that keeps them in memory.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ondol_plugin::Key;
use ondol_tiering::{FetchPolicy, PrefetchRequest, Row, Tiering};

use super::keeping::KeepingAdapter;
use super::{BATCH, LEN, STRIDE, commit, cpu_us, tier};
use crate::testing::L1;

const A_MINUTE: Duration = Duration::from_secs(60);

/// A tier that has stored these objects, as it stores those of clients, and whose memory has let go of them.
pub(super) fn stored(keys: &[Key]) -> (L1, Arc<Tiering>) {
    let bytes = keys.len() as u64 * (STRIDE + LEN);
    let l1 = L1::new(bytes.next_multiple_of(2 << 20) + (8 << 20));
    let adapter = KeepingAdapter::new(keys.len());
    let tiering = tier(&l1, Box::new(adapter));
    for (keys, request) in keys.chunks(BATCH).zip(1..) {
        tiering.committed(&commit(&l1, request, keys));
    }
    while l1.memory.unstored(keys).count_ones() > 0 {
        thread::sleep(Duration::from_millis(2));
    }
    while l1.memory.contains(keys).count_ones() > 0 {
        l1.memory.evict(keys);
    }
    // Written to before, pages cost no faults.
    for page in l1.memory.reserve(&vec![LEN; keys.len()]) {
        page.expect("room for all").as_mut().fill(0xa5);
    }
    l1.memory.flush_returns();
    (l1, tiering)
}

fn request(keys: &[Key]) -> PrefetchRequest {
    PrefetchRequest {
        rows: vec![Row {
            keys: keys.to_vec(),
            window: None,
            expected_len: None,
        }],
        policy: FetchPolicy::Prefix,
        timeout: A_MINUTE,
    }
}

/// CPU time per key of fetching these objects batch by batch, one after the other, leases included.
pub(super) fn fetch(tiering: &Tiering, keys: &[Key]) -> f64 {
    let batches: Vec<_> = keys.chunks(BATCH).map(request).collect();
    let begin = cpu_us();
    for batch in batches {
        let report = tiering.prefetch(batch).wait(Instant::now() + A_MINUTE);
        let came = report.present[0].count_ones();
        let counters = || tiering.stats().counters;
        assert_eq!(came, BATCH, "{:?}", counters());
    }
    (cpu_us() - begin) / keys.len() as f64
}

/// Objects that only the backend has.
pub(super) fn from_backend(keys: &[Key]) -> f64 {
    let (_l1, tiering) = stored(keys);
    let per_key = fetch(&tiering, keys);
    let counters = tiering.stats().counters;
    assert_eq!(counters["ondol_l2_prefetch_unverified_total"], 0);
    tiering.close(Duration::from_secs(10));
    per_key
}

/// Objects that memory has.
pub(super) fn from_memory(keys: &[Key]) -> f64 {
    let (_l1, tiering) = stored(keys);
    fetch(&tiering, keys);
    let per_key = fetch(&tiering, keys);
    tiering.close(Duration::from_secs(10));
    per_key
}
