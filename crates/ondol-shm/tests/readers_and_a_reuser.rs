//! A server that reuses pages as fast as it can, clients that find and read objects without asking it, and both of them
//! killed, stopped and replaced at random. No client may ever see another object's bytes, and no page may be lost.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::env;
use std::fs::{self, File};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ondol_plugin::{Key, RegionId, RegionSpan};
use ondol_shm::{
    Generation, Grant, HIT_PLACES, IndexReader, IndexWriter, IndexedObject, LeasedBytes, Location,
    Looked, ObjectMeta, PageId, ReadMapping, ReadRegion, RecordId, SlotTable, SlotTableView,
    WriteMapping, WriteRegion,
};
use rustix::process::{Pid, Signal, kill_process};

const PAGES: u32 = 96;
const STRIDE: u64 = 1024;
const KEYS: u64 = 200;
const SPAN: RegionSpan = RegionSpan {
    region_id: RegionId(3),
    offset: 0,
    length: PAGES as u64 * STRIDE,
};

/// Set for a client: the directory in which everything lies, and the client's number.
const DIR: &str = "ONDOL_TEST_DIR";
const CLIENT: &str = "ONDOL_TEST_CLIENT";
/// Steps of the server; more for a longer torture.
const STEPS: &str = "ONDOL_TEST_STEPS";
const SEED: &str = "ONDOL_TEST_SEED";

/// Xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

fn page(index: u32) -> PageId {
    PageId {
        region: SPAN.region_id,
        index,
    }
}

/// What each word of an object's page is.
fn stamp(key: u64, generation: Generation) -> [u8; 8] {
    ((key << 48) | generation.0).to_le_bytes()
}

fn slots_path(dir: &Path, client: u64) -> PathBuf {
    dir.join(format!("slots-{client}"))
}

struct Server {
    dir: PathBuf,
    index: IndexWriter,
    incarnation: u64,
    region: Arc<WriteRegion>,
    generation: u64,
    objects: BTreeMap<u64, (RecordId, IndexedObject)>,
    free: Vec<PageId>,
    /// Pages of objects that cannot be found any more and may be read.
    retired: Vec<PageId>,
    clients: BTreeMap<u64, (Child, SlotTableView)>,
    next_client: u64,
    /// What living and dead clients found.
    hits: u64,
}

impl Server {
    fn start(dir: &Path) -> Self {
        let pool = File::create_new(dir.join("pool")).unwrap();
        pool.set_len(SPAN.length).unwrap();
        let mapping = WriteMapping::new(
            File::options()
                .read(true)
                .write(true)
                .open(dir.join("pool"))
                .unwrap()
                .as_fd(),
            SPAN.length,
        );
        let region = WriteRegion::new(Arc::new(mapping.unwrap()), SPAN, STRIDE).unwrap();
        let server = Self {
            dir: dir.to_owned(),
            index: IndexWriter::create(KEYS, 10, 1).unwrap(),
            incarnation: 1,
            region: Arc::new(region),
            generation: 0,
            objects: BTreeMap::new(),
            free: (0..PAGES).map(page).collect(),
            retired: Vec::new(),
            clients: BTreeMap::new(),
            next_client: 0,
            hits: 0,
        };
        server.show_index();
        server
    }

    /// Tells clients where the index is.
    fn show_index(&self) {
        let (pid, fd) = (std::process::id(), self.index.file().as_raw_fd());
        fs::write(self.dir.join("new"), format!("/proc/{pid}/fd/{fd}")).unwrap();
        fs::rename(self.dir.join("new"), self.dir.join("index")).unwrap();
    }

