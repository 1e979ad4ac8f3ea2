use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, bounded};
use ondol_plugin::l2::{
    AdapterStatus, CloseReport, DeleteResult, EventNotifier, Health, KeyPage, L2Adapter,
    ListRequest, LoadItem, LoadResult, LookupResult, ObjectKey, StoreItem, StoreResult, Usage,
};
use parking_lot::{Condvar, Mutex};

use super::descriptors::Claim;
use super::guest::Guest;
use super::helpers::{Failure, Figure, Helpers};
use super::ledger::{Command, Done, Ledger, Payload, Stage};
use super::runner::{self, Lane};
use super::shared::{CallMark, Shared};
use super::{BackendHealth, BackendStatus, LaneCounts, LaneOptions, TaskError, watchdog};
use crate::guarded;
use crate::l2::AdapterSpec;
use crate::l2::describe::describe;

/// How much longer than its deadline a close waits, so that an adapter that uses all of it is heard.
const CLOSE_SLACK: Duration = Duration::from_millis(500);

/// An adapter behind its lane: a thread that makes all submits and watches the three descriptors, so that an adapter that blocks
/// stalls itself only.
///
/// Whoever submits a batch is called back exactly once, whatever the adapter does: with the result, when the timeout has
/// passed, or when the adapter is taken out of use since it panicked or hangs. Callbacks run on the lane's thread or the watchdog's,
/// never within the call that submitted.
pub struct Backend {
    spec: AdapterSpec,
    verifies: bool,
    shared: Arc<Shared>,
    guest: Option<Arc<Guest>>,
    helpers: Helpers,
    usage: Figure<Usage>,
    status: Figure<AdapterStatus>,
    threads: [ThreadId; 2],
}

impl Backend {
    /// Starts the lane of an adapter called `name`.
    ///
    /// # Errors
    /// If the system has no thread or descriptor left, or the adapter's event descriptors are not its own; then the adapter is
    /// closed and dropped.
    pub fn start(
        name: &str,
        spec: AdapterSpec,
        verifies: bool,
        adapter: Box<dyn L2Adapter>,
        options: LaneOptions,
    ) -> io::Result<Arc<Self>> {
        let guest = Arc::new(Guest::new(adapter));
        let helpers = Helpers::new(&format!("l2-{name}-ask"));
        let (shared, threads) = match Self::start_threads(name, options, &guest) {
            Ok(started) => started,
            Err(error) => {
                let closing = |adapter: &dyn L2Adapter| adapter.close(Duration::ZERO);
                let _ = helpers.call(&guest, CLOSE_SLACK, closing);
                helpers.close();
                end(name, LaneOptions::default().end_grace, move || drop(guest));
                return Err(error);
            }
        };
        Ok(Arc::new(Self {
            spec,
            verifies,
            shared,
            guest: Some(guest),
            helpers,
            usage: Figure::default(),
            status: Figure::default(),
            threads,
        }))
    }

