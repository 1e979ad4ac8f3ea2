//! A directory, and a model of it that is too simple to be wrong.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ondol_directory::{
    AdoptedClient, AttachError, Directory, DirectoryError, LastRun, Newcomer, Reclaimed,
};
use ondol_memory::{Arena, Change, Image, Journal, JournalError, PageState, Pool, Position};
use ondol_plugin::Key;
use ondol_protocol::{
    Commit, CommitOutcome, DeleteOutcome, EngineStats, Grant, Pin, PinOutcome, RefusedCommit,
    Retrieve,
};
use ondol_shm::{
    BookedLease, ClientId, IndexReader, LayoutFingerprint, Lease, LeaseBook, LeaseSlots, Location,
    Looked, ObjectMeta, PageId, SlotLease, SlotTable, SlotTableView, create_lease_table,
};
use parking_lot::Mutex;

pub(crate) const REGION_BYTES: u64 = 2 << 20;

/// What a random run does next; numbers pick from what there is, modulo how much of it there is.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Grant {
        client: usize,
        stride: usize,
        count: u32,
        limited: bool,
    },
    Repeat {
        client: usize,
    },
    Return {
        client: usize,
        pages: Vec<usize>,
    },
    Commit {
        client: usize,
        objects: Vec<(usize, usize, usize, usize)>,
    },
    Retrieve {
        client: usize,
        keys: Vec<usize>,
        group: u32,
        prefix: bool,
        expect: usize,
    },
    /// One lease for many keys: a client that breaks the protocol.
    Abuse {
        client: usize,
        keys: Vec<usize>,
        group: u32,
    },
    DropLease {
        client: usize,
        lease: usize,
    },
    /// The client looks into the index by itself.
    Find {
        client: usize,
        keys: Vec<usize>,
    },
    DropFind {
        client: usize,
        find: usize,
    },
    /// A page comes back by the client's ring.
    Ring {
        client: usize,
        page: usize,
    },
    Pin {
        client: usize,
        keys: Vec<usize>,
    },
    Unpin {
        client: usize,
        keys: Vec<usize>,
    },
    Delete {
        keys: Vec<usize>,
    },
    Leave {
        client: usize,
    },
    Die {
        client: usize,
    },
    /// The server is killed and another one goes on with the log. Those of the clients live on whose bit is set.
    Restart {
        living: usize,
    },
}

/// What the journal recorded; refuses some records, and fails some flushes, if told to.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) changes: Mutex<Vec<Change>>,
    /// So many of them are durable.
    flushed: AtomicU64,
    /// Of 16 records, and of 16 flushes, so many are refused.
    odds: AtomicU64,
    random: AtomicU64,
}

#[derive(Debug)]
struct Recorder(Arc<Log>);

impl Log {
    pub(crate) fn refuse(&self, odds: u64, seed: u64) {
        self.random.store(seed | 1, Ordering::Relaxed);
        self.odds.store(odds, Ordering::Relaxed);
    }

    fn draw(&self) -> u64 {
        let mut x = self.random.load(Ordering::Relaxed);
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.store(x, Ordering::Relaxed);
        x >> 33
    }

    fn refuses(&self) -> Result<(), JournalError> {
        let odds = self.odds.load(Ordering::Relaxed);
        if odds > 0 && self.draw() % 16 < odds {
            return Err(JournalError("the disk is full".to_owned()));
        }
        Ok(())
    }
}

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
            self.0.flushed.fetch_max(position.0, Ordering::Relaxed);
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Held {
    lease: Lease,
    location: Location,
}

#[derive(Debug)]
struct Client {
    id: ClientId,
    table: OwnedFd,
    slots: Arc<LeaseSlots>,
    shared: Option<Shared>,
    grants: Vec<(Grant, u64)>,
    leases: Vec<Held>,
    finds: Vec<Found>,
    pins: BTreeMap<Key, BTreeSet<u64>>,
    left: bool,
    last_request: Option<Request>,
}

/// What a client reads and writes for itself.
#[derive(Debug)]
struct Shared {
    index: IndexReader,
    slots: Arc<SlotTable>,
}

#[derive(Debug)]
struct Found {
    lease: SlotLease,
    location: Location,
}

/// A grant request and its answer.
#[derive(Clone, Debug)]
struct Request {
    number: u64,
    stride: u64,
    count: u32,
    limit: u64,
    answer: Result<Vec<Grant>, DirectoryError>,
    /// Whether it was given by an earlier server: then it is known by the pages that are still granted only.
    is_old: bool,
}

#[derive(Clone, Copy, Debug)]
struct Object {
    location: Location,
    meta: ObjectMeta,
    owner: ClientId,
    stride: u64,
    last_use: u64,
}

pub(crate) struct World {
    pub(crate) directory: Directory,
    pub(crate) log: Arc<Log>,
    strides: Vec<u64>,
    regions: u64,
    /// The clients' slot tables.
    tables: tempfile::TempDir,
    clients: Vec<Client>,
    objects: BTreeMap<Key, Object>,
    /// Objects that were recorded and are not durable, with the end of their record.
    pending: BTreeMap<Key, (u64, Object)>,
    /// Grants that were returned or committed: nobody's any more.
    spent: Vec<(Grant, u64)>,
    generations: HashMap<PageId, u64>,
    next_client: u64,
    next_request: u64,
    next_pin: u64,
    clock: u64,
    /// Whether the journal refuses at random: then only what must hold even so is compared.
    faulty: bool,
    steps: u64,
    /// Whoever asks for figures settles what readers did, so they are not asked for after each step.
    check_every: u64,
}

pub(crate) fn pool(regions: u64) -> Pool {
    let arena = Arena {
        usable: 0..regions * REGION_BYTES,
        alignment: 4096,
        whole: false,
    };
    Pool::new([arena], Some(REGION_BYTES))
}

pub(crate) fn key(index: usize) -> Key {
    Key::integer(index as u64 % 24)
}

fn layout(index: usize) -> Option<LayoutFingerprint> {
    (!index.is_multiple_of(3)).then_some(LayoutFingerprint([(index % 3) as u8; 16]))
}

