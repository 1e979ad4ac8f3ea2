//! What is looked up, loaded and unlocked.

use std::time::Duration;

use ondol_plugin::l2::{LoadOutcome, LookupResult};
use serde_json::json;

use super::rig::*;
use crate::object_key;
use crate::prefetch::{FetchPolicy, PrefetchRequest, Row};

#[test]
fn what_a_backend_has_comes_into_memory() {
    let rig = Rig::new(1);
    let keys = keys(0..4);
    let shelf = rig.shelf(&keys[..3]);
    let prefetch = rig.ask(&keys);
    let lookup = rig.manual().next_lookup();
    lookup.find(|name| shelf.get(name).map(|stored| stored.len() as u64));
    let load = rig.manual().next_load();
    assert_eq!(load.batch.len(), 3);
    load.fill(|name| shelf.get(name).cloned());
    let report = finish(prefetch);
    assert_eq!(present(&report), "1110");
    assert_eq!(report.from_memory[0].count_ones(), 0);
    rig.assert_right(&keys, &report);
    drop(report);
    rig.assert_all_is_given_back();
    assert!(keys[..3].iter().all(|key| rig.l1.has(key)));
}

// Seen elsewhere: a prefetch of what memory has went through the controller's thread and every adapter.
#[test]
fn a_request_that_memory_serves_alone_asks_nobody() {
    let rig = Rig::new(2);
    let keys = keys(0..3);
    keys.iter()
        .for_each(|key| assert!(rig.l1.put(key, &body(key))));
    let prefetch = rig.ask(&keys);
    assert!(prefetch.is_done());
    let report = finish(prefetch);
    assert_eq!(present(&report), "111");
    assert_eq!(report.from_memory, report.present);
    rig.assert_right(&keys, &report);
    for adapter in &rig.adapters {
        assert_eq!(adapter.waiting(), (0, 0, 0));
    }
    drop(report);
    rig.assert_all_is_given_back();
}

#[test]
fn keys_that_memory_has_are_never_looked_up() {
    let rig = Rig::new(2);
    let keys = keys(0..4);
    for at in [0, 2] {
        assert!(rig.l1.put(&keys[at], &body(&keys[at])));
    }
    let shelf = rig.shelf(&keys);
    let prefetch = rig.ask(&keys);
    for adapter in &rig.adapters {
        let lookup = adapter.next_lookup();
        assert_eq!(lookup.keys, [object_key(&keys[1]), object_key(&keys[3])]);
        lookup.find(|name| Some(shelf[name].len() as u64));
    }
    rig.adapters[0]
        .next_load()
        .fill(|name| shelf.get(name).cloned());
    let report = finish(prefetch);
    assert_eq!(present(&report), "1111");
    assert_eq!(report.from_memory[0].to_string(), "1010");
    rig.assert_right(&keys, &report);
    drop(report);
    rig.assert_all_is_given_back();
}

#[test]
fn what_was_loaded_stays_for_the_next_request() {
    let rig = Rig::new(1);
    let keys = keys(0..3);
    let shelf = rig.shelf(&keys);
    let prefetch = rig.ask(&keys);
    rig.manual()
        .next_lookup()
        .find(|name| Some(shelf[name].len() as u64));
    rig.manual()
        .next_load()
        .fill(|name| shelf.get(name).cloned());
    drop(finish(prefetch));
    let again = rig.ask(&keys);
    assert!(again.is_done());
    assert_eq!(present(&finish(again)), "111");
    assert_eq!(rig.manual().waiting(), (0, 0, 0));
}