    fn start_threads(
        name: &str,
        options: LaneOptions,
        guest: &Arc<Guest>,
    ) -> io::Result<(Arc<Shared>, [ThreadId; 2])> {
        let hang_after = options.hang_after;
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            options,
            ledger: Mutex::new(Ledger::default()),
            to_watch: Condvar::new(),
            has_ended: Condvar::new(),
            control: EventNotifier::new()?,
            call: CallMark::default(),
        });
        let thread = |part: &str| std::thread::Builder::new().name(format!("l2-{name}{part}"));
        let watching = Arc::clone(&shared);
        let watchdog = thread("-dog").spawn(move || watchdog::run(&watching))?;
        let (ready, is_ready) = bounded(1);
        let (serving, serving_guest) = (Arc::clone(&shared), Arc::clone(guest));
        let lane = thread("").spawn(move || serve(&serving, &serving_guest, &ready));
        let lane = lane.and_then(|lane| match is_ready.recv_timeout(hang_after) {
            Ok(Ok(())) => Ok(lane),
            Ok(Err(reason)) => Err(io::Error::new(io::ErrorKind::InvalidInput, reason)),
            Err(RecvTimeoutError::Timeout) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("event_fds did not return within {hang_after:?}"),
            )),
            Err(RecvTimeoutError::Disconnected) => {
                Err(io::Error::other("the lane's thread ended at once"))
            }
        });
        match lane {
            Ok(lane) => Ok((shared, [lane.thread().id(), watchdog.thread().id()])),
            Err(error) => {
                // A lane that came to answer at the very last is to end as well.
                let now = Instant::now();
                shared.ledger.lock().stage = Stage::Closing {
                    patience: now,
                    by: now,
                };
                shared.control.notify();
                abandon(&shared);
                Err(error)
            }
        }
    }

    /// Its name, such as `fs#0`.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// How it was configured.
    pub fn spec(&self) -> &AdapterSpec {
        &self.spec
    }

    /// Whether the adapter checks what it gives back.
    pub fn verifies(&self) -> bool {
        self.verifies
    }

    /// Stores a batch. `done` is called once, on the lane's thread or the watchdog's, and returns soon.
    pub fn store(
        &self,
        batch: Vec<StoreItem>,
        timeout: Duration,
        done: impl FnOnce(Result<StoreResult, TaskError>) + Send + 'static,
    ) {
        self.submit(Payload::Store(batch), Done::Store(Box::new(done)), timeout);
    }

    /// Looks keys up and locks what is there. A result that comes after the timeout is unlocked here. `done` is called as for
    /// [`store`](Self::store).
    pub fn lookup(
        &self,
        keys: Vec<ObjectKey>,
        timeout: Duration,
        done: impl FnOnce(Result<LookupResult, TaskError>) + Send + 'static,
    ) {
        self.submit(Payload::Lookup(keys), Done::Lookup(Box::new(done)), timeout);
    }

    /// Loads a batch. Pages that come back after the timeout are let go here. `done` is called as for [`store`](Self::store).
    pub fn load(
        &self,
        batch: Vec<LoadItem>,
        timeout: Duration,
        done: impl FnOnce(Result<LoadResult, TaskError>) + Send + 'static,
    ) {
        self.submit(Payload::Load(batch), Done::Load(Box::new(done)), timeout);
    }

    fn submit(&self, payload: Payload, done: Done, timeout: Duration) {
        let task = runner::task(&payload, done, timeout);
        self.shared.give(Command::Work { payload, task });
    }

    /// Takes one lock from each of these keys, after everything that was asked for before.
    pub fn unlock(&self, keys: Vec<ObjectKey>) {
        self.shared.give(Command::Unlock(keys));
    }

    /// Deletes objects; blocks, for no longer than [`LaneOptions::blocking_timeout`].
    ///
    /// # Errors
    /// [`TaskError`].
    pub fn delete(&self, keys: &[ObjectKey]) -> Result<DeleteResult, TaskError> {
        let (asked, keys) = (keys.len(), keys.to_vec());
        let result = self.block_on("delete", move |adapter| {
            adapter.delete(&keys).map_err(describe)
        })?;
        let (gone, locked) = (result.gone.len(), result.locked.len());
        if gone != asked || locked != asked {
            let reason = format!(
                "a delete of {asked} keys answered with {gone} bits that are gone and {locked} that are locked"
            );
            let mut ledger = self.shared.ledger.lock();
            ledger.breach(self.name(), reason.clone());
            return Err(self.shared.broken(reason));
        }
        Ok(result)
    }

    /// A page of keys; blocks, as [`delete`](Self::delete) does.
    ///
    /// # Errors
    /// [`TaskError`].
    pub fn list_keys(&self, request: &ListRequest) -> Result<KeyPage, TaskError> {
        let request = request.clone();
        self.block_on("list_keys", move |adapter| {
            adapter.list_keys(&request).map_err(describe)
        })
    }

    fn block_on<R: Send + 'static>(
        &self,
        method: &str,
        call: impl FnOnce(&dyn L2Adapter) -> Result<R, String> + Send + 'static,
    ) -> Result<R, TaskError> {
        let refusal = self.shared.refusal(&self.shared.ledger.lock());
        if let Some(error) = refusal {
            return Err(error);
        }
        let Some(guest) = &self.guest else {
            return Err(self.shared.unusable("it is gone"));
        };
        let within = self.shared.options.blocking_timeout;
        match self.helpers.call(guest, within, call) {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(reason)) => Err(TaskError::Refused {
                backend: self.name().to_owned(),
                reason,
            }),
            Err(Failure::Panicked(panicked)) => {
                let reason = format!("{method} {panicked}");
                self.shared.quarantine(reason.clone(), true);
                Err(self.shared.unusable(reason))
            }
            Err(Failure::TimedOut) => {
                self.shared.ledger.lock().counts.timeouts += 1;
                tracing::warn!(
                    backend = self.name(),
                    method,
                    ?within,
                    "a call into a storage adapter does not return"
                );
                Err(TaskError::TimedOut {
                    backend: self.name().to_owned(),
                    waited: within,
                })
            }
            Err(Failure::NoThread) => Err(self
                .shared
                .unusable("no thread is to be had for a call into it")),
        }
    }

    /// What is stored; the last that is known, if the adapter does not answer soon or is out of use.
    pub fn usage(&self) -> Usage {
        self.figure("usage", &self.usage, |adapter| adapter.usage())
    }

    /// How it fares.
    pub fn status(&self) -> BackendStatus {
        let adapter = self.figure("status", &self.status, |adapter| adapter.status());
        let mut status = BackendStatus {
            adapter,
            ..self.health_of_lane()
        };
        if status.health == BackendHealth::Healthy && status.adapter.health != Health::Healthy {
            status.health = BackendHealth::Degraded;
            status.reason = status.adapter.reason.clone();
        }
        status
    }

    /// How it fares, without asking the adapter.
    pub fn health_of_lane(&self) -> BackendStatus {
        let hang_after = self.shared.options.hang_after;
        let ledger = self.shared.ledger.lock();
        let (captive_tasks, captive_bytes) = ledger.captive();
        let overdue = self.helpers.overdue();
        let complaint = if let Some(method) = ledger.slow {
            Some(format!("{method} takes long"))
        } else if overdue > 0 {
            Some(format!("{overdue} calls do not return"))
        } else if self.usage.is_overdue(hang_after) || self.status.is_overdue(hang_after) {
            Some("it does not answer when it is asked for figures".to_owned())
        } else {
            ledger.fresh_breach().map(str::to_owned)
        };
        let (health, reason) = match &ledger.quarantine {
            Some(quarantine) => (BackendHealth::Quarantined, Some(quarantine.reason.clone())),
            None if complaint.is_some() => (BackendHealth::Degraded, complaint),
            None => (BackendHealth::Healthy, None),
        };
        BackendStatus {
            health,
            reason,
            adapter: AdapterStatus::default(),
            tasks: ledger.unfinished(),
            captive_tasks,
            captive_bytes,
            captive_load_bytes: ledger.captive_loads(),
            counts: ledger.counts,
        }
    }

    /// Bytes that loads may still fill for which nobody waits any more.
    pub fn captive_load_bytes(&self) -> u64 {
        self.shared.ledger.lock().captive_loads()
    }

    /// What went wrong since the lane started.
    pub fn counts(&self) -> LaneCounts {
        self.shared.ledger.lock().counts
    }

    fn figure<T: Clone + Default + Send + 'static>(
        &self,
        method: &str,
        figure: &Figure<T>,
        question: fn(&dyn L2Adapter) -> T,
    ) -> T {
        let refused = self.shared.refusal(&self.shared.ledger.lock()).is_some();
        let Some(guest) = self.guest.as_ref().filter(|_| !refused) else {
            return figure.last();
        };
        let within = self.shared.options.figures_timeout;
        match figure.ask(&self.helpers, guest, within, question) {
            Ok(answer) => answer,
            Err(panicked) => {
                self.shared.quarantine(format!("{method} {panicked}"), true);
                figure.last()
            }
        }
    }

    /// Ends the adapter within `deadline`: takes no more work, refuses what waits, lets what is under way finish for half of that
    /// time, and closes the adapter with the rest of it. Everybody is answered when this returns. Tasks that have not ended are reported
    /// as abandoned; what they may touch stays captive. Not to be called by a task's `done`: it would wait for the thread that it runs
    /// on, until the deadline.
    pub fn close(&self, deadline: Duration) -> CloseReport {
        close(&self.shared, &self.helpers, self.guest.as_ref(), deadline)
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        let Some(guest) = self.guest.take() else {
            return;
        };
        let (shared, helpers) = (Arc::clone(&self.shared), self.helpers.clone());
        let grace = self.shared.options.end_grace;
        // A callback on the lane or the watchdog may hold the last handle, and they are waited for.
        let is_ours = self.threads.contains(&std::thread::current().id());
        let wait = if is_ours {
            Duration::ZERO
        } else {
            grace * 2 + CLOSE_SLACK
        };
        end(self.name(), wait, move || {
            close(&shared, &helpers, Some(&guest), grace);
            abandon(&shared);
            helpers.close();
            drop(guest);
        });
    }
}

