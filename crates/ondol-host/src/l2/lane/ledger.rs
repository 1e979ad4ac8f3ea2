//! What a lane has been asked for and has not answered.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use ondol_plugin::l2::{
    CloseReport, LoadItem, LoadResult, LookupResult, ObjectKey, StoreItem, StoreResult, TaskId,
};

use super::{LaneCounts, TaskError};
use crate::guarded;

/// How long a breach of the contract counts against a backend's health.
const BREACH_MEMORY: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Store,
    Lookup,
    Load,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Store, Self::Lookup, Self::Load];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Lookup => "lookup",
            Self::Load => "load",
        }
    }
}

type Callback<R> = Box<dyn FnOnce(Result<R, TaskError>) + Send>;

/// Who waits for a task.
pub(super) enum Done {
    Store(Callback<StoreResult>),
    Lookup(Callback<LookupResult>),
    Load(Callback<LoadResult>),
}

impl Done {
    pub(super) fn fail(self, error: TaskError) {
        match self {
            Self::Store(done) => answer(done, Err(error)),
            Self::Lookup(done) => answer(done, Err(error)),
            Self::Load(done) => answer(done, Err(error)),
        }
    }
}

/// Calls a callback. It is the core's, yet a mistake there shall not end the thread that serves everybody else.
pub(super) fn answer<R>(done: Callback<R>, result: Result<R, TaskError>) {
    if let Err(panicked) = guarded(|| done(result)) {
        tracing::error!(error = %panicked, "who waited for a storage task failed at its result");
    }
}

/// What a batch brings along.
pub(super) enum Payload {
    Store(Vec<StoreItem>),
    Lookup(Vec<ObjectKey>),
    Load(Vec<LoadItem>),
}

/// A batch, from when it is asked for to when the adapter has ended it.
pub(super) struct Task {
    /// `None` once it is answered; what the adapter does then is captive.
    pub(super) done: Option<Done>,
    pub(super) timeout: Duration,
    pub(super) deadline: Instant,
    /// Bytes of pages and objects that it may touch.
    pub(super) bytes: u64,
    /// Keys in the batch.
    pub(super) len: usize,
    /// The keys of a lookup, to be unlocked if nobody wants them any more.
    pub(super) keys: Vec<ObjectKey>,
}

pub(super) enum Command {
    Work { payload: Payload, task: Task },
    Unlock(Vec<ObjectKey>),
}

/// Why an adapter is out of use.
#[derive(Clone, Debug)]
pub(super) struct Quarantine {
    pub(super) reason: String,
    /// Its state is unknown, so it must not be called at all.
    pub(super) panicked: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    #[default]
    Open,
    /// Takes no more work.
    Closing {
        /// Until when tasks are waited for before the adapter is closed.
        patience: Instant,
        /// Until when the adapter may take to close.
        by: Instant,
    },
}

#[derive(Default)]
pub(super) struct Ledger {
    pub(super) stage: Stage,
    pub(super) quarantine: Option<Quarantine>,
    queue: VecDeque<Command>,
    /// Commands in the queue that are work.
    waiting: usize,
    /// The task whose submit is under way.
    pub(super) current: Option<Task>,
    tasks: [BTreeMap<TaskId, Task>; 3],
    /// No waiting task times out before this.
    next_deadline: Option<Instant>,
    /// Tasks that the adapter is to be told of that nobody waits any more.
    cancels: Vec<TaskId>,
    /// Refusals that the watchdog is to deliver, so that no caller is called back from within its own call.
    pub(super) failures: Vec<(Done, TaskError)>,
    /// Whether the watchdog is delivering refusals now.
    pub(super) is_failing: bool,
    pub(super) lane_asleep: bool,
    pub(super) lane_ended: bool,
    pub(super) watchdog_asleep: bool,
    /// The backend is gone; nothing comes any more.
    pub(super) is_abandoned: bool,
    pub(super) report: Option<CloseReport>,
    pub(super) counts: LaneCounts,
    breach: Option<(Instant, String)>,
    /// The call that takes long now.
    pub(super) slow: Option<&'static str>,
}

/// What a change of the ledger leaves to do once it is unlocked.
#[derive(Default)]
pub(super) struct Aftermath {
    pub(super) failures: Vec<(Done, TaskError)>,
    /// Batches that were never submitted.
    pub(super) dropped: Vec<Payload>,
}

impl Aftermath {
    pub(super) fn settle(self) {
        drop(self.dropped);
        for (done, error) in self.failures {
            done.fail(error);
        }
    }
}

impl Ledger {
    pub(super) fn push(&mut self, command: Command) {
        if let Command::Work { task, .. } = &command {
            self.waiting += 1;
            self.note_deadline(task.deadline);
        }
        self.queue.push_back(command);
    }

    pub(super) fn pop(&mut self) -> Option<Command> {
        let command = self.queue.pop_front()?;
        if matches!(command, Command::Work { .. }) {
            self.waiting -= 1;
        }
        Some(command)
    }