impl World {
    pub(crate) fn new(regions: u64, strides: &[u64], clients: usize) -> Self {
        let log = Arc::new(Log::default());
        let policy = ondol_catalog::policy("lru").unwrap();
        let mut world = Self {
            directory: Directory::new(pool(regions), Arc::new(Recorder(Arc::clone(&log))), policy),
            log,
            strides: strides.to_vec(),
            regions,
            tables: tempfile::tempdir().unwrap(),
            clients: Vec::new(),
            objects: BTreeMap::new(),
            pending: BTreeMap::new(),
            spent: Vec::new(),
            generations: HashMap::new(),
            next_client: 1,
            next_request: 1,
            next_pin: 1,
            clock: 1,
            faulty: false,
            steps: 0,
            check_every: 1,
        };
        world.directory.open_index();
        for _ in 0..clients {
            let client = world.attach();
            world.clients.push(client);
        }
        world
    }

    pub(crate) fn checked_every(mut self, steps: u64) -> Self {
        self.check_every = steps;
        self
    }

    pub(crate) fn with_faults(mut self, odds: u64, seed: u64) -> Self {
        self.log.refuse(odds, seed);
        self.faulty = true;
        self
    }

    fn attach(&mut self) -> Client {
        let table = create_lease_table().unwrap();
        let id = loop {
            let id = ClientId(self.next_client);
            self.next_client += 1;
            let who = Newcomer {
                instance: [id.0 as u8; 16],
                ..Newcomer::default()
            };
            match self.directory.attach(id, who, table.as_fd(), None) {
                Ok(()) => break id,
                Err(AttachError::Journal(_)) => {
                    assert!(self.faulty);
                    while matches!(self.directory.detach(id), Err(DirectoryError::Journal(_))) {}
                }
                Err(other) => panic!("{other:?}"),
            }
        };
        let slots = SlotTableView::create(&self.table(id)).unwrap();
        self.directory.set_slots(id, slots);
        Client {
            id,
            slots: LeaseSlots::open(table.as_fd()).unwrap(),
            table,
            shared: None,
            grants: Vec::new(),
            leases: Vec::new(),
            finds: Vec::new(),
            pins: BTreeMap::new(),
            left: false,
            last_request: None,
        }
    }

    fn table(&self, client: ClientId) -> std::path::PathBuf {
        self.tables.path().join(client.to_string())
    }

    fn tick(&mut self, count: usize) -> u64 {
        let first = self.clock;
        self.clock += count as u64;
        first
    }

    fn leases_on(&self, page: PageId) -> usize {
        self.read().filter(|location| location.page == page).count()
    }

    /// What is read, by any lease.
    fn read(&self) -> impl Iterator<Item = Location> {
        self.clients.iter().flat_map(|client| {
            let leases = client.leases.iter().map(|held| held.location);
            leases.chain(client.finds.iter().map(|found| found.location))
        })
    }

    fn pins_on(&self, key: &Key) -> u32 {
        let pins = self
            .clients
            .iter()
            .filter_map(|client| client.pins.get(key));
        pins.map(|pins| pins.len() as u32).sum()
    }

    fn is_held(&self, key: &Key, object: &Object) -> bool {
        self.leases_on(object.location.page) > 0 || self.pins_on(key) > 0
    }

    fn granted(&self) -> impl Iterator<Item = (ClientId, Grant, u64)> {
        self.clients.iter().flat_map(|client| {
            client
                .grants
                .iter()
                .map(|(grant, stride)| (client.id, *grant, *stride))
        })
    }

    /// Pages of removed objects that somebody still reads.
    fn retired(&self) -> BTreeSet<PageId> {
        let visible: BTreeSet<_> = self
            .objects
            .values()
            .map(|object| (object.location.page, object.location.generation))
            .collect();
        self.read()
            .filter(|location| !visible.contains(&(location.page, location.generation)))
            .map(|location| location.page)
            .collect()
    }

    pub(crate) fn step(&mut self, step: &Step) {
        self.steps += 1;
        match step {
            Step::Grant {
                client,
                stride,
                count,
                limited,
            } => {
                let stride = self.strides[stride % self.strides.len()];
                let limit = if *limited { 1 << 20 } else { u64::MAX };
                self.grant(client % self.clients.len(), stride, *count, limit);
            }
            Step::Repeat { client } => self.repeat(client % self.clients.len()),
            Step::Return { client, pages } => self.give_back(client % self.clients.len(), pages),
            Step::Commit { client, objects } => self.commit(client % self.clients.len(), objects),
            Step::Retrieve {
                client,
                keys,
                group,
                prefix,
                expect,
            } => self.retrieve(client % self.clients.len(), keys, *group, *prefix, *expect),
            Step::Abuse {
                client,
                keys,
                group,
            } => self.abuse(client % self.clients.len(), keys, *group),
            Step::DropLease { client, lease } => {
                let client = client % self.clients.len();
                let leases = &mut self.clients[client].leases;
                if !leases.is_empty() {
                    let index = lease % leases.len();
                    drop(leases.swap_remove(index).lease);
                }
            }
            Step::Find { client, keys } => self.find(client % self.clients.len(), keys),
            Step::DropFind { client, find } => {
                let client = client % self.clients.len();
                let finds = &mut self.clients[client].finds;
                if !finds.is_empty() {
                    let index = find % finds.len();
                    drop(finds.swap_remove(index).lease);
                }
            }
            Step::Ring { client, page } => self.ring(client % self.clients.len(), *page),
            Step::Pin { client, keys } => self.pin(client % self.clients.len(), keys),
            Step::Unpin { client, keys } => self.unpin(client % self.clients.len(), keys),
            Step::Delete { keys } => self.delete(keys),
            Step::Leave { client } => self.leave(client % self.clients.len()),
            Step::Die { client } => self.die(client % self.clients.len()),
            Step::Restart { living } => self.restart(*living),
        }
        self.publish();
        if self.faulty {
            self.check_what_a_refusal_may_not_touch();
        } else if self.steps.is_multiple_of(self.check_every) {
            self.check();
        }
    }

