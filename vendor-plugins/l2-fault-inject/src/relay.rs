//! What happens between the wrapped adapter and who waits for this one.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ondol_plugin::l2::{
    Completions, EventNotifier, L2Adapter, LoadItem, LoadOutcome, LoadResult, Loaded, LookupResult,
    ObjectKey, StoreItem, StoreResult, TaskId, Ticket,
};
use parking_lot::{Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::dice::Dice;
use crate::figures::{Fault, Figures};
use crate::{FaultInjectConfig, Operation};

pub(crate) struct Relay {
    pub(crate) inner: Box<dyn L2Adapter>,
    pub(crate) config: FaultInjectConfig,
    pub(crate) completions: Completions,
    pub(crate) figures: Figures,
    dice: Dice,
    tasks: [AtomicU64; 4],
    state: Mutex<State>,
    wake: EventNotifier,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) stores: HashMap<TaskId, Pending<StoreResult>>,
    pub(crate) lookups: HashMap<TaskId, (Pending<LookupResult>, Vec<ObjectKey>)>,
    pub(crate) loads: HashMap<TaskId, (Pending<LoadResult>, Vec<ObjectKey>)>,
    /// Results that are held back, by when they are due.
    held_back: BTreeMap<(Instant, TaskId), Answer>,
    pub(crate) stuck: Vec<Stuck>,
    pub(crate) is_closing: bool,
    is_over: bool,
}

/// A task of the wrapped adapter, and what is to become of its result.
pub(crate) struct Pending<R> {
    pub(crate) ticket: Ticket<R>,
    pub(crate) fate: Fate,
}

/// What becomes of a task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fate {
    /// Its number among those of its kind.
    pub(crate) number: u64,
    pub(crate) fails: bool,
    pub(crate) hangs: bool,
    pub(crate) is_lost: bool,
    pub(crate) delay: Duration,
}

/// A result that is ready.
pub(crate) enum Answer {
    Store(Ticket<StoreResult>, StoreResult),
    Lookup(Ticket<LookupResult>, LookupResult),
    Load(Ticket<LoadResult>, LoadResult),
}

/// A task that never ends, with its buffers.
#[expect(dead_code, reason = "what is in it is kept, not read")]
pub(crate) enum Stuck {
    Store(Vec<StoreItem>, Ticket<StoreResult>),
    Lookup(Ticket<LookupResult>),
    Load(Vec<LoadItem>, Ticket<LoadResult>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Store,
    Lookup,
    Load,
    Delete,
}

impl Kind {
    const WAITED_FOR: [Self; 3] = [Self::Store, Self::Lookup, Self::Load];
    const DELAYS: [&'static str; 4] = ["store", "lookup", "load", "delete"];
}

impl Answer {
    fn task(&self) -> TaskId {
        match self {
            Self::Store(ticket, _) => ticket.task(),
            Self::Lookup(ticket, _) => ticket.task(),
            Self::Load(ticket, _) => ticket.task(),
        }
    }

    fn give(self) {
        match self {
            Self::Store(ticket, result) => ticket.complete(result),
            Self::Lookup(ticket, result) => ticket.complete(result),
            Self::Load(ticket, result) => ticket.complete(result),
        }
    }
}

impl Relay {
    pub(crate) fn new(
        inner: Box<dyn L2Adapter>,
        config: FaultInjectConfig,
    ) -> std::io::Result<Self> {
        Ok(Self {
            inner,
            completions: Completions::new()?,
            figures: Figures::default(),
            dice: Dice::new(config.seed),
            tasks: Default::default(),
            state: Mutex::default(),
            wake: EventNotifier::new()?,
            config,
        })
    }

