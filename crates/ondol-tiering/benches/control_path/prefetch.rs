//! Prefetches from a backend that finds everything and moves no bytes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ondol_host::l2::{Backend, LaneOptions};
use ondol_plugin::Key;
use ondol_testkit::l2::NullAdapter;
use ondol_tiering::{FetchPolicy, PrefetchRequest, Row, Tiering, TieringConfig};

use super::{BATCH, KEYS, STRIDE, cpu_us};
use crate::testing::L1;

const A_MINUTE: Duration = Duration::from_secs(60);

/// A tier whose pool has room for all keys. Its pages were written to before: then they cost no faults, and hold what could be
/// objects of LMCache's, which have no trailer to be checked.
fn tier() -> (L1, Arc<Tiering>) {
    let l1 = L1::new((KEYS as u64 * STRIDE).next_multiple_of(2 << 20) + (8 << 20));
    for page in l1.memory.reserve(&vec![STRIDE; KEYS]) {
        page.expect("room for all").as_mut().fill(0xa5);
    }
    l1.memory.flush_returns();
    let adapter = NullAdapter::full(STRIDE).expect("three descriptors");
    let spec = r#"{"type":"null"}"#.parse().expect("a specification");
    let options = LaneOptions::default();
    let backend = Backend::start("null#0", spec, true, Box::new(adapter), options);
    let backends = vec![backend.expect("a lane")];
    let tiering = Tiering::start(Arc::clone(&l1.memory), backends, TieringConfig::default());
    (l1, tiering.expect("the storage tier starts"))
}

fn request(keys: &[Key]) -> PrefetchRequest {
    PrefetchRequest {
        rows: vec![Row {
            keys: keys.to_vec(),
            window: None,
            expected_len: Some(STRIDE),
        }],
        policy: FetchPolicy::Prefix,
        timeout: A_MINUTE,
    }
}

/// CPU time per key of fetching these batches, one after the other, leases included.
fn fetch(tiering: &Tiering, batches: Vec<PrefetchRequest>) -> f64 {
    let begin = cpu_us();
    for batch in batches {
        let report = tiering.prefetch(batch).wait(Instant::now() + A_MINUTE);
        let came = report.present[0].count_ones();
        let counters = || tiering.stats().counters;
        assert_eq!(came, BATCH, "{:?}", counters());
    }
    (cpu_us() - begin) / KEYS as f64
}

/// Objects that only the backend has.
pub(super) fn from_backend(keys: &[Key]) -> f64 {
    let (_l1, tiering) = tier();
    let batches = keys.chunks(BATCH).map(request).collect();
    let per_key = fetch(&tiering, batches);
    tiering.close(Duration::from_secs(10));
    per_key
}

/// Objects that memory has.
pub(super) fn from_memory(keys: &[Key]) -> f64 {
    let (_l1, tiering) = tier();
    let batches = || keys.chunks(BATCH).map(request).collect();
    fetch(&tiering, batches());
    let per_key = fetch(&tiering, batches());
    tiering.close(Duration::from_secs(10));
    per_key
}
