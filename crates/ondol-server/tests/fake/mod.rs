//! An engine small enough to be seen through, and what the tests of door and plane share.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::ops::Bound;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use ondol_protocol::{
    Access, Breakdown, ClientId, ClientInfo, Commit, CommitOutcome, CommitOutcomes, ControlError,
    ControlPlane, DeleteOutcome, EngineStats, Grant, GrantRequest, Hit, IndexFiles, Listing,
    ObjectInfo, Pin, PinOutcome, RegionInfo, Retrieve, Retrieved, StaleReason,
};
use ondol_server::{Adopted, DoorConfig, House, Reclaimed, StateDir, Tenant, UnixDoor};
use ondol_shm::{
    BackingId, Generation, HandleSecret, LeaseLedger, PageId, Process, RegionHandle,
    create_lease_table,
};

use ondol_plugin::{Key, RegionId, RegionSpan};

/// No test waits longer than this for anything; none asserts that something takes a time.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(60);

/// The one region's stride.
pub(crate) const STRIDE: u64 = 4096;
/// The one region's number of pages.
pub(crate) const PAGES: u32 = 8;

#[derive(Debug)]
pub(crate) struct FakeEngine {
    incarnation: u64,
    secret: HandleSecret,
    pub(crate) pool: File,
    state: Mutex<State>,
    changed: Condvar,
    next_client: AtomicU64,
    regions: u64,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) sessions: HashMap<ClientId, u32>,
    pub(crate) died: Vec<ClientId>,
    pub(crate) attaches: usize,
    pub(crate) left: HashSet<ClientId>,
    /// Clients of the server before, until the door asks for them.
    pub(crate) adopted: Vec<Adopted>,
    /// Clients of the server before that came back.
    pub(crate) resumed: Vec<ClientId>,
    objects: BTreeMap<Key, Hit>,
    pub(crate) granted: BTreeMap<(u64, u32), ClientId>,
    /// While set, `attach` does not answer.
    pub(crate) attach_waits: bool,
    /// While set, `stats` does not answer.
    pub(crate) stats_wait: bool,
    /// How many calls wait in `stats`.
    pub(crate) waiting: usize,
    /// What `index` answers: the index, and the slot table of whoever asks.
    pub(crate) index: Option<[File; 2]>,
}

#[derive(Debug)]
struct FakeSession {
    engine: Arc<FakeEngine>,
    info: ClientInfo,
    lease_table: OwnedFd,
}

impl FakeEngine {
    pub(crate) fn new(incarnation: u64) -> Arc<Self> {
        Self::with_regions(incarnation, 1)
    }

