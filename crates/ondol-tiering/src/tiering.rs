use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ondol_host::l2::{Backend, BackendHealth};
use ondol_plugin::Key;
use ondol_plugin::l2::{CloseReport, Health};
use ondol_protocol::{BackendStats, L2Stats};
use parking_lot::Mutex;
use serde_json::json;

use crate::attached::{Attached, AttachedBackends};
use crate::deletion::{Holder, delete_in, wait_for_stores};
use crate::error::TieringError;
use crate::evict::EvictController;
use crate::prefetch::PrefetchController;
use crate::store::StoreController;
use crate::{Memory, Prefetch, PrefetchRequest, Quotas, TieringConfig, object_key};

/// The storage tier: backends and the controllers that move objects.
pub struct Tiering {
    memory: Arc<Memory>,
    pub(crate) attached: Arc<AttachedBackends>,
    store: StoreController,
    prefetch: PrefetchController,
    evict: EvictController,
    quotas: Arc<Quotas>,
    config: Arc<TieringConfig>,
    /// Held while the set of backends changes.
    closed: Mutex<bool>,
}

impl Tiering {
    /// Starts the controllers.
    ///
    /// # Errors
    /// If a backend's `serde` or `eviction` cannot be used, or the system has no thread left.
    pub fn start(
        memory: Arc<Memory>,
        backends: Vec<Arc<Backend>>,
        config: TieringConfig,
    ) -> Result<Arc<Self>, TieringError> {
        let attached: Arc<AttachedBackends> = Arc::default();
        let config = Arc::new(config.bounded(memory.capacity_bytes()));
        let quotas = Arc::clone(&config.quotas);
        let tiering = Arc::new(Self {
            store: StoreController::new(
                Arc::clone(&memory),
                Arc::clone(&attached),
                Arc::clone(&config),
            ),
            prefetch: PrefetchController::start(
                Arc::clone(&memory),
                Arc::clone(&attached),
                Arc::clone(&config),
            )?,
            evict: EvictController::new(Arc::clone(&quotas)),
            memory,
            attached,
            quotas,
            config,
            closed: Mutex::new(false),
        });
        for backend in backends {
            tiering.add_backend(backend)?;
        }
        Ok(tiering)
    }

    /// Takes a backend into use, behind all others; its number. What memory has is stored there as well.
    ///
    /// # Errors
    /// If its `serde` or `eviction` cannot be used, the system has no thread left, or this is closed. Then the backend is not in
    /// use, and still open.
    pub fn add_backend(&self, backend: Arc<Backend>) -> Result<u64, TieringError> {
        let closed = self.closed.lock();
        if *closed {
            return Err(TieringError::Closed);
        }
        let attached = self.attached.attach(backend)?;
        let id = attached.id;
        let added = self.evict.add(&attached);
        if let Err(error) = added.and_then(|()| self.store.add(attached)) {
            self.evict.drain(id);
            if self.attached.drain(id).is_ok() {
                self.attached.forget(id);
            }
            return Err(error.into());
        }
        Ok(id)
    }

    /// Takes a backend out of use and closes it: it gets no new work from now on, and is closed once every store, load and lock of
    /// it has ended.
    ///
    /// # Errors
    /// [`TieringError::UnknownBackend`]; [`TieringError::StillInUse`] after `timeout`, and then it stays draining: asked again, this
    /// waits on.
    pub fn drain_backend(&self, id: u64, timeout: Duration) -> Result<CloseReport, TieringError> {
        let until = Instant::now() + timeout;
        let draining = {
            let closed = self.closed.lock();
            if *closed {
                return Err(TieringError::Closed);
            }
            let draining = self.attached.drain(id)?;
            self.store.drain(id);
            self.evict.drain(id);
            draining
        };
        if !draining.wait_until_unused(until) {
            return Err(TieringError::StillInUse {
                backend: draining.backend.name().to_owned(),
                waited: timeout,
            });
        }
        let report = draining.backend.close(time_left(until));
        self.attached.forget(id);
        self.store.forget(id);
        Ok(report)
    }

    /// The numbers of the backends in use, in the order of their priority, with their names.
    pub fn backends(&self) -> Vec<(u64, String)> {
        let active = self.attached.active().into_iter();
        active
            .map(|attached| (attached.id, attached.backend.name().to_owned()))
            .collect()
    }

