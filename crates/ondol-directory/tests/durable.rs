//! Nothing is answered and nothing can be seen before it is durable, and what is durable is there after a restart.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use ondol_directory::{
    AdoptedClient, AttachError, Directory, DirectoryError, LastRun, Newcomer, Reclaimed,
    RecoverError, Recovery, Verifier,
};
use ondol_memory::{
    Arena, Change, Extent, Image, Journal, JournalError, NoJournal, Pool, Position, StoredObject,
};
use ondol_plugin::{Key, KeyTag, RegionId};
use ondol_protocol::{
    Commit, CommitOutcome, DeleteOutcome, Grant, Pin, PinOutcome, Retrieve, Retrieved,
};
use ondol_shm::{
    BackingId, BookedLease, ClientId, Generation, Lease, LeaseBook, LeaseSlots, Location,
    ObjectMeta, PageId, create_lease_table,
};
use parking_lot::{Condvar, Mutex};

const REGION: u64 = 2 << 20;
const PAGE: u64 = 512 << 10;
const CLIENT: ClientId = ClientId(1);
const OTHER: ClientId = ClientId(2);
/// Far beyond what anything here takes.
const WATCHDOG: Duration = Duration::from_secs(60);

/// What a flush does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disk {
    Works,
    Fails,
    /// It takes until this is changed.
    Hangs,
}

/// Remembers what was recorded; its flushes do what they are told.
#[derive(Debug)]
struct Log {
    changes: Mutex<Vec<Change>>,
    durable: AtomicU64,
    disk: Mutex<Disk>,
    changed: Condvar,
    waiting: AtomicU64,
    /// So many more changes can be recorded.
    room: AtomicU64,
    /// So many changes may wait for a flush.
    may_wait: AtomicU64,
}

impl Log {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            changes: Mutex::default(),
            durable: AtomicU64::new(0),
            disk: Mutex::new(Disk::Works),
            changed: Condvar::new(),
            waiting: AtomicU64::new(0),
            room: AtomicU64::new(u64::MAX),
            may_wait: AtomicU64::new(u64::MAX),
        })
    }

    fn set(&self, disk: Disk) {
        *self.disk.lock() = disk;
        self.changed.notify_all();
    }

    /// Waits until so many callers wait for the disk.
    fn wait_for_callers(&self, count: u64) {
        let started = std::time::Instant::now();
        while self.waiting.load(Ordering::SeqCst) < count {
            assert!(started.elapsed() < WATCHDOG, "nobody waits for the disk");
            thread::yield_now();
        }
    }

    /// What the changes make: all of them, or those that are durable.
    fn image(&self, regions: u64, durable_only: bool) -> Image {
        let mut image = Image::new(pool(regions));
        let durable = self.durable.load(Ordering::SeqCst) as usize;
        let changes = self.changes.lock();
        let count = if durable_only { durable } else { changes.len() };
        for change in &changes[..count] {
            image.apply(change).unwrap();
        }
        image
    }
}

impl Journal for Log {
    fn record(&self, change: &Change) -> Result<(), JournalError> {
        let room = self
            .room
            .try_update(Ordering::SeqCst, Ordering::SeqCst, |room| {
                room.checked_sub(1)
            });
        room.map_err(|_| JournalError("no room".to_owned()))?;
        let waiting = self.position().0 - self.durable.load(Ordering::SeqCst);
        if waiting >= self.may_wait.load(Ordering::SeqCst) {
            return Err(JournalError("too much waits".to_owned()));
        }
        self.changes.lock().push(change.clone());
        Ok(())
    }

    fn position(&self) -> Position {
        Position(self.changes.lock().len() as u64)
    }

    fn flush(&self, position: Position) -> Result<(), JournalError> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut disk = self.disk.lock();
        while *disk == Disk::Hangs {
            self.changed.wait(&mut disk);
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        if self.durable.load(Ordering::SeqCst) >= position.0 {
            return Ok(());
        }
        if *disk == Disk::Fails {
            return Err(JournalError("the disk is gone".to_owned()));
        }
        self.durable.fetch_max(position.0, Ordering::SeqCst);
        Ok(())
    }
}

fn pool(regions: u64) -> Pool {
    let arena = Arena {
        usable: 0..regions * REGION,
        alignment: 4096,
        whole: false,
    };
    Pool::new([arena], Some(REGION))
}

fn lru() -> &'static ondol_catalog::Policy {
    ondol_catalog::policy("lru").unwrap()
}

struct Client {
    id: ClientId,
    table: OwnedFd,
    slots: Arc<LeaseSlots>,
}