    /// What is durable by now must be visible, and nothing else.
    fn publish(&mut self) {
        let flushed = self.log.flushed.load(Ordering::Relaxed);
        let pending = std::mem::take(&mut self.pending);
        let (durable, pending) = pending
            .into_iter()
            .partition(|(_, (end, _))| *end <= flushed);
        self.pending = pending;
        let durable: BTreeMap<_, (u64, Object)> = durable;
        let durable = durable.into_iter();
        self.objects
            .extend(durable.map(|(key, (_, object))| (key, object)));
    }

    /// Objects that are visible now.
    fn visible(&self) -> BTreeMap<Key, Location> {
        let listing = self.directory.list(None, u32::MAX);
        assert!(!listing.more);
        let objects = listing.objects.into_iter();
        objects
            .map(|object| (object.key, object.location))
            .collect()
    }

    fn grant(&mut self, client: usize, stride: u64, count: u32, limit: u64) {
        let request = self.next_request;
        self.next_request += 1;
        let id = self.clients[client].id;
        let held: u64 = self.clients[client].grants.iter().map(|(_, s)| s).sum();
        let (cheap, last_generation) = self.directory.with_pool(|pool| {
            let idle_other = pool
                .regions()
                .any(|(_, region)| region.stride() != stride && region.is_idle());
            let cheap =
                pool.find_free(stride).is_some() || pool.plan_carve(stride).is_some() || idle_other;
            (cheap, self.generations.clone())
        });
        let result = self.directory.grant(id, request, stride, count, limit);

        self.publish();
        let before = self.objects.clone();
        let after = self.visible();
        let gone: Vec<Key> = before
            .keys()
            .filter(|key| !after.contains_key(key))
            .cloned()
            .collect();
        assert!(
            gone.is_empty() || !cheap,
            "{gone:?} had to go although there was room for {stride} bytes without"
        );
        for key in &gone {
            assert!(
                !self.is_held(key, &before[key]),
                "{key} was evicted while it was held"
            );
        }
        if let [only] = self.strides[..]
            && !self.faulty
        {
            assert_eq!(only, stride);
            let mut unheld: Vec<_> = before
                .iter()
                .filter(|(key, object)| !self.is_held(key, object))
                .collect();
            unheld.sort_by_key(|(_, object)| object.last_use);
            let expected: BTreeSet<_> = unheld[..gone.len()].iter().map(|(key, _)| *key).collect();
            assert_eq!(
                gone.iter().collect::<BTreeSet<_>>(),
                expected,
                "not the least recently used objects were evicted"
            );
        }
        self.objects.retain(|key, _| !gone.contains(key));

        let answer = result.clone();
        if !matches!(
            answer,
            Err(DirectoryError::Journal(_) | DirectoryError::UnknownClient)
        ) {
            self.clients[client].last_request = Some(Request {
                number: request,
                stride,
                count,
                limit,
                answer,
                is_old: false,
            });
        }
        match result {
            Ok(grants) => {
                assert!(!self.clients[client].left);
                assert!((1..=count as usize).contains(&grants.len()), "{grants:?}");
                let bytes = held + grants.len() as u64 * stride;
                assert!(
                    bytes <= limit || (held == 0 && grants.len() == 1),
                    "{bytes} bytes granted, {limit} allowed"
                );
                let retired = self.retired();
                for grant in &grants {
                    let page = grant.page;
                    assert!(self.leases_on(page) == 0, "{page} is leased");
                    assert!(!retired.contains(&page), "{page} is still read");
                    assert!(
                        self.objects
                            .values()
                            .all(|object| object.location.page != page),
                        "{page} holds an object"
                    );
                    assert!(
                        self.granted().all(|(_, other, _)| other.page != page),
                        "{page} was granted twice"
                    );
                    let last = last_generation.get(&page).copied().unwrap_or(0);
                    assert!(
                        grant.generation.0 > last,
                        "the generation of {page} did not grow"
                    );
                    self.generations.insert(page, grant.generation.0);
                    let granted = self.directory.with_pool(|pool| pool.state(page));
                    assert_eq!(granted, Some(PageState::Granted(id)));
                    self.clients[client].grants.push((*grant, stride));
                }
            }
            Err(DirectoryError::ShareExceeded { held: told }) => {
                // What came back by the ring is held until the journal takes that.
                assert!(
                    told == held || (self.faulty && told > held),
                    "{told}, {held}"
                );
                assert!(told > 0 && told + stride > limit);
            }
            Err(DirectoryError::Full(breakdown)) => {
                assert!(!cheap, "refused although there was room");
                assert_eq!(breakdown.asked, stride);
                self.check_full(stride, &breakdown);
            }
            Err(DirectoryError::UnknownClient) => assert!(self.clients[client].left),
            Err(DirectoryError::Journal(_)) => {
                assert!(self.faulty);
                // Asked again until it is settled, it gives what was granted the first time.
                let granted = self
                    .directory
                    .with_pool(|pool| pool.granted_under(id, request));
                if granted.is_empty() {
                    return;
                }
                let again = loop {
                    match self.directory.grant(id, request, stride, count, limit) {
                        Err(DirectoryError::Journal(_)) => {}
                        other => break other,
                    }
                };
                assert_eq!(again.as_ref(), Ok(&granted));
                for grant in granted {
                    self.generations.insert(grant.page, grant.generation.0);
                    self.clients[client].grants.push((grant, stride));
                }
            }
            Err(other) => panic!("{other:?}"),
        }
    }