    /// Held while a task is handed on, so that its result is not looked for before it is written down.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// What becomes of the next task of a kind.
    pub(crate) fn fate(&self, kind: Kind) -> Fate {
        let number = self.tasks[kind as usize].fetch_add(1, Ordering::Relaxed);
        let (operation, error, hang, lost) = match kind {
            Kind::Store => (
                &self.config.store,
                Fault::StoreError,
                Some(Fault::StoreHang),
                Some(Fault::StoreLost),
            ),
            Kind::Lookup => (
                &self.config.lookup,
                Fault::LookupError,
                Some(Fault::LookupHang),
                Some(Fault::LookupLost),
            ),
            Kind::Load => (
                &self.config.load,
                Fault::LoadError,
                Some(Fault::LoadHang),
                Some(Fault::LoadLost),
            ),
            Kind::Delete => (&self.config.delete, Fault::DeleteError, None, None),
        };
        let falls = |rate, fault: Option<Fault>| {
            let falls = fault.filter(|fault| self.dice.falls(rate, fault.name(), number, &[]));
            falls.inspect(|fault| self.figures.count(*fault)).is_some()
        };
        let Operation {
            error_rate,
            hang_rate,
            lost_rate,
            delay,
        } = *operation;
        let fails = falls(error_rate, Some(error));
        let hangs = !fails && falls(hang_rate, hang);
        let share = self.dice.share(Kind::DELAYS[kind as usize], number, &[]);
        if !delay.is_zero() {
            self.figures.count(Fault::Delay);
        }
        Fate {
            number,
            fails,
            hangs,
            is_lost: !fails && !hangs && falls(lost_rate, lost),
            delay: delay.mul_f64(share),
        }
    }

    /// Gives an answer, now or when its delay is over.
    pub(crate) fn answer(&self, state: &mut State, answer: Answer, delay: Duration) {
        if delay.is_zero() || state.is_closing {
            answer.give();
            return;
        }
        let due = Instant::now() + delay;
        state.held_back.insert((due, answer.task()), answer);
        self.wake.notify();
    }

    /// Hands results on until it is told to end.
    pub(crate) fn run(&self) {
        let fds = self.inner.event_fds();
        let fds = [fds.store, fds.lookup, fds.load, self.wake.as_fd()];
        loop {
            let Some(timeout) = self.give_what_is_due() else {
                return;
            };
            let mut polled = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
            if poll(&mut polled, timeout.as_ref()).is_err() {
                continue;
            }
            let ready = polled.map(|fd| !fd.revents().is_empty());
            for (kind, fd) in Kind::WAITED_FOR.into_iter().zip(fds) {
                if ready[kind as usize] {
                    consume(fd);
                    self.collect(kind);
                }
            }
            if ready[3] {
                self.wake.consume();
            }
        }
    }

    /// Ends [`run`](Self::run).
    pub(crate) fn end(&self) {
        self.state().is_over = true;
        self.wake.notify();
    }

    /// Gives everything that is there, due or not.
    pub(crate) fn flush(&self) {
        Kind::WAITED_FOR
            .into_iter()
            .for_each(|kind| self.collect(kind));
        let held_back = std::mem::take(&mut self.state().held_back);
        held_back.into_values().for_each(Answer::give);
    }

    /// Gives the answers whose delay is over. How long until the next one, if there is one; `None` if all is over.
    #[expect(
        clippy::option_option,
        reason = "one says that it is over, the other that nothing is due"
    )]
    fn give_what_is_due(&self) -> Option<Option<Duration>> {
        let mut state = self.state();
        if state.is_over {
            return None;
        }
        let now = Instant::now();
        while let Some(first) = state.held_back.first_entry() {
            let due = first.key().0;
            if due > now {
                return Some(Some(due - now));
            }
            first.remove().give();
        }
        Some(None)
    }

    /// Takes the results of one kind that the wrapped adapter has.
    fn collect(&self, kind: Kind) {
        let mut state = self.state();
        match kind {
            Kind::Store => {
                for (task, result) in self.inner.pop_completed_stores() {
                    if let Some(pending) = state.stores.remove(&task) {
                        self.end_store(&mut state, pending, result);
                    }
                }
            }
            Kind::Lookup => {
                let tasks: Vec<_> = state.lookups.keys().copied().collect();
                for task in tasks {
                    if let Some(result) = self.inner.query_lookup_and_lock(task)
                        && let Some((pending, keys)) = state.lookups.remove(&task)
                    {
                        self.end_lookup(&mut state, pending, &keys, result);
                    }
                }
            }
            Kind::Load => {
                let tasks: Vec<_> = state.loads.keys().copied().collect();
                for task in tasks {
                    if let Some(result) = self.inner.query_load(task)
                        && let Some((pending, keys)) = state.loads.remove(&task)
                    {
                        self.end_load(&mut state, pending, &keys, result);
                    }
                }
            }
            Kind::Delete => {}
        }
    }

