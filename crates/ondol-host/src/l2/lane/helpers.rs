//! Calls that may block, and calls that others wait for with a limit: a few threads that make them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, bounded};
use ondol_plugin::l2::L2Adapter;
use parking_lot::{Condvar, Mutex};

use super::guest::Guest;
use crate::Panicked;

/// Threads of one backend; as many calls may hang before further ones find nobody.
const MOST: usize = 4;

type Job = Box<dyn FnOnce() + Send>;

/// Threads that call an adapter for others. They are started when they are needed.
#[derive(Clone)]
pub(super) struct Helpers(Arc<Crew>);

struct Crew {
    name: String,
    state: Mutex<State>,
    changed: Condvar,
    /// May dip below zero for a moment.
    overdue: AtomicIsize,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    is_closed: bool,
}

/// Why a call has no result.
#[derive(Debug)]
pub(super) enum Failure {
    Panicked(Panicked),
    TimedOut,
    NoThread,
}

// Stages of a call that somebody waits for.
const QUEUED: u8 = 0;
const RUNNING: u8 = 1;
const DONE: u8 = 2;
/// Its caller has gone on without it.
const OVERDUE: u8 = 3;

impl Helpers {
    pub(super) fn new(name: &str) -> Self {
        Self(Arc::new(Crew {
            name: name.to_owned(),
            state: Mutex::default(),
            changed: Condvar::new(),
            overdue: AtomicIsize::new(0),
        }))
    }

    /// Calls that their callers have given up and that go on.
    pub(super) fn overdue(&self) -> usize {
        usize::try_from(self.0.overdue.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Lets idle threads end, and the others once they have done what they are at.
    pub(super) fn close(&self) {
        let mut state = self.0.state.lock();
        state.is_closed = true;
        let dropped = std::mem::take(&mut state.jobs);
        drop(state);
        drop(dropped);
        self.0.changed.notify_all();
    }

    /// Has the adapter called, and waits for the answer.
    pub(super) fn call<R: Send + 'static>(
        &self,
        guest: &Arc<Guest>,
        within: Duration,
        call: impl FnOnce(&dyn L2Adapter) -> R + Send + 'static,
    ) -> Result<R, Failure> {
        let (answer, wait) = bounded(1);
        let stage = Arc::new(AtomicU8::new(QUEUED));
        let (guest, crew, at) = (Arc::clone(guest), Arc::clone(&self.0), Arc::clone(&stage));
        let is_taken = self.run(Box::new(move || {
            let begun = at.compare_exchange(QUEUED, RUNNING, Ordering::AcqRel, Ordering::Acquire);
            if begun.is_err() {
                return;
            }
            let result = guest.call(call);
            if at.swap(DONE, Ordering::AcqRel) == OVERDUE {
                crew.overdue.fetch_sub(1, Ordering::Relaxed);
            }
            // The last owner of an adapter destroys it: here, not with whoever waits.
            drop(guest);
            let _ = answer.send(result);
        }));
        if !is_taken {
            return Err(Failure::NoThread);
        }
        match wait.recv_timeout(within) {
            Ok(result) => result.map_err(Failure::Panicked),
            Err(RecvTimeoutError::Disconnected) => Err(Failure::NoThread),
            Err(RecvTimeoutError::Timeout) => match stage.swap(OVERDUE, Ordering::AcqRel) {
                // It came after all.
                DONE => match wait.recv() {
                    Ok(result) => result.map_err(Failure::Panicked),
                    Err(_) => Err(Failure::TimedOut),
                },
                RUNNING => {
                    self.0.overdue.fetch_add(1, Ordering::Relaxed);
                    Err(Failure::TimedOut)
                }
                // It will not be begun any more.
                _ => Err(Failure::TimedOut),
            },
        }
    }

    /// Gives a job to a thread; `false`, and the job is dropped, if none is to be had.
    fn run(&self, job: Job) -> bool {
        let mut state = self.0.state.lock();
        if state.is_closed {
            return false;
        }
        if state.idle <= state.jobs.len() && state.threads < MOST {
            let crew = Arc::clone(&self.0);
            let thread = std::thread::Builder::new().name(self.0.name.clone());
            match thread.spawn(move || work(&crew)) {
                Ok(_) => state.threads += 1,
                Err(_) if state.threads == 0 => return false,
                Err(_) => {}
            }
        }
        state.jobs.push_back(job);
        drop(state);
        self.0.changed.notify_one();
        true
    }
}

fn work(crew: &Crew) {
    let mut state = crew.state.lock();
    loop {
        if let Some(job) = state.jobs.pop_front() {
            drop(state);
            // Foreign code in it runs under a guard of its own.
            job();
            state = crew.state.lock();
        } else if state.is_closed {
            state.threads -= 1;
            return;
        } else {
            state.idle += 1;
            crew.changed.wait(&mut state);
            state.idle -= 1;
        }
    }
}

/// A figure that is asked for with a limit: who does not get an answer in time gets the last one.
#[derive(Default)]
pub(super) struct Figure<T> {
    state: Arc<(Mutex<Asking<T>>, Condvar)>,
}

#[derive(Default)]
struct Asking<T> {
    last: T,
    begun: u64,
    ended: u64,
    since: Option<Instant>,
    panicked: Option<Panicked>,
}

impl<T: Clone + Default + Send + 'static> Figure<T> {
    /// The last answer.
    pub(super) fn last(&self) -> T {
        self.state.0.lock().last.clone()
    }

    /// Whether a question has had no answer for longer than this.
    pub(super) fn is_overdue(&self, limit: Duration) -> bool {
        let asking = self.state.0.lock();
        asking.begun != asking.ended && asking.since.is_some_and(|since| since.elapsed() > limit)
    }

    /// An answer that was not begun before this call, or the last one if that takes longer than `within`.
    ///
    /// # Errors
    /// That the adapter panicked.
    pub(super) fn ask(
        &self,
        helpers: &Helpers,
        guest: &Arc<Guest>,
        within: Duration,
        question: fn(&dyn L2Adapter) -> T,
    ) -> Result<T, Panicked> {
        let until = Instant::now() + within;
        let (lock, changed) = &*self.state;
        let mut asking = lock.lock();
        let wanted = asking.begun + 1;
        while asking.ended < wanted {
            if asking.begun == asking.ended {
                asking.begun += 1;
                asking.since = Some(Instant::now());
                let (state, guest) = (Arc::clone(&self.state), Arc::clone(guest));
                let job = Box::new(move || {
                    let answer = guest.call(question);
                    drop(guest);
                    let mut asking = state.0.lock();
                    asking.ended = asking.begun;
                    match answer {
                        Ok(answer) => asking.last = answer,
                        Err(panicked) => asking.panicked = Some(panicked),
                    }
                    drop(asking);
                    state.1.notify_all();
                });
                if !helpers.run(job) {
                    asking.ended = asking.begun;
                    break;
                }
            } else if asking.since.is_some_and(|since| since.elapsed() > within) {
                // Others have waited for this one in vain.
                break;
            }
            if changed.wait_until(&mut asking, until).timed_out() {
                break;
            }
        }
        match asking.panicked.take() {
            Some(panicked) => Err(panicked),
            None => Ok(asking.last.clone()),
        }
    }
}
