use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use ondol_plugin::Key;
use ondol_shm::{LEASE_SLOTS, ObjectMeta};

use super::testing::L1;

const MIB: u64 = 1 << 20;

fn key(number: u64) -> Key {
    Key::integer(number)
}

/// Bytes that no other object has.
fn bytes_of(number: u64, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (number as usize * 31 + at) as u8)
        .collect()
}

fn admit(l1: &L1, number: u64, bytes: &[u8]) -> Option<super::Leased> {
    let mut page = l1.memory.reserve(&[bytes.len() as u64]).pop().flatten()?;
    page.as_mut().copy_from_slice(bytes);
    let object = (key(number), page, bytes.len() as u64, ObjectMeta::default());
    l1.memory.admit(vec![object]).pop().flatten()
}

#[test]
fn what_was_admitted_is_leased_visible_and_counts_as_stored() {
    let l1 = L1::new(4 * MIB);
    let leased = admit(&l1, 7, b"ondol").unwrap();
    assert_eq!(leased.as_ref(), b"ondol");
    assert!(l1.has(&key(7)));
    assert!(l1.memory.contains(&[key(6), key(7)]).test(1));
    assert_eq!(l1.memory.unstored(&[key(7)]).count_ones(), 0);
    assert_eq!(l1.memory.list(None, 10), [key(7)]);
    // Its page is no reserved one any more.
    assert_eq!(l1.memory.reserved_bytes(), 0);
}

#[test]
fn a_page_that_is_let_go_is_free_for_others_without_a_message() {
    let l1 = L1::new(2 * MIB);
    let pages = l1.memory.reserve(&[MIB, MIB, MIB]);
    assert_eq!(pages.iter().flatten().count(), 2);
    assert_eq!(l1.memory.reserved_bytes(), 2 * MIB);
    drop(pages);
    // Asked for by a client, which makes room.
    assert!(l1.put(&key(1), &bytes_of(1, MIB as usize)));
    assert_eq!(l1.memory.reserved_bytes(), 0);
}

#[test]
fn a_page_in_a_transfers_hands_is_nobody_elses_whatever_the_pressure() {
    let l1 = L1::new(4 * MIB);
    let mut page = l1.memory.reserve(&[65_536]).pop().flatten().unwrap();
    page.as_mut().fill(0xEE);
    for number in 0..200 {
        assert!(l1.put(&key(number), &bytes_of(number, 65_536)));
    }
    assert!(page.as_ref().iter().all(|byte| *byte == 0xEE));
    for number in 0..200 {
        if let Some(found) = l1.get(&key(number)) {
            assert_eq!(found, bytes_of(number, 65_536), "{number}");
        }
    }
}

#[test]
fn a_leased_object_is_not_evicted_and_one_that_was_let_go_is() {
    let l1 = L1::new(2 * MIB);
    assert!(l1.put(&key(0), &bytes_of(0, 65_536)));
    let leased = l1.memory.lease(&[key(0)]).pop().flatten().unwrap();
    let clone = leased.clone();
    drop(leased);
    assert_eq!(l1.memory.evict(&[key(0)]), 0);
    for number in 1..100 {
        assert!(l1.put(&key(number), &bytes_of(number, 65_536)));
    }
    assert_eq!(clone.as_ref(), bytes_of(0, 65_536));
    drop(clone);
    assert_eq!(l1.memory.evict(&[key(0), key(500)]), 1);
    assert!(!l1.has(&key(0)));
}

#[test]
fn when_every_lease_is_taken_the_rest_is_not_leased_and_counted() {
    let l1 = L1::new(2 * MIB);
    assert!(l1.put(&key(0), b"one"));
    let keys = vec![key(0); LEASE_SLOTS as usize + 3];
    let leased = l1.memory.lease(&keys);
    assert_eq!(leased.iter().flatten().count(), LEASE_SLOTS as usize);
    let stats = l1.directory.stats();
    assert_eq!(stats.counters["ondol_tier_leases_refused_total"], 3);
    drop(leased);
    assert!(l1.memory.lease(&[key(0)])[0].is_some());
}

#[test]
fn what_is_safe_in_a_backend_is_evicted_before_what_is_not() {
    let l1 = L1::new(2 * MIB);
    for number in 0..32 {
        assert!(l1.put(&key(number), &bytes_of(number, 65_536)));
    }
    let stored: Vec<_> = (16..32).map(key).collect();
    l1.memory.mark_stored(&stored);
    for number in 32..48 {
        assert!(l1.put(&key(number), &bytes_of(number, 65_536)));
    }
    // The older ones would have gone first.
    assert!((0..16).all(|number| l1.has(&key(number))));
    assert!(stored.iter().all(|key| !l1.has(key)));
    assert_eq!(
        l1.directory.stats().counters["ondol_unstored_evictions_total"],
        0
    );
    assert!(l1.put(&key(48), &bytes_of(48, 65_536)));
    assert_eq!(
        l1.directory.stats().counters["ondol_unstored_evictions_total"],
        1
    );
}