    /// The pool may say that it is full only if nothing can be freed for this page size.
    fn check_full(&self, stride: u64, breakdown: &ondol_protocol::Breakdown) {
        for (key, object) in &self.objects {
            assert!(
                object.stride != stride || self.is_held(key, object),
                "{key} could have been evicted"
            );
        }
        let retired = self.retired();
        self.directory.with_pool(|pool| {
            assert!(pool.plan_carve(stride).is_none() && pool.find_free(stride).is_none());
            let mut of_size = 0;
            let mut others = 0;
            for (id, region) in pool.regions() {
                if region.stride() == stride {
                    of_size += u64::from(region.page_count()) * stride;
                    continue;
                }
                others += region.extent().len;
                let is_kept = self.granted().any(|(_, grant, _)| grant.page.region == id)
                    || retired.iter().any(|page| page.region == id)
                    || self.objects.iter().any(|(key, object)| {
                        object.location.page.region == id && self.is_held(key, object)
                    });
                assert!(is_kept, "region {id} could have been drained");
            }
            assert_eq!(breakdown.other_classes, others);
            assert_eq!(breakdown.free, pool.extents().free_bytes());
            assert_eq!(
                breakdown.leased + breakdown.pinned + breakdown.granted + breakdown.captive,
                of_size,
                "{breakdown:?} does not add up"
            );
        });
        let granted = self
            .granted()
            .filter(|(_, _, size)| *size == stride)
            .count() as u64;
        assert_eq!(breakdown.granted, granted * stride);
        let pinned_only = self.objects.iter().filter(|(key, object)| {
            object.stride == stride
                && self.leases_on(object.location.page) == 0
                && self.pins_on(key) > 0
        });
        assert_eq!(breakdown.pinned, pinned_only.count() as u64 * stride);
    }

    fn repeat(&mut self, client: usize) {
        let Some(Request {
            number,
            stride,
            count,
            limit,
            answer,
            is_old,
        }) = self.clients[client].last_request.clone()
        else {
            return;
        };
        if self.clients[client].left {
            return;
        }
        let own = &self.clients[client].grants;
        let is_own = |grant: &&Grant| own.iter().any(|(own, _)| own == *grant);
        let left: Vec<_> = answer.iter().flatten().filter(is_own).copied().collect();
        if is_old && left.is_empty() {
            return;
        }
        let expected = if left.is_empty() { answer } else { Ok(left) };
        let id = self.clients[client].id;
        match self.directory.grant(id, number, stride, count, limit) {
            Err(DirectoryError::Journal(_)) if self.faulty => {}
            again => assert_eq!(again, expected, "a repeated request got another answer"),
        }
    }

    /// A grant of this client's, of another one's, or one that is nobody's any more.
    fn pick_grant(&self, client: usize, index: usize) -> Option<(Grant, u64)> {
        let own = &self.clients[client].grants;
        match index % 8 {
            0 if !self.spent.is_empty() => Some(self.spent[index / 8 % self.spent.len()]),
            1 => {
                let foreign: Vec<_> = self.granted().collect();
                let (_, grant, stride) = foreign.get(index / 8 % foreign.len().max(1))?;
                Some((*grant, *stride))
            }
            _ if own.is_empty() => None,
            _ => Some(own[index / 8 % own.len()]),
        }
    }

    fn give_back(&mut self, client: usize, pages: &[usize]) {
        let picks: Vec<_> = pages
            .iter()
            .filter_map(|index| self.pick_grant(client, *index))
            .collect();
        let grants: Vec<_> = picks.iter().map(|(grant, _)| *grant).collect();
        let id = self.clients[client].id;
        match self.directory.return_pages(id, &grants) {
            Ok(answers) => {
                assert_eq!(answers.len(), grants.len());
                for ((grant, stride), answer) in picks.into_iter().zip(answers) {
                    let own = &mut self.clients[client].grants;
                    let place = own.iter().position(|(own, _)| *own == grant);
                    assert_eq!(answer.is_ok(), place.is_some(), "{grant:?}: {answer:?}");
                    if let Some(place) = place {
                        own.swap_remove(place);
                        self.spent.push((grant, stride));
                    }
                }
            }
            Err(DirectoryError::Journal(_)) if self.faulty => {
                // Those before the refused one are back.
                self.forget_lost_grants(client);
            }
            Err(other) => panic!("{other:?}"),
        }
    }

    /// After a refusal in the middle of a batch: what the pool says of the client's pages.
    fn forget_lost_grants(&mut self, client: usize) {
        let id = self.clients[client].id;
        let directory = &self.directory;
        let own = &mut self.clients[client].grants;
        own.retain(|(grant, _)| directory.with_pool(|pool| pool.check_grant(id, *grant).is_ok()));
    }

    fn commit(&mut self, client: usize, objects: &[(usize, usize, usize, usize)]) {
        let id = self.clients[client].id;
        let picks: Vec<_> = objects
            .iter()
            .filter_map(|(grant, name, len, layout_index)| {
                let (grant, stride) = self.pick_grant(client, *grant)?;
                let len = [0, 1, stride - 1, stride, stride, stride + 1][len % 6];
                let location = Location {
                    page: grant.page,
                    generation: grant.generation,
                    len,
                };
                let meta = ObjectMeta {
                    layout: layout(*layout_index),
                    checksum: Some(len),
                };
                let commit = Commit {
                    key: key(*name),
                    location,
                    meta,
                };
                Some((commit, grant, stride))
            })
            .collect();
        if picks.is_empty() {
            return;
        }
        let commits: Vec<_> = picks.iter().map(|(commit, ..)| commit.clone()).collect();
        let recorded = self.log.changes.lock().len();
        let outcomes = self.directory.commit(id, &commits);
        let first = self.tick(commits.len());
        let outcomes = match outcomes {
            Ok(outcomes) => outcomes,
            Err(DirectoryError::Journal(_)) if self.faulty => {
                self.note_unsettled(client, recorded, first);
                return;
            }
            Err(other) => panic!("{other:?}"),
        };
        self.publish();
        assert_eq!(outcomes.len(), commits.len());
        for (((commit, grant, stride), outcome), now) in
            picks.into_iter().zip(outcomes).zip(first..)
        {
            let own = self.clients[client]
                .grants
                .iter()
                .position(|(own, _)| *own == grant);
            if let Some(present) = self.objects.get(&commit.key) {
                let again = present.location == commit.location && present.owner == id;
                let expected = if again {
                    CommitOutcome::Stored
                } else {
                    CommitOutcome::AlreadyPresent
                };
                assert_eq!(outcome, expected, "{commit:?} against {present:?}");
                continue;
            }
            let Some(own) = own else {
                assert!(
                    matches!(outcome, CommitOutcome::Refused(RefusedCommit::Stale(_))),
                    "{commit:?} is not the client's page: {outcome:?}"
                );
                continue;
            };
            if commit.location.len > stride {
                let expected = RefusedCommit::TooLong {
                    len: commit.location.len,
                    stride,
                };
                assert_eq!(outcome, CommitOutcome::Refused(expected));
                continue;
            }
            if self.faulty && outcome == CommitOutcome::Refused(RefusedCommit::NotRecorded) {
                continue;
            }
            assert_eq!(outcome, CommitOutcome::Stored, "{commit:?}");
            self.clients[client].grants.swap_remove(own);
            self.spent.push((grant, stride));
            let object = Object {
                location: commit.location,
                meta: commit.meta,
                owner: id,
                stride,
                last_use: now,
            };
            self.objects.insert(commit.key, object);
        }
    }

