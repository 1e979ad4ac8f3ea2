//! Drives a connector as the bridge does: completions are drained when the descriptor signals.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use ondol_plugin::l2::{Completion, EventNotifier, FutureId, NativeConnector, PageMut};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::apart::{Complaint, Outcome, Whereabouts, complaint};
use crate::l2::DropCounter;
use crate::l2::samples::Sample;

/// A connector at work, with a thread that drains it.
pub(super) struct Driver {
    shared: Arc<Shared>,
    stop: Arc<EventNotifier>,
    drainer: Option<thread::JoinHandle<()>>,
    at: Whereabouts,
    patience: Duration,
}

struct Shared {
    connector: Box<dyn NativeConnector>,
    /// Held to read while a request is made and written down, so that its completion is not drained in between.
    gate: RwLock<()>,
    table: Mutex<Table>,
    changed: Condvar,
    /// From then on a descriptor may be dead.
    is_closing: AtomicBool,
}

#[derive(Default)]
struct Table {
    pending: HashSet<u64>,
    completed: HashMap<u64, Completion>,
    fault: Option<Complaint>,
    drainer_is_gone: bool,
}

impl Driver {
    pub(super) fn new(
        connector: Box<dyn NativeConnector>,
        at: &Whereabouts,
        patience: Duration,
    ) -> Outcome<Self> {
        let notifier = EventNotifier::new();
        let stop = Arc::new(notifier.or_else(|error| complaint("testkit", error.to_string()))?);
        let shared = Arc::new(Shared {
            connector,
            gate: RwLock::new(()),
            table: Mutex::default(),
            changed: Condvar::new(),
            is_closing: AtomicBool::new(false),
        });
        let drainer = thread::spawn({
            let (shared, stop) = (Arc::clone(&shared), Arc::clone(&stop));
            move || {
                let _gone = DrainerIsGone(&shared);
                shared.poll(&stop);
            }
        });
        Ok(Self {
            shared,
            stop,
            drainer: Some(drainer),
            at: at.clone(),
            patience,
        })
    }

    /// The connector, which is about to be called so.
    pub(super) fn connector(&self, place: &'static str) -> &dyn NativeConnector {
        self.at.set(place);
        &*self.shared.connector
    }

    pub(super) fn try_submit(
        &self,
        place: &'static str,
        submit: impl FnOnce(&dyn NativeConnector) -> anyhow::Result<FutureId>,
    ) -> Outcome<anyhow::Result<FutureId>> {
        self.at.set(place);
        let gate = &self.shared.gate;
        let _gate = gate.read().unwrap_or_else(PoisonError::into_inner);
        let future = match submit(&*self.shared.connector) {
            Ok(future) => future,
            Err(error) => return Ok(Err(error)),
        };
        if !self.shared.table().pending.insert(future.0) {
            return complaint(
                place,
                format!(
                    "gave the number {} to two requests that are pending; expected one of its own",
                    future.0
                ),
            );
        }
        Ok(Ok(future))
    }

    fn submit(
        &self,
        place: &'static str,
        submit: impl FnOnce(&dyn NativeConnector) -> anyhow::Result<FutureId>,
    ) -> Outcome<FutureId> {
        self.try_submit(place, submit)?
            .or_else(|error| complaint(place, format!("was refused: {error:#}")))
    }

    pub(super) fn submit_set(
        &self,
        samples: &[Sample],
        counter: &DropCounter,
    ) -> Outcome<FutureId> {
        let objects = samples
            .iter()
            .map(|sample| counter.object_with_trailer(sample.body.clone(), sample.trailer.clone()));
        let objects = objects.collect();
        self.submit("submit_batch_set", |connector| {
            connector.submit_batch_set(&names(samples), objects)
        })
    }

    pub(super) fn submit_get(&self, samples: &[Sample], pages: Vec<PageMut>) -> Outcome<FutureId> {
        self.submit("submit_batch_get", |connector| {
            connector.submit_batch_get(&names(samples), pages)
        })
    }

    pub(super) fn submit_exists(&self, samples: &[Sample]) -> Outcome<FutureId> {
        self.submit("submit_batch_exists", |connector| {
            connector.submit_batch_exists(&names(samples))
        })
    }

    /// Waits for a completion, which speaks of so many keys if it speaks of each.
    pub(super) fn completed(&self, future: FutureId, keys: usize) -> Outcome<Completion> {
        let completion = self.wait(future)?;
        let lens = [
            completion.per_key.as_ref().map(Vec::len),
            completion.lengths.as_ref().map(Vec::len),
        ];
        if lens.into_iter().flatten().any(|len| len != keys) {
            return complaint(
                "drain_completions",
                format!("spoke of {lens:?} keys; expected {keys}, one for each key of the request"),
            );
        }
        if completion.pages.len() > keys {
            return complaint(
                "drain_completions",
                format!(
                    "gave {} pages; expected at most {keys}",
                    completion.pages.len()
                ),
            );
        }
        if !completion.ok && completion.error.is_empty() {
            return complaint("drain_completions", "reported a failure without saying why");
        }
        Ok(completion)
    }

