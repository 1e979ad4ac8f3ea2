//! The lane's thread.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use ondol_plugin::l2::{
    CloseReport, EventFds, L2Adapter, LoadOutcome, LoadResult, LookupResult, StoreResult, TaskId,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::TaskError;
use super::guest::Guest;
use super::ledger::{Command, Done, Kind, Ledger, Payload, Stage, Task, answer};
use super::shared::{Method, Shared};
use crate::Panicked;
use crate::l2::describe::describe;

/// Batches that are submitted before the descriptors are looked at again.
const BURST: usize = 16;
/// Signals in a row with nothing behind them, after which a descriptor is not waited on until the next sweep.
const FRUITLESS: u32 = 1000;

/// The lane of one adapter.
pub(super) struct Lane<'a> {
    shared: &'a Shared,
    guest: &'a Guest,
    signals: [Signal<'a>; 3],
    next_sweep: Instant,
    calls: u64,
    /// Room for the tasks that are asked for, used again and again.
    asked: Vec<TaskId>,
}

/// One of the three descriptors.
struct Signal<'a> {
    kind: Kind,
    fd: BorrowedFd<'a>,
    /// It signals nothing any more; sweeps find what has finished.
    is_dead: bool,
    /// It is not waited on until the next sweep.
    is_muted: bool,
    /// Signals in a row with nothing behind them.
    fruitless: u32,
    /// Results that a sweep found and whose signal has not come yet.
    unsignalled: u64,
}

impl<'a> Lane<'a> {
    pub(super) fn new(shared: &'a Shared, guest: &'a Guest, fds: EventFds<'a>) -> Self {
        let signal = |(kind, fd)| Signal {
            kind,
            fd,
            is_dead: false,
            is_muted: false,
            fruitless: 0,
            unsignalled: 0,
        };
        Self {
            shared,
            guest,
            signals: [
                (Kind::Store, fds.store),
                (Kind::Lookup, fds.lookup),
                (Kind::Load, fds.load),
            ]
            .map(signal),
            next_sweep: Instant::now() + shared.options.sweep_every,
            calls: 0,
            asked: Vec::new(),
        }
    }

    /// Serves until the backend is closed, or the adapter has panicked.
    pub(super) fn run(mut self) {
        loop {
            for _ in 0..BURST {
                if !self.carry_out_one() {
                    break;
                }
            }
            self.pass_on_cancels();
            if self.is_forbidden() || self.is_time_to_close() {
                break;
            }
            for (index, said) in self.rest().into_iter().enumerate() {
                if !said.is_empty() {
                    self.hear(index, said);
                }
            }
            let now = Instant::now();
            self.shared.expire(now);
            if now >= self.next_sweep {
                self.sweep();
                self.next_sweep = now + self.shared.options.sweep_every;
            }
        }
        let report = if self.is_forbidden() {
            None
        } else {
            Some(self.close())
        };
        let mut ledger = self.shared.ledger.lock();
        ledger.lane_ended = true;
        if ledger.report.is_none() {
            ledger.report = report;
        }
        drop(ledger);
        self.shared.has_ended.notify_all();
    }

    /// Whether the adapter must not be called any more.
    fn is_forbidden(&self) -> bool {
        let ledger = self.shared.ledger.lock();
        let quarantine = ledger.quarantine.as_ref();
        quarantine.is_some_and(|quarantine| quarantine.panicked)
    }

    /// Calls the adapter; a panic ends its use, and gives `None`.
    fn call<R>(&mut self, method: Method, call: impl FnOnce(&dyn L2Adapter) -> R) -> Option<R> {
        self.calls += 1;
        self.shared.call.enter(self.calls, method);
        let outcome = self.guest.call(call);
        self.shared.call.leave();
        outcome
            .inspect_err(|panicked| self.panicked(method, panicked))
            .ok()
    }

    #[cold]
    fn panicked(&self, method: Method, panicked: &Panicked) {
        let reason = format!("{} {panicked}", method.name());
        self.shared.quarantine(reason, true);
    }

    /// Does the next thing that was asked for; whether there was one.
    fn carry_out_one(&mut self) -> bool {
        let mut ledger = self.shared.ledger.lock();
        if ledger
            .quarantine
            .as_ref()
            .is_some_and(|quarantine| quarantine.panicked)
        {
            return false;
        }
        match ledger.pop() {
            None => false,
            Some(Command::Unlock(keys)) => {
                drop(ledger);
                self.call(Method::Unlock, |adapter| adapter.submit_unlock(&keys));
                true
            }
            Some(Command::Work { payload, task }) => {
                ledger.current = Some(task);
                drop(ledger);
                self.submit(payload);
                true
            }
        }
    }

