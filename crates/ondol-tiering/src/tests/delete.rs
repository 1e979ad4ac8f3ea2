//! What clients delete.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ondol_plugin::l2::StoreResult;
use ondol_shm::ObjectMeta;
use ondol_testkit::l2::{HeldStore, ManualAdapter};

use super::shelf::Shelf;
use super::{
    LEN, WATCHDOG, backend, bytes, commit, config, count, key, l1, shelf_backend, start, unstored,
    until,
};
use crate::codec::Codec;
use crate::memory::testing::L1;
use crate::{
    FetchPolicy, Leased, Prefetch, PrefetchRequest, Row, Tiering, TieringConfig, TieringError,
    object_key,
};

fn ask(tiering: &Tiering, number: u64) -> Prefetch {
    tiering.prefetch(PrefetchRequest {
        rows: vec![Row {
            keys: vec![key(number)],
            window: None,
            expected_len: None,
        }],
        policy: FetchPolicy::Prefix,
        timeout: WATCHDOG,
    })
}

fn soon() -> Instant {
    Instant::now() + WATCHDOG
}

fn came(prefetch: Prefetch) -> bool {
    prefetch.wait(soon()).present[0].test(0)
}

#[test]
fn what_a_client_deletes_is_gone_from_storage_and_may_be_stored_anew() {
    let (l1, shelf) = (l1(), Shelf::default());
    let tiering = start(&l1, vec![shelf_backend(&shelf, "")], config());
    commit(&l1, &tiering, 0..3);
    until("they are stored", || shelf.len() == 3);
    until("it is known", || unstored(&l1, 0..3) == 0);
    let from_memory = || l1.memory.evict(&[key(1)]);
    assert_eq!(tiering.delete(&[key(1)], soon(), from_memory).unwrap(), 1);
    assert!(shelf.get(&key(1)).is_none());
    assert!(!came(ask(&tiering, 1)));
    assert_eq!(l1.memory.evict(&[key(0)]), 1);
    assert!(came(ask(&tiering, 0)));
    commit(&l1, &tiering, 1..2);
    until("it is stored again", || shelf.get(&key(1)).is_some());
    tiering.close(WATCHDOG);
}

