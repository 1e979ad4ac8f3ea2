use std::collections::{HashSet, VecDeque};
use std::time::Instant;

use ondol_host::l2::TaskError;
use ondol_plugin::Key;
use ondol_plugin::l2::{LookupResult, StoreResult};
use parking_lot::{Condvar, Mutex};

use super::barred::Bar;
use super::walk::STEP_KEYS;
use crate::StoreOverflow;

/// Objects that wait when the walk adds to them, at most; beyond that an object may be queued twice, which does no harm.
const PLENTY: usize = 4 * STEP_KEYS;

/// An object that waits to be stored. It is not leased while it waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) key: Key,
    /// Its length in bytes.
    pub(super) len: u64,
    /// How often it was tried.
    pub(super) attempts: u32,
    /// Whether it goes without others, since it was part of a batch that failed.
    pub(super) alone: bool,
}

/// A task of the backend that has an outcome.
#[derive(Debug)]
pub(super) enum Finished {
    /// A batch of this number.
    Store(u64, Result<StoreResult, TaskError>),
    /// The lookup of a step of the walk.
    Lookup(Result<LookupResult, TaskError>),
}

/// What one backend's thread is to do, as others tell it.
#[derive(Debug)]
pub(super) struct Inbox {
    limit: usize,
    overflow: StoreOverflow,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Waiting>,
    /// Objects that wait elsewhere and count as well.
    elsewhere: usize,
    finished: Vec<Finished>,
    /// What it is to hear of deletes, in their order.
    bars: Vec<Bar>,
    /// The thread has ended and hears nothing any more; how.
    ended: Option<Ended>,
    /// Whether the walk is to find objects that are not waiting here.
    walk_wanted: bool,
    order: Order,
    /// What the thread waits for, while it does.
    sleeps_for: Option<For>,
}

/// How a thread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// Nothing that it has begun is still being stored.
    Settled,
    /// Nobody hears what becomes of what it has begun.
    Unsettled,
}

/// How long the thread goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    /// As long as it is not told otherwise.
    #[default]
    Serve,
    /// Until nothing waits any more.
    Finish,
    /// Until what was submitted has an outcome; what waits is given up.
    Leave,
    /// No longer.
    Stop,
}

/// What the thread can use now.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct For {
    /// The most objects, and bytes of them; one object is taken even if it is longer, if `any_length`.
    pub(super) objects: usize,
    pub(super) bytes: u64,
    pub(super) any_length: bool,
    /// Whether it wants to hear of a walk.
    pub(super) walk: bool,
}

/// What the thread got.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) finished: Vec<Finished>,
    pub(super) bars: Vec<Bar>,
    pub(super) batch: Vec<Waiting>,
    pub(super) order: Order,
}

/// What became of objects that were offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Offered {
    /// How many of them wait now, the first ones.
    pub(super) taken: usize,
    /// How many others were dropped for them, the oldest.
    pub(super) dropped: usize,
}

impl Waiting {
    pub(super) fn new(key: Key, len: u64) -> Self {
        Self {
            key,
            len,
            attempts: 0,
            alone: false,
        }
    }
}

impl Inbox {
    pub(super) fn new(limit: usize, overflow: StoreOverflow) -> Self {
        Self {
            limit: limit.max(1),
            overflow,
            // What memory has when a backend comes is to be found.
            state: Mutex::new(State {
                walk_wanted: true,
                ..State::default()
            }),
            wake: Condvar::new(),
        }
    }

    /// New objects, the oldest first. Those that find no room are left to the walk.
    pub(super) fn offer<'a>(
        &self,
        objects: impl ExactSizeIterator<Item = (&'a Key, u64)>,
        dropped: &mut dyn FnMut(Waiting),
    ) -> Offered {
        let count = objects.len();
        let mut state = self.state.lock();
        if state.order != Order::Serve {
            return Offered::default();
        }
        let mut offered = Offered::default();
        let room = self.limit.saturating_sub(state.elsewhere);
        if self.overflow == StoreOverflow::DropOldest {
            while state.waiting.len() + count > room {
                let Some(oldest) = state.waiting.pop_front() else {
                    break;
                };
                dropped(oldest);
                offered.dropped += 1;
            }
        }
        offered.taken = count.min(room.saturating_sub(state.waiting.len()));
        if offered.taken < count {
            state.walk_wanted = true;
        }
        let objects = objects.take(offered.taken);
        state
            .waiting
            .extend(objects.map(|(key, len)| Waiting::new(key.clone(), len)));
        let wakes = state.sleeps_for.is_some_and(|sleeps| sleeps.objects > 0);
        self.unlock(state, wakes && offered.taken > 0);
        offered
    }

    /// Those of these objects that do not wait yet.
    pub(super) fn not_waiting(&self, objects: Vec<(Key, u64)>) -> Vec<(Key, u64)> {
        let state = self.state.lock();
        let waiting = state.waiting.iter().take(PLENTY).map(|it| &it.key);
        let waiting: HashSet<_, foldhash::fast::RandomState> = waiting.collect();
        let mut objects = objects;
        objects.retain(|(key, _)| !waiting.contains(key));
        objects
    }

