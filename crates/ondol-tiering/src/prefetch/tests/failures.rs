//! Loads and lookups that fail, lie, or bring something else.

use std::time::Duration;

use ondol_plugin::l2::{LoadOutcome, LoadResult, LookupResult, WorkerAdapter};
use ondol_plugin::{Key, KeyTag};
use ondol_testkit::l2::MapBackend;
use serde_json::json;

use super::rig::*;
use crate::object_key;
use crate::prefetch::{Prefetch, PrefetchRequest, Row};

/// Asks for keys that the first backend has; the load is next.
fn asked(rig: &Rig, keys: &[Key]) -> Prefetch {
    let shelf = rig.shelf(keys);
    let prefetch = rig.ask(keys);
    rig.manual()
        .next_lookup()
        .find(|name| Some(shelf[name].len() as u64));
    prefetch
}

// Seen elsewhere: a load that failed was counted as a hit, and another request's bytes were served.
#[test]
fn one_failed_key_of_a_batch_is_a_miss_and_no_other() {
    let outcomes = [
        LoadOutcome::Missing,
        LoadOutcome::Failed("EIO".to_owned()),
        LoadOutcome::Corrupt("torn".to_owned()),
    ];
    for outcome in outcomes {
        let rig = Rig::new(1);
        let keys = keys(0..4);
        let shelf = rig.shelf(&keys);
        let prefetch = rig.controller.submit(PrefetchRequest {
            policy: crate::FetchPolicy::Full,
            ..prefix(&keys)
        });
        rig.manual()
            .next_lookup()
            .find(|name| Some(shelf[name].len() as u64));
        let failing = object_key(&keys[2]);
        rig.manual().next_load().each(|item| {
            // The page is full of plausible bytes all the same.
            let filled = item.page.fill(&shelf[&item.key]).unwrap();
            if item.key == failing {
                outcome.clone()
            } else {
                LoadOutcome::Found(filled)
            }
        });
        let report = finish(prefetch);
        assert_eq!(present(&report), "1101", "{outcome:?}");
        assert!(report.leases[0][2].is_none());
        rig.assert_right(&keys, &report);
        assert!(!rig.l1.has(&keys[2]));
        assert_eq!(rig.controller.counters().loaded.get(), 3);
        drop(report);
        rig.assert_all_is_given_back();
    }
}

// Seen elsewhere: corrupted bytes were a hit.
#[test]
fn corrupted_bytes_are_a_miss_and_their_entry_is_deleted() {
    let rig = Rig::new(1);
    let keys = keys(0..3);
    let shelf = rig.shelf(&keys);
    let prefetch = asked(&rig, &keys);
    let broken = object_key(&keys[1]);
    rig.manual().next_load().fill(|name| {
        let mut stored = shelf.get(name).cloned()?;
        if *name == broken {
            stored[LEN / 2] ^= 4;
        }
        Some(stored)
    });
    let report = finish(prefetch);
    assert_eq!(present(&report), "100");
    rig.assert_right(&keys, &report);
    assert_eq!(rig.controller.counters().corrupt.get(), 1);
    eventually("it is deleted", || {
        rig.manual().deleted() == [broken.clone()]
    });
    drop(report);
    rig.assert_all_is_given_back();
    assert!(!rig.l1.has(&keys[1]));
}

// Seen elsewhere: two keys under one name, or an object that was put in another's place.
#[test]
fn another_objects_bytes_under_this_name_are_a_miss() {
    let rig = Rig::new(1);
    let keys = keys(0..2);
    let shelf = rig.shelf(&keys);
    let prefetch = asked(&rig, &keys);
    let other = shelf[&object_key(&keys[1])].clone();
    rig.manual().next_load().fill(|_| Some(other.clone()));
    let report = finish(prefetch);
    assert_eq!(present(&report), "00");
    assert_eq!(rig.controller.counters().corrupt.get(), 1);
    drop(report);
    rig.assert_all_is_given_back();
    assert!(!rig.l1.has(&keys[0]));
}