impl Client {
    fn attach(directory: &Directory, id: ClientId) -> Self {
        let table = create_lease_table().unwrap();
        let who = Newcomer::default();
        directory.attach(id, who, table.as_fd(), None).unwrap();
        Self {
            id,
            slots: LeaseSlots::open(table.as_fd()).unwrap(),
            table,
        }
    }

    fn retrieve(&self, directory: &Directory, keys: &[Key]) -> (Retrieved, Vec<Lease>) {
        let leases: Vec<_> = keys.iter().map(|_| self.slots.propose().unwrap()).collect();
        let request = Retrieve {
            keys: keys.to_vec(),
            leases: leases.iter().map(Lease::reference).collect(),
            group: 1,
            prefix: false,
            expect: None,
            wait_ms: 0,
            expected_len: 0,
        };
        (directory.retrieve(self.id, &request).unwrap(), leases)
    }

    fn lease(&self, directory: &Directory, key: u64) -> Option<(Lease, Location)> {
        let (answer, mut leases) = self.retrieve(directory, &[Key::integer(key)]);
        Some((leases.pop()?, answer.hits[0]?.location))
    }
}

fn grant(directory: &Directory, request: u64) -> Result<Vec<Grant>, DirectoryError> {
    directory.grant(CLIENT, request, PAGE, 1, u64::MAX)
}

fn object(key: u64, grant: Grant) -> Commit {
    Commit {
        key: Key::integer(key),
        location: Location {
            page: grant.page,
            generation: grant.generation,
            len: PAGE,
        },
        meta: ObjectMeta {
            layout: None,
            checksum: Some(key),
        },
    }
}

fn store(directory: &Directory, key: u64) -> Grant {
    let grant = grant(directory, 1_000_000 + key).unwrap()[0];
    assert_eq!(
        directory.commit(CLIENT, &[object(key, grant)]),
        Ok(vec![CommitOutcome::Stored].into())
    );
    grant
}

fn is_visible(directory: &Directory, key: u64) -> bool {
    directory.locate(&[Key::integer(key)])[0].is_some()
}

fn pin(key: u64, number: u64) -> [Pin; 1] {
    let key = Key::integer(key);
    [Pin { key, number }]
}

fn counter(directory: &Directory, name: &str) -> u64 {
    directory.stats().counters[name]
}

#[test]
fn an_object_is_neither_seen_nor_claimed_twice_before_it_is_durable() {
    let log = Log::new();
    let directory = Arc::new(Directory::new(pool(1), Arc::<Log>::clone(&log), lru()));
    Client::attach(&directory, CLIENT);
    Client::attach(&directory, OTHER);
    let mine = grant(&directory, 1).unwrap()[0];
    let theirs = directory.grant(OTHER, 1, PAGE, 1, u64::MAX).unwrap()[0];
    log.set(Disk::Hangs);
    let (answers, answered) = mpsc::channel();
    let commit = |client, commit: Commit| {
        let (directory, answers) = (Arc::clone(&directory), answers.clone());
        thread::spawn(move || answers.send((client, directory.commit(client, &[commit]))))
    };
    let mut threads = vec![commit(CLIENT, object(7, mine))];
    log.wait_for_callers(1);
    // The same again, as after a lost answer, and somebody else with the same key.
    threads.push(commit(CLIENT, object(7, mine)));
    threads.push(commit(OTHER, object(7, theirs)));
    log.wait_for_callers(3);
    assert!(!is_visible(&directory, 7));
    assert!(
        answered.try_recv().is_err(),
        "something was answered that is not durable"
    );
    log.set(Disk::Works);
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap().unwrap());
    let answers: Vec<_> = answered.try_iter().collect();
    assert_eq!(answers.len(), 3);
    for (client, answer) in answers {
        let expected = if client == CLIENT {
            CommitOutcome::Stored
        } else {
            CommitOutcome::AlreadyPresent
        };
        assert_eq!(answer, Ok(vec![expected].into()));
    }
    assert!(is_visible(&directory, 7));
    assert_eq!(counter(&directory, "ondol_commits_total"), 1);
}

#[test]
fn what_a_failed_flush_left_is_published_by_the_next_that_succeeds() {
    let log = Log::new();
    let directory = Directory::new(pool(1), Arc::<Log>::clone(&log), lru());
    Client::attach(&directory, CLIENT);
    let [first, second] = [1, 2].map(|request| grant(&directory, request).unwrap()[0]);
    log.set(Disk::Fails);
    let refused = directory.commit(CLIENT, &[object(1, first)]);
    assert!(
        matches!(refused, Err(DirectoryError::Journal(_))),
        "{refused:?}"
    );
    assert!(!is_visible(&directory, 1));
    assert_eq!(directory.stats().objects, 0);
    log.set(Disk::Works);
    directory.commit(CLIENT, &[object(2, second)]).unwrap();
    assert!(is_visible(&directory, 1) && is_visible(&directory, 2));
    // Asked again, it is the same object.
    assert_eq!(
        directory.commit(CLIENT, &[object(1, first)]),
        Ok(vec![CommitOutcome::Stored].into())
    );
    assert_eq!(directory.difference(&log.image(1, true)), None);
}

