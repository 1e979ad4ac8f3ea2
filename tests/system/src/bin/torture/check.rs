//! What must hold after every kill: a process of its own looks at everything that the server shows, and writes it down.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use ondol_handler::{ControlError, Handler, HandlerError, ObjectInfo};
use ondol_protocol::EngineStats;
use ondol_tests::{StorageDir, key};
use serde_json::Value;

use crate::client::{config, plane};
use crate::content::{PAGES, name, read};
use crate::epoch::{Epoch, Found, WATCHDOG};
use crate::journal::{Entry, Journal, Kind, now};
use crate::oracle::Fault;
use crate::storage::OBSERVER_WAITS_MS;

/// The server went away.
const SERVER_GONE: u8 = 3;

/// What an observer is told.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server's socket.
    #[arg(long)]
    socket: PathBuf,
    /// Where to write down what is seen.
    #[arg(long)]
    journal: PathBuf,
    /// How many names there are.
    #[arg(long)]
    names: u64,
    /// The processes of the clients that live.
    #[arg(long)]
    alive: Vec<u32>,
    /// Bytes of the pool, if nobody holds anything of it.
    #[arg(long)]
    all_free: Option<u64>,
    /// Where the files of the storage lie, if it has any.
    #[arg(long)]
    storage: Option<PathBuf>,
    /// Whether what was stored there can be had until it is deleted.
    #[arg(long)]
    storage_keeps_all: bool,
    /// The how manieth observer this is: of what is not in memory each looks at another part.
    #[arg(long)]
    turn: u64,
}

/// Names that an observer asks storage for at once, and at most.
const BATCH: usize = 64;
const PART: usize = 4 * BATCH;

/// What does not come to rest within this time never does.
const PATIENCE: Duration = Duration::from_secs(30);

const WAIT: Duration = Duration::from_millis(OBSERVER_WAITS_MS);

/// Looks at everything once.
pub(crate) fn observe(args: &Args) -> anyhow::Result<ExitCode> {
    let journal = Journal::create(&args.journal, 0)?;
    let observed = Handler::embedded(plane(&args.socket), config())
        .and_then(|handler| look(&handler, args, &journal));
    match observed {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            eprintln!("cannot look at the server: {error}");
            Ok(ExitCode::from(SERVER_GONE))
        }
    }
}

fn look(handler: &Handler, args: &Args, journal: &Journal) -> Result<(), HandlerError> {
    let fault = |kind, what| journal.write(&Entry::Fault { kind, what });
    let has_storage = handler.stats()?.engine.l2.is_some();
    if has_storage {
        settle(handler, is_busy, &fault)?;
    }
    let from = now();
    let objects = list(handler)?;
    let to = now();
    let mut listed = BTreeSet::new();
    for part in objects.chunks(64) {
        let names = part.iter().filter_map(|object| {
            let name = object.key.as_text();
            if name.is_none() {
                fault(Kind::Phantom, format!("{} is no name of ours", object.key));
            }
            name.map(str::to_owned)
        });
        let names: Vec<_> = names.collect();
        let keys: Vec<_> = names.iter().map(|name| key(name)).collect();
        let from = now();
        let found = match has_storage {
            true => handler.batch_retrieve_within(&keys, WAIT)?,
            false => handler.batch_retrieve(&keys)?,
        };
        let to = now();
        for (key, object) in names.into_iter().zip(found) {
            match object.map(|object| read(&object, &key)) {
                // Memory may just have given it up for what was brought from storage.
                None if has_storage => {}
                None => fault(Kind::Lost, format!("{key} is listed, but not found")),
                Some(Err(what)) => fault(Kind::Corrupt, what),
                Some(Ok(writer)) => {
                    listed.insert(key.clone());
                    journal.write(&Entry::Read {
                        key,
                        writer,
                        from,
                        to,
                    });
                }
            }
        }
    }
    let missing = (0..args.names)
        .map(name)
        .filter(|name| !listed.contains(name));
    if has_storage {
        look_in_storage(handler, args, missing.collect(), journal)?;
        if let Some(dir) = &args.storage {
            let wrong = |stats: &EngineStats| {
                is_busy(stats).or_else(|| directory_wrong(stats, dir).unwrap_or_else(Some))
            };
            settle(handler, wrong, &fault)?;
        }
        if args.storage_keeps_all {
            let unstored = |_: &EngineStats| unstored(handler, args).unwrap_or(None);
            settle(handler, unstored, &fault)?;
        }
    } else {
        let missing = missing.map(|key| Entry::Miss { key, from, to });
        journal.write_all(&missing.collect::<Vec<_>>());
    }

    settle(handler, |stats| imbalance(stats, &args.alive), &fault)?;
    if let Some(pool_bytes) = args.all_free {
        let held = |stats: &EngineStats| {
            let granted: u64 = stats.classes.iter().map(|class| class.granted).sum();
            let held: u64 = stats
                .clients
                .iter()
                .map(|client| client.leases + client.pins)
                .sum();
            // This one, and the storage tier of the server itself.
            let clients = 1 + usize::from(has_storage);
            let l2 = stats.l2.iter().flat_map(|l2| &l2.backends);
            let locked = l2.map(|backend| locked(&backend.figures)).sum::<u64>();
            let some = granted + stats.retired + held + locked > 0 || stats.clients.len() > clients;
            some.then(|| "nobody is there, but something is held".to_owned())
        };
        settle(handler, held, &fault)?;
        take_all(handler, pool_bytes, &fault)?;
    }
    handler.close();
    println!("observed");
    Ok(())
}

