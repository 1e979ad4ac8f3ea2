//! The directory against a model: random runs of several clients, with and without a journal that refuses.
//!
//! `PROPTEST_CASES` sets how many runs there are; a failing one is shrunk, printed and kept for the next time.

#[path = "model/world.rs"]
mod world;

use std::os::fd::AsFd;
use std::sync::Arc;

use ondol_directory::{Directory, DirectoryError, Newcomer};
use ondol_memory::NoJournal;
use ondol_plugin::Key;
use ondol_protocol::{Commit, CommitOutcome, Pin, Retrieve};
use ondol_shm::{ClientId, Grant, Lease, LeaseSlots, Location, ObjectMeta, create_lease_table};
use proptest::prelude::*;
use world::{Step, World, pool};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn step() -> impl Strategy<Value = Step> {
    let n = || 0..10_000_usize;
    let keys = move || proptest::collection::vec(n(), 1..6);
    prop_oneof![
        6 => (n(), n(), 1..5_u32, prop::bool::weighted(0.1)).prop_map(|(client, stride, count, limited)| {
            Step::Grant { client, stride, count, limited }
        }),
        1 => n().prop_map(|client| Step::Repeat { client }),
        2 => (n(), proptest::collection::vec(n(), 1..4)).prop_map(|(client, pages)| Step::Return { client, pages }),
        9 => (n(), proptest::collection::vec((n(), n(), n(), n()), 1..4))
            .prop_map(|(client, objects)| Step::Commit { client, objects }),
        6 => (n(), keys(), 1..4_u32, any::<bool>(), n()).prop_map(|(client, keys, group, prefix, expect)| {
            // Most readers expect no layout.
            let expect = if expect % 4 == 0 { expect } else { 0 };
            Step::Retrieve { client, keys, group, prefix, expect }
        }),
        1 => (n(), keys(), 1..4_u32).prop_map(|(client, keys, group)| Step::Abuse { client, keys, group }),
        5 => (n(), n()).prop_map(|(client, lease)| Step::DropLease { client, lease }),
        6 => (n(), keys()).prop_map(|(client, keys)| Step::Find { client, keys }),
        4 => (n(), n()).prop_map(|(client, find)| Step::DropFind { client, find }),
        2 => (n(), n()).prop_map(|(client, page)| Step::Ring { client, page }),
        2 => (n(), keys()).prop_map(|(client, keys)| Step::Pin { client, keys }),
        2 => (n(), keys()).prop_map(|(client, keys)| Step::Unpin { client, keys }),
        1 => keys().prop_map(|keys| Step::Delete { keys }),
        1 => n().prop_map(|client| Step::Leave { client }),
        1 => n().prop_map(|client| Step::Die { client }),
    ]
}

fn steps_with_restarts() -> impl Strategy<Value = Vec<Step>> {
    let restart = (0..256_usize).prop_map(|living| Step::Restart { living });
    proptest::collection::vec(prop_oneof![15 => step(), 1 => restart], 1..150)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec(step(), 1..150)
}

/// As many runs as `PROPTEST_CASES` says.
fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok();
    ProptestConfig {
        cases: cases.and_then(|cases| cases.parse().ok()).unwrap_or(64),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn with_one_page_size_the_directory_agrees_with_the_model(steps in steps(), every in 1..20_u64) {
        let mut world = World::new(2, &[256 * KIB], 3).checked_every(every);
        steps.iter().for_each(|step| world.step(step));
        world.check_replay();
        world.check_that_nothing_leaked();
    }

    #[test]
    fn with_three_page_sizes_the_directory_agrees_with_the_model(steps in steps(), every in 1..20_u64) {
        let mut world = World::new(4, &[256 * KIB, 349_525, MIB], 3).checked_every(every);
        steps.iter().for_each(|step| world.step(step));
        world.check_replay();
        world.check_that_nothing_leaked();
    }

    #[test]
    fn a_restart_changes_nothing_for_those_who_live(steps in steps_with_restarts(), every in 1..20_u64) {
        let mut world = World::new(3, &[256 * KIB, 349_525, MIB], 3).checked_every(every);
        steps.iter().for_each(|step| world.step(step));
        world.check_replay();
        world.check_that_nothing_leaked();
    }

    #[test]
    fn a_journal_that_refuses_keeps_nobody_from_going_on(
        steps in steps_with_restarts(), odds in 1..8_u64, seed in any::<u64>()
    ) {
        let mut world = World::new(3, &[256 * KIB, 349_525, MIB], 3).with_faults(odds, seed);
        steps.iter().for_each(|step| world.step(step));
        world.check_replay();
        world.check_that_nothing_leaked();
    }

    #[test]
    fn a_journal_that_refuses_leaves_no_half_made_change(steps in steps(), odds in 1..8_u64, seed in any::<u64>()) {
        let mut world = World::new(3, &[256 * KIB, 349_525, MIB], 3).with_faults(odds, seed);
        steps.iter().for_each(|step| world.step(step));
        world.check_replay();
        world.check_that_nothing_leaked();
    }
}