    /// Hears that objects were committed in memory, of so many bytes each; returns at once.
    pub fn committed(&self, objects: &[(Key, u64)]) {
        self.store.committed(objects);
    }

    /// Hears that objects in memory were used; returns at once. It matters only where objects are stored after more than one use.
    pub fn used(&self, keys: &[Key]) {
        self.store.used(keys);
    }

    /// Brings objects into memory.
    pub fn prefetch(&self, request: PrefetchRequest) -> Prefetch {
        self.prefetch.submit(request)
    }

    /// Deletes objects: from memory, which `from_memory` does, and then in every backend, draining ones included. Loads that are under way do not bring
    /// them back, nor do stores. Waits until `until` for backends that still read or store them. What is committed anew is stored
    /// anew.
    ///
    /// # Errors
    /// [`TieringError::NotDeleted`]; then the object may come back, and is to be deleted again. So it is for as long as a backend
    /// that keeps objects over a restart is out of use.
    pub fn delete<R>(
        &self,
        keys: &[Key],
        until: Instant,
        from_memory: impl FnOnce() -> R,
    ) -> Result<R, TieringError> {
        if self.attached.holders().is_empty() {
            return Ok(from_memory());
        }
        // First, so that nothing is admitted behind the back of who deletes it.
        let barred = self.prefetch.bar(keys);
        let done = from_memory();
        // Afterwards, so that who begins to store from here on finds nothing in memory.
        let stores = self.store.bar(keys);
        let names: Vec<_> = keys.iter().map(object_key).collect();
        // Each of them is tried, whatever becomes of the others.
        let delete = |holder: &Holder| {
            let settled = wait_for_stores(&stores, holder, until);
            let deleted = delete_in(holder, names.clone(), until);
            settled.and(deleted)
        };
        let results: Vec<_> = self.attached.holders().iter().map(delete).collect();
        // What was stored anew meanwhile may have been marked by what was there before.
        self.memory.mark_unstored(keys);
        drop(stores);
        self.store.offer_unstored(keys);
        drop(barred);
        results.into_iter().collect::<Result<(), _>>()?;
        Ok(done)
    }

    /// The quotas of cache salts.
    pub fn quotas(&self) -> &Arc<Quotas> {
        &self.quotas
    }

    /// Figures.
    pub fn stats(&self) -> L2Stats {
        let mut stats = L2Stats {
            store_queue_limit: self.config.store_queue as u64,
            ..L2Stats::default()
        };
        let mut totals: BTreeMap<String, u64> = BTreeMap::new();
        for attached in self.attached.active() {
            let store = self.store.figures(attached.id);
            let mut backend = backend_stats(&attached.backend, &mut stats.captive_bytes);
            backend.breaker_open = store.breaker_open;
            if backend.health == "healthy"
                && let Some(reason) = self.complaint(&attached)
            {
                backend.health = "degraded".to_owned();
                backend.reason = Some(reason);
            }
            let evict = self.evict.counters(attached.id);
            for (name, count) in store.counters.into_iter().chain(evict) {
                backend.counters.insert(name.to_owned(), count);
                *totals.entry(name.to_owned()).or_default() += count;
            }
            // An object waits as long as any backend has it before it.
            stats.store_queue = stats.store_queue.max(store.waiting);
            stats.backends.push(backend);
        }
        for draining in self.attached.draining() {
            let mut backend = backend_stats(&draining.backend, &mut stats.captive_bytes);
            backend.draining = true;
            stats.backends.push(backend);
        }
        for (name, count) in self.store.counters() {
            totals.insert(name.to_owned(), count);
        }
        for counter in self.prefetch.counters().iter() {
            totals.insert(counter.metric().name.to_owned(), counter.get());
        }
        stats.prefetches = self.prefetch.under_way();
        stats.loading_bytes = self.prefetch.loading_bytes();
        stats.counters = totals;
        stats
    }

    /// Why a backend that is required is left out for now, without asking it: it does not answer in time, fails to store, or
    /// keeps what it was given.
    pub fn degraded(&self) -> Option<String> {
        self.attached.active().iter().find_map(|attached| {
            let backend = &attached.backend;
            let reason = self
                .complaint(attached)
                .filter(|_| backend.spec().required)?;
            Some(format!("storage {}: {reason}", backend.name()))
        })
    }