    fn submit(&mut self, payload: Payload) {
        let (kind, taken) = match payload {
            Payload::Store(batch) => (
                Kind::Store,
                self.call(Method::SubmitStore, |adapter| {
                    adapter.submit_store(batch).map_err(describe)
                }),
            ),
            Payload::Lookup(keys) => (
                Kind::Lookup,
                self.call(Method::SubmitLookup, |adapter| {
                    adapter.submit_lookup_and_lock(keys).map_err(describe)
                }),
            ),
            Payload::Load(batch) => (
                Kind::Load,
                self.call(Method::SubmitLoad, |adapter| {
                    adapter.submit_load(batch).map_err(describe)
                }),
            ),
        };
        let mut ledger = self.shared.ledger.lock();
        let Some(task) = ledger.current.take() else {
            return;
        };
        let error = match taken {
            Some(Ok(id)) if !ledger.tasks(kind).contains_key(&id) => {
                ledger.enter(kind, id, task);
                return;
            }
            Some(Ok(TaskId(id))) => {
                let reason = format!(
                    "the task of a new {} is number {id}, which is still in use",
                    kind.name()
                );
                ledger.breach(&self.shared.name, reason.clone());
                self.shared.broken(reason)
            }
            Some(Err(reason)) => TaskError::Refused {
                backend: self.shared.name.clone(),
                reason,
            },
            // Whoever waited was answered when the adapter was taken out of use.
            None => return,
        };
        drop(ledger);
        if let Some(done) = task.done {
            done.fail(error);
        }
    }

    fn pass_on_cancels(&mut self) {
        let cancels = self.shared.ledger.lock().take_cancels();
        for task in cancels {
            self.call(Method::Cancel, |adapter| adapter.cancel(task));
        }
    }

