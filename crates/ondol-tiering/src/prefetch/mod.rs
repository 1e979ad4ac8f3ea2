//! From storage to memory.
//!
//! A caller's thread leases what memory has; if that is all, nothing else happens. Otherwise it asks every backend for the keys
//! that are missing, and the [controller](controller) goes on from what they answer, on [the thread that brings it](inbox): it plans which chunks are
//! wanted, unlocks the rest, loads, checks, admits, and puts leases where the caller waits for them.
//!
//! Time and failures are handled by ownership: locks in backends, bytes in flight and pages are guards that travel with
//! the task that they belong to. Whoever drops them, in whatever state, has given back what they stand for. Only a page that came
//! back by value from its adapter is admitted.

mod batch;
mod controller;
mod held;
mod inbox;
mod janitor;
mod metrics;
mod plan;
mod reads;
mod request;
mod room;
mod slot;
mod speed;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use ondol_host::l2::BackendHealth;
use ondol_plugin::Key;
use ondol_plugin::l2::Bitmap;
use parking_lot::Mutex;

pub(crate) use self::metrics::PrefetchCounters;
pub(crate) use self::reads::Reads;

use self::controller::{Controller, Event, Shared};
use self::inbox::Hear;
use self::plan::Shape;
use self::request::{Cell, Look, Request};
use self::slot::{Leases, Slot};
use crate::attached::{Attached, AttachedBackends};
use crate::{Leased, Memory, TieringConfig, object_key};

/// Requests that may be under way; what comes on top gets what memory has.
const MAX_UNDER_WAY: u64 = 65_536;

/// One row of a request: the chunks of one object group and rank. All rows of a request are equally long; what the longer ones
/// have more is ignored.
#[derive(Clone, Debug)]
pub struct Row {
    /// The keys, one for each chunk.
    pub keys: Vec<Key>,
    /// Chunks that a sliding window reaches over; `None` for full attention.
    pub window: Option<usize>,
    /// Length of each object in bytes, if it is known.
    pub expected_len: Option<u64>,
}

/// Which of the chunks that are there are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchPolicy {
    /// The longest prefix that every row can serve.
    Prefix,
    /// Every chunk that every row has.
    Full,
}

/// A request to bring objects into memory.
#[derive(Clone, Debug)]
pub struct PrefetchRequest {
    /// What is wanted.
    pub rows: Vec<Row>,
    /// Which of it.
    pub policy: FetchPolicy,
    /// How long this may take, after which it reports what it has. What would not come in that time, as far as is known how
    /// fast the backends are, is not loaded.
    pub timeout: Duration,
}

/// A request that is under way. Dropping it does not stop it; what it loads is admitted all the same, and leased by nobody.
pub struct Prefetch(Inner);

enum Inner {
    /// Memory had it all, or nobody else can be asked.
    Ready(PrefetchReport),
    Running(Running),
}

struct Running {
    slot: Arc<Slot>,
    shared: Arc<Shared>,
    id: u64,
}

/// What a prefetch has.
#[derive(Debug)]
pub struct PrefetchReport {
    /// For each row, which chunks are in memory and leased.
    pub present: Vec<Bitmap>,
    /// Those that were there before.
    pub from_memory: Vec<Bitmap>,
    /// The leases, row by row; dropped with the report.
    pub leases: Vec<Vec<Option<Leased>>>,
    /// Whether the time was over before everything that was planned had come.
    pub timed_out: bool,
}

impl Prefetch {
    /// Waits until it is done, or `until`; what it has then. Loads that are under way go on, and what they bring is admitted.
    pub fn wait(self, until: Instant) -> PrefetchReport {
        match self.0 {
            Inner::Ready(report) => report,
            Inner::Running(running) => running.slot.wait(until),
        }
    }

    /// Whether [`wait`](Self::wait) would return at once.
    pub fn is_done(&self) -> bool {
        match &self.0 {
            Inner::Ready(_) => true,
            Inner::Running(running) => running.slot.is_done(),
        }
    }