    /// Stores samples and expects that this succeeds.
    pub(super) fn set(&self, samples: &[Sample]) -> Outcome<()> {
        let future = self.submit_set(samples, &DropCounter::new())?;
        let done = self.completed(future, samples.len())?;
        match done.ok {
            true => Ok(()),
            false => complaint("submit_batch_set", format!("failed: {}", done.error)),
        }
    }

    /// Which of the samples exist.
    pub(super) fn exists(&self, samples: &[Sample]) -> Outcome<Vec<bool>> {
        let future = self.submit_exists(samples)?;
        let done = self.completed(future, samples.len())?;
        if !done.ok {
            return complaint("submit_batch_exists", format!("failed: {}", done.error));
        }
        let exist = done.per_key.unwrap_or_else(|| vec![true; samples.len()]);
        for (index, length) in done.lengths.unwrap_or_default().into_iter().enumerate() {
            let right = samples[index].stored_len() as u64;
            if exist[index] && length != right {
                return complaint(
                    "submit_batch_exists",
                    format!(
                        "said that {} has {length} bytes; expected {right}, body and trailer",
                        samples[index].key
                    ),
                );
            }
        }
        Ok(exist)
    }

    /// What became of each sample that was to be got: the page and its length, or `None` if it was not found.
    pub(super) fn get(&self, samples: &[Sample]) -> Outcome<Vec<Option<(PageMut, u64)>>> {
        let counter = DropCounter::new();
        let pages = samples
            .iter()
            .map(|sample| counter.page(sample.body.len(), sample.trailer.len()));
        self.get_into(samples, pages.collect())
    }

    /// The same with these pages.
    pub(super) fn get_into(
        &self,
        samples: &[Sample],
        pages: Vec<PageMut>,
    ) -> Outcome<Vec<Option<(PageMut, u64)>>> {
        let future = self.submit_get(samples, pages)?;
        let done = self.completed(future, samples.len())?;
        got(done, samples.len())
    }

    /// Expects that all samples are there, whole.
    pub(super) fn expect_all(&self, samples: &[Sample]) -> Outcome<()> {
        let exist = self.exists(samples)?;
        if let Some(index) = exist.iter().position(|exists| !exists) {
            return complaint(
                "submit_batch_exists",
                format!("did not find {}, which was set", samples[index].key),
            );
        }
        for (got, sample) in self.get(samples)?.iter().zip(samples) {
            expect_got(got.as_ref(), sample)?;
        }
        Ok(())
    }

    /// Deletes samples; which of them are gone, or `None` if the connector cannot delete.
    pub(super) fn delete(&self, samples: &[Sample]) -> Outcome<Option<Vec<bool>>> {
        self.at.set("submit_batch_delete");
        let mut can_delete = true;
        let submitted = self.try_submit("submit_batch_delete", |connector| {
            let future = connector.submit_batch_delete(&names(samples))?;
            can_delete = future.is_some();
            future.ok_or_else(|| anyhow::anyhow!("it cannot"))
        })?;
        let future = match submitted {
            Ok(future) => future,
            Err(_) if !can_delete => return Ok(None),
            Err(error) => {
                return complaint("submit_batch_delete", format!("was refused: {error:#}"));
            }
        };
        let done = self.completed(future, samples.len())?;
        if !done.ok {
            return complaint("submit_batch_delete", format!("failed: {}", done.error));
        }
        Ok(Some(
            done.per_key.unwrap_or_else(|| vec![true; samples.len()]),
        ))
    }

    pub(super) fn close(&self) {
        self.shared.is_closing.store(true, Ordering::Release);
        self.connector("close").close();
    }

    /// Drains what is there, signal or not; how many requests are pending, and how many completed well.
    pub(super) fn sweep(&self) -> Outcome<(usize, usize)> {
        let gate = &self.shared.gate;
        let _gate = gate.write().unwrap_or_else(PoisonError::into_inner);
        self.shared.drain();
        let mut table = self.shared.table();
        if let Some(fault) = table.fault.take() {
            return Err(fault);
        }
        let completed = std::mem::take(&mut table.completed);
        let did_something = |done: &&Completion| {
            done.ok
                && done
                    .per_key
                    .as_ref()
                    .is_none_or(|keys| keys.contains(&true))
        };
        let well = completed.values().filter(did_something).count();
        Ok((table.pending.len(), well))
    }

    /// Waits until every request has completed, or the patience ends; how many are pending then.
    pub(super) fn settle(&self) -> usize {
        let waited =
            self.shared
                .changed
                .wait_timeout_while(self.shared.table(), self.patience, |table| {
                    !table.pending.is_empty() && !table.drainer_is_gone
                });
        waited
            .unwrap_or_else(PoisonError::into_inner)
            .0
            .pending
            .len()
    }

