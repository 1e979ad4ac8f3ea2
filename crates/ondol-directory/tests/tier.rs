//! The storage tier as a client of the directory: what it holds is nobody else's, what it admits is leased before anybody can
//! evict it, and what it hears of are commits that are visible.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ondol_directory::{Admission, Admitted, CommitListener, Directory, DirectoryError, Newcomer};
use ondol_memory::{Arena, Change, Image, Journal, JournalError, Pool, Position};
use ondol_plugin::Key;
use ondol_protocol::{Commit, CommitOutcome, DeleteOutcome, Grant, Pin};
use ondol_shm::{ClientId, Lease, LeaseSlots, Location, ObjectMeta, PageId, create_lease_table};
use parking_lot::Mutex;
use proptest::prelude::*;

const KIB: u64 = 1 << 10;
const REGION_BYTES: u64 = 2 << 20;
const CLIENT: ClientId = ClientId(1);
const TIER: ClientId = ClientId(2);

/// What was recorded; refuses some records and flushes if told to.
#[derive(Debug, Default)]
struct Log {
    changes: Mutex<Vec<Change>>,
    flushed: AtomicU64,
    /// Of 16 records or flushes so many are refused.
    odds: AtomicU64,
    random: AtomicU64,
    fail_flushes: AtomicBool,
}

impl Log {
    fn refuse(&self, odds: u64, seed: u64) {
        self.random.store(seed | 1, Ordering::Relaxed);
        self.odds.store(odds, Ordering::Relaxed);
    }