#[test]
fn what_is_found_and_not_wanted_is_unlocked_before_anything_is_loaded() {
    let rig = Rig::new(1);
    let keys = keys(0..5);
    let shelf = rig.shelf(&keys);
    let prefetch = rig.ask(&keys);
    // The third is missing, so the two behind it serve nothing.
    let hole = object_key(&keys[2]);
    rig.manual()
        .next_lookup()
        .find(|name| (*name != hole).then(|| shelf[name].len() as u64));
    let load = rig.manual().next_load();
    let locks = rig.manual().locks();
    eventually("the rest is unlocked", || {
        !keys[3..]
            .iter()
            .any(|key| locks.is_locked(&object_key(key)))
    });
    assert!(
        keys[..2]
            .iter()
            .all(|key| locks.is_locked(&object_key(key)))
    );
    load.fill(|name| shelf.get(name).cloned());
    assert_eq!(present(&finish(prefetch)), "11000");
    rig.assert_all_is_given_back();
}

#[test]
fn each_chunk_is_loaded_from_the_first_backend_that_has_it() {
    let rig = Rig::new(2);
    let keys = keys(0..3);
    let shelf = rig.shelf(&keys);
    let prefetch = rig.ask(&keys);
    let middle = object_key(&keys[1]);
    rig.adapters[1]
        .next_lookup()
        .find(|name| Some(shelf[name].len() as u64));
    rig.adapters[0]
        .next_lookup()
        .find(|name| (*name != middle).then(|| shelf[name].len() as u64));
    let first = rig.adapters[0].next_load();
    let second = rig.adapters[1].next_load();
    assert_eq!(first.batch.len(), 2);
    assert_eq!(second.batch.len(), 1);
    assert_eq!(second.batch[0].key, middle);
    second.fill(|name| shelf.get(name).cloned());
    first.fill(|name| shelf.get(name).cloned());
    let report = finish(prefetch);
    assert_eq!(present(&report), "111");
    rig.assert_right(&keys, &report);
    drop(report);
    rig.assert_all_is_given_back();
}

#[test]
fn a_window_loads_no_more_than_it_reaches_over() {
    let rig = Rig::new(1);
    let (full, windowed) = (keys(0..4), keys(10..14));
    let shelf = rig.shelf(&[full.clone(), windowed.clone()].concat());
    let window = |keys: &[_]| Row {
        window: Some(2),
        ..row(keys)
    };
    let prefetch = rig.controller.submit(PrefetchRequest {
        rows: vec![row(&full), window(&windowed)],
        ..prefix(&[])
    });
    rig.manual()
        .next_lookup()
        .find(|name| Some(shelf[name].len() as u64));
    let load = rig.manual().next_load();
    assert_eq!(load.batch.len(), 6);
    load.fill(|name| shelf.get(name).cloned());
    let report = finish(prefetch);
    assert_eq!(present(&report), "1111 0011");
    drop(report);
    rig.assert_all_is_given_back();
}

// Seen elsewhere: a group of objects of which one was evicted between lookup and load.
#[test]
fn a_chunk_of_which_one_row_is_gone_is_a_miss_in_every_row() {
    for policy in [FetchPolicy::Prefix, FetchPolicy::Full] {
        let rig = Rig::new(1);
        let (first, second) = (keys(0..3), keys(10..13));
        let shelf = rig.shelf(&[first.clone(), second.clone()].concat());
        let prefetch = rig.controller.submit(PrefetchRequest {
            rows: vec![row(&first), row(&second)],
            policy,
            timeout: WATCHDOG,
        });
        rig.manual()
            .next_lookup()
            .find(|name| Some(shelf[name].len() as u64));
        let evicted = object_key(&second[1]);
        rig.manual().next_load().fill(|name| {
            let is_there = *name != evicted;
            shelf.get(name).filter(|_| is_there).cloned()
        });
        let report = finish(prefetch);
        let expected = match policy {
            FetchPolicy::Prefix => "100 100",
            FetchPolicy::Full => "101 101",
        };
        assert_eq!(present(&report), expected);
        for (leases, present) in report.leases.iter().zip(&report.present) {
            let leased: Vec<_> = leases.iter().map(Option::is_some).collect();
            assert!((0..3).all(|column| leased[column] == present.test(column)));
        }
        drop(report);
        rig.assert_all_is_given_back();
    }
}

