//! A client that does everything at random, checks all that it sees, and writes everything down.

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use ondol_handler::{
    ControlError, DeleteOutcome as Deleted, Handler, HandlerConfig, HandlerError, Object, PageMut,
    PageSizes, Plugins, SocketOptions, SocketPlane, Stored,
};
use ondol_tests::{Random, key};

use crate::cast::{Role, Step};
use crate::content::{PAGES, len, name, read, write};
use crate::journal::{DeleteOutcome, Entry, Journal, Kind, StoreOutcome, now};

/// What a client is told at its start.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server's socket.
    #[arg(long)]
    socket: PathBuf,
    /// Where to write everything down.
    #[arg(long)]
    journal: PathBuf,
    /// Its number, which no other client of the run has.
    #[arg(long)]
    number: u64,
    /// Seed of what it does.
    #[arg(long)]
    seed: u64,
    /// How many names there are.
    #[arg(long)]
    names: u64,
    /// What it does.
    #[arg(long)]
    role: Role,
    /// Whether there is storage behind the pool that reads may wait for.
    #[arg(long)]
    storage: bool,
}

/// How long a read waits for storage.
const WAIT: Duration = Duration::from_secs(3);

/// How long a call waits for a server that does not answer.
const TIMEOUT: Duration = Duration::from_secs(5);

const THREADS: u64 = 2;

/// Keys that are looked up at once, if they are many: more than are leased with one fence.
const MANY: u64 = 300;

/// Who only reads finds more than can be written down: one read of so many is.
const READS_PER_ENTRY: u64 = 16;

/// What a thread keeps at most of each, so that all of them together leave room in the pool.
const OBJECTS: usize = 10;
const GRANTS: usize = 3;
const PINS: usize = 4;

pub(crate) fn plane(socket: &Path) -> impl Fn() -> Result<Arc<SocketPlane>, ControlError> + use<> {
    let socket = socket.to_owned();
    move || {
        let mut options = SocketOptions::default();
        options.timeout = TIMEOUT;
        SocketPlane::connect(&socket, options)
    }
}

pub(crate) fn config() -> HandlerConfig {
    let mut config = HandlerConfig::default();
    config.page_sizes = PageSizes::Fixed(PAGES.to_vec());
    config.plugins = Plugins::None;
    config.stock_bytes = 32 << 10;
    config
}

/// The state of all threads, set by the lines that the client is told.
struct Gate {
    open: Mutex<State>,
    changed: Condvar,
    pauses: AtomicU64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Run,
    /// The how manieth time, and how many threads wait.
    Pause {
        time: u64,
        waiting: u64,
    },
    End,
}

struct Shared {
    handler: Handler,
    journal: Journal,
    /// Counts the handler's own reconnections, which take its pages and pins away. Held shared during every call.
    line: RwLock<u64>,
    gate: Gate,
    /// Odd while the handler reconnects, which readers are not kept from.
    turns: AtomicU64,
    names: u64,
    role: Role,
    storage: bool,
}

/// A page, written, not stored yet.
struct Grant {
    page: PageMut,
    name: String,
    writer: u64,
    line: u64,
}

struct Held {
    object: Object,
    name: String,
    writer: u64,
}

