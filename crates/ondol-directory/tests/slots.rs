//! Clients that find objects in the index and hold them by slots, without a word to the directory.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use ondol_directory::{
    AdoptedClient, CommitListener, Directory, DirectoryError, LastRun, Newcomer, Reclaimed,
    Recovery, Verifier,
};
use ondol_memory::{Arena, Change, Extent, Image, Journal, JournalError, Pool, Position};
use ondol_plugin::Key;
use ondol_protocol::{ClientStats, Commit, CommitOutcome, DeleteOutcome, Retrieve};
use ondol_shm::{
    ClientId, Grant, HIT_PLACES, IndexReader, IndexedObject, Lease, LeaseBook, LeaseSlots,
    Location, Looked, ObjectMeta, PageId, SlotLease, SlotTable, SlotTableView, create_lease_table,
};
use parking_lot::Mutex;

const REGION: u64 = 2 << 20;
const PAGE: u64 = 512 << 10;
/// Pages of that size in a region.
const PAGES: u64 = REGION / PAGE;
const WRITER: ClientId = ClientId(1);
const READER: ClientId = ClientId(2);

/// Remembers what was recorded; its flushes fail if they are told to.
#[derive(Debug, Default)]
struct Log {
    changes: Mutex<Vec<Change>>,
    fails: AtomicBool,
}

impl Log {
    fn image(&self, regions: u64) -> Image {
        let mut image = Image::new(pool(regions));
        for change in &*self.changes.lock() {
            image.apply(change).unwrap();
        }
        image
    }
}

#[derive(Debug)]
struct Recorder(Arc<Log>);

impl Journal for Recorder {
    fn record(&self, change: &Change) -> Result<(), JournalError> {
        self.0.changes.lock().push(change.clone());
        Ok(())
    }

    fn position(&self) -> Position {
        Position(self.0.changes.lock().len() as u64)
    }

