//! The two threads of a bridge: one drains the connector, one watches the clock. The second never calls the connector, so that tasks
//! end in time even if the first is stuck in it.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ondol_plugin::l2::{CloseReport, Completion, FutureId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Shared;

/// A descriptor that was readable so often for nothing is looked at only now and then.
const FALSE_SIGNALS: u32 = 16;
const PAUSE: Duration = Duration::from_millis(10);

/// How often a connector without a descriptor is asked for what it still owes.
const ASK_ANYWAY: Duration = Duration::from_millis(100);

/// How long threads may take to see that they are to end.
const THREAD_GRACE: Duration = Duration::from_secs(1);

/// Starts both.
pub(super) fn start(shared: &Arc<Shared>) -> io::Result<()> {
    spawn(shared, "drain", Shared::drain_until_stopped)?;
    spawn(shared, "watch", Shared::watch_until_stopped)
}

fn spawn(shared: &Arc<Shared>, role: &str, run: fn(&Shared)) -> io::Result<()> {
    let running = Running::new(Arc::clone(shared));
    let thread = thread::Builder::new()
        .name(format!("{role} {}", shared.name))
        .spawn(move || run(&running.0))?;
    shared.handles.lock().push(thread);
    Ok(())
}

/// A thread that runs. When it ends by a panic, that was the connector's.
struct Running(Arc<Shared>);

impl Running {
    fn new(shared: Arc<Shared>) -> Self {
        shared.requests.lock().threads += 1;
        Self(shared)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.fail("drain_completions panicked");
        }
        self.0.requests.lock().threads -= 1;
        self.0.changed.notify_all();
    }
}

/// Says that the connector's `close` has ended, also if it panicked.
struct Closed<'a>(&'a Shared);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.requests.lock().has_closed = true;
        self.0.changed.notify_all();
    }
}

/// What the draining thread was woken by.
#[derive(Default)]
struct Woken {
    is_ready: bool,
    is_dead: bool,
}

impl Shared {
    fn drain_until_stopped(&self) {
        let mut is_alive = true;
        let mut false_signals = 0;
        loop {
            let pause = match (is_alive, false_signals > FALSE_SIGNALS) {
                (true, true) => Some(PAUSE),
                (true, false) => None,
                (false, _) => (self.requests.lock().overdue() > 0).then_some(ASK_ANYWAY),
            };
            let woken = self.wait(is_alive && pause.is_none(), pause);
            if self.requests.lock().is_stopping {
                return;
            }
            let drained = self.drain();
            if woken.is_dead && is_alive {
                is_alive = false;
                self.fail("its event descriptor is dead");
            }
            if drained > 0 {
                false_signals = 0;
            } else if woken.is_ready || pause.is_some() {
                false_signals += 1;
                if false_signals == FALSE_SIGNALS {
                    let mut record = self.record.lock();
                    record.false_signals += 1;
                    let what =
                        "its event descriptor stays readable though nothing is there to be drained";
                    record.fault(&self.name, what.to_owned());
                }
            }
        }
    }

    /// Waits for the connector, if it is to be watched, or until somebody wants this thread to look.
    fn wait(&self, watch: bool, pause: Option<Duration>) -> Woken {
        let connector = self.connector.event_fd();
        let mut fds = [
            PollFd::new(&self.wake, PollFlags::IN),
            PollFd::new(&connector, PollFlags::IN),
        ];
        let count = if watch { 2 } else { 1 };
        let timeout = pause.and_then(|pause| Timespec::try_from(pause).ok());
        if poll(&mut fds[..count], timeout.as_ref()).is_err() {
            // Interrupted; whoever called looks again.
            return Woken::default();
        }
        let events = if watch {
            fds[1].revents()
        } else {
            PollFlags::empty()
        };
        self.wake.consume();
        let dead = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
        let is_ready = events.contains(PollFlags::IN);
        Woken {
            is_ready,
            is_dead: !is_ready && events.intersects(dead),
        }
    }

    /// Takes what the connector has completed; how many.
    fn drain(&self) -> usize {
        self.requests.lock().draining_since = Some(Instant::now());
        let completions = self.connector.drain_completions();
        let count = completions.len();
        let mut requests = self.requests.lock();
        let delivered = requests.deliver(completions);
        requests.draining_since = None;
        drop(requests);
        for (pending, completion) in delivered.matched {
            self.finish(pending, completion);
        }
        self.nobody_waits_for(delivered.unclaimed);
        self.requests.lock().drains += 1;
        self.changed.notify_all();
        count
    }

