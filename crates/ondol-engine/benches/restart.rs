//! How long a server that was killed takes to come back, by the number of its objects.
//!
//! `cargo bench -p ondol-engine --bench restart` prints a table; `--objects N` measures one size alone. The state lies
//! below the directory for temporary files (`TMPDIR` names another one), the pool in `/dev/shm`. Objects have keys of 32
//! bytes and checksums, and are small: their bytes are not read at a restart, but for the one that is asked for.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use ondol_engine::{Engine, EngineConfig, Persistence, Session};
use ondol_plugin::{Key, KeyTag};
use ondol_protocol::{Commit, CommitOutcome, ControlPlane, GrantRequest, Retrieve};
use ondol_shm::{LeaseSlots, Location, ObjectMeta};
use rustix::time::{ClockId, clock_gettime};
use xxhash_rust::xxh3::xxh3_64;

const PAGE: u64 = 64;
/// As many as a handler asks for and commits at once.
const BATCH: u64 = 64;
const ROUNDS: usize = 5;

fn key(index: u64) -> anyhow::Result<Key> {
    let mut name = [0x5a; 32];
    name[..8].copy_from_slice(&index.to_le_bytes());
    Ok(Key::new(KeyTag::Raw, &name)?)
}

fn config(dir: &Path, objects: u64, compact_bytes: u64) -> anyhow::Result<EngineConfig> {
    let size = (objects * PAGE * 2).max(64 << 20);
    let name = dir.file_name().context("a directory with a name")?;
    let uri = format!("shm:ondol-bench-{}?size={size}", name.display());
    let mut config = EngineConfig::new([uri.parse()?]);
    config.share_limit = Some(u64::MAX);
    let mut persistence = Persistence::new(dir);
    persistence.log.compact_bytes = Some(compact_bytes);
    config.persistence = Some(persistence);
    Ok(config)
}

fn fill(session: &Session, objects: u64) -> anyhow::Result<()> {
    let checksum = Some(xxh3_64(&[0; PAGE as usize]));
    let mut index = 0;
    while index < objects {
        let grants = session.grant(GrantRequest {
            request: index,
            stride: PAGE,
            count: BATCH.min(objects - index) as u32,
        })?;
        let mut commits = Vec::with_capacity(grants.len());
        for grant in grants {
            commits.push(Commit {
                key: key(index)?,
                location: Location {
                    page: grant.page,
                    generation: grant.generation,
                    len: PAGE,
                },
                meta: ObjectMeta {
                    layout: None,
                    checksum,
                },
            });
            index += 1;
        }
        let outcomes = session.commit(&commits)?;
        ensure!(
            outcomes
                .iter()
                .all(|outcome| *outcome == CommitOutcome::Stored)
        );
    }
    Ok(())
}

fn find(session: &Session, index: u64) -> anyhow::Result<()> {
    let slots = LeaseSlots::open(std::os::fd::AsFd::as_fd(&session.lease_table()?))?;
    let lease = slots.propose().context("a free lease slot")?;
    let request = Retrieve {
        keys: vec![key(index)?],
        leases: vec![lease.reference()],
        group: 1,
        prefix: false,
        expect: None,
        wait_ms: 0,
        expected_len: 0,
    };
    let answer = session.retrieve(&request)?;
    ensure!(answer.hits[0].is_some(), "object {index} is not there");
    Ok(())
}

/// Seconds of the processors that this process has used.
fn cpu_seconds() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

/// Seconds until requests are served, until the object that is loaded last was found, until all are loaded, and what
/// all of it took of the processors.
fn restart(config: EngineConfig, objects: u64) -> anyhow::Result<[f64; 4]> {
    let (start, used) = (Instant::now(), cpu_seconds());
    let engine = Engine::open(config)?;
    let opened = start.elapsed().as_secs_f64();
    ensure!(engine.restart().warm && engine.restart().objects == objects);
    let session = engine.attach(None, [2; 16])?;
    find(&session, objects - 1)?;
    let found = start.elapsed().as_secs_f64();
    while !engine.is_loaded() {
        std::thread::sleep(Duration::from_micros(200));
    }
    let loaded = start.elapsed().as_secs_f64();
    Ok([opened, found, loaded, cpu_seconds() - used])
}

fn rows(objects: u64) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    {
        let engine = Engine::open(config(dir.path(), objects, u64::MAX)?)?;
        fill(&*engine.attach(None, [1; 16])?, objects)?;
    }
    row(dir.path(), objects, "log", u64::MAX)?;
    {
        let engine = Engine::open(config(dir.path(), objects, 0)?)?;
        let session = engine.attach(None, [3; 16])?;
        // Closes a segment, after which a checkpoint is made.
        let made = |engine: &Arc<Engine>| engine.log_stats().is_some_and(|log| log.checkpoints > 0);
        let mut request = 1 << 40;
        while !made(&engine) {
            let grants = session.grant(GrantRequest {
                request,
                stride: PAGE,
                count: BATCH as u32,
            })?;
            session.return_pages(&grants)?;
            request += 1;
        }
    }
    row(dir.path(), objects, "checkpoint", u64::MAX)?;
    Engine::open(config(dir.path(), objects, u64::MAX)?)?.remove_files()?;
    Ok(())
}

fn row(dir: &Path, objects: u64, from: &str, compact_bytes: u64) -> anyhow::Result<()> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        times.push(restart(config(dir, objects, compact_bytes)?, objects)?);
    }
    let median = |which: usize| {
        let mut of: Vec<_> = times.iter().map(|times| times[which]).collect();
        of.sort_unstable_by(f64::total_cmp);
        of[ROUNDS / 2]
    };
    let loaded = median(2);
    println!(
        "| {objects} | {from} | {:.0} | {:.0} | {:.0} | {:.0} | {:.2} |",
        median(0) * 1e3,
        median(1) * 1e3,
        loaded * 1e3,
        median(3) * 1e3,
        objects as f64 / loaded / 1e6
    );
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<_> = std::env::args().collect();
    println!(
        "| objects | from | served after, ms | first hit after, ms | all loaded after, ms | processor time, ms | million objects/s |"
    );
    println!("|---|---|---|---|---|---|---|");
    if let Some(at) = arguments
        .iter()
        .position(|argument| argument == "--objects")
    {
        let objects = arguments.get(at + 1).context("a number of objects")?;
        return rows(objects.parse()?);
    }
    [10_000, 100_000, 1_000_000].into_iter().try_for_each(rows)
}
