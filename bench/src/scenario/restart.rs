//! How long a server that was killed takes to come back, by the number of its objects.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ondol::engine::{Engine, EngineConfig};
use ondol::{ControlPlane, Handler, Key, Plugins};
use ondol_engine::Persistence;
use ondol_protocol::GrantRequest;
use tempfile::TempDir;

use super::Context;
use crate::keys;
use crate::measure::Measure;
use crate::meter;
use crate::report::{Axis, Case, Panel, Role, Row, Section};
use crate::server::{fill, with_pages_of};

const PAGE: u64 = 64;
/// As many pages as are granted and given back to make the log longer.
const BATCH: u32 = 64;
const OBJECT_BYTES: usize = PAGE as usize;

/// What is measured of a restart: names of the plots, and titles.
const FIGURES: [(&str, &str); 4] = [
    ("served", "Until requests are served"),
    ("hit", "Until the object that is loaded last was found"),
    ("loaded", "Until all objects are loaded"),
    ("processors", "Processor time of all of it"),
];

pub(super) fn run(context: &mut Context) -> Result<Section> {
    let sizes = match context.objects {
        Some(objects) => vec![objects],
        None => context.scaled(
            vec![500],
            vec![10_000, 100_000, 1_000_000],
            vec![10_000, 100_000, 1_000_000],
        ),
    };
    let segment_bytes = context.scaled(64 << 10, 16 << 20, 16 << 20);
    let mut panels: Vec<_> = FIGURES
        .map(|(name, title)| Panel {
            name: name.into(),
            title: title.into(),
            measure: Measure::Milliseconds,
            axis: Axis::Numbers("objects"),
            cases: Vec::new(),
        })
        .into();
    for objects in sizes {
        println!("Restart with {objects} objects");
        let keys = keys::shuffled("restart", objects)?;
        let mut pools = [
            ("from the log", Pool::filled(&keys, segment_bytes)?),
            ("from a checkpoint", Pool::filled(&keys, segment_bytes)?),
        ];
        pools[1].1.checkpoint()?;
        let mut rounds = [
            [const { Vec::new() }; FIGURES.len()],
            [const { Vec::new() }; FIGURES.len()],
        ];
        for round in 0..=context.effort.rounds {
            for ((_, pool), rounds) in pools.iter().zip(&mut rounds) {
                let times = pool.restart(&keys)?;
                // The first one warms up.
                if round > 0 {
                    rounds
                        .iter_mut()
                        .zip(times)
                        .for_each(|(round, time)| round.push(time * 1e3));
                }
            }
        }
        for (index, panel) in panels.iter_mut().enumerate() {
            let mut case = Case::numbered(objects);
            let rows = pools.iter().zip(&rounds);
            case.rows = rows
                .map(|((name, _), rounds)| Row::of(*name, Role::Ours, rounds[index].clone()))
                .collect();
            case.compare(panel.measure);
            println!(
                "{}\n{}",
                panel.title,
                crate::report::markdown::lines(&case, panel.measure)
            );
            panel.cases.push(case);
        }
    }
    Ok(Section {
        name: "restart",
        title: "Restart",
        about: vec![
            "An engine that ended without a word is opened again, its state in the directory for temporary files, its pool in \
             `/dev/shm`: from the log alone, and from a checkpoint with a short log behind it. Objects are small, and have keys of \
             100 bytes and checksums; their bytes are not read, but for the one that is asked for. Service begins \
             before all objects are loaded; the rest is loaded meanwhile."
                .to_owned(),
        ],
        panels,
        absent: Vec::new(),
    })
}

/// A pool and its state, which outlive the engines that use them.
struct Pool {
    dir: TempDir,
    objects: u64,
    segment_bytes: u64,
}

impl Pool {
    /// A pool of whose making only the log tells.
    fn filled(keys: &[Key], segment_bytes: u64) -> Result<Self> {
        let pool = Self {
            dir: TempDir::with_prefix("ondol-bench-")?,
            objects: keys.len() as u64,
            segment_bytes,
        };
        let engine = pool.open(u64::MAX)?;
        fill(&handler(&engine)?, keys, OBJECT_BYTES)?;
        Ok(pool)
    }

    fn config(&self, compact_bytes: u64) -> Result<EngineConfig> {
        let dir: &Path = self.dir.path();
        let name = dir.file_name().context("a directory with a name")?;
        let size = (self.objects * PAGE * 2).max(64 << 20);
        let uri = format!("shm:{}?size={size}", name.display());
        let mut config = EngineConfig::new([uri.parse()?]);
        config.share_limit = Some(u64::MAX);
        let mut persistence = Persistence::new(dir);
        persistence.log.segment_bytes = self.segment_bytes;
        persistence.log.compact_bytes = Some(compact_bytes);
        config.persistence = Some(persistence);
        Ok(config)
    }

    /// The engine, which makes a checkpoint when so many bytes of log are closed.
    fn open(&self, compact_bytes: u64) -> Result<Arc<Engine>> {
        Ok(Engine::open(self.config(compact_bytes)?)?)
    }

    /// Replaces the log by a checkpoint: makes it longer until a segment is closed, after which one is made.
    fn checkpoint(&mut self) -> Result<()> {
        let engine = self.open(0)?;
        let session = engine.attach(None, [3; 16])?;
        let is_made = || engine.log_stats().is_some_and(|log| log.checkpoints > 0);
        // A number that no request of this pool's has had.
        let mut request = 1 << 40;
        while !is_made() {
            let grants = session.grant(GrantRequest {
                request,
                stride: PAGE,
                count: BATCH,
            })?;
            session.return_pages(&grants)?;
            request += 1;
        }
        Ok(())
    }

    /// Seconds for each of [`FIGURES`].
    fn restart(&self, keys: &[Key]) -> Result<[f64; FIGURES.len()]> {
        let (start, used) = (Instant::now(), meter::cpu_of_self()?);
        let engine = self.open(u64::MAX)?;
        let served = start.elapsed();
        let restart = engine.restart();
        ensure!(
            restart.warm && restart.objects == self.objects,
            "{} objects of {} came back",
            restart.objects,
            self.objects
        );
        let last = keys.last().context("at least one object")?;
        ensure!(
            handler(&engine)?.retrieve(last)?.is_some(),
            "an object is not there"
        );
        let found = start.elapsed();
        while !engine.is_loaded() {
            thread::sleep(Duration::from_micros(200));
        }
        let loaded = start.elapsed();
        let used = meter::cpu_of_self()? - used;
        Ok([served, found, loaded, used].map(|time| time.as_secs_f64()))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let removed = self
            .open(u64::MAX)
            .and_then(|engine| Ok(engine.remove_files()?));
        if let Err(error) = removed {
            eprintln!(
                "the pool of {} is left behind: {error:#}",
                self.dir.path().display()
            );
        }
    }
}

fn handler(engine: &Arc<Engine>) -> Result<Handler> {
    let engine = Arc::clone(engine);
    let mut config = with_pages_of(OBJECT_BYTES);
    config.plugins = Plugins::None;
    config.checksum = true;
    Ok(Handler::embedded(
        move || engine.attach(None, [1; 16]),
        config,
    )?)
}