    pub(crate) fn with_regions(incarnation: u64, regions: u64) -> Arc<Self> {
        let pool = tempfile::tempfile().unwrap();
        pool.set_len(STRIDE * u64::from(PAGES)).unwrap();
        Arc::new(Self {
            incarnation,
            secret: HandleSecret::from_bytes([9; 32]),
            pool,
            state: Mutex::default(),
            changed: Condvar::new(),
            next_client: AtomicU64::new(1),
            regions,
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Changes the state and wakes whoever waits for it.
    pub(crate) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits until the state is as `wanted`.
    pub(crate) fn wait_until(&self, what: &str, wanted: impl Fn(&State) -> bool) {
        let deadline = Instant::now() + WATCHDOG;
        let mut state = self.lock();
        while !wanted(&state) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{what} did not happen: {state:?}");
            state = self.changed.wait_timeout(state, left).unwrap().0;
        }
    }

    fn session(self: Arc<Self>, id: ClientId, lease_table: OwnedFd) -> Arc<dyn Tenant> {
        let info = ClientInfo {
            id,
            share_limit: 1 << 20,
            max_page_bytes: STRIDE,
            incarnation: self.incarnation,
        };
        Arc::new(FakeSession {
            engine: self,
            info,
            lease_table,
        })
    }

    pub(crate) fn handle(&self) -> RegionHandle {
        self.secret.sign(RegionSpan {
            region_id: RegionId(1),
            offset: 0,
            length: STRIDE * u64::from(PAGES),
        })
    }
}

impl House for FakeEngine {
    fn attach(
        self: Arc<Self>,
        process: &Process,
        _: [u8; 16],
    ) -> Result<Arc<dyn Tenant>, ControlError> {
        let id = ClientId(self.next_client.fetch_add(1, Ordering::Relaxed));
        self.change(|state| {
            state.sessions.insert(id, process.pid());
            state.attaches += 1;
        });
        self.wait_until("the end of the wait", |state| !state.attach_waits);
        let table = create_lease_table();
        let table = table.map_err(|error| ControlError::Failed(error.to_string()))?;
        Ok(self.session(id, table))
    }

    fn take_adopted(&self) -> Vec<Adopted> {
        std::mem::take(&mut self.lock().adopted)
    }

    fn resume(
        self: Arc<Self>,
        client: ClientId,
        lease_table: OwnedFd,
    ) -> Result<Arc<dyn Tenant>, ControlError> {
        LeaseLedger::<()>::open(lease_table.as_fd(), None)
            .map_err(|error| ControlError::Refused(error.to_string()))?;
        self.change(|state| {
            state.sessions.insert(client, 0);
            state.resumed.push(client);
        });
        Ok(self.session(client, lease_table))
    }

    fn client_died(&self, client: ClientId) -> Option<Reclaimed> {
        let mut reclaimed = Reclaimed::default();
        self.change(|state| {
            state.sessions.remove(&client);
            state.granted.retain(|_, owner| {
                let keep = *owner != client;
                reclaimed.grants += u64::from(!keep);
                keep
            });
            state.died.push(client);
        });
        Some(reclaimed)
    }

    fn incarnation(&self) -> u64 {
        self.incarnation
    }
}

impl FakeSession {
    fn enter(&self) -> Result<MutexGuard<'_, State>, ControlError> {
        let state = self.engine.lock();
        if state.sessions.contains_key(&self.info.id) || state.left.contains(&self.info.id) {
            Ok(state)
        } else {
            Err(ControlError::Refused("the client is gone".to_owned()))
        }
    }
}

impl ControlPlane for FakeSession {
    fn client(&self) -> ClientInfo {
        self.info
    }

    fn lease_table(&self) -> Result<OwnedFd, ControlError> {
        let table = self.lease_table.try_clone();
        table.map_err(|error| ControlError::Failed(error.to_string()))
    }

    fn regions(&self) -> Result<Vec<RegionInfo>, ControlError> {
        // Newest first, so that the order of the answer is the door's doing.
        Ok((1..=self.engine.regions)
            .rev()
            .map(|id| {
                let span = RegionSpan {
                    region_id: RegionId(id),
                    ..self.engine.handle().span
                };
                RegionInfo {
                    handle: self.engine.secret.sign(span),
                    stride: STRIDE,
                    backing: BackingId(0),
                    backing_len: span.length,
                    path: Some(Path::new("/dev/shm").join("p".repeat(4000))),
                }
            })
            .collect())
    }

    fn open_backing(&self, region: &RegionHandle, _: Access) -> Result<OwnedFd, ControlError> {
        if !self.engine.secret.verify(region) {
            return Err(ControlError::Refused("no such handle".to_owned()));
        }
        Ok(self.engine.pool.try_clone().unwrap().into())
    }

    fn grant(&self, request: GrantRequest) -> Result<Vec<Grant>, ControlError> {
        let mut state = self.enter()?;
        if state.left.contains(&self.info.id) {
            return Err(ControlError::Refused("the client has left".to_owned()));
        }
        let free: Vec<u32> = (0..PAGES)
            .filter(|index| !state.granted.contains_key(&(1, *index)))
            .take(request.count as usize)
            .collect();
        if free.is_empty() {
            return Err(ControlError::PoolFull(Breakdown {
                asked: request.stride,
                granted: STRIDE * u64::from(PAGES),
                ..Breakdown::default()
            }));
        }
        Ok(free
            .into_iter()
            .map(|index| {
                state.granted.insert((1, index), self.info.id);
                Grant {
                    page: PageId {
                        region: RegionId(1),
                        index,
                    },
                    generation: Generation(1),
                }
            })
            .collect())
    }