    /// After a commit that is not settled: what was recorded of it waits to be durable.
    fn note_unsettled(&mut self, client: usize, recorded: usize, now: u64) {
        let changes = self.log.changes.lock();
        for (place, change) in changes.iter().enumerate().skip(recorded) {
            let Change::Commit {
                key,
                location,
                meta,
                client: owner,
            } = change
            else {
                continue;
            };
            let own = &mut self.clients[client].grants;
            let index = own
                .iter()
                .position(|(grant, _)| grant.page == location.page)
                .expect("a commit of a granted page");
            let (grant, stride) = own.swap_remove(index);
            self.spent.push((grant, stride));
            let object = Object {
                location: *location,
                meta: *meta,
                owner: *owner,
                stride,
                last_use: now,
            };
            self.pending.insert(key.clone(), (place as u64 + 1, object));
        }
    }

    fn retrieve(&mut self, client: usize, keys: &[usize], group: u32, prefix: bool, expect: usize) {
        let keys: Vec<_> = keys.iter().map(|index| key(*index)).collect();
        let expect = layout(expect);
        let mut leases: Vec<_> = keys
            .iter()
            .map(|_| Some(self.clients[client].slots.propose().unwrap()))
            .collect();
        let request = Retrieve {
            keys: keys.clone(),
            leases: leases.iter().flatten().map(Lease::reference).collect(),
            group,
            prefix,
            expect,
            wait_ms: 0,
            expected_len: 0,
        };
        let id = self.clients[client].id;
        let answer = match self.directory.retrieve(id, &request) {
            Ok(answer) => answer,
            Err(DirectoryError::UnknownClient) if self.clients[client].left => return,
            Err(other) => panic!("{other:?}"),
        };
        assert!(!self.clients[client].left);
        let first = self.tick(keys.len());
        let mut expected = vec![None; keys.len()];
        let mut mismatches = 0;
        for (chunk, start) in keys
            .chunks(group as usize)
            .zip((0..).step_by(group as usize))
        {
            let mut whole = true;
            for key in chunk {
                match self.objects.get(key) {
                    Some(object) if expect.is_none() || object.meta.layout == expect => {}
                    Some(_) => {
                        mismatches += 1;
                        whole = false;
                    }
                    None => whole = false,
                }
                if !whole {
                    break;
                }
            }
            if whole {
                for (index, key) in (start..).zip(chunk) {
                    expected[index] = Some(key.clone());
                }
            } else if prefix {
                break;
            }
        }
        assert_eq!(answer.mismatches, mismatches);
        assert_eq!(answer.hits.len(), keys.len());
        for (index, (hit, expected)) in answer.hits.into_iter().zip(expected).enumerate() {
            let found = hit.map(|hit| (hit.location, hit.meta));
            let object = expected.map(|key| {
                let object = self.objects.get_mut(&key).unwrap();
                object.last_use = first + index as u64;
                (object.location, object.meta)
            });
            assert_eq!(found, object, "{:?}", keys[index]);
            if let Some((location, _)) = found {
                let lease = leases[index].take().unwrap();
                self.clients[client].leases.push(Held { lease, location });
            }
        }
    }

    fn find(&mut self, client: usize, keys: &[usize]) {
        let keys: Vec<_> = keys.iter().map(|index| key(*index)).collect();
        let Client {
            id, shared, left, ..
        } = &mut self.clients[client];
        let is_usable = |shared: &Shared| {
            shared.index.is_current() && shared.index.incarnation() == shared.slots.incarnation()
        };
        if !shared.as_ref().is_some_and(is_usable) {
            match self.directory.index(*id) {
                Ok(files) => {
                    let files = files.unwrap();
                    // The table is mapped once.
                    let slots = shared.take().map(|shared| shared.slots);
                    *shared = Some(Shared {
                        index: IndexReader::open(files.index.as_fd()).unwrap(),
                        slots: slots
                            .unwrap_or_else(|| SlotTable::open(files.slots.as_fd()).unwrap()),
                    });
                }
                Err(DirectoryError::UnknownClient) if *left => {}
                Err(other) => panic!("{other:?}"),
            }
        }
        let Some(Shared { index, slots }) = shared else {
            assert!(*left);
            return;
        };
        // Objects of the last run are not there before they are loaded.
        let may_ask = *left || !self.directory.is_loaded();
        let mut finds = Vec::new();
        index.lease(slots, &keys, |at, looked| {
            let object = self.objects.get(&keys[at]);
            match looked {
                Looked::Found((found, lease)) => {
                    assert!(!*left, "a client that left found {}", keys[at]);
                    let object = object.map(|object| (object.location, object.meta));
                    assert_eq!(object, Some((found.location, found.meta)), "{}", keys[at]);
                    let location = found.location;
                    finds.push(Found { lease, location });
                }
                Looked::Absent => assert!(object.is_none(), "{} was missed", keys[at]),
                Looked::Ask => assert!(may_ask, "{} was not in the index", keys[at]),
            }
        });
        self.clients[client].finds.extend(finds);
    }