#[test]
fn nothing_is_acknowledged_that_is_not_durable() {
    let log = Log::new();
    let directory = Directory::new(pool(1), Arc::<Log>::clone(&log), lru());
    Client::attach(&directory, CLIENT);
    store(&directory, 1);
    store(&directory, 2);
    let spare = grant(&directory, 9).unwrap()[0];
    directory.pin(CLIENT, &pin(2, 1)).unwrap();
    let image = log.image(1, true);
    log.set(Disk::Fails);
    let unsettled = |error: Option<DirectoryError>| {
        assert!(
            matches!(error, Some(DirectoryError::Journal(_))),
            "{error:?}"
        );
        // A server that is killed now leaves what was acknowledged before.
        assert_eq!(log.image(1, true), image);
    };
    for _ in 0..2 {
        unsettled(grant(&directory, 3).err());
        unsettled(directory.return_pages(CLIENT, &[spare]).err());
        unsettled(directory.pin(CLIENT, &pin(1, 5)).err());
        unsettled(directory.unpin(CLIENT, &pin(2, 1)).err());
        unsettled(directory.delete(&[Key::integer(2)]).err());
    }
    unsettled(directory.leave(CLIENT).err());
    unsettled(directory.leave(CLIENT).err());
}

#[test]
fn a_pool_full_of_what_is_not_durable_yet_is_waited_for() {
    let log = Log::new();
    let directory = Arc::new(Directory::new(pool(1), Arc::<Log>::clone(&log), lru()));
    Client::attach(&directory, CLIENT);
    let grants: Vec<_> = (1..=4)
        .map(|request| grant(&directory, request).unwrap()[0])
        .collect();
    let commits: Vec<_> = (0..)
        .zip(grants)
        .map(|(key, grant)| object(key, grant))
        .collect();
    log.set(Disk::Fails);
    assert!(directory.commit(CLIENT, &commits).is_err());
    // It is not full for good, and it does not know whether it is.
    assert!(matches!(
        grant(&directory, 5),
        Err(DirectoryError::Journal(_))
    ));
    log.set(Disk::Hangs);
    let waiting = thread::spawn({
        let directory = Arc::clone(&directory);
        move || grant(&directory, 6)
    });
    log.wait_for_callers(1);
    log.set(Disk::Works);
    assert_eq!(waiting.join().unwrap().map(|grants| grants.len()), Ok(1));
    assert_eq!(directory.stats().objects, 3);
}

#[test]
fn a_request_that_was_refused_grants_nothing_when_it_comes_again() {
    let directory = Directory::new(pool(1), Arc::new(NoJournal), lru());
    Client::attach(&directory, CLIENT);
    let grants: Vec<_> = (1..=4)
        .map(|request| grant(&directory, request).unwrap()[0])
        .collect();
    assert!(matches!(grant(&directory, 5), Err(DirectoryError::Full(_))));
    directory.return_pages(CLIENT, &grants).unwrap();
    assert!(matches!(grant(&directory, 5), Err(DirectoryError::Full(_))));
    assert!(grant(&directory, 6).is_ok());
}

#[test]
fn a_thousand_lost_answers_leak_nothing() {
    let log = Log::new();
    let directory = Directory::new(pool(2), Arc::<Log>::clone(&log), lru());
    Client::attach(&directory, CLIENT);
    let ask = |directory: &Directory, request| {
        directory.grant(CLIENT, request, 2048, 1, u64::MAX).unwrap()
    };
    let lost: Vec<_> = (1..=1000).map(|request| ask(&directory, request)).collect();
    let again: Vec<_> = (1..=1000).map(|request| ask(&directory, request)).collect();
    assert_eq!(lost, again);
    // A server that takes over gives the same answers.
    let directory = recover(&log, 2, [(CLIENT, vec![])]);
    let again: Vec<_> = (1..=1000).map(|request| ask(&directory, request)).collect();
    assert_eq!(lost, again);
    assert_eq!(directory.with_pool(|pool| pool.granted_to(CLIENT).0), 1000);
}

/// A directory of what the log made durable; these clients live, with what stands in their books.
fn recover<const N: usize>(
    log: &Arc<Log>,
    regions: u64,
    living: [(ClientId, Vec<BookedLease>); N],
) -> Directory {
    recover_with(log, regions, living, None)
}