    /// Stops it: nothing more is loaded for it. What is being loaded already is admitted when it comes, and leased by nobody.
    pub fn abort(self) {
        if let Inner::Running(running) = &self.0 {
            // Without a controller the request has ended already.
            let abort = Event::Abort(running.id);
            let _ = running.shared.inbox.tell(abort, Hear::Anywhere);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.slot.leave();
    }
}

impl fmt::Debug for Prefetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prefetch")
            .field("is_done", &self.is_done())
            .finish_non_exhaustive()
    }
}

/// Brings objects into memory.
#[derive(Debug)]
pub(crate) struct PrefetchController {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl PrefetchController {
    /// Starts the controller and its thread.
    ///
    /// # Errors
    /// If the system has no thread left.
    pub(crate) fn start(
        memory: Arc<Memory>,
        backends: Arc<AttachedBackends>,
        config: Arc<TieringConfig>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(memory, backends, config));
        let controller = Controller::new(Arc::clone(&shared))?;
        let serving = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("ondol-l2-fetch".to_owned())
            .spawn(move || serving.inbox.serve())?;
        shared.inbox.open(controller);
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Begins a request. If memory has all of it, it is done at once.
    pub(crate) fn submit(&self, request: PrefetchRequest) -> Prefetch {
        let shared = &self.shared;
        shared.counters.requests.increment();
        let PrefetchRequest {
            mut rows,
            policy,
            timeout,
        } = request;
        let columns = rows.iter().map(|row| row.keys.len()).min().unwrap_or(0);
        rows.iter_mut().for_each(|row| row.keys.truncate(columns));
        let shape = Shape {
            policy,
            // A window over nothing means full attention in LMCache's messages.
            windows: rows
                .iter()
                .map(|row| row.window.filter(|window| *window > 0))
                .collect(),
            columns,
        };
        // Before memory is looked at, so that nothing which is admitted from here on is overlooked.
        let admissions = shared.admissions.load(Ordering::Acquire);
        let leases: Leases = rows
            .iter()
            .map(|row| shared.memory.lease(&row.keys))
            .collect();
        let present = slot::present(&leases);
        if shape.is_whole(&present) {
            shared.counters.from_memory.increment();
            return Prefetch::ready(&shape, leases, present);
        }
        let mut backends = shared.backends.active();
        let share = shared.config.load_in_flight_bytes / backends.len().max(1) as u64;
        backends.retain(|attached| is_usable(attached, &shared.config, share));
        if backends.is_empty() || timeout.is_zero() {
            return Prefetch::ready(&shape, leases, present);
        }
        if shared.under_way.load(Ordering::Relaxed) >= MAX_UNDER_WAY {
            shared.counters.refused.increment();
            return Prefetch::ready(&shape, leases, present);
        }
        let slot = Arc::new(Slot::new(shape, leases));
        let running = self.begin(&slot, &rows, present, &backends, timeout, admissions);
        Prefetch(Inner::Running(running))
    }

