//! Objects that were brought ahead of need and that nobody holds yet. They are kept for a few seconds, as far as there is room:
//! time may cancel a promise, and so may a later one, or somebody who needs the room.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ondol_tiering::{Leased, Prefetch, PrefetchReport};
use parking_lot::{Condvar, Mutex};

/// How long what was brought is kept.
const KEPT: Duration = Duration::from_secs(5);
/// How often prefetches that are under way are looked at.
const LOOK: Duration = Duration::from_millis(20);
/// Prefetches under way that are followed; what those beyond bring is not kept.
const FOLLOWED: usize = 1024;

/// Keeps promises; a thread of its own ends them in time.
#[derive(Debug)]
pub(crate) struct Promises {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    limit: u64,
    kept: Mutex<Kept>,
    changed: Condvar,
}

/// What is promised now.
#[derive(Debug, Default)]
struct Kept {
    running: Vec<Prefetch>,
    /// What was brought, the oldest first.
    held: VecDeque<Held>,
    /// Bytes of that.
    bytes: u64,
    closed: bool,
}

#[derive(Debug)]
struct Held {
    until: Instant,
    bytes: u64,
    _leases: Vec<Leased>,
}

impl Promises {
    /// Keeps at most so many bytes of objects.
    pub(crate) fn start(limit: u64) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            limit,
            kept: Mutex::default(),
            changed: Condvar::new(),
        });
        let keeper = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("ondol-promises".to_owned())
            .spawn(move || keeper.run())?;
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Keeps what this prefetch brings.
    pub(crate) fn make(&self, prefetch: Prefetch) {
        let mut kept = self.shared.kept.lock();
        // Else it is brought all the same, and not kept.
        if !kept.closed && kept.running.len() < FOLLOWED {
            kept.running.push(prefetch);
            self.shared.changed.notify_all();
        }
    }

    /// Keeps what was brought.
    pub(crate) fn keep(&self, report: PrefetchReport) {
        let mut kept = self.shared.kept.lock();
        if !kept.closed {
            kept.hold(report, self.shared.limit);
            self.shared.changed.notify_all();
        }
    }

    /// Cancels what is promised now, as somebody needs the room; whether there was anything. What is on its way comes all the
    /// same.
    pub(crate) fn cancel(&self) -> bool {
        self.shared.cancel(false)
    }

    /// Cancels every promise, for good.
    pub(crate) fn stop(&self) {
        self.shared.cancel(true);
        let thread = self.thread.lock().take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that keeps promoted objects has panicked");
        }
    }
}

impl Shared {
    fn cancel(&self, closed: bool) -> bool {
        let mut kept = self.kept.lock();
        let closed = closed || kept.closed;
        let cancelled = std::mem::replace(
            &mut *kept,
            Kept {
                closed,
                ..Kept::default()
            },
        );
        drop(kept);
        self.changed.notify_all();
        // Leases end without the lock.
        !cancelled.held.is_empty() || !cancelled.running.is_empty()
    }

    fn run(&self) {
        let mut kept = self.kept.lock();
        while !kept.closed {
            let next = if kept.running.is_empty() {
                kept.held.front().map(|held| held.until)
            } else {
                Some(Instant::now() + LOOK)
            };
            match next {
                Some(next) => {
                    self.changed.wait_until(&mut kept, next);
                }
                None => self.changed.wait(&mut kept),
            }
            kept.look(self.limit);
        }
    }
}

impl Kept {
    fn look(&mut self, limit: u64) {
        let now = Instant::now();
        let (done, running) = std::mem::take(&mut self.running)
            .into_iter()
            .partition(Prefetch::is_done);
        self.running = running;
        for prefetch in done {
            self.hold(prefetch.wait(now), limit);
        }
        while self.held.front().is_some_and(|held| held.until <= now) {
            self.cancel_oldest();
        }
    }

    fn hold(&mut self, report: PrefetchReport, limit: u64) {
        let mut bytes = 0;
        let leases: Vec<_> = report
            .leases
            .into_iter()
            .flatten()
            .flatten()
            .take_while(|lease| {
                bytes += lease.as_ref().len() as u64;
                bytes <= limit
            })
            .collect();
        let bytes = leases.iter().map(|lease| lease.as_ref().len() as u64).sum();
        if leases.is_empty() {
            return;
        }
        self.bytes += bytes;
        self.held.push_back(Held {
            until: Instant::now() + KEPT,
            bytes,
            _leases: leases,
        });
        while self.bytes > limit {
            self.cancel_oldest();
        }
    }

    fn cancel_oldest(&mut self) {
        if let Some(held) = self.held.pop_front() {
            self.bytes -= held.bytes;
        }
    }
}