fn recover_with<const N: usize>(
    log: &Arc<Log>,
    regions: u64,
    living: [(ClientId, Vec<BookedLease>); N],
    verifier: Option<Arc<dyn Verifier>>,
) -> Directory {
    let books = tempfile::tempdir().unwrap();
    let adopted = living.into_iter().map(|(id, leases)| AdoptedClient {
        id,
        book: LeaseBook::create(&books.path().join(id.to_string())).unwrap(),
        leases,
        slots: None,
    });
    let last = LastRun {
        adopted: adopted.collect(),
        verifier,
        ..LastRun::default()
    };
    let (directory, _) = recover_from(log, regions, last).unwrap();
    assert_eq!(directory.difference(&log.image(regions, true)), None);
    directory
}

fn recover_from(
    log: &Arc<Log>,
    regions: u64,
    last: LastRun,
) -> Result<(Directory, Recovery), RecoverError> {
    let image = log.image(regions, true);
    log.changes
        .lock()
        .truncate(log.durable.load(Ordering::SeqCst) as usize);
    Directory::recover(image, Arc::<Log>::clone(log), lru(), last)
}

fn booked((lease, location): &(Lease, Location)) -> BookedLease {
    BookedLease {
        lease: lease.reference(),
        page: location.page,
        generation: location.generation,
    }
}

#[test]
fn what_an_adopted_client_reads_is_not_reused_until_it_ends_or_dies() {
    for dies in [false, true] {
        let log = Log::new();
        let directory = Directory::new(pool(1), Arc::<Log>::clone(&log), lru());
        let client = Client::attach(&directory, CLIENT);
        Client::attach(&directory, OTHER);
        let [read, deleted, pinned, _] = [0, 1, 2, 3].map(|key| store(&directory, key));
        let held = [0, 1].map(|key| client.lease(&directory, key).unwrap());
        directory.pin(CLIENT, &pin(2, 9)).unwrap();
        directory.delete(&[Key::integer(1)]).unwrap();
        // One that had ended, on a page that was used again since.
        let ended = BookedLease {
            generation: Generation(77),
            ..booked(&held[0])
        };
        let ended = BookedLease {
            lease: client.slots.propose().unwrap().reference(),
            ..ended
        };
        let book = vec![booked(&held[0]), booked(&held[1]), ended];
        drop(directory);

        let directory = recover(&log, 1, [(CLIENT, book), (OTHER, vec![])]);
        assert_eq!(counter(&directory, "ondol_adopted_clients_total"), 2);
        assert_eq!(counter(&directory, "ondol_unmatched_leases_total"), 1);
        let take_all = |first: u64| {
            let grants = (first..)
                .map_while(|request| directory.grant(OTHER, request, PAGE, 1, u64::MAX).ok());
            let pages: BTreeSet<_> = grants.flatten().map(|grant| grant.page).collect();
            pages
        };
        let taken = take_all(1);
        let captive = [read.page, deleted.page, pinned.page];
        assert_eq!(taken.len(), 1);
        assert!(captive.iter().all(|page| !taken.contains(page)));
        assert_eq!(
            directory.delete(&[Key::integer(2)]),
            Ok(vec![DeleteOutcome::Pinned])
        );
        // Its word counts only once it is back.
        drop(held);
        assert!(take_all(100).is_empty());
        if dies {
            let reclaimed = directory.detach(CLIENT).unwrap();
            assert_eq!((reclaimed.leases, reclaimed.pins), (2, 1));
        } else {
            directory.resume(CLIENT, client.table.as_fd()).unwrap();
            assert_eq!(
                directory.unpin(CLIENT, &pin(2, 9)),
                Ok(vec![PinOutcome::Done])
            );
        }
        assert_eq!(take_all(200), BTreeSet::from(captive), "dies: {dies}");
    }
}

#[test]
fn what_the_dead_held_is_free_before_the_first_request() {
    let log = Log::new();
    let directory = Directory::new(pool(1), Arc::<Log>::clone(&log), lru());
    let client = Client::attach(&directory, CLIENT);
    store(&directory, 1);
    store(&directory, 2);
    let _held = client.lease(&directory, 2).unwrap();
    directory.delete(&[Key::integer(2)]).unwrap();
    directory.pin(CLIENT, &pin(1, 1)).unwrap();
    grant(&directory, 3).unwrap();
    drop(directory);
    let directory = recover(&log, 1, []);
    let stats = directory.stats();
    assert_eq!(
        (stats.objects, stats.retired, stats.clients.len()),
        (1, 0, 0)
    );
    assert_eq!((stats.classes[0].granted, stats.classes[0].free), (0, 3));
    assert_eq!(stats.counters["ondol_reclaimed_pins_total"], 1);
    assert_eq!(stats.counters["ondol_reclaimed_grants_total"], 1);
    assert_eq!(stats.counters["ondol_dead_clients_total"], 1);
    assert_eq!(
        directory.delete(&[Key::integer(1)]),
        Ok(vec![DeleteOutcome::Deleted])
    );
}

