//! Requests that a connector has taken and not completed.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use ondol_plugin::l2::{
    Bitmap, Completion, FutureId, LoadResult, LookupResult, ObjectKey, PageMut, StoreResult, Ticket,
};

use super::inventory::Mark;
use super::key_locks::{KeyLocks, LockedKeys};

/// The most completions that are kept for submits that have not returned.
const MAX_EARLY: usize = 1024;

/// A request, with the duty to answer for it as long as it is not overdue.
#[derive(Debug)]
pub(super) enum Request {
    Store(Store),
    Lookup(Lookup),
    Load(Load),
    Delete(Delete),
}

#[derive(Debug)]
pub(super) struct Store {
    pub(super) ticket: Option<Ticket<StoreResult>>,
    /// Each object with its stored length.
    pub(super) items: Vec<(ObjectKey, u64)>,
}

#[derive(Debug)]
pub(super) struct Lookup {
    pub(super) ticket: Option<Ticket<LookupResult>>,
    pub(super) keys: LockedKeys,
    /// When it was submitted.
    pub(super) mark: Mark,
}

#[derive(Debug)]
pub(super) struct Load {
    pub(super) ticket: Option<Ticket<LoadResult>>,
    pub(super) keys: Vec<ObjectKey>,
    pub(super) marks: Vec<PageMark>,
}

#[derive(Debug)]
pub(super) struct Delete {
    answer: Option<SyncSender<DeleteOutcome>>,
    /// Each key with its place in the batch.
    pub(super) keys: Vec<(usize, ObjectKey)>,
    /// When it was submitted.
    pub(super) mark: Mark,
}

/// The places of the keys that are gone.
type DeleteOutcome = anyhow::Result<Vec<usize>>;

/// What tells a page from others, so that a connector cannot answer with the page of another request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageMark {
    address: usize,
    body: usize,
    trailer: usize,
}

impl PageMark {
    pub(super) fn of(page: &PageMut) -> Self {
        let (body, trailer) = page.parts();
        Self {
            address: body.as_ptr().addr(),
            body: body.len(),
            trailer: trailer.len(),
        }
    }

    pub(super) fn room(self) -> u64 {
        (self.body + self.trailer) as u64
    }
}

/// Where the result of a delete comes.
#[derive(Debug)]
pub(super) struct DeleteAnswer(Receiver<DeleteOutcome>);

impl DeleteAnswer {
    pub(super) fn new(keys: Vec<(usize, ObjectKey)>, mark: Mark) -> (Delete, Self) {
        let (answer, receiver) = sync_channel(1);
        let delete = Delete {
            answer: Some(answer),
            keys,
            mark,
        };
        (delete, Self(receiver))
    }

    /// `None` if it does not come in time.
    pub(super) fn wait(&self, timeout: Duration) -> Option<DeleteOutcome> {
        match self.0.recv_timeout(timeout) {
            Ok(outcome) => Some(outcome),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(anyhow!("the delete was lost"))),
        }
    }
}

impl Delete {
    pub(super) fn answer(&mut self, outcome: DeleteOutcome) {
        if let Some(answer) = self.answer.take() {
            // Nobody listens if the delete took too long.
            let _ = answer.try_send(outcome);
        }
    }
}

impl Request {
    /// Answers for the request: it failed, and what its completion says later makes no difference to its task.
    pub(super) fn expire(&mut self, locks: &KeyLocks, reason: &str) {
        match self {
            Self::Store(store) => {
                if let Some(ticket) = store.ticket.take() {
                    ticket.complete(StoreResult::retryable(reason));
                }
            }
            Self::Lookup(lookup) => {
                if let Some(ticket) = lookup.ticket.take() {
                    lookup.keys.release(locks);
                    let keys = lookup.keys.keys.len();
                    ticket.complete(LookupResult::failed(keys, reason));
                }
            }
            Self::Load(load) => {
                if let Some(ticket) = load.ticket.take() {
                    ticket.complete(LoadResult::failed(load.keys.len(), reason));
                }
            }
            // Its keys stay claimed: the connector may delete them at any time.
            Self::Delete(delete) => delete.answer(Err(anyhow!("{reason}"))),
        }
    }

    fn touches_memory(&self) -> bool {
        matches!(self, Self::Store(_) | Self::Load(_))
    }
}

impl LockedKeys {
    fn release(&mut self, locks: &KeyLocks) {
        let none = Bitmap::new(self.keys.len());
        self.unlock_but(&none, locks);
        self.locked = none;
    }
}

/// A request that waits for its completion.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) request: Request,
    submitted: Instant,
    is_overdue: bool,
    serial: u64,
}

impl Pending {
    pub(super) fn new(request: Request) -> Self {
        Self {
            request,
            submitted: Instant::now(),
            is_overdue: false,
            serial: 0,
        }
    }

    pub(super) fn is_overdue(&self) -> bool {
        self.is_overdue
    }
}

/// The table of pending requests, and the state of the bridge's threads.
#[derive(Debug, Default)]
pub(super) struct Requests {
    pending: HashMap<FutureId, Pending>,
    /// In order, since all have the same time. Those that have ended stay until theirs is over.
    deadlines: VecDeque<(Instant, FutureId, u64)>,
    /// Completions for numbers that a submit that has not returned may be given.
    early: Vec<Completion>,
    serial: u64,
    overdue: usize,
    /// Submits that have not returned.
    pub(super) submitting: usize,
    /// No requests are taken any more.
    pub(super) is_closed: bool,
    /// The threads are to end.
    pub(super) is_stopping: bool,
    /// Why the connector is of no use any more.
    pub(super) failed: Option<String>,
    /// Threads that run.
    pub(super) threads: usize,
    /// Since when `drain_completions` runs.
    pub(super) draining_since: Option<Instant>,
    /// How often it was called to the end.
    pub(super) drains: u64,
    /// Whether the connector's `close` has returned.
    pub(super) has_closed: bool,
}