#[test]
fn pages_that_come_back_in_the_wrong_order_are_no_hits() {
    let rig = Rig::new(1);
    // Files of LMCache's, in which nothing says whose they are.
    let name = |number: u8| format!("m@01000100@0@{number:02x}");
    let keys: Vec<_> = (1..3)
        .map(|number| Key::new(KeyTag::LmCache, name(number).as_bytes()).unwrap())
        .collect();
    let ask = || {
        let prefetch = rig.controller.submit(PrefetchRequest {
            rows: vec![Row {
                expected_len: Some(LEN as u64),
                ..row(&keys)
            }],
            ..prefix(&[])
        });
        rig.manual().next_lookup().find(|_| Some(LEN as u64));
        let mut load = rig.manual().next_load();
        let mut loaded = Vec::new();
        for (item, key) in load.batch.drain(..).zip(&keys) {
            let mut page = item.page;
            page.fill(&body(key)).unwrap();
            loaded.push(ondol_plugin::l2::Loaded {
                page: Some(page),
                outcome: LoadOutcome::Found(LEN as u64),
            });
        }
        (prefetch, load, loaded)
    };
    let (prefetch, load, mut loaded) = ask();
    loaded.reverse();
    load.end(LoadResult(loaded));
    assert_eq!(present(&finish(prefetch)), "00");
    rig.assert_all_is_given_back();

    let (prefetch, load, loaded) = ask();
    load.end(LoadResult(loaded));
    let report = finish(prefetch);
    assert_eq!(present(&report), "11");
    rig.assert_right(&keys, &report);
    assert_eq!(rig.controller.counters().unverified.get(), 2);
}

#[test]
fn a_file_without_a_trailer_is_served_and_counted() {
    let rig = Rig::new(1);
    let key = Key::new(KeyTag::LmCache, b"m@01000100@0@ab").unwrap();
    // Nobody knows that it has none, so that its end comes to lie in the trailer's room.
    let prefetch = rig.ask(std::slice::from_ref(&key));
    rig.manual().next_lookup().find(|_| Some(LEN as u64));
    rig.manual().next_load().fill(|_| Some(body(&key)));
    let report = finish(prefetch);
    assert_eq!(present(&report), "1");
    rig.assert_right(&[key], &report);
    assert_eq!(rig.controller.counters().unverified.get(), 1);
    drop(report);
    rig.assert_all_is_given_back();
}

// A file of LMCache's that ended in zeros was deleted when it was read.
#[test]
fn what_has_no_trailer_and_is_not_served_stays_where_it_is() {
    let rig = Rig::new(1);
    let key = Key::new(KeyTag::LmCache, b"m@01000100@0@ab").unwrap();
    let file = [body(&key), vec![0; 400]].concat();
    let prefetch = rig.ask(std::slice::from_ref(&key));
    let len = file.len() as u64;
    rig.manual().next_lookup().find(|_| Some(len));
    rig.manual().next_load().fill(|_| Some(file.clone()));
    let report = finish(prefetch);
    assert_eq!(present(&report), "0");
    let counters = rig.controller.counters();
    assert_eq!((counters.foreign.get(), counters.corrupt.get()), (1, 0));
    drop(report);
    rig.assert_all_is_given_back();
    assert!(rig.manual().deleted().is_empty());
}

#[test]
fn transformed_objects_come_back_as_they_were() {
    let transforms = json!([{"type": "lz4"}]);
    let rig = Rig::with(1, 16 << 20, config(), &transforms);
    let keys = keys(0..3);
    let shelf = rig.shelf(&keys);
    let prefetch = asked(&rig, &keys);
    let broken = object_key(&keys[2]);
    rig.manual().next_load().fill(|name| {
        let mut stored = shelf.get(name).cloned()?;
        if *name == broken {
            stored[10] ^= 1;
        }
        Some(stored)
    });
    let report = finish(prefetch);
    assert_eq!(present(&report), "110");
    rig.assert_right(&keys, &report);
    drop(report);
    rig.assert_all_is_given_back();
}

// Seen elsewhere: the positive answer of a lookup was kept after the load had failed, and asked for for ever.
#[test]
fn what_was_deleted_after_its_lookup_is_one_miss_and_no_loop() {
    let rig = Rig::new(1);
    let keys = keys(0..2);
    let prefetch = asked(&rig, &keys);
    rig.manual().next_load().fill(|_| None);
    assert_eq!(present(&finish(prefetch)), "00");
    assert_eq!(rig.manual().waiting(), (0, 0, 0));
    assert_eq!(rig.controller.counters().missing.get(), 2);
    // The next one asks anew, and is told that nothing is there.
    let prefetch = rig.ask(&keys);
    rig.manual().next_lookup().find(|_| None);
    assert_eq!(present(&finish(prefetch)), "00");
    rig.assert_all_is_given_back();
}

