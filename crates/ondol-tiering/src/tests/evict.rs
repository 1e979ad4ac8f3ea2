use ondol_plugin::l2::{KvRank, ObjectKey};

use super::*;
use crate::object_key;

const LRU: &str =
    r#","eviction":{"eviction_policy":"LRU","trigger_watermark":0.8,"eviction_ratio":0.2}"#;

fn name(number: u8, salt: &str) -> ObjectKey {
    ObjectKey::new("model", KvRank(1), 0, [number; 8], salt).expect("a key")
}

/// Looks objects up and locks them; how many there are.
fn lookup(backend: &Backend, keys: Vec<ObjectKey>) -> usize {
    let (found, is_found) = std::sync::mpsc::channel();
    backend.lookup(keys, WATCHDOG, move |result| {
        let found_now = result.expect("it answers").found.count_ones();
        found.send(found_now).expect("the test waits");
    });
    is_found.recv_timeout(WATCHDOG).expect("it answers in time")
}

/// LMCache evicts a part of the *number* of keys, once a second.
#[test]
fn a_full_backend_is_emptied_by_bytes_and_without_waiting_for_a_tick() {
    let (l1, shelf) = (l1(), Shelf::with_capacity(100 * 5000));
    let tiering = start(&l1, vec![shelf_backend(&shelf, LRU)], config());
    for first in (0..400).step_by(10) {
        commit(&l1, &tiering, first..first + 10);
        until("they are stored", || unstored(&l1, first..first + 10) == 0);
    }
    until("it is below the watermark", || shelf.used() < 400_000);
    until("what went is counted", || {
        let stats = tiering.stats();
        stats.backends[0].counters["ondol_l2_evicted_objects_total"] == 400 - shelf.len() as u64
    });
    assert!(shelf.get(&key(0)).is_none(), "the oldest went");
    assert!(shelf.get(&key(399)).is_some(), "the youngest stayed");
}

/// LMCache's native connectors start with a usage of 0: old objects are never evicted and the disk fills
/// (LMCache#4564).
#[test]
fn what_an_earlier_process_stored_is_evicted_as_well() {
    let (l1, shelf) = (l1(), Shelf::with_capacity(1_000_000));
    for number in 0..90 {
        shelf.fill(name(number, ""), 10_000);
    }
    let tiering = start(&l1, vec![shelf_backend(&shelf, LRU)], config());
    until("it is below the watermark", || shelf.used() < 800_000);
    until("what went is counted", || {
        count(&tiering, "evicted_bytes") == 900_000 - shelf.used()
    });
    assert!(shelf.used() >= 500_000, "and no more than it must be");
}

// After three failures within half a second nobody asked again, and what was there before stayed for ever.
#[test]
fn a_backend_that_does_not_list_at_first_is_asked_again() {
    let (l1, shelf) = (l1(), Shelf::with_capacity(1_000_000));
    for number in 0..90 {
        shelf.fill(name(number, ""), 10_000);
    }
    shelf.fail_lists(4);
    let _tiering = start(&l1, vec![shelf_backend(&shelf, LRU)], config());
    until("it is below the watermark", || shelf.used() < 800_000);
}

#[test]
fn a_listing_that_never_ends_does_not_keep_what_is_stored_from_being_evicted() {
    let (l1, shelf) = (l1(), Shelf::with_capacity(100 * 5000));
    shelf.list_in_circles();
    let tiering = start(&l1, vec![shelf_backend(&shelf, LRU)], config());
    for first in (0..200).step_by(10) {
        commit(&l1, &tiering, first..first + 10);
        until("they are stored", || unstored(&l1, first..first + 10) == 0);
    }
    until("it is below the watermark", || shelf.used() < 400_000);
}

