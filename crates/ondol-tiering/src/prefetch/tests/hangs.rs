//! Backends that are called in vain: they must not cost others anything, nor every request its whole time.

use std::time::Duration;

use ondol_plugin::l2::LoadOutcome;
use ondol_testkit::l2::HeldLoad;
use serde_json::json;

use super::rig::*;
use crate::TieringConfig;

const FOR_EVER: Duration = Duration::from_secs(3600);

/// Loads that nobody ends time out soon, and two of them in a row are too many.
fn impatient(pause: Duration) -> TieringConfig {
    TieringConfig {
        load_timeout: Duration::from_millis(100),
        read_breaker_timeouts: 2,
        breaker_pause: pause,
        ..config()
    }
}

/// Every backend says that it has all of these.
fn find_in_all(rig: &Rig, numbers: std::ops::Range<usize>) {
    let shelf = rig.shelf(&keys(numbers));
    for adapter in &rig.adapters {
        adapter
            .next_lookup()
            .find(|name| Some(shelf[name].len() as u64));
    }
}

/// Asks for an object that both backends have and that the first one does not load; the second one has to.
fn hang(rig: &Rig, number: usize) -> HeldLoad {
    let keys = keys(number..number + 1);
    let shelf = rig.shelf(&keys);
    let prefetch = rig.ask(&keys);
    find_in_all(rig, number..number + 1);
    let hangs = rig.adapters[0].next_load();
    rig.adapters[1]
        .next_load()
        .fill(|name| shelf.get(name).cloned());
    let report = finish(prefetch);
    assert_eq!(present(&report), "1");
    hangs
}

// M11: each retrieve waited its whole time for a backend of which nothing ever came.
#[test]
fn a_backend_whose_loads_time_out_in_a_row_is_not_asked_any_more() {
    let rig = Rig::with(2, 16 << 20, impatient(FOR_EVER), &json!([]));
    let reads = &rig.attached[0].reads;
    let first = hang(&rig, 0);
    assert_eq!(reads.complaint(), None);
    let second = hang(&rig, 1);
    let complaint = reads.complaint().expect("it is left out");
    assert!(complaint.contains("2 loads"), "{complaint}");
    let keys = keys(2..4);
    let shelf = rig.shelf(&keys);
    let prefetch = rig.ask(&keys);
    let other = &rig.adapters[1];
    other
        .next_lookup()
        .find(|name| Some(shelf[name].len() as u64));
    other.next_load().fill(|name| shelf.get(name).cloned());
    let report = finish(prefetch);
    assert_eq!(present(&report), "11");
    assert_eq!(rig.adapters[0].waiting(), (0, 0, 0));
    drop((report, first, second));
    rig.assert_all_is_given_back();
}

#[test]
fn what_waits_for_a_backend_that_is_left_out_is_loaded_from_another() {
    let len = Rig::new(1).stored(&key(0)).len() as u64;
    let config = TieringConfig {
        read_breaker_timeouts: 1,
        load_in_flight_bytes: 2 * len,
        ..impatient(FOR_EVER)
    };
    let rig = Rig::with(2, 16 << 20, config, &json!([]));
    let all = keys(0..2);
    let shelf = rig.shelf(&all);
    let first = rig.ask(&all[..1]);
    find_in_all(&rig, 0..1);
    let hangs = rig.adapters[0].next_load();
    // It finds that as much is being loaded as may be.
    let second = rig.ask(&all[1..]);
    find_in_all(&rig, 1..2);
    for _ in 0..2 {
        let load = rig.adapters[1].next_load();
        load.fill(|name| shelf.get(name).cloned());
    }
    assert_eq!(present(&finish(first)), "1");
    assert_eq!(present(&finish(second)), "1");
    assert_eq!(rig.adapters[0].waiting(), (0, 0, 0));
    drop(hangs);
    rig.assert_all_is_given_back();
}

#[test]
fn a_load_that_ends_in_time_brings_a_backend_back() {
    let rig = Rig::with(2, 16 << 20, impatient(Duration::ZERO), &json!([]));
    let hanging = [hang(&rig, 0), hang(&rig, 1)];
    let reads = &rig.attached[0].reads;
    assert!(reads.complaint().is_some());
    let keys = keys(2..6);
    let shelf = rig.shelf(&keys);
    let prefetch = rig.ask(&keys);
    find_in_all(&rig, 2..6);
    rig.adapters[0]
        .next_load()
        .fill(|name| shelf.get(name).cloned());
    // It was as slow as can be, so it was tried with one only.
    assert_eq!(finish(prefetch).present[0].count_ones(), 1);
    assert_eq!(reads.complaint(), None);
    // Now it counts as fast as it is.
    let prefetch = rig.ask(&keys);
    find_in_all(&rig, 3..6);
    let load = rig.adapters[0].next_load();
    assert_eq!(load.batch.len(), 3);
    load.fill(|name| shelf.get(name).cloned());
    assert_eq!(present(&finish(prefetch)), "1111");
    drop(hanging);
    rig.assert_all_is_given_back();
}

#[test]
fn a_load_that_times_out_is_time_in_which_nothing_came() {
    let config = TieringConfig {
        read_breaker_timeouts: 100,
        ..impatient(FOR_EVER)
    };
    let rig = Rig::with(1, 16 << 20, config, &json!([]));
    let prefetch = rig.ask(&keys(0..1));
    find_in_all(&rig, 0..1);
    let hangs = rig.manual().next_load();
    assert_eq!(present(&finish(prefetch)), "0");
    let prefetch = rig.ask(&keys(1..9));
    find_in_all(&rig, 1..9);
    let load = rig.manual().next_load();
    assert_eq!(load.batch.len(), 1, "more than that would not come in time");
    load.each(|_| LoadOutcome::Missing);
    drop((prefetch, hangs));
    rig.assert_all_is_given_back();
}