    fn add_client(&mut self) {
        let client = self.next_client;
        self.next_client += 1;
        let view = SlotTableView::create(&slots_path(&self.dir, client)).unwrap();
        view.set_incarnation(self.incarnation).unwrap();
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "client", "--nocapture"])
            .env(DIR, &self.dir)
            .env(CLIENT, client.to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        self.clients.insert(client, (child, view));
    }

    fn any_client(&self, random: &mut Random) -> u64 {
        let at = random.below(self.clients.len() as u64) as usize;
        *self.clients.keys().nth(at).unwrap()
    }

    fn signal(&mut self, client: u64, signal: Signal) {
        let child = &mut self.clients.get_mut(&client).unwrap().0;
        assert!(
            child.try_wait().unwrap().is_none(),
            "client {client} ended; its output tells why"
        );
        kill_process(Pid::from_child(child), signal).unwrap();
    }

    fn kill_client(&mut self, client: u64) {
        self.signal(client, Signal::KILL);
        let (mut child, view) = self.clients.remove(&client).unwrap();
        child.wait().unwrap();
        self.hits += view.counts().unwrap().0;
        fs::remove_file(slots_path(&self.dir, client)).unwrap();
    }

    /// Stores an object under a key that has none.
    fn store(&mut self, key: u64, page: PageId) {
        self.generation += 1;
        let generation = Generation(self.generation);
        let mut bytes = self.region.claim(page, STRIDE).unwrap();
        let stamp = stamp(key, generation);
        bytes
            .chunks_exact_mut(8)
            .for_each(|word| word.copy_from_slice(&stamp));
        drop(bytes);
        let object = IndexedObject {
            location: Location {
                page,
                generation,
                len: STRIDE,
            },
            meta: ObjectMeta::default(),
        };
        let record = self.index.insert(&Key::integer(key), &object, false);
        self.objects.insert(key, (record.unwrap(), object));
    }

    fn remove(&mut self, key: u64) {
        if let Some((record, object)) = self.objects.remove(&key) {
            self.index.remove(record);
            self.retired.push(object.location.page);
        }
    }

    /// Frees the pages that nobody reads.
    fn reclaim(&mut self) {
        let mut held = BTreeSet::new();
        for (_, view) in self.clients.values() {
            view.scan(|hold| {
                held.insert(hold.page);
            })
            .unwrap();
        }
        let (held, free) = self.retired.iter().partition(|page| held.contains(page));
        self.retired = held;
        self.free.extend::<Vec<_>>(free);
    }

    fn drain(&mut self) {
        for (_, view) in self.clients.values_mut() {
            view.drain_hits(HIT_PLACES, |hit| assert!(hit.index < PAGES))
                .unwrap();
            let mut last = None;
            view.drain_returns(|grant| {
                let number = grant.generation.0;
                assert!(last.is_none_or(|last| number == last + 1), "{grant:?}");
                last = Some(number);
            })
            .unwrap();
            view.returns_done().unwrap();
        }
    }

    /// The server is killed, and another one finds what it left: the pool, the clients' tables, and objects in its log.
    fn restart(&mut self, random: &mut Random) {
        self.incarnation += 1;
        let new = IndexWriter::create(KEYS, 10, self.incarnation).unwrap();
        // As one that is killed leaves it: current, and mapped by clients.
        let _old = ManuallyDrop::new(std::mem::replace(&mut self.index, new));
        for (client, (_, view)) in &mut self.clients {
            *view = SlotTableView::adopt(&slots_path(&self.dir, *client)).unwrap();
        }
        for (key, (_, object)) in std::mem::take(&mut self.objects) {
            if random.below(2) == 0 {
                let record = self.index.insert(&Key::integer(key), &object, false);
                self.objects.insert(key, (record.unwrap(), object));
            } else {
                self.retired.push(object.location.page);
            }
        }
        // Pages may be reused before any client hears of the new index.
        self.reclaim();
        self.fill(random);
        self.show_index();
        for (_, view) in self.clients.values() {
            view.set_incarnation(self.incarnation).unwrap();
        }
    }

    fn fill(&mut self, random: &mut Random) {
        while let Some(page) = self.free.pop() {
            let key = random.below(KEYS);
            self.remove(key);
            self.store(key, page);
        }
    }

    fn step(&mut self, random: &mut Random) {
        self.fill(random);
        for _ in 0..8 {
            self.remove(random.below(KEYS));
        }
        self.reclaim();
        match random.below(2000) {
            0..4 => {
                let client = self.any_client(random);
                self.kill_client(client);
                self.add_client();
            }
            4..12 => {
                let client = self.any_client(random);
                self.signal(client, Signal::STOP);
            }
            12..16 => self.restart(random),
            16..36 => {
                for client in Vec::from_iter(self.clients.keys().copied()) {
                    self.signal(client, Signal::CONT);
                }
            }
            36..100 => self.drain(),
            _ => {}
        }
        let pages = self.free.len() + self.retired.len() + self.objects.len();
        assert_eq!(pages, PAGES as usize, "a page is lost");
    }
}