/// LMCache deletes what a lookup has locked.
#[test]
fn a_locked_object_is_never_deleted_and_goes_when_it_is_unlocked() {
    let (l1, shelf) = (l1(), Shelf::with_capacity(1_000_000));
    for number in 0..70 {
        shelf.fill(name(number, ""), 10_000);
    }
    let tiering = start(&l1, vec![shelf_backend(&shelf, LRU)], config());
    let user = tiering.attached.active().remove(0);
    let locked: Vec<_> = (0..70).map(|number| name(number, "")).collect();
    assert_eq!(lookup(&user.backend, locked.clone()), 70);
    let more: Vec<_> = (70..100).map(|number| name(number, "")).collect();
    for key in &more {
        shelf.fill(key.clone(), 10_000);
    }
    if let Some(evictions) = &user.evictions {
        evictions.stored(more.iter().map(|key| (key, 10_000)));
    }
    until("what is not locked goes", || shelf.used() == 700_000);
    assert!(locked.iter().all(|key| shelf.has(key)));
    assert!(count(&tiering, "evict_locked_objects") > 0);
    // It is not enough yet, so that the rest follows as soon as it may.
    user.backend.unlock(locked.clone());
    until("what was locked goes", || shelf.used() == 600_000);
}

#[test]
fn a_salt_over_its_quota_is_brought_down_below_the_watermark_too() {
    let (l1, shelf) = (l1(), Shelf::with_capacity(10_000_000));
    for number in 0..40 {
        shelf.fill(name(number, "greedy"), 1000);
        shelf.fill(name(number, "modest"), 1000);
    }
    let tiering = start(&l1, vec![shelf_backend(&shelf, LRU)], config());
    let has = |salt| {
        let has = (0..40).filter(|number| shelf.has(&name(*number, salt)));
        has.count()
    };
    tiering.quotas().set_quota("greedy", 10_500);
    until("it keeps what it may", || has("greedy") == 10);
    tiering.quotas().set_quota("greedy", 5000);
    until("and less when its quota shrinks", || has("greedy") == 5);
    assert_eq!(has("modest"), 40);
}

#[test]
fn a_backend_that_cannot_delete_is_left_alone() {
    let (l1, shelf) = (l1(), Shelf::with_capacity(100_000));
    shelf.cannot_delete();
    let tiering = start(&l1, vec![shelf_backend(&shelf, LRU)], config());
    commit(&l1, &tiering, 0..100);
    until("they are stored", || unstored(&l1, 0..100) == 0);
    until("it was asked to delete", || shelf.deletes() > 0);
    let attached = tiering.attached.active().remove(0);
    let reports = attached.evictions.as_ref().expect("it has an eviction");
    until("the eviction has ended", || reports.is_stopped());
    let deletes = shelf.deletes();
    commit(&l1, &tiering, 100..200);
    until("stores go on", || unstored(&l1, 100..200) == 0);
    assert_eq!(shelf.deletes(), deletes);
}

/// LMCache's one eviction thread waits up to 30 s for a delete.
#[test]
fn a_delete_that_hangs_holds_up_no_store_and_no_other_backend() {
    let (l1, hanging, other) = (
        l1(),
        Shelf::with_capacity(100_000),
        Shelf::with_capacity(100_000),
    );
    hanging.hang_deletes(true);
    let backends = vec![shelf_backend(&hanging, LRU), shelf_backend(&other, LRU)];
    let tiering = start(&l1, backends, config());
    for first in (0..200).step_by(10) {
        commit(&l1, &tiering, first..first + 10);
        until("both store it", || hanging.stores() >= first + 10);
    }
    until("the other one makes room", || {
        other.stores() == 200 && other.used() < 80_000
    });
    until("all is stored", || hanging.len() == 200);
    hanging.hang_deletes(false);
    until("it makes room as well", || hanging.used() < 80_000);
}

#[test]
fn what_is_loaded_stays_longer() {
    let (l1, shelf) = (l1(), Shelf::with_capacity(100 * 5000));
    let tiering = start(&l1, vec![shelf_backend(&shelf, LRU)], config());
    commit(&l1, &tiering, 0..70);
    until("they are stored", || unstored(&l1, 0..70) == 0);
    let user = tiering.attached.active().remove(0);
    let loaded: Vec<_> = (0..10).map(|number| object_key(&key(number))).collect();
    user.note_loaded(&loaded);
    commit(&l1, &tiering, 70..100);
    until("others go", || shelf.get(&key(10)).is_none());
    assert!(loaded.iter().all(|key| shelf.has(key)));
}