/// One client of a directory of its own.
struct Solo {
    directory: Directory,
    slots: Arc<LeaseSlots>,
    requests: u64,
}

const CLIENT: ClientId = ClientId(1);

impl Solo {
    fn new(regions: u64) -> Self {
        let policy = ondol_catalog::policy("lru").unwrap();
        let directory = Directory::new(pool(regions), Arc::new(NoJournal), policy);
        let table = create_lease_table().unwrap();
        directory
            .attach(CLIENT, Newcomer::default(), table.as_fd(), None)
            .unwrap();
        Self {
            directory,
            slots: LeaseSlots::open(table.as_fd()).unwrap(),
            requests: 0,
        }
    }

    fn grant(&mut self, stride: u64) -> Result<Grant, DirectoryError> {
        self.requests += 1;
        let grants = self
            .directory
            .grant(CLIENT, self.requests, stride, 1, u64::MAX)?;
        Ok(grants[0])
    }

    fn store(&mut self, key: u64, stride: u64) -> Result<Grant, DirectoryError> {
        let grant = self.grant(stride)?;
        let commit = Commit {
            key: Key::integer(key),
            location: Location {
                page: grant.page,
                generation: grant.generation,
                len: stride,
            },
            meta: ObjectMeta::default(),
        };
        assert_eq!(
            self.directory.commit(CLIENT, &[commit]),
            Ok(vec![CommitOutcome::Stored].into())
        );
        Ok(grant)
    }

    fn lease(&self, key: u64) -> Option<Lease> {
        let lease = self.slots.propose().unwrap();
        let request = Retrieve {
            keys: vec![Key::integer(key)],
            leases: vec![lease.reference()],
            group: 1,
            prefix: false,
            expect: None,
            wait_ms: 0,
            expected_len: 0,
        };
        let hit = self.directory.retrieve(CLIENT, &request).unwrap().hits[0];
        hit.map(|_| lease)
    }

    fn is_there(&self, key: u64) -> bool {
        self.directory.locate(&[Key::integer(key)])[0].is_some()
    }

    fn counter(&self, name: &str) -> u64 {
        self.directory.stats().counters[name]
    }
}

#[test]
fn a_starving_page_size_drains_and_recarves_the_coldest_region_of_another() {
    let mut solo = Solo::new(3);
    for key in 0..12 {
        solo.store(key, 512 * KIB).unwrap();
    }
    // Region by region: 0..4 is read last, 4..8 is not read at all, of 8..12 one object is held.
    let held = solo.lease(9).unwrap();
    (0..4).for_each(|key| drop(solo.lease(key)));
    solo.store(100, MIB).unwrap();
    assert!((0..4).all(|key| solo.is_there(key)));
    assert!((4..8).all(|key| !solo.is_there(key)));
    assert!((8..12).all(|key| solo.is_there(key)));
    assert_eq!(solo.counter("ondol_drained_objects_total"), 4);
    assert_eq!(solo.counter("ondol_drained_regions_total"), 1);
    assert_eq!(solo.counter("ondol_evictions_total"), 0);
    drop(held);
}

