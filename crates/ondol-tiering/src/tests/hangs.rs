//! What is told of backends that do not answer in time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ondol_testkit::l2::ManualAdapter;

use super::{LEN, WATCHDOG, backend, bytes, commit, config, key, l1, start, unstored, until};
use crate::memory::testing::L1;
use crate::{FetchPolicy, PrefetchRequest, Row, TieringConfig, object_key};

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

/// Ends no store and no load until `is_healed`, and all of them at once then; finds what `has` says.
fn serve(
    manual: &ManualAdapter,
    is_healed: &AtomicBool,
    is_over: &AtomicBool,
    has: impl Fn(&ondol_plugin::l2::ObjectKey) -> bool,
) {
    let (mut held_stores, mut held_loads) = (Vec::new(), Vec::new());
    while !is_over.load(Ordering::Acquire) {
        let heals = is_healed.load(Ordering::Acquire);
        let (stores, lookups, loads) = manual.waiting();
        held_stores.extend((0..stores).map(|_| manual.next_store()));
        held_loads.extend((0..loads).map(|_| manual.next_load()));
        for _ in 0..lookups {
            let lookup = manual.next_lookup();
            lookup.find(|name| has(name).then_some(LEN as u64 + 1000));
        }
        if heals {
            held_stores
                .drain(..)
                .for_each(ondol_testkit::l2::HeldStore::succeed);
            held_loads.clear();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

// M17, M18: what was given up counted for nothing, and storage that hung took the whole pool from clients.
#[test]
fn a_backend_of_which_nothing_ends_never_has_more_than_its_part_of_the_pool() {
    const POOL: u64 = 8 << 20;
    const AT_ONCE: u64 = 16;
    const ROUNDS: u64 = 3 * POOL / LEN as u64 / AT_ONCE;
    let (l1, manual) = (L1::new(POOL), ManualAdapter::new().unwrap());
    let config = TieringConfig {
        load_timeout: Duration::from_millis(20),
        store_timeout: Duration::from_millis(20),
        // So that nothing but the bytes that are captive holds anything back.
        read_breaker_timeouts: u32::MAX,
        breaker_failures: u32::MAX,
        ..config()
    };
    let stored = |round: u64| 1_000_000 + round * AT_ONCE..1_000_000 + (round + 1) * AT_ONCE;
    let names: std::collections::HashSet<_> = (0..ROUNDS)
        .flat_map(stored)
        .map(|number| object_key(&key(number)))
        .collect();
    let (is_healed, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let adapter = manual.clone();
        let (is_healed, is_over) = (&is_healed, &is_over);
        scope.spawn(move || serve(&adapter, is_healed, is_over, |name| names.contains(name)));
        let backends = vec![backend(manual.clone(), r#"{"type":"manual"}"#)];
        let tiering = start(&l1, backends, config);
        let mut most = 0;
        for round in 0..ROUNDS {
            let numbers = round * AT_ONCE..(round + 1) * AT_ONCE;
            commit(&l1, &tiering, numbers.clone());
            let last = numbers.end - 1;
            assert_eq!(l1.get(&key(last)), Some(bytes(last)));
            let prefetch = tiering.prefetch(PrefetchRequest {
                rows: vec![Row {
                    keys: stored(round).map(key).collect(),
                    window: None,
                    expected_len: None,
                }],
                policy: FetchPolicy::Prefix,
                timeout: WATCHDOG,
            });
            let report = prefetch.wait(Instant::now() + WATCHDOG);
            assert_eq!(report.present[0].count_ones(), 0);
            most = most.max(tiering.stats().captive_bytes);
        }
        // Trailers count as well.
        let allowed = POOL / 4 + POOL / 32;
        assert!((POOL / 8..=allowed).contains(&most), "{most} bytes captive");
        let figures = tiering.stats().backends.remove(0);
        assert_eq!(figures.health, "degraded");
        let reason = figures.reason.expect("it is said why");
        assert!(reason.contains("bytes stay captive"), "{reason}");
        is_healed.store(true, Ordering::Release);
        let last = (ROUNDS - 1) * AT_ONCE..ROUNDS * AT_ONCE;
        until("stores go on", || unstored(&l1, last.clone()) == 0);
        until("all is given back", || {
            l1.memory.flush_returns();
            let stats = tiering.stats();
            stats.captive_bytes + stats.loading_bytes + l1.memory.reserved_bytes() == 0
        });
        until("it is healthy", || {
            tiering.stats().backends[0].health == "healthy"
        });
        tiering.close(WATCHDOG);
        is_over.store(true, Ordering::Release);
    });
}
