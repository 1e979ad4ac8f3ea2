use std::time::Duration;

use ondol_plugin::l2::StoreResult;
use ondol_testkit::l2::ManualAdapter;

use super::*;
use crate::{FetchPolicy, PrefetchRequest, Row, StoreOverflow, StorePolicy, object_key};

#[test]
fn what_is_committed_is_stored_whole_and_marked() {
    let (l1, shelf) = (l1(), Shelf::default());
    let tiering = start(&l1, vec![shelf_backend(&shelf, "")], config());
    commit(&l1, &tiering, 0..100);
    until("all is marked", || unstored(&l1, 0..100) == 0);
    for number in 0..100 {
        let stored = shelf.get(&key(number)).expect("it is stored");
        assert!(stored.starts_with(&bytes(number)), "{number}");
    }
    until("no lease is left", || l1.memory.leases() == 0);
    assert_eq!(count(&tiering, "stored_objects"), 100);
}

/// LMCache#4991: after a store that failed the key was visible, and retrieves gave garbage.
#[test]
fn a_failed_store_leaves_nothing_that_counts_as_stored() {
    let (l1, shelf) = (l1(), Shelf::default());
    shelf.fail(Some(false));
    let tiering = start(&l1, vec![shelf_backend(&shelf, "")], config());
    commit(&l1, &tiering, [1]);
    until("it is given up", || {
        count(&tiering, "store_given_up_objects") == 1
    });
    assert_eq!(shelf.len(), 0);
    assert_eq!(unstored(&l1, [1]), 1);
    assert_eq!(l1.get(&key(1)), Some(bytes(1)), "memory still has it");
    assert_eq!(count(&tiering, "failed_store_batches"), 1);
    until("no lease is left", || l1.memory.leases() == 0);
}