/// A log in which client 1 holds two pins on one object, two grants, and leases on a deleted object.
fn log_of_the_dead() -> Arc<Log> {
    let log = Log::new();
    let directory = Directory::new(pool(2), Arc::<Log>::clone(&log), lru());
    let client = Client::attach(&directory, CLIENT);
    store(&directory, 1);
    store(&directory, 2);
    let _held = client.lease(&directory, 2).unwrap();
    directory.delete(&[Key::integer(2)]).unwrap();
    directory.pin(CLIENT, &pin(1, 1)).unwrap();
    directory.pin(CLIENT, &pin(1, 2)).unwrap();
    grant(&directory, 3).unwrap();
    grant(&directory, 4).unwrap();
    log
}

#[test]
fn what_a_full_journal_cannot_take_back_from_the_dead_at_the_start_is_taken_back_later() {
    // What is to be recorded: two unpins, two returns, that the client is gone, that a page is free.
    const ALL: u64 = 6;
    for room in 0..=ALL {
        let log = log_of_the_dead();
        log.room.store(room, Ordering::SeqCst);
        let (directory, recovery) = recover_from(&log, 2, LastRun::default()).unwrap();
        assert_eq!(directory.difference(&log.image(2, true)), None);
        assert_eq!(recovery.refused.is_some(), room < ALL);
        let all = Reclaimed {
            leases: 0,
            pins: 2,
            grants: 2,
        };
        let so_far = Reclaimed {
            leases: 0,
            pins: room.min(2),
            grants: room.saturating_sub(2).min(2),
        };
        let (forgotten, unforgotten) = if room < 5 {
            (vec![], vec![(CLIENT, so_far)])
        } else {
            (vec![(CLIENT, all)], vec![])
        };
        assert_eq!(
            (&recovery.dead, &recovery.unforgotten),
            (&forgotten, &unforgotten)
        );

        // It is dead all the same, and what is there is served.
        assert!(is_visible(&directory, 1) && !is_visible(&directory, 2));
        assert_eq!(grant(&directory, 9), Err(DirectoryError::UnknownClient));
        let table = create_lease_table().unwrap();
        directory.resume(CLIENT, table.as_fd()).unwrap_err();
        let stats = directory.stats();
        assert_eq!(stats.retired, u64::from(room < ALL));
        assert_eq!(stats.clients.len(), unforgotten.len());

        log.room.store(u64::MAX, Ordering::SeqCst);
        if !unforgotten.is_empty() {
            let rest = Reclaimed {
                leases: 0,
                pins: all.pins - so_far.pins,
                grants: all.grants - so_far.grants,
            };
            assert_eq!(directory.detach(CLIENT), Ok(rest));
        }
        let stats = directory.stats();
        assert_eq!((stats.retired, stats.clients.len()), (0, 0));
        assert_eq!(
            (stats.classes[0].granted, stats.classes[0].committed),
            (0, 1)
        );
        for (name, count) in [
            ("ondol_dead_clients_total", 1),
            ("ondol_reclaimed_pins_total", 2),
            ("ondol_reclaimed_grants_total", 2),
        ] {
            assert_eq!(counter(&directory, name), count, "{name}, room for {room}");
        }
        assert_eq!(
            directory.delete(&[Key::integer(1)]),
            Ok(vec![DeleteOutcome::Deleted])
        );
        assert_eq!(directory.difference(&log.image(2, true)), None);
    }
}

#[test]
fn a_start_does_not_wait_for_a_disk_that_fails_while_only_the_dead_are_concerned() {
    let log = log_of_the_dead();
    log.set(Disk::Fails);
    let (directory, recovery) = recover_from(&log, 2, LastRun::default()).unwrap();
    assert_eq!(
        recovery.refused,
        Some(JournalError("the disk is gone".into()))
    );
    assert!(is_visible(&directory, 1));
    // Nothing of it is durable, and the page of nobody's is not handed out before it is.
    let table = create_lease_table().unwrap();
    let attached = directory.attach(OTHER, Newcomer::default(), table.as_fd(), None);
    assert!(matches!(attached, Err(AttachError::Journal(_))));
    let granted = directory.grant(OTHER, 1, PAGE, 1, u64::MAX);
    assert!(
        matches!(granted, Err(DirectoryError::Journal(_))),
        "{granted:?}"
    );
    assert!(log.image(2, true).clients.contains_key(&CLIENT));
    log.set(Disk::Works);
    directory.make_durable().unwrap();
    assert_eq!(directory.difference(&log.image(2, true)), None);
}

