//! What is told of backends that do not answer in time.

use std::time::{Duration, Instant};

use ondol_testkit::l2::ManualAdapter;

use super::{WATCHDOG, backend, commit, config, key, l1, start, unstored, until};
use crate::{FetchPolicy, PrefetchRequest, Row, TieringConfig};

// M11: 102 loads had timed out, none had ever come, and the backend was said to be healthy.
#[test]
fn a_backend_whose_loads_hang_is_said_to_be_degraded() {
    let (l1, manual) = (l1(), ManualAdapter::new().unwrap());
    let config = TieringConfig {
        load_timeout: Duration::from_millis(50),
        read_breaker_timeouts: 1,
        breaker_pause: Duration::from_secs(3600),
        ..config()
    };
    let backends = vec![backend(manual.clone(), r#"{"type":"manual"}"#)];
    let tiering = start(&l1, backends, config);
    assert_eq!(tiering.stats().backends[0].health, "healthy");
    assert_eq!(tiering.degraded(), None);
    let prefetch = tiering.prefetch(PrefetchRequest {
        rows: vec![Row {
            keys: vec![key(1)],
            window: None,
            expected_len: None,
        }],
        policy: FetchPolicy::Prefix,
        timeout: WATCHDOG,
    });
    manual.next_lookup().find(|_| Some(4096));
    let hangs = manual.next_load();
    let report = prefetch.wait(Instant::now() + WATCHDOG);
    assert!(report.leases[0][0].is_none());
    let figures = tiering.stats().backends.remove(0);
    assert_eq!(figures.health, "degraded");
    let reason = figures.reason.expect("it is said why");
    assert!(reason.contains("1 loads timed out in a row"), "{reason}");
    let degraded = tiering.degraded().expect("it is required");
    assert!(degraded.contains("manual#0"), "{degraded}");
    drop(hangs);
    tiering.close(WATCHDOG);
}

// A stop took as long as clients waited for a backend that hangs.
#[test]
fn who_waits_for_storage_is_answered_before_all_is_closed() {
    let (l1, manual) = (l1(), ManualAdapter::new().unwrap());
    let backends = vec![backend(manual.clone(), r#"{"type":"manual"}"#)];
    let tiering = start(&l1, backends, config());
    let ask = || {
        tiering.prefetch(PrefetchRequest {
            rows: vec![Row {
                keys: vec![key(1)],
                window: None,
                expected_len: None,
            }],
            policy: FetchPolicy::Prefix,
            timeout: WATCHDOG,
        })
    };
    let prefetch = ask();
    let hangs = manual.next_lookup();
    tiering.end_prefetches();
    assert!(prefetch.is_done());
    assert!(ask().is_done(), "also who comes later");
    drop((prefetch, hangs));
    // What is committed meanwhile is stored.
    commit(&l1, &tiering, [2]);
    manual.next_store().succeed();
    until("it is stored", || unstored(&l1, [2]) == 0);
    tiering.close(WATCHDOG);
}