    fn ring(&mut self, client: usize, page: usize) {
        let Some(Shared { slots, .. }) = &self.clients[client].shared else {
            return;
        };
        if page.is_multiple_of(8) && !self.spent.is_empty() {
            // One that is not the client's.
            assert!(slots.give_back(self.spent[page / 8 % self.spent.len()].0));
            return;
        }
        let Client { shared, grants, .. } = &mut self.clients[client];
        if let Some(Shared { slots, .. }) = shared
            && !grants.is_empty()
        {
            let (grant, _) = grants.swap_remove(page / 8 % grants.len());
            assert!(slots.give_back(grant));
        }
    }

    fn abuse(&mut self, client: usize, keys: &[usize], group: u32) {
        if self.strides.len() == 1 {
            // How far such a request gets is not said, so it would blur the order of uses.
            return;
        }
        let keys: Vec<_> = keys.iter().map(|index| key(*index)).collect();
        let lease = self.clients[client].slots.propose().unwrap();
        let request = Retrieve {
            leases: vec![lease.reference(); keys.len()],
            keys,
            group,
            prefix: false,
            expect: None,
            wait_ms: 0,
            expected_len: 0,
        };
        let id = self.clients[client].id;
        match self.directory.retrieve(id, &request) {
            Ok(answer) => assert!(answer.hits.iter().flatten().count() <= 1),
            Err(DirectoryError::BadLease(bad)) => assert_eq!(bad, lease.reference()),
            Err(DirectoryError::UnknownClient) => assert!(self.clients[client].left),
            Err(other) => panic!("{other:?}"),
        }
    }

    fn pin(&mut self, client: usize, keys: &[usize]) {
        let pins: Vec<_> = keys
            .iter()
            .map(|index| {
                let key = key(*index);
                let made = self.clients[client].pins.get(&key);
                // Some are asked for again.
                let again = made
                    .and_then(|made| made.first().copied())
                    .filter(|_| index % 3 == 0);
                let number = again.unwrap_or_else(|| {
                    self.next_pin += 1;
                    self.next_pin
                });
                Pin { key, number }
            })
            .collect();
        let id = self.clients[client].id;
        match self.directory.pin(id, &pins) {
            Ok(outcomes) => {
                assert!(!self.clients[client].left);
                for (Pin { key, number }, outcome) in pins.into_iter().zip(outcomes) {
                    let present = self.objects.contains_key(&key);
                    assert_eq!(outcome == PinOutcome::Done, present, "{key}");
                    if present {
                        let own = &mut self.clients[client].pins;
                        own.entry(key).or_default().insert(number);
                    }
                }
            }
            Err(DirectoryError::UnknownClient) => assert!(self.clients[client].left),
            Err(DirectoryError::Journal(_)) if self.faulty => self.resync_pins(client),
            Err(other) => panic!("{other:?}"),
        }
    }

    fn unpin(&mut self, client: usize, keys: &[usize]) {
        let pins: Vec<_> = keys
            .iter()
            .map(|index| {
                let key = key(*index);
                let made = self.clients[client].pins.get(&key);
                let number = made.and_then(|made| made.first().copied()).unwrap_or(0);
                Pin { key, number }
            })
            .collect();
        let id = self.clients[client].id;
        match self.directory.unpin(id, &pins) {
            Ok(outcomes) => {
                for (Pin { key, number }, outcome) in pins.into_iter().zip(outcomes) {
                    let own = &mut self.clients[client].pins;
                    let was_there = own.get_mut(&key).is_some_and(|made| made.remove(&number));
                    assert_eq!(outcome == PinOutcome::Done, was_there, "{key}");
                    own.retain(|_, made| !made.is_empty());
                }
            }
            Err(DirectoryError::UnknownClient) => assert!(self.clients[client].left),
            Err(DirectoryError::Journal(_)) if self.faulty => self.resync_pins(client),
            Err(other) => panic!("{other:?}"),
        }
    }

    /// After a refusal in the middle of a batch: the pins that the journal knows of.
    fn resync_pins(&mut self, client: usize) {
        let id = self.clients[client].id;
        let mut pins: BTreeMap<Key, BTreeSet<u64>> = BTreeMap::new();
        for change in &*self.log.changes.lock() {
            match change {
                Change::Pin { key, client, pin } if *client == id => {
                    pins.entry(key.clone()).or_default().insert(*pin);
                }
                Change::Unpin { key, client, pin } if *client == id => {
                    assert!(pins.get_mut(key).is_some_and(|pins| pins.remove(pin)));
                }
                _ => {}
            }
        }
        pins.retain(|_, pins| !pins.is_empty());
        self.clients[client].pins = pins;
    }

    fn delete(&mut self, keys: &[usize]) {
        let keys: Vec<_> = keys.iter().map(|index| key(*index)).collect();
        match self.directory.delete(&keys) {
            Ok(outcomes) => {
                for (key, outcome) in keys.into_iter().zip(outcomes) {
                    let expected = match self.objects.get(&key) {
                        None => DeleteOutcome::Absent,
                        Some(_) if self.pins_on(&key) > 0 => DeleteOutcome::Pinned,
                        Some(_) => DeleteOutcome::Deleted,
                    };
                    assert_eq!(outcome, expected, "{key}");
                    if outcome == DeleteOutcome::Deleted {
                        self.objects.remove(&key);
                    }
                }
            }
            Err(DirectoryError::Journal(_)) if self.faulty => {
                let visible = self.visible();
                self.publish();
                let pinned: Vec<_> = keys.iter().filter(|key| self.pins_on(key) > 0).collect();
                assert!(
                    pinned.iter().all(|key| visible.contains_key(key)),
                    "a pinned object was deleted"
                );
                self.objects.retain(|key, _| visible.contains_key(key));
            }
            Err(other) => panic!("{other:?}"),
        }
    }

    fn leave(&mut self, client: usize) {
        let id = self.clients[client].id;
        let pins = self.clients[client].pins.values();
        let pins = pins.map(|pins| pins.len() as u64).sum();
        match self.directory.leave(id) {
            Ok(reclaimed) => {
                let expected = Reclaimed {
                    pins,
                    ..Reclaimed::default()
                };
                if !self.faulty {
                    assert_eq!(reclaimed, expected);
                }
                self.clients[client].pins.clear();
            }
            Err(DirectoryError::Journal(_)) if self.faulty => self.resync_pins(client),
            Err(other) => panic!("{other:?}"),
        }
        self.clients[client].left = true;
        self.reap(client);
    }

