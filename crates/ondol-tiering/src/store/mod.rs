//! From memory to storage.
//!
//! Each backend has a queue and a thread of its own, so that one that is slow, dead or busy with transforms holds up no other.
//! What waits is a key: an object is leased only when it is handed to the backend, for as long as that may read it.

mod admission;
mod barred;
mod batch;
mod breaker;
mod inbox;
mod retry;
mod settle;
mod thread;
mod walk;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use ondol_plugin::Key;
use parking_lot::{Mutex, RwLock};

use crate::attached::{Attached, AttachedBackends};
use crate::latch::{self, Latch};
use crate::metrics::{AdmissionCounters, StoreCounters};
use crate::{Memory, StorePolicy, TieringConfig};

use admission::{Admission, Use};
pub(crate) use barred::BarredStores;
use inbox::{Inbox, Order};
use settle::Outstanding;
use thread::StoreThread;

/// Stores what is committed in memory in every backend.
#[derive(Debug)]
pub(crate) struct StoreController(Arc<Shared>);

/// What the threads of all backends share.
#[derive(Debug)]
struct Shared {
    memory: Arc<Memory>,
    backends: Arc<AttachedBackends>,
    config: Arc<TieringConfig>,
    /// Only if it takes more than one use.
    admission: Option<Admission>,
    /// Only for `skip_l1`.
    outstanding: Option<Outstanding>,
    lanes: RwLock<Vec<Lane>>,
    /// Those of backends that are draining: what they have begun may still be stored.
    leaving: Mutex<Vec<Lane>>,
    /// Backends so far, those that were detached included.
    added: AtomicU64,
    counters: AdmissionCounters,
}

/// The stores of one backend, as others see them.
#[derive(Clone, Debug)]
struct Lane {
    backend: u64,
    inbox: Arc<Inbox>,
    shown: Arc<Shown>,
    ended: Arc<Latch>,
}

/// What a thread shows of itself.
#[derive(Debug)]
struct Shown {
    breaker_open: AtomicBool,
    walking: AtomicBool,
    counters: StoreCounters,
}

/// Figures of the stores of one backend.
#[derive(Debug, Default)]
pub(crate) struct StoreFigures {
    pub(crate) waiting: u64,
    pub(crate) breaker_open: bool,
    pub(crate) counters: Vec<(&'static str, u64)>,
}

impl StoreController {
    pub(crate) fn new(
        memory: Arc<Memory>,
        backends: Arc<AttachedBackends>,
        config: Arc<TieringConfig>,
    ) -> Self {
        Self(Arc::new(Shared {
            memory,
            backends,
            admission: Admission::after(config.admit_after_uses, config.seed),
            outstanding: (config.store_policy == StorePolicy::SkipL1).then(Outstanding::default),
            config,
            lanes: RwLock::default(),
            leaving: Mutex::default(),
            added: AtomicU64::new(0),
            counters: AdmissionCounters::new(),
        }))
    }

    /// Begins to store in a backend, first of all what memory has already.
    ///
    /// # Errors
    /// If the system has no thread left.
    pub(crate) fn add(&self, attached: Arc<Attached>) -> io::Result<()> {
        let config = &self.0.config;
        let inbox = Arc::new(Inbox::new(config.store_queue, config.store_overflow));
        let shown = Arc::new(Shown {
            breaker_open: AtomicBool::new(false),
            walking: AtomicBool::new(false),
            counters: StoreCounters::new(),
        });
        let backend = attached.id;
        self.0.added.fetch_add(1, Ordering::Relaxed);
        let thread = StoreThread::new(
            Arc::clone(&self.0),
            attached,
            Arc::clone(&inbox),
            Arc::clone(&shown),
        );
        // Held while the thread starts, so that who does not see the lane knows that it has begun nothing.
        let mut lanes = self.0.lanes.write();
        let ended = latch::spawn("ondol-l2-store", move || thread.run())?;
        lanes.push(Lane {
            backend,
            inbox,
            shown,
            ended,
        });
        Ok(())
    }

    /// Hears that objects were committed; returns at once.
    pub(crate) fn committed(&self, objects: &[(Key, u64)]) {
        let Some(admission) = &self.0.admission else {
            return self.0.offer(objects);
        };
        let uses = admission.used(objects.iter().map(|(key, _)| key));
        let admitted: Vec<_> = objects
            .iter()
            .zip(&uses)
            .filter(|(_, used)| **used != Use::TooFew)
            .map(|(object, _)| object.clone())
            .collect();
        let left = objects.len() - admitted.len();
        self.0.counters.unadmitted.add(left as u64);
        self.0.offer(&admitted);
    }

    /// Hears that objects in memory were used.
    pub(crate) fn used(&self, keys: &[Key]) {
        let Some(admission) = &self.0.admission else {
            return;
        };
        let uses = admission.used(keys.iter());
        let admitted: Vec<_> = keys
            .iter()
            .zip(&uses)
            .filter(|(_, used)| **used == Use::Admits)
            .map(|(key, _)| key.clone())
            .collect();
        if !admitted.is_empty() {
            self.0.offer(&self.0.with_lengths(admitted));
        }
    }

    /// Keeps objects that were deleted from memory from being stored, for as long as the guard lives. What is on its way to a
    /// backend is to be waited for.
    pub(crate) fn bar(&self, keys: &[Key]) -> BarredStores {
        let lanes = self.0.lanes.read();
        let leaving = self.0.leaving.lock();
        BarredStores::new(lanes.iter().chain(leaving.iter()), keys)
    }