#[test]
fn a_key_that_is_asked_for_twice_is_loaded_once() {
    let rig = Rig::new(1);
    let keys = keys([0, 1, 0]);
    let shelf = rig.shelf(&keys);
    let first = rig.ask(&keys);
    rig.manual()
        .next_lookup()
        .find(|name| Some(shelf[name].len() as u64));
    let load = rig.manual().next_load();
    assert_eq!(load.batch.len(), 2);
    // Another request wants the same and one more.
    let more = super::rig::keys([1, 0, 2]);
    let shelf = rig.shelf(&super::rig::keys(0..3));
    let second = rig.ask(&more);
    rig.manual()
        .next_lookup()
        .find(|name| Some(shelf[name].len() as u64));
    let other = rig.manual().next_load();
    assert_eq!(other.batch.len(), 1);
    assert_eq!(other.batch[0].key, object_key(&more[2]));
    other.fill(|name| shelf.get(name).cloned());
    assert!(!first.is_done() && !second.is_done());
    load.fill(|name| shelf.get(name).cloned());
    let (first, second) = (finish(first), finish(second));
    assert_eq!(
        (present(&first).as_str(), present(&second).as_str()),
        ("111", "111")
    );
    rig.assert_right(&keys, &first);
    rig.assert_right(&more, &second);
    drop((first, second));
    rig.assert_all_is_given_back();
    assert_eq!(rig.controller.counters().loaded.get(), 3);
}

#[test]
fn a_request_whose_key_another_one_brings_needs_no_backend_that_has_it() {
    let rig = Rig::new(1);
    let keys = keys(0..1);
    let shelf = rig.shelf(&keys);
    let first = rig.ask(&keys);
    rig.manual()
        .next_lookup()
        .find(|name| Some(shelf[name].len() as u64));
    let load = rig.manual().next_load();
    let second = rig.ask(&keys);
    rig.manual().next_lookup().find(|_| None);
    // Or the lookup is answered after the load.
    let third = rig.ask(&keys);
    let late = rig.manual().next_lookup();
    load.fill(|name| shelf.get(name).cloned());
    assert_eq!(present(&finish(first)), "1");
    assert_eq!(present(&finish(second)), "1");
    late.find(|_| None);
    assert_eq!(present(&finish(third)), "1");
    rig.assert_all_is_given_back();
}

#[test]
fn an_object_of_unknown_length_is_loaded_only_if_the_caller_knows_it() {
    let rig = Rig::new(1);
    let keys = keys(0..2);
    let shelf = rig.shelf(&keys);
    let ask = |expected_len| {
        let rows = vec![Row {
            expected_len,
            ..row(&keys)
        }];
        let prefetch = rig.controller.submit(PrefetchRequest {
            rows,
            ..prefix(&[])
        });
        rig.manual().next_lookup().find(|_| Some(0));
        prefetch
    };
    assert_eq!(present(&finish(ask(None))), "00");
    assert_eq!(rig.controller.counters().unknown_length.get(), 2);
    let prefetch = ask(Some(LEN as u64));
    rig.manual()
        .next_load()
        .fill(|name| shelf.get(name).cloned());
    let report = finish(prefetch);
    assert_eq!(present(&report), "11");
    rig.assert_right(&keys, &report);
    drop(report);
    rig.assert_all_is_given_back();
}

#[test]
fn an_object_of_another_length_than_expected_is_a_miss() {
    let rig = Rig::new(1);
    let keys = keys(0..2);
    let shelf = rig.shelf(&keys);
    let ask = |expected_len| {
        rig.controller.submit(PrefetchRequest {
            rows: vec![Row {
                expected_len: Some(expected_len),
                ..row(&keys)
            }],
            ..prefix(&[])
        })
    };
    // Whether the lookup knows how long it is or not.
    for is_known in [true, false] {
        for expected in [LEN as u64 + 1, LEN as u64 - 1, 1] {
            let prefetch = ask(expected);
            rig.manual().next_lookup().find(|name| {
                Some(if is_known {
                    shelf[name].len() as u64
                } else {
                    0
                })
            });
            rig.manual()
                .next_load()
                .fill(|name| shelf.get(name).cloned());
            assert_eq!(present(&finish(prefetch)), "00");
        }
    }
    // It may be the expectation that is wrong.
    assert_eq!(rig.controller.counters().corrupt.get(), 0);
    assert!(rig.controller.counters().other_length.get() >= 6);
    rig.assert_all_is_given_back();
    assert!(!rig.l1.has(&keys[0]));
}