    /// A client that left and holds nothing is gone, and makes room for a new one.
    fn reap(&mut self, client: usize) {
        let Client {
            id,
            leases,
            finds,
            grants,
            left,
            ..
        } = &self.clients[client];
        let gone = *left && leases.is_empty() && finds.is_empty() && grants.is_empty();
        let is_gone = self.directory.is_gone(*id);
        // A page that came back by the ring stays granted for as long as the journal refuses that.
        let is_refused = self.faulty && gone;
        assert!(is_gone == gone || is_refused, "{id}: {is_gone}");
        if gone {
            self.die(client);
        }
    }

    fn die(&mut self, client: usize) {
        let fresh = self.attach();
        let dead = std::mem::replace(&mut self.clients[client], fresh);
        let expected = Reclaimed {
            leases: (dead.leases.len() + dead.finds.len()) as u64,
            pins: dead.pins.values().map(|pins| pins.len() as u64).sum(),
            grants: dead.grants.len() as u64,
        };
        self.spent.extend(&dead.grants);
        match self.directory.detach(dead.id) {
            Ok(reclaimed) => {
                // The leases are not dropped before, as a dead process drops nothing.
                assert!(
                    self.faulty || reclaimed == expected,
                    "{reclaimed:?}, expected {expected:?}"
                );
            }
            Err(DirectoryError::Journal(_)) if self.faulty => {
                self.forget_at_last(dead.id);
            }
            Err(other) => panic!("{other:?}"),
        }
        assert_eq!(
            self.directory.detach(dead.id),
            Err(DirectoryError::UnknownClient)
        );
    }

    /// What is not recorded did not happen; asked again, it must.
    fn forget_at_last(&self, dead: ClientId) {
        let mut tries = 0;
        while let Err(error) = self.directory.detach(dead) {
            assert!(matches!(error, DirectoryError::Journal(_)), "{error:?}");
            tries += 1;
            assert!(tries < 10_000, "a dead client is never forgotten");
        }
    }

    /// Every figure and every object agrees with the model.
    fn check(&mut self) {
        for client in 0..self.clients.len() {
            self.reap(client);
        }
        let visible = self.visible();
        let expected: BTreeMap<_, _> = self
            .objects
            .iter()
            .map(|(key, object)| (key.clone(), object.location))
            .collect();
        assert_eq!(visible, expected);
        let stats = self.directory.stats();
        self.check_stats(&stats);
        for object in self.directory.list(None, u32::MAX).objects {
            let model = &self.objects[&object.key];
            assert_eq!(object.meta, model.meta);
            assert_eq!(
                (object.leases as usize, object.pins),
                (
                    self.leases_on(model.location.page),
                    self.pins_on(&object.key)
                ),
                "{}",
                object.key
            );
        }
        self.check_pages();
    }

    fn check_stats(&self, stats: &EngineStats) {
        assert_eq!(stats.objects, self.objects.len() as u64);
        let bytes: u64 = self
            .objects
            .values()
            .map(|object| object.location.len)
            .sum();
        assert_eq!(stats.object_bytes, bytes);
        let index = stats.index.unwrap();
        assert_eq!(index.objects + index.unindexed, stats.objects);
        assert_eq!(stats.retired, self.retired().len() as u64);
        assert_eq!(stats.clients.len(), self.clients.len());
        for client in &self.clients {
            let told = stats
                .clients
                .iter()
                .find(|told| told.id == client.id.0)
                .unwrap();
            let own = || {
                self.objects
                    .values()
                    .filter(|object| object.owner == client.id)
            };
            assert_eq!(
                (
                    told.leases,
                    told.pins,
                    told.granted_pages,
                    told.granted_bytes,
                    told.objects,
                    told.object_bytes
                ),
                (
                    (client.leases.len() + client.finds.len()) as u64,
                    client.pins.values().map(|pins| pins.len() as u64).sum(),
                    client.grants.len() as u64,
                    client.grants.iter().map(|(_, stride)| stride).sum(),
                    own().count() as u64,
                    own().map(|object| object.location.len).sum()
                ),
                "client {}",
                client.id
            );
        }
        for class in &stats.classes {
            let granted = self
                .granted()
                .filter(|(_, _, stride)| *stride == class.stride);
            assert_eq!(class.granted, granted.count() as u64);
            let committed = self
                .objects
                .values()
                .filter(|object| object.stride == class.stride);
            assert_eq!(class.committed, committed.count() as u64);
        }
    }

    fn check_pages(&self) {
        let retired = self.retired();
        self.directory.with_pool(|pool| {
            let mut states: HashMap<PageId, PageState> = HashMap::new();
            for object in self.objects.values() {
                states.insert(object.location.page, PageState::Committed);
            }
            for (client, grant, _) in self.granted() {
                let before = states.insert(grant.page, PageState::Granted(client));
                assert_eq!(before, None, "{} has two uses", grant.page);
            }
            for page in retired {
                let before = states.insert(page, PageState::Retired);
                assert_eq!(before, None, "{page} has two uses");
            }
            let mut in_use = 0;
            for (id, region) in pool.regions() {
                for index in 0..region.page_count() {
                    let page = PageId { region: id, index };
                    let expected = states.get(&page).copied().unwrap_or(PageState::Free);
                    assert_eq!(pool.state(page), Some(expected), "{page}");
                    in_use += usize::from(expected != PageState::Free);
                }
            }
            assert_eq!(in_use, states.len(), "pages in use lie in no region");
        });
    }