    /// Queues those of these objects that memory has and that are not stored.
    pub(crate) fn offer_unstored(&self, keys: &[Key]) {
        let unstored = self.0.memory.unstored(keys);
        let admission = self.0.admission.as_ref();
        let keys = unstored.gather(keys).into_iter();
        let keys: Vec<_> = keys
            .filter(|key| admission.is_none_or(|it| it.is_admitted(key)))
            .cloned()
            .collect();
        if !keys.is_empty() {
            self.0.offer(&self.0.with_lengths(keys));
        }
    }

    /// A backend is to get nothing more; what it has not begun to store is left.
    pub(crate) fn drain(&self, backend: u64) {
        let mut lanes = self.0.lanes.write();
        if let Some(at) = lanes.iter().position(|lane| lane.backend == backend) {
            let lane = lanes.remove(at);
            self.0.leaving.lock().push(lane.clone());
            drop(lanes);
            lane.inbox.tell(Order::Leave);
        }
    }

    /// A backend that was drained is closed.
    pub(crate) fn forget(&self, backend: u64) {
        self.0.leaving.lock().retain(|lane| lane.backend != backend);
    }

    /// Takes no more commits and lets what waits be stored until `until`; how many objects then still wait.
    pub(crate) fn finish(&self, until: Instant) -> u64 {
        let lanes = self.0.lanes.read().clone();
        lanes.iter().for_each(|lane| lane.inbox.tell(Order::Finish));
        let left = |lane: &Lane| {
            lane.ended.wait(until);
            lane.inbox.len() as u64
        };
        lanes.iter().map(left).sum()
    }

    /// Ends the threads; whether they have ended by `until`.
    pub(crate) fn stop(&self, until: Instant) -> bool {
        let lanes = std::mem::take(&mut *self.0.lanes.write());
        lanes.iter().for_each(|lane| lane.inbox.tell(Order::Stop));
        lanes.iter().all(|lane| lane.ended.wait(until))
    }

    /// Figures of one backend's stores.
    pub(crate) fn figures(&self, backend: u64) -> StoreFigures {
        let lanes = self.0.lanes.read();
        let Some(lane) = lanes.iter().find(|lane| lane.backend == backend) else {
            return StoreFigures::default();
        };
        let counters = lane.shown.counters.iter();
        StoreFigures {
            waiting: lane.inbox.len() as u64,
            breaker_open: lane.shown.breaker_open.load(Ordering::Relaxed),
            counters: counters
                .map(|counter| (counter.metric().name, counter.get()))
                .collect(),
        }
    }

    /// Whether a backend's stores wait since too many failed in a row.
    pub(crate) fn is_breaker_open(&self, backend: u64) -> bool {
        let lanes = self.0.lanes.read();
        let lane = lanes.iter().find(|lane| lane.backend == backend);
        lane.is_some_and(|lane| lane.shown.breaker_open.load(Ordering::Relaxed))
    }

    /// Counters that belong to no backend.
    pub(crate) fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counters = self.0.counters.iter();
        counters.map(|counter| (counter.metric().name, counter.get()))
    }
}

/// The threads end by themselves; nobody waits for them.
impl Drop for StoreController {
    fn drop(&mut self) {
        for lane in std::mem::take(&mut *self.0.lanes.write()) {
            lane.inbox.tell(Order::Stop);
        }
    }
}

impl Shared {
    /// Those of these objects that are in memory, with their lengths in bytes.
    fn with_lengths(&self, keys: Vec<Key>) -> Vec<(Key, u64)> {
        let leases = self.memory.lease(&keys);
        let objects = keys.into_iter().zip(leases);
        objects
            .filter_map(|(key, lease)| Some((key, lease?.as_ref().len() as u64)))
            .collect()
    }

    /// Queues objects for every backend.
    fn offer(&self, objects: &[(Key, u64)]) {
        let lanes = self.lanes.read();
        // Counted before any backend can be done with them.
        if let Some(outstanding) = &self.outstanding {
            outstanding.add(objects.iter().map(|(key, _)| key), lanes.len() as u32);
        }
        for lane in lanes.iter() {
            let mut dropped = Vec::new();
            let offered = lane.inbox.offer(
                objects.iter().map(|(key, len)| (key, *len)),
                &mut |oldest| dropped.push(oldest.key),
            );
            ondol_catalog::failpoint!("store.queued");
            let left = &objects[offered.taken..];
            lane.shown.counters.deferred.add(left.len() as u64);
            lane.shown.counters.dropped.add(dropped.len() as u64);
            if let Some(outstanding) = &self.outstanding {
                let left = left.iter().map(|(key, _)| key);
                // Nothing is evicted here: what was left is to be found in memory.
                outstanding.done(left.chain(&dropped));
            }
        }
    }

    /// How many bytes each backend's stores may hold leased.
    fn in_flight_bytes(&self) -> u64 {
        let lanes = self.lanes.read().len().max(1) as u64;
        (self.config.store_in_flight_bytes / lanes).max(1)
    }

    /// A backend is done with these objects, in whatever way. Under `skip_l1` those that no backend has before it leave memory, if
    /// they are stored.
    fn settle<'a>(&self, keys: impl Iterator<Item = &'a Key>) {
        let Some(outstanding) = &self.outstanding else {
            return;
        };
        let settled = outstanding.done(keys);
        // A walk may find that a backend lacks them.
        let walks =
            |lane: &Lane| lane.inbox.is_walk_wanted() || lane.shown.walking.load(Ordering::Relaxed);
        if settled.is_empty() || self.lanes.read().iter().any(walks) {
            return;
        }
        let unstored = self.memory.unstored(&settled);
        let mut at = 0..;
        let mut stored = settled;
        stored.retain(|_| !at.next().is_some_and(|at| unstored.test(at)));
        self.memory.evict(&stored);
    }
}
