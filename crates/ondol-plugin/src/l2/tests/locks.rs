use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use super::{WATCHDOG, key};
use crate::l2::Locks;

#[test]
fn locks_are_counted_and_an_unlock_too_many_is_ignored() {
    let locks = Locks::default();
    locks.unlock(&key(1));
    locks.lock(&key(1));
    locks.lock(&key(1));
    locks.unlock(&key(1));
    assert!(locks.is_locked(&key(1)) && !locks.is_locked(&key(2)));
    locks.unlock(&key(1));
    locks.unlock(&key(1));
    assert!(!locks.is_locked(&key(1)));
    locks.lock(&key(1));
    assert!(locks.is_locked(&key(1)));
}

#[test]
fn what_is_locked_is_not_removed() {
    let locks = Locks::default();
    locks.lock(&key(1));
    assert_eq!(
        locks.unless_locked(&key(1), || panic!("removed")),
        None::<()>
    );
    assert_eq!(locks.unless_locked(&key(2), || 2), Some(2));
    locks.unlock(&key(1));
    assert_eq!(locks.unless_locked(&key(1), || 1), Some(1));
}

#[test]
fn a_removal_holds_up_its_own_key_and_nobody_else() {
    let locks = Locks::default();
    let (locked, wait) = channel();
    thread::scope(|scope| {
        locks.unless_locked(&key(1), || {
            scope.spawn(|| {
                locks.lock(&key(1));
                locked.send(()).unwrap();
            });
            // These would hang if the removal held a lock of all keys.
            locks.lock(&key(2));
            locks.unlock(&key(2));
            locks.unlock(&key(1));
            assert_eq!(locks.unless_locked(&key(1), || "again"), Some("again"));
            // It cannot be shown that somebody waits for ever; that nobody is let in for a while will do.
            assert!(wait.recv_timeout(Duration::from_millis(50)).is_err());
        });
        wait.recv_timeout(WATCHDOG).unwrap();
    });
    assert!(locks.is_locked(&key(1)));
}

#[test]
fn a_removal_that_panics_is_over() {
    let locks = Locks::default();
    thread::scope(|scope| {
        let removal = scope.spawn(|| locks.unless_locked(&key(1), || panic!("as it should")));
        removal.join().unwrap_err();
    });
    locks.lock(&key(1));
    assert!(locks.is_locked(&key(1)));
}
