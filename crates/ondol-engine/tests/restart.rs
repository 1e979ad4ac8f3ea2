//! What becomes of a pool when its server ends: killed or stopped, the same boot or another one, on every kind of device.
//!
//! The server is a real process, this program started again, so that it can be killed; the clients' process is the test.

use std::io::{BufRead, BufReader, Lines};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

use ondol_engine::{Durability, Engine, EngineConfig, EngineError, Persistence, Session, Verify};
use ondol_memory::{DeviceEnv, DeviceError, LogError, PoolRecord};
use ondol_plugin::Key;
use ondol_protocol::{
    Access, ClientId, Commit, CommitOutcome, ControlError, ControlPlane, Grant, GrantRequest,
    IndexFiles, Pin, PinOutcome, Retrieve,
};
use ondol_shm::{
    IndexReader, Lease, LeaseSlots, Location, Looked, ObjectMeta, Process, ReadMapping, ReadRegion,
    SlotLease, SlotTable, WriteMapping, WriteRegion,
};
use xxhash_rust::xxh3::xxh3_64;

const PAGE: u64 = 512 << 10;
/// Half of what the pool holds.
const OBJECTS: u64 = 8;
const INSTANCE: [u8; 16] = [7; 16];
/// The request of a grant that is never committed.
const OPEN_REQUEST: u64 = 1000;

/// Where a pool and its state lie.
struct Site {
    root: tempfile::TempDir,
}

/// A server as it is started.
#[derive(Clone)]
struct Setup {
    root: PathBuf,
    devices: Vec<String>,
    durability: Durability,
    boot: String,
    fresh: bool,
}

impl Site {
    fn new() -> Self {
        // Not /tmp, which may be memory.
        let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for dir in ["shm", "pool", "state"] {
            std::fs::create_dir(root.path().join(dir)).unwrap();
        }
        let dax = std::fs::File::create(root.path().join("dax")).unwrap();
        dax.set_len(12 << 20).unwrap();
        let sysfs = root.path().join("sys/bus/dax/devices/dax");
        std::fs::create_dir_all(&sysfs).unwrap();
        std::fs::write(sysfs.join("size"), "12582912").unwrap();
        Self { root }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn shm(&self) -> String {
        "shm:pool?size=8MiB".to_owned()
    }

    fn dir(&self) -> String {
        format!("dir:{}?size=8MiB&region=2MiB", self.path("pool").display())
    }

    fn dax(&self) -> String {
        format!("dax:{}?size=12MiB", self.path("dax").display())
    }

    fn setup(&self, devices: &[String]) -> Setup {
        Setup {
            root: self.root.path().to_owned(),
            devices: devices.to_vec(),
            durability: Durability::None,
            boot: "boot-1".to_owned(),
            fresh: false,
        }
    }
}

impl Setup {
    fn config(&self) -> EngineConfig {
        let devices = self.devices.iter().map(|device| device.parse().unwrap());
        let mut config = EngineConfig::new(devices.collect::<Vec<_>>());
        let mut env = DeviceEnv::default();
        env.shm_root = self.root.join("shm");
        env.sysfs_root = self.root.join("sys");
        env.plain_file_as_dax = true;
        config.device_env = env;
        config.region_bytes = Some(2 << 20);
        config.share_limit = Some(u64::MAX);
        config.boot_id = Some(self.boot.clone());
        let mut persistence = Persistence::new(self.root.join("state"));
        persistence.durability = self.durability;
        persistence.fresh = self.fresh;
        persistence.log.segment_bytes = 1 << 20;
        config.persistence = Some(persistence);
        config
    }

    fn open(&self) -> Arc<Engine> {
        Engine::open(self.config()).unwrap()
    }

    fn after_reboot(&self) -> Self {
        Self {
            boot: "boot-2".to_owned(),
            ..self.clone()
        }
    }

    fn of_environment() -> Self {
        let text = |name: &str| std::env::var(name).unwrap();
        Self {
            root: text("ONDOL_TEST_ROOT").into(),
            devices: text("ONDOL_TEST_DEVICES")
                .split(' ')
                .map(str::to_owned)
                .collect(),
            durability: text("ONDOL_TEST_DURABILITY").parse().unwrap(),
            boot: text("ONDOL_TEST_BOOT"),
            fresh: false,
        }
    }

    /// A test of this program as a process of its own.
    fn process(&self, test: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", test, "--nocapture", "--ignored"])
            .env("ONDOL_TEST_ROOT", &self.root)
            .env("ONDOL_TEST_DEVICES", self.devices.join(" "))
            .env("ONDOL_TEST_DURABILITY", self.durability.to_string())
            .env("ONDOL_TEST_BOOT", &self.boot);
        command
    }

    /// Starts and stops a server; whether it came to its end.
    fn start_and_stop(&self, failpoints: &str) -> bool {
        let mut command = self.process("short_lived_server_process");
        let ended = command
            .env("ONDOL_TEST_FAILPOINTS", failpoints)
            .output()
            .unwrap();
        let killed = std::os::unix::process::ExitStatusExt::signal(&ended.status) == Some(9);
        assert!(ended.status.success() || killed, "{failpoints}: {ended:?}");
        !killed
    }