#[test]
fn much_that_is_gone_is_recorded_in_parts() {
    const OBJECTS: u64 = 3000;
    let log = Log::new();
    let mut changes = vec![Change::Attach {
        client: CLIENT,
        process: Default::default(),
        instance: [1; 16],
    }];
    let mut planned = pool(1);
    let carve = planned.plan_carve(512).unwrap();
    planned.apply(&carve).unwrap();
    changes.push(carve);
    for number in 0..OBJECTS {
        let grant = planned.find_free(512).unwrap();
        let granted = Change::Grant {
            grant,
            client: CLIENT,
            request: number,
        };
        let committed = Change::Commit {
            key: Key::integer(number),
            location: Location {
                page: grant.page,
                generation: grant.generation,
                len: 1,
            },
            meta: Default::default(),
            client: CLIENT,
        };
        for change in [granted, committed] {
            planned.apply(&change).unwrap();
            changes.push(change);
        }
    }
    log.durable.store(changes.len() as u64, Ordering::SeqCst);
    *log.changes.lock() = changes;
    log.may_wait.store(5000, Ordering::SeqCst);
    let last = LastRun {
        lost: BTreeSet::from([BackingId(0)]),
        rebooted: true,
        ..LastRun::default()
    };
    let (directory, recovery) = recover_from(&log, 1, last).unwrap();
    assert_eq!((recovery.objects, recovery.lost), (0, OBJECTS));
    assert_eq!(directory.difference(&log.image(1, true)), None);
}

#[test]
fn objects_whose_bytes_are_gone_are_not_gone_on_with_unless_that_can_be_recorded() {
    for room in 0..100 {
        let log = log_of_the_dead();
        log.room.store(room, Ordering::SeqCst);
        let last = LastRun {
            lost: BTreeSet::from([BackingId(0)]),
            ..LastRun::default()
        };
        match recover_from(&log, 2, last) {
            Ok((directory, recovery)) => {
                // Five for the dead, then one removal, two pages and a region.
                assert_eq!((room, recovery.refused), (9, None));
                assert_eq!(directory.stats().objects, 0);
                return;
            }
            Err(RecoverError::Journal(error)) => assert_eq!(error.0, "no room"),
            Err(other) => panic!("{other:?}"),
        }
    }
    panic!("it never starts");
}

#[test]
fn after_a_reboot_the_dead_are_forgotten_at_once_or_the_start_fails() {
    for (room, works) in [(4, false), (5, false), (6, true)] {
        let log = log_of_the_dead();
        log.room.store(room, Ordering::SeqCst);
        let last = LastRun {
            rebooted: true,
            ..LastRun::default()
        };
        let recovered = recover_from(&log, 2, last);
        assert_eq!(recovered.is_ok(), works, "{recovered:?}");
    }
}

#[test]
fn a_pin_that_is_asked_for_again_after_a_restart_is_made_once() {
    let log = Log::new();
    let directory = Directory::new(pool(1), Arc::<Log>::clone(&log), lru());
    Client::attach(&directory, CLIENT);
    store(&directory, 1);
    directory.pin(CLIENT, &pin(1, 4)).unwrap();
    let directory = recover(&log, 1, [(CLIENT, vec![])]);
    assert_eq!(
        directory.pin(CLIENT, &pin(1, 4)),
        Ok(vec![PinOutcome::Done])
    );
    assert_eq!(
        directory.unpin(CLIENT, &pin(1, 4)),
        Ok(vec![PinOutcome::Done])
    );
    assert_eq!(
        directory.unpin(CLIENT, &pin(1, 4)),
        Ok(vec![PinOutcome::Absent])
    );
    assert_eq!(
        directory.delete(&[Key::integer(1)]),
        Ok(vec![DeleteOutcome::Deleted])
    );
}

#[test]
fn objects_leave_after_a_restart_in_the_order_of_their_commits_but_what_was_used_since() {
    let log = Log::new();
    let directory = Directory::new(pool(1), Arc::<Log>::clone(&log), lru());
    Client::attach(&directory, CLIENT);
    for key in [3, 1, 2, 0] {
        store(&directory, key);
    }
    let directory = recover(&log, 1, [(CLIENT, vec![])]);
    let reader = Client::attach(&directory, OTHER);
    drop(reader.lease(&directory, 3).unwrap());
    assert_eq!(counter(&directory, "ondol_demand_loads_total"), 1);
    let mut order = Vec::new();
    for request in 1..=4 {
        directory.grant(OTHER, request, PAGE, 1, u64::MAX).unwrap();
        let gone = (0..4).filter(|key| !is_visible(&directory, *key));
        let gone: Vec<_> = gone.filter(|key| !order.contains(key)).collect();
        order.extend(gone);
    }
    assert_eq!(order, [1, 2, 0, 3]);
}

