//! What the storage tier itself costs a key: CPU time of all threads, with a backend that does nothing.
//!
//! `cargo bench -p ondol-tiering --bench control_path` prints a table beside the figures that LMCache 0.5.6 has for the
//! same (measured in the same way with an adapter that does nothing: store 13.7, prefetch 22.2, all in memory 6.4 µs per
//! key). Objects are named as LMCache names them and have no checksums, so that no bytes are moved or read.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use ondol_directory::{Directory, Newcomer};
use ondol_host::l2::{AdapterSpec, Backend, LaneOptions};
use ondol_memory::{Arena, Device, DeviceEnv, NoJournal, OpenOptions, Pool};
use ondol_plugin::{Key, KeyTag};
use ondol_shm::{ClientId, create_lease_table};
use ondol_testkit::l2::NullAdapter;
use ondol_tiering::{FetchPolicy, Memory, PrefetchRequest, Row, Tiering, TieringConfig};
use rustix::time::{ClockId, clock_gettime};

/// Keys of a batch.
const BATCH: usize = 64;
/// Bytes of an object.
const LEN: u64 = 4096;
const BATCHES: usize = 1000;
const ROUNDS: usize = 5;
const TIER: ClientId = ClientId(1);

/// A pool and the storage tier's part of it.
struct Pages {
    memory: Arc<Memory>,
    _device: Device,
    _table: OwnedFd,
}

impl Pages {
    fn new(bytes: u64) -> anyhow::Result<Self> {
        let uri = format!("memfd:?size={bytes}").parse()?;
        let device = Device::open(&uri, &DeviceEnv::default(), &OpenOptions::default())?;
        let arenas = device.backings().iter().map(|backing| Arena {
            usable: backing.usable(),
            alignment: device.alignment(),
            whole: device.whole_backing_regions(),
        });
        let pool = Pool::new(arenas, Some(2 << 20));
        let policy = ondol_catalog::policy("lru").context("the policy `lru`")?;
        let directory = Arc::new(Directory::new(pool, Arc::new(NoJournal), policy));
        let table = create_lease_table()?;
        let attached = directory.attach(TIER, Newcomer::default(), table.as_fd(), None);
        ensure!(attached.is_ok(), "{attached:?}");
        let memory = Memory::open(
            directory,
            TIER,
            table.as_fd(),
            device.backings(),
            Box::new(|_| Ok(())),
        )?;
        Ok(Self {
            memory: Arc::new(memory),
            _device: device,
            _table: table,
        })
    }

    /// Writes to the pages of so many objects: then they cost no page faults later, and hold what could be objects.
    fn touch(&self, objects: usize) -> anyhow::Result<()> {
        for page in self.memory.reserve(&vec![LEN; objects]) {
            page.context("room for all objects")?.as_mut().fill(0xa5);
        }
        self.memory.flush_returns();
        Ok(())
    }

    fn tiering(&self, adapter: NullAdapter) -> anyhow::Result<Arc<Tiering>> {
        let spec: AdapterSpec = r#"{"type":"null"}"#.parse()?;
        let backend = Backend::start(
            "null#0",
            spec,
            true,
            Box::new(adapter),
            LaneOptions::default(),
        )?;
        Ok(Tiering::start(
            Arc::clone(&self.memory),
            vec![backend],
            TieringConfig::default(),
        )?)
    }
}

/// The `batch`th batch of keys.
fn keys(batch: usize) -> anyhow::Result<Vec<Key>> {
    let key = |number: usize| {
        let name = format!("a-model-of-some-size@01000100@0@{number:064x}");
        Ok(Key::new(KeyTag::LmCache, name.as_bytes())?)
    };
    (batch * BATCH..(batch + 1) * BATCH).map(key).collect()
}

fn request(keys: Vec<Key>) -> PrefetchRequest {
    PrefetchRequest {
        rows: vec![Row {
            keys,
            window: None,
            expected_len: Some(LEN),
        }],
        policy: FetchPolicy::Prefix,
        timeout: Duration::from_secs(60),
    }
}

/// CPU time of the process so far, in microseconds.
fn cpu_us() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// CPU time of this per key, in microseconds.
fn per_key(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let before = cpu_us();
    work()?;
    Ok((cpu_us() - before) / (BATCH * BATCHES) as f64)
}

fn fetch(tiering: &Tiering, request: PrefetchRequest) -> anyhow::Result<()> {
    let until = Instant::now() + Duration::from_secs(60);
    let report = tiering.prefetch(request).wait(until);
    let found = report.present[0].count_ones();
    ensure!(
        found == BATCH,
        "{found} of {BATCH} keys came: {:?}",
        tiering.stats().counters
    );
    Ok(())
}

/// Objects that no memory has, each from the backend.
fn prefetch() -> anyhow::Result<f64> {
    // Room for all of them: what eviction costs is not asked here.
    let pages = Pages::new(2 * LEN * (BATCH * BATCHES) as u64)?;
    pages.touch(BATCH * BATCHES)?;
    let tiering = pages.tiering(NullAdapter::full(LEN)?)?;
    let requests: Result<Vec<_>, _> = (0..BATCHES).map(|batch| keys(batch).map(request)).collect();
    let requests = requests?;
    let cost = per_key(|| {
        requests
            .into_iter()
            .try_for_each(|request| fetch(&tiering, request))
    });
    tiering.close(Duration::from_secs(1));
    cost
}

/// Objects that memory has.
fn in_memory() -> anyhow::Result<f64> {
    let pages = Pages::new(64 << 20)?;
    pages.touch(BATCH)?;
    let tiering = pages.tiering(NullAdapter::full(LEN)?)?;
    let keys = keys(0)?;
    fetch(&tiering, request(keys.clone()))?;
    let requests: Vec<_> = (0..BATCHES).map(|_| request(keys.clone())).collect();
    let cost = per_key(|| {
        requests
            .into_iter()
            .try_for_each(|request| fetch(&tiering, request))
    });
    tiering.close(Duration::from_secs(1));
    cost
}

type Measure = fn() -> anyhow::Result<f64>;

fn main() -> anyhow::Result<()> {
    println!("CPU µs per key in batches of {BATCH}, the best of {ROUNDS} rounds:");
    println!("{:>16} {:>8} {:>10}", "", "Ondol", "LMCache");
    let measures: [(&str, f64, Measure); 2] = [
        ("prefetch", 22.2, prefetch),
        ("all in memory", 6.4, in_memory),
    ];
    for (name, reference, measure) in measures {
        let mut best = f64::INFINITY;
        for _ in 0..ROUNDS {
            best = best.min(measure()?);
        }
        println!("{name:>16} {best:>8.2} {reference:>10.1}");
    }
    Ok(())
}
