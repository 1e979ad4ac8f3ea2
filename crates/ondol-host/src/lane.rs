use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use ondol_plugin::{BatchSource, HandlerView, RetrievedBatch};

use crate::call::Line;
use crate::hook::Hook;

/// A batch that outlives the call that made it, for plugins that are called later.
///
/// The source keeps what its entries point to alive: objects stay leased until it is dropped.
pub struct OwnedBatch {
    /// The handler, as the hook sees it.
    pub view: Arc<dyn HandlerView + Send + Sync>,
    /// The batch.
    pub source: Box<dyn BatchSource + Send>,
}

impl fmt::Debug for OwnedBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedBatch")
            .field("len", &self.source.len())
            .finish_non_exhaustive()
    }
}

enum Job {
    Batch {
        hook: Hook,
        batch: OwnedBatch,
    },
    /// Answered when all that was queued before is done.
    Mark(Sender<()>),
}

/// The other end of a lane, for whoever empties it.
#[derive(Clone)]
pub(crate) struct Backlog(Receiver<Job>);

/// A thread of a plugin's own, with a bounded queue in front.
pub(crate) struct Lane {
    jobs: Option<Sender<Job>>,
    /// Disconnected when the thread has ended.
    end: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Backlog {
    /// Drops all that waits and returns how many batches that were.
    pub(crate) fn clear(&self) -> u64 {
        self.0
            .try_iter()
            .filter(|job| matches!(job, Job::Batch { .. }))
            .count() as u64
    }
}

impl fmt::Debug for Backlog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Backlog").field(&self.0.len()).finish()
    }
}

impl Lane {
    pub(crate) fn start(line: Line, capacity: usize) -> std::io::Result<Self> {
        // A queue of no length would hand over to a waiting thread only, and drop whatever comes early.
        let (jobs, queue) = bounded(capacity.max(1));
        let (ended, end) = bounded(0);
        line.record.set_backlog(Backlog(queue.clone()));
        let thread = std::thread::Builder::new()
            .name(format!("lane-{}", line.record.name()))
            .spawn(move || {
                let _ended: Sender<()> = ended;
                for job in queue {
                    run(&line, job);
                }
            })?;
        Ok(Self {
            jobs: Some(jobs),
            end,
            thread: Some(thread),
        })
    }

    /// Queues a batch, or counts it as dropped; `own` is not called when there is no room.
    pub(crate) fn offer(&self, line: &Line, hook: Hook, own: &dyn Fn() -> OwnedBatch) {
        let Some(jobs) = &self.jobs else { return };
        if jobs.is_full() || jobs.try_send(Job::Batch { hook, batch: own() }).is_err() {
            line.record.dropped(hook);
        }
        // The plugin may have gone out of use, and its backlog been cleared, since the caller looked.
        if !line.record.is_in_use() {
            line.record.clear_backlog();
        }
    }

    /// Waits until all that is queued now is done; false if it is not by `deadline`.
    pub(crate) fn settle(&self, deadline: Instant) -> bool {
        let Some(jobs) = &self.jobs else { return true };
        loop {
            let (done, wait) = bounded(1);
            if jobs.send_deadline(Job::Mark(done), deadline).is_err() {
                return false;
            }
            match wait.recv_deadline(deadline) {
                Ok(()) => return true,
                Err(RecvTimeoutError::Timeout) => return false,
                // The mark was cleared away with what waited before it; what is running may not have ended yet.
                Err(RecvTimeoutError::Disconnected) => {}
            }
        }
    }

    /// Lets the thread end once it has done what is queued.
    pub(crate) fn close(&mut self) {
        self.jobs = None;
    }

    /// Waits for the thread to end; false, and the thread is left to itself, if it has not by `deadline`.
    pub(crate) fn join(&mut self, deadline: Instant) -> bool {
        let Some(thread) = self.thread.take() else {
            return true;
        };
        // The last handle to a handler may be dropped by a batch on this very lane.
        if thread.thread().id() == std::thread::current().id() {
            return true;
        }
        if self.end.recv_deadline(deadline) == Err(RecvTimeoutError::Timeout) {
            return false;
        }
        // Nothing of a plugin's runs outside a guard here, so this is no panic of theirs; and one of ours was
        // printed by the panic hook.
        let _ = thread.join();
        true
    }
}

fn run(line: &Line, job: Job) {
    match job {
        Job::Batch { hook, batch } if line.record.wants(hook) => {
            let view: &dyn HandlerView = &*batch.view;
            let retrieved = RetrievedBatch::new(&*batch.source);
            // The outcome is on the record; nobody waits for it.
            let _ = line.call(hook, |plugin| match hook {
                Hook::Prefetch => plugin.on_prefetch(view, &retrieved),
                _ => plugin.on_batch_retrieve(view, &retrieved),
            });
        }
        Job::Batch { .. } => line.record.count_dropped(1),
        Job::Mark(done) => {
            let _ = done.try_send(());
        }
    }
}