#[test]
fn a_batch_that_was_stored_in_part_does_not_count_as_stored() {
    let (l1, manual) = (l1(), ManualAdapter::new().unwrap());
    let tiering = start(
        &l1,
        vec![backend(manual.clone(), r#"{"type":"manual"}"#)],
        config(),
    );
    commit(&l1, &tiering, 0..3);
    let store = manual.next_store();
    assert_eq!(store.batch.len(), 3);
    store.end(StoreResult::retryable("one of three was stored"));
    // The retry begins after the failure was dealt with.
    let again = manual.next_store();
    assert_eq!(unstored(&l1, 0..3), 3);
    assert_eq!(again.batch.len(), 3);
    again.succeed();
    until("all is marked", || unstored(&l1, 0..3) == 0);
    assert_eq!(count(&tiering, "store_retries"), 3);
}

#[test]
fn an_object_that_cannot_be_stored_does_not_condemn_its_batch() {
    let (l1, shelf) = (l1(), Shelf::default());
    shelf.poison(&key(5));
    let tiering = start(&l1, vec![shelf_backend(&shelf, "")], config());
    commit(&l1, &tiering, 0..10);
    until("the others are stored", || unstored(&l1, 0..10) == 1);
    assert_eq!(unstored(&l1, [5]), 1);
    until("that one is given up", || {
        count(&tiering, "store_given_up_objects") == 1
    });
}

#[test]
fn objects_that_a_backend_never_takes_do_not_keep_others_from_it() {
    let (l1, shelf) = (l1(), Shelf::default());
    for number in 0..12 {
        shelf.poison(&key(number));
    }
    let config = TieringConfig {
        breaker_failures: 3,
        // Nobody who waits for this to be over would see the end of the test.
        breaker_pause: Duration::from_secs(600),
        ..config()
    };
    let tiering = start(&l1, vec![shelf_backend(&shelf, "")], config);
    commit(&l1, &tiering, 0..12);
    until("they are given up", || {
        count(&tiering, "store_given_up_objects") >= 12
    });
    commit(&l1, &tiering, 12..20);
    until("the others are stored", || unstored(&l1, 12..20) == 0);
    assert!(!tiering.stats().backends[0].breaker_open);
}

/// LMCache releases the lock of a store after 300 s, while the adapter may still read.
#[test]
fn a_store_that_hangs_keeps_its_page_captive_and_its_object_readable() {
    let (l1, manual) = (l1(), ManualAdapter::new().unwrap());
    let config = TieringConfig {
        store_timeout: Duration::from_millis(30),
        ..config()
    };
    let tiering = start(
        &l1,
        vec![backend(manual.clone(), r#"{"type":"manual"}"#)],
        config,
    );
    commit(&l1, &tiering, [1]);
    let hanging = manual.next_store();
    until("it is given up on", || {
        count(&tiering, "timed_out_store_batches") == 1
    });
    assert_eq!(l1.memory.evict(&[key(1)]), 0, "it cannot leave memory");
    assert_eq!(l1.get(&key(1)), Some(bytes(1)));
    assert_eq!(tiering.stats().captive_bytes as usize / LEN, 1);

    // Others go on, and the same object is not stored a second time meanwhile.
    tiering.committed(&[(key(1), LEN as u64)]);
    commit(&l1, &tiering, [2]);
    let other = manual.next_store();
    let names: Vec<_> = other.batch.iter().map(|item| item.key.clone()).collect();
    assert_eq!(names, [object_key(&key(2))]);
    other.succeed();
    until("the other one is stored", || unstored(&l1, [2]) == 0);
    assert!(hanging.batch[0].object.body().starts_with(&bytes(1)));

    // Once the adapter lets go, it is tried again.
    hanging.succeed();
    let again = manual.next_store();
    assert_eq!(again.batch[0].key, object_key(&key(1)));
    again.succeed();
    until("it is stored", || unstored(&l1, [1]) == 0);
    until("it can leave memory", || l1.memory.evict(&[key(1)]) == 1);
}

/// LMCache has no back-pressure: read locks pile up when a backend is slow (llm-d-kv-cache#457).
#[test]
fn ten_times_the_load_stays_bounded_and_nothing_is_lost() {
    let (l1, shelf) = (l1(), Shelf::default());
    shelf.hang_stores(true);
    let config = TieringConfig {
        store_queue: 64,
        store_in_flight_bytes: 16 * LEN as u64,
        ..config()
    };
    let tiering = start(&l1, vec![shelf_backend(&shelf, "")], config);
    for first in (0..640).step_by(32) {
        commit(&l1, &tiering, first..first + 32);
        let stats = tiering.stats();
        assert!(stats.store_queue <= 64, "{} wait", stats.store_queue);
        assert!(l1.memory.leases() <= 16, "{} leases", l1.memory.leases());
    }
    let deferred = count(&tiering, "store_deferred_objects");
    assert!(deferred >= 640 - 64 - 16, "{deferred} deferred");
    shelf.hang_stores(false);
    until("all is stored in the end", || unstored(&l1, 0..640) == 0);
    assert_eq!(shelf.len(), 640);
    assert_eq!(count(&tiering, "store_dropped_objects"), 0);
}

#[test]
fn the_oldest_is_dropped_only_if_that_is_configured_and_is_counted() {
    let (l1, manual) = (l1(), ManualAdapter::new().unwrap());
    let config = TieringConfig {
        store_queue: 4,
        store_overflow: StoreOverflow::DropOldest,
        store_in_flight_bytes: 1,
        ..config()
    };
    let tiering = start(
        &l1,
        vec![backend(manual.clone(), r#"{"type":"manual"}"#)],
        config,
    );
    commit(&l1, &tiering, [0]);
    let first = manual.next_store();
    for number in 1..=10 {
        commit(&l1, &tiering, [number]);
    }
    assert_eq!(count(&tiering, "store_dropped_objects"), 6);
    assert_eq!(count(&tiering, "store_deferred_objects"), 0);
    first.succeed();
    for number in 7..=10 {
        let next = manual.next_store();
        assert_eq!(next.batch[0].key, object_key(&key(number)), "oldest first");
        next.succeed();
    }
    until("they are marked", || unstored(&l1, 7..=10) == 0);
    assert_eq!(unstored(&l1, 1..=6), 6);
}

#[test]
fn a_backend_that_hangs_does_not_hold_up_another() {
    let (l1, manual, shelf) = (l1(), ManualAdapter::new().unwrap(), Shelf::default());
    manual.block_calls(true);
    let config = TieringConfig {
        store_queue: 16,
        ..config()
    };
    let hanging = backend(manual.clone(), r#"{"type":"manual"}"#);
    let tiering = start(&l1, vec![hanging, shelf_backend(&shelf, "")], config);
    for first in (0..320).step_by(8) {
        commit(&l1, &tiering, first..first + 8);
        until("the other one goes on", || shelf.len() as u64 == first + 8);
    }
    until("one backend that has it is enough", || {
        unstored(&l1, 0..320) == 0
    });
    manual.block_calls(false);
}

#[test]
fn a_backend_that_fails_is_left_alone_and_gets_everything_once_it_works() {
    let (l1, shelf) = (l1(), Shelf::default());
    shelf.fail(Some(true));
    let config = TieringConfig {
        breaker_failures: 3,
        store_retries: 2,
        ..config()
    };
    let tiering = start(&l1, vec![shelf_backend(&shelf, "")], config);
    commit(&l1, &tiering, 0..20);
    until("the breaker opens", || {
        tiering.stats().backends[0].breaker_open
    });
    assert_eq!(tiering.stats().backends[0].health, "degraded");
    commit(&l1, &tiering, 20..40);
    until("some are given up", || {
        count(&tiering, "store_given_up_objects") > 0
    });
    shelf.fail(None);
    until("all is stored", || unstored(&l1, 0..40) == 0);
    assert!(!tiering.stats().backends[0].breaker_open);
    assert_eq!(count(&tiering, "breaker_opened"), 1);
}

/// Between a commit and its store the server may end: what memory keeps is found by the next one.
#[test]
fn what_was_not_stored_before_the_end_is_stored_after_the_start() {
    let (l1, shelf) = (l1(), Shelf::default());
    put(&l1, 0..700);
    for number in 0..300 {
        shelf.fill(object_key(&key(number)), LEN);
    }
    let tiering = start(&l1, vec![shelf_backend(&shelf, "")], config());
    until("all is known to be stored", || unstored(&l1, 0..700) == 0);
    assert_eq!(shelf.stores(), 400, "only what was lacking");
    assert_eq!(count(&tiering, "walk_found_objects"), 300);
    let attached = tiering.attached.active().remove(0);
    let keys: Vec<_> = (0..700).map(|number| object_key(&key(number))).collect();
    until("nothing stays locked", || {
        let deleted = attached.backend.delete(&keys).expect("it deletes");
        deleted.gone.count_ones() == 700
    });
}

#[test]
fn what_is_used_once_does_not_wear_the_disk() {
    let (l1, shelf) = (l1(), Shelf::default());
    let config = TieringConfig {
        admit_after_uses: 2,
        ..config()
    };
    let tiering = start(&l1, vec![shelf_backend(&shelf, "")], config);
    commit(&l1, &tiering, 0..100);
    assert_eq!(count(&tiering, "unadmitted_objects"), 100);
    tiering.used(&[key(7), key(8)]);
    until("those used twice are stored", || unstored(&l1, [7, 8]) == 0);
    // A walk does not bring in the others by the back door.
    let other = Shelf::default();
    tiering.add_backend(shelf_backend(&other, "")).unwrap();
    until("the walk has ended", || count(&tiering, "walks") == 2);
    until("it has what was used", || other.len() == 2);
    assert_eq!((shelf.len(), other.len()), (2, 2));
}

#[test]
fn skip_l1_lets_go_of_an_object_when_every_backend_has_it() {
    let (l1, shelf, manual) = (l1(), Shelf::default(), ManualAdapter::new().unwrap());
    let config = TieringConfig {
        store_policy: StorePolicy::SkipL1,
        ..config()
    };
    let slow = backend(manual.clone(), r#"{"type":"manual"}"#);
    let tiering = start(&l1, vec![shelf_backend(&shelf, ""), slow], config);
    commit(&l1, &tiering, [1]);
    let store = manual.next_store();
    until("the fast one has it", || unstored(&l1, [1]) == 0);
    assert!(l1.has(&key(1)), "the slow one does not have it yet");
    store.succeed();
    until("it is let go", || !l1.has(&key(1)));
    assert!(shelf.get(&key(1)).is_some());
}

#[test]
fn an_object_without_persistence_does_not_count_as_safe_beside_one_that_has() {
    let (l1, shelf, manual) = (l1(), Shelf::default(), ManualAdapter::new().unwrap());
    let fleeting = shelf_backend(&shelf, r#","persist_enabled":false"#);
    let lasting = backend(manual.clone(), r#"{"type":"manual"}"#);
    let _tiering = {
        let tiering = start(&l1, vec![fleeting, lasting], config());
        commit(&l1, &tiering, [1]);
        tiering
    };
    let store = manual.next_store();
    until("the fleeting one has it", || shelf.len() == 1);
    assert_eq!(unstored(&l1, [1]), 1);
    store.succeed();
    until("the lasting one has it", || unstored(&l1, [1]) == 0);
}

#[test]
fn an_object_that_leaves_memory_before_its_turn_is_counted() {
    let (l1, manual) = (l1(), ManualAdapter::new().unwrap());
    let config = TieringConfig {
        store_in_flight_bytes: 1,
        ..config()
    };
    let tiering = start(
        &l1,
        vec![backend(manual.clone(), r#"{"type":"manual"}"#)],
        config,
    );
    commit(&l1, &tiering, [1]);
    let first = manual.next_store();
    commit(&l1, &tiering, [2, 3]);
    assert_eq!(l1.memory.evict(&[key(2)]), 1);
    first.succeed();
    let next = manual.next_store();
    assert_eq!(next.batch[0].key, object_key(&key(3)));
    next.succeed();
    assert_eq!(count(&tiering, "store_gone_objects"), 1);
}

#[test]
fn what_was_given_up_is_looked_for_again_without_anything_else_happening() {
    let (l1, shelf) = (l1(), Shelf::default());
    shelf.fail(Some(true));
    let config = TieringConfig {
        breaker_failures: u32::MAX,
        store_retries: 1,
        ..config()
    };
    let tiering = start(&l1, vec![shelf_backend(&shelf, "")], config);
    commit(&l1, &tiering, 0..10);
    until("all are given up", || {
        count(&tiering, "store_given_up_objects") >= 10
    });
    shelf.fail(None);
    until("they are stored", || unstored(&l1, 0..10) == 0);
}

/// LMCache counts a batch as its first object's length times its number.
#[test]
fn a_batch_of_mixed_sizes_is_stored_and_counted_as_it_is() {
    let (l1, shelf) = (l1(), Shelf::default());
    let lru = r#","eviction":{"eviction_policy":"LRU"}"#;
    let tiering = start(&l1, vec![shelf_backend(&shelf, lru)], config());
    let lens: Vec<usize> = (0..40).map(|at| 1 + at * 499).collect();
    let objects: Vec<_> = lens
        .iter()
        .zip(0..)
        .map(|(len, number)| {
            assert!(l1.put(&key(number), &vec![number as u8; *len]));
            (key(number), *len as u64)
        })
        .collect();
    tiering.committed(&objects);
    until("they are stored", || unstored(&l1, 0..40) == 0);
    for (len, number) in lens.iter().zip(0..) {
        let stored = shelf.get(&key(number)).expect("it is stored");
        assert!(stored.starts_with(&vec![number as u8; *len]));
    }
    assert_eq!(count(&tiering, "stored_bytes"), shelf.used());
}

/// LMCache#3465, Mooncake#3465: writes reach the tier and are never read back.
#[test]
fn what_left_memory_comes_back_from_storage_as_it_was() {
    let (l1, shelf) = (l1(), Shelf::default());
    let tiering = start(&l1, vec![shelf_backend(&shelf, "")], config());
    commit(&l1, &tiering, 0..50);
    until("all is stored", || unstored(&l1, 0..50) == 0);
    let keys: Vec<_> = (0..50).map(key).collect();
    until("all has left memory", || {
        l1.memory.evict(&keys);
        l1.memory.contains(&keys).count_ones() == 0
    });
    let prefetch = tiering.prefetch(PrefetchRequest {
        rows: vec![Row {
            keys,
            window: None,
            expected_len: None,
        }],
        policy: FetchPolicy::Prefix,
        timeout: WATCHDOG,
    });
    let report = prefetch.wait(Instant::now() + WATCHDOG);
    assert_eq!(report.present[0].count_ones(), 50);
    for (leased, number) in report.leases[0].iter().zip(0..) {
        let leased = leased.as_ref().expect("it is leased");
        assert_eq!(leased.as_ref(), bytes(number), "{number}");
    }
}

/// Backends that fail and hang at random, in a fixed order: in the end each has everything, whole, and nothing is held.
#[test]
fn whatever_backends_do_everything_is_stored_whole_in_the_end() {
    let l1 = l1();
    let shelves = [Shelf::default(), Shelf::default()];
    let config = TieringConfig {
        store_queue: 32,
        store_in_flight_bytes: 64 * LEN as u64,
        store_timeout: Duration::from_millis(20),
        store_retries: 1,
        breaker_failures: 2,
        breaker_pause: Duration::from_millis(10),
        ..config()
    };
    let backends = shelves.iter().map(|shelf| shelf_backend(shelf, ""));
    let tiering = start(&l1, backends.collect(), config);
    let mut random = 7_u64;
    for first in (0..1000).step_by(20) {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let shelf = &shelves[(random >> 40) as usize % 2];
        match (random >> 50) % 5 {
            0 => shelf.fail(Some(true)),
            1 => shelf.hang_stores(true),
            _ => {
                shelf.fail(None);
                shelf.hang_stores(false);
            }
        }
        commit(&l1, &tiering, first..first + 20);
        std::thread::sleep(Duration::from_millis(3));
    }
    for shelf in &shelves {
        shelf.fail(None);
        shelf.hang_stores(false);
    }
    until("both have everything", || {
        shelves.iter().all(|shelf| shelf.len() == 1000)
    });
    until("all is known to be stored", || unstored(&l1, 0..1000) == 0);
    until("nothing is held", || l1.memory.leases() == 0);
    for number in 0..1000 {
        for shelf in &shelves {
            let stored = shelf.get(&key(number)).expect("it is stored");
            assert!(stored.starts_with(&bytes(number)), "{number}");
        }
    }
}
