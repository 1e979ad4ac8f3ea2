//! What the bridge makes of a connector that behaves.

mod common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use common::*;
use ondol_plugin::l2::{
    Completion, Health, L2Adapter, ListRequest, LoadItem, LoadOutcome, ObjectRef, StoreItem,
};

const LONG: Duration = Duration::from_secs(60);

#[test]
fn keys_are_canonical_strings_and_objects_come_with_both_parts() {
    let strings = Strings::new();
    let bridge = strings.bridge(LONG);
    let object = ObjectRef::with_trailer(vec![7; 10], [1, 2, 3]);
    let task = bridge
        .submit_store(vec![StoreItem {
            key: key(0xab),
            object,
        }])
        .unwrap();
    let taken = strings.next();
    assert_eq!(taken.keys, ["org/model@01000100@0@abababababababab"]);
    assert_eq!(taken.objects[0].stored_len(), 13);
    strings.complete(taken.succeed());
    assert_eq!(store_result(&bridge, task).0, Ok(13));
    assert_eq!(bridge.usage().used_bytes, 13);
}

#[test]
fn a_store_of_what_is_known_counts_no_bytes() {
    let strings = Strings::new();
    let bridge = strings.bridge(LONG);
    for expected in [5, 0] {
        let task = bridge.submit_store(vec![item(1, 5)]).unwrap();
        strings.complete(strings.next().succeed());
        assert_eq!(store_result(&bridge, task).0, Ok(expected));
    }
    assert_eq!(bridge.usage().objects, 1);
}

#[test]
fn without_a_list_ok_stands_for_all_keys() {
    let strings = Strings::new();
    let bridge = strings.bridge(LONG);
    let task = bridge.submit_lookup_and_lock(keys(0..3)).unwrap();
    strings.complete(strings.next().succeed());
    let found = lookup_result(&bridge, task);
    assert_eq!(found.found.count_ones(), 3);
    assert_eq!(found.sizes, [0, 0, 0]);

    let (items, _) = load_items(0..2);
    let task = bridge.submit_load(items).unwrap();
    strings.complete(strings.next().succeed());
    let loaded = load_result(&bridge, task);
    assert_eq!(loaded.lengths().collect::<Vec<_>>(), [16, 16]);
    assert!(bridge.delete(&[]).unwrap().gone.is_empty());
}

#[test]
fn what_a_connector_did_not_load_is_missing_or_failed() {
    let strings = Strings::new();
    let bridge = strings.bridge(LONG);
    for (error, expected) in [
        ("", LoadOutcome::Missing),
        ("bad disk", LoadOutcome::Failed("bad disk".into())),
    ] {
        let (items, alive) = load_items(0..2);
        let task = bridge.submit_load(items).unwrap();
        let mut completion = strings.next().succeed();
        completion.per_key = Some(vec![false, true]);
        completion.lengths = Some(vec![99, 9]);
        completion.error = error.into();
        strings.complete(completion);
        let loaded = load_result(&bridge, task);
        assert_eq!(loaded.0[0].outcome, expected);
        assert_eq!(loaded.0[1].outcome, LoadOutcome::Found(9));
        assert!(loaded.0.iter().all(|loaded| loaded.page.is_some()));
        drop(loaded);
        assert!(!alive.iter().any(is_held));
    }
    expect_health(&bridge, Health::Healthy, "");
}

/// In LMCache: its native connectors deleted what a lookup had locked.
#[test]
fn locked_objects_are_not_deleted() {
    let strings = Strings::new();
    let bridge = strings.bridge(LONG);
    for _ in 0..2 {
        let task = bridge.submit_lookup_and_lock(keys([1])).unwrap();
        strings.complete(strings.next().succeed());
        assert!(lookup_result(&bridge, task).found.test(0));
    }
    for _ in 0..2 {
        let deleted = bridge.delete(&keys([1])).unwrap();
        assert!(deleted.locked.test(0) && !deleted.gone.test(0));
        bridge.submit_unlock(&keys([1]));
    }
    assert_eq!(figure(&bridge, "locked_keys"), 0);
    let gone = std::thread::scope(|scope| {
        let delete = scope.spawn(|| bridge.delete(&keys([1])));
        let taken = strings.next();
        assert_eq!(taken.what, What::Delete);
        strings.complete(taken.succeed());
        delete.join().unwrap().unwrap()
    });
    assert!(gone.gone.test(0));
}

