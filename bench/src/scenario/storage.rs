//! Storage behind the pool: how fast objects get there and come back.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use ondol::{Handler, HandlerConfig, Key};
use ondol_protocol::BackendStats;
use tempfile::TempDir;

use super::Context;
use crate::baseline::lmcache;
use crate::harness::Contestant;
use crate::keys;
use crate::measure::Measure;
use crate::memory;
use crate::meter::Meter;
use crate::report::{Axis, Case, Panel, Role, Row, Section};
use crate::server::Server;

const STORED: &str = "ondol_l2_stored_objects_total";
const MEASURE: Measure = Measure::Bandwidth;
/// Nothing that is waited for takes longer unless it never comes.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn run(context: &mut Context) -> Result<Section> {
    let panel = |name: &str, title: &str| Panel {
        name: name.into(),
        title: title.into(),
        measure: MEASURE,
        axis: Axis::Names("object"),
        cases: Vec::new(),
    };
    let mut store = panel("store", "Store objects until the backend has them all");
    let mut load = panel(
        "load",
        "Load objects that only the backend has, and verify them",
    );
    let mut absent = Vec::new();
    let total: usize = context.scaled(4 << 20, 128 << 20, 512 << 20);
    for (bytes, name) in [(256 << 10, "256 KiB"), (2 << 20, "2 MiB")] {
        println!("Storage {name}");
        let count = total / bytes;
        let keys = keys::shuffled(&format!("storage-{bytes}"), count as u64)?;
        let source = memory::private(total)?;
        let work = Work {
            keys: &keys,
            source: &source,
            bytes,
        };
        let dir = TempDir::with_prefix("ondol-bench-")?;
        let files = dir.path().join("files");
        fs::create_dir(&files)?;
        let memory = Backend::start(context, "memory", r#"{"type":"memory"}"#)?;
        let config = serde_json::json!({"type": "fs", "base_path": dir.path().join("fs")});
        let fs = Backend::start(context, "fs", &config.to_string())?;

        let mut contestants = [
            memory.storing(work),
            fs.storing(work),
            writing_files(work, &files),
            copying(work)?,
        ];
        store.cases.push(
            context
                .effort
                .contest(Case::named(name), MEASURE, &mut contestants)?,
        );
        drop(contestants);
        let mut contestants = [
            memory.loading(work),
            fs.loading(work),
            reading_files(work, &files),
        ];
        load.cases.push(
            context
                .effort
                .contest(Case::named(name), MEASURE, &mut contestants)?,
        );
        drop(contestants);

        let lmcache = dir.path().join("lmcache");
        fs::create_dir(&lmcache)?;
        match lmcache::bench_files(
            &context.places,
            &lmcache,
            bytes,
            count,
            context.effort.rounds,
        ) {
            Ok(operations) => {
                for (panel, name) in [(&mut store, "store"), (&mut load, "load")] {
                    let found = operations.iter().find(|operation| operation.name == name);
                    if let (Some(found), Some(case)) = (found, panel.cases.last_mut()) {
                        let values = vec![found.least, found.mean, found.most];
                        case.rows.push(Row::of(
                            "LMCache fs, by its own benchmark",
                            Role::Peer,
                            values,
                        ));
                    }
                }
            }
            Err(error) if absent.is_empty() => {
                absent.push(("LMCache".into(), format!("{error:#}")))
            }
            Err(_) => {}
        }
    }
    Ok(Section {
        name: "storage",
        title: "Storage behind the pool",
        about: vec![
            "Objects leave the pool once they are stored. Storing begins with the copy into the pool and ends when the backend has \
             all objects; loading is one batch. Files lie in the directory for temporary files, in the page cache. Bodies are \
             verified when they come back."
                .to_owned(),
            "The limit of `fs` is one thread that writes or reads plain files of the same length; the best limit is the reference. \
             LMCache's figures are those that it reports itself, in turns of its own, if it is installed; they are not verified."
                .to_owned(),
        ],
        panels: vec![store, load],
        absent,
    })
}

/// What is stored: under each key the bytes at the same place of the source.
#[derive(Clone, Copy)]
struct Work<'a> {
    keys: &'a [Key],
    source: &'a [u8],
    bytes: usize,
}