    fn end_store(&self, state: &mut State, pending: Pending<StoreResult>, result: StoreResult) {
        let Pending { ticket, fate } = pending;
        if fate.is_lost {
            state.stuck.push(Stuck::Store(Vec::new(), ticket));
        } else {
            self.answer(state, Answer::Store(ticket, result), fate.delay);
        }
    }

    fn end_lookup(
        &self,
        state: &mut State,
        pending: Pending<LookupResult>,
        keys: &[ObjectKey],
        result: LookupResult,
    ) {
        let Pending { ticket, fate } = pending;
        if fate.is_lost {
            // Nobody knows that they are locked, so nobody would unlock them.
            let locked: Vec<_> = result.found.gather(keys).into_iter().cloned().collect();
            self.inner.submit_unlock(&locked);
            state.stuck.push(Stuck::Lookup(ticket));
        } else {
            self.answer(state, Answer::Lookup(ticket, result), fate.delay);
        }
    }

    fn end_load(
        &self,
        state: &mut State,
        pending: Pending<LoadResult>,
        keys: &[ObjectKey],
        mut result: LoadResult,
    ) {
        let Pending { ticket, fate } = pending;
        if fate.is_lost {
            state.stuck.push(Stuck::Load(Vec::new(), ticket));
            return;
        }
        for (index, (loaded, key)) in result.0.iter_mut().zip(keys).enumerate() {
            self.spoil(
                loaded,
                fate.number,
                key,
                self.config.is_gap(index, keys.len()),
            );
        }
        self.answer(state, Answer::Load(ticket, result), fate.delay);
    }

    /// Makes of a load that went well what the configuration wants of it.
    fn spoil(&self, loaded: &mut Loaded, task: u64, key: &ObjectKey, is_gap: bool) {
        let (LoadOutcome::Found(bytes), Some(page)) = (&mut loaded.outcome, &mut loaded.page)
        else {
            return;
        };
        let name = key.to_string();
        let falls = |rate, fault: Fault, task| {
            let falls = self.dice.falls(rate, fault.name(), task, name.as_bytes());
            if falls {
                self.figures.count(fault);
            }
            falls
        };
        if is_gap {
            self.figures.count(Fault::DroppedLoad);
        }
        // The same keys each time: the number of the task does not count.
        if is_gap || falls(self.config.drop_rate, Fault::DroppedLoad, 0) {
            loaded.outcome = LoadOutcome::Failed("injected: the load was dropped".to_owned());
            return;
        }
        if *bytes == 0 {
            return;
        }
        let (body, trailer) = page.parts_mut();
        if falls(self.config.corrupt_rate, Fault::Corruption, task) {
            let bit = self.dice.number("bit", task, name.as_bytes()) % (*bytes * 8);
            let (place, mask) = ((bit / 8) as usize, 1 << (bit % 8));
            match place.checked_sub(body.len()) {
                None => body[place] ^= mask,
                Some(place) => trailer[place] ^= mask,
            }
        }
        if falls(self.config.short_read_rate, Fault::ShortRead, task) {
            *bytes /= 2;
            // What was not read is not there by accident either.
            let read = *bytes as usize;
            let rest_of_body = read.min(body.len());
            body[rest_of_body..].fill(0);
            trailer[read.saturating_sub(body.len())..].fill(0);
        }
    }
}

/// Resets a descriptor of the wrapped adapter.
fn consume(fd: BorrowedFd<'_>) {
    // Another signal comes with whatever is not there yet.
    let _ = rustix::io::read(fd, &mut [0; 8]);
}