    fn return_pages(&self, pages: &[Grant]) -> Result<Vec<Result<(), StaleReason>>, ControlError> {
        let mut state = self.enter()?;
        Ok(pages
            .iter()
            .map(|Grant { page, .. }| {
                let page = (page.region.0, page.index);
                match state.granted.get(&page) {
                    Some(owner) if *owner == self.info.id => {
                        state.granted.remove(&page);
                        Ok(())
                    }
                    _ => Err(StaleReason::NotGranted),
                }
            })
            .collect())
    }

    fn commit(&self, commits: &[Commit]) -> Result<CommitOutcomes, ControlError> {
        let mut state = self.enter()?;
        Ok(commits
            .iter()
            .map(|commit| {
                if state.objects.contains_key(&commit.key) {
                    return CommitOutcome::AlreadyPresent;
                }
                let hit = Hit {
                    location: commit.location,
                    meta: commit.meta,
                };
                state.objects.insert(commit.key.clone(), hit);
                CommitOutcome::Stored
            })
            .collect())
    }

    fn retrieve(&self, request: &Retrieve) -> Result<Retrieved, ControlError> {
        let hits = self.locate(&request.keys)?;
        Ok(Retrieved {
            hits,
            mismatches: 0,
            pending: false,
        })
    }

    fn index(&self) -> Result<Option<IndexFiles>, ControlError> {
        let state = self.enter()?;
        let open = |[index, slots]: &[File; 2]| IndexFiles {
            index: index.try_clone().unwrap().into(),
            slots: slots.try_clone().unwrap().into(),
        };
        Ok(state.index.as_ref().map(open))
    }

    fn locate(&self, keys: &[Key]) -> Result<Vec<Option<Hit>>, ControlError> {
        let state = self.enter()?;
        Ok(keys
            .iter()
            .map(|key| state.objects.get(key).copied())
            .collect())
    }

    fn pin(&self, pins: &[Pin]) -> Result<Vec<PinOutcome>, ControlError> {
        let state = self.enter()?;
        let outcome = |pin: &Pin| match state.objects.contains_key(&pin.key) {
            true => PinOutcome::Done,
            false => PinOutcome::Absent,
        };
        Ok(pins.iter().map(outcome).collect())
    }

    fn unpin(&self, pins: &[Pin]) -> Result<Vec<PinOutcome>, ControlError> {
        self.pin(pins)
    }

    fn delete(&self, keys: &[Key]) -> Result<Vec<DeleteOutcome>, ControlError> {
        let mut state = self.enter()?;
        Ok(keys
            .iter()
            .map(|key| match state.objects.remove(key) {
                Some(_) => DeleteOutcome::Deleted,
                None => DeleteOutcome::Absent,
            })
            .collect())
    }

    fn list(&self, after: Option<&Key>, limit: u32) -> Result<Listing, ControlError> {
        let state = self.enter()?;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = state.objects.range::<Key, _>((from, Bound::Unbounded));
        let objects = rest
            .by_ref()
            .take(limit as usize)
            .map(|(key, hit)| ObjectInfo {
                key: key.clone(),
                location: hit.location,
                meta: hit.meta,
                leases: 0,
                pins: 0,
            })
            .collect();
        Ok(Listing {
            objects,
            more: rest.next().is_some(),
        })
    }

    fn stats(&self) -> Result<EngineStats, ControlError> {
        self.engine.change(|state| state.waiting += 1);
        self.engine
            .wait_until("the end of the wait", |state| !state.stats_wait);
        self.engine.change(|state| state.waiting -= 1);
        Ok(EngineStats {
            objects: self.enter()?.objects.len() as u64,
            policy: "lru".to_owned(),
            ..EngineStats::default()
        })
    }

    fn ping(&self) -> Result<(), ControlError> {
        self.enter().map(drop)
    }