#[test]
fn all_parts_together_are_all_objects_that_are_not_stored() {
    let l1 = L1::new(4 * MIB);
    for number in 0..200 {
        assert!(l1.put(&key(number), &bytes_of(number, 10)));
    }
    l1.memory.mark_stored(&[key(3)]);
    let mut unstored: Vec<_> = (0..)
        .map_while(|part| l1.memory.unstored_part(part))
        .flatten()
        .collect();
    unstored.sort();
    let mut expected: Vec<_> = (0..200)
        .filter(|number| *number != 3)
        .map(|number| (key(number), 10))
        .collect();
    expected.sort();
    assert_eq!(unstored, expected);
}

#[test]
fn a_page_size_in_use_is_taken_if_it_wastes_little() {
    let l1 = L1::new(8 * MIB);
    // 100 000 bytes lie in pages of 114 688.
    assert!(l1.put(&key(0), &bytes_of(0, 100_000)));
    let strides = |l1: &L1| -> Vec<u64> {
        let classes = l1.directory.stats().classes;
        classes.iter().map(|class| class.stride).collect()
    };
    let used = strides(&l1);
    let page = l1.memory.reserve(&[used[0] - used[0] / 5]);
    assert!(page[0].is_some());
    assert_eq!(strides(&l1), used);
    let page = l1.memory.reserve(&[used[0] / 2, 100 * MIB]);
    assert!(page[0].is_some() && page[1].is_none());
    assert_eq!(strides(&l1).len(), 2);
}

#[test]
fn of_an_admission_and_a_commit_of_one_key_exactly_one_wins_and_the_lease_is_on_it() {
    let l1 = L1::new(16 * MIB);
    for round in 0..300 {
        let both = Barrier::new(2);
        let (mine, theirs) = ([1_u8; 5000], [2_u8; 5000]);
        let (leased, stored) = std::thread::scope(|scope| {
            let admitted = scope.spawn(|| {
                both.wait();
                admit(&l1, round, &mine).unwrap()
            });
            both.wait();
            let stored = l1.put(&key(round), &theirs);
            (admitted.join().unwrap(), stored)
        });
        let expected = if stored { &theirs } else { &mine };
        assert_eq!(leased.as_ref(), expected, "round {round}");
        assert_eq!(l1.get(&key(round)).as_deref(), Some(&expected[..]));
        assert_eq!(l1.memory.reserved_bytes(), 0, "round {round}");
    }
}

#[test]
fn an_admitted_object_cannot_be_missed_or_overwritten_while_others_evict() {
    let l1 = L1::new(4 * MIB);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 1_000_000;
            while !stop.load(Ordering::Relaxed) {
                l1.put(&key(number), &bytes_of(number, 65_536));
                number += 1;
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let keys: Vec<_> = (0..500).map(key).collect();
                l1.memory.evict(&keys);
            }
        });
        for number in 0..500 {
            let bytes = bytes_of(number, 65_536);
            let Some(leased) = admit(&l1, number, &bytes) else {
                continue;
            };
            assert!(l1.has(&key(number)), "{number} is leased and was missed");
            assert_eq!(leased.as_ref(), bytes);
            std::thread::yield_now();
            assert_eq!(leased.as_ref(), bytes);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn what_a_transfer_holds_stays_captive_when_the_tier_is_closed() {
    let l1 = L1::new(4 * MIB);
    assert!(l1.put(&key(1), b"held"));
    let leased = l1.memory.lease(&[key(1)]).pop().flatten().unwrap();
    let mut page = l1.memory.reserve(&[65_536]).pop().flatten().unwrap();
    l1.memory.close();
    assert!(l1.memory.reserve(&[65_536])[0].is_none());
    assert!(l1.memory.lease(&[key(1)])[0].is_none());
    assert_eq!(l1.memory.reserved_bytes(), 65_536);
    assert!(!l1.directory.is_gone(super::testing::TIER));
    page.as_mut().fill(9);
    let late = (key(2), page, 65_536, ObjectMeta::default());
    assert!(l1.memory.admit(vec![late])[0].is_none());
    assert!(!l1.has(&key(2)));
    assert_eq!(leased.as_ref(), b"held");
    drop(leased);
    assert_eq!(l1.memory.reserved_bytes(), 0);
    assert!(l1.directory.is_gone(super::testing::TIER));
}

#[test]
fn a_pool_that_is_full_of_transfers_says_so() {
    let l1 = L1::new(2 * MIB);
    let pages = l1.memory.reserve(&[MIB, MIB]);
    assert_eq!(pages.iter().flatten().count(), 2);
    let refused = l1
        .directory
        .grant(super::testing::CLIENT, 1, MIB, 1, u64::MAX);
    let Err(ondol_directory::DirectoryError::Full(breakdown)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!((breakdown.captive, breakdown.granted), (2 * MIB, 0));
}