/// Ends an adapter on a thread of its own, so that a destructor that hangs does not hang who lets go of it.
fn end(backend: &str, wait: Duration, work: impl FnOnce() + Send + 'static) {
    let (ended, end) = bounded::<()>(0);
    let thread = std::thread::Builder::new().name("l2-end".to_owned());
    // If no thread was to be had, the attempt dropped the closure, and with it the adapter.
    let spawned = thread.spawn(move || {
        work();
        drop(ended);
    });
    if spawned.is_ok()
        && !wait.is_zero()
        && end.recv_timeout(wait) == Err(RecvTimeoutError::Timeout)
    {
        tracing::warn!(
            backend,
            "a storage adapter does not end; it is left to itself, with what it was given"
        );
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backend")
            .field("name", &self.name())
            .field("tasks", &self.shared.ledger.lock().unfinished())
            .finish_non_exhaustive()
    }
}

/// The body of the lane's thread. Says whether it can begin.
fn serve(
    shared: &Shared,
    guest: &Arc<Guest>,
    ready: &crossbeam_channel::Sender<Result<(), String>>,
) {
    let fds = guest.call(|adapter| adapter.event_fds());
    let fds = fds.map_err(|panicked| format!("event_fds {panicked}"));
    let claimed = fds.and_then(|fds| Ok((fds, Claim::of(&shared.name, fds)?)));
    match claimed {
        Ok((fds, claim)) => {
            // Nobody hears it if the start took too long.
            if ready.send(Ok(())).is_ok()
                && let Err(panicked) = guarded(|| Lane::new(shared, guest, fds).run())
            {
                shared.quarantine(format!("its lane {panicked}"), true);
                shared.ledger.lock().lane_ended = true;
                shared.has_ended.notify_all();
            }
            drop(claim);
        }
        Err(reason) => {
            let _ = ready.send(Err(reason));
        }
    }
}