    fn wait(&self, future: FutureId) -> Outcome<Completion> {
        let waited =
            self.shared
                .changed
                .wait_timeout_while(self.shared.table(), self.patience, |table| {
                    !table.completed.contains_key(&future.0)
                        && table.fault.is_none()
                        && !table.drainer_is_gone
                });
        let (mut table, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if let Some(fault) = table.fault.take() {
            return Err(fault);
        }
        if let Some(completion) = table.completed.remove(&future.0) {
            return Ok(completion);
        }
        if table.drainer_is_gone {
            return complaint("drain_completions", "panicked");
        }
        drop(table);
        let gate = &self.shared.gate;
        let _gate = gate.write().unwrap_or_else(PoisonError::into_inner);
        self.shared.drain();
        match self.shared.table().completed.contains_key(&future.0) {
            true => complaint(
                "drain_completions",
                "has a completion, but no signal came after it was there; publish it first, then signal",
            ),
            false => complaint(
                "drain_completions",
                format!(
                    "had no completion within {:?}; every request must complete",
                    self.patience
                ),
            ),
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.stop.notify();
        if let Some(drainer) = self.drainer.take() {
            // What went wrong there was reported where somebody waited.
            let _ = drainer.join();
        }
    }
}

struct DrainerIsGone<'a>(&'a Shared);

impl Drop for DrainerIsGone<'_> {
    fn drop(&mut self) {
        self.0.table().drainer_is_gone = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accuse(&self, place: &str, what: String) {
        let place = place.to_owned();
        self.table().fault.get_or_insert(Complaint { place, what });
        self.changed.notify_all();
    }

    fn poll(&self, stop: &EventNotifier) {
        let event_fd = self.connector.event_fd();
        let stop = stop.as_fd();
        loop {
            let mut polled = [event_fd, stop].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            if poll(&mut polled, None).is_err() {
                continue;
            }
            let [events, stopped] = polled.map(|fd| fd.revents());
            if !stopped.is_empty() {
                return;
            }
            if !events.contains(PollFlags::IN) {
                if !self.is_closing.load(Ordering::Acquire) {
                    self.accuse("event_fd", format!("is dead ({events:?})"));
                }
                return;
            }
            // Whoever is submitting writes the request down first.
            let _gate = self.gate.write().unwrap_or_else(PoisonError::into_inner);
            self.drain();
        }
    }

    fn drain(&self) {
        for completion in self.connector.drain_completions() {
            let future = completion.future;
            let mut table = self.table();
            if table.pending.remove(&future) {
                table.completed.insert(future, completion);
                self.changed.notify_all();
            } else {
                drop(table);
                self.accuse(
                    "drain_completions",
                    format!(
                        "completed request {future}, which is not pending; each completes once"
                    ),
                );
            }
        }
    }
}

/// Whether the descriptor is readable now.
pub(super) fn is_readable(connector: &dyn NativeConnector) -> bool {
    let fd = connector.event_fd();
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// The canonical strings of their keys.
pub(super) fn names(samples: &[Sample]) -> Vec<String> {
    samples
        .iter()
        .map(|sample| sample.key.to_string())
        .collect()
}

/// What a get says of each key.
pub(super) fn got(done: Completion, keys: usize) -> Outcome<Vec<Option<(PageMut, u64)>>> {
    if done.pages.len() != keys {
        return complaint(
            "drain_completions",
            format!(
                "gave {} of {keys} pages of a get back; expected all, found or not",
                done.pages.len()
            ),
        );
    }
    let found = done.per_key.unwrap_or_else(|| vec![done.ok; keys]);
    let page = |(index, page): (usize, PageMut)| {
        let length = match &done.lengths {
            Some(lengths) => lengths[index],
            None => page.room() as u64,
        };
        found[index].then_some((page, length))
    };
    Ok(done.pages.into_iter().enumerate().map(page).collect())
}

/// Expects that a sample was got, whole and unchanged.
pub(super) fn expect_got(got: Option<&(PageMut, u64)>, sample: &Sample) -> Outcome<()> {
    let key = &sample.key;
    let Some((page, length)) = got else {
        return complaint(
            "submit_batch_get",
            format!("did not find {key}, which was set"),
        );
    };
    let right = sample.stored();
    if *length != right.len() as u64 {
        return complaint(
            "submit_batch_get",
            format!(
                "said that {key} has {length} bytes; expected {}, body and trailer",
                right.len()
            ),
        );
    }
    let (body, trailer) = page.parts();
    if [body, trailer].concat()[..right.len()] != right {
        return complaint(
            "submit_batch_get",
            format!("gave other bytes for {key} than were set"),
        );
    }
    Ok(())
}
