//! What the log costs: per committed object when it is written, and by number of objects when it is read.
//!
//! `cargo bench -p ondol-memory --bench log` prints tables. Logs are written below the directory for temporary files;
//! `TMPDIR` names another one, and with it another disk. For instruction counts, run the binary with
//! `--once none|fsync BATCH OBJECTS` under `valgrind --tool=callgrind` for two values of OBJECTS and divide the
//! difference. `--recovery OBJECTS` measures one size alone.

use std::error::Error;
use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use ondol_memory::{Arena, Change, Durability, Image, Journal, Log, LogOptions, Pool, PoolId};
use ondol_plugin::{Key, KeyTag};
use ondol_shm::{ClientId, Location, ObjectMeta, ProcessIdentity};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const POOL: PoolId = PoolId([1; 16]);
const CLIENT: ClientId = ClientId(1);
const PAGE: u64 = 4096;

fn pool(objects: u64) -> Pool {
    let usable = 0..(objects * PAGE).next_multiple_of(256 << 20) + (512 << 20);
    Pool::new(
        [Arena {
            usable,
            alignment: PAGE,
            whole: false,
        }],
        Some(256 << 20),
    )
}

fn options(durability: Durability, segment_bytes: u64, compact_bytes: u64) -> LogOptions {
    let mut options = LogOptions::default();
    options.durability = durability;
    options.segment_bytes = segment_bytes;
    options.compact_bytes = Some(compact_bytes);
    options
}

/// The state that a directory would have, driven by the changes that it would record.
struct Writer {
    image: Image,
    stored: u64,
}

impl Writer {
    fn begin(log: &Log, objects: u64) -> Result<Self> {
        let mut writer = Self {
            image: Image::new(pool(objects)),
            stored: 0,
        };
        let process = ProcessIdentity {
            pid: 4711,
            start_time: 123_456_789,
            namespace: 4_026_531_836,
            inode: 987_654,
        };
        let change = Change::Attach {
            client: CLIENT,
            process,
            instance: [7; 16],
        };
        writer.change(log, change)?;
        Ok(writer)
    }

    fn change(&mut self, log: &Log, change: Change) -> Result<()> {
        log.record(&change)?;
        self.image.apply(&change)?;
        Ok(())
    }

    /// Grants pages and stores an object in each; what is granted and what is stored is flushed before it is told.
    fn store(&mut self, log: &Log, batch: u64) -> Result<()> {
        let mut grants = Vec::with_capacity(batch as usize);
        for _ in 0..batch {
            if self.image.pool.find_free(PAGE).is_none() {
                let carve = self.image.pool.plan_carve(PAGE).ok_or("the pool is full")?;
                self.change(log, carve)?;
            }
            let grant = self.image.pool.find_free(PAGE).ok_or("no free page")?;
            grants.push(grant);
            let change = Change::Grant {
                grant,
                client: CLIENT,
                request: self.stored,
            };
            self.change(log, change)?;
        }
        log.flush(log.position())?;
        for grant in grants {
            let change = self.commit(grant)?;
            self.change(log, change)?;
        }
        log.flush(log.position())?;
        Ok(())
    }

    fn commit(&mut self, grant: ondol_shm::Grant) -> Result<Change> {
        let mut name = [0x5a; 32];
        name[..8].copy_from_slice(&self.stored.to_le_bytes());
        self.stored += 1;
        Ok(Change::Commit {
            key: Key::new(KeyTag::Raw, &name)?,
            location: Location {
                page: grant.page,
                generation: grant.generation,
                len: PAGE,
            },
            meta: ObjectMeta {
                layout: None,
                checksum: Some(self.stored),
            },
            client: CLIENT,
        })
    }
}

/// The changes of `objects` stored objects, to be recorded without anything beside.
fn changes(objects: u64) -> Result<Vec<[Change; 2]>> {
    let mut writer = Writer {
        image: Image::new(pool(objects)),
        stored: 0,
    };
    let carve = writer
        .image
        .pool
        .plan_carve(PAGE)
        .ok_or("the pool is full")?;
    writer.image.pool.apply(&carve)?;
    let mut changes = Vec::new();
    for _ in 0..objects {
        let grant = writer.image.pool.find_free(PAGE).ok_or("no free page")?;
        let granted = Change::Grant {
            grant,
            client: CLIENT,
            request: writer.stored,
        };
        writer.image.pool.apply(&granted)?;
        changes.push([granted, writer.commit(grant)?]);
    }
    Ok(changes)
}

