//! What must hold after every kill.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use ondol_handler::{ControlError, Handler, HandlerError, ObjectInfo};
use ondol_protocol::EngineStats;
use ondol_tests::key;

use crate::client::{config, plane};
use crate::content::{PAGES, read};
use crate::epoch::{Epoch, Found, WATCHDOG};
use crate::journal::{Entry, Kind, now};
use crate::oracle::Fault;

/// Why a check came to no end.
enum Stopped {
    /// The server went away, as it may if it is armed.
    Server(HandlerError),
    Fault(Fault),
}

impl From<HandlerError> for Stopped {
    fn from(error: HandlerError) -> Self {
        Self::Server(error)
    }
}

impl From<Fault> for Stopped {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl Epoch<'_> {
    /// Whether the server lets somebody in.
    pub(crate) fn answers(&self) -> bool {
        self.observer().is_ok()
    }

    fn observer(&self) -> Result<Handler, HandlerError> {
        Handler::embedded(plane(&self.socket()), config())
    }

    /// Lets all clients pause and compares everything with what they wrote down.
    pub(crate) fn check(&mut self) -> Found {
        let deadline = Instant::now() + WATCHDOG;
        loop {
            self.pause()?;
            self.learn()?;
            match self.examine() {
                Ok(()) => {
                    self.report().checks += 1;
                    return Ok(());
                }
                Err(Stopped::Fault(fault)) => return Err(fault),
                Err(Stopped::Server(error)) => {
                    // A server that is to fail is checked by the one that comes after it.
                    if self.has_server()? && self.may_fail() {
                        return Ok(());
                    }
                    if self.is_steady() && Instant::now() > deadline {
                        let what = format!("the server cannot be asked: {error}");
                        return Err(Fault::new(Kind::Broken, what));
                    }
                    thread::sleep(Duration::from_millis(2));
                    self.ensure_server()?;
                }
            }
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

    fn examine(&mut self) -> Result<(), Stopped> {
        let observer = self.observer()?;
        let from = now();
        let objects = list(&observer)?;
        let to = now();
        let mut listed = BTreeSet::new();
        for part in objects.chunks(64) {
            let mut names = Vec::new();
            for object in part {
                match object.key.as_text() {
                    Some(name) => names.push(name.to_owned()),
                    None => {
                        let what = format!("{} is no name of ours", object.key);
                        return Err(Fault::new(Kind::Phantom, what).into());
                    }
                }
            }
            let keys: Vec<_> = names.iter().map(|name| key(name)).collect();
            let from = now();
            let found = observer.batch_retrieve(&keys)?;
            let to = now();
            for (name, object) in names.into_iter().zip(found) {
                let Some(object) = object else {
                    let what = format!("{name} is listed, but not found");
                    return Err(Fault::new(Kind::Lost, what).into());
                };
                match read(&object, &name) {
                    Ok(writer) => match self.oracle.judge_read(&name, writer, from, to) {
                        Some(fault) => return Err(fault.into()),
                        None => self.report().verified += 1,
                    },
                    Err(what) => return Err(Fault::new(Kind::Corrupt, what).into()),
                }
                listed.insert(name);
            }
        }
        let missing = self.oracle.keys().filter(|name| !listed.contains(*name));
        let lost = missing.filter_map(|name| self.oracle.judge_miss(name, from, to));
        if let Some(fault) = lost.into_iter().next() {
            return Err(fault.into());
        }
        self.balance(&observer)?;
        observer.close();
        Ok(())
    }

    /// Waits until the figures of the server agree with each other and with who is there.
    fn balance(&mut self, observer: &Handler) -> Result<(), Stopped> {
        let pids = self.client_pids();
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let stats = observer.stats()?.engine;
            let Some(wrong) = imbalance(&stats, &pids) else {
                for (name, value) in &stats.counters {
                    match name.as_str() {
                        "ondol_evictions_total" => self.report().evictions += value,
                        name if name.contains("checkpoint") && name.ends_with("_total") => {
                            self.report().checkpoints += value;
                        }
                        _ => {}
                    }
                }
                return Ok(());
            };
            if Instant::now() > deadline {
                return Err(Fault::new(Kind::Leaked, format!("{wrong}: {stats:?}")).into());
            }
            thread::sleep(Duration::from_millis(3));
        }
    }

    /// After all clients have ended: every page can be had.
    pub(crate) fn check_nothing_is_held(&mut self) -> Found {
        let failed = |error: HandlerError| Fault::new(Kind::Broken, error.to_string());
        let observer = self.observer().map_err(failed)?;
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let stats = observer.stats().map_err(failed)?.engine;
            let granted: u64 = stats.classes.iter().map(|class| class.granted).sum();
            let own = observer.counts().stock_pages;
            let others = stats
                .clients
                .iter()
                .any(|client| client.pid != std::process::id());
            let held: u64 = stats
                .clients
                .iter()
                .map(|client| client.leases + client.pins)
                .sum();
            if granted == own && stats.retired == 0 && !others && held == 0 {
                break;
            }
            if Instant::now() > deadline {
                let what = format!("nobody is there, but something is held: {stats:?}");
                return Err(Fault::new(Kind::Leaked, what));
            }
            thread::sleep(Duration::from_millis(3));
        }
        let page = PAGES[2];
        let mut pages = Vec::new();
        let why = loop {
            match observer.alloc_in(page, 1) {
                Ok(page) => pages.push(page),
                Err(HandlerError::Control(error @ ControlError::PoolFull(_))) => break error,
                Err(error) => return Err(failed(error)),
            }
        };
        let expected = self.settings.pool_bytes / page;
        if pages.len() as u64 != expected {
            let what = format!("{} pages of {expected} can be had: {why}", pages.len());
            return Err(Fault::new(Kind::Leaked, what));
        }
        drop(pages);
        observer.close();
        Ok(())
    }
}

fn list(observer: &Handler) -> Result<Vec<ObjectInfo>, HandlerError> {
    let mut objects: Vec<ObjectInfo> = Vec::new();
    loop {
        let after = objects.last().map(|object| object.key.clone());
        let listing = observer.list(after.as_ref(), 1000)?;
        objects.extend(listing.objects);
        if !listing.more {
            return Ok(objects);
        }
    }
}

/// What does not add up.
fn imbalance(stats: &EngineStats, pids: &[u32]) -> Option<String> {
    let sum =
        |of: fn(&ondol_protocol::ClassStats) -> u64| stats.classes.iter().map(of).sum::<u64>();
    let granted: u64 = stats
        .clients
        .iter()
        .map(|client| client.granted_pages)
        .sum();
    if granted != sum(|class| class.granted) {
        return Some(format!(
            "clients hold {granted} pages; other pages are granted to nobody"
        ));
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
    let dead = |pid: u32| pid != std::process::id() && !pids.contains(&pid);
    if let Some(client) = stats.clients.iter().find(|client| dead(client.pid)) {
        return Some(format!(
            "client {} of the dead process {} is still there",
            client.id, client.pid
        ));
    }
    None
}
