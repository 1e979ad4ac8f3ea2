//! What must hold after every kill: a process of its own looks at everything that the server shows, and writes it down.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use ondol_handler::{ControlError, Handler, HandlerError, ObjectInfo};
use ondol_protocol::EngineStats;
use ondol_tests::key;

use crate::client::{config, plane};
use crate::content::{PAGES, name, read};
use crate::epoch::{Epoch, Found, WATCHDOG};
use crate::journal::{Entry, Journal, Kind, now};
use crate::oracle::Fault;

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
}

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
        let found = handler.batch_retrieve(&keys)?;
        let to = now();
        for (key, object) in names.into_iter().zip(found) {
            match object.map(|object| read(&object, &key)) {
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
    let missing = missing.map(|key| Entry::Miss { key, from, to });
    journal.write_all(&missing.collect::<Vec<_>>());

    settle(handler, |stats| imbalance(stats, &args.alive), &fault)?;
    if let Some(pool_bytes) = args.all_free {
        let held = |stats: &EngineStats| {
            let granted: u64 = stats.classes.iter().map(|class| class.granted).sum();
            let held: u64 = stats
                .clients
                .iter()
                .map(|client| client.leases + client.pins)
                .sum();
            let some = granted + stats.retired + held > 0 || stats.clients.len() > 1;
            some.then(|| "nobody is there, but something is held".to_owned())
        };
        settle(handler, held, &fault)?;
        take_all(handler, pool_bytes, &fault)?;
    }
    handler.close();
    println!("observed");
    Ok(())
}

/// Waits until nothing is wrong with the figures any more; if that never comes, that is a fault.
fn settle(
    handler: &Handler,
    wrong: impl Fn(&EngineStats) -> Option<String>,
    fault: &dyn Fn(Kind, String),
) -> Result<(), HandlerError> {
    let deadline = Instant::now() + Duration::from_secs(20);
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

/// Every page of the pool can be had.
fn take_all(
    handler: &Handler,
    pool_bytes: u64,
    fault: &dyn Fn(Kind, String),
) -> Result<(), HandlerError> {
    let page = PAGES[2];
    let mut pages = Vec::new();
    let why = loop {
        match handler.alloc_in(page, 1) {
            Ok(page) => pages.push(page),
            Err(HandlerError::Control(error @ ControlError::PoolFull(_))) => break error,
            Err(error) => return Err(error),
        }
    };
    let expected = pool_bytes / page;
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
    let dead = |pid: u32| pid != std::process::id() && !alive.contains(&pid);
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
                self.report().checks += 1;
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
        let seen = entries
            .iter()
            .filter(|entry| matches!(entry, Entry::Read { .. }));
        self.report().verified += seen.count() as u64;
        match self.oracle.learn(entries).into_iter().next() {
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }
}