    fn start(&self) -> Server {
        let mut child = self
            .process("server_process")
            .env("ONDOL_TEST_CLIENT", std::process::id().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.find_map(|line| {
            let line = line.unwrap();
            let ready = line.split_once("READY ")?.1.to_owned();
            Some(ready)
        });
        let ready = ready.expect("the server came up");
        let mut files = ready.split(' ').map(|number| {
            let file = PathBuf::from(format!("/proc/{}/fd/{number}", child.id()));
            // The index is for reading only.
            let both = std::fs::File::options().read(true).write(true).open(&file);
            both.or_else(|_| std::fs::File::open(&file)).unwrap()
        });
        let [table, index, slots] = [(); 3].map(|()| files.next().unwrap());
        drop(files);
        Server {
            child,
            _lines: lines,
            table: table.into(),
            index: IndexReader::open(index.as_fd()).unwrap(),
            slots: SlotTable::open(slots.as_fd()).unwrap(),
        }
    }
}

struct Server {
    child: Child,
    /// Kept open, as it prints until its end.
    _lines: Lines<BufReader<ChildStdout>>,
    /// The lease table of its client.
    table: OwnedFd,
    /// What its client reads and writes for itself.
    index: IndexReader,
    slots: Arc<SlotTable>,
}

impl Server {
    fn kill(mut self) -> OwnedFd {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.table
    }

    /// Lets it stop in order.
    fn stop(mut self) -> OwnedFd {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
        self.table
    }
}

/// The server's side: one client, which is the process that started this one, stores objects, pins the first, reads
/// the second and third, of which the third is deleted, and holds a page that it did not commit.
#[test]
#[ignore = "started by the other tests"]
fn server_process() {
    let Ok(client) = std::env::var("ONDOL_TEST_CLIENT") else {
        return;
    };
    let engine = Setup::of_environment().open();
    let process = Process::of_pid(client.parse().unwrap()).unwrap();
    let client = Client::new(engine.attach(Some(&process), INSTANCE).unwrap());
    assert_eq!(client.session.client().id, ClientId(1));
    for index in 0..OBJECTS {
        client.store(index);
    }
    assert_eq!(client.pin(0, 1), PinOutcome::Done);
    let _held = [client.lease(1).unwrap(), client.lease(2).unwrap()];
    client.session.delete(&[Key::integer(2)]).unwrap();
    client.grant(OPEN_REQUEST, 2).unwrap();
    let IndexFiles { index, slots } = client.session.index().unwrap().unwrap();
    let [table, index_file, slots_file] = [&client.table, &index, &slots].map(AsRawFd::as_raw_fd);
    println!("READY {table} {index_file} {slots_file}");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    engine.close().unwrap();
}

/// A server that is stopped as soon as it has started, unless a failpoint ends it before.
#[test]
#[ignore = "started by the other tests"]
fn short_lived_server_process() {
    let Ok(failpoints) = std::env::var("ONDOL_TEST_FAILPOINTS") else {
        return;
    };
    ondol_catalog::arm_failpoints(&failpoints).unwrap();
    Setup::of_environment().open().close().unwrap();
}

struct Client {
    session: Arc<Session>,
    table: OwnedFd,
    slots: Arc<LeaseSlots>,
}

fn bytes_of(index: u64) -> Vec<u8> {
    vec![index as u8 + 1; PAGE as usize]
}

impl Client {
    fn new(session: Arc<Session>) -> Self {
        let table = session.lease_table().unwrap();
        Self {
            slots: LeaseSlots::open(table.as_fd()).unwrap(),
            table,
            session,
        }
    }

    /// The two leases that it has had since before its server was killed.
    fn held(&self) -> [Lease; 2] {
        [(); 2].map(|()| self.slots.propose().unwrap())
    }

    fn grant(&self, request: u64, count: u32) -> Result<Vec<Grant>, ControlError> {
        self.session.grant(GrantRequest {
            request,
            stride: PAGE,
            count,
        })
    }

    fn write(&self, grant: Grant, bytes: &[u8]) {
        let regions = self.session.regions().unwrap();
        let mut regions = regions.iter();
        let region = regions
            .find(|region| region.handle.span.region_id == grant.page.region)
            .unwrap();
        let file = self.session.open_backing(&region.handle, Access::Write);
        let mapping = WriteMapping::new(file.unwrap().as_fd(), region.backing_len).unwrap();
        let region = WriteRegion::new(Arc::new(mapping), region.handle.span, region.stride);
        let mut page = Arc::new(region.unwrap())
            .claim(grant.page, bytes.len() as u64)
            .unwrap();
        page.copy_from_slice(bytes);
    }

    fn commit(&self, index: u64, grant: Grant) -> CommitOutcome {
        let commit = Commit {
            key: Key::integer(index),
            location: Location {
                page: grant.page,
                generation: grant.generation,
                len: PAGE,
            },
            meta: ObjectMeta {
                layout: None,
                checksum: Some(xxh3_64(&bytes_of(index))),
            },
        };
        self.session.commit(&[commit]).unwrap()[0]
    }

    fn store(&self, index: u64) -> Grant {
        let grant = self.grant(index + 1, 1).unwrap()[0];
        self.write(grant, &bytes_of(index));
        assert_eq!(self.commit(index, grant), CommitOutcome::Stored);
        grant
    }

    fn pin(&self, index: u64, number: u64) -> PinOutcome {
        let key = Key::integer(index);
        self.session.pin(&[Pin { key, number }]).unwrap()[0]
    }

    fn lease(&self, index: u64) -> Option<(Lease, Location)> {
        let lease = self.slots.propose().unwrap();
        let request = Retrieve {
            keys: vec![Key::integer(index)],
            leases: vec![lease.reference()],
            group: 1,
            prefix: false,
            expect: None,
            wait_ms: 0,
            expected_len: 0,
        };
        let answer = self.session.retrieve(&request).unwrap();
        answer.hits[0].map(|hit| (lease, hit.location))
    }

