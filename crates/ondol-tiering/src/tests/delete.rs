//! What clients delete.

use std::time::{Duration, Instant};

use ondol_shm::ObjectMeta;
use ondol_testkit::l2::ManualAdapter;

use super::shelf::Shelf;
use super::{
    WATCHDOG, backend, bytes, commit, config, count, key, l1, shelf_backend, start, until,
};
use crate::codec::Codec;
use crate::{
    FetchPolicy, Leased, Prefetch, PrefetchRequest, Row, Tiering, TieringError, object_key,
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
    until("it is known", || super::unstored(&l1, 0..3) == 0);
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
