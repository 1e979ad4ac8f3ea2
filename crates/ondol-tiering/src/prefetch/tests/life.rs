//! Requests that end before what was begun for them does.

use std::time::{Duration, Instant};

use ondol_plugin::Key;
use serde_json::json;

use super::rig::*;
use crate::object_key;
use crate::prefetch::{Prefetch, PrefetchRequest};

/// Answers the next lookup of the first backend: all is there.
fn find_all(rig: &Rig, keys: &[Key]) {
    let shelf = rig.shelf(keys);
    rig.manual()
        .next_lookup()
        .find(|name| Some(shelf[name].len() as u64));
}

/// Objects that fill the pool several times over. Those that stay are right.
fn churn(rig: &Rig, round: usize) {
    let large = |key: &Key| body(key).repeat(100);
    let others = keys(100 + 40 * round..140 + 40 * round);
    for key in &others {
        assert!(rig.l1.put(key, &large(key)));
    }
    let stay: Vec<_> = others.iter().filter(|key| rig.l1.has(key)).collect();
    assert!(!stay.is_empty() && stay.len() < others.len());
    for key in stay {
        if let Some(bytes) = rig.l1.get(key) {
            assert!(bytes == large(key), "{key} was overwritten");
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum End {
    Abort,
    Drop,
    RequestTime,
    LoadTime,
    CloseController,
    CloseBackend,
}

// Seen elsewhere: the buffer of an aborted load was given to another object, and then written.
#[test]
fn a_load_that_ends_after_its_request_was_aborted_never_touches_another_object() {
    for end in [
        End::Abort,
        End::Drop,
        End::RequestTime,
        End::LoadTime,
        End::CloseController,
        End::CloseBackend,
    ] {
        let mut config = config();
        if matches!(end, End::LoadTime) {
            config.load_timeout = Duration::from_millis(50);
        }
        let rig = Rig::with(2, 4 << 20, config, &json!([]));
        // The second backend refuses its load, which aborted the whole request.
        let keys = keys(0..2);
        let shelf = rig.shelf(&keys);
        let timeout = match end {
            End::RequestTime => Duration::from_secs(1),
            _ => WATCHDOG,
        };
        let prefetch = rig.controller.submit(PrefetchRequest {
            timeout,
            ..prefix(&keys)
        });
        let first = object_key(&keys[0]);
        for (at, adapter) in rig.adapters.iter().enumerate() {
            adapter.next_lookup().find(|name| {
                let is_here = (*name == first) == (at == 0);
                is_here.then(|| shelf[name].len() as u64)
            });
        }
        let load = rig.adapters[0].next_load();
        drop(rig.adapters[1].next_load());
        match end {
            End::Abort => prefetch.abort(),
            End::Drop => drop(prefetch),
            End::RequestTime | End::LoadTime => {
                let report = prefetch.wait(Instant::now() + WATCHDOG);
                assert_eq!(present(&report), "00");
            }
            End::CloseController => {
                rig.controller.close();
                assert_eq!(present(&prefetch.wait(Instant::now() + WATCHDOG)), "00");
            }
            End::CloseBackend => {
                rig.attached[0].backend.close(Duration::ZERO);
                assert_eq!(present(&finish(prefetch)), "00");
            }
        }
        churn(&rig, 0);
        load.fill(|name| shelf.get(name).cloned());
        churn(&rig, 1);
        if let Some(bytes) = rig.l1.get(&keys[0]) {
            assert!(bytes == body(&keys[0]), "{end:?}");
        }
        // The page of a load that a closed adapter had is captive for as long as the adapter lives.
        if !matches!(end, End::CloseBackend) {
            rig.assert_all_is_given_back();
        }
    }
}

// Seen elsewhere: a load that was slower than its reservation was a hit, though nothing was admitted.
#[test]
fn a_load_that_is_slower_than_its_request_is_no_hit_and_comes_all_the_same() {
    let rig = Rig::new(1);
    let keys = keys(0..2);
    let shelf = rig.shelf(&keys);
    let prefetch = rig.controller.submit(PrefetchRequest {
        timeout: Duration::from_secs(1),
        ..prefix(&keys)
    });
    find_all(&rig, &keys);
    let load = rig.manual().next_load();
    let report = prefetch.wait(Instant::now() + WATCHDOG);
    assert!(report.timed_out);
    assert_eq!(present(&report), "00");
    assert!(!rig.l1.has(&keys[0]));
    assert_eq!(rig.controller.counters().timed_out.get(), 1);
    load.fill(|name| shelf.get(name).cloned());
    eventually("it is admitted", || rig.l1.has(&keys[1]));
    rig.assert_all_is_given_back();
    assert_eq!(present(&finish(rig.ask(&keys))), "11");
}

#[test]
fn who_waits_gets_what_has_come_by_then() {
    let rig = Rig::new(2);
    let keys = keys(0..3);
    let shelf = rig.shelf(&keys);
    assert!(rig.l1.put(&keys[0], &body(&keys[0])));
    let prefetch = rig.ask(&keys);
    let second = object_key(&keys[1]);
    for (at, adapter) in rig.adapters.iter().enumerate() {
        adapter.next_lookup().find(|name| {
            let is_here = (*name == second) == (at == 0);
            is_here.then(|| shelf[name].len() as u64)
        });
    }
    let slow = rig.adapters[1].next_load();
    rig.adapters[0]
        .next_load()
        .fill(|name| shelf.get(name).cloned());
    eventually("the second has come", || {
        rig.controller.counters().loaded.get() == 1
    });
    // It is leased before it is told of.
    eventually("it is leased", || rig.l1.memory.leases() == 2);
    let report = prefetch.wait(Instant::now());
    assert!(report.timed_out);
    assert_eq!(present(&report), "110");
    assert_eq!(report.from_memory[0].to_string(), "100");
    rig.assert_right(&keys, &report);
    drop(report);
    slow.fill(|name| shelf.get(name).cloned());
    rig.assert_all_is_given_back();
    assert!(rig.l1.has(&keys[2]));
}

// Seen elsewhere: a lookup did not keep an object from being deleted before it was loaded.
#[test]
fn what_is_being_loaded_is_locked_until_it_has_come() {
    let rig = Rig::new(1);
    let keys = keys(0..2);
    let shelf = rig.shelf(&keys);
    let names: Vec<_> = keys.iter().map(object_key).collect();
    let prefetch = rig.ask(&keys);
    find_all(&rig, &keys);
    let load = rig.manual().next_load();
    // Whoever asked has gone: that unlocks nothing that is being read.
    drop(prefetch);
    let deleted = rig.attached[0].backend.delete(&names).unwrap();
    assert_eq!(deleted.gone.count_ones(), 0);
    assert_eq!(deleted.locked.count_ones(), 2);
    load.fill(|name| shelf.get(name).cloned());
    rig.assert_all_is_given_back();
    let deleted = rig.attached[0].backend.delete(&names).unwrap();
    assert_eq!(deleted.gone.count_ones(), 2);
}

#[test]
fn a_request_that_nobody_waits_for_brings_its_objects_all_the_same() {
    let rig = Rig::new(1);
    let keys = keys(0..3);
    let shelf = rig.shelf(&keys);
    drop(rig.ask(&keys));
    find_all(&rig, &keys);
    rig.manual()
        .next_load()
        .fill(|name| shelf.get(name).cloned());
    eventually("it is admitted", || rig.l1.has(&keys[2]));
    rig.assert_all_is_given_back();
}

/// What state a request is in.
#[derive(Clone, Copy, Debug)]
enum State {
    LookingUp,
    Queued,
    Loading,
    Done,
}

const STATES: [State; 4] = [State::LookingUp, State::Queued, State::Loading, State::Done];

/// A request in this state, and what a test must hold to keep it there.
fn in_state(rig: &Rig, state: State) -> (Prefetch, Vec<ondol_testkit::l2::HeldLoad>) {
    let (keys, before) = (keys(0..3), keys(10..12));
    let shelf = rig.shelf(&keys);
    let mut held = Vec::new();
    if matches!(state, State::Queued) {
        // What is in flight before it leaves no room.
        drop(rig.ask(&before));
        find_all(rig, &before);
        held.push(rig.manual().next_load());
    }
    let prefetch = rig.ask(&keys);
    match state {
        State::LookingUp => {}
        State::Queued => {
            // The last is not wanted: once it is unlocked, the request is in the queue.
            let hole = object_key(&keys[1]);
            let last = object_key(&keys[2]);
            rig.manual()
                .next_lookup()
                .find(|name| (*name != hole).then(|| shelf[name].len() as u64));
            eventually("it is planned", || !rig.manual().locks().is_locked(&last));
        }
        State::Loading => {
            find_all(rig, &keys);
            held.push(rig.manual().next_load());
        }
        State::Done => {
            find_all(rig, &keys);
            for _ in &keys {
                let load = rig.manual().next_load();
                assert_eq!(load.batch.len(), 1);
                load.fill(|name| shelf.get(name).cloned());
            }
            eventually("it is done", || prefetch.is_done());
        }
    }
    (prefetch, held)
}

fn small_rig() -> Rig {
    let mut config = config();
    config.load_in_flight_bytes = 1;
    // Larger than the limit: alone, and one by one.
    Rig::with(1, 4 << 20, config, &json!([]))
}

// Seen elsewhere: aborted requests left tokens, slots and pins behind until nothing could be prefetched any more.
#[test]
fn an_abort_in_any_state_leaves_nothing_locked() {
    for state in STATES {
        for waits_for_loads in [false, true] {
            let rig = small_rig();
            let (prefetch, held) = in_state(&rig, state);
            if waits_for_loads {
                drop(held);
                prefetch.abort();
            } else {
                prefetch.abort();
                eventually("the request has ended", || {
                    // What was in flight before it has not.
                    let before = u64::from(matches!(state, State::Queued));
                    rig.controller.under_way() <= before
                });
                drop(held);
            }
            if matches!(state, State::LookingUp) {
                find_all(&rig, &keys(0..3));
            }
            // Those that go on find nothing any more.
            end_all(&rig);
            rig.assert_all_is_given_back();
        }
    }
}

/// Ends whatever is asked of the backend until nothing is under way.
fn end_all(rig: &Rig) {
    eventually("everything has ended", || {
        let (_, lookups, loads) = rig.manual().waiting();
        (0..lookups).for_each(|_| drop(rig.manual().next_lookup()));
        (0..loads).for_each(|_| drop(rig.manual().next_load()));
        rig.controller.under_way() == 0 && rig.controller.loading_bytes() == 0
    });
}

#[test]
fn closing_in_any_state_answers_everybody() {
    for state in STATES {
        let rig = small_rig();
        let (prefetch, held) = in_state(&rig, state);
        let other = rig.ask(&keys(20..22));
        rig.controller.close();
        let report = prefetch.wait(Instant::now() + WATCHDOG);
        let is_done = matches!(state, State::Done);
        assert_eq!(present(&report), if is_done { "111" } else { "000" });
        assert_eq!(finish(other).present[0].count_ones(), 0);
        drop(report);
        // So is everybody who comes later.
        assert_eq!(finish(rig.ask(&keys(30..32))).present[0].count_ones(), 0);
        drop(held);
        for (lookups, loads) in [(1, 0), (0, 1)] {
            let (_, now_lookups, now_loads) = rig.manual().waiting();
            (0..now_lookups * lookups).for_each(|_| find_later(&rig));
            (0..now_loads * loads).for_each(|_| drop(rig.manual().next_load()));
        }
        rig.assert_all_is_given_back();
    }
}

/// A lookup that finds everything when nobody listens any more.
fn find_later(rig: &Rig) {
    rig.manual().next_lookup().find(|_| Some(4096));
}

#[test]
fn a_backend_that_goes_in_the_middle_of_a_request_is_a_miss() {
    for state in [State::LookingUp, State::Loading] {
        let rig = small_rig();
        let (prefetch, held) = in_state(&rig, state);
        rig.attached[0].backend.close(Duration::ZERO);
        assert_eq!(present(&finish(prefetch)), "000");
        drop(held);
        // And nobody asks it any more; what is refused is a miss as well.
        assert_eq!(present(&finish(rig.ask(&keys(0..1)))), "0");
        assert_eq!(rig.controller.under_way(), 0);
        assert_eq!(rig.controller.loading_bytes(), 0);
        assert_eq!(rig.l1.memory.leases(), 0);
    }
}

#[test]
fn a_backend_that_is_drained_finishes_what_it_was_asked_for() {
    let rig = Rig::new(1);
    let keys = keys(0..2);
    let shelf = rig.shelf(&keys);
    let prefetch = rig.ask(&keys);
    let lookup = rig.manual().next_lookup();
    let draining = rig.backends.drain(rig.attached[0].id).unwrap();
    assert!(rig.ask(&keys).is_done());
    lookup.find(|name| Some(shelf[name].len() as u64));
    rig.manual()
        .next_load()
        .fill(|name| shelf.get(name).cloned());
    assert_eq!(present(&finish(prefetch)), "11");
    rig.assert_all_is_given_back();
    let Rig { attached, .. } = rig;
    drop(attached);
    assert!(draining.wait_until_unused(Instant::now() + WATCHDOG));
}

#[test]
fn what_cannot_be_recorded_is_a_miss() {
    let rig = Rig::new(1);
    let keys = keys(0..2);
    let shelf = rig.shelf(&keys);
    let prefetch = rig.ask(&keys);
    find_all(&rig, &keys);
    let load = rig.manual().next_load();
    rig.l1.memory.close();
    load.fill(|name| shelf.get(name).cloned());
    assert_eq!(present(&finish(prefetch)), "00");
    assert_eq!(rig.controller.counters().not_recorded.get(), 2);
    assert_eq!(rig.controller.loading_bytes(), 0);
    eventually("it is unlocked", || {
        let locks = rig.manual().locks();
        !keys.iter().any(|key| locks.is_locked(&object_key(key)))
    });
}

// Seen elsewhere: what was leased long ago was overwritten while it was read.
#[test]
fn a_report_keeps_its_objects_whatever_is_loaded_beside_them() {
    let rig = Rig::with(1, 4 << 20, config(), &json!([]));
    let keys = keys(0..2);
    let shelf = rig.shelf(&keys);
    let prefetch = rig.ask(&keys);
    find_all(&rig, &keys);
    rig.manual()
        .next_load()
        .fill(|name| shelf.get(name).cloned());
    let report = finish(prefetch);
    churn(&rig, 0);
    churn(&rig, 1);
    assert_eq!(rig.l1.memory.evict(&keys), 0);
    rig.assert_right(&keys, &report);
    drop(report);
    assert_eq!(rig.l1.memory.evict(&keys), 2);
    rig.assert_all_is_given_back();
}

// A load that was under way brought an object back that a client had deleted.
#[test]
fn what_is_deleted_while_it_is_loaded_does_not_come_back() {
    let rig = Rig::new(2);
    let keys = keys(0..3);
    let shelf = rig.shelf(&keys);
    let names: Vec<_> = keys.iter().map(object_key).collect();
    let prefetch = rig.ask(&keys);
    let late = rig.ask(&keys[1..]);
    // The second backend has it as well.
    for adapter in &rig.adapters {
        adapter
            .next_lookup()
            .find(|name| Some(shelf[name].len() as u64));
    }
    let load = rig.manual().next_load();
    let barred = rig.controller.bar(&keys[1..2]);
    // What only waits for its turn lets go of it at once.
    let second = |adapter: usize| {
        let deleted = rig.attached[adapter].backend.delete(&names[1..2]);
        deleted.unwrap().gone.test(0)
    };
    eventually("the second backend deletes it", || second(1));
    assert!(!second(0), "it was deleted while it was read");
    // Nor does who asks now get it: his lookups saw it before.
    for adapter in &rig.adapters {
        adapter
            .next_lookup()
            .find(|name| Some(shelf[name].len() as u64));
    }
    assert_eq!(present(&finish(late)), "00");
    load.fill(|name| shelf.get(name).cloned());
    assert_eq!(present(&finish(prefetch)), "100");
    eventually("the first backend deletes it", || second(0));
    drop(barred);
    assert!(!rig.l1.has(&keys[1]));
    assert_eq!(rig.controller.counters().deleted.get(), 1);
    rig.assert_all_is_given_back();
    // From now on it may come again.
    let prefetch = rig.ask(&keys[1..2]);
    rig.adapters[1].next_lookup().find(|_| None);
    rig.adapters[0]
        .next_lookup()
        .find(|name| Some(shelf[name].len() as u64));
    rig.manual()
        .next_load()
        .fill(|name| shelf.get(name).cloned());
    assert_eq!(present(&finish(prefetch)), "1");
    rig.controller.close();
    drop(rig.controller.bar(&keys));
}

// A delete of one key made a request that still waited for a lookup forget what other backends had found of all keys.
#[test]
fn a_delete_takes_nothing_else_from_a_request_that_is_still_looking_up() {
    let rig = Rig::new(2);
    let keys = keys(0..3);
    let shelf = rig.shelf(&keys);
    let prefetch = rig.ask(&keys);
    rig.adapters[0]
        .next_lookup()
        .find(|name| Some(shelf[name].len() as u64));
    let unanswered = rig.adapters[1].next_lookup();
    // When a later request has ended the controller has heard the first answer.
    let later = rig.ask(&[key(7)]);
    for adapter in &rig.adapters {
        adapter.next_lookup().find(|_| None);
    }
    assert_eq!(present(&finish(later)), "0");
    drop(rig.controller.bar(&keys[2..]));
    unanswered.find(|_| None);
    rig.manual()
        .next_load()
        .fill(|name| shelf.get(name).cloned());
    assert_eq!(present(&finish(prefetch)), "110");
    rig.assert_all_is_given_back();
}

// A second load of the key took the mark from the first one, and so the first one brought back what was deleted.
#[test]
fn a_load_of_what_is_deleted_stays_unwanted_when_the_key_is_asked_for_anew() {
    let rig = Rig::new(1);
    let keys = keys(0..1);
    let shelf = rig.shelf(&keys);
    let find = || {
        rig.manual()
            .next_lookup()
            .find(|name| Some(shelf[name].len() as u64));
    };
    let first = rig.ask(&keys);
    find();
    let load = rig.manual().next_load();
    drop(rig.controller.bar(&keys));
    assert_eq!(present(&finish(first)), "0");
    let second = rig.ask(&keys);
    find();
    assert_eq!(present(&finish(second)), "0", "it is a miss, at once");
    load.fill(|name| shelf.get(name).cloned());
    rig.assert_all_is_given_back();
    assert!(!rig.l1.has(&keys[0]));
    // When that load has ended the key may come again.
    let third = rig.ask(&keys);
    find();
    rig.manual()
        .next_load()
        .fill(|name| shelf.get(name).cloned());
    assert_eq!(present(&finish(third)), "1");
}