    /// Counts completions without a request. Their pages, if they have any, were given back and so are free.
    pub(super) fn nobody_waits_for(&self, unclaimed: Vec<Completion>) {
        for completion in unclaimed {
            let what = match completion.error.is_empty() {
                true => format!(
                    "it completed request {}, which is not pending",
                    completion.future
                ),
                false => completion.error,
            };
            let mut record = self.record.lock();
            record.unknown += 1;
            record.fault(&self.name, what);
        }
    }

    /// Ends all requests whose time is over, as they come to it.
    fn watch_until_stopped(&self) {
        let timeout = self.options.task_timeout;
        let reason = format!("the connector did not answer within {timeout:?}");
        let mut requests = self.requests.lock();
        while !requests.is_stopping {
            let now = Instant::now();
            let expired = requests.expire_overdue(now, &self.locks, &reason);
            if expired > 0 {
                let mut record = self.record.lock();
                record.timed_out += expired;
                record.fault(&self.name, reason.clone());
                drop(record);
                self.changed.notify_all();
                // Perhaps only the signal was lost; then at least the memory comes back.
                self.wake.notify();
            }
            // A request that is submitted while this thread sleeps has its time still before it.
            let next = requests.next_deadline().unwrap_or(now + timeout);
            self.closing.wait_until(&mut requests, next);
        }
    }

    /// Nobody waits any longer for a delete.
    pub(super) fn delete_is_overdue(&self, future: FutureId) {
        let is_overdue = self.requests.lock().expire(future, &self.locks, "too late");
        if is_overdue {
            let mut record = self.record.lock();
            record.timed_out += 1;
            let what = format!(
                "it did not answer a delete within {:?}",
                self.options.delete_timeout
            );
            record.fault(&self.name, what);
        }
    }

    /// The connector is of no use any more.
    fn fail(&self, reason: &str) {
        tracing::error!(backend = self.name, "connector has failed: {reason}");
        let mut requests = self.requests.lock();
        requests.failed.get_or_insert_with(|| reason.to_owned());
        requests.draining_since = None;
        requests.expire_all(&self.locks, reason);
        drop(requests);
        self.changed.notify_all();
    }

    pub(super) fn stop_threads(&self) {
        self.requests.lock().is_stopping = true;
        self.closing.notify_all();
        self.wake.notify();
    }

    /// Gives requests half the time to end by themselves, then closes the connector, whose `close` may take the rest.
    pub(super) fn close(self: &Arc<Self>, end: Instant) -> CloseReport {
        let mut requests = self.requests.lock();
        if !std::mem::replace(&mut requests.is_closed, true) {
            let now = Instant::now();
            let half = now + end.saturating_duration_since(now) / 2;
            while requests.waiting() > 0 && requests.failed.is_none() {
                if self.changed.wait_until(&mut requests, half).timed_out() {
                    break;
                }
            }
            drop(requests);
            self.close_connector(end);
            requests = self.requests.lock();
            requests.expire_all(&self.locks, "closed before the connector had answered");
            drop(requests);
            self.stop_threads();
            requests = self.requests.lock();
            let end = end.max(Instant::now() + THREAD_GRACE);
            while requests.threads > 0 {
                if self.changed.wait_until(&mut requests, end).timed_out() {
                    break;
                }
            }
            let have_ended = requests.threads == 0;
            drop(requests);
            if have_ended {
                // So that nobody else has the connector when this bridge is dropped.
                for thread in self.handles.lock().drain(..) {
                    let _ = thread.join();
                }
            }
            requests = self.requests.lock();
        }
        CloseReport {
            abandoned: requests.holding_memory(),
        }
    }

    /// Calls the connector's `close` where it may hang, and drains what it completes.
    fn close_connector(self: &Arc<Self>, end: Instant) {
        let shared = Arc::clone(self);
        let closer = move || {
            let _closed = Closed(&shared);
            shared.connector.close();
        };
        let name = format!("close {}", self.name);
        let closer = match thread::Builder::new().name(name).spawn(closer) {
            Ok(closer) => closer,
            Err(error) => {
                tracing::error!(backend = self.name, %error, "no thread to close the connector");
                return;
            }
        };
        let mut requests = self.requests.lock();
        while !requests.has_closed {
            if self.changed.wait_until(&mut requests, end).timed_out() {
                return;
            }
        }
        // It is at its end, or panicked, which is a way to close.
        drop(requests);
        let _ = closer.join();
        let mut requests = self.requests.lock();
        // One whole drain after `close` has returned finds all that the connector will ever complete.
        let drains = requests.drains + 1 + u64::from(requests.draining_since.is_some());
        self.wake.notify();
        while !requests.is_empty() && requests.drains < drains && requests.failed.is_none() {
            if self.changed.wait_until(&mut requests, end).timed_out() {
                return;
            }
        }
    }
}