#[test]
fn a_backend_whose_lookups_time_out_in_a_row_is_not_asked_any_more() {
    let config = TieringConfig {
        lookup_timeout: Duration::from_millis(100),
        ..impatient(FOR_EVER)
    };
    let rig = Rig::with(1, 16 << 20, config, &json!([]));
    let mut hanging = Vec::new();
    for number in 0..2 {
        let prefetch = rig.ask(&[key(number)]);
        hanging.push(rig.manual().next_lookup());
        assert_eq!(present(&finish(prefetch)), "0");
    }
    let prefetch = rig.ask(&[key(2)]);
    assert!(prefetch.is_done(), "nobody else can be asked");
    assert_eq!(rig.manual().waiting(), (0, 0, 0));
    drop(hanging);
    rig.assert_all_is_given_back();
}

// A client that does not wait long says nothing of the backend.
#[test]
fn a_request_that_has_little_time_does_not_make_a_backend_slow() {
    let config = TieringConfig {
        read_breaker_timeouts: 1,
        ..config()
    };
    let rig = Rig::with(1, 16 << 20, config, &json!([]));
    let prefetch = rig.controller.submit(crate::PrefetchRequest {
        timeout: Duration::from_millis(1),
        ..prefix(&keys(0..1))
    });
    let lookup = rig.manual().next_lookup();
    eventually("its time is over", || prefetch.is_done());
    assert_eq!(rig.attached[0].reads.complaint(), None);
    // What it locks late is unlocked.
    lookup.find(|_| Some(LEN as u64));
    drop(prefetch);
    rig.assert_all_is_given_back();
    assert_eq!(rig.attached[0].reads.complaint(), None);
}

// It held all bytes that may be in flight, and its requests stood before everybody else's.
#[test]
fn a_backend_that_hangs_does_not_starve_the_others() {
    let len = Rig::new(1).stored(&key(0)).len() as u64;
    let config = TieringConfig {
        load_in_flight_bytes: 4 * len,
        ..config()
    };
    let rig = Rig::with(2, 16 << 20, config, &json!([]));
    let all = keys(0..6);
    let shelf = rig.shelf(&all);
    let ask = |range: std::ops::Range<usize>, has_it: usize| {
        let prefetch = rig.ask(&all[range]);
        for (at, adapter) in rig.adapters.iter().enumerate() {
            let lookup = adapter.next_lookup();
            lookup.find(|name| (at == has_it).then(|| shelf[name].len() as u64));
        }
        prefetch
    };
    let hanging = ask(0..2, 0);
    let hangs = rig.adapters[0].next_load();
    let waiting = ask(2..4, 0);
    let served = ask(4..6, 1);
    let load = rig.adapters[1].next_load();
    assert_eq!(rig.adapters[0].waiting(), (0, 0, 0), "it has its share");
    load.fill(|name| shelf.get(name).cloned());
    assert_eq!(present(&finish(served)), "11");
    hangs.fill(|name| shelf.get(name).cloned());
    rig.adapters[0]
        .next_load()
        .fill(|name| shelf.get(name).cloned());
    assert_eq!(present(&finish(hanging)), "11");
    assert_eq!(present(&finish(waiting)), "11");
    rig.assert_all_is_given_back();
}

// M17: what was given up counted for nothing, until the whole pool was captive.
#[test]
fn what_a_backend_does_not_let_go_of_counts_as_in_flight() {
    let rig = Rig::new(1);
    let len = rig.stored(&key(0)).len() as u64;
    let config = TieringConfig {
        read_breaker_timeouts: u32::MAX,
        load_in_flight_bytes: 2 * len,
        ..impatient(FOR_EVER)
    };
    let rig = Rig::with(1, 16 << 20, config, &json!([]));
    let mut hanging = Vec::new();
    for number in 0..2 {
        let prefetch = rig.ask(&keys(number..number + 1));
        find_in_all(&rig, number..number + 1);
        hanging.push(rig.manual().next_load());
        assert_eq!(present(&finish(prefetch)), "0");
    }
    assert_eq!(present(&finish(rig.ask(&keys(2..3)))), "0");
    assert_eq!(rig.manual().waiting(), (0, 0, 0), "it is not asked");
    drop(hanging);
    eventually("it has let go", || {
        rig.attached[0].backend.status().captive_load_bytes == 0
    });
    let prefetch = rig.ask(&keys(2..3));
    find_in_all(&rig, 2..3);
    let shelf = rig.shelf(&keys(2..3));
    rig.manual()
        .next_load()
        .fill(|name| shelf.get(name).cloned());
    assert_eq!(present(&finish(prefetch)), "1");
    rig.assert_all_is_given_back();
}

// M17: requests that had been found something for before went on to be loaded, one after the other.
#[test]
fn who_has_waited_gets_nothing_from_a_backend_that_keeps_its_share() {
    let len = Rig::new(1).stored(&key(0)).len() as u64;
    let config = TieringConfig {
        read_breaker_timeouts: u32::MAX,
        load_in_flight_bytes: len,
        ..impatient(FOR_EVER)
    };
    let rig = Rig::with(1, 16 << 20, config, &json!([]));
    let asked: Vec<_> = (0..3)
        .map(|number| {
            let prefetch = rig.ask(&keys(number..number + 1));
            find_in_all(&rig, number..number + 1);
            prefetch
        })
        .collect();
    let hangs = rig.manual().next_load();
    for prefetch in asked {
        assert_eq!(present(&finish(prefetch)), "0");
    }
    assert_eq!(rig.manual().waiting(), (0, 0, 0), "nothing more is loaded");
    drop(hangs);
    rig.assert_all_is_given_back();
}