    fn leave(&self) -> Result<(), ControlError> {
        let mut state = self.enter()?;
        state.sessions.remove(&self.info.id);
        state.left.insert(self.info.id);
        self.engine.changed.notify_all();
        Ok(())
    }
}

impl Drop for FakeSession {
    fn drop(&mut self) {
        let _ = self.leave();
    }
}

impl Tenant for FakeSession {
    fn is_gone(&self) -> bool {
        let state = self.engine.lock();
        state.left.contains(&self.info.id)
            && state.granted.values().all(|owner| *owner != self.info.id)
    }
}

/// A door with an engine behind it, in a directory of its own.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) engine: Arc<FakeEngine>,
    pub(crate) door: UnixDoor,
    pub(crate) state: StateDir,
    pub(crate) dir: Arc<tempfile::TempDir>,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_with(FakeEngine::new(1), |_| {})
    }

    pub(crate) fn start_with(
        engine: Arc<FakeEngine>,
        configure: impl FnOnce(&mut DoorConfig),
    ) -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        Self::start_in(dir, engine, configure)
    }

    pub(crate) fn start_in(
        dir: Arc<tempfile::TempDir>,
        engine: Arc<FakeEngine>,
        configure: impl FnOnce(&mut DoorConfig),
    ) -> Self {
        let state = StateDir::lock(&dir.path().join("state")).unwrap();
        let mut config = DoorConfig::new(state.socket_path());
        configure(&mut config);
        let house: Arc<dyn House> = Arc::<FakeEngine>::clone(&engine);
        let door = UnixDoor::open(house, &state, config).unwrap();
        Self {
            engine,
            door,
            state,
            dir,
        }
    }

    pub(crate) fn count(&self, name: &str) -> u64 {
        let mut counters = self.door.counters();
        counters
            .find(|counter| counter.metric().name == name)
            .unwrap_or_else(|| panic!("no counter {name}"))
            .get()
    }

    /// Waits until a counter has this value.
    pub(crate) fn wait_for_count(&self, name: &str, value: u64) {
        wait(&format!("{name} = {value}"), || self.count(name) == value);
    }
}

/// Waits until `done`.
pub(crate) fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + WATCHDOG;
    while !done() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Set for a child process: what it is to do.
pub(crate) const ROLE: &str = "ONDOL_TEST_ROLE";
/// Set for a child process: where the socket is.
pub(crate) const SOCKET: &str = "ONDOL_TEST_SOCKET";

/// A child that runs the test `entry` of this binary in a role; killed when dropped.
#[derive(Debug)]
pub(crate) struct Helper(pub(crate) Child);

impl Helper {
    pub(crate) fn start(role: &str, socket: &Path) -> Self {
        Self::start_as(&std::env::current_exe().unwrap(), role, socket, |_| {})
    }

    pub(crate) fn start_as(
        exe: &Path,
        role: &str,
        socket: &Path,
        prepare: impl FnOnce(&mut Command),
    ) -> Self {
        let mut command = Command::new(exe);
        command
            .args(["--exact", "entry", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(SOCKET, socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        prepare(&mut command);
        Self(command.spawn().unwrap())
    }

    /// Reads the child's output up to a line that starts with `mark`, and gives the rest of that line.
    pub(crate) fn line(&mut self, mark: &str) -> String {
        let out = self.0.stdout.as_mut().unwrap();
        let mut text = Vec::new();
        let mut byte = [0];
        while out.read(&mut byte).unwrap() == 1 {
            text.push(byte[0]);
            let last = text.strip_suffix(b"\n");
            if let Some(line) = last.map(|text| text.rsplit(|byte| *byte == b'\n').next().unwrap())
                && let Some(at) = line
                    .windows(mark.len())
                    .position(|part| part == mark.as_bytes())
            {
                return String::from_utf8(line[at + mark.len()..].to_vec()).unwrap();
            }
        }
        panic!(
            "the child ended without {mark:?}: {}",
            String::from_utf8_lossy(&text)
        );
    }

    /// SIGKILL, and wait for the end.
    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Proof that two descriptors are the same file: what is written to one is read from the other.
pub(crate) fn assert_shared(ours: &File, received: OwnedFd) {
    let mut ours = ours.try_clone().unwrap();
    ours.rewind().unwrap();
    ours.write_all(b"through the door").unwrap();
    let mut theirs = File::from(received);
    theirs.rewind().unwrap();
    let mut text = [0; 16];
    theirs.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"through the door");
}