/// The other half: a lookup during a delete must not promise what is about to go.
#[test]
fn what_is_being_deleted_is_not_found() {
    let strings = Strings::new();
    let bridge = strings.bridge(LONG);
    std::thread::scope(|scope| {
        let delete = scope.spawn(|| bridge.delete(&keys([1, 2])));
        let deleting = strings.next();
        let task = bridge.submit_lookup_and_lock(keys([1, 3])).unwrap();
        strings.complete(strings.next().succeed());
        assert_eq!(lookup_result(&bridge, task).found.to_string(), "01");
        let mut completion = deleting.succeed();
        completion.per_key = Some(vec![true, false]);
        strings.complete(completion);
        assert_eq!(delete.join().unwrap().unwrap().gone.to_string(), "10");
    });
    let task = bridge.submit_lookup_and_lock(keys([1])).unwrap();
    strings.complete(strings.next().succeed());
    assert!(lookup_result(&bridge, task).found.test(0));
}

// Who deleted a key that somebody else was deleting was told that it could not be deleted at all.
#[test]
fn a_key_that_is_being_deleted_counts_as_locked_for_who_deletes_it_too() {
    let strings = Strings::new();
    let bridge = strings.bridge(LONG);
    std::thread::scope(|scope| {
        let delete = scope.spawn(|| bridge.delete(&keys([1, 2, 1])));
        let deleting = strings.next();
        let second = bridge.delete(&keys([2])).unwrap();
        assert!(second.locked.test(0) && !second.gone.test(0));
        strings.complete(deleting.succeed());
        let first = delete.join().unwrap().unwrap();
        assert_eq!(first.gone.to_string(), "110");
        assert_eq!(first.locked.to_string(), "001");
    });
    assert_eq!(figure(&bridge, "locked_keys"), 0);
}

#[test]
fn only_what_was_found_is_locked() {
    let strings = Strings::new();
    let bridge = strings.bridge(LONG);
    let task = bridge.submit_lookup_and_lock(keys(0..3)).unwrap();
    let mut completion = strings.next().succeed();
    completion.per_key = Some(vec![false, true, false]);
    strings.complete(completion);
    assert_eq!(lookup_result(&bridge, task).found.to_string(), "010");
    assert_eq!(figure(&bridge, "locked_keys"), 1);
    bridge.submit_unlock(&keys(0..3));
    assert_eq!(figure(&bridge, "locked_keys"), 0);
}

/// In LMCache: after a restart its usage was 0 and stayed so.
#[test]
fn after_a_restart_usage_is_learnt_and_never_claims_to_be_complete() {
    let strings = Strings::new();
    let bridge = strings.bridge(LONG);
    assert!(!bridge.usage().is_complete);
    let task = bridge.submit_lookup_and_lock(keys(0..2)).unwrap();
    let mut completion = strings.next().succeed();
    completion.lengths = Some(vec![100, 200]);
    strings.complete(completion);
    assert_eq!(lookup_result(&bridge, task).sizes, [100, 200]);
    assert_eq!(bridge.usage().used_bytes, 300);

    let (items, _) = load_items([5]);
    let task = bridge.submit_load(items).unwrap();
    let mut completion = strings.next().succeed();
    completion.lengths = Some(vec![16]);
    strings.complete(completion);
    load_result(&bridge, task);
    assert_eq!(bridge.usage().bytes_by_salt[""], 316);
    assert!(!bridge.usage().is_complete);

    // An object that the connector has lost counts no longer.
    let task = bridge.submit_lookup_and_lock(keys([1])).unwrap();
    let mut completion = strings.next().succeed();
    completion.per_key = Some(vec![false]);
    strings.complete(completion);
    lookup_result(&bridge, task);
    assert_eq!(bridge.usage().used_bytes, 116);
    assert!(bridge.list_keys(&ListRequest::default()).is_err());
}

#[test]
fn a_connector_that_cannot_delete_says_so() {
    let strings = Strings::new();
    let bridge = strings.bridge(LONG);
    strings.can_delete.store(false, Ordering::Relaxed);
    let deleted = bridge.delete(&keys([1])).unwrap();
    assert_eq!(deleted.gone.count_ones() + deleted.locked.count_ones(), 0);
    assert_eq!(bridge.status().figures["can_delete"], false);
    let task = bridge.submit_lookup_and_lock(keys([1])).unwrap();
    strings.complete(strings.next().succeed());
    assert!(lookup_result(&bridge, task).found.test(0));
}

