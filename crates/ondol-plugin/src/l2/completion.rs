use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::{EventFds, EventNotifier, LoadResult, LookupResult, StoreResult, TaskId};

/// Results of tasks, given once each, and the descriptor that says so.
///
/// An adapter makes a [`Ticket`] for each task. Completing it publishes the result and signals, in this order. A ticket that is
/// dropped publishes what it was told to when it was made, so that nobody waits for ever.
pub struct CompletionQueue<R>(Arc<Shared<R>>);

struct Shared<R> {
    ids: Arc<AtomicU64>,
    finished: Mutex<Finished<R>>,
    notifier: EventNotifier,
    pending: AtomicU64,
}

struct Finished<R> {
    results: HashMap<TaskId, R>,
    order: VecDeque<TaskId>,
}

/// The duty to say what became of one task.
pub struct Ticket<R> {
    task: TaskId,
    queue: Arc<Shared<R>>,
    unanswered: Option<R>,
}

impl<R> CompletionQueue<R> {
    /// An empty queue that numbers its tasks by itself.
    ///
    /// # Errors
    /// If the system has no descriptor left.
    pub fn new() -> io::Result<Self> {
        Self::numbered_by(Arc::default())
    }

    fn numbered_by(ids: Arc<AtomicU64>) -> io::Result<Self> {
        Ok(Self(Arc::new(Shared {
            ids,
            finished: Mutex::new(Finished {
                results: HashMap::new(),
                order: VecDeque::new(),
            }),
            notifier: EventNotifier::new()?,
            pending: AtomicU64::new(0),
        })))
    }

    /// A new task, which ends with `unanswered` if its ticket is dropped.
    pub fn ticket(&self, unanswered: R) -> Ticket<R> {
        self.0.pending.fetch_add(1, Ordering::Relaxed);
        Ticket {
            task: TaskId(self.0.ids.fetch_add(1, Ordering::Relaxed) + 1),
            queue: Arc::clone(&self.0),
            unanswered: Some(unanswered),
        }
    }

    /// Every result that was not given yet, in the order in which tasks finished.
    pub fn take_all(&self) -> Vec<(TaskId, R)> {
        let mut finished = self.0.lock();
        let Finished { results, order } = &mut *finished;
        let taken = order.drain(..);
        taken
            .filter_map(|task| Some((task, results.remove(&task)?)))
            .collect()
    }

    /// The result of a task, once.
    pub fn take(&self, task: TaskId) -> Option<R> {
        let mut finished = self.0.lock();
        let result = finished.results.remove(&task)?;
        if finished.order.len() > 2 * finished.results.len() + 64 {
            let Finished { results, order } = &mut *finished;
            order.retain(|task| results.contains_key(task));
        }
        Some(result)
    }

    /// Tasks that have not finished.
    pub fn pending(&self) -> u64 {
        self.0.pending.load(Ordering::Relaxed)
    }

    /// Makes the descriptor unreadable, as who waits on it does before asking; whether it was readable.
    pub fn consume(&self) -> bool {
        self.0.notifier.consume()
    }
}

impl<R> AsFd for CompletionQueue<R> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.notifier.as_fd()
    }
}

impl<R> fmt::Debug for CompletionQueue<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("pending", &self.pending())
            .finish_non_exhaustive()
    }
}

impl<R> Shared<R> {
    fn lock(&self) -> std::sync::MutexGuard<'_, Finished<R>> {
        // Nothing panics under this lock but an allocation.
        self.finished.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R> Ticket<R> {
    /// The task that this is about.
    pub fn task(&self) -> TaskId {
        self.task
    }

    /// Says what became of the task.
    pub fn complete(mut self, result: R) {
        self.unanswered = Some(result);
    }
}

impl<R> Drop for Ticket<R> {
    fn drop(&mut self) {
        if let Some(result) = self.unanswered.take() {
            let mut finished = self.queue.lock();
            finished.results.insert(self.task, result);
            finished.order.push_back(self.task);
        }
        self.queue.pending.fetch_sub(1, Ordering::Relaxed);
        self.queue.notifier.notify();
    }
}

impl<R> fmt::Debug for Ticket<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ticket").field(&self.task).finish()
    }
}

/// The three queues of an adapter; tasks have one numbering.
#[derive(Debug)]
pub struct Completions {
    /// Stores.
    pub stores: CompletionQueue<StoreResult>,
    /// Lookups.
    pub lookups: CompletionQueue<LookupResult>,
    /// Loads.
    pub loads: CompletionQueue<LoadResult>,
}

impl Completions {
    /// Three empty queues.
    ///
    /// # Errors
    /// If the system has no descriptors left.
    pub fn new() -> io::Result<Self> {
        let ids: Arc<AtomicU64> = Arc::default();
        Ok(Self {
            stores: CompletionQueue::numbered_by(Arc::clone(&ids))?,
            lookups: CompletionQueue::numbered_by(Arc::clone(&ids))?,
            loads: CompletionQueue::numbered_by(ids)?,
        })
    }

    /// Their descriptors.
    pub fn event_fds(&self) -> EventFds<'_> {
        EventFds {
            store: self.stores.as_fd(),
            lookup: self.lookups.as_fd(),
            load: self.loads.as_fd(),
        }
    }

    /// Tasks that have not finished.
    pub fn pending(&self) -> u64 {
        self.stores.pending() + self.lookups.pending() + self.loads.pending()
    }
}