/// Says of some keys' checksums that they do not fit.
#[derive(Debug)]
struct Picky {
    bad: Vec<u64>,
    fails: AtomicBool,
}

impl Verifier for Picky {
    fn fits(
        &self,
        _: Extent,
        stride: u64,
        location: &Location,
        checksum: u64,
    ) -> Result<bool, String> {
        assert_eq!((stride, location.len), (PAGE, PAGE));
        if self.fails.load(Ordering::SeqCst) {
            return Err("the memory is gone".to_owned());
        }
        Ok(!self.bad.contains(&checksum))
    }
}

#[test]
fn an_object_whose_bytes_do_not_fit_is_a_miss_and_gone() {
    let log = Log::new();
    let directory = Directory::new(pool(1), Arc::<Log>::clone(&log), lru());
    Client::attach(&directory, CLIENT);
    for key in 1..=3 {
        store(&directory, key);
    }
    directory.pin(CLIENT, &pin(2, 1)).unwrap();
    let picky = Arc::new(Picky {
        bad: vec![2, 3],
        fails: AtomicBool::new(true),
    });
    let verifier: Arc<dyn Verifier> = Arc::<Picky>::clone(&picky);
    let directory = recover_with(&log, 1, [(CLIENT, vec![])], Some(verifier));
    let reader = Client::attach(&directory, OTHER);
    let keys = [1, 2, 3].map(Key::integer);
    // Whoever cannot know does not say that it is not there.
    let lease = reader.slots.propose().unwrap();
    let request = Retrieve {
        keys: vec![keys[0].clone()],
        leases: vec![lease.reference()],
        group: 1,
        prefix: false,
        expect: None,
        wait_ms: 0,
        expected_len: 0,
    };
    assert!(matches!(
        directory.retrieve(OTHER, &request),
        Err(DirectoryError::Unverifiable(_))
    ));
    picky.fails.store(false, Ordering::SeqCst);
    let (answer, leases) = reader.retrieve(&directory, &keys);
    let hits: Vec<_> = answer.hits.iter().map(Option::is_some).collect();
    assert_eq!(hits, [true, false, false]);
    assert_eq!(counter(&directory, "ondol_lost_objects_total"), 2);
    assert_eq!(counter(&directory, "ondol_verified_objects_total"), 1);
    assert_eq!(
        directory.unpin(CLIENT, &pin(2, 1)),
        Ok(vec![PinOutcome::Absent])
    );
    drop((lease, leases));
    let stats = directory.stats();
    assert_eq!(
        (stats.objects, stats.retired, stats.classes[0].free),
        (1, 0, 3)
    );
    // Its name can be used again, and what is stored now needs no check.
    store(&directory, 3);
    assert!(reader.lease(&directory, 3).is_some());
    assert_eq!(directory.difference(&log.image(1, false)), None);
}

#[test]
fn bytes_that_are_gone_take_their_objects_and_regions_with_them() {
    let arenas = || {
        let arena = Arena {
            usable: 0..REGION,
            alignment: 4096,
            whole: false,
        };
        Pool::new([arena.clone(), arena], Some(REGION))
    };
    let log = Log::new();
    let directory = Directory::new(arenas(), Arc::<Log>::clone(&log), lru());
    Client::attach(&directory, CLIENT);
    for key in 0..6 {
        store(&directory, key);
    }
    directory.delete(&[Key::integer(0)]).unwrap();
    let mut image = Image::new(arenas());
    log.changes
        .lock()
        .iter()
        .for_each(|change| image.apply(change).unwrap());
    let last = LastRun {
        lost: BTreeSet::from([BackingId(0)]),
        ..LastRun::default()
    };
    let journal = Arc::<Log>::clone(&log);
    let (directory, recovery) = Directory::recover(image, journal, lru(), last).unwrap();
    assert_eq!((recovery.objects, recovery.lost), (2, 3));
    assert!((0..6).all(|key| is_visible(&directory, key) == (key >= 4)));
    let ids: Vec<_> = directory.with_pool(|pool| pool.regions().map(|(id, _)| id).collect());
    assert_eq!(ids, [RegionId(2)]);
    let mut image = Image::new(arenas());
    log.changes
        .lock()
        .iter()
        .for_each(|change| image.apply(change).unwrap());
    assert_eq!(directory.difference(&image), None);
}