    /// Queues objects that the walk found; how many of them, the last ones, found no room.
    pub(super) fn found(&self, objects: &[(Key, u64)]) -> usize {
        let mut state = self.state.lock();
        let room = self
            .limit
            .saturating_sub(state.elsewhere + state.waiting.len());
        let taken = &objects[..objects.len().min(room)];
        let taken = taken.iter().cloned();
        state
            .waiting
            .extend(taken.map(|(key, len)| Waiting::new(key, len)));
        objects.len().saturating_sub(room)
    }

    /// Whether so little waits that the walk may add to it.
    pub(super) fn has_room_for_walk(&self) -> bool {
        let waiting = self.len();
        waiting <= STEP_KEYS && waiting < self.limit
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().waiting.is_empty()
    }

    /// A task has an outcome.
    pub(super) fn finished(&self, finished: Finished) {
        let mut state = self.state.lock();
        state.finished.push(finished);
        let wakes = state.sleeps_for.is_some();
        self.unlock(state, wakes);
    }

    /// Tells the thread of a delete. If it has ended and something may still be stored, nobody answers.
    pub(super) fn bar(&self, bar: Bar) {
        let mut state = self.state.lock();
        if let Some(ended) = state.ended {
            if ended == Ended::Settled {
                bar.settle();
            }
            return;
        }
        state.bars.push(bar);
        let wakes = state.sleeps_for.is_some();
        self.unlock(state, wakes);
    }

    /// The thread has ended.
    pub(super) fn end(&self, ended: Ended) {
        let mut state = self.state.lock();
        state.ended = Some(ended);
        let bars = std::mem::take(&mut state.bars);
        if ended == Ended::Settled {
            bars.iter().for_each(Bar::settle);
        }
    }

    /// Whether the walk is to begin, which it then does.
    pub(super) fn take_walk(&self) -> bool {
        std::mem::take(&mut self.state.lock().walk_wanted)
    }

    /// The walk is to look at everything.
    pub(super) fn want_walk(&self) {
        let mut state = self.state.lock();
        state.walk_wanted = true;
        let wakes = state.sleeps_for.is_some_and(|sleeps| sleeps.walk);
        self.unlock(state, wakes);
    }

    pub(super) fn is_walk_wanted(&self) -> bool {
        self.state.lock().walk_wanted
    }

    /// Tells the thread how long to go on; never less strictly than before.
    pub(super) fn tell(&self, order: Order) {
        let mut state = self.state.lock();
        if (order as u8) > (state.order as u8) {
            state.order = order;
        }
        self.unlock(state, true);
    }

    /// Objects that wait.
    pub(super) fn len(&self) -> usize {
        let state = self.state.lock();
        state.waiting.len() + state.elsewhere
    }

    /// What there is to do, waited for until `until`. The thread has heard the order `heard`, and `elsewhere` objects wait that are
    /// not here.
    pub(super) fn next(
        &self,
        can: For,
        heard: Order,
        elsewhere: usize,
        until: Option<Instant>,
    ) -> Work {
        let mut state = self.state.lock();
        state.elsewhere = elsewhere;
        loop {
            let has_work = !state.finished.is_empty()
                || !state.bars.is_empty()
                || (can.objects > 0 && can.fits(state.waiting.front()))
                || (can.walk && state.walk_wanted)
                || state.order != heard;
            if has_work {
                break;
            }
            state.sleeps_for = Some(can);
            let timed_out = match until {
                Some(until) => self.wake.wait_until(&mut state, until).timed_out(),
                None => {
                    self.wake.wait(&mut state);
                    false
                }
            };
            state.sleeps_for = None;
            if timed_out {
                break;
            }
        }
        let mut work = Work {
            finished: std::mem::take(&mut state.finished),
            bars: std::mem::take(&mut state.bars),
            order: state.order,
            ..Work::default()
        };
        let mut bytes = 0;
        while work.batch.len() < can.objects {
            let fits = state.waiting.front().is_some_and(|next| {
                bytes + next.len <= can.bytes || (can.any_length && work.batch.is_empty())
            });
            if !fits {
                break;
            }
            let Some(next) = state.waiting.pop_front() else {
                break;
            };
            bytes += next.len;
            work.batch.push(next);
        }
        work
    }

    /// Lets go of everything that waits, and takes it.
    pub(super) fn clear(&self) -> VecDeque<Waiting> {
        std::mem::take(&mut self.state.lock().waiting)
    }

    /// Wakes the thread without the lock, so that it does not run into it.
    fn unlock(&self, state: parking_lot::MutexGuard<'_, State>, wakes: bool) {
        drop(state);
        if wakes {
            self.wake.notify_one();
        }
    }
}

impl For {
    fn fits(&self, next: Option<&Waiting>) -> bool {
        next.is_some_and(|next| self.any_length || next.len <= self.bytes)
    }
}