#[test]
fn a_length_that_no_memory_has_is_not_reserved() {
    let rig = Rig::new(1);
    let keys = keys(0..1);
    for transforms in [json!([]), json!([{"type": "lz4"}])] {
        let rig = Rig::with(1, 4 << 20, config(), &transforms);
        let prefetch = rig.ask(&keys);
        rig.manual().next_lookup().find(|_| Some(u64::MAX));
        assert_eq!(present(&finish(prefetch)), "0");
        assert_eq!(rig.controller.counters().too_long.get(), 1);
        rig.assert_all_is_given_back();
    }
    let prefetch = rig.ask(&keys);
    let mut wrong = LookupResult::new([Some(100)]);
    wrong.sizes.clear();
    rig.manual().next_lookup().end(wrong);
    assert_eq!(present(&finish(prefetch)), "0");
}

#[test]
fn an_object_that_was_stored_with_other_transforms_than_today_is_served() {
    let before = Rig::with(1, 4 << 20, config(), &json!([{"type": "lz4"}]));
    let keys = keys(0..2);
    let shelf = before.shelf(&keys);
    let rig = Rig::new(1);
    for expected_len in [None, Some(LEN as u64)] {
        let prefetch = rig.controller.submit(PrefetchRequest {
            rows: vec![Row {
                expected_len,
                ..row(&keys)
            }],
            ..prefix(&[])
        });
        rig.manual()
            .next_lookup()
            .find(|name| Some(shelf[name].len() as u64));
        rig.manual()
            .next_load()
            .fill(|name| shelf.get(name).cloned());
        let report = finish(prefetch);
        assert_eq!(present(&report), "11");
        rig.assert_right(&keys, &report);
        drop(report);
        assert_eq!(rig.l1.memory.evict(&keys), 2);
    }
    rig.assert_all_is_given_back();
}

// Seen elsewhere: one page too few failed the whole batch.
#[test]
fn memory_that_is_short_shortens_the_prefix() {
    // Pages for some of the objects, once those are leased that fill the rest.
    let rig = Rig::with(1, 4 << 20, config(), &json!([]));
    let large = |key: &_| body(key).repeat(100);
    let filling = keys(100..110);
    filling
        .iter()
        .for_each(|key| assert!(rig.l1.put(key, &large(key))));
    let held = rig.l1.memory.lease(&filling);
    let keys = keys(0..12);
    let stored = |key: &_| rig.stored_as(key, &large(key));
    let shelf: std::collections::HashMap<_, _> = keys
        .iter()
        .map(|key| (object_key(key), stored(key)))
        .collect();
    let prefetch = rig.ask(&keys);
    rig.manual()
        .next_lookup()
        .find(|name| Some(shelf[name].len() as u64));
    let load = rig.manual().next_load();
    let loaded = load.batch.len();
    assert!((1..12).contains(&loaded), "{loaded} pages were to be had");
    let names: Vec<_> = load.batch.iter().map(|item| item.key.clone()).collect();
    let first: Vec<_> = keys[..loaded].iter().map(object_key).collect();
    assert_eq!(names, first);
    let locks = rig.manual().locks();
    eventually("the rest is unlocked", || {
        !keys[loaded..]
            .iter()
            .any(|key| locks.is_locked(&object_key(key)))
    });
    load.fill(|name| shelf.get(name).cloned());
    let report = finish(prefetch);
    assert_eq!(report.present[0].leading_ones(), loaded);
    assert_eq!(report.present[0].count_ones(), loaded);
    for (key, lease) in keys.iter().zip(&report.leases[0][..loaded]) {
        assert!(lease.as_ref().unwrap().as_ref() == large(key));
    }
    assert_eq!(rig.controller.counters().l1_oom.get(), 12 - loaded as u64);
    // Nothing that was held was overwritten.
    for (key, lease) in filling.iter().zip(&held) {
        assert!(lease.as_ref().unwrap().as_ref() == large(key));
    }
    drop((report, held));
    rig.assert_all_is_given_back();
}