fn close(
    shared: &Shared,
    helpers: &Helpers,
    guest: Option<&Arc<Guest>>,
    deadline: Duration,
) -> CloseReport {
    let now = Instant::now();
    let by = now + deadline;
    let mut ledger = shared.ledger.lock();
    if ledger.stage == Stage::Open {
        ledger.stage = Stage::Closing {
            patience: now + deadline / 2,
            by,
        };
        let refused = ledger.fail_queue(&shared.unusable("it is being closed"));
        shared.fail_elsewhere(&mut ledger, refused.failures);
        ledger.lane_asleep = false;
        drop(ledger);
        drop(refused.dropped);
        shared.control.notify();
        ledger = shared.ledger.lock();
    }
    let quarantine = ledger.quarantine.as_ref();
    let is_quarantined = quarantine.is_some_and(|quarantine| !quarantine.panicked);
    let is_stuck = is_quarantined && ledger.report.is_none() && shared.call.read().is_some();
    if let (true, Some(guest)) = (is_stuck, guest) {
        drop(ledger);
        // The lane hangs; a close may bring it back.
        let _ = helpers.call(guest, deadline, move |adapter| adapter.close(deadline));
        ledger = shared.ledger.lock();
    }
    let until = by + CLOSE_SLACK;
    while !ledger.lane_ended && ledger.report.is_none() {
        if shared.has_ended.wait_until(&mut ledger, until).timed_out() {
            break;
        }
    }
    let error = shared.unusable("it was closed before the task had finished");
    let left = ledger.fail_all(&error);
    shared.fail_elsewhere(&mut ledger, left.failures);
    let abandoned = ledger.unfinished();
    let report = ledger
        .report
        .get_or_insert(CloseReport { abandoned })
        .clone();
    while !ledger.failures.is_empty() || ledger.is_failing {
        if shared.has_ended.wait_until(&mut ledger, until).timed_out() {
            break;
        }
    }
    drop(ledger);
    drop(left.dropped);
    report
}

/// Lets the watchdog end, and the lane if it has not begun.
fn abandon(shared: &Shared) {
    let mut ledger = shared.ledger.lock();
    ledger.is_abandoned = true;
    shared.to_watch.notify_all();
}
