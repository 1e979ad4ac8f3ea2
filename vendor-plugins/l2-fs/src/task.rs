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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use ondol_plugin::l2::{CompletionQueue, StoreResult};

    use super::*;

    /// The parts that were finished, those that were not begun, and those that got lost.
    struct Tally;

    impl Kind for Tally {
        type Item = Arc<()>;
        type Part = bool;
        type Result = StoreResult;

        fn not_begun(&self, _: Arc<()>) -> bool {
            false
        }

        fn result(&self, parts: Vec<Option<bool>>) -> StoreResult {
            let count = |wanted| parts.iter().filter(|part| **part == wanted).count() as u64;
            StoreResult::stored(count(Some(true)) * 100 + count(Some(false)) * 10 + count(None))
        }
    }

    fn batch(items: &[Arc<()>]) -> (CompletionQueue<StoreResult>, Arc<Tasks>, Arc<Batch<Tally>>) {
        let queue = CompletionQueue::new().unwrap();
        let tasks: Arc<Tasks> = Arc::default();
        let ticket = queue.ticket(StoreResult::failed("unanswered"));
        let batch = Batch::new(Tally, &tasks, ticket, items.to_vec());
        (queue, tasks, batch)
    }

    fn all_done(items: Vec<Arc<()>>) -> Vec<bool> {
        items.iter().map(|_| true).collect()
    }

    #[test]
    fn a_batch_ends_when_nobody_works_on_it_any_more() {
        let (queue, _, batch) = batch(&[(); 5].map(Arc::new));
        batch.work(2, all_done);
        assert!(queue.take_all().is_empty());
        drop(batch);
        assert_eq!(queue.take_all()[0].1, StoreResult::stored(500));
    }

    #[test]
    fn what_is_stopped_is_not_begun() {
        let (queue, tasks, batch) = batch(&[(); 5].map(Arc::new));
        batch.work(2, |items| {
            tasks.stop_all();
            all_done(items)
        });
        drop(batch);
        assert_eq!(queue.take_all()[0].1, StoreResult::stored(230));
        assert_eq!(tasks.end_all(), 0);
    }

    #[test]
    fn a_panic_loses_its_own_parts_only() {
        let (queue, _, batch) = batch(&[(); 5].map(Arc::new));
        let failing = Arc::clone(&batch);
        let failed = thread::spawn(move || failing.work(2, |_| panic!("of a test"))).join();
        assert!(failed.is_err());
        batch.work(2, all_done);
        drop(batch);
        assert_eq!(queue.take_all()[0].1, StoreResult::stored(302));
    }

    #[test]
    fn a_task_that_is_abandoned_ends_and_keeps_its_buffers_until_it_lets_go() {
        let buffer = Arc::new(());
        let (queue, tasks, batch) = batch(&[buffer.clone(), buffer.clone(), buffer.clone()]);
        let (tell, told) = mpsc::channel();
        let (let_go, hung) = mpsc::channel::<()>();
        let worker = thread::spawn(move || {
            batch.work(1, |items| {
                tell.send(()).unwrap();
                let _ = hung.recv();
                all_done(items)
            });
        });
        told.recv().unwrap();
        tasks.stop_all();
        assert_eq!(tasks.end_all(), 1);
        assert_eq!(queue.take_all()[0].1, StoreResult::stored(21));
        assert_eq!(Arc::strong_count(&buffer), 2, "the one in flight is kept");
        drop(let_go);
        worker.join().unwrap();
        assert_eq!(Arc::strong_count(&buffer), 1);
        assert!(queue.take_all().is_empty());
    }
}
