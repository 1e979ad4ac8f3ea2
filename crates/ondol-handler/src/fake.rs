//! An engine small enough to be seen through, for the tests of this crate, and lines to it that lose answers.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ondol_plugin::{Key, RegionId, RegionSpan};
use ondol_protocol::{
    Access, Breakdown, ClientId, ClientInfo, Commit, CommitOutcome, CommitOutcomes, ControlError,
    ControlPlane, DeleteOutcome, EngineStats, Grant, GrantRequest, Hit, IndexFiles, Listing, Pin,
    PinOutcome, RefusedCommit, RegionInfo, Retrieve, Retrieved, StaleReason,
};
use ondol_shm::{
    BackingId, Generation, HandleSecret, IndexWriter, IndexedObject, Location, ObjectMeta, PageId,
    RecordId, RegionHandle, SlotTableView, create_lease_table,
};
use parking_lot::{Mutex, MutexGuard};

pub(crate) const STRIDE: u64 = 4096;
pub(crate) const PAGES: u32 = 64;

/// What happens to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is carried out and its answer lost.
    AnswerLost,
    /// It is lost on its way, which the client cannot tell from the above.
    RequestLost,
    /// It is not carried out, and this is the answer.
    Error(ControlError),
}

#[derive(Debug)]
pub(crate) struct FakeEngine {
    pool: File,
    table: OwnedFd,
    place: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) incarnation: u64,
    /// Whether there is no server.
    pub(crate) is_away: bool,
    /// Clients that are known, with what each was granted under which request.
    pub(crate) clients: HashMap<ClientId, HashMap<u64, Vec<Grant>>>,
    pub(crate) next_client: u64,
    pub(crate) granted: HashMap<PageId, ClientId>,
    pub(crate) pins: HashSet<(ClientId, Pin)>,
    pub(crate) objects: HashMap<Key, Hit>,
    /// What happens to the next calls of a name.
    pub(crate) faults: VecDeque<(&'static str, Fault)>,
    /// Names of the calls that came.
    pub(crate) calls: Vec<&'static str>,
    /// Clients that this incarnation has heard leave.
    pub(crate) left: HashSet<ClientId>,
    /// The clients of all leaves that were heard.
    pub(crate) leaves: Vec<ClientId>,
    /// The index, if there is one.
    pub(crate) index: Option<FakeIndex>,
    pub(crate) tables: HashMap<ClientId, SlotTableView>,
    /// Keys of the retrieves that came.
    pub(crate) asked: Vec<Vec<Key>>,
    generation: u64,
}

/// An index and what it needs.
#[derive(Debug)]
pub(crate) struct FakeIndex {
    pub(crate) writer: IndexWriter,
    records: HashMap<Key, RecordId>,
}

#[derive(Debug)]
pub(crate) struct FakePlane {
    engine: Arc<FakeEngine>,
    id: ClientId,
}

/// Nobody is there, and nothing was sent.
pub(crate) fn gone() -> ControlError {
    ControlError::Disconnected {
        reason: "gone".to_owned(),
        sent: false,
    }
}

