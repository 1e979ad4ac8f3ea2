use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

type Job = Box<dyn FnOnce() + Send>;

/// Threads that run jobs from a queue. Clones are the same pool; it closes when the last one is dropped.
///
/// A job that panics ends its thread, and another one takes its place. Should there be no other, and none left, the pool
/// closes, so that no job waits for ever.
#[derive(Clone)]
pub struct WorkerPool(Arc<Owner>);

/// What its threads do not hold, so that they end when nobody gives them jobs any more.
struct Owner(Arc<Crew>);

struct Crew {
    name: String,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    running: usize,
    closed: bool,
}

impl WorkerPool {
    /// Starts `threads` threads, at least one, called `name`.
    ///
    /// # Errors
    /// If the system has no thread left.
    pub fn new(name: &str, threads: usize) -> io::Result<Self> {
        let pool = Self(Arc::new(Owner(Arc::new(Crew {
            name: name.to_owned(),
            state: Mutex::default(),
            changed: Condvar::new(),
        }))));
        for _ in 0..threads.max(1) {
            start(pool.crew())?;
        }
        Ok(pool)
    }

    /// Gives a job to the first thread that is free; `false`, and the job is dropped, if the pool is closed.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.crew().lock();
        if state.closed {
            // The job may call back when it is dropped.
            drop(state);
            return false;
        }
        state.jobs.push_back(Box::new(job));
        drop(state);
        self.crew().changed.notify_one();
        true
    }

    /// Takes no more jobs, drops those that have not begun, and waits for the running ones; how many go on.
    pub fn close(&self, deadline: Duration) -> usize {
        let crew = self.crew();
        crew.refuse();
        let waited = crew
            .changed
            .wait_timeout_while(crew.lock(), deadline, |state| state.running > 0);
        waited.unwrap_or_else(PoisonError::into_inner).0.running
    }

    fn crew(&self) -> &Arc<Crew> {
        &self.0.0
    }
}

impl fmt::Debug for WorkerPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WorkerPool")
            .field(&self.crew().name)
            .finish()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.refuse();
    }
}

impl Crew {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No job runs under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes no more jobs and drops those that have not begun.
    fn refuse(&self) {
        let mut state = self.lock();
        state.closed = true;
        let dropped = std::mem::take(&mut state.jobs);
        drop(state);
        self.changed.notify_all();
        // A job that is dropped may call back.
        drop(dropped);
    }
}

fn start(crew: &Arc<Crew>) -> io::Result<()> {
    crew.lock().threads += 1;
    let mut member = Member {
        crew: Arc::clone(crew),
        has_begun: false,
    };
    thread::Builder::new()
        .name(crew.name.clone())
        .spawn(move || {
            member.has_begun = true;
            while let Some(job) = next(&member.crew) {
                let running = Running(&member.crew);
                job();
                drop(running);
            }
        })
        .map(drop)
}

fn next(crew: &Crew) -> Option<Job> {
    let waited = crew
        .changed
        .wait_while(crew.lock(), |state| state.jobs.is_empty() && !state.closed);
    let mut state = waited.unwrap_or_else(PoisonError::into_inner);
    let job = state.jobs.pop_front()?;
    state.running += 1;
    Some(job)
}

/// A job that runs.
struct Running<'a>(&'a Crew);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.running -= 1;
        if state.closed {
            self.0.changed.notify_all();
        }
    }
}

/// A thread of the crew, or one that could not be started.
struct Member {
    crew: Arc<Crew>,
    has_begun: bool,
}

impl Drop for Member {
    fn drop(&mut self) {
        let crew = &self.crew;
        let mut state = crew.lock();
        state.threads -= 1;
        if state.closed {
            return;
        }
        drop(state);
        // While the pool is open, a thread ends by the panic of its job only.
        let is_replaced = self.has_begun && start(crew).is_ok();
        if !is_replaced && crew.lock().threads == 0 {
            crew.refuse();
        }
    }
}