/// In LMCache: a batch of objects of several lengths failed when a part of it was stored.
#[test]
fn objects_of_several_lengths_are_one_batch() {
    let strings = Strings::new();
    let bridge = strings.bridge(LONG);
    let items = vec![item(1, 0), item(2, 3), item(3, 4096)];
    let task = bridge.submit_store(items).unwrap();
    strings.complete(strings.next().succeed());
    assert_eq!(store_result(&bridge, task).0, Ok(4099));

    let items = [0_u8, 3].map(|length| LoadItem {
        key: key(length),
        page: page(length.into(), 2).0,
    });
    let task = bridge.submit_load(items.into()).unwrap();
    strings.complete(strings.next().succeed());
    let lengths: Vec<_> = load_result(&bridge, task).lengths().collect();
    assert_eq!(lengths, [2, 5]);
}

#[test]
fn a_store_that_failed_may_be_tried_again() {
    let strings = Strings::new();
    let bridge = strings.bridge(LONG);
    let task = bridge.submit_store(vec![item(1, 5)]).unwrap();
    let taken = strings.next();
    strings.complete(Completion {
        future: taken.future,
        error: "no space".into(),
        ..Completion::default()
    });
    let error = store_result(&bridge, task).0.unwrap_err();
    assert!(error.retryable && error.reason == "no space");
    assert_eq!(bridge.usage().objects, 0);
}

#[test]
fn a_close_lets_requests_finish_and_then_refuses_new_ones() {
    let strings = Strings::new();
    let bridge = strings.bridge(LONG);
    let task = bridge.submit_store(vec![item(1, 5)]).unwrap();
    let (items, alive) = load_items([1]);
    let load = bridge.submit_load(items).unwrap();
    // The second ends only when the connector is told to close.
    strings.complete(strings.next().succeed());
    let kept = parking_lot::Mutex::new(Some(strings.next()));
    strings.on_close(move |strings| {
        if let Some(taken) = kept.lock().take() {
            strings.complete(Completion {
                ok: false,
                ..taken.succeed()
            });
        }
    });
    assert_eq!(bridge.close(Duration::from_secs(2)).abandoned, 0);
    assert_eq!(store_result(&bridge, task).0, Ok(5));
    let loaded = load_result(&bridge, load);
    assert!(matches!(loaded.0[0].outcome, LoadOutcome::Failed(_)));
    drop(loaded);
    assert!(!is_held(&alive[0]));
    assert!(bridge.submit_store(vec![item(1, 5)]).is_err());
    assert!(bridge.delete(&keys([1])).is_err());
    assert_eq!(bridge.close(Duration::ZERO).abandoned, 0);
}

/// The bridge's submits are made under no lock: LMCache's held one, and a slow submit held up everybody.
#[test]
fn a_slow_submit_holds_up_nobody() {
    let strings = Strings::new();
    let bridge = strings.bridge(LONG);
    let (release, gate) = std::sync::mpsc::channel::<()>();
    let gate = parking_lot::Mutex::new(gate);
    strings.on_submit(move |_, future| {
        let _ = gate.lock().recv();
        future
    });
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| bridge.submit_store(vec![item(1, 5)]).unwrap());
        wait_for("the slow submit", || strings.is_taken(1).then_some(()));
        strings.behave();
        let task = bridge.submit_lookup_and_lock(keys([2])).unwrap();
        let slow_one = strings.next();
        strings.complete(strings.next().succeed());
        assert!(lookup_result(&bridge, task).found.test(0));
        bridge.submit_unlock(&keys([2]));
        assert!(bridge.pop_completed_stores().is_empty());
        bridge.usage();
        bridge.status();
        // Drained before the submit has returned its number.
        strings.complete(slow_one.succeed());
        wait_for("the drain", || strings.is_drained().then_some(()));
        release.send(()).unwrap();
        let task = slow.join().unwrap();
        assert_eq!(store_result(&bridge, task).0, Ok(5));
    });
    assert_eq!(figure(&bridge, "unknown_completions"), 0);
}

#[test]
fn what_is_stored_during_a_delete_still_counts() {
    let strings = Strings::new();
    let bridge = strings.bridge(LONG);
    std::thread::scope(|scope| {
        let delete = scope.spawn(|| bridge.delete(&keys([1])));
        let deleting = strings.next();
        let task = bridge.submit_store(vec![item(1, 5)]).unwrap();
        strings.complete(strings.next().succeed());
        assert_eq!(store_result(&bridge, task).0, Ok(5));
        strings.complete(deleting.succeed());
        assert!(delete.join().unwrap().unwrap().gone.test(0));
    });
    assert_eq!(bridge.usage().used_bytes, 5);
}