impl<'a> Work<'a> {
    fn objects(self) -> impl Iterator<Item = (&'a Key, &'a [u8])> {
        self.keys.iter().zip(self.source.chunks_exact(self.bytes))
    }
}

/// A server with one backend.
struct Backend {
    name: &'static str,
    handler: Handler,
    server: Server,
}

impl Backend {
    fn start(context: &Context, name: &'static str, adapter: &str) -> Result<Self> {
        let flags = [
            format!("--l2-adapter={adapter}"),
            "--l2-store-policy=skip_l1".into(),
        ];
        let pool = context.scaled(64 << 20, 1 << 30, 2 << 30);
        let server = context.serve(pool, &flags)?;
        let mut config = HandlerConfig::default();
        config.checksum = true;
        config.l2_wait = Some(PATIENCE);
        Ok(Self {
            name,
            handler: server.handler(config)?,
            server,
        })
    }

    /// Objects that the backend has stored so far.
    fn stored(&self) -> Result<u64> {
        let storage = self.handler.stats()?.engine.l2.unwrap_or_default();
        let of = |backend: &BackendStats| backend.counters.get(STORED).copied();
        Ok(storage.backends.iter().filter_map(of).sum())
    }

    fn put(&self, work: Work<'_>) -> Result<()> {
        let before = self.stored()?;
        for (key, content) in work.objects() {
            let mut page = self.handler.alloc(work.bytes)?;
            page.write_from(content);
            self.handler.store(key, page)?;
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            let stored = self.stored()? - before;
            if stored >= work.keys.len() as u64 {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!(
                    "{} of {} objects were stored by {}",
                    stored,
                    work.keys.len(),
                    self.name
                );
            }
            thread::sleep(Duration::from_micros(500));
        }
    }

    fn storing<'a>(&'a self, work: Work<'a>) -> Contestant<'a> {
        let turn = move |meter: &mut Meter| {
            meter.time(work.source.len() as u64, || self.put(work))?;
            self.handler.batch_delete(work.keys)?;
            Ok(())
        };
        Contestant::new(self.name, Role::Ours, turn).with_server(Some(self.server.pid()))
    }

    fn loading<'a>(&'a self, work: Work<'a>) -> Contestant<'a> {
        let turn = move |meter: &mut Meter| {
            self.put(work)?;
            let found = meter.time(work.source.len() as u64, || {
                Ok(self.handler.batch_retrieve(work.keys)?)
            })?;
            let count = found.iter().flatten().count();
            ensure!(
                count == work.keys.len(),
                "{count} of {} objects came back",
                work.keys.len()
            );
            drop(found);
            self.handler.batch_delete(work.keys)?;
            Ok(())
        };
        Contestant::new(self.name, Role::Ours, turn).with_server(Some(self.server.pid()))
    }
}

fn writing_files<'a>(work: Work<'a>, dir: &'a Path) -> Contestant<'a> {
    Contestant::new(
        "plain files, one thread",
        Role::Limit,
        move |meter: &mut Meter| {
            meter.time(work.source.len() as u64, || {
                for (index, (_, content)) in work.objects().enumerate() {
                    fs::write(dir.join(index.to_string()), content)?;
                }
                Ok(())
            })?;
            // Each turn makes its files anew, as each store does.
            for entry in fs::read_dir(dir)? {
                fs::remove_file(entry?.path())?;
            }
            Ok(())
        },
    )
}

fn reading_files<'a>(work: Work<'a>, dir: &'a Path) -> Contestant<'a> {
    Contestant::new(
        "plain files, one thread",
        Role::Limit,
        move |meter: &mut Meter| {
            for (index, (_, content)) in work.objects().enumerate() {
                fs::write(dir.join(index.to_string()), content)?;
            }
            meter.time(work.source.len() as u64, || {
                use std::io::Read as _;
                let mut target = vec![0; work.bytes];
                for index in 0..work.keys.len() {
                    fs::File::open(dir.join(index.to_string()))?.read_exact(&mut target)?;
                }
                Ok(())
            })
        },
    )
}

fn copying(work: Work<'_>) -> Result<Contestant<'_>> {
    let mut target = memory::populated(work.source.len())?;
    Ok(Contestant::new(
        "memcpy",
        Role::Limit,
        move |meter: &mut Meter| {
            meter.time(work.source.len() as u64, || {
                target.copy_from_slice(work.source);
                Ok(())
            })
        },
    ))
}