// Seen elsewhere: eight requests, however small, and whatever else waited.
#[test]
fn requests_that_exceed_the_bytes_in_flight_wait_in_order() {
    let limit = 2 * Rig::new(1).stored(&key(0)).len() as u64;
    let mut config = config();
    config.load_in_flight_bytes = limit;
    let rig = Rig::with(1, 16 << 20, config, &json!([]));
    let groups = [keys(0..2), keys(2..4), keys(4..5), keys(5..9)];
    let all = keys(0..9);
    let shelf = rig.shelf(&all);
    let find = || {
        rig.manual()
            .next_lookup()
            .find(|name| Some(shelf[name].len() as u64))
    };
    let mut asked = Vec::new();
    for keys in &groups {
        asked.push(rig.ask(keys));
        find();
    }
    let mut sizes = Vec::new();
    while sizes.iter().sum::<usize>() < all.len() {
        let load = rig.manual().next_load();
        eventually("the controller is idle", || {
            rig.manual().waiting() == (0, 0, 0)
        });
        sizes.push(load.batch.len());
        let bytes = rig.controller.loading_bytes();
        assert!(bytes <= limit, "{bytes} bytes in flight");
        load.fill(|name| shelf.get(name).cloned());
    }
    // The third would have fitted beside the first and did not overtake; the last is larger than the limit and goes in parts.
    assert_eq!(sizes, [2, 2, 1, 2, 2]);
    for (keys, prefetch) in groups.iter().zip(asked) {
        let report = finish(prefetch);
        assert_eq!(report.present[0].count_ones(), keys.len());
        rig.assert_right(keys, &report);
    }
    rig.assert_all_is_given_back();
}

/// A backend that has just taken 50 ms for 3 kB; `find` answers lookups with objects of `len` bytes.
fn slow_backend() -> Rig {
    let rig = Rig::new(1);
    let first = keys(100..101);
    let shelf = rig.shelf(&first);
    let prefetch = rig.ask(&first);
    find(&rig, shelf[&object_key(&first[0])].len() as u64);
    let load = rig.manual().next_load();
    std::thread::sleep(Duration::from_millis(50));
    load.fill(|name| shelf.get(name).cloned());
    assert_eq!(present(&finish(prefetch)), "1");
    rig
}

fn find(rig: &Rig, len: u64) {
    rig.manual().next_lookup().find(|_| Some(len));
}

// Seen elsewhere: a disk hit took 40 s where computing took 0.9 s.
#[test]
fn what_a_slow_backend_would_not_bring_in_time_is_not_loaded() {
    let rig = slow_backend();
    // Five seconds each, and there is a minute.
    let prefetch = rig.ask(&keys(0..40));
    find(&rig, 300_000);
    let load = rig.manual().next_load();
    let loaded = load.batch.len();
    assert!((1..40).contains(&loaded), "{loaded} would come in time");
    assert_eq!(rig.controller.counters().too_slow.get(), 40 - loaded as u64);
    load.each(|_| LoadOutcome::Missing);
    assert_eq!(finish(prefetch).present[0].count_ones(), 0);
    rig.assert_all_is_given_back();
}

#[test]
fn a_backend_that_hardly_loads_at_all_is_still_tried_with_one_chunk() {
    let rig = slow_backend();
    let prefetch = rig.ask(&keys(0..4));
    // More than two minutes.
    find(&rig, 8_000_000);
    let load = rig.manual().next_load();
    assert_eq!(load.batch.len(), 1);
    load.each(|_| LoadOutcome::Missing);
    drop(prefetch);
    rig.assert_all_is_given_back();
}