#[test]
fn a_page_size_that_evicts_its_own_colder_than_others_takes_a_region_from_them() {
    let mut solo = Solo::new(2);
    for key in 0..4 {
        solo.store(key, 512 * KIB).unwrap();
    }
    // The second region belongs to a page size whose objects are in use all the time.
    for key in 100..200 {
        solo.store(key, MIB).unwrap();
        if (0..4).all(|key| !solo.is_there(key)) {
            assert_eq!(solo.counter("ondol_drained_regions_total"), 1);
            return;
        }
    }
    panic!("a starving page size never got the cold region of another one");
}

#[test]
fn idle_regions_of_others_are_given_up_before_anything_is_evicted() {
    let mut solo = Solo::new(2);
    let idle = solo.grant(512 * KIB).unwrap();
    solo.store(1, MIB).unwrap();
    solo.store(2, MIB).unwrap();
    assert_eq!(
        solo.directory.return_pages(CLIENT, &[idle]).unwrap(),
        [Ok(())]
    );
    solo.store(3, MIB).unwrap();
    assert!((1..=3).all(|key| solo.is_there(key)));
    assert_eq!(solo.counter("ondol_evictions_total"), 0);
    assert_eq!(solo.counter("ondol_drained_objects_total"), 0);
}

#[test]
fn an_object_that_was_read_before_another_was_stored_goes_first() {
    let mut solo = Solo::new(1);
    solo.store(1, 512 * KIB).unwrap();
    solo.store(2, 512 * KIB).unwrap();
    drop(solo.lease(1));
    solo.store(3, 512 * KIB).unwrap();
    solo.store(4, 512 * KIB).unwrap();
    // In the order of their last use: 2, 1, 3, 4.
    solo.store(5, 512 * KIB).unwrap();
    assert!(!solo.is_there(2));
    solo.store(6, 512 * KIB).unwrap();
    assert!(
        !solo.is_there(1),
        "an object that was used later was evicted"
    );
    assert!(solo.is_there(3));
}

#[test]
fn one_lease_for_a_whole_group_leaves_nothing_held() {
    let mut solo = Solo::new(1);
    for key in 0..4 {
        solo.store(key, 512 * KIB).unwrap();
    }
    let lease = solo.slots.propose().unwrap();
    let request = Retrieve {
        keys: (0..4).map(Key::integer).collect(),
        leases: vec![lease.reference(); 4],
        group: 4,
        prefix: false,
        expect: None,
        wait_ms: 0,
        expected_len: 0,
    };
    assert_eq!(
        solo.directory.retrieve(CLIENT, &request),
        Err(DirectoryError::BadLease(lease.reference()))
    );
    drop(lease);
    for key in 4..8 {
        solo.store(key, 512 * KIB).unwrap();
    }
    assert!((0..4).all(|key| !solo.is_there(key)));
}

#[test]
fn an_object_that_cannot_be_freed_is_named_in_the_breakdown() {
    let mut solo = Solo::new(1);
    for key in 0..3 {
        solo.store(key, 512 * KIB).unwrap();
    }
    let lease = solo.lease(0).unwrap();
    let pin = Pin {
        key: Key::integer(1),
        number: 1,
    };
    solo.directory.pin(CLIENT, &[pin]).unwrap();
    solo.directory.delete(&[Key::integer(2)]).unwrap();
    let granted = [
        solo.grant(512 * KIB).unwrap(),
        solo.grant(512 * KIB).unwrap(),
    ];
    let Err(DirectoryError::Full(breakdown)) = solo.grant(512 * KIB) else {
        panic!("a full pool granted a page");
    };
    assert_eq!(
        (breakdown.leased, breakdown.pinned, breakdown.granted),
        (512 * KIB, 512 * KIB, MIB)
    );
    assert_eq!((breakdown.free, breakdown.other_classes), (0, 0));
    drop(lease);
    // What is free again goes first, then what was evicted.
    let next = solo.grant(512 * KIB).unwrap();
    assert!(granted.iter().all(|grant| grant.page != next.page));
    assert!(!solo.is_there(0));
}