    /// Waits until there is something to do; what the three descriptors say.
    fn rest(&mut self) -> [PollFlags; 3] {
        let timeout = self.rest_until().map(|until| {
            let left = until.saturating_duration_since(Instant::now());
            Timespec::try_from(left).unwrap_or(Timespec {
                tv_sec: i64::from(u32::MAX),
                tv_nsec: 0,
            })
        });
        let control = &self.shared.control;
        let waiting = |signal: &Signal<'a>| {
            if signal.is_dead || signal.is_muted {
                // Errors of a descriptor are reported unasked, so another one takes its place.
                PollFd::new(control, PollFlags::empty())
            } else {
                PollFd::from_borrowed_fd(signal.fd, PollFlags::IN)
            }
        };
        let [store, lookup, load] = self.signals.each_ref().map(waiting);
        let mut fds = [store, lookup, load, PollFd::new(control, PollFlags::IN)];
        // An interrupted wait is a short one.
        let _ = poll(&mut fds, timeout.as_ref());
        let [store, lookup, load, control] = fds.map(|fd| fd.revents());
        if !control.is_empty() {
            self.shared.control.consume();
        }
        let mut ledger = self.shared.ledger.lock();
        ledger.lane_asleep = false;
        if ledger.watchdog_asleep {
            self.shared.to_watch.notify_all();
        }
        [store, lookup, load]
    }

    /// Until when to wait, `None` for ever. From here on who gives something to do wakes the lane.
    fn rest_until(&mut self) -> Option<Instant> {
        let mut ledger = self.shared.ledger.lock();
        if ledger.has_commands() {
            return Some(Instant::now());
        }
        ledger.lane_asleep = true;
        let closing = match ledger.stage {
            Stage::Open => None,
            Stage::Closing { patience, .. } => Some(patience),
        };
        let can_sweep = ledger.outstanding() > 0 || self.signals.iter().any(|s| s.is_muted);
        let sweep = can_sweep.then_some(self.next_sweep);
        [ledger.next_deadline(), closing, sweep]
            .into_iter()
            .flatten()
            .min()
    }

    /// A descriptor said something.
    fn hear(&mut self, index: usize, said: PollFlags) {
        let signal = &mut self.signals[index];
        let kind = signal.kind;
        if said.contains(PollFlags::IN) {
            let _ = rustix::io::read(signal.fd, &mut [0; 8]);
            signal.unsignalled = 0;
            let found = self.collect(kind);
            let signal = &mut self.signals[index];
            signal.fruitless = if found > 0 { 0 } else { signal.fruitless + 1 };
            if signal.fruitless >= FRUITLESS {
                signal.fruitless = 0;
                signal.is_muted = true;
                self.breach(format!(
                    "the descriptor for {} is readable again and again with nothing finished",
                    kind.name()
                ));
            }
        } else {
            signal.is_dead = true;
            self.breach(format!(
                "the descriptor for {} is dead ({said:?}); results are looked for from time to time",
                kind.name()
            ));
        }
    }

    fn breach(&self, reason: String) {
        self.shared.ledger.lock().breach(&self.shared.name, reason);
    }

    /// Asks for every task, in case a signal was lost.
    fn sweep(&mut self) {
        for index in 0..self.signals.len() {
            let kind = self.signals[index].kind;
            self.signals[index].is_muted = false;
            let lost = std::mem::take(&mut self.signals[index].unsignalled);
            if lost > 0 {
                let mut ledger = self.shared.ledger.lock();
                ledger.counts.lost_signals += lost;
                let reason = format!("{lost} {} tasks finished without a signal", kind.name());
                ledger.breach(&self.shared.name, reason);
            }
            if !self.shared.ledger.lock().tasks(kind).is_empty() {
                // The signal of a result that is found here may be on its way: it has until the next sweep.
                self.signals[index].unsignalled = self.collect(kind);
            }
        }
    }

    /// Takes the results that are there; how many.
    fn collect(&mut self, kind: Kind) -> u64 {
        if kind == Kind::Store {
            let results = self
                .call(Method::PopStores, |adapter| adapter.pop_completed_stores())
                .unwrap_or_default();
            let found = results.len() as u64;
            for (id, result) in results {
                self.finish_store(id, result);
            }
            return found;
        }
        let mut asked = std::mem::take(&mut self.asked);
        asked.clear();
        asked.extend(self.shared.ledger.lock().tasks(kind).keys());
        let mut found = 0;
        for &id in &asked {
            found += u64::from(if kind == Kind::Lookup {
                self.query_lookup(id)
            } else {
                self.query_load(id)
            });
        }
        self.asked = asked;
        found
    }

    fn finish_store(&mut self, id: TaskId, result: StoreResult) {
        let mut ledger = self.shared.ledger.lock();
        let Some(task) = ledger.take_task(Kind::Store, id) else {
            ledger.counts.unknown_tasks += 1;
            let reason = format!("a store with the unknown number {} finished", id.0);
            ledger.breach(&self.shared.name, reason);
            return;
        };
        match task.done {
            Some(Done::Store(done)) => {
                drop(ledger);
                answer(done, Ok(result));
            }
            _ => ledger.counts.late_results += 1,
        }
    }

    fn query_lookup(&mut self, id: TaskId) -> bool {
        let query = |adapter: &dyn L2Adapter| adapter.query_lookup_and_lock(id);
        let Some(result) = self.call(Method::QueryLookup, query).flatten() else {
            return false;
        };
        let mut ledger = self.shared.ledger.lock();
        let Some(task) = ledger.take_task(Kind::Lookup, id) else {
            return true;
        };
        let wrong = wrong_lookup(&result, task.len);
        if let Some(reason) = &wrong {
            ledger.breach(&self.shared.name, reason.clone());
        }
        match (task.done, wrong) {
            (Some(Done::Lookup(done)), None) => {
                drop(ledger);
                answer(done, Ok(result));
                return true;
            }
            (Some(done), Some(reason)) => {
                drop(ledger);
                done.fail(self.shared.broken(reason));
            }
            _ => {
                ledger.counts.late_results += 1;
                drop(ledger);
            }
        }
        let locked: Vec<_> = result.found.ones().filter(|at| *at < task.len).collect();
        if !locked.is_empty() {
            let keys: Vec<_> = locked.iter().map(|at| task.keys[*at].clone()).collect();
            self.call(Method::Unlock, |adapter| adapter.submit_unlock(&keys));
        }
        true
    }

    fn query_load(&mut self, id: TaskId) -> bool {
        let query = |adapter: &dyn L2Adapter| adapter.query_load(id);
        let Some(mut result) = self.call(Method::QueryLoad, query).flatten() else {
            return false;
        };
        let mut ledger = self.shared.ledger.lock();
        let Some(task) = ledger.take_task(Kind::Load, id) else {
            return true;
        };
        let wrong = wrong_load(&mut result, task.len);
        if let Some(reason) = &wrong {
            ledger.breach(&self.shared.name, reason.clone());
        }
        if task.done.is_none() {
            ledger.counts.late_results += 1;
        }
        // Before pages are let go, which leads back into the memory tier.
        drop(ledger);
        match (task.done, wrong) {
            (Some(Done::Load(done)), None) => answer(done, Ok(result)),
            (Some(done), Some(reason)) => {
                drop(result);
                done.fail(self.shared.broken(reason));
            }
            _ => {}
        }
        true
    }

    /// Whether the backend is being closed and there is nothing left to wait for.
    fn is_time_to_close(&self) -> bool {
        let ledger = self.shared.ledger.lock();
        let Stage::Closing { patience, .. } = ledger.stage else {
            return false;
        };
        let is_idle = !ledger.has_commands() && ledger.outstanding() == 0;
        is_idle || Instant::now() >= patience
    }

    /// Ends the adapter and takes what results it then has.
    fn close(&mut self) -> CloseReport {
        while self.carry_out_one() {}
        let left = |ledger: &Ledger| match ledger.stage {
            Stage::Closing { by, .. } => by.saturating_duration_since(Instant::now()),
            Stage::Open => Duration::ZERO,
        };
        let left = left(&self.shared.ledger.lock());
        // Not marked as a call that may hang: who closes waits no longer than it wants to.
        let report = self.guest.call(|adapter| adapter.close(left));
        let report = match report {
            Ok(report) => {
                for kind in Kind::ALL {
                    self.collect(kind);
                }
                report
            }
            Err(panicked) => {
                self.shared.quarantine(format!("close {panicked}"), true);
                CloseReport::default()
            }
        };
        let mut ledger = self.shared.ledger.lock();
        let abandoned = ledger.outstanding().max(report.abandoned);
        let error = self
            .shared
            .unusable("it was closed before the task had finished");
        let aftermath = ledger.fail_all(&error);
        drop(ledger);
        aftermath.settle();
        CloseReport { abandoned }
    }
}