/// Objects that a backend keeps from being deleted, also if another one is around it.
fn locked(figures: &BTreeMap<String, Value>) -> u64 {
    let inner = figures.get("inner").and_then(|inner| inner.get("locked"));
    let locked = figures.get("locked").or(inner);
    locked.and_then(Value::as_u64).unwrap_or(0)
}

/// What storage is still doing.
fn is_busy(stats: &EngineStats) -> Option<String> {
    let l2 = stats.l2.as_ref()?;
    let mut work = l2.store_queue + l2.prefetches + l2.loading_bytes + l2.captive_bytes;
    for backend in &l2.backends {
        work += backend.tasks + backend.captive_tasks + u64::from(!backend.is_complete);
    }
    (work > 0).then(|| "storage does not come to rest".to_owned())
}

/// Asks for objects that memory does not have.
fn look_in_storage(
    handler: &Handler,
    args: &Args,
    missing: Vec<String>,
    journal: &Journal,
) -> Result<(), HandlerError> {
    let part = match missing.len() {
        0 => return Ok(()),
        all => (args.turn as usize).wrapping_mul(PART) % all,
    };
    let turned = missing.iter().cycle().skip(part);
    let chosen: Vec<_> = turned.take(PART.min(missing.len())).cloned().collect();
    for mut names in chosen.chunks(BATCH).map(<[String]>::to_vec) {
        let mut tries = 0;
        while !names.is_empty() {
            let before = no_room(handler)?;
            let stored = args.storage.as_ref().filter(|_| args.storage_keeps_all);
            let stored = stored.and_then(|dir| StorageDir::look(dir).ok());
            let keys: Vec<_> = names.iter().map(|name| key(name)).collect();
            let from = now();
            let found = handler.batch_retrieve_within(&keys, WAIT)?;
            let to = now();
            let was_in_time = Duration::from_nanos(to - from) < WAIT;
            let mut again = Vec::new();
            for (key, object) in names.into_iter().zip(found) {
                journal.write(&match object.map(|object| read(&object, &key)) {
                    Some(Ok(writer)) => Entry::Brought {
                        key,
                        writer,
                        from,
                        to,
                    },
                    Some(Err(what)) => Entry::Fault {
                        kind: Kind::Corrupt,
                        what,
                    },
                    None if stored
                        .as_ref()
                        .is_some_and(|stored| stored.file(&key).is_some()) =>
                    {
                        again.push(key);
                        continue;
                    }
                    None if was_in_time => Entry::Miss { key, from, to },
                    None => continue,
                });
            }
            // Memory has no room for more while clients hold a lot.
            let had_room = no_room(handler)? == before;
            if !again.is_empty() && was_in_time && had_room {
                tries += 1;
            }
            if tries > 2 {
                let what =
                    format!("the files of {again:?} are there, but nobody gets these objects");
                journal.write(&Entry::Fault {
                    kind: Kind::Lost,
                    what,
                });
                break;
            }
            if !had_room {
                break;
            }
            names = again;
        }
    }
    Ok(())
}

/// How often storage was not asked for something as memory had no room for it.
fn no_room(handler: &Handler) -> Result<u64, HandlerError> {
    let l2 = handler.stats()?.engine.l2.unwrap_or_default();
    Ok(l2
        .counters
        .get("ondol_l2_prefetch_l1_oom_total")
        .copied()
        .unwrap_or(0))
}

/// Whether figures and files agree, and nothing is left that a dead server was writing.
fn directory_wrong(stats: &EngineStats, dir: &Path) -> Result<Option<String>, String> {
    let found = StorageDir::look(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let Some(backend) = stats.l2.iter().flat_map(|l2| &l2.backends).next() else {
        return Ok(Some("the server has no storage".to_owned()));
    };
    let used = backend.used_bytes;
    Ok(if used.abs_diff(found.bytes) > found.bytes / 100 {
        Some(format!(
            "{used} bytes are in use, it says; {} are there",
            found.bytes
        ))
    } else if backend
        .capacity_bytes
        .is_some_and(|most| found.bytes > most)
    {
        Some(format!(
            "{} bytes are there, more than there may be",
            found.bytes
        ))
    } else if !found.drafts.is_empty() || found.writers > 1 {
        let left = found.drafts.len();
        Some(format!(
            "{left} temporary files of {} writers are left",
            found.writers
        ))
    } else {
        None
    })
}

/// Objects in memory that storage does not get.
fn unstored(handler: &Handler, args: &Args) -> Result<Option<String>, HandlerError> {
    let objects = list(handler)?;
    let Some(stored) = args
        .storage
        .as_ref()
        .and_then(|dir| StorageDir::look(dir).ok())
    else {
        return Ok(None);
    };
    let names = objects.iter().filter_map(|object| object.key.as_text());
    let names: Vec<_> = names
        .filter(|name| stored.file(name).is_none())
        .take(5)
        .collect();
    let some = !names.is_empty();
    Ok(some.then(|| {
        format!(
            "{names:?} and maybe more are not stored, of {}",
            stored.objects()
        )
    }))
}

/// Waits until nothing is wrong with the figures any more; if that never comes, that is a fault.
fn settle(
    handler: &Handler,
    wrong: impl Fn(&EngineStats) -> Option<String>,
    fault: &dyn Fn(Kind, String),
) -> Result<(), HandlerError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let stats = handler.stats()?.engine;
        let Some(wrong) = wrong(&stats) else {
            return Ok(());
        };
        if Instant::now() > deadline {
            fault(Kind::Leaked, format!("{wrong}: {stats:?}"));
            return Ok(());
        }
        thread::sleep(Duration::from_millis(3));
    }
}