#[test]
fn a_load_that_was_under_way_does_not_bring_back_what_is_deleted() {
    let (l1, manual) = (l1(), ManualAdapter::new().unwrap());
    let tiering = start(&l1, Vec::new(), config());
    tiering
        .add_backend(backend(manual.clone(), r#"{"type":"manual"}"#))
        .unwrap();
    let codec = Codec::new(&[], false).unwrap();
    let object = Leased::of(bytes(7), ObjectMeta::default());
    let stored = codec.encode(&key(7), &object_key(&key(7)), object);
    let stored = stored.unwrap().to_vec();
    let prefetch = ask(&tiering, 7);
    manual.next_lookup().find(|_| Some(stored.len() as u64));
    let load = manual.next_load();
    // For as long as it is read it cannot be deleted, and who deletes it is told so.
    let error = tiering
        .delete(&[key(7)], Instant::now(), || ())
        .unwrap_err();
    assert!(matches!(error, TieringError::NotDeleted { .. }), "{error}");
    assert!(manual.locks().is_locked(&object_key(&key(7))));
    std::thread::scope(|scope| {
        let deletion = scope.spawn(|| tiering.delete(&[key(7)], soon(), || ()));
        // Both refusals were told to who waits for it.
        assert!(!came(prefetch));
        load.fill(|_| Some(stored.clone()));
        deletion.join().unwrap().unwrap();
    });
    assert_eq!(manual.deleted(), [object_key(&key(7))]);
    assert!(!l1.has(&key(7)));
    assert_eq!(count(&tiering, "prefetch_loaded"), 0);
    tiering.close(Duration::from_secs(1));
}

/// A tier over a backend whose stores the test ends.
fn manual(l1: &L1, config: TieringConfig) -> (Arc<Tiering>, ManualAdapter) {
    let manual = ManualAdapter::new().unwrap();
    let backends = vec![backend(manual.clone(), r#"{"type":"manual"}"#)];
    (start(l1, backends, config), manual)
}

/// Deletes an object as a client does.
fn delete(l1: &L1, tiering: &Tiering, number: u64, until: Instant) -> Result<(), TieringError> {
    let from_memory = || l1.directory.delete(&[key(number)]).expect("it is deleted");
    tiering.delete(&[key(number)], until, from_memory).map(drop)
}

fn names(store: &HeldStore) -> Vec<String> {
    let items = store.batch.iter();
    items.map(|item| item.key.to_string()).collect()
}

fn name(number: u64) -> String {
    object_key(&key(number)).to_string()
}

#[test]
fn a_store_that_was_under_way_does_not_bring_back_what_is_deleted() {
    let l1 = l1();
    let (tiering, manual) = manual(&l1, config());
    commit(&l1, &tiering, [1]);
    let store = manual.next_store();
    std::thread::scope(|scope| {
        let deletion = scope.spawn(|| delete(&l1, &tiering, 1, soon()));
        until("it has left memory", || !l1.has(&key(1)));
        // Whatever time the delete has, it does not go by the store that is under way.
        std::thread::sleep(Duration::from_millis(50));
        assert!(!deletion.is_finished());
        assert!(manual.deleted().is_empty());
        store.succeed();
        deletion.join().unwrap().unwrap();
    });
    assert_eq!(manual.deleted(), [object_key(&key(1))]);
    // What is committed later is another object.
    commit(&l1, &tiering, [1]);
    let again = manual.next_store();
    assert_eq!(names(&again), [name(1)]);
    again.succeed();
    until("it is stored", || unstored(&l1, [1]) == 0);
    tiering.close(WATCHDOG);
}

#[test]
fn what_is_committed_during_a_delete_is_stored_after_it() {
    let l1 = l1();
    let (tiering, manual) = manual(&l1, config());
    commit(&l1, &tiering, [1]);
    let store = manual.next_store();
    std::thread::scope(|scope| {
        let deletion = scope.spawn(|| delete(&l1, &tiering, 1, soon()));
        until("it has left memory", || !l1.has(&key(1)));
        let newer = vec![0x77; LEN];
        assert!(l1.put(&key(1), &newer));
        tiering.committed(&[(key(1), LEN as u64)]);
        // What is not deleted is stored meanwhile.
        commit(&l1, &tiering, [2]);
        let other = manual.next_store();
        assert_eq!(names(&other), [name(2)]);
        other.succeed();
        store.succeed();
        deletion.join().unwrap().unwrap();
        assert_eq!(unstored(&l1, [1]), 1, "the older one was stored");
        let again = manual.next_store();
        assert_eq!(again.batch[0].object.body(), newer);
        again.succeed();
    });
    until("it is stored", || unstored(&l1, [1, 2]) == 0);
    tiering.close(WATCHDOG);
}

#[test]
fn what_waits_to_be_stored_or_tried_again_is_not_stored_once_it_is_deleted() {
    let l1 = l1();
    let config = TieringConfig {
        store_in_flight_bytes: 1,
        store_backoff: Duration::from_secs(20),
        ..config()
    };
    let (tiering, manual) = manual(&l1, config);
    commit(&l1, &tiering, [0]);
    let failing = manual.next_store();
    commit(&l1, &tiering, 1..4);
    failing.end(StoreResult::retryable("not now"));
    let first = manual.next_store();
    assert_eq!(names(&first), [name(1)]);
    delete(&l1, &tiering, 0, soon()).unwrap();
    delete(&l1, &tiering, 2, soon()).unwrap();
    // It is new, and does not wait for the try of the one that is gone.
    commit(&l1, &tiering, [0]);
    first.succeed();
    for number in [3, 0] {
        let next = manual.next_store();
        assert_eq!(names(&next), [name(number)]);
        next.succeed();
    }
    until("all is stored", || unstored(&l1, 0..4) == 0);
    tiering.close(WATCHDOG);
    assert_eq!(manual.waiting(), (0, 0, 0));
}

#[test]
fn a_delete_says_so_if_a_store_hangs() {
    let l1 = l1();
    let config = TieringConfig {
        store_timeout: Duration::from_millis(50),
        ..config()
    };
    let (tiering, manual) = manual(&l1, config);
    commit(&l1, &tiering, [1]);
    let store = manual.next_store();
    for timed_out in [0, 1] {
        until("it is given up on, the second time", || {
            timed_out == 0 || count(&tiering, "timed_out_store_batches") == 1
        });
        let error = delete(&l1, &tiering, 1, Instant::now()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("a store of it has not ended"), "{text}");
    }
    // The adapter lets go of it, late.
    store.succeed();
    delete(&l1, &tiering, 1, soon()).unwrap();
    assert_eq!(manual.deleted().last(), Some(&object_key(&key(1))));
    commit(&l1, &tiering, [1]);
    manual.next_store().succeed();
    until("it is stored", || unstored(&l1, [1]) == 0);
    tiering.close(WATCHDOG);
}

// The object would be back after the next start, when the backend works again.
#[test]
fn a_delete_is_not_acknowledged_while_a_backend_that_keeps_objects_is_out_of_use() {
    let (l1, shelves) = (l1(), [Shelf::default(), Shelf::default()]);
    let backends = shelves.each_ref().map(|shelf| shelf_backend(shelf, ""));
    let tiering = start(&l1, backends.into(), config());
    commit(&l1, &tiering, [1, 2]);
    until("all is stored", || shelves.iter().all(|it| it.len() == 2));
    shelves[0].panic_in_deletes();
    // The first one puts it out of use, the second one finds it so.
    for number in [1, 2] {
        let error = delete(&l1, &tiering, number, soon()).unwrap_err();
        assert!(matches!(error, TieringError::NotDeleted { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("shelf#0"), "{text}");
        assert!(text.contains("restart the server"), "{text}");
        assert!(!l1.has(&key(number)));
        assert!(shelves[1].get(&key(number)).is_none(), "the other works");
    }
    tiering.close(WATCHDOG);
}

#[test]
fn a_backend_that_is_out_of_use_and_keeps_nothing_does_not_matter_to_a_delete() {
    let (l1, shelf) = (l1(), Shelf::default());
    let fleeting = shelf_backend(&shelf, r#","persist_enabled":false"#);
    let tiering = start(&l1, vec![fleeting], config());
    commit(&l1, &tiering, [1, 2]);
    until("all is stored", || shelf.len() == 2);
    shelf.panic_in_deletes();
    for number in [1, 2] {
        delete(&l1, &tiering, number, soon()).unwrap();
    }
    tiering.close(WATCHDOG);
}

#[test]
fn a_delete_goes_to_a_backend_that_is_draining_too() {
    let (l1, shelf) = (l1(), Shelf::default());
    let tiering = start(&l1, vec![shelf_backend(&shelf, "")], config());
    commit(&l1, &tiering, [1]);
    until("it is stored", || unstored(&l1, [1]) == 0);
    let user = tiering.attached.active().remove(0);
    let drained = tiering.drain_backend(user.id, Duration::from_millis(20));
    assert!(matches!(drained, Err(TieringError::StillInUse { .. })));
    delete(&l1, &tiering, 1, soon()).unwrap();
    assert!(shelf.get(&key(1)).is_none());
    let id = user.id;
    drop(user);
    tiering.drain_backend(id, WATCHDOG).unwrap();
}

#[test]
fn a_delete_waits_for_what_a_draining_backend_still_stores() {
    let l1 = l1();
    let (tiering, manual) = manual(&l1, config());
    commit(&l1, &tiering, [1]);
    let store = manual.next_store();
    let id = tiering.backends()[0].0;
    let drained = tiering.drain_backend(id, Duration::from_millis(20));
    assert!(matches!(drained, Err(TieringError::StillInUse { .. })));
    let error = delete(&l1, &tiering, 1, Instant::now()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("a store of it has not ended"), "{text}");
    store.succeed();
    delete(&l1, &tiering, 1, soon()).unwrap();
    assert_eq!(manual.deleted().last(), Some(&object_key(&key(1))));
    tiering.drain_backend(id, WATCHDOG).unwrap();
}

/// The bytes of one version of an object.
fn version(number: u64, version: u64) -> Vec<u8> {
    let mut bytes = bytes(number);
    bytes[..8].copy_from_slice(&version.to_le_bytes());
    bytes
}

// Each client is alone with its objects, so it knows what it must find: the version that it stored last, or nothing. Others ask
// for them all the time, so that loads, stores, walks and deletes of one object meet in every way.
#[test]
fn whatever_goes_on_beside_it_what_was_deleted_never_comes_back() {
    const CLIENTS: u64 = 3;
    const OBJECTS: u64 = 4;
    const ROUNDS: u64 = 200;
    let (l1, shelves) = (l1(), [Shelf::default(), Shelf::default()]);
    let backends = shelves.each_ref().map(|shelf| shelf_backend(shelf, ""));
    let tiering = start(&l1, backends.into(), config());
    let ends = AtomicBool::new(false);
    let delete = |number: u64| {
        let from_memory = || l1.directory.delete(&[key(number)]).unwrap();
        tiering.delete(&[key(number)], soon(), from_memory).unwrap();
    };
    let assert_gone = |number: u64| {
        assert!(!came(ask(&tiering, number)), "{number} came back");
        assert!(!l1.has(&key(number)), "{number} is in memory again");
        let stored = |shelf: &Shelf| shelf.get(&key(number)).is_some();
        assert!(!shelves.iter().any(stored), "{number} is in storage again");
    };
    let client = |client: u64| {
        let mut random = client + 1;
        let mut is_gone = [true; OBJECTS as usize];
        for round in 1..=ROUNDS {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let object = (random >> 33) % OBJECTS;
            let choice = random >> 40;
            let number = client * OBJECTS + object;
            let (name, now) = (key(number), version(number, round));
            let is_gone = &mut is_gone[object as usize];
            if *is_gone {
                // Also what was under way when it was deleted has ended by now, most likely.
                assert_gone(number);
            } else {
                delete(number);
                if choice & 1 == 0 {
                    assert_gone(number);
                }
            }
            assert!(l1.put(&name, &now), "{number} is there already");
            tiering.committed(&[(name.clone(), LEN as u64)]);
            *is_gone = choice & 2 == 0;
            if *is_gone {
                delete(number);
                continue;
            }
            if choice & 4 == 0 {
                until("it is stored", || unstored(&l1, [number]) == 0);
            }
            if choice & 8 == 0 {
                l1.memory.evict(std::slice::from_ref(&name));
            }
            if choice & 16 == 0 {
                let report = ask(&tiering, number).wait(soon());
                if let Some(found) = &report.leases[0][0] {
                    assert!(found.as_ref() == now, "{number} is of another version");
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let others = scope.spawn(|| {
            let mut number = 0;
            while !ends.load(Ordering::Relaxed) {
                number = (number + 1) % (CLIENTS * OBJECTS);
                came(ask(&tiering, number));
            }
        });
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| scope.spawn(move || client(number)))
            .collect();
        let ended: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        ends.store(true, Ordering::Relaxed);
        others.join().unwrap();
        ended.into_iter().for_each(|ended| ended.unwrap());
    });
    tiering.close(WATCHDOG);
}