impl FakeEngine {
    pub(crate) fn new() -> Arc<Self> {
        static PLACES: AtomicU64 = AtomicU64::new(0);
        let pool = tempfile::tempfile().unwrap();
        pool.set_len(STRIDE * u64::from(PAGES)).unwrap();
        Arc::new(Self {
            pool,
            table: create_lease_table().unwrap(),
            place: format!("fake/{}", PLACES.fetch_add(1, Ordering::Relaxed)).into(),
            state: Mutex::new(State {
                incarnation: 1,
                next_client: 1,
                ..State::default()
            }),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// A new client.
    pub(crate) fn attach(self: &Arc<Self>) -> Arc<FakePlane> {
        let mut state = self.lock();
        let id = ClientId(state.next_client);
        state.next_client += 1;
        state.clients.insert(id, HashMap::new());
        Arc::new(FakePlane {
            engine: Arc::clone(self),
            id,
        })
    }

    /// An object that nobody of the tests' clients has stored.
    pub(crate) fn put(&self, key: &Key) {
        let mut state = self.lock();
        state.generation += 1;
        let page = PageId {
            region: RegionId(1),
            index: PAGES - 1,
        };
        let location = Location {
            page,
            generation: Generation(state.generation),
            len: 0,
        };
        let meta = ObjectMeta::default();
        state.objects.insert(key.clone(), Hit { location, meta });
    }

    /// The next call of this name goes wrong.
    pub(crate) fn fail_next(&self, call: &'static str, fault: Fault) {
        self.lock().faults.push_back((call, fault));
    }

    /// Another server takes over, which knows all clients and has heard none of them leave.
    pub(crate) fn restart(&self) {
        let mut state = self.lock();
        state.incarnation += 1;
        state.is_away = false;
        state.left.clear();
    }

    /// All clients are forgotten, with what they held.
    pub(crate) fn forget_clients(&self) {
        let mut state = self.lock();
        state.clients.clear();
        state.granted.clear();
        state.pins.clear();
    }
}

impl State {
    /// From now on there is an index with all objects, or another one than before.
    pub(crate) fn open_index(&mut self) {
        self.close_index();
        self.generation += 1;
        let mut index = FakeIndex {
            writer: IndexWriter::create(1000, 32, self.generation).unwrap(),
            records: HashMap::new(),
        };
        for (key, hit) in &self.objects {
            index.insert(key, *hit, false);
        }
        self.index = Some(index);
        self.set_incarnations();
    }

    /// There is no index any more.
    pub(crate) fn close_index(&mut self) {
        if let Some(mut index) = self.index.take() {
            index.writer.retire();
        }
    }

    fn set_incarnations(&self) {
        let incarnation = self
            .index
            .as_ref()
            .map_or(0, |index| index.writer.incarnation());
        for table in self.tables.values() {
            table.set_incarnation(incarnation).unwrap();
        }
    }

    fn index_files(&mut self, client: ClientId) -> Option<IndexFiles> {
        self.index.as_ref()?;
        let new = || SlotTableView::create_anonymous().unwrap();
        self.tables.entry(client).or_insert_with(new);
        self.set_incarnations();
        Some(IndexFiles {
            index: self.index.as_ref()?.writer.open_for_reader().unwrap(),
            slots: self.tables[&client].open_for_client().unwrap(),
        })
    }

    /// Readers are to ask for this object.
    pub(crate) fn doubt(&mut self, key: &Key) {
        let hit = self.objects[key];
        let index = self.index.as_mut().unwrap();
        index.remove(key);
        index.insert(key, hit, true);
    }

    /// Takes back what the client returned through its table.
    pub(crate) fn take_returns(&mut self, client: ClientId) {
        if let Some(table) = self.tables.get_mut(&client) {
            let granted = &mut self.granted;
            let take = |grant: Grant| {
                granted.remove(&grant.page);
            };
            table.drain_returns(take).unwrap();
            table.returns_done().unwrap();
        }
    }

    /// Pages that the client holds by slots.
    pub(crate) fn held(&self, client: ClientId) -> usize {
        let mut held = 0;
        self.tables[&client].scan(|_| held += 1).unwrap();
        held
    }

    pub(crate) fn pins_of(&self, key: &Key) -> usize {
        self.pins.iter().filter(|(_, pin)| pin.key == *key).count()
    }
}

impl FakeIndex {
    fn insert(&mut self, key: &Key, Hit { location, meta }: Hit, unverified: bool) {
        let object = IndexedObject { location, meta };
        let record = self.writer.insert(key, &object, unverified).unwrap();
        self.records.insert(key.clone(), record);
    }

    fn remove(&mut self, key: &Key) {
        if let Some(record) = self.records.remove(key) {
            self.writer.remove(record);
        }
    }
}

impl FakePlane {
    /// Carries a call out, or not.
    fn call<T>(
        &self,
        name: &'static str,
        work: impl FnOnce(&mut State) -> Result<T, ControlError>,
    ) -> Result<T, ControlError> {
        let mut state = self.engine.lock();
        state.calls.push(name);
        let lost = || ControlError::Disconnected {
            reason: "lost".to_owned(),
            sent: true,
        };
        let place = state.faults.iter().position(|(call, _)| *call == name);
        let fault = place.and_then(|place| state.faults.remove(place));
        match fault {
            Some((_, Fault::Error(error))) => return Err(error),
            Some((_, Fault::RequestLost)) => return Err(lost()),
            _ => {}
        }
        if state.is_away {
            return Err(gone());
        }
        if !state.clients.contains_key(&self.id) {
            return Err(ControlError::UnknownClient(self.id.to_string()));
        }
        if state.left.contains(&self.id) && !["return_pages", "leave"].contains(&name) {
            return Err(ControlError::Refused("the client has left".to_owned()));
        }
        let answer = work(&mut state);
        match fault {
            Some(_) => Err(lost()),
            None => answer,
        }
    }
}

impl ControlPlane for FakePlane {
    fn client(&self) -> ClientInfo {
        ClientInfo {
            id: self.id,
            share_limit: u64::MAX,
            max_page_bytes: STRIDE,
            incarnation: self.engine.lock().incarnation,
        }
    }

    fn lease_table(&self) -> Result<OwnedFd, ControlError> {
        Ok(self.engine.table.try_clone().unwrap())
    }

    fn regions(&self) -> Result<Vec<RegionInfo>, ControlError> {
        self.call("regions", |_| {
            let span = RegionSpan {
                region_id: RegionId(1),
                offset: 0,
                length: STRIDE * u64::from(PAGES),
            };
            Ok(vec![RegionInfo {
                handle: HandleSecret::from_bytes([9; 32]).sign(span),
                stride: STRIDE,
                backing: BackingId(0),
                backing_len: span.length,
                path: None,
            }])
        })
    }

    fn open_backing(&self, _: &RegionHandle, _: Access) -> Result<OwnedFd, ControlError> {
        self.call("open_backing", |_| {
            Ok(self.engine.pool.try_clone().unwrap().into())
        })
    }

    fn grant(&self, request: GrantRequest) -> Result<Vec<Grant>, ControlError> {
        self.call("grant", |state| {
            state.take_returns(self.id);
            if let Some(pages) = state.clients[&self.id].get(&request.request) {
                return Ok(pages.clone());
            }
            let free = (0..PAGES).map(|index| PageId {
                region: RegionId(1),
                index,
            });
            let taken: HashSet<PageId> = state
                .objects
                .values()
                .map(|hit| hit.location.page)
                .chain(state.granted.keys().copied())
                .collect();
            let free: Vec<PageId> = free
                .filter(|page| !taken.contains(page))
                .take(request.count as usize)
                .collect();
            if free.is_empty() {
                return Err(ControlError::PoolFull(Breakdown::default()));
            }
            state.generation += 1;
            let generation = Generation(state.generation);
            let pages: Vec<Grant> = free
                .into_iter()
                .map(|page| Grant { page, generation })
                .collect();
            for grant in &pages {
                state.granted.insert(grant.page, self.id);
            }
            let requests = state.clients.get_mut(&self.id).unwrap();
            requests.insert(request.request, pages.clone());
            Ok(pages)
        })
    }

    fn return_pages(&self, pages: &[Grant]) -> Result<Vec<Result<(), StaleReason>>, ControlError> {
        self.call("return_pages", |state| {
            let give_back = |grant: &Grant| {
                let was = state.granted.remove(&grant.page);
                was.map(drop).ok_or(StaleReason::NotGranted)
            };
            Ok(pages.iter().map(give_back).collect())
        })
    }

    fn commit(&self, commits: &[Commit]) -> Result<CommitOutcomes, ControlError> {
        self.call("commit", |state| {
            let commit = |commit: &Commit| {
                if state.objects.contains_key(&commit.key) {
                    return CommitOutcome::AlreadyPresent;
                }
                if state.granted.remove(&commit.location.page) != Some(self.id) {
                    let stale = StaleReason::NotGranted;
                    return CommitOutcome::Refused(RefusedCommit::Stale(stale));
                }
                let hit = Hit {
                    location: commit.location,
                    meta: commit.meta,
                };
                state.objects.insert(commit.key.clone(), hit);
                if let Some(index) = &mut state.index {
                    index.insert(&commit.key, hit, false);
                }
                CommitOutcome::Stored
            };
            Ok(commits.iter().map(commit).collect())
        })
    }

    fn retrieve(&self, request: &Retrieve) -> Result<Retrieved, ControlError> {
        self.call("retrieve", |state| {
            state.asked.push(request.keys.clone());
            let hits = request.keys.iter();
            let hits = hits.map(|key| state.objects.get(key).copied()).collect();
            Ok(Retrieved {
                hits,
                mismatches: 0,
                pending: false,
            })
        })
    }

    fn index(&self) -> Result<Option<IndexFiles>, ControlError> {
        self.call("index", |state| Ok(state.index_files(self.id)))
    }

    fn locate(&self, keys: &[Key]) -> Result<Vec<Option<Hit>>, ControlError> {
        self.call("locate", |state| {
            let hits = keys.iter().map(|key| state.objects.get(key).copied());
            Ok(hits.collect())
        })
    }

    fn pin(&self, pins: &[Pin]) -> Result<Vec<PinOutcome>, ControlError> {
        self.call("pin", |state| {
            let pin = |pin: &Pin| {
                if !state.objects.contains_key(&pin.key) {
                    return PinOutcome::Absent;
                }
                state.pins.insert((self.id, pin.clone()));
                PinOutcome::Done
            };
            Ok(pins.iter().map(pin).collect())
        })
    }

    fn unpin(&self, pins: &[Pin]) -> Result<Vec<PinOutcome>, ControlError> {
        self.call("unpin", |state| {
            let unpin = |pin: &Pin| match state.pins.remove(&(self.id, pin.clone())) {
                true => PinOutcome::Done,
                false => PinOutcome::Absent,
            };
            Ok(pins.iter().map(unpin).collect())
        })
    }

    fn delete(&self, keys: &[Key]) -> Result<Vec<DeleteOutcome>, ControlError> {
        self.call("delete", |state| {
            let delete = |key: &Key| match state.objects.remove(key) {
                Some(_) => {
                    state.index.iter_mut().for_each(|index| index.remove(key));
                    DeleteOutcome::Deleted
                }
                None => DeleteOutcome::Absent,
            };
            Ok(keys.iter().map(delete).collect())
        })
    }

    fn list(&self, _: Option<&Key>, _: u32) -> Result<Listing, ControlError> {
        self.call("list", |_| Ok(Listing::default()))
    }

    fn stats(&self) -> Result<EngineStats, ControlError> {
        self.call("stats", |state| {
            Ok(EngineStats {
                objects: state.objects.len() as u64,
                ..EngineStats::default()
            })
        })
    }

    fn ping(&self) -> Result<(), ControlError> {
        self.call("ping", |_| Ok(()))
    }

    fn leave(&self) -> Result<(), ControlError> {
        self.call("leave", |state| {
            let id = self.id;
            state.take_returns(id);
            state.pins.retain(|(client, _)| *client != id);
            state.left.insert(id);
            state.leaves.push(id);
            Ok(())
        })
    }

    fn place(&self) -> Option<&Path> {
        Some(&self.engine.place)
    }
}