/// Every page of the pool can be had, at the latest when nothing is kept any more of what was brought for readers who did not
/// come.
fn take_all(
    handler: &Handler,
    pool_bytes: u64,
    fault: &dyn Fn(Kind, String),
) -> Result<(), HandlerError> {
    let page = PAGES[2];
    let expected = pool_bytes / page;
    let mut pages = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    let why = loop {
        match handler.alloc_in(page, 1) {
            Ok(page) => pages.push(page),
            Err(HandlerError::Control(error @ ControlError::PoolFull(_))) => {
                if pages.len() as u64 == expected || Instant::now() > deadline {
                    break error;
                }
                thread::sleep(Duration::from_millis(20));
            }
            Err(error) => return Err(error),
        }
    };
    if pages.len() as u64 != expected {
        fault(
            Kind::Leaked,
            format!("{} pages of {expected} can be had: {why}", pages.len()),
        );
    }
    Ok(())
}

fn list(handler: &Handler) -> Result<Vec<ObjectInfo>, HandlerError> {
    let mut objects: Vec<ObjectInfo> = Vec::new();
    loop {
        let after = objects.last().map(|object| object.key.clone());
        let listing = handler.list(after.as_ref(), 1000)?;
        objects.extend(listing.objects);
        if !listing.more {
            return Ok(objects);
        }
    }
}

/// What does not add up.
fn imbalance(stats: &EngineStats, alive: &[u32]) -> Option<String> {
    let sum =
        |of: fn(&ondol_protocol::ClassStats) -> u64| stats.classes.iter().map(of).sum::<u64>();
    let granted: u64 = stats
        .clients
        .iter()
        .map(|client| client.granted_pages)
        .sum();
    if granted != sum(|class| class.granted) {
        return Some(format!("clients hold {granted} pages; more are granted"));
    }
    let committed = sum(|class| class.committed);
    if committed != stats.objects {
        return Some(format!(
            "{committed} pages hold objects; there are {} objects",
            stats.objects
        ));
    }
    let used = sum(|class| class.free) + sum(|class| class.granted) + committed;
    let captive = sum(|class| class.pages) - used;
    if captive != stats.retired {
        return Some(format!(
            "{captive} pages are neither free nor granted nor hold an object; {} objects were removed under readers",
            stats.retired
        ));
    }
    // Without a process: the server's own storage tier.
    let dead = |pid: u32| pid != 0 && pid != std::process::id() && !alive.contains(&pid);
    let dead = stats.clients.iter().find(|client| dead(client.pid))?;
    Some(format!(
        "client {} of the dead process {} is still there",
        dead.id, dead.pid
    ))
}

impl Epoch<'_> {
    /// The server's figures, if it answers.
    pub(crate) fn figures(&self) -> Option<EngineStats> {
        let handler = Handler::embedded(plane(&self.socket()), config()).ok()?;
        Some(handler.stats().ok()?.engine)
    }

    /// Lets all clients pause, and compares what is there with what they wrote down.
    pub(crate) fn check(&mut self, all_free: bool) -> Found {
        let deadline = Instant::now() + WATCHDOG;
        loop {
            self.pause()?;
            if self.observe(all_free)? {
                self.learn()?;
                let claims = u64::from(self.oracle.keeps_all());
                self.report().checks += 1;
                self.report().claims += claims;
                return Ok(());
            }
            // What was seen before the server went away counts as well.
            self.learn()?;
            // A server that is to fail is checked by the one that comes after it.
            if self.has_server()? && self.may_fail() {
                return Ok(());
            }
            if self.is_steady() && Instant::now() > deadline {
                return Err(Fault::new(Kind::Broken, "the server cannot be asked"));
            }
            self.ensure_server()?;
        }
    }

    fn learn(&mut self) -> Found {
        let mut entries = Vec::new();
        for journal in &mut self.journals {
            entries.extend(journal.news()?);
        }
        for entry in &entries {
            match entry {
                Entry::Read { .. } => self.report().verified += 1,
                Entry::Brought { .. } => self.report().brought += 1,
                _ => {}
            }
        }
        match self.oracle.learn(entries).into_iter().next() {
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }
}