/// What is wrong with the result of a lookup of so many keys.
fn wrong_lookup(result: &LookupResult, len: usize) -> Option<String> {
    let (found, sizes) = (result.found.len(), result.sizes.len());
    if found != len || sizes != len {
        return Some(format!(
            "a lookup of {len} keys answered with {found} bits and {sizes} sizes"
        ));
    }
    let count = result.found.count_ones();
    (result.error.is_some() && count > 0)
        .then(|| format!("a lookup failed and found {count} keys all the same"))
}

/// What is wrong with the result of a load of so many pages. A key whose page is missing becomes a failure.
fn wrong_load(result: &mut LoadResult, len: usize) -> Option<String> {
    let found = result.0.len();
    if found != len {
        return Some(format!(
            "a load of {len} pages answered with {found} outcomes"
        ));
    }
    for loaded in &mut result.0 {
        let LoadOutcome::Found(bytes) = loaded.outcome else {
            continue;
        };
        match &loaded.page {
            Some(page) if bytes > page.room() as u64 => {
                return Some(format!(
                    "a load put {bytes} bytes into a page with room for {}",
                    page.room()
                ));
            }
            Some(_) => {}
            None => {
                loaded.outcome =
                    LoadOutcome::Failed("the adapter did not give the page back".to_owned());
            }
        }
    }
    None
}

/// Keeps what the lane must know of a batch once it is the adapter's.
pub(super) fn task(payload: &Payload, done: Done, timeout: Duration) -> Task {
    let (len, bytes, keys) = match payload {
        Payload::Store(batch) => {
            let bytes = batch.iter().map(|item| item.object.stored_len() as u64);
            (batch.len(), bytes.sum(), Vec::new())
        }
        Payload::Lookup(keys) => (keys.len(), 0, keys.clone()),
        Payload::Load(batch) => {
            let bytes = batch.iter().map(|item| item.page.room() as u64);
            (batch.len(), bytes.sum(), Vec::new())
        }
    };
    let now = Instant::now();
    Task {
        done: Some(done),
        timeout,
        deadline: now
            .checked_add(timeout)
            .unwrap_or_else(|| now + Duration::from_secs(u64::from(u32::MAX))),
        bytes,
        len,
        keys,
    }
}