    /// What holds in spite of refusals: nothing visible is unaccounted for, nothing accounted for is reused.
    fn check_what_a_refusal_may_not_touch(&self) {
        let visible = self.visible();
        let expected: BTreeMap<_, _> = self
            .objects
            .iter()
            .map(|(key, object)| (key.clone(), object.location))
            .collect();
        assert_eq!(visible, expected, "a refused change can be seen");
        let retired = self.retired();
        self.directory.with_pool(|pool| {
            for location in visible.values() {
                assert_eq!(pool.state(location.page), Some(PageState::Committed));
            }
            for page in &retired {
                assert_eq!(pool.state(*page), Some(PageState::Retired), "{page}");
            }
            for (client, grant, _) in self.granted() {
                assert_eq!(
                    pool.state(grant.page),
                    Some(PageState::Granted(client)),
                    "{}",
                    grant.page
                );
            }
        });
        let pins = self
            .directory
            .stats()
            .clients
            .iter()
            .map(|client| client.pins)
            .sum::<u64>();
        let expected = self.clients.iter().flat_map(|client| client.pins.values());
        let expected: u64 = expected.map(|pins| pins.len() as u64).sum();
        assert_eq!(pins, expected);
    }

    /// What the recorded changes make.
    fn image(&self) -> Image {
        let mut image = Image::new(pool(self.regions));
        for change in &*self.log.changes.lock() {
            image
                .apply(change)
                .unwrap_or_else(|error| panic!("the journal cannot be replayed: {error}"));
        }
        image
    }

    /// The recorded changes rebuild pool and directory as they are.
    pub(crate) fn check_replay(&self) {
        assert_eq!(self.directory.difference(&self.image()), None);
    }

    /// The server ends without a word, and another one goes on with what it recorded.
    fn restart(&mut self, living: usize) {
        // The next one reads all that was recorded, whatever was said of it.
        let recorded = self.log.changes.lock().len() as u64;
        self.log.flushed.store(recorded, Ordering::Relaxed);
        self.publish();
        let image = self.image();
        let books = tempfile::tempdir().unwrap();
        let lives = |index: &usize| living >> (index % 8) & 1 == 1;
        let adopted = (0..self.clients.len()).filter(lives).map(|index| {
            let client = &self.clients[index];
            let leases = client.leases.iter().map(|held| BookedLease {
                lease: held.lease.reference(),
                page: held.location.page,
                generation: held.location.generation,
            });
            AdoptedClient {
                id: client.id,
                book: LeaseBook::create(&books.path().join(client.id.to_string())).unwrap(),
                leases: leases.collect(),
                slots: Some(SlotTableView::adopt(&self.table(client.id)).unwrap()),
            }
        });
        let last = LastRun {
            adopted: adopted.collect(),
            ..LastRun::default()
        };
        let policy = ondol_catalog::policy("lru").unwrap();
        let journal = Arc::new(Recorder(Arc::clone(&self.log)));
        let (directory, recovery) = Directory::recover(image, journal, policy, last).unwrap();
        assert_eq!(recovery.objects, self.objects.len() as u64);
        assert_eq!(recovery.unmatched, 0);
        assert!(self.faulty || (recovery.refused.is_none() && recovery.unforgotten.is_empty()));
        // The last one was killed, so that its index looks as it did; readers that are late confirm nothing by it.
        for index in (0..self.clients.len()).filter(lives) {
            if let Some(Shared { index, slots }) = &self.clients[index].shared {
                let keys: Vec<_> = self.objects.keys().cloned().collect();
                index.lease(slots, &keys, |at, looked| {
                    assert!(!matches!(looked, Looked::Found(_)), "{}", keys[at]);
                });
            }
        }
        directory.open_index();
        self.directory = directory;
        self.check_replay();
        for index in 0..self.clients.len() {
            if !lives(&index) {
                let fresh = self.attach();
                let dead = std::mem::replace(&mut self.clients[index], fresh);
                self.spent.extend(&dead.grants);
                let expected = Reclaimed {
                    leases: 0,
                    pins: dead.pins.values().map(|pins| pins.len() as u64).sum(),
                    grants: dead.grants.len() as u64,
                };
                if let Some((_, found)) = recovery.dead.iter().find(|(id, _)| *id == dead.id) {
                    // What was on its ring counts as held.
                    let found = Reclaimed {
                        grants: found.grants.min(expected.grants),
                        ..*found
                    };
                    assert!(self.faulty || found == expected);
                } else {
                    self.forget_at_last(dead.id);
                }
                continue;
            }
            let client = &mut self.clients[index];
            let resumed = self.directory.resume(client.id, client.table.as_fd());
            resumed.unwrap();
            assert!(matches!(
                self.directory.resume(client.id, client.table.as_fd()),
                Err(AttachError::Unknown)
            ));
            // Who had left and still read is a client like others until it leaves again.
            client.left = false;
            if let Some(request) = &mut client.last_request {
                request.is_old = true;
            }
        }
        // Loading goes on while the next steps are made.
        assert_eq!(self.directory.is_loaded(), self.objects.is_empty());
    }

    /// Everybody dies and everything is deleted: then all of the pool can be used again.
    pub(crate) fn check_that_nothing_leaked(&mut self) {
        self.log.refuse(0, 1);
        for client in 0..self.clients.len() {
            self.die(client);
        }
        let keys: Vec<_> = self.visible().into_keys().collect();
        self.directory.make_durable().unwrap();
        self.publish();
        let keys: Vec<_> = self.visible().into_keys().chain(keys).collect();
        let mut outcomes = self.directory.delete(&keys).unwrap();
        outcomes.retain(|outcome| *outcome != DeleteOutcome::Absent);
        assert!(
            outcomes
                .iter()
                .all(|outcome| *outcome == DeleteOutcome::Deleted),
            "{outcomes:?}: a pin outlived its owner"
        );
        let stats = self.directory.stats();
        assert_eq!((stats.objects, stats.retired), (0, 0));
        assert!(
            stats
                .classes
                .iter()
                .all(|class| class.free == class.pages && class.granted == 0),
            "{:?}",
            stats.classes
        );
        let stride = REGION_BYTES;
        let client = self.clients[0].id;
        for _ in 0..self.regions {
            let request = self.next_request;
            self.next_request += 1;
            let grants = self.directory.grant(client, request, stride, 1, u64::MAX);
            assert_eq!(grants.map(|grants| grants.len()), Ok(1));
        }
        self.check_replay();
    }
}