#[test]
fn no_page_is_reused_while_a_client_reads_it_and_none_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let seed = number(SEED).unwrap_or_else(|| u64::from(std::process::id()) + 1);
    eprintln!("{SEED}={seed}");
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut server = Server::start(dir.path());
    (0..3).for_each(|_| server.add_client());
    for _ in 0..number(STEPS).unwrap_or(1500) {
        server.step(&mut random);
    }
    // Whatever the clients hold, the server has pages again when they are dead.
    while let Some((client, _)) = server.clients.first_key_value() {
        let client = *client;
        server.kill_client(client);
    }
    server.reclaim();
    assert_eq!(server.retired, []);
    assert!(server.hits > 0, "no client found anything");
    eprintln!(
        "{} generations, {} incarnations, {} clients, {} hits",
        server.generation, server.incarnation, server.next_client, server.hits
    );
}

/// An object that a client holds.
struct Held {
    key: u64,
    generation: Generation,
    bytes: LeasedBytes,
}

impl Held {
    fn check(&self) {
        let expected = stamp(self.key, self.generation);
        for (at, word) in self.bytes.chunks_exact(8).enumerate() {
            assert_eq!(word, expected, "word {at} of {self:?}");
        }
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "key {} {:?} {:?}", self.key, self.generation, self.bytes)
    }
}

fn open_index(dir: &Path) -> Option<IndexReader> {
    // The server may be replacing it.
    let path = fs::read_to_string(dir.join("index")).ok()?;
    IndexReader::open(File::open(path).ok()?.as_fd()).ok()
}

/// What this binary does as a client.
#[test]
fn client() {
    let (Some(dir), Some(client)) = (env::var_os(DIR), number(CLIENT)) else {
        return;
    };
    let dir = Path::new(&dir);
    let pool = File::open(dir.join("pool")).unwrap();
    let mapping = ReadMapping::new(pool.as_fd(), SPAN.length).unwrap();
    let region = ReadRegion::new(Arc::new(mapping), SPAN, STRIDE).unwrap();
    let slots = File::options()
        .read(true)
        .write(true)
        .open(slots_path(dir, client))
        .unwrap();
    let slots = SlotTable::open(slots.as_fd()).unwrap();
    let threads = 1 + client % 2;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (region, slots) = (region.clone(), Arc::clone(&slots));
            scope.spawn(move || read_for_ever(dir, &region, &slots, client * 2 + thread + 1));
        }
    });
}

fn read_for_ever(dir: &Path, region: &ReadRegion, slots: &Arc<SlotTable>, seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut index = open_index(dir);
    let mut kept = VecDeque::new();
    let mut returned = 0;
    // Against a test that was killed and leaves its clients alone.
    let end = Instant::now() + Duration::from_secs(3600);
    while Instant::now() < end && dir.exists() {
        let Some(reader) = index.as_ref().filter(|index| index.is_current()) else {
            index = open_index(dir);
            continue;
        };
        let numbers: Vec<_> = (0..1 + random.below(20))
            .map(|_| random.below(KEYS))
            .collect();
        let keys: Vec<_> = numbers.iter().map(|number| Key::integer(*number)).collect();
        let (mut found, mut asked) = (Vec::new(), 0);
        reader.lease(slots, &keys, |at, looked| match looked {
            Looked::Found((object, lease)) => found.push(Held {
                key: numbers[at],
                generation: object.location.generation,
                bytes: region.view(object.location, lease).unwrap(),
            }),
            Looked::Absent => {}
            Looked::Ask => asked += 1,
        });
        slots.count(found.len() as u64, 0);
        slots.note_hits((0..found.len() as u32).map(page));
        for held in found {
            held.check();
            if random.below(4) == 0 {
                kept.push_back(held);
            }
        }
        let keep = random.below(20) as usize;
        while kept.len() > keep {
            kept.pop_front().inspect(Held::check);
        }
        // One thread of a client numbers its returns.
        if seed % 2 == 1 {
            let generation = Generation(returned);
            returned += u64::from(slots.give_back(Grant {
                page: page(0),
                generation,
            }));
        }
        if asked == keys.len() {
            index = open_index(dir);
        }
    }
}