#[test]
fn what_one_backend_fails_to_load_comes_from_the_next_that_has_it() {
    let rig = Rig::new(2);
    let keys = keys(0..3);
    let shelf = rig.shelf(&keys);
    let prefetch = rig.ask(&keys);
    for adapter in &rig.adapters {
        adapter
            .next_lookup()
            .find(|name| Some(shelf[name].len() as u64));
    }
    let broken = object_key(&keys[1]);
    rig.adapters[0].next_load().fill(|name| {
        let mut stored = shelf.get(name).cloned()?;
        if *name == broken {
            stored[0] ^= 1;
        }
        Some(stored)
    });
    let load = rig.adapters[1].next_load();
    assert_eq!(load.batch.len(), 1);
    assert_eq!(load.batch[0].key, broken);
    load.fill(|name| shelf.get(name).cloned());
    let report = finish(prefetch);
    assert_eq!(present(&report), "111");
    rig.assert_right(&keys, &report);
    drop(report);
    rig.assert_all_is_given_back();
    eventually("the corrupt one is deleted", || {
        rig.adapters[0].deleted() == [broken.clone()]
    });
    assert!(rig.adapters[1].deleted().is_empty());
}

#[test]
fn a_backend_that_cannot_be_asked_does_not_spoil_the_others() {
    let rig = Rig::new(3);
    let keys = keys(0..2);
    let shelf = rig.shelf(&keys);
    rig.adapters[0].refuse_submits(Some("out of order"));
    let prefetch = rig.ask(&keys);
    rig.adapters[1]
        .next_lookup()
        .end(LookupResult::failed(2, "the disk is gone"));
    rig.adapters[2]
        .next_lookup()
        .find(|name| Some(shelf[name].len() as u64));
    rig.adapters[2]
        .next_load()
        .fill(|name| shelf.get(name).cloned());
    let report = finish(prefetch);
    assert_eq!(present(&report), "11");
    assert_eq!(rig.controller.counters().lookup_failed.get(), 2);
    drop(report);
    rig.assert_all_is_given_back();
}

// Seen elsewhere: loads that hang for ever.
#[test]
fn a_lookup_and_a_load_that_hang_are_misses() {
    let mut config = config();
    config.lookup_timeout = Duration::from_secs(1);
    config.load_timeout = Duration::from_millis(100);
    let rig = Rig::with(2, 16 << 20, config, &json!([]));
    let keys = keys(0..2);
    let shelf = rig.shelf(&keys);
    let prefetch = rig.ask(&keys);
    let hangs = rig.adapters[1].next_lookup();
    rig.adapters[0]
        .next_lookup()
        .find(|name| Some(shelf[name].len() as u64));
    let load = rig.adapters[0].next_load();
    let report = finish(prefetch);
    assert_eq!(present(&report), "00");
    assert_eq!(rig.controller.loading_bytes(), 0);
    // What comes late is unlocked, and let go.
    hangs.find(|name| Some(shelf[name].len() as u64));
    load.fill(|name| shelf.get(name).cloned());
    rig.assert_all_is_given_back();
    assert!(!rig.l1.has(&keys[0]));
}

// vllm#45388 and others: an adapter that does not even return from its submit.
#[test]
fn a_backend_that_blocks_its_callers_blocks_nobody_here() {
    let mut config = config();
    config.lookup_timeout = Duration::from_millis(300);
    let rig = Rig::with(1, 16 << 20, config, &json!([]));
    let keys = keys(0..2);
    let map = MapBackend::new();
    for (name, stored) in rig.shelf(&keys) {
        map.put(name, stored);
    }
    let other = WorkerAdapter::new("map", 1, map).unwrap();
    attach(&rig.backends, "map#0", Box::new(other), json!([]));
    rig.manual().block_calls(true);
    // On a busy machine a lookup may time out before its lane has begun with it; the next one is as good.
    eventually("a lookup hangs within the adapter", || {
        finish(rig.ask(&[key(7)]));
        rig.attached[0].backend.health_of_lane().captive_tasks == 1
    });
    eventually("the other backend serves all the same", || {
        present(&finish(rig.ask(&keys))) == "11"
    });
    rig.manual().block_calls(false);
    // It comes after all, and what it locks is unlocked.
    rig.manual().next_lookup().find(|_| Some(LEN as u64));
    rig.assert_all_is_given_back();
}

#[test]
fn a_load_with_too_few_results_is_a_miss() {
    let rig = Rig::new(1);
    let keys = keys(0..3);
    let prefetch = asked(&rig, &keys);
    let load = rig.manual().next_load();
    load.end(LoadResult::failed(2, "one is missing"));
    assert_eq!(present(&finish(prefetch)), "000");
    rig.assert_all_is_given_back();
}

#[test]
fn a_load_that_gives_no_page_back_is_a_miss() {
    let rig = Rig::new(1);
    let keys = keys(0..1);
    let prefetch = asked(&rig, &keys);
    rig.manual()
        .next_load()
        .end(LoadResult(vec![ondol_plugin::l2::Loaded {
            page: None,
            outcome: LoadOutcome::Found(LEN as u64),
        }]));
    assert_eq!(present(&finish(prefetch)), "0");
    rig.assert_all_is_given_back();
}
