//! Batches whose parts several threads work off.

use std::collections::HashMap;
use std::iter::Enumerate;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::vec;

use ondol_plugin::l2::{TaskId, Ticket};
use parking_lot::Mutex;

/// The tasks that have not finished.
#[derive(Default)]
pub(crate) struct Tasks(Mutex<HashMap<TaskId, Weak<dyn Live>>>);

/// A task that has not finished.
pub(crate) trait Live: Send + Sync {
    /// Begins nothing more of it.
    fn stop(&self);
    /// Ends it, with failures for what has not finished; whether it had not ended yet.
    fn end(&self) -> bool;
}

/// What a batch is of, and how it ends.
pub(crate) trait Kind: Send + Sync + 'static {
    /// A part that is to be worked on.
    type Item: Send;
    /// What becomes of a part.
    type Part: Send;
    /// What becomes of all.
    type Result: Send;
    /// What becomes of a part that was never begun.
    fn not_begun(&self, item: Self::Item) -> Self::Part;
    /// The result of all parts, in order; `None` for one that somebody still works on, or gave up on.
    fn result(&self, parts: Vec<Option<Self::Part>>) -> Self::Result;
}

/// A batch. It ends when nobody works on it any more.
pub(crate) struct Batch<K: Kind> {
    kind: K,
    tasks: Arc<Tasks>,
    task: TaskId,
    waiting: Mutex<Enumerate<vec::IntoIter<K::Item>>>,
    parts: Mutex<Vec<Option<K::Part>>>,
    is_stopped: AtomicBool,
    ticket: Mutex<Option<Ticket<K::Result>>>,
}

impl Tasks {
    pub(crate) fn stop(&self, task: TaskId) {
        let found = self.0.lock().get(&task).and_then(Weak::upgrade);
        if let Some(found) = found {
            found.stop();
        }
    }

    pub(crate) fn stop_all(&self) {
        self.all().iter().for_each(|task| task.stop());
    }

    /// Ends all tasks; how many had not ended by themselves.
    pub(crate) fn end_all(&self) -> u64 {
        self.all().iter().map(|task| u64::from(task.end())).sum()
    }

    fn all(&self) -> Vec<Arc<dyn Live>> {
        // A batch that ends asks for this lock.
        self.0.lock().values().filter_map(Weak::upgrade).collect()
    }
}

impl<K: Kind> Batch<K> {
    pub(crate) fn new(
        kind: K,
        tasks: &Arc<Tasks>,
        ticket: Ticket<K::Result>,
        items: Vec<K::Item>,
    ) -> Arc<Self> {
        let task = ticket.task();
        let batch = Arc::new(Self {
            kind,
            tasks: Arc::clone(tasks),
            task,
            parts: Mutex::new(items.iter().map(|_| None).collect()),
            waiting: Mutex::new(items.into_iter().enumerate()),
            is_stopped: AtomicBool::new(false),
            ticket: Mutex::new(Some(ticket)),
        });
        let live: Arc<dyn Live> = batch.clone();
        tasks.0.lock().insert(task, Arc::downgrade(&live));
        batch
    }

    /// Works on parts, at most `most` at once, until none is left.
    pub(crate) fn work(&self, most: usize, mut work: impl FnMut(Vec<K::Item>) -> Vec<K::Part>) {
        while !self.is_stopped.load(Ordering::Relaxed) {
            let taken: Vec<_> = self.waiting.lock().by_ref().take(most).collect();
            // What is taken at once lies side by side.
            let Some(first) = taken.first().map(|(place, _)| *place) else {
                return;
            };
            let done = work(taken.into_iter().map(|(_, item)| item).collect());
            let mut parts = self.parts.lock();
            // There are no places any more if the batch was ended meanwhile.
            for (part, done) in parts.iter_mut().skip(first).zip(done) {
                *part = Some(done);
            }
        }
    }

    fn finish(&self) -> bool {
        let Some(ticket) = self.ticket.lock().take() else {
            return false;
        };
        let left: Vec<_> = self.waiting.lock().by_ref().collect();
        let mut parts = std::mem::take(&mut *self.parts.lock());
        for (place, item) in left {
            parts[place] = Some(self.kind.not_begun(item));
        }
        ticket.complete(self.kind.result(parts));
        true
    }
}

impl<K: Kind> Live for Batch<K> {
    fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    fn end(&self) -> bool {
        self.finish()
    }
}

impl<K: Kind> Drop for Batch<K> {
    fn drop(&mut self) {
        self.tasks.0.lock().remove(&self.task);
        self.finish();
    }
}