    /// Batches that wait to be submitted.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(super) fn has_commands(&self) -> bool {
        !self.queue.is_empty() || !self.cancels.is_empty()
    }

    pub(super) fn take_cancels(&mut self) -> Vec<TaskId> {
        std::mem::take(&mut self.cancels)
    }

    pub(super) fn tasks(&self, kind: Kind) -> &BTreeMap<TaskId, Task> {
        &self.tasks[kind as usize]
    }

    pub(super) fn take_task(&mut self, kind: Kind, id: TaskId) -> Option<Task> {
        self.tasks[kind as usize].remove(&id)
    }

    pub(super) fn enter(&mut self, kind: Kind, id: TaskId, task: Task) {
        if task.done.is_none() {
            self.cancels.push(id);
        }
        self.tasks[kind as usize].insert(id, task);
    }

    pub(super) fn outstanding(&self) -> u64 {
        self.tasks.iter().map(|tasks| tasks.len() as u64).sum()
    }

    /// Tasks that nobody waits for any more, and the bytes that they may touch.
    pub(super) fn captive(&self) -> (u64, u64) {
        let tasks = self.tasks.iter().flat_map(BTreeMap::values);
        tasks
            .chain(&self.current)
            .filter(|task| task.done.is_none())
            .fold((0, 0), |(tasks, bytes), task| {
                (tasks + 1, bytes + task.bytes)
            })
    }

    /// The bytes that loads may touch for which nobody waits any more.
    pub(super) fn captive_loads(&self) -> u64 {
        let loads = self.tasks[Kind::Load as usize].values();
        let captive = loads.filter(|task| task.done.is_none());
        captive.fold(0, |bytes, task| bytes.saturating_add(task.bytes))
    }

    /// Everything that waits, is being submitted or is outstanding.
    pub(super) fn unfinished(&self) -> u64 {
        self.outstanding() + self.waiting as u64 + u64::from(self.current.is_some())
    }

    fn note_deadline(&mut self, deadline: Instant) {
        self.next_deadline = Some(
            self.next_deadline
                .map_or(deadline, |next| next.min(deadline)),
        );
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.next_deadline
    }

    /// Answers those who have waited long enough.
    pub(super) fn expire(&mut self, backend: &str, now: Instant) -> Aftermath {
        let mut aftermath = Aftermath::default();
        if self.next_deadline.is_none_or(|next| next > now) {
            return aftermath;
        }
        let mut next: Option<Instant> = None;
        let mut is_over = |task: &Task| {
            if task.done.is_none() {
                return false;
            }
            if task.deadline > now {
                next = Some(next.map_or(task.deadline, |next| next.min(task.deadline)));
                return false;
            }
            true
        };
        let mut give_up = |task: &mut Task| {
            let waited = task.timeout;
            let backend = backend.to_owned();
            let error = TaskError::TimedOut { backend, waited };
            let done = task.done.take();
            aftermath.failures.extend(done.map(|done| (done, error)));
        };
        let mut kept = VecDeque::with_capacity(self.queue.len());
        for command in self.queue.drain(..) {
            match command {
                Command::Work { payload, mut task } if is_over(&task) => {
                    give_up(&mut task);
                    aftermath.dropped.push(payload);
                    self.waiting -= 1;
                }
                command => kept.push_back(command),
            }
        }
        self.queue = kept;
        for task in self.current.iter_mut() {
            if is_over(task) {
                give_up(task);
            }
        }
        for (id, task) in self.tasks.iter_mut().flatten() {
            if is_over(task) {
                give_up(task);
                self.cancels.push(*id);
            }
        }
        self.next_deadline = next;
        self.counts.timeouts += aftermath.failures.len() as u64;
        aftermath
    }

    /// Takes out all work that was not submitted yet.
    pub(super) fn fail_queue(&mut self, error: &TaskError) -> Aftermath {
        let mut aftermath = Aftermath::default();
        let commands = std::mem::take(&mut self.queue);
        for command in commands {
            match command {
                Command::Work { payload, task } => {
                    aftermath.dropped.push(payload);
                    let done = task.done.map(|done| (done, error.clone()));
                    aftermath.failures.extend(done);
                }
                // Locks are given back whenever the adapter can be called again.
                unlock @ Command::Unlock(_) => self.queue.push_back(unlock),
            }
        }
        self.waiting = 0;
        aftermath
    }

    /// Takes out everybody who waits for anything.
    pub(super) fn fail_all(&mut self, error: &TaskError) -> Aftermath {
        let mut aftermath = self.fail_queue(error);
        let tasks = self.tasks.iter_mut().flat_map(BTreeMap::values_mut);
        for task in tasks.chain(&mut self.current) {
            let done = task.done.take();
            aftermath
                .failures
                .extend(done.map(|done| (done, error.clone())));
        }
        self.next_deadline = None;
        aftermath
    }

    pub(super) fn breach(&mut self, backend: &str, reason: String) {
        self.counts.breaches += 1;
        let breaches = self.counts.breaches;
        // An adapter that breaks it all the time shall not fill the log.
        if breaches.is_power_of_two() {
            tracing::warn!(
                backend,
                reason,
                breaches,
                "a storage adapter broke its contract"
            );
        }
        self.breach = Some((Instant::now(), reason));
    }

    /// The last breach, if it is fresh.
    pub(super) fn fresh_breach(&self) -> Option<&str> {
        let (when, reason) = self.breach.as_ref()?;
        (when.elapsed() < BREACH_MEMORY).then_some(reason)
    }
}