struct Worker {
    shared: Arc<Shared>,
    random: Random,
    objects: Vec<Held>,
    grants: Vec<Grant>,
    /// Pins by name, with what they pin and the line they were made on.
    pins: HashMap<String, (u64, Option<u64>)>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let journal = Journal::create(&args.journal, args.number)?;
    // The server may just have been killed.
    let deadline = now() + 120_000_000_000;
    let handler = loop {
        match Handler::embedded(plane(&args.socket), config()) {
            Ok(handler) => break handler,
            Err(HandlerError::Control(
                ControlError::Disconnected { .. }
                | ControlError::TimedOut { .. }
                | ControlError::Failed(_),
            )) if now() < deadline => thread::sleep(Duration::from_millis(3)),
            Err(error) => return Err(error).context("cannot connect"),
        }
    };
    let shared = Arc::new(Shared {
        handler,
        journal,
        line: RwLock::new(0),
        gate: Gate {
            open: Mutex::new(State::Run),
            changed: Condvar::new(),
            pauses: AtomicU64::new(0),
        },
        turns: AtomicU64::new(0),
        names: args.names,
        role: args.role,
        storage: args.storage,
    });
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let mut worker = Worker {
                shared: Arc::clone(&shared),
                random: Random::new(args.seed.wrapping_add(thread)),
                objects: Vec::new(),
                grants: Vec::new(),
                pins: HashMap::new(),
            };
            thread::spawn(move || worker.work())
        })
        .collect();
    say("ready")?;
    for line in io::stdin().lines() {
        match line?.as_str() {
            "pause" => {
                shared.gate.pause();
                say("paused")?;
            }
            "go" => shared.gate.set(State::Run),
            "fresh" => shared.begin_anew(),
            "end" => {
                shared.gate.set(State::End);
                break;
            }
            other => anyhow::bail!("told {other:?}; expected pause, go, fresh or end"),
        }
    }
    shared.gate.set(State::End);
    for thread in threads {
        if thread.join().is_err() {
            anyhow::bail!("a thread panicked");
        }
    }
    // Objects and pages are dropped; closing gives the stock back.
    shared.handler.close();
    say("ended")?;
    Ok(())
}

fn say(word: &str) -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "{word}")?;
    out.flush()
}