    /// Begins a request of which memory has only `present`.
    fn begin(
        &self,
        slot: &Arc<Slot>,
        rows: &[Row],
        present: Vec<Bitmap>,
        backends: &[Arc<Attached>],
        timeout: Duration,
        admissions: u64,
    ) -> Running {
        let shared = &self.shared;
        let there: usize = present.iter().map(Bitmap::count_ones).sum();
        let mut cells = Vec::with_capacity(rows.len() * slot.shape().columns - there);
        for column in 0..slot.shape().columns {
            for (at, row) in rows.iter().enumerate() {
                if !present[at].test(column) {
                    let key = row.keys[column].clone();
                    cells.push(Cell::new(at, column, key, row.expected_len));
                }
            }
        }
        let names: Arc<[_]> = cells.iter().map(|cell| object_key(&cell.key)).collect();
        let look = Look {
            present,
            cells,
            names: Arc::clone(&names),
            admissions,
        };
        let request = Request::new(shared, slot, look, backends.len(), timeout);
        let id = request.id;
        let running = Running {
            slot: Arc::clone(slot),
            shared: Arc::clone(shared),
            id,
        };
        // A controller that has ended lets go of the request, which answers it.
        let begin = Event::Begin(Box::new(request));
        if shared.inbox.tell(begin, Hear::Anywhere).is_err() {
            return running;
        }
        // However long the request waits: this is what the backend is measured by.
        let timeout = shared.config.lookup_timeout;
        for (at, attached) in backends.iter().enumerate() {
            shared.counters.looked_up.add(names.len() as u64);
            let (asked, shared) = (Arc::clone(attached), Arc::clone(shared));
            let names_asked = Arc::clone(&names);
            attached
                .backend
                .lookup(names.to_vec(), timeout, move |result| {
                    shared.looked_up(id, at, asked, names_asked, result);
                });
        }
        running
    }

    /// Keeps objects that are being deleted out of memory: once this has returned and for as long as the guard lives, nothing of
    /// these keys is admitted or begun to be loaded. Locks on them in backends are given back; those of loads that are under
    /// way when these have ended. To be called before they are deleted from memory.
    pub(crate) fn bar(&self, keys: &[Key]) -> Barred {
        let keys: Arc<[_]> = keys.into();
        let (done, is_done) = bounded(0);
        let event = Event::Bar {
            keys: Arc::clone(&keys),
            done,
        };
        // A controller that has ended admits nothing.
        if self.shared.inbox.tell(event, Hear::Anywhere).is_ok() {
            let _ = is_done.recv();
        }
        Barred {
            shared: Arc::clone(&self.shared),
            keys,
        }
    }

    /// Requests that have not ended.
    pub(crate) fn under_way(&self) -> u64 {
        self.shared.under_way.load(Ordering::Relaxed)
    }

    /// Bytes that loads may be filling.
    pub(crate) fn loading_bytes(&self) -> u64 {
        self.shared.loading_bytes.load(Ordering::Relaxed)
    }

    /// What is counted.
    pub(crate) fn counters(&self) -> &PrefetchCounters {
        &self.shared.counters
    }

    /// Ends the controller: every request is answered with what it has. Tasks of backends go on until these are closed, and
    /// what they bring is let go.
    pub(crate) fn close(&self) {
        // Where the controller has ended already there is nobody to tell.
        let _ = self.shared.inbox.tell(Event::Close, Hear::Apart);
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the prefetch controller panicked");
        }
    }
}

impl Drop for PrefetchController {
    fn drop(&mut self) {
        self.close();
    }
}

/// Keys that are kept out of memory for as long as this lives.
#[derive(Debug)]
pub(crate) struct Barred {
    shared: Arc<Shared>,
    keys: Arc<[Key]>,
}

impl Drop for Barred {
    fn drop(&mut self) {
        let event = Event::Unbar(Arc::clone(&self.keys));
        let _ = self.shared.inbox.tell(event, Hear::Anywhere);
    }
}

impl Prefetch {
    fn ready(shape: &Shape, leases: Leases, present: Vec<Bitmap>) -> Self {
        Self(Inner::Ready(slot::report(shape, leases, present, false)))
    }
}

/// Whether a backend is asked at all. What it was given and has not let go of in time counts as in flight: one whose loads never
/// end would have the whole pool in the end. `share` is what it may load at a time.
fn is_usable(attached: &Attached, config: &TieringConfig, share: u64) -> bool {
    let loads = attached.loading_bytes.load(Ordering::Relaxed) > 0;
    let lane = attached.backend.health_of_lane();
    lane.health != BackendHealth::Quarantined
        && lane.captive_load_bytes < share.max(1)
        && attached.reads.may_ask(config, loads)
}