    fn read(&self, index: u64) -> Option<Vec<u8>> {
        let (lease, location) = self.lease(index)?;
        let regions = self.session.regions().unwrap();
        let mut regions = regions.iter();
        let region = regions
            .find(|region| region.handle.span.region_id == location.page.region)
            .unwrap();
        let file = self.session.open_backing(&region.handle, Access::Read);
        let mapping = ReadMapping::new(file.unwrap().as_fd(), region.backing_len).unwrap();
        let region = ReadRegion::new(Arc::new(mapping), region.handle.span, region.stride);
        Some(region.unwrap().view(location, lease).unwrap().to_vec())
    }
}

/// What the index and a lease by a slot say of an object; nothing if the server is to be asked.
fn find(index: &IndexReader, slots: &Arc<SlotTable>, key: u64) -> Option<(Location, SlotLease)> {
    let mut found = None;
    index.lease(slots, &[Key::integer(key)], |_, looked| {
        if let Looked::Found((object, lease)) = looked {
            found = Some((object.location, lease));
        }
    });
    found
}

fn visible(client: &Client) -> Vec<u64> {
    (0..OBJECTS)
        .filter(|index| {
            client
                .read(*index)
                .is_some_and(|bytes| bytes == bytes_of(*index))
        })
        .collect()
}

/// Everything but the third object, which was deleted.
fn all() -> Vec<u64> {
    (0..OBJECTS).filter(|index| *index != 2).collect()
}

fn newcomer(engine: &Arc<Engine>) -> Client {
    Client::new(engine.attach(None, [1; 16]).unwrap())
}

fn free_pages(engine: &Engine) -> (u64, u64) {
    let stats = engine.stats();
    let class = stats.classes.iter().find(|class| class.stride == PAGE);
    class.map_or((0, 0), |class| (class.pages, class.free))
}

#[test]
fn after_a_kill_everything_is_there_and_a_living_client_goes_on() {
    let site = Site::new();
    for device in [site.shm(), site.dir(), site.dax()] {
        println!("{device}");
        let setup = Setup {
            fresh: true,
            ..site.setup(&[device])
        };
        // Whatever the device before left.
        setup.open().close().unwrap();
        let setup = Setup {
            fresh: false,
            ..setup
        };
        let table = setup.start().kill();
        let engine = setup.open();
        assert!(engine.restart().warm, "{}", engine.restart().why);
        assert_eq!(engine.restart().objects, OBJECTS - 1);
        let adopted = engine.take_adopted();
        assert_eq!(adopted.len(), 1);
        assert_eq!(
            (adopted[0].id, adopted[0].instance),
            (ClientId(1), INSTANCE)
        );
        let process = adopted[0].process.as_ref().unwrap();
        assert_eq!(process.pid(), std::process::id());
        let other = newcomer(&engine);
        assert!(other.session.client().id > ClientId(1));
        assert_eq!(visible(&other), all());

        // Objects that it pins or reads, and the one that was removed under it, stay until it says otherwise.
        let (pages, _) = free_pages(&engine);
        let mut request = 5000;
        let mut granted = Vec::new();
        while let Ok(grants) = other.grant(request, 1) {
            granted.extend(grants);
            request += 1;
            assert!(request < 6000);
        }
        let stats = engine.stats();
        assert_eq!((stats.objects, stats.retired), (2, 1), "of {pages} pages");
        assert_eq!(
            other.session.return_pages(&granted).unwrap().len(),
            granted.len()
        );

        let session = engine.resume(ClientId(1), table).unwrap();
        let client = Client::new(session);
        let held = client.held();
        assert!(matches!(
            engine.resume(ClientId(1), client.session.lease_table().unwrap()),
            Err(ControlError::UnknownClient(_))
        ));
        let open = client.grant(OPEN_REQUEST, 2).unwrap();
        assert_eq!(open, client.grant(OPEN_REQUEST, 2).unwrap());
        assert_eq!(client.pin(0, 1), PinOutcome::Done);
        let pins = engine
            .stats()
            .clients
            .iter()
            .map(|client| client.pins)
            .sum::<u64>();
        assert_eq!(pins, 1, "a pin that was asked for again was made twice");
        client.write(open[0], &bytes_of(2));
        assert_eq!(client.commit(2, open[0]), CommitOutcome::Stored);
        assert_eq!(client.read(2).unwrap(), bytes_of(2));
        assert_eq!(client.session.return_pages(&open[1..]).unwrap(), [Ok(())]);

        assert_eq!(engine.stats().retired, 1);
        drop(held);
        assert_eq!(engine.stats().retired, 0);
        engine.close().unwrap();
    }
}

#[test]
fn what_a_living_client_reads_without_asking_outlives_its_server() {
    let site = Site::new();
    for device in [site.shm(), site.dir()] {
        let setup = Setup {
            fresh: true,
            ..site.setup(&[device])
        };
        setup.open().close().unwrap();
        let setup = Setup {
            fresh: false,
            ..setup
        };
        let server = setup.start();
        let slots = Arc::clone(&server.slots);
        let (kept, lease) = find(&server.index, &slots, 3).unwrap();
        assert!(find(&server.index, &slots, 2).is_none(), "it was deleted");
        let Server {
            mut child,
            table,
            index: old,
            ..
        } = server;
        child.kill().unwrap();
        child.wait().unwrap();

        let engine = setup.open();
        assert!(
            find(&old, &slots, 4).is_none(),
            "by the index of a dead server"
        );
        assert_eq!(slots.in_use(), 1);
        let other = newcomer(&engine);
        let mut granted = Vec::new();
        let mut request = 5000;
        while let Ok(grants) = other.grant(request, 1) {
            granted.extend(grants);
            request += 1;
            assert!(request < 6000);
        }
        assert!(granted.iter().all(|grant| grant.page != kept.page));
        // It pins one and reads three, of which one is gone.
        let stats = engine.stats();
        assert_eq!((stats.objects, stats.retired), (3, 1));

        let client = Client::new(engine.resume(ClientId(1), table).unwrap());
        let _held = client.held();
        let files = client.session.index().unwrap().unwrap();
        let index = IndexReader::open(files.index.as_fd()).unwrap();
        // Its bytes are to be checked first.
        assert!(find(&index, &slots, 3).is_none());
        assert_eq!(client.read(3).unwrap(), bytes_of(3));
        // Of the same table it is not to be told twice.
        assert_eq!(slots.incarnation(), index.incarnation());
        let (again, second) = find(&index, &slots, 3).unwrap();
        assert_eq!(again, kept);
        let leases = |engine: &Engine| {
            let stats = engine.stats();
            let client = stats.clients.iter().find(|client| client.id == 1);
            client.unwrap().leases
        };
        assert_eq!(leases(&engine), 4);
        drop((lease, second));
        assert_eq!(leases(&engine), 2);
        assert_eq!(other.grant(request + 1, 1).unwrap()[0].page, kept.page);
        engine.close().unwrap();
        assert!(find(&index, &slots, 3).is_none(), "the engine is closed");
    }
}

#[test]
fn what_the_dead_held_is_taken_back_at_once() {
    let site = Site::new();
    let setup = site.setup(&[site.shm()]);
    let mut bystander = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    {
        // A process between: the client is `cat`, which is dead when the next server comes.
        let engine = setup.open();
        let process = Process::of_pid(bystander.id()).unwrap();
        let client = Client::new(engine.attach(Some(&process), INSTANCE).unwrap());
        client.store(0);
        client.pin(0, 1);
        client.grant(OPEN_REQUEST, 2).unwrap();
        let _held = client.lease(0).unwrap();
        client.session.delete(&[Key::integer(1)]).unwrap();
        engine.close().unwrap();
    }
    bystander.kill().unwrap();
    bystander.wait().unwrap();
    let engine = setup.open();
    assert!(engine.take_adopted().is_empty());
    let stats = engine.stats();
    assert_eq!(stats.counters["ondol_reclaimed_pins_total"], 1);
    assert_eq!(stats.counters["ondol_reclaimed_grants_total"], 2);
    assert!(stats.clients.is_empty());
    let (pages, free) = free_pages(&engine);
    assert_eq!(pages - free, 1);
    for files in ["state/leases", "state/slots"] {
        let files = std::fs::read_dir(site.path(files)).unwrap();
        assert_eq!(files.count(), 0);
    }
}

#[test]
fn bytes_that_changed_are_a_miss_and_their_object_is_removed() {
    let site = Site::new();
    let setup = site.setup(&[site.shm()]);
    let table = setup.start().kill();
    // The object that is pinned and one that is not.
    let damage = |index: u64| {
        let file = std::fs::read(site.path("shm/pool")).unwrap();
        let bytes = bytes_of(index);
        let mut pages = file.chunks(PAGE as usize);
        let at = pages.position(|page| page == bytes).unwrap() as u64 * PAGE;
        let file = std::fs::File::options()
            .write(true)
            .open(site.path("shm/pool"));
        std::os::unix::fs::FileExt::write_all_at(&file.unwrap(), b"!", at + 1000).unwrap();
    };
    damage(0);
    damage(5);
    let engine = setup.open();
    let client = Client::new(engine.resume(ClientId(1), table).unwrap());
    assert!(client.lease(0).is_none() && client.lease(5).is_none());
    assert_eq!(visible(&client), [1, 3, 4, 6, 7]);
    let stats = engine.stats();
    assert_eq!(stats.counters["ondol_lost_objects_total"], 2);
    assert_eq!(stats.objects, 5);
    let unpin = Pin {
        key: Key::integer(0),
        number: 1,
    };
    assert_eq!(
        client.session.unpin(&[unpin]).unwrap(),
        [PinOutcome::Absent]
    );
    // What was removed stays so.
    engine.close().unwrap();
    drop((client, engine));
    let mut config = setup.config();
    config.verify = Verify::Never;
    assert_eq!(Engine::open(config).unwrap().restart().objects, 5);
}

#[test]
fn a_pool_file_that_somebody_shortened_is_an_error_and_not_the_end_of_the_server() {
    let site = Site::new();
    let setup = site.setup(&[site.shm()]);
    let engine = setup.open();
    newcomer(&engine).store(1);
    engine.close().unwrap();
    drop(engine);
    let engine = setup.open();
    let client = newcomer(&engine);
    let file = std::fs::File::options()
        .write(true)
        .open(site.path("shm/pool"))
        .unwrap();
    file.set_len(0).unwrap();
    let lease = client.slots.propose().unwrap();
    let request = Retrieve {
        keys: vec![Key::integer(1)],
        leases: vec![lease.reference()],
        group: 1,
        prefix: false,
        expect: None,
        wait_ms: 0,
        expected_len: 0,
    };
    let found = client.session.retrieve(&request);
    assert!(matches!(found, Err(ControlError::Failed(_))), "{found:?}");
    assert_eq!(engine.stats().objects, 1, "nothing was taken for lost");
}

#[test]
fn another_boot_decides_by_device_durability_and_the_way_it_stopped() {
    let site = Site::new();
    let cases = [
        (vec![site.shm()], Durability::Fsync, true, None),
        (vec![site.dir()], Durability::None, false, None),
        (vec![site.dir()], Durability::None, true, Some(OBJECTS - 1)),
        (
            vec![site.dir()],
            Durability::Fsync,
            false,
            Some(OBJECTS - 1),
        ),
        (
            vec![site.dax()],
            Durability::Fsync,
            false,
            Some(OBJECTS - 1),
        ),
    ];
    for (devices, durability, stopped, expected) in cases {
        let case = format!("{devices:?}, {durability}, stopped: {stopped}");
        println!("{case}");
        let setup = Setup {
            durability,
            fresh: true,
            ..site.setup(&devices)
        };
        setup.open().close().unwrap();
        let setup = Setup {
            fresh: false,
            ..setup
        };
        let server = setup.start();
        drop(if stopped {
            server.stop()
        } else {
            server.kill()
        });
        let setup = setup.after_reboot();
        let engine = setup.open();
        let restart = engine.restart();
        assert_eq!(restart.warm, expected.is_some(), "{case}: {}", restart.why);
        assert_eq!(restart.objects, expected.unwrap_or(0), "{case}");
        // Nobody outlives the machine.
        assert!(engine.take_adopted().is_empty());
        assert!(matches!(
            engine.resume(ClientId(1), ondol_shm::create_lease_table().unwrap()),
            Err(ControlError::UnknownClient(_))
        ));
        let client = newcomer(&engine);
        let expected = if expected.is_some() { all() } else { vec![] };
        assert_eq!(visible(&client), expected, "{case}");
        if !expected.contains(&0) {
            client.store(0);
        }
        drop((client, engine));
        // The new boot has the pool now: ended without a word, it is the same after.
        let engine = setup.open();
        assert!(engine.restart().warm, "{case}: {}", engine.restart().why);
        assert!(visible(&newcomer(&engine)).contains(&0));
    }
}

#[test]
fn a_reboot_takes_what_lay_in_memory_and_leaves_the_rest() {
    let site = Site::new();
    let setup = Setup {
        durability: Durability::Fsync,
        ..site.setup(&["shm:pool?size=2MiB".to_owned(), site.dir()])
    };
    setup.start().kill();
    std::fs::remove_file(site.path("shm/pool")).unwrap();
    let setup = setup.after_reboot();
    let engine = setup.open();
    assert!(engine.restart().warm);
    // The first four objects lay in the first region, which was the memory.
    assert_eq!(engine.restart().objects, 4);
    assert_eq!(engine.stats().counters["ondol_lost_objects_total"], 3);
    let client = newcomer(&engine);
    assert_eq!(visible(&client), [4, 5, 6, 7]);
    client.store(0);
    drop((client, engine));
    assert_eq!(visible(&newcomer(&setup.open())), [0, 4, 5, 6, 7]);
}

#[test]
fn a_fresh_start_finds_its_pool_though_the_lock_file_is_gone() {
    type Device = fn(&Site) -> String;
    let devices: [(Device, &str); 2] = [
        (Site::shm, "shm/pool.owner"),
        (Site::dir, "pool/ondol.owner"),
    ];
    for (device, owner) in devices {
        let site = Site::new();
        let setup = site.setup(&[device(&site)]);
        setup.open().close().unwrap();
        std::fs::remove_file(site.path(owner)).unwrap();
        assert!(Engine::open(setup.config()).is_err());
        let fresh = Setup {
            fresh: true,
            ..setup
        };
        let engine = fresh.open();
        assert!(!engine.restart().warm);
        engine.close().unwrap();
    }
}

#[test]
fn memory_of_the_servers_own_is_refused_beside_dax() {
    let site = Site::new();
    let devices = [site.dax(), "memfd:?size=4MiB".to_owned()];
    let error = Engine::open(site.setup(&devices).config()).unwrap_err();
    assert!(matches!(error, EngineError::MemfdBesideDax));
}

#[test]
fn memory_that_ends_with_its_server_is_begun_anew() {
    let site = Site::new();
    let setup = site.setup(&["memfd:?size=8MiB".to_owned()]);
    let table = setup.start().kill();
    let engine = setup.open();
    assert!(!engine.restart().warm);
    assert!(engine.restart().why.contains("ended with its server"));
    assert!(matches!(
        engine.resume(ClientId(1), table),
        Err(ControlError::UnknownClient(_))
    ));
    newcomer(&engine).store(0);
    drop(engine);
    // There is nothing of it that another kind of pool could do away with.
    site.setup(&[site.shm()]).open().close().unwrap();
}

#[test]
fn other_devices_are_refused_and_nothing_is_touched() {
    let site = Site::new();
    let setup = site.setup(&[site.shm()]);
    setup.start().stop();
    for devices in [
        vec![site.dir()],
        vec![site.shm(), site.dir()],
        vec!["shm:pool?size=4MiB".to_owned()],
    ] {
        let error = Engine::open(site.setup(&devices).config()).unwrap_err();
        assert!(matches!(error, EngineError::OtherDevices { .. }), "{error}");
        let error = error.to_string();
        assert!(
            error.contains("shm:pool?size=8MiB") && error.contains(&devices[0]),
            "{error}"
        );
        assert!(error.contains("--fresh"), "{error}");
    }
    assert_eq!(std::fs::read_dir(site.path("pool")).unwrap().count(), 0);
    // The size may be left out.
    let engine = site.setup(&["shm:pool".to_owned()]).open();
    assert_eq!(visible(&newcomer(&engine)), all());
}

#[test]
fn an_engine_that_cannot_open_leaves_pool_and_log_as_they_were() {
    let site = Site::new();
    let setup = site.setup(&[site.shm(), site.dir()]);
    setup.start().kill();
    // One device of two is not what it was.
    let moved = site.path("moved");
    std::fs::rename(site.path("pool"), &moved).unwrap();
    std::fs::create_dir(site.path("pool")).unwrap();
    let error = Engine::open(setup.config()).unwrap_err();
    assert!(matches!(error, EngineError::Device(_)), "{error}");
    std::fs::remove_dir_all(site.path("pool")).unwrap();
    std::fs::rename(&moved, site.path("pool")).unwrap();
    assert_eq!(visible(&newcomer(&setup.open())), all());
}

/// Puts a directory aside as `cp` does.
fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    let copied = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(copied.unwrap().success());
}

/// An older copy of the state is refused; the state of now is there again afterwards.
fn refuse_copy(site: &Site, setup: &Setup, case: &str) {
    let [state, older, now] = ["state", "older", "now"].map(|name| site.path(name));
    std::fs::rename(&state, &now).unwrap();
    copy(&older, &state);
    for _ in 0..2 {
        let error = Engine::open(setup.config()).unwrap_err();
        assert!(
            matches!(&error, EngineError::Device(DeviceError::Changed { .. })),
            "{case}: {error}"
        );
        let error = error.to_string();
        assert!(
            error.contains("older copy") && error.contains("--fresh"),
            "{case}: {error}"
        );
    }
    std::fs::remove_dir_all(&state).unwrap();
    std::fs::rename(&now, &state).unwrap();
}

#[test]
fn an_older_copy_of_the_state_is_refused() {
    let site = Site::new();
    let cases = [
        vec![site.shm()],
        vec![site.dir()],
        vec![site.dax()],
        vec![site.shm(), site.dir()],
    ];
    for (devices, first_stops, second_stops) in cases
        .iter()
        .flat_map(|devices| [(devices, true), (devices, false)])
        .flat_map(|(devices, first)| [(devices, first, true), (devices, first, false)])
    {
        let case = format!("{devices:?}, stopped: {first_stops}, {second_stops}");
        println!("{case}");
        let setup = Setup {
            fresh: true,
            ..site.setup(devices)
        };
        setup.open().close().unwrap();
        let setup = Setup {
            fresh: false,
            ..setup
        };
        let server = setup.start();
        drop(if first_stops {
            server.stop()
        } else {
            server.kill()
        });
        copy(&site.path("state"), &site.path("older"));
        {
            let engine = setup.open();
            let client = newcomer(&engine);
            client.session.delete(&[Key::integer(5)]).unwrap();
            client.store(OBJECTS);
            if second_stops {
                engine.close().unwrap();
            }
        }
        refuse_copy(&site, &setup, &case);
        let engine = setup.open();
        assert_eq!(visible(&newcomer(&engine)), [0, 1, 3, 4, 6, 7], "{case}");
    }
}

#[test]
fn a_copy_of_the_state_that_was_made_while_a_server_ran_is_refused_after_it_stopped() {
    let site = Site::new();
    let setup = site.setup(&[site.shm(), site.dir()]);
    let server = setup.start();
    copy(&site.path("state"), &site.path("older"));
    server.stop();
    refuse_copy(&site, &setup, "hot");
    assert_eq!(visible(&newcomer(&setup.open())), all());
}

#[test]
fn a_copy_of_the_state_that_fits_is_as_good() {
    let site = Site::new();
    let setup = site.setup(&[site.shm(), site.dir()]);
    setup.start().kill();
    copy(&site.path("state"), &site.path("older"));
    std::fs::remove_dir_all(site.path("state")).unwrap();
    copy(&site.path("older"), &site.path("state"));
    // A start that is refused for another reason leaves it so.
    let segment = std::fs::read_dir(site.path("state/log"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| {
            path.extension()
                .is_some_and(|extension| extension == "image")
        });
    std::fs::write(segment.unwrap(), "damaged").unwrap();
    let error = Engine::open(setup.config()).unwrap_err();
    assert!(matches!(error, EngineError::Log(_)), "{error}");
    std::fs::remove_dir_all(site.path("state")).unwrap();
    copy(&site.path("older"), &site.path("state"));
    assert_eq!(visible(&newcomer(&setup.open())), all());
}

#[test]
fn a_server_that_is_killed_on_its_way_between_two_runs_is_no_reason_to_refuse() {
    let site = Site::new();
    let setup = site.setup(&[site.shm(), site.dir(), site.dax()]);
    setup.start().kill();
    copy(&site.path("state"), &site.path("older"));
    // The record is written, and each device given its run, twice at a start and a stop each.
    let steps = [
        ("recover.replayed", 1),
        ("log.pool_record_written", 4),
        ("log.pool_record_renamed", 4),
        ("device.run_expected", 2),
        ("device.run_set", 6),
        ("recover.directory_made", 1),
        ("recover.record_saved_again", 1),
        ("close.marked", 1),
        ("close.run_ended", 1),
    ];
    for (step, hits) in steps {
        for hit in 1..=hits {
            let failpoints = format!("{step}=kill@{hit}");
            println!("{failpoints}");
            // Again and again in the same place, and then at each device in turn.
            for _ in 0..3 {
                assert!(!setup.start_and_stop(&failpoints), "{failpoints}");
            }
            for hit in 1..=3 {
                assert!(!setup.start_and_stop(&format!("device.run_set=kill@{hit}")));
            }
            assert!(!setup.start_and_stop(&failpoints), "{failpoints}");
            let record = PoolRecord::load(&site.path("state/log")).unwrap().unwrap();
            for device in &record.devices {
                assert!((1..=2).contains(&device.runs().len()), "{record:?}");
            }
        }
    }
    // Whatever came to pass, all is there, and the copy from before is not taken for it.
    assert!(setup.start_and_stop(""));
    refuse_copy(&site, &setup, "after all");
    assert_eq!(visible(&newcomer(&setup.open())), all());
}

#[test]
fn where_the_record_cannot_be_written_the_run_before_goes_on() {
    let site = Site::new();
    let setup = site.setup(&[site.shm(), site.dir()]);
    setup.start().kill();
    let record = || std::fs::read(site.path("state/log/pool.json")).unwrap();
    let before = record();
    // Never, and not at the stop: neither that a new run comes, nor that it came.
    assert!(setup.start_and_stop("log.pool_record_write=error@1"));
    assert!(record() == before);
    assert!(setup.start_and_stop("log.pool_record_write=error@3"));
    assert!(setup.start_and_stop("log.pool_record_write=error@4"));
    assert!(record() != before);
    assert_eq!(visible(&newcomer(&setup.open())), all());
}

#[test]
fn a_record_that_was_damaged_is_no_reason_to_begin_anew() {
    let site = Site::new();
    let setup = site.setup(&[site.shm()]);
    setup.start().kill();
    let path = site.path("state/log/pool.json");
    let whole = std::fs::read_to_string(&path).unwrap();
    for (from, to) in [
        ("boot-1", "boot-0"),
        ("\"boot\"", "\"boou\""),
        ("\"volatile\": true", "\"volatile\": false"),
        ("\"fsync\": false", "\"fsync\": true"),
    ] {
        assert!(whole.contains(from), "{whole}");
        std::fs::write(&path, whole.replace(from, to)).unwrap();
        let error = Engine::open(setup.config()).unwrap_err();
        assert!(
            matches!(error, EngineError::Log(LogError::Corrupt { .. })),
            "{error}"
        );
    }
    std::fs::write(&path, whole).unwrap();
    assert_eq!(visible(&newcomer(&setup.open())), all());
}

#[test]
fn a_living_client_without_its_book_or_its_slot_table_is_a_reason_to_stop() {
    let site = Site::new();
    let setup = site.setup(&[site.shm()]);
    setup.start().kill();
    let aside = site.path("state/aside");
    let is_refused = || {
        let error = Engine::open(setup.config()).unwrap_err();
        assert!(
            matches!(error, EngineError::LeaseBook { client: 1, .. }),
            "{error}"
        );
    };
    let slots = site.path("state/slots");
    // So that it is not the state of a server that knew no such tables.
    std::fs::write(slots.join("foreign"), "").unwrap();
    for file in [site.path("state/leases/1"), slots.join("1")] {
        std::fs::rename(&file, &aside).unwrap();
        is_refused();
        std::fs::rename(&aside, &file).unwrap();
    }
    let table = std::fs::read(slots.join("1")).unwrap();
    std::fs::write(slots.join("1"), &table[..table.len() / 2]).unwrap();
    is_refused();
    std::fs::write(slots.join("1"), &table).unwrap();
    assert_eq!(visible(&newcomer(&setup.open())), all());
}

#[test]
fn clients_of_a_server_that_knew_no_slot_tables_get_theirs() {
    let site = Site::new();
    let setup = site.setup(&[site.shm()]);
    let table = setup.start().kill();
    std::fs::remove_dir_all(site.path("state/slots")).unwrap();
    drop(setup.open());
    // Nor does the next one miss it.
    let engine = setup.open();
    let client = Client::new(engine.resume(ClientId(1), table).unwrap());
    let files = client.session.index().unwrap().unwrap();
    let index = IndexReader::open(files.index.as_fd()).unwrap();
    let slots = SlotTable::open(files.slots.as_fd()).unwrap();
    let _held = client.held();
    assert!(client.read(3).is_some());
    assert!(find(&index, &slots, 3).is_some());
}

#[test]
fn a_fresh_start_leaves_old_clients_their_memory() {
    let site = Site::new();
    let setup = site.setup(&[site.shm()]);
    let server = setup.start();
    let (slots, held) = (
        Arc::clone(&server.slots),
        find(&server.index, &server.slots, 3),
    );
    assert!(held.is_some());
    let table = server.kill();
    let old = std::fs::File::open(site.path("shm/pool")).unwrap();
    let before = std::fs::read(site.path("shm/pool")).unwrap();
    let fresh = Setup {
        fresh: true,
        ..setup.clone()
    };
    assert_ne!(slots.incarnation(), 0);
    let engine = fresh.open();
    assert!(!engine.restart().warm);
    assert_eq!(slots.incarnation(), 0, "it may still confirm a lease");
    assert!(!site.path("state/slots/1").exists());
    assert!(matches!(
        engine.resume(ClientId(1), table),
        Err(ControlError::UnknownClient(_))
    ));
    let client = newcomer(&engine);
    for index in 0..OBJECTS {
        client.store(index + 100);
    }
    let mut after = vec![0; before.len()];
    std::os::unix::fs::FileExt::read_exact_at(&old, &mut after, 0).unwrap();
    assert!(
        before == after,
        "bytes changed under a client of the pool before"
    );
    drop((client, engine));
    assert_eq!(setup.open().restart().objects, OBJECTS);
}

#[test]
fn a_switch_to_fsync_makes_durable_what_was_not() {
    let site = Site::new();
    let setup = site.setup(&[site.dir()]);
    setup.start().kill();
    let durable = Setup {
        durability: Durability::Fsync,
        ..setup.clone()
    };
    drop(durable.open());
    assert!(durable.after_reboot().open().restart().warm);
    // And back: from then on a reboot without a clean stop is not to be trusted.
    let setup = setup.after_reboot();
    drop(setup.open());
    let reboot = Setup {
        boot: "boot-3".to_owned(),
        ..setup
    };
    assert!(!reboot.open().restart().warm);
}

#[test]
fn a_closed_engine_keeps_what_its_clients_hold_and_changes_nothing() {
    let site = Site::new();
    let setup = site.setup(&[site.shm()]);
    let table = setup.start().stop();
    let engine = setup.open();
    let client = Client::new(engine.resume(ClientId(1), table).unwrap());
    assert_eq!(engine.health(), Ok(()));
    engine.close().unwrap();
    engine.close().unwrap();
    assert!(engine.health().is_err());
    assert!(matches!(client.grant(1, 1), Err(ControlError::Failed(_))));
    assert!(client.read(3).is_some(), "reads go on");
    let table = client.session.lease_table().unwrap();
    drop((client, engine));
    let engine = setup.open();
    assert_eq!(engine.restart().why, "the last run was stopped cleanly");
    let client = Client::new(engine.resume(ClientId(1), table).unwrap());
    assert_eq!(client.grant(OPEN_REQUEST, 2).unwrap().len(), 2);
}

#[test]
fn clients_keep_their_pins_though_an_engine_could_not_be_closed() {
    let site = Site::new();
    let setup = site.setup(&[site.dir()]);
    let engine = setup.open();
    let client = newcomer(&engine);
    client.store(3);
    assert_eq!(client.pin(3, 1), PinOutcome::Done);
    let file = site.path("pool/ondol-000000.region");
    let away = site.path("away");
    std::fs::rename(&file, &away).unwrap();
    engine.close().unwrap_err();
    drop((client, engine));
    std::fs::rename(&away, &file).unwrap();
    let engine = setup.open();
    let pins: Vec<_> = engine.stats().clients.iter().map(|it| it.pins).collect();
    assert_eq!(pins, [1]);
}

#[test]
fn a_foreign_file_among_the_clients_files_stays_and_a_link_is_refused() {
    let site = Site::new();
    let setup = site.setup(&[site.shm()]);
    setup.open().close().unwrap();
    for (files, away) in [("state/leases", "away"), ("state/slots", "far")] {
        let (files, away) = (site.path(files), site.path(away));
        for name in ["77", "npmrc"] {
            std::fs::write(files.join(name), "").unwrap();
        }
        setup.open().close().unwrap();
        assert!(files.join("npmrc").exists());
        assert!(!files.join("77").exists(), "the file of nobody");
        std::fs::rename(&files, &away).unwrap();
        std::fs::write(away.join("88"), "").unwrap();
        std::os::unix::fs::symlink(&away, &files).unwrap();
        let error = Engine::open(setup.config()).unwrap_err().to_string();
        assert!(error.contains("a symbolic link"), "{error}");
        assert!(away.join("88").exists());
        std::fs::remove_file(&files).unwrap();
    }
}

#[test]
fn only_a_client_that_holds_something_is_expected_back() {
    let site = Site::new();
    let setup = site.setup(&[site.shm()]);
    let engine = setup.open();
    let [left, idle, granted] =
        [3, 4, 5].map(|instance| Client::new(engine.attach(None, [instance; 16]).unwrap()));
    left.grant(1, 1).unwrap();
    let grants = left.grant(1, 1).unwrap();
    left.session.return_pages(&grants).unwrap();
    left.session.leave().unwrap();
    granted.grant(1, 1).unwrap();
    assert_eq!(
        std::fs::read_dir(site.path("state/leases"))
            .unwrap()
            .count(),
        2,
        "the book of the client that left is still there"
    );
    engine.close().unwrap();
    drop((left, idle, granted, engine));
    let engine = setup.open();
    let expected: Vec<_> = engine.take_adopted().iter().map(|it| it.instance).collect();
    assert_eq!(expected, [[5; 16]]);
}

#[test]
fn state_lies_where_only_its_owner_looks() {
    use std::os::unix::fs::PermissionsExt;
    let site = Site::new();
    let engine = site.setup(&[site.shm()]).open();
    let client = newcomer(&engine);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let files = ["state/leases", "state/slots"].map(|files| site.path(files));
    for files in &files {
        assert_eq!(mode(files), 0o700);
        assert_eq!(mode(&files.join("1")), 0o600);
    }
    drop(client);
    for files in files {
        let left = files.join("1");
        assert!(
            !left.exists(),
            "{left:?} of a client that left is still there"
        );
    }
}