#[test]
fn an_image_that_contradicts_itself_is_refused() {
    let build = || {
        let log = Log::new();
        let directory = Directory::new(pool(1), Arc::<Log>::clone(&log), lru());
        Client::attach(&directory, CLIENT);
        store(&directory, 1);
        log.image(1, true)
    };
    let page = |index| PageId {
        region: RegionId(1),
        index,
    };
    type Mutation = fn(&mut StoredObject);
    let mutations: [(&str, Mutation); 4] = [
        ("generation", |object| object.location.generation.0 += 1),
        ("length", |object| object.location.len = PAGE + 1),
        ("page", |object| object.location.page.index = 3),
        ("region", |object| object.location.page.region.0 = 9),
    ];
    for (what, mutate) in mutations {
        let mut image = build();
        image.objects.values_mut().for_each(mutate);
        let refused = Directory::recover(image, Arc::new(NoJournal), lru(), LastRun::default());
        assert!(matches!(refused, Err(RecoverError::Corrupt(_))), "{what}");
    }
    let mut image = build();
    let (key, object) = image.objects.pop_front().unwrap();
    let refused = Directory::recover(image, Arc::new(NoJournal), lru(), LastRun::default());
    assert!(
        matches!(refused, Err(RecoverError::Corrupt(_))),
        "a page without its object"
    );
    let mut image = build();
    image.removed.insert(page(0), (key, object));
    let refused = Directory::recover(image, Arc::new(NoJournal), lru(), LastRun::default());
    assert!(
        matches!(refused, Err(RecoverError::Corrupt(_))),
        "a page of two objects"
    );
}

#[test]
fn while_objects_are_loaded_none_is_missed_and_none_is_made_up() {
    const OBJECTS: u64 = 200_000;
    const STRIDE: u64 = 64;
    let regions = 2 * OBJECTS * STRIDE / REGION + 1;
    let mut image = Image::new(pool(regions));
    let change = Change::Attach {
        client: CLIENT,
        process: Default::default(),
        instance: [0; 16],
    };
    image.apply(&change).unwrap();
    let name = |key: u64| Key::new(KeyTag::Raw, &key.to_le_bytes()).unwrap();
    for key in 0..OBJECTS {
        if image.pool.find_free(STRIDE).is_none() {
            let carve = image.pool.plan_carve(STRIDE).unwrap();
            image.apply(&carve).unwrap();
        }
        let grant = image.pool.find_free(STRIDE).unwrap();
        let granted = Change::Grant {
            grant,
            client: CLIENT,
            request: key,
        };
        image.apply(&granted).unwrap();
        let commit = Change::Commit {
            key: name(key),
            location: Location {
                page: grant.page,
                generation: grant.generation,
                len: key % STRIDE,
            },
            meta: ObjectMeta::default(),
            client: CLIENT,
        };
        image.apply(&commit).unwrap();
    }
    let (directory, _) =
        Directory::recover(image, Arc::new(NoJournal), lru(), LastRun::default()).unwrap();
    assert!(!directory.is_loaded());
    let readers: Vec<_> = (10..13)
        .map(|id| Client::attach(&directory, ClientId(id)))
        .collect();
    thread::scope(|scope| {
        for (reader, seed) in readers.iter().zip(1_u64..) {
            let directory = &directory;
            scope.spawn(move || {
                let mut x = seed;
                let mut after_the_end = 0;
                while after_the_end < 200 {
                    after_the_end += u64::from(directory.is_loaded());
                    let keys: Vec<u64> = (0..8)
                        .map(|_| {
                            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                            (x >> 33) % (OBJECTS * 2)
                        })
                        .collect();
                    let names: Vec<_> = keys.iter().map(|key| name(*key)).collect();
                    let (answer, _) = reader.retrieve(directory, &names);
                    for (key, hit) in keys.iter().zip(answer.hits) {
                        let len = hit.map(|hit| hit.location.len);
                        let expected = (*key < OBJECTS).then_some(key % STRIDE);
                        assert_eq!(len, expected, "object {key}");
                    }
                    let located = directory.locate(&names);
                    assert!(
                        keys.iter()
                            .zip(located)
                            .all(|(key, hit)| hit.is_some() == (*key < OBJECTS))
                    );
                }
            });
        }
        scope.spawn(|| while !directory.load_some() {});
    });
    assert_eq!(directory.stats().objects, OBJECTS);
    assert_eq!(directory.list(None, u32::MAX).objects.len() as u64, OBJECTS);
}