impl Shared {
    /// The server has another pool: what was granted and pinned is gone with the old one. Until the handler has
    /// noticed, it would give out pages that it has in stock.
    fn begin_anew(&self) {
        let mut line = self.line.write().unwrap_or_else(PoisonError::into_inner);
        *line += 1;
        while !self.handler.health().is_connected() {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Gate {
    fn set(&self, state: State) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = state;
        self.changed.notify_all();
    }

    /// Waits until all threads wait.
    fn pause(&self) {
        let mut state = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        // A thread that waits already, or has not woken up since the last time, looks at everything again.
        let time = self.pauses.fetch_add(1, Ordering::Relaxed);
        *state = State::Pause { time, waiting: 0 };
        self.changed.notify_all();
        while !matches!(*state, State::Pause { waiting, .. } if waiting >= THREADS) {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn is_open(&self) -> bool {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) == State::Run
    }

    /// Waits until it is told something else; whether there is anything to do.
    fn pass(&self) -> bool {
        let mut state = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Pause { time, waiting } = &mut *state {
            let now = *time;
            *waiting += 1;
            self.changed.notify_all();
            while matches!(*state, State::Pause { time, .. } if time == now) {
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
        *state != State::End
    }
}

impl Worker {
    fn work(&mut self) {
        loop {
            if !self.shared.gate.is_open() {
                self.verify_all();
                if !self.shared.gate.pass() {
                    self.verify_all();
                    return;
                }
                continue;
            }
            self.step();
        }
    }

    fn fault(&self, kind: Kind, what: String) {
        self.shared.journal.write(&Entry::Fault { kind, what });
    }

    /// What may go wrong while servers are killed; anything else is a fault.
    fn excuse(&mut self, doing: &str, error: &HandlerError) {
        match error {
            HandlerError::Control(
                ControlError::Disconnected { .. }
                | ControlError::TimedOut { .. }
                | ControlError::Failed(_),
            ) => thread::sleep(Duration::from_millis(1 + self.random.below(4))),
            HandlerError::Control(
                ControlError::PoolFull(_) | ControlError::ShareExceeded { .. },
            ) => {
                self.objects.clear();
                self.give_up_grants();
                thread::sleep(Duration::from_millis(1));
            }
            HandlerError::NotStored(ondol_protocol::RefusedCommit::NotRecorded) => {
                thread::sleep(Duration::from_millis(1));
            }
            HandlerError::NotStored(_) | HandlerError::ForeignPage => self.fault(
                Kind::Lost,
                format!("{doing}: a granted page of a living client: {error}"),
            ),
            _ => self.fault(Kind::Broken, format!("{doing}: {error}")),
        }
    }

    fn give_up_grants(&mut self) {
        for index in (0..self.grants.len()).rev() {
            self.verify_grant(index);
        }
        self.grants.clear();
    }

    fn any_name(&mut self) -> String {
        // Some names are asked for far more often than others.
        let names = self.shared.names;
        let below = match self.random.below(3) {
            0 => (names / 16).max(1),
            _ => names,
        };
        name(self.random.below(below))
    }

    fn step(&mut self) {
        let role = self.shared.role;
        match role.step(&mut self.random) {
            Step::Store => self.store(),
            Step::StoreBatch => self.store_batch(),
            Step::TakeGrant => self.take_grant(),
            Step::StoreGrant => self.store_grant(),
            Step::Retrieve => self.retrieve(),
            Step::RetrieveBatch => self.retrieve_batch(6),
            Step::RetrieveMany => self.retrieve_batch(MANY),
            Step::Prefetch if self.shared.storage => self.prefetch(),
            Step::Prefetch | Step::VerifySome => self.verify_some(),
            Step::Drop => {
                if !self.objects.is_empty() {
                    let index = self.random.below(self.objects.len() as u64) as usize;
                    self.verify_object(index);
                    self.objects.swap_remove(index);
                }
            }
            Step::Pin => self.pin(),
            Step::Unpin => self.unpin(),
            Step::Delete => self.delete(),
            Step::Exists => self.exists(),
            Step::Reconnect => {
                if self.random.once_in(8) {
                    self.reconnect();
                }
            }
        }
        if role == Role::All && self.random.once_in(4) {
            thread::sleep(Duration::from_micros(self.random.below(400)));
        }
    }

    fn alloc(&mut self, name: &str) -> Option<(PageMut, u64)> {
        let shared = Arc::clone(&self.shared);
        let line = shared.line.read().unwrap_or_else(PoisonError::into_inner);
        let page = shared.handler.alloc(len(name));
        let made = *line;
        drop(line);
        match page {
            Ok(page) => Some((page, made)),
            Err(error) => {
                self.excuse("alloc", &error);
                None
            }
        }
    }

    fn store(&mut self) {
        let name = self.any_name();
        let Some((mut page, line)) = self.alloc(&name) else {
            return;
        };
        let writer = self.shared.journal.number();
        write(&mut page, &name, writer);
        self.store_pages(vec![Grant {
            page,
            name,
            writer,
            line,
        }]);
    }

    fn store_batch(&mut self) {
        let mut grants: Vec<Grant> = Vec::new();
        for _ in 0..2 + self.random.below(5) {
            let name = self.any_name();
            if grants.iter().any(|grant| grant.name == name) {
                continue;
            }
            let Some((mut page, line)) = self.alloc(&name) else {
                break;
            };
            let writer = self.shared.journal.number();
            write(&mut page, &name, writer);
            grants.push(Grant {
                page,
                name,
                writer,
                line,
            });
        }
        self.store_pages(grants);
    }

    fn take_grant(&mut self) {
        if self.grants.len() >= GRANTS {
            return;
        }
        let name = self.any_name();
        if let Some((mut page, line)) = self.alloc(&name) {
            let writer = self.shared.journal.number();
            write(&mut page, &name, writer);
            self.grants.push(Grant {
                page,
                name,
                writer,
                line,
            });
        }
    }

    fn store_grant(&mut self) {
        if self.grants.is_empty() {
            return;
        }
        let index = self.random.below(self.grants.len() as u64) as usize;
        self.verify_grant(index);
        let grant = self.grants.swap_remove(index);
        self.store_pages(vec![grant]);
    }

    /// Nobody else writes into a page that is granted to this client.
    fn verify_grant(&self, index: usize) {
        let Grant {
            page, name, writer, ..
        } = &self.grants[index];
        match read(page, name) {
            Ok(found) if found == *writer => {}
            found => self.fault(
                Kind::Corrupt,
                format!("a granted page, written as store {writer} of {name}, holds {found:?}"),
            ),
        }
    }

    fn store_pages(&mut self, mut grants: Vec<Grant>) {
        let shared = Arc::clone(&self.shared);
        let line = shared.line.read().unwrap_or_else(PoisonError::into_inner);
        // Pages of a line that this client gave up itself.
        grants.retain(|grant| grant.line == *line);
        if grants.is_empty() {
            return;
        }
        let at = now();
        let asked = |grant: &Grant| Entry::Store {
            writer: grant.writer,
            key: grant.name.clone(),
            at,
        };
        shared
            .journal
            .write_all(&grants.iter().map(asked).collect::<Vec<_>>());
        let writers: Vec<_> = grants.iter().map(|grant| grant.writer).collect();
        let keys: Vec<_> = grants.iter().map(|grant| key(&grant.name)).collect();
        let pages: Vec<_> = grants.into_iter().map(|grant| grant.page).collect();
        let outcomes = shared.handler.batch_store(&keys, pages);
        let at = now();
        drop(line);
        let mut errors = Vec::new();
        let mut judge = |outcome| match outcome {
            Ok(Stored::New) => StoreOutcome::New,
            Ok(Stored::AlreadyPresent) => StoreOutcome::Present,
            Err(error) => {
                let outcome = store_outcome(&error);
                errors.push(error);
                outcome
            }
        };
        let outcomes: Vec<StoreOutcome> = match outcomes {
            Ok(outcomes) => outcomes.into_iter().map(judge).collect(),
            Err(error) => vec![judge(Err(error)); writers.len()],
        };
        let answers = writers.into_iter().zip(outcomes);
        let answers = answers.map(|(writer, outcome)| Entry::Stored {
            writer,
            outcome,
            at,
        });
        shared.journal.write_all(&answers.collect::<Vec<_>>());
        errors.iter().for_each(|error| self.excuse("store", error));
    }

    /// How long the next read waits for storage.
    fn wait(&mut self) -> Option<Duration> {
        (self.shared.storage && !self.random.once_in(4)).then_some(WAIT)
    }

    fn seen(
        &mut self,
        name: String,
        object: Option<Object>,
        (from, to): (u64, u64),
        wait: Option<Duration>,
    ) {
        let Some(object) = object else {
            // Who does not wait for storage, or not long enough, has not seen that it is missing.
            let looked_everywhere = match wait {
                Some(wait) => Duration::from_nanos(to - from) < wait,
                None => !self.shared.storage,
            };
            if looked_everywhere && self.is_written_down() {
                let key = name;
                self.shared.journal.write(&Entry::Miss { key, from, to });
            }
            return;
        };
        match read(&object, &name) {
            Ok(writer) => {
                if self.is_written_down() {
                    let key = name.clone();
                    self.shared.journal.write(&Entry::Read {
                        key,
                        writer,
                        from,
                        to,
                    });
                }
                if self.objects.len() >= OBJECTS {
                    let index = self.random.below(OBJECTS as u64) as usize;
                    self.verify_object(index);
                    self.objects.swap_remove(index);
                }
                if self.random.once_in(2) {
                    self.objects.push(Held {
                        object,
                        name,
                        writer,
                    });
                }
            }
            Err(error) => self.fault(Kind::Corrupt, format!("retrieved: {error}")),
        }
    }

    fn is_written_down(&mut self) -> bool {
        self.shared.role == Role::All || self.random.once_in(READS_PER_ENTRY)
    }

    fn retrieve(&mut self) {
        let name = self.any_name();
        let wait = self.wait();
        let (turn, from) = (self.turn(), now());
        let handler = &self.shared.handler;
        let found = match wait {
            Some(wait) => handler.retrieve_within(&key(&name), wait),
            None => handler.retrieve(&key(&name)),
        };
        match found {
            Ok(object) => self.seen(name, object, (from, now()), wait),
            Err(error) => self.excuse_reader("retrieve", turn, &error),
        }
    }

    /// Up to so many more than two keys.
    fn retrieve_batch(&mut self, more: u64) {
        let names: Vec<_> = (0..2 + self.random.below(more))
            .map(|_| self.any_name())
            .collect();
        let keys: Vec<_> = names.iter().map(|name| key(name)).collect();
        let wait = self.wait();
        let (turn, from) = (self.turn(), now());
        let handler = &self.shared.handler;
        let found = match wait {
            Some(wait) => handler.batch_retrieve_within(&keys, wait),
            None => handler.batch_retrieve(&keys),
        };
        match found {
            Ok(objects) => {
                let to = now();
                for (name, object) in names.into_iter().zip(objects) {
                    self.seen(name, object, (from, to), wait);
                }
            }
            Err(error) => self.excuse_reader("batch_retrieve", turn, &error),
        }
    }

    /// Has objects brought from storage for whoever asks for them next.
    fn prefetch(&mut self) {
        let keys: Vec<_> = (0..1 + self.random.below(8))
            .map(|_| key(&self.any_name()))
            .collect();
        let turn = self.turn();
        if let Err(error) = self.shared.handler.prefetch(&keys) {
            self.excuse_reader("prefetch", turn, &error);
        }
    }

    /// What a reader meets while another thread closes the handler is no fault.
    fn excuse_reader(&mut self, doing: &str, turn: u64, error: &HandlerError) {
        if turn.is_multiple_of(2) && self.turn() == turn {
            self.excuse(doing, error);
        }
    }

    fn turn(&self) -> u64 {
        self.shared.turns.load(Ordering::SeqCst)
    }

    fn verify_object(&self, index: usize) {
        let Held {
            object,
            name,
            writer,
        } = &self.objects[index];
        match read(object, name) {
            Ok(found) if found == *writer => {}
            found => self.fault(
                Kind::Corrupt,
                format!("a held object, store {writer} of {name}, has become {found:?}"),
            ),
        }
    }

    fn verify_some(&mut self) {
        if !self.objects.is_empty() {
            let index = self.random.below(self.objects.len() as u64) as usize;
            self.verify_object(index);
        }
        if !self.grants.is_empty() {
            let index = self.random.below(self.grants.len() as u64) as usize;
            self.verify_grant(index);
        }
        if let Some(name) = self.some_pin() {
            self.verify_pin(&name);
        }
    }

    fn some_pin(&mut self) -> Option<String> {
        // In the order of their names, so that a seed chooses the same.
        let mut names: Vec<_> = self.pins.keys().cloned().collect();
        names.sort();
        let count = names.len() as u64;
        (count > 0).then(|| names.swap_remove(self.random.below(count) as usize))
    }

    /// What is pinned is there.
    fn verify_pin(&mut self, name: &str) {
        let shared = Arc::clone(&self.shared);
        let line = shared.line.read().unwrap_or_else(PoisonError::into_inner);
        if self.pins.get(name).is_some_and(|(made, _)| *made != *line) {
            self.pins.remove(name);
            return;
        }
        let from = now();
        let found = shared.handler.retrieve(&key(name));
        drop(line);
        match found {
            Ok(None) => self.fault(
                Kind::Lost,
                format!("{name} is pinned by this client and not found at {from}"),
            ),
            Ok(Some(object)) => {
                let to = now();
                match (read(&object, name), self.pins.get_mut(name)) {
                    (Ok(writer), Some((_, pinned))) => {
                        let before = *pinned.get_or_insert(writer);
                        if before != writer {
                            self.fault(
                                Kind::Lost,
                                format!("{name} is pinned as {before} and is now {writer}"),
                            );
                        }
                        self.shared.journal.write(&Entry::Read {
                            key: name.to_owned(),
                            writer,
                            from,
                            to,
                        });
                    }
                    (Err(error), _) => self.fault(Kind::Corrupt, format!("pinned: {error}")),
                    (Ok(_), None) => {}
                }
            }
            Err(error) => self.excuse("retrieve a pinned object", &error),
        }
    }

    fn verify_all(&mut self) {
        (0..self.objects.len()).for_each(|index| self.verify_object(index));
        (0..self.grants.len()).for_each(|index| self.verify_grant(index));
        let mut names: Vec<_> = self.pins.keys().cloned().collect();
        names.sort();
        names.iter().for_each(|name| self.verify_pin(name));
    }

    fn pin(&mut self) {
        let name = self.any_name();
        if self.pins.len() >= PINS || self.pins.contains_key(&name) {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let line = shared.line.read().unwrap_or_else(PoisonError::into_inner);
        let pinned = shared.handler.pin(&key(&name));
        match pinned {
            Ok(true) => {
                self.pins.insert(name, (*line, None));
            }
            Ok(false) => {}
            // Whether it is pinned is not known; closing the handler takes the pin back if it was made.
            Err(error) => {
                drop(line);
                self.excuse("pin", &error);
            }
        }
    }

    fn unpin(&mut self) {
        let Some(name) = self.some_pin() else { return };
        self.verify_pin(&name);
        let shared = Arc::clone(&self.shared);
        let line = shared.line.read().unwrap_or_else(PoisonError::into_inner);
        let Some((made, _)) = self.pins.remove(&name) else {
            return;
        };
        if made != *line {
            return;
        }
        let unpinned = shared.handler.unpin(&key(&name));
        drop(line);
        match unpinned {
            Ok(true) => {}
            Ok(false) => self.fault(Kind::Lost, format!("the pin of {name} is not there")),
            // From here on it is not known whether the object is pinned.
            Err(error) => self.excuse("unpin", &error),
        }
    }

    fn delete(&mut self) {
        let name = self.any_name();
        let number = self.shared.journal.number();
        let asked = Entry::Delete {
            number,
            key: name.clone(),
            at: now(),
        };
        let shared = Arc::clone(&self.shared);
        let line = shared.line.read().unwrap_or_else(PoisonError::into_inner);
        shared.journal.write(&asked);
        let outcome = shared.handler.delete(&key(&name));
        let at = now();
        let answer = match &outcome {
            Ok(Deleted::Deleted) => DeleteOutcome::Deleted,
            // Not in memory; in storage it is deleted all the same.
            Ok(Deleted::Absent) if shared.storage => DeleteOutcome::Deleted,
            Ok(Deleted::Absent | Deleted::Pinned) => DeleteOutcome::Unchanged,
            Err(error) if is_certain(error) => DeleteOutcome::Unchanged,
            Err(_) => DeleteOutcome::Unknown,
        };
        shared.journal.write(&Entry::Deleted {
            number,
            outcome: answer,
            at,
        });
        if let Some((made, _)) = self.pins.get(&name)
            && *made == *line
            && matches!(outcome, Ok(Deleted::Deleted | Deleted::Absent))
        {
            self.fault(
                Kind::Lost,
                format!("{name} is pinned by this client, and a delete said {outcome:?}"),
            );
        }
        drop(line);
        if let Err(error) = outcome {
            self.excuse("delete", &error);
        }
    }

    fn exists(&mut self) {
        let turn = self.turn();
        let asked = if self.random.once_in(4) {
            let keys: Vec<_> = (0..self.random.below(MANY))
                .map(|_| key(&self.any_name()))
                .collect();
            self.shared.handler.batch_exists(&keys).map(|_| ())
        } else {
            let name = self.any_name();
            self.shared.handler.exists(&key(&name)).map(|_| ())
        };
        if let Err(error) = asked {
            self.excuse_reader("exists", turn, &error);
        }
    }

    /// Leaves the server and comes back as another client.
    fn reconnect(&mut self) {
        let shared = Arc::clone(&self.shared);
        let mut line = shared.line.write().unwrap_or_else(PoisonError::into_inner);
        *line += 1;
        shared.turns.fetch_add(1, Ordering::SeqCst);
        loop {
            match shared.handler.reconnect() {
                Ok(()) => {
                    shared.turns.fetch_add(1, Ordering::SeqCst);
                    return;
                }
                Err(error) => {
                    self.excuse("reconnect", &error);
                    if !self.shared.gate.is_open() {
                        // The server may not come before the pause.
                        thread::sleep(Duration::from_millis(2));
                    }
                }
            }
        }
    }
}

/// Whether a call that failed has certainly changed nothing.
fn is_certain(error: &HandlerError) -> bool {
    !matches!(error, HandlerError::Control(ControlError::Failed(_))) && !error.is_outcome_unknown()
}

fn store_outcome(error: &HandlerError) -> StoreOutcome {
    if is_certain(error) {
        StoreOutcome::Refused
    } else {
        StoreOutcome::Unknown
    }
}