/// Records and flushes what storing in batches records and flushes.
fn append(log: &Log, changes: &[[Change; 2]], batch: usize, objects: usize) -> Result<()> {
    let mut left = objects;
    while left > 0 {
        for objects in changes.chunks(batch) {
            let objects = &objects[..objects.len().min(left)];
            for step in 0..2 {
                for changes in objects {
                    log.record(black_box(&changes[step]))?;
                }
                log.flush(log.position())?;
            }
            left -= objects.len();
            if left == 0 {
                break;
            }
        }
    }
    Ok(())
}

/// Number of different objects that are appended again and again.
const VARIETY: u64 = 16_384;

fn append_row(durability: Durability, batch: usize, objects: usize, rounds: usize) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let log = Log::create(
        dir.path(),
        POOL,
        &pool(1),
        options(durability, 64 << 20, u64::MAX),
    )?;
    let changes = changes(VARIETY)?;
    append(&log, &changes, batch, objects)?;
    let mut times = Vec::new();
    let before = log.position().0;
    for _ in 0..rounds {
        let start = Instant::now();
        append(&log, &changes, batch, objects)?;
        times.push(start.elapsed().as_nanos() as f64 / objects as f64);
    }
    let bytes = (log.position().0 - before) as f64 / (rounds * objects) as f64;
    times.sort_unstable_by(f64::total_cmp);
    println!(
        "| {durability} | {batch} | {:.0} | {:.0} | {bytes:.1} |",
        times[rounds / 2],
        times[0]
    );
    Ok(())
}

fn size_of(dir: &Path) -> Result<u64> {
    let sizes = fs::read_dir(dir)?.map(|entry| Ok(entry?.metadata()?.len()));
    sizes.sum()
}

fn recovery_row(objects: u64) -> Result<()> {
    const SEGMENT: u64 = 4 << 20;
    let dir = tempfile::tempdir()?;
    let keep = || options(Durability::None, SEGMENT, u64::MAX);
    let log = Log::create(dir.path(), POOL, &pool(objects), keep())?;
    let mut writer = Writer::begin(&log, objects)?;
    while writer.stored < objects {
        writer.store(&log, 64.min(objects - writer.stored))?;
    }
    drop(log);
    let recover = |options: LogOptions| -> Result<(Log, f64, Image)> {
        let start = Instant::now();
        let recovered = Log::recover(dir.path(), POOL, pool(objects), options)?;
        let seconds = start.elapsed().as_secs_f64();
        Ok((recovered.log, seconds, recovered.image))
    };
    let row = |from: &str, bytes: u64, work: u64| -> Result<()> {
        let mut times = Vec::new();
        for _ in 0..9 {
            let (log, seconds, image) = recover(keep())?;
            drop(log);
            assert!(image == writer.image, "another state was recovered");
            times.push(seconds);
        }
        times.sort_unstable_by(f64::total_cmp);
        let (seconds, least) = (times[times.len() / 2], times[0]);
        println!(
            "| {objects} | {from} | {:.1} | {seconds:.3} | {least:.3} | {:.2} |",
            bytes as f64 / f64::from(1 << 20),
            work as f64 / least / 1e6
        );
        Ok(())
    };
    row("log", size_of(dir.path())?, 2 * objects)?;
    let (log, _, image) = recover(options(Durability::None, SEGMENT, 0))?;
    drop(image);
    let deadline = Instant::now() + Duration::from_secs(300);
    while objects > 100_000 && log.stats().checkpoints == 0 && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(5));
    }
    drop(log);
    row("checkpoint", size_of(dir.path())?, objects)
}

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--once") {
        let [durability, batch, objects] = &arguments[at + 1..] else {
            return Err("expected --once none|fsync BATCH OBJECTS".into());
        };
        let dir = tempfile::tempdir()?;
        let options = options(durability.parse()?, 64 << 20, u64::MAX);
        let log = Log::create(dir.path(), POOL, &pool(1), options)?;
        return append(&log, &changes(64)?, batch.parse()?, objects.parse()?);
    }
    if let Some(at) = arguments
        .iter()
        .position(|argument| argument == "--recovery")
    {
        let objects = arguments.get(at + 1).ok_or("expected --recovery OBJECTS")?;
        return recovery_row(objects.parse()?);
    }
    println!(
        "| durability | objects a flush | ns an object, median | least | log bytes an object |"
    );
    println!("|---|---|---|---|---|");
    append_row(Durability::None, 1, 100_000, 9)?;
    append_row(Durability::None, 64, 400_000, 9)?;
    append_row(Durability::Fsync, 1, 200, 5)?;
    append_row(Durability::Fsync, 64, 6_400, 5)?;
    println!();
    println!(
        "| objects | read from | MiB | seconds, median | least | million changes or objects a second |"
    );
    println!("|---|---|---|---|---|---|");
    for objects in [10_000, 100_000, 1_000_000] {
        recovery_row(objects)?;
    }
    Ok(())
}
