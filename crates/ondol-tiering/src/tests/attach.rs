use std::time::Duration;

use ondol_testkit::l2::ManualAdapter;

use super::*;
use crate::TieringError;

#[test]
fn a_backend_that_is_added_later_gets_what_memory_has_too() {
    let (l1, first, second) = (l1(), Shelf::default(), Shelf::default());
    let tiering = start(&l1, vec![shelf_backend(&first, "")], config());
    commit(&l1, &tiering, 0..300);
    until("the first has it", || unstored(&l1, 0..300) == 0);
    tiering.add_backend(shelf_backend(&second, "")).unwrap();
    commit(&l1, &tiering, 300..310);
    until("the second has it", || second.len() == 310);
    until("the first has what is new", || first.len() == 310);
}

#[test]
fn draining_waits_for_stores_and_numbers_are_never_used_again() {
    let (l1, manual, shelf) = (l1(), ManualAdapter::new().unwrap(), Shelf::default());
    let tiering = start(
        &l1,
        vec![
            backend(manual.clone(), r#"{"type":"manual"}"#),
            shelf_backend(&shelf, ""),
        ],
        config(),
    );
    let ids: Vec<_> = tiering.backends().iter().map(|(id, _)| *id).collect();
    commit(&l1, &tiering, [1]);
    let store = manual.next_store();
    let error = tiering.drain_backend(ids[0], Duration::from_millis(50));
    assert!(
        matches!(error, Err(TieringError::StillInUse { .. })),
        "{error:?}"
    );
    let stats = tiering.stats();
    assert_eq!(stats.backends.len(), 2);
    assert!(stats.backends.iter().any(|backend| backend.draining));

    // It gets nothing new meanwhile.
    commit(&l1, &tiering, [2]);
    until("the other one has it", || shelf.len() == 2);
    assert_eq!(manual.waiting(), (0, 0, 0));
    assert!(!manual.is_closed());

    store.succeed();
    tiering.drain_backend(ids[0], WATCHDOG).unwrap();
    assert!(manual.is_closed());
    assert_eq!(tiering.stats().backends.len(), 1);
    let unknown = tiering.drain_backend(ids[0], WATCHDOG);
    assert!(matches!(unknown, Err(TieringError::UnknownBackend { .. })));
    let new = tiering.add_backend(shelf_backend(&Shelf::default(), ""));
    assert!(!ids.contains(&new.unwrap()));
}

#[test]
fn draining_waits_for_whoever_else_uses_the_backend() {
    let (l1, shelf) = (l1(), Shelf::default());
    let tiering = start(&l1, vec![shelf_backend(&shelf, "")], config());
    let user = tiering.attached.active().remove(0);
    let error = tiering.drain_backend(user.id, Duration::from_millis(20));
    assert!(
        matches!(error, Err(TieringError::StillInUse { .. })),
        "{error:?}"
    );
    assert!(tiering.attached.active().is_empty());
    let id = user.id;
    drop(user);
    tiering.drain_backend(id, WATCHDOG).unwrap();
}

#[test]
fn what_is_wrong_with_a_backend_is_named() {
    let l1 = l1();
    let tiering = start(&l1, Vec::new(), config());
    let wrong = r#","eviction":{"eviction_policy":"FIFO-ish"}"#;
    let Err(error) = tiering.add_backend(shelf_backend(&Shelf::default(), wrong)) else {
        panic!("there is no such policy");
    };
    let message = error.to_string();
    assert!(
        message.contains("FIFO-ish") && message.contains("lru"),
        "{message}"
    );
    assert!(tiering.backends().is_empty());
}

#[test]
fn closing_stores_what_waits_and_ends_everything() {
    let (l1, shelf) = (l1(), Shelf::default());
    let tiering = start(&l1, vec![shelf_backend(&shelf, "")], config());
    commit(&l1, &tiering, 0..500);
    assert_eq!(tiering.close(WATCHDOG).abandoned, 0);
    assert_eq!((shelf.len(), unstored(&l1, 0..500)), (500, 0));
    assert_eq!(l1.memory.leases(), 0);
    // Nothing is taken any more.
    commit(&l1, &tiering, [500]);
    assert!(matches!(
        tiering.add_backend(shelf_backend(&Shelf::default(), "")),
        Err(TieringError::Closed)
    ));
    assert_eq!(tiering.close(WATCHDOG).abandoned, 0, "closing again");
    assert_eq!(shelf.len(), 500);
}

#[test]
fn closing_reports_what_it_had_to_abandon_and_leaves_it_captive() {
    let (l1, manual) = (l1(), ManualAdapter::new().unwrap());
    let tiering = start(
        &l1,
        vec![backend(manual.clone(), r#"{"type":"manual"}"#)],
        config(),
    );
    commit(&l1, &tiering, [1]);
    let hanging = manual.next_store();
    assert_eq!(tiering.close(Duration::from_millis(400)).abandoned, 1);
    assert_eq!(l1.memory.evict(&[key(1)]), 0, "it may still be read");
    drop(hanging);
    until("it is let go", || l1.memory.evict(&[key(1)]) == 1);
}

#[test]
fn the_threads_end_without_a_close_too() {
    let (l1, shelf) = (l1(), Shelf::default());
    let lru = r#","eviction":{"eviction_policy":"LRU"}"#;
    let tiering = start(&l1, vec![shelf_backend(&shelf, lru)], config());
    commit(&l1, &tiering, 0..10);
    drop(tiering);
    until("nobody holds memory any more", || {
        Arc::strong_count(&l1.memory) == 1
    });
}