    fn complaint(&self, attached: &Attached) -> Option<String> {
        let lane = attached.backend.health_of_lane();
        let is_open = self.store.is_breaker_open(attached.id);
        let complaints = [
            attached.reads.complaint(),
            is_open.then(|| "its stores failed too often in a row; they wait".to_owned()),
            (lane.captive_bytes > 0).then(|| {
                format!(
                    "{} tasks of it do not end; {} bytes stay captive",
                    lane.captive_tasks, lane.captive_bytes
                )
            }),
        ];
        let complaints: Vec<_> = complaints.into_iter().flatten().collect();
        (!complaints.is_empty()).then(|| complaints.join("; "))
    }

    /// Answers everybody who waits for a prefetch with what it has, and begins no more of them. The rest goes on until it is closed.
    pub fn end_prefetches(&self) {
        self.prefetch.close();
    }

    /// Stops the controllers and closes the backends. Objects that wait are stored for up to half of `deadline`; those that are
    /// left then are found by the next start, if memory keeps them. After this neither memory nor a backend is called any more.
    pub fn close(&self, deadline: Duration) -> CloseReport {
        let now = Instant::now();
        let until = now + deadline;
        if std::mem::replace(&mut *self.closed.lock(), true) {
            return CloseReport::default();
        }
        self.prefetch.close();
        let left = self.store.finish(now + deadline / 2);
        if left > 0 {
            tracing::warn!(objects = left, "objects were not stored before the end");
        }
        let controllers = now + deadline / 4 * 3;
        let stopped = self.store.stop(controllers) & self.evict.stop(controllers);
        if !stopped {
            tracing::warn!("a thread of the storage tier still waits for a backend");
        }
        let active = self.attached.active().into_iter();
        let mut backends: Vec<_> = active.map(|it| Arc::clone(&it.backend)).collect();
        backends.extend(self.attached.draining().into_iter().map(|it| it.backend));
        // All at once, so that one that hangs takes no time from the others.
        let reports: Vec<_> = thread::scope(|scope| {
            let close = |backend: &Arc<Backend>| backend.close(time_left(until)).abandoned;
            let threads: Vec<_> = backends
                .iter()
                .map(|backend| scope.spawn(move || close(backend)))
                .collect();
            threads
                .into_iter()
                .map(thread::ScopedJoinHandle::join)
                .collect()
        });
        CloseReport {
            abandoned: reports.into_iter().map(Result::unwrap_or_default).sum(),
        }
    }
}

fn time_left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

fn backend_stats(backend: &Backend, captive_bytes: &mut u64) -> BackendStats {
    let status = backend.status();
    *captive_bytes += status.captive_bytes;
    let usage = backend.usage();
    let adapter = status.adapter;
    let health = match status.health {
        BackendHealth::Quarantined => "quarantined",
        _ if adapter.health == Health::Failed => "failed",
        BackendHealth::Degraded => "degraded",
        _ => "healthy",
    };
    let counts = status.counts;
    let mut figures: BTreeMap<_, _> = adapter.figures.into_iter().collect();
    // How its lane found it to keep the contract.
    let lane = json!({
        "breaches": counts.breaches,
        "lost_signals": counts.lost_signals,
        "unknown_tasks": counts.unknown_tasks,
        "timeouts": counts.timeouts,
        "late_results": counts.late_results,
        "overflows": counts.overflows,
    });
    figures.insert("lane".to_owned(), lane);
    BackendStats {
        name: backend.name().to_owned(),
        type_name: backend.spec().type_name.clone(),
        health: health.to_owned(),
        reason: status.reason,
        used_bytes: usage.used_bytes,
        capacity_bytes: usage.capacity_bytes,
        objects: usage.objects,
        is_complete: usage.is_complete,
        bytes_by_salt: usage.bytes_by_salt,
        tasks: status.tasks,
        captive_tasks: status.captive_tasks,
        figures,
        ..BackendStats::default()
    }
}

impl fmt::Debug for Tiering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tiering")
            .field("backends", &self.backends())
            .finish_non_exhaustive()
    }
}