    fn refuses(&self) -> Result<(), JournalError> {
        let mut x = self.random.load(Ordering::Relaxed);
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.store(x, Ordering::Relaxed);
        if (x >> 33) % 16 < self.odds.load(Ordering::Relaxed) {
            return Err(JournalError("the disk is full".to_owned()));
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Recorder(Arc<Log>);

impl Journal for Recorder {
    fn record(&self, change: &Change) -> Result<(), JournalError> {
        self.0.refuses()?;
        self.0.changes.lock().push(change.clone());
        Ok(())
    }

    fn position(&self) -> Position {
        Position(self.0.changes.lock().len() as u64)
    }

    fn flush(&self, position: Position) -> Result<(), JournalError> {
        if position.0 > self.0.flushed.load(Ordering::Relaxed) {
            self.0.refuses()?;
            if self.0.fail_flushes.load(Ordering::Relaxed) {
                return Err(JournalError("the disk is full".to_owned()));
            }
            self.0.flushed.fetch_max(position.0, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Hears of commits, and looks whether they are visible then.
#[derive(Debug, Default)]
struct Ears {
    directory: Mutex<Option<Arc<Directory>>>,
    heard: Mutex<Vec<(Key, u64)>>,
}

impl CommitListener for Ears {
    fn committed(&self, objects: &[(Key, u64)]) {
        if let Some(directory) = &*self.directory.lock() {
            for (key, len) in objects {
                let hit = directory.locate(std::slice::from_ref(key))[0];
                // Somebody else may have removed it; here nobody does meanwhile.
                assert_eq!(hit.map(|hit| hit.location.len), Some(*len), "{key}");
            }
        }
        self.heard.lock().extend_from_slice(objects);
    }
}

struct Held {
    lease: Lease,
    location: Location,
}

struct World {
    directory: Arc<Directory>,
    log: Arc<Log>,
    ears: Arc<Ears>,
    client_slots: Arc<LeaseSlots>,
    tier_slots: Arc<LeaseSlots>,
    client_grants: Vec<Grant>,
    tier_grants: Vec<Grant>,
    client_leases: Vec<Held>,
    tier_leases: Vec<Held>,
    requests: u64,
}

fn pool(regions: u64) -> Pool {
    let arena = Arena {
        usable: 0..regions * REGION_BYTES,
        alignment: 4096,
        whole: false,
    };
    Pool::new([arena], Some(REGION_BYTES))
}

fn location(grant: Grant, len: u64) -> Location {
    Location {
        page: grant.page,
        generation: grant.generation,
        len,
    }
}

impl World {
    fn new(regions: u64) -> Self {
        let log = Arc::new(Log::default());
        let policy = ondol_catalog::policy("lru").unwrap();
        let recorder = Arc::new(Recorder(Arc::clone(&log)));
        let directory = Arc::new(Directory::new(pool(regions), recorder, policy));
        let attach = |id| {
            let table = create_lease_table().unwrap();
            directory
                .attach(id, Newcomer::default(), table.as_fd(), None)
                .unwrap();
            LeaseSlots::open(table.as_fd()).unwrap()
        };
        let (client_slots, tier_slots) = (attach(CLIENT), attach(TIER));
        directory.set_tier(TIER);
        let ears = Arc::new(Ears::default());
        *ears.directory.lock() = Some(Arc::clone(&directory));
        directory.set_commit_listener(Arc::<Ears>::clone(&ears));
        Self {
            directory,
            log,
            ears,
            client_slots,
            tier_slots,
            client_grants: Vec::new(),
            tier_grants: Vec::new(),
            client_leases: Vec::new(),
            tier_leases: Vec::new(),
            requests: 0,
        }
    }

    fn request(&mut self) -> u64 {
        self.requests += 1;
        self.requests
    }

    /// Grants a page to the client. What it does not learn of, as the journal failed, stays granted.
    fn grant(&mut self, stride: u64) -> Result<(), DirectoryError> {
        let request = self.request();
        let grants = self.directory.grant(CLIENT, request, stride, 1, u64::MAX)?;
        self.client_grants.extend(grants);
        Ok(())
    }

    fn commit(&mut self, key: &Key, len: u64) -> Option<CommitOutcome> {
        let grant = self.client_grants.pop()?;
        let commit = Commit {
            key: key.clone(),
            location: location(grant, len),
            meta: ObjectMeta::default(),
        };
        let outcome = self.directory.commit(CLIENT, &[commit]);
        match &outcome {
            Ok(outcomes) if outcomes[0] != CommitOutcome::Stored => {
                self.client_grants.push(grant);
            }
            _ => {}
        }
        Some(outcome.ok()?.remove(0))
    }

    fn put(&mut self, key: u64, stride: u64) {
        self.grant(stride).unwrap();
        assert_eq!(
            self.commit(&Key::integer(key), stride),
            Some(CommitOutcome::Stored)
        );
    }

    fn reserve(&mut self, stride: u64, count: usize) {
        let request = self.request();
        if let Ok(grants) = self.directory.grant_all(TIER, request, stride, count) {
            assert!((1..=count).contains(&grants.len()));
            self.tier_grants.extend(grants);
        }
    }

    fn admit(&mut self, key: &Key, len: u64) -> Option<Admitted> {
        let grant = self.tier_grants.pop()?;
        let lease = self.tier_slots.propose().unwrap();
        let admission = Admission {
            commit: Commit {
                key: key.clone(),
                location: location(grant, len),
                meta: ObjectMeta::default(),
            },
            lease: Some(lease.reference()),
        };
        let Ok(outcomes) = self.directory.admit(TIER, &[admission]) else {
            // The directory knows whether it was recorded.
            self.directory.returns().push(grant);
            return None;
        };
        let outcome = outcomes[0];
        match outcome {
            Admitted::Visible(hit) | Admitted::Present(hit) => {
                let found = self.directory.locate(std::slice::from_ref(key))[0];
                assert_eq!(found, Some(hit), "{key} was admitted and is missed");
                self.tier_leases.push(Held {
                    lease,
                    location: hit.location,
                });
            }
            Admitted::Unleased | Admitted::Unverified | Admitted::Refused(_) => {}
        }
        if !matches!(outcome, Admitted::Visible(_) | Admitted::Unleased) {
            self.directory.returns().push(grant);
        }
        Some(outcome)
    }

    fn lease(&mut self, keys: &[Key]) {
        let mut proposed = Vec::new();
        let slots = &self.tier_slots;
        let hits = self.directory.lease(TIER, keys, || {
            let lease = slots.propose()?;
            let reference = lease.reference();
            proposed.push(lease);
            Some(reference)
        });
        let held = hits.unwrap().into_iter().flatten().zip(proposed);
        self.tier_leases.extend(held.map(|(hit, lease)| Held {
            lease,
            location: hit.location,
        }));
    }

    fn client_lease(&mut self, key: &Key) {
        let slots = &self.client_slots;
        let mut proposed = None;
        let hits = self.directory.lease(CLIENT, std::slice::from_ref(key), || {
            let lease = slots.propose()?;
            Some(proposed.insert(lease).reference())
        });
        if let Some(hit) = hits.unwrap()[0] {
            self.client_leases.push(Held {
                lease: proposed.unwrap(),
                location: hit.location,
            });
        }
    }

    /// No page is two things at once.
    fn check(&self) {
        let granted: Vec<PageId> = self
            .client_grants
            .iter()
            .chain(&self.tier_grants)
            .map(|grant| grant.page)
            .collect();
        let distinct: HashSet<_> = granted.iter().collect();
        assert_eq!(distinct.len(), granted.len(), "a page was granted twice");
        for held in self.client_leases.iter().chain(&self.tier_leases) {
            assert!(
                !distinct.contains(&held.location.page),
                "page {} is read under lease {:?} and granted to be written",
                held.location.page,
                held.lease
            );
        }
        let mut image = Image::new(pool(3));
        for change in self.log.changes.lock().iter() {
            image.apply(change).unwrap();
        }
        assert_eq!(self.directory.difference(&image), None);
    }

    fn check_that_nothing_leaked(mut self) {
        self.log.refuse(0, 1);
        self.client_leases.clear();
        self.tier_leases.clear();
        for grant in self.tier_grants.drain(..) {
            self.directory.returns().push(grant);
        }
        self.directory
            .return_pages(CLIENT, &self.client_grants)
            .unwrap();
        self.directory.flush_returns().unwrap();
        assert_eq!(self.directory.tier_grants(), (0, 0));
        self.directory.leave(TIER).unwrap();
        assert!(self.directory.is_gone(TIER));
        self.directory.detach(TIER).unwrap();
        let stats = self.directory.stats();
        assert_eq!(stats.retired, 0);
        // Every commit is told and nothing that was admitted, save a commit that was not visible yet when the same object came
        // from storage: it is there, so nobody need hear of it.
        let admitted = stats.counters["ondol_admitted_objects_total"];
        let committed = stats.counters["ondol_commits_total"] - admitted;
        let met = stats.counters["ondol_duplicate_commits_total"];
        let told = self.ears.heard.lock().len() as u64;
        assert!(
            told <= committed && committed <= told + met,
            "{told} told of {committed} committed, {met} met"
        );
    }
}

fn run(steps: &[(u8, usize, usize)], odds: u64, seed: u64) {
    let mut world = World::new(3);
    world.log.refuse(odds, seed);
    let strides = [256 * KIB, 512 * KIB];
    for &(step, a, b) in steps {
        let key = Key::integer(a as u64 % 12);
        let keys = [key.clone(), Key::integer(b as u64 % 12)];
        let stride = strides[b % 2];
        match step % 12 {
            0 | 1 => {
                let _ = world.grant(stride);
            }
            2 => {
                let _ = world.commit(&key, 256 * KIB);
            }
            3 | 4 => world.reserve(stride, a % 4 + 1),
            5 | 6 => {
                let _ = world.admit(&key, 256 * KIB);
            }
            7 => world.lease(&keys),
            8 => world.client_lease(&key),
            9 => {
                let leases = if b % 2 == 0 {
                    &mut world.tier_leases
                } else {
                    &mut world.client_leases
                };
                if !leases.is_empty() {
                    leases.swap_remove(a % leases.len());
                }
            }
            10 => {
                if let Some(grant) = world.tier_grants.pop() {
                    world.directory.returns().push(grant);
                }
                world.directory.mark_stored(&keys, b % 3 > 0);
            }
            _ if b % 2 == 0 => {
                let _ = world.directory.delete(std::slice::from_ref(&key));
            }
            _ => {
                let _ = world.directory.let_go(&keys);
            }
        }
        world.check();
    }
    world.check_that_nothing_leaked();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn whatever_the_tier_does_no_page_is_two_things_at_once(
        steps in prop::collection::vec(any::<(u8, usize, usize)>(), 0..120)
    ) {
        run(&steps, 0, 1);
    }

    #[test]
    fn nor_when_the_journal_refuses(
        steps in prop::collection::vec(any::<(u8, usize, usize)>(), 0..120),
        odds in 1..8_u64,
        seed in any::<u64>(),
    ) {
        run(&steps, odds, seed);
    }
}

#[test]
fn a_commit_is_told_once_it_is_visible_and_an_admission_never() {
    let mut world = World::new(3);
    world.put(1, 256 * KIB);
    world.reserve(256 * KIB, 2);
    assert!(matches!(
        world.admit(&Key::integer(2), 100),
        Some(Admitted::Visible(_))
    ));
    // The same key again, by both.
    assert!(matches!(
        world.admit(&Key::integer(1), 100),
        Some(Admitted::Present(_))
    ));
    world.grant(256 * KIB).unwrap();
    assert_eq!(
        world.commit(&Key::integer(2), 100),
        Some(CommitOutcome::AlreadyPresent)
    );
    assert_eq!(*world.ears.heard.lock(), [(Key::integer(1), 256 * KIB)]);
}

#[test]
fn a_commit_that_is_not_durable_yet_is_told_when_it_is() {
    let mut world = World::new(3);
    world.grant(256 * KIB).unwrap();
    let commit = Commit {
        key: Key::integer(1),
        location: location(world.client_grants[0], 7),
        meta: ObjectMeta::default(),
    };
    let commit = [commit];
    world.log.fail_flushes.store(true, Ordering::Relaxed);
    assert!(world.directory.commit(CLIENT, &commit).is_err());
    assert!(world.ears.heard.lock().is_empty());
    world.log.fail_flushes.store(false, Ordering::Relaxed);
    let outcome = world.directory.commit(CLIENT, &commit);
    assert_eq!(outcome, Ok(vec![CommitOutcome::Stored].into()));
    assert_eq!(*world.ears.heard.lock(), [(Key::integer(1), 7)]);
}

#[test]
fn what_is_pinned_or_leased_is_not_let_go() {
    let mut world = World::new(3);
    for key in 0..3 {
        world.put(key, 256 * KIB);
    }
    let pin = Pin {
        key: Key::integer(0),
        number: 1,
    };
    world.directory.pin(CLIENT, &[pin]).unwrap();
    world.client_lease(&Key::integer(1));
    let keys: Vec<_> = (0..5).map(Key::integer).collect();
    assert_eq!(world.directory.let_go(&keys).unwrap(), 1);
    let there = world.directory.locate(&keys);
    let there: Vec<_> = there.iter().map(Option::is_some).collect();
    assert_eq!(there, [true, true, false, false, false]);
}

#[test]
fn a_region_whose_objects_are_stored_is_drained_before_a_colder_one() {
    let mut world = World::new(3);
    for key in 0..12 {
        world.put(key, 512 * KIB);
    }
    // The second region, which is not the coldest.
    let stored: Vec<_> = (4..8).map(Key::integer).collect();
    world.directory.mark_stored(&stored, true);
    world.put(100, 1024 * KIB);
    let keys: Vec<_> = (0..12).map(Key::integer).collect();
    let there = world.directory.locate(&keys);
    for (key, found) in there.iter().enumerate() {
        assert_eq!(found.is_some(), !(4..8).contains(&key), "{key}");
    }
    let counters = world.directory.stats().counters;
    assert_eq!(counters["ondol_unstored_evictions_total"], 0);
}

#[test]
fn a_deleted_object_stays_readable_for_the_transfer_that_leased_it() {
    let mut world = World::new(3);
    world.put(1, 256 * KIB);
    world.lease(&[Key::integer(1)]);
    assert_eq!(
        world.directory.delete(&[Key::integer(1)]),
        Ok(vec![DeleteOutcome::Deleted])
    );
    for key in 10..60 {
        world.put(key, 256 * KIB);
    }
    let page = world.tier_leases[0].location.page;
    for key in 10..60 {
        let hit = world.directory.locate(&[Key::integer(key)])[0];
        assert_ne!(hit.map(|hit| hit.location.page), Some(page), "{key}");
    }
    assert_eq!(world.directory.stats().retired, 1);
}
