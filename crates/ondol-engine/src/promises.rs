//! Objects that were brought ahead of need and that nobody holds yet. They are kept for a few seconds, as far as there is room:
//! time may cancel a promise, and so may a later one.

use std::collections::VecDeque;
use std::io;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use ondol_tiering::{Leased, Prefetch, PrefetchReport};
use parking_lot::Mutex;

/// How long what was brought is kept.
const KEPT: Duration = Duration::from_secs(5);
/// How often prefetches that are under way are looked at.
const LOOK: Duration = Duration::from_millis(20);
/// Promises that may wait to be taken over; those beyond are not kept.
const WAITING: usize = 1024;

/// Keeps promises, on a thread of its own.
#[derive(Debug)]
pub(crate) struct Promises {
    room: Mutex<Option<(Sender<Promise>, JoinHandle<()>)>>,
}

#[derive(Debug)]
enum Promise {
    Running(Prefetch),
    Brought(PrefetchReport),
}

/// What is kept now.
#[derive(Debug)]
struct Kept {
    limit: u64,
    bytes: u64,
    running: Vec<Prefetch>,
    /// What was brought, the oldest first.
    held: VecDeque<Held>,
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
        let (sender, receiver) = bounded(WAITING);
        let kept = Kept {
            limit,
            bytes: 0,
            running: Vec::new(),
            held: VecDeque::new(),
        };
        let thread = thread::Builder::new()
            .name("ondol-promises".to_owned())
            .spawn(move || kept.run(&receiver))?;
        Ok(Self {
            room: Mutex::new(Some((sender, thread))),
        })
    }

    /// Keeps what this prefetch brings.
    pub(crate) fn make(&self, prefetch: Prefetch) {
        self.send(Promise::Running(prefetch));
    }

    /// Keeps what was brought.
    pub(crate) fn keep(&self, report: PrefetchReport) {
        self.send(Promise::Brought(report));
    }

    fn send(&self, promise: Promise) {
        if let Some((sender, _)) = &*self.room.lock() {
            // Without room it is brought all the same, and not kept.
            let _ = sender.try_send(promise);
        }
    }

    /// Cancels every promise.
    pub(crate) fn stop(&self) {
        let Some((sender, thread)) = self.room.lock().take() else {
            return;
        };
        drop(sender);
        if thread.join().is_err() {
            tracing::error!("the thread that keeps promoted objects has panicked");
        }
    }
}

impl Kept {
    fn run(mut self, promises: &Receiver<Promise>) {
        loop {
            let next = if self.running.is_empty() {
                self.held.front().map(|held| held.until)
            } else {
                Some(Instant::now() + LOOK)
            };
            let promise = match next {
                Some(next) => promises.recv_deadline(next),
                None => promises.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match promise {
                Ok(Promise::Running(prefetch)) => self.running.push(prefetch),
                Ok(Promise::Brought(report)) => self.hold(report),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.look();
        }
    }

    fn look(&mut self) {
        let now = Instant::now();
        let (done, running) = std::mem::take(&mut self.running)
            .into_iter()
            .partition(Prefetch::is_done);
        self.running = running;
        for prefetch in done {
            self.hold(prefetch.wait(now));
        }
        while self.held.front().is_some_and(|held| held.until <= now) {
            self.cancel_oldest();
        }
    }

    fn hold(&mut self, report: PrefetchReport) {
        let mut bytes = 0;
        let leases: Vec<_> = report
            .leases
            .into_iter()
            .flatten()
            .flatten()
            .take_while(|lease| {
                bytes += lease.as_ref().len() as u64;
                bytes <= self.limit
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
        while self.bytes > self.limit {
            self.cancel_oldest();
        }
    }

    fn cancel_oldest(&mut self) {
        if let Some(held) = self.held.pop_front() {
            self.bytes -= held.bytes;
        }
    }
}