/// Completions, with their requests if they have one.
#[derive(Debug, Default)]
pub(super) struct Delivered {
    pub(super) matched: Vec<(Pending, Completion)>,
    pub(super) unclaimed: Vec<Completion>,
}

/// What a status is made of.
#[derive(Debug)]
pub(super) struct View {
    pub(super) pending: usize,
    pub(super) overdue: usize,
    pub(super) oldest_overdue: Option<Instant>,
    pub(super) failed: Option<String>,
    pub(super) draining_since: Option<Instant>,
    pub(super) is_closed: bool,
}

impl Requests {
    /// Enters a request under its number. What comes back is to be finished at once: its completion came earlier.
    ///
    /// # Errors
    /// The request, if the number is taken.
    pub(super) fn register(
        &mut self,
        future: FutureId,
        mut pending: Pending,
        timeout: Option<Duration>,
        locks: &KeyLocks,
    ) -> Result<Option<(Pending, Completion)>, Request> {
        if self.pending.contains_key(&future) {
            return Err(pending.request);
        }
        let early = self.early.iter().position(|early| early.future == future.0);
        if let Some(index) = early {
            return Ok(Some((pending, self.early.remove(index))));
        }
        self.serial += 1;
        pending.serial = self.serial;
        let submitted = pending.submitted;
        self.pending.insert(future, pending);
        if let Some(timeout) = timeout {
            self.deadlines
                .push_back((submitted + timeout, future, self.serial));
            self.drop_ended_deadlines();
        }
        if let Some(reason) = self.failed.clone() {
            self.expire(future, locks, &reason);
        } else if self.is_stopping {
            self.expire(future, locks, "closed");
        }
        Ok(None)
    }

    fn drop_ended_deadlines(&mut self) {
        if self.deadlines.len() > 2 * self.pending.len() + 64 {
            let pending = &self.pending;
            self.deadlines.retain(|(_, future, serial)| {
                pending
                    .get(future)
                    .is_some_and(|pending| pending.serial == *serial)
            });
        }
    }

    /// A submit has returned. Completions that nobody can be given any more come back.
    pub(super) fn submitted(&mut self) -> Vec<Completion> {
        self.submitting -= 1;
        match self.submitting {
            0 => std::mem::take(&mut self.early),
            _ => Vec::new(),
        }
    }

    /// Finds the requests of completions.
    pub(super) fn deliver(&mut self, completions: Vec<Completion>) -> Delivered {
        let mut delivered = Delivered::default();
        for completion in completions {
            if let Some(pending) = self.pending.remove(&FutureId(completion.future)) {
                self.overdue -= usize::from(pending.is_overdue);
                delivered.matched.push((pending, completion));
            } else if self.submitting > 0 && self.early.len() < MAX_EARLY {
                self.early.push(completion);
            } else {
                delivered.unclaimed.push(completion);
            }
        }
        delivered
    }

    /// Lets a request fail that is not finished; whether it was not overdue before.
    pub(super) fn expire(&mut self, future: FutureId, locks: &KeyLocks, reason: &str) -> bool {
        match self.pending.get_mut(&future) {
            Some(pending) if !pending.is_overdue => {
                pending.is_overdue = true;
                self.overdue += 1;
                pending.request.expire(locks, reason);
                true
            }
            _ => false,
        }
    }

    /// Lets all requests fail whose time is over; how many.
    pub(super) fn expire_overdue(&mut self, now: Instant, locks: &KeyLocks, reason: &str) -> u64 {
        let mut expired = 0;
        while let Some((deadline, future, serial)) = self.deadlines.front().copied() {
            let is_pending = |pending: &Pending| pending.serial == serial && !pending.is_overdue;
            if self.pending.get(&future).is_some_and(is_pending) {
                if deadline > now {
                    break;
                }
                expired += u64::from(self.expire(future, locks, reason));
            }
            self.deadlines.pop_front();
        }
        expired
    }

    /// When the next request's time is over.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.front().map(|(deadline, ..)| *deadline)
    }

    /// Lets all requests fail.
    pub(super) fn expire_all(&mut self, locks: &KeyLocks, reason: &str) {
        let all: Vec<_> = self.pending.keys().copied().collect();
        for future in all {
            self.expire(future, locks, reason);
        }
    }

    /// Requests whose time is over and that the connector has not completed.
    pub(super) fn overdue(&self) -> usize {
        self.overdue
    }

    /// Requests whose time is not over.
    pub(super) fn waiting(&self) -> usize {
        self.pending.len() - self.overdue
    }

    /// Whether every request is completed.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Requests that may still touch memory.
    pub(super) fn holding_memory(&self) -> u64 {
        let holds = |pending: &&Pending| pending.request.touches_memory();
        self.pending.values().filter(holds).count() as u64
    }

    pub(super) fn is_delete_overdue(&self) -> bool {
        self.overdue > 0
            && self
                .pending
                .values()
                .any(|pending| pending.is_overdue && matches!(pending.request, Request::Delete(_)))
    }

    pub(super) fn view(&self) -> View {
        let overdue = self.pending.values().filter(|pending| pending.is_overdue);
        View {
            pending: self.waiting(),
            overdue: self.overdue,
            oldest_overdue: overdue.map(|pending| pending.submitted).min(),
            failed: self.failed.clone(),
            draining_since: self.draining_since,
            is_closed: self.is_closed,
        }
    }
}