    fn flush(&self, _: Position) -> Result<(), JournalError> {
        if self.0.fails.load(Ordering::SeqCst) {
            return Err(JournalError("the disk is gone".to_owned()));
        }
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

/// A directory with an index, and where its clients' files lie.
struct World {
    directory: Arc<Directory>,
    log: Arc<Log>,
    regions: u64,
    dir: tempfile::TempDir,
    requests: AtomicU64,
    writer: Client,
}

/// A client that reads by itself.
struct Client {
    id: ClientId,
    leases: Arc<LeaseSlots>,
    index: IndexReader,
    slots: Arc<SlotTable>,
}

impl World {
    fn new(regions: u64) -> Self {
        let log = Arc::new(Log::default());
        let journal = Arc::new(Recorder(Arc::clone(&log)));
        let directory = Arc::new(Directory::new(pool(regions), journal, lru()));
        directory.open_index();
        let dir = tempfile::tempdir().unwrap();
        let writer = Client::attach(&directory, WRITER, &dir.path().join(WRITER.to_string()));
        Self {
            directory,
            log,
            regions,
            dir,
            requests: AtomicU64::new(1),
            writer,
        }
    }

    fn table(&self, id: ClientId) -> PathBuf {
        self.dir.path().join(id.to_string())
    }

    fn attach(&self, id: ClientId) -> Client {
        Client::attach(&self.directory, id, &self.table(id))
    }

    fn grant(&self, client: ClientId, stride: u64) -> Result<Grant, DirectoryError> {
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        let grants = self.directory.grant(client, request, stride, 1, u64::MAX)?;
        Ok(grants[0])
    }

    fn store(&self, key: u64) -> Grant {
        let grant = self.grant(WRITER, PAGE).unwrap();
        self.commit(key, grant);
        grant
    }

    fn commit(&self, key: u64, grant: Grant) {
        let outcomes = self.directory.commit(WRITER, &[object(key, grant)]);
        assert_eq!(outcomes.unwrap()[..], [CommitOutcome::Stored]);
    }

    fn fill(&self) {
        (0..self.regions * PAGES).for_each(|key| {
            self.store(key);
        });
    }

    fn visible(&self) -> BTreeSet<u64> {
        let keys = 0..100;
        let is_there = |key: &u64| self.directory.locate(&[Key::integer(*key)])[0].is_some();
        keys.filter(is_there).collect()
    }

    fn stats_of(&self, id: ClientId) -> ClientStats {
        let clients = self.directory.stats().clients;
        let found = clients.into_iter().find(|client| client.id == id.0);
        found.unwrap()
    }

    fn counter(&self, name: &str) -> u64 {
        self.directory.stats().counters[name]
    }

    /// What the next server makes of it, with these clients alive.
    fn recover(
        &self,
        living: &[ClientId],
        verifier: Option<Arc<dyn Verifier>>,
    ) -> (Directory, Recovery) {
        let books = tempfile::tempdir().unwrap();
        let adopted = living.iter().map(|&id| AdoptedClient {
            id,
            book: LeaseBook::create(&books.path().join(id.to_string())).unwrap(),
            leases: Vec::new(),
            slots: Some(SlotTableView::adopt(&self.table(id)).unwrap()),
        });
        let last = LastRun {
            adopted: adopted.collect(),
            verifier,
            ..LastRun::default()
        };
        let journal = Arc::new(Recorder(Arc::clone(&self.log)));
        let image = self.log.image(self.regions);
        let (directory, recovery) = Directory::recover(image, journal, lru(), last).unwrap();
        directory.open_index();
        (directory, recovery)
    }
}

impl Client {
    fn attach(directory: &Directory, id: ClientId, table: &Path) -> Self {
        let leases = create_lease_table().unwrap();
        let who = Newcomer::default();
        directory.attach(id, who, leases.as_fd(), None).unwrap();
        directory.set_slots(id, SlotTableView::create(table).unwrap());
        let files = directory.index(id).unwrap().unwrap();
        Self {
            id,
            leases: LeaseSlots::open(leases.as_fd()).unwrap(),
            index: IndexReader::open(files.index.as_fd()).unwrap(),
            slots: SlotTable::open(files.slots.as_fd()).unwrap(),
        }
    }

    fn look(&self, key: u64) -> Looked<(IndexedObject, SlotLease)> {
        let mut answer = None;
        self.index
            .lease(&self.slots, &[Key::integer(key)], |_, looked| {
                answer = Some(looked);
            });
        answer.unwrap()
    }

    fn find(&self, key: u64) -> (Location, SlotLease) {
        match self.look(key) {
            Looked::Found((object, lease)) => (object.location, lease),
            other => panic!("{key}: {other:?}"),
        }
    }

    /// Asks again for the index.
    fn ask(&mut self, directory: &Directory) {
        let files = directory.index(self.id).unwrap().unwrap();
        self.index = IndexReader::open(files.index.as_fd()).unwrap();
    }

    /// As a handler does: only if this one is not the index any more.
    fn ask_if_retired(&mut self, directory: &Directory) {
        if !self.index.is_current() {
            self.ask(directory);
        }
    }

    /// Asks the directory for an object.
    fn retrieve(&self, directory: &Directory, key: u64) -> Option<Lease> {
        let lease = self.leases.propose().unwrap();
        let request = Retrieve {
            keys: vec![Key::integer(key)],
            leases: vec![lease.reference()],
            group: 1,
            prefix: false,
            expect: None,
            wait_ms: 0,
            expected_len: 0,
        };
        let answer = directory.retrieve(self.id, &request).unwrap();
        answer.hits[0].map(|_| lease)
    }
}

fn object(key: u64, grant: Grant) -> Commit {
    Commit {
        key: Key::integer(key),
        location: Location {
            page: grant.page,
            generation: grant.generation,
            len: 100 + key,
        },
        meta: ObjectMeta {
            layout: None,
            checksum: Some(key),
        },
    }
}

fn delete(directory: &Directory, key: u64) -> DeleteOutcome {
    directory.delete(&[Key::integer(key)]).unwrap()[0]
}

#[test]
fn a_page_that_a_slot_names_is_not_evicted() {
    let world = World::new(1);
    let reader = world.attach(READER);
    world.fill();
    // The oldest two, of which the policy would choose first.
    let held = [0, 1].map(|key| reader.find(key));
    let pages: Vec<_> = held.iter().map(|(location, _)| location.page).collect();
    for key in 10..13 {
        let grant = world.store(key);
        assert!(
            !pages.contains(&grant.page),
            "{key} got a page that is read"
        );
    }
    assert_eq!(world.visible(), BTreeSet::from([0, 1, 11, 12]));
    drop(held);
    world.store(20);
    world.store(21);
    assert_eq!(world.visible(), BTreeSet::from([11, 12, 20, 21]));
}

#[test]
fn a_full_pool_says_that_slots_hold_it() {
    let world = World::new(1);
    let reader = world.attach(READER);
    world.fill();
    let held: Vec<_> = (0..PAGES).map(|key| reader.find(key)).collect();
    let Err(DirectoryError::Full(breakdown)) = world.grant(WRITER, PAGE) else {
        panic!("there is a page although all are held");
    };
    assert_eq!((breakdown.leased, breakdown.pinned), (REGION, 0));
    // Removed ones are no less held.
    assert_eq!(delete(&world.directory, 0), DeleteOutcome::Deleted);
    let Err(DirectoryError::Full(breakdown)) = world.grant(WRITER, PAGE) else {
        panic!("there is a page although all are held");
    };
    assert_eq!(breakdown.leased, REGION);
    drop(held);
    world.store(10);
}

#[test]
fn a_deleted_object_keeps_its_page_until_the_last_slot_is_empty() {
    let world = World::new(1);
    let readers = [READER, ClientId(3)].map(|id| world.attach(id));
    world.fill();
    let [(location, first), (_, second)] = readers.each_ref().map(|reader| reader.find(2));
    assert_eq!(delete(&world.directory, 2), DeleteOutcome::Deleted);
    for reader in &readers {
        assert!(matches!(reader.look(2), Looked::Absent));
    }
    for lease in [first, second] {
        assert_eq!(world.directory.stats().retired, 1);
        let grant = world.grant(WRITER, PAGE).unwrap();
        assert_ne!(grant.page, location.page);
        drop(lease);
    }
    assert_eq!(world.directory.stats().retired, 0);
    assert_eq!(world.grant(WRITER, PAGE).unwrap().page, location.page);
}

#[test]
fn a_region_with_a_page_that_a_slot_names_is_not_given_to_another_page_size() {
    let world = World::new(1);
    let reader = world.attach(READER);
    world.fill();
    let (_, lease) = reader.find(3);
    let refused = world.grant(WRITER, REGION);
    assert!(
        matches!(refused, Err(DirectoryError::Full(_))),
        "{refused:?}"
    );
    assert_eq!(world.visible(), (0..PAGES).collect());
    drop(lease);
    world.grant(WRITER, REGION).unwrap();
    assert_eq!(world.visible(), BTreeSet::new());
    assert!(matches!(reader.look(3), Looked::Absent));
}

#[test]
fn what_storage_has_does_not_leave_memory_while_a_slot_names_it() {
    let world = World::new(1);
    let reader = world.attach(READER);
    world.fill();
    let (_, lease) = reader.find(1);
    let keys = [0, 1].map(Key::integer);
    assert_eq!(world.directory.let_go(&keys), Ok(1));
    assert_eq!(world.visible(), BTreeSet::from([1, 2, 3]));
    drop(lease);
    assert_eq!(world.directory.let_go(&keys), Ok(1));
    assert_eq!(world.directory.stats().retired, 0);
}

#[test]
fn leases_by_slots_are_seen_by_owner_and_age() {
    let world = World::new(1);
    let reader = world.attach(READER);
    world.fill();
    assert_eq!(world.stats_of(READER).oldest_lease_ms, None);
    let _held = [reader.find(0), reader.find(0), reader.find(1)];
    let _booked = reader.retrieve(&world.directory, 1).unwrap();
    let stats = world.stats_of(READER);
    assert_eq!(stats.leases, 4);
    let before = stats.oldest_lease_ms.unwrap();
    thread::sleep(std::time::Duration::from_millis(50));
    let after = world.stats_of(READER).oldest_lease_ms.unwrap();
    assert!(after >= before + 20, "{before} ms, then {after} ms");
    assert_eq!(world.stats_of(WRITER).leases, 0);
    let leases = world.directory.list(None, 10).objects;
    let leases: Vec<_> = leases.iter().map(|object| object.leases).collect();
    assert_eq!(leases, [2, 2, 0, 0]);
}

#[test]
fn what_a_dead_client_held_is_free_at_once_and_what_it_counted_is_not_lost() {
    let world = World::new(1);
    let reader = world.attach(READER);
    world.fill();
    let held = [reader.find(0), reader.find(1)];
    reader.slots.count(2, 5);
    assert_eq!(delete(&world.directory, 0), DeleteOutcome::Deleted);
    assert_eq!(world.directory.stats().retired, 1);
    reader.slots.count(1, 0);
    let expected = Reclaimed {
        leases: 2,
        ..Reclaimed::default()
    };
    assert_eq!(world.directory.detach(READER), Ok(expected));
    assert_eq!(world.directory.stats().retired, 0);
    for (name, expected) in [
        ("ondol_index_hits_total", 3),
        ("ondol_index_misses_total", 5),
        ("ondol_lookup_hits_total", 3),
        ("ondol_lookup_misses_total", 5),
        ("ondol_reclaimed_leases_total", 2),
    ] {
        assert_eq!(world.counter(name), expected, "{name}");
    }
    // Its slots say the same as ever, and nobody listens.
    world.store(10);
    world.store(11);
    assert_eq!(world.visible(), BTreeSet::from([2, 3, 10, 11]));
    drop(held);
}

#[test]
fn a_client_that_left_takes_no_lease_and_is_gone_when_its_slots_are_empty() {
    let world = World::new(1);
    let reader = world.attach(READER);
    world.fill();
    let (_, lease) = reader.find(0);
    world.directory.leave(READER).unwrap();
    assert!(matches!(reader.look(1), Looked::Ask));
    let asked = world.directory.index(READER).map(|files| files.is_some());
    assert_eq!(asked, Err(DirectoryError::UnknownClient));
    assert!(!world.directory.is_gone(READER));
    drop(lease);
    assert!(world.directory.is_gone(READER));
}

#[test]
fn an_object_that_was_found_without_asking_is_evicted_later() {
    let world = World::new(1);
    let reader = world.attach(READER);
    world.fill();
    for key in [1, 0] {
        let (location, _) = reader.find(key);
        reader.slots.note_hit(location.page);
    }
    world.store(10);
    world.store(11);
    assert_eq!(world.visible(), BTreeSet::from([0, 1, 10, 11]));
    world.store(12);
    assert_eq!(world.visible(), BTreeSet::from([0, 10, 11, 12]));
}

/// Hears of uses.
#[derive(Debug, Default)]
struct Ears(Mutex<Vec<Key>>);

impl CommitListener for Ears {
    fn committed(&self, _: &[(Key, u64)]) {}

    fn counts_uses(&self) -> bool {
        true
    }

    fn used(&self, keys: &[Key]) {
        self.0.lock().extend_from_slice(keys);
    }
}

#[test]
fn whoever_counts_uses_hears_of_those_that_nobody_was_asked_for() {
    let world = World::new(1);
    let ears = Arc::new(Ears::default());
    world
        .directory
        .set_commit_listener(Arc::<Ears>::clone(&ears));
    let reader = world.attach(READER);
    world.fill();
    let (location, _lease) = reader.find(2);
    reader.slots.note_hit(location.page);
    let nowhere = PageId {
        region: location.page.region,
        index: 1 << 20,
    };
    reader.slots.note_hit(nowhere);
    world.store(10);
    assert_eq!(*ears.0.lock(), [Key::integer(2)]);
}

#[test]
fn no_client_keeps_the_writer_busy_or_others_unheard_by_what_it_found() {
    let world = World::new(1);
    let ears = Arc::new(Ears::default());
    world
        .directory
        .set_commit_listener(Arc::<Ears>::clone(&ears));
    let [quiet, loud] = [2, 3].map(|id| world.attach(ClientId(id)));
    world.fill();
    let [first, second] = [(&quiet, 1), (&loud, 2)].map(|(client, key)| client.find(key).0);
    quiet.slots.note_hit(first.page);
    (0..HIT_PLACES).for_each(|_| loud.slots.note_hit(second.page));
    world.directory.stats();
    world.directory.make_durable().unwrap();
    let used = std::mem::take(&mut *ears.0.lock());
    let by_key = |key: u64| {
        used.iter()
            .filter(|used| **used == Key::integer(key))
            .count()
    };
    assert_eq!(by_key(1), 1);
    let most = HIT_PLACES as usize / 8;
    assert!((100..=most).contains(&by_key(2)), "{} were told", by_key(2));
    world.directory.stats();
    world.directory.make_durable().unwrap();
    assert!(ears.0.lock().is_empty(), "what is old is told later");
}

#[test]
fn a_page_that_came_back_by_the_ring_is_neither_held_nor_captive() {
    let world = World::new(1);
    let writer = &world.writer;
    let grants: Vec<_> = (0..PAGES)
        .map(|_| world.grant(WRITER, PAGE).unwrap())
        .collect();
    // Its share is used up.
    let request = 1_000;
    let refused = world.directory.grant(WRITER, request, PAGE, 1, REGION);
    let held = REGION;
    assert_eq!(refused, Err(DirectoryError::ShareExceeded { held }));
    assert!(writer.slots.give_back(grants[2]));
    let again = world.directory.grant(WRITER, request + 1, PAGE, 1, REGION);
    assert_eq!(again.unwrap()[0].page, grants[2].page);
    // What the ring says is checked: this grant is over, and that one is another client's.
    let other = world.attach(READER);
    assert!(writer.slots.give_back(grants[2]));
    assert!(other.slots.give_back(grants[1]));
    assert_eq!(world.stats_of(WRITER).granted_pages, PAGES);
    assert_eq!(world.counter("ondol_stale_returns_total"), 2);
    // Others may have what one gives back.
    assert!(writer.slots.give_back(grants[0]));
    assert_eq!(world.grant(READER, PAGE).unwrap().page, grants[0].page);
}

#[test]
fn a_client_that_gave_all_back_by_the_ring_is_gone_when_it_leaves() {
    let world = World::new(1);
    let writer = &world.writer;
    let grant = world.grant(WRITER, PAGE).unwrap();
    world.directory.leave(WRITER).unwrap();
    assert!(!world.directory.is_gone(WRITER));
    assert!(writer.slots.give_back(grant));
    assert!(world.directory.is_gone(WRITER));
}

/// What a server that comes now would find on this client's ring.
fn on_the_ring(table: &Path) -> Vec<Grant> {
    // A copy, as the table would be the next server's.
    let copy = table.with_extension("copy");
    std::fs::copy(table, &copy).unwrap();
    let mut grants = Vec::new();
    let mut view = SlotTableView::adopt(&copy).unwrap();
    view.drain_returns(|grant| grants.push(grant)).unwrap();
    grants
}

#[test]
fn what_came_back_stays_on_the_ring_until_that_is_durable() {
    let world = World::new(1);
    let writer = &world.writer;
    let grants = [(); 2].map(|()| world.grant(WRITER, PAGE).unwrap());
    world.log.fails.store(true, Ordering::SeqCst);
    assert!(writer.slots.give_back(grants[0]));
    // Recorded, but who knows for how long.
    assert_eq!(world.stats_of(WRITER).granted_pages, 1);
    assert!(world.directory.make_durable().is_err());
    assert_eq!(on_the_ring(&world.table(WRITER)), [grants[0]]);
    world.log.fails.store(false, Ordering::SeqCst);
    assert!(writer.slots.give_back(grants[1]));
    world.directory.make_durable().unwrap();
    // The second one has not even been read.
    assert_eq!(on_the_ring(&world.table(WRITER)), [grants[1]]);
    // A server that was killed in between reads it again, and finds that it is over.
    assert_eq!(world.stats_of(WRITER).granted_pages, 0);
    let (directory, _) = world.recover(&[WRITER], None);
    let stats = directory.stats();
    assert_eq!(stats.clients[0].granted_pages, 0);
    assert_eq!(stats.counters["ondol_stale_returns_total"], 1);
}

#[test]
fn while_a_table_cannot_be_read_nothing_is_freed_until_its_client_is_dead() {
    let world = World::new(1);
    world.attach(READER);
    world.fill();
    File::options()
        .write(true)
        .open(world.table(READER))
        .unwrap()
        .set_len(100)
        .unwrap();
    assert_eq!(delete(&world.directory, 0), DeleteOutcome::Deleted);
    let refused = world.grant(WRITER, PAGE);
    assert!(
        matches!(refused, Err(DirectoryError::Full(_))),
        "{refused:?}"
    );
    assert_eq!(world.directory.stats().retired, 1);
    world.directory.leave(READER).unwrap();
    assert!(!world.directory.is_gone(READER), "who knows what it reads");
    world.directory.detach(READER).unwrap();
    assert_eq!(world.directory.stats().retired, 0);
    world.store(10);
}

#[test]
fn a_reader_takes_nothing_for_absent_that_is_not_loaded_yet() {
    let world = World::new(1);
    let mut reader = world.attach(READER);
    world.fill();
    let (directory, _) = world.recover(&[READER], None);
    // The last server's index looks as ever, and is not this one's.
    assert!(matches!(reader.look(1), Looked::Ask));
    reader.ask(&directory);
    assert!(!directory.is_loaded());
    assert!(matches!(reader.look(1), Looked::Ask));
    assert!(matches!(reader.look(77), Looked::Ask));
    // One that is asked for is loaded before its turn.
    drop(reader.retrieve(&directory, 1).unwrap());
    reader.find(1);
    assert!(matches!(reader.look(2), Looked::Ask));
    while !directory.load_some() {}
    reader.find(2);
    assert!(matches!(reader.look(77), Looked::Absent));
    let index = directory.stats().index.unwrap();
    assert_eq!((index.objects, index.unindexed), (PAGES, 0));
}

#[test]
fn what_a_living_client_reads_by_slots_is_kept_over_a_restart() {
    let world = World::new(1);
    let mut reader = world.attach(READER);
    world.fill();
    let ((visible, first), (removed, second)) = (reader.find(0), reader.find(1));
    assert_eq!(delete(&world.directory, 1), DeleteOutcome::Deleted);
    assert_eq!(delete(&world.directory, 2), DeleteOutcome::Deleted);
    let (directory, recovery) = world.recover(&[WRITER, READER], None);
    assert_eq!((recovery.objects, recovery.leases), (2, 1));
    assert_eq!(directory.stats().retired, 1);
    let grant = |request| directory.grant(WRITER, request, PAGE, 1, u64::MAX);
    // One was free, and one can be evicted; two are held.
    let granted = [5_001, 5_002].map(|request| grant(request).unwrap()[0].page);
    assert!(!granted.contains(&visible.page) && !granted.contains(&removed.page));
    let full = grant(5_003);
    assert!(matches!(full, Err(DirectoryError::Full(_))), "{full:?}");
    drop(second);
    assert_eq!(grant(5_004).unwrap()[0].page, removed.page);
    reader.ask(&directory);
    reader.find(0);
    drop(first);
    assert_eq!(grant(5_005).unwrap()[0].page, visible.page);
}

#[test]
fn what_the_dead_read_by_slots_is_free_after_a_restart() {
    let world = World::new(1);
    let reader = world.attach(READER);
    world.fill();
    let held = reader.find(1);
    assert_eq!(delete(&world.directory, 1), DeleteOutcome::Deleted);
    let (directory, recovery) = world.recover(&[WRITER], None);
    assert_eq!((recovery.leases, directory.stats().retired), (0, 0));
    drop(held);
}

/// Says of every object what it is told to.
#[derive(Debug)]
struct Says(bool);

impl Verifier for Says {
    fn fits(&self, _: Extent, _: u64, _: &Location, _: u64) -> Result<bool, String> {
        Ok(self.0)
    }
}

#[test]
fn an_object_of_the_last_run_is_asked_for_until_its_bytes_were_checked() {
    for fits in [true, false] {
        let world = World::new(1);
        let mut reader = world.attach(READER);
        world.fill();
        let (directory, _) = world.recover(&[READER], Some(Arc::new(Says(fits))));
        while !directory.load_some() {}
        reader.ask(&directory);
        assert!(matches!(reader.look(1), Looked::Ask));
        let asked = reader.retrieve(&directory, 1);
        assert_eq!(asked.is_some(), fits);
        drop(asked);
        match reader.look(1) {
            Looked::Found(_) => assert!(fits),
            Looked::Absent => assert!(!fits),
            Looked::Ask => panic!("it was checked"),
        }
        assert!(matches!(reader.look(2), Looked::Ask));
    }
}

#[test]
fn after_the_end_of_the_index_clients_ask_and_keep_what_they_hold() {
    let world = World::new(1);
    let reader = world.attach(READER);
    world.fill();
    let (location, _lease) = reader.find(0);
    world.directory.close_index();
    assert!(matches!(reader.look(1), Looked::Ask));
    assert!(world.directory.index(READER).unwrap().is_none());
    assert_eq!(delete(&world.directory, 0), DeleteOutcome::Deleted);
    assert_ne!(world.store(10).page, location.page);
    assert_eq!(world.directory.stats().retired, 1);
}

/// Pages of the size that many small objects have.
const SMALL: u64 = 512;

/// Stores objects by the batch.
fn store_many(world: &World, keys: std::ops::Range<u64>) {
    let request = world.requests.fetch_add(1, Ordering::Relaxed);
    let count = (keys.end - keys.start) as u32;
    let directory = &world.directory;
    let grants = directory
        .grant(WRITER, request, SMALL, count, u64::MAX)
        .unwrap();
    assert_eq!(grants.len(), count as usize);
    let commits: Vec<_> = keys
        .zip(grants)
        .map(|(key, grant)| {
            let mut commit = object(key, grant);
            commit.location.len = 1 + key % SMALL;
            commit
        })
        .collect();
    let outcomes = directory.commit(WRITER, &commits).unwrap();
    let is_stored = |outcome: &CommitOutcome| *outcome == CommitOutcome::Stored;
    assert!(outcomes.iter().all(is_stored));
}

#[test]
fn one_look_at_all_slots_is_for_several_objects_that_go_and_none_that_is_held() {
    let world = World::new(1);
    let reader = world.attach(READER);
    let pages = REGION / SMALL;
    for first in (0..pages).step_by(64) {
        store_many(&world, first..first + 64);
    }
    let _held = [reader.find(0), reader.find(5)];
    store_many(&world, 10_000..10_001);
    let evicted = world.counter("ondol_evictions_total");
    assert!((2..=pages / 64).contains(&evicted), "{evicted} of {pages}");
    let left = (0..pages).filter(|key| world.directory.locate(&[Key::integer(*key)])[0].is_some());
    let left: BTreeSet<_> = left.collect();
    let oldest = (0..pages).filter(|key| ![0, 5].contains(key));
    let gone: BTreeSet<_> = oldest.take(evicted as usize).collect();
    assert_eq!(left, (0..pages).filter(|key| !gone.contains(key)).collect());
    // The next ones find pages that are free.
    store_many(&world, 10_001..10_000 + evicted);
    assert_eq!(world.counter("ondol_evictions_total"), evicted);
}

#[test]
fn nobody_misses_an_object_while_the_index_is_replaced_by_larger_ones() {
    const OBJECTS: u64 = 20_000;
    const FIRST: u64 = 64;
    let world = World::new(8);
    store_many(&world, 0..FIRST);
    let stored = AtomicU64::new(FIRST);
    let reader = |number: u64| {
        let mut client = world.attach(ClientId(number));
        // Held from the first index to the last.
        let held: Vec<_> = (0..8).map(|key| client.find(key)).collect();
        let (mut random, mut found, mut asked) = (number, 0, 0);
        while stored.load(Ordering::Acquire) < OBJECTS {
            let there = stored.load(Ordering::Acquire);
            random = next_random(random);
            let key = (random >> 33) % there;
            match client.look(key) {
                Looked::Found((object, _lease)) => {
                    assert_eq!(object.location.len, 1 + key % SMALL);
                    found += 1;
                }
                Looked::Absent => panic!("{key} was missed"),
                Looked::Ask => {
                    asked += 1;
                    let lease = client.retrieve(&world.directory, key);
                    assert!(lease.is_some());
                    client.ask(&world.directory);
                }
            }
            let there = Key::integer(key);
            client.index.look(&[there], |_, looked| {
                assert!(!matches!(looked, Looked::Absent), "{key} was missed");
            });
            let (Looked::Absent | Looked::Ask) = client.look(u64::MAX - key) else {
                panic!("there is no such object");
            };
        }
        (found, asked, held)
    };
    let readers = thread::scope(|scope| {
        let readers: Vec<_> = (2..4)
            .map(|number| scope.spawn(move || reader(number)))
            .collect();
        let mut next = FIRST;
        while next < OBJECTS {
            store_many(&world, next..next + FIRST);
            next += FIRST;
            stored.store(next, Ordering::Release);
        }
        let readers = readers.into_iter().map(|reader| reader.join().unwrap());
        readers.collect::<Vec<_>>()
    });
    for (found, asked, _) in &readers {
        assert!(*found > 0, "{found} were found, {asked} asked for");
    }
    let index = world.directory.stats().index.unwrap();
    assert!(index.generation >= 3, "{index:?}");
    // What was held all the time is held now.
    let keys: Vec<_> = (0..8).map(Key::integer).collect();
    world.directory.delete(&keys).unwrap();
    assert_eq!(world.directory.stats().retired, 8);
    drop(readers);
    assert_eq!(world.directory.stats().retired, 0);
}

#[test]
fn an_index_is_complete_after_a_while_although_nobody_stores_any_more() {
    const AT_ONCE: u64 = 64;
    let world = World::new(8);
    let mut reader = world.attach(READER);
    let unindexed = || world.directory.stats().index.unwrap().unindexed;
    let mut stored = 0;
    while unindexed() == 0 {
        store_many(&world, stored..stored + AT_ONCE);
        stored += AT_ONCE;
    }
    let mut asked = 0;
    while !matches!(reader.look(u64::MAX), Looked::Absent) {
        assert!(asked < 100, "{} of {stored} are missing", unindexed());
        asked += 1;
        assert!(reader.retrieve(&world.directory, u64::MAX).is_none());
        reader.ask_if_retired(&world.directory);
    }
    assert!((0..stored).all(|key| matches!(reader.look(key), Looked::Found(_))));
}

#[test]
fn an_index_that_was_replaced_holds_what_the_last_one_held() {
    const OBJECTS: u64 = 12_000;
    let world = World::new(8);
    let late = world.attach(READER);
    let is_gone = |key: u64| key % 50 == 7 || (key % 50 == 13 && key < OBJECTS - 2_000);
    for first in (0..OBJECTS).step_by(50) {
        store_many(&world, first..first + 50);
        // Some go while the next index is filled: new ones, and those that were moved or are to be moved.
        let gone = [first + 7, first.saturating_sub(2_000) + 13].map(Key::integer);
        world.directory.delete(&gone).unwrap();
        late.index.lease(&late.slots, &gone, |at, looked| {
            assert!(!matches!(looked, Looked::Found(_)), "{} is gone", gone[at]);
        });
        let stats = world.directory.stats();
        let index = stats.index.unwrap();
        assert_eq!(index.objects + index.unindexed, stats.objects, "{index:?}");
    }
    // What is left to be moved is moved with the next commits.
    for first in (OBJECTS..OBJECTS + 1_000).step_by(50) {
        store_many(&world, first..first + 50);
    }
    let index = world.directory.stats().index.unwrap();
    assert!(index.generation > 1, "{index:?}");
    assert_eq!(index.unindexed, 0);
    let reader = world.attach(ClientId(3));
    let all: Vec<_> = (0..OBJECTS + 1_000).map(Key::integer).collect();
    reader.index.look(&all, |key, looked| {
        let key = key as u64;
        match looked {
            Looked::Found(object) => {
                assert_eq!(object.location.len, 1 + key % SMALL);
                assert!(!is_gone(key) || key >= OBJECTS, "{key} was deleted");
            }
            Looked::Absent => assert!(is_gone(key), "{key} was lost"),
            Looked::Ask => panic!("{key} is asked for"),
        }
    });
    // Who has not noticed yet does so now.
    assert!(!late.index.is_current());
    assert_eq!(late.slots.incarnation(), reader.index.incarnation());
    late.index.look(&all, |key, looked| {
        assert!(matches!(looked, Looked::Ask), "{key}");
    });
}

/// What the pages of a pool hold, in place of memory.
struct Bytes(Vec<AtomicU64>);

impl Bytes {
    fn of(&self, page: PageId) -> &AtomicU64 {
        &self.0[page.index as usize]
    }
}

#[test]
fn no_reader_sees_another_object_while_all_is_evicted_around_it() {
    const STORES: u64 = 1_000;
    const FINDS: u64 = 1_000;
    const KEYS: u64 = 48;
    let world = World::new(1);
    let small = REGION / 32;
    let bytes = Bytes((0..32).map(|_| AtomicU64::new(u64::MAX)).collect());
    let is_over = AtomicBool::new(false);
    let found = [const { AtomicU64::new(0) }; 2];
    let reader = |number: u64, found: &AtomicU64| {
        let client = world.attach(ClientId(number));
        let mut random = number;
        while !is_over.load(Ordering::Relaxed) {
            random = next_random(random);
            let first = (random >> 33) % KEYS;
            let keys: Vec<_> = (first..first + 4).map(Key::integer).collect();
            let mut held = Vec::new();
            client.index.lease(&client.slots, &keys, |at, looked| {
                if let Looked::Found((object, lease)) = looked {
                    held.push((first + at as u64, object.location.page, lease));
                }
            });
            found.fetch_add(held.len() as u64, Ordering::Relaxed);
            for (key, page, lease) in held {
                for _ in 0..3 {
                    let seen = bytes.of(page).load(Ordering::Relaxed);
                    assert_eq!(seen, key, "in {page}, which is held");
                    std::hint::spin_loop();
                }
                client.slots.note_hit(page);
                drop(lease);
            }
        }
    };
    // However it ends, so do the readers.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    thread::scope(|scope| {
        let _over = Over(&is_over);
        let readers: Vec<_> = (2..)
            .zip(&found)
            .map(|(number, found)| scope.spawn(move || reader(number, found)))
            .collect();
        let mut random = 99_u64;
        let mut stores = 0;
        let is_enough = |found: &AtomicU64| found.load(Ordering::Relaxed) >= FINDS;
        while stores < STORES || !found.iter().all(is_enough) {
            assert!(!readers.iter().any(thread::ScopedJoinHandle::is_finished));
            random = next_random(random);
            let key = (random >> 33) % (KEYS + 4);
            stores += 1;
            if (random >> 20).is_multiple_of(16) {
                world.directory.delete(&[Key::integer(key)]).unwrap();
                continue;
            }
            // All may be held for a moment.
            let Ok(grant) = world.grant(WRITER, small) else {
                continue;
            };
            bytes.of(grant.page).store(key, Ordering::Relaxed);
            let mut commit = object(key, grant);
            commit.location.len = small;
            let outcomes = world.directory.commit(WRITER, &[commit]).unwrap();
            if outcomes[0] == CommitOutcome::AlreadyPresent {
                let returned = world.directory.return_pages(WRITER, &[grant]).unwrap();
                assert_eq!(returned, [Ok(())]);
            }
        }
    });
    assert!(world.counter("ondol_evictions_total") > 0);
    let stats = world.directory.stats();
    assert_eq!(stats.retired, 0);
    let class = &stats.classes[0];
    assert_eq!(class.free + class.committed, class.pages, "{class:?}");
}

fn next_random(random: u64) -> u64 {
    random
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1)
}
