//! Deletes corrupt objects from their backends, on a thread of its own since deleting blocks.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, bounded};
use ondol_plugin::l2::ObjectKey;

use super::controller::Shared;
use crate::attached::Attached;

/// Batches that may wait; what comes on top is counted and stays, to be found corrupt again.
const QUEUE: usize = 256;
/// A reader that still holds a lock soon lets go of it.
const PATIENCE: [Duration; 3] = [
    Duration::from_millis(5),
    Duration::from_millis(50),
    Duration::from_millis(500),
];

#[derive(Debug)]
pub(super) struct Janitor(Sender<(Arc<Attached>, Vec<ObjectKey>)>);

impl Janitor {
    /// Starts the thread; it ends when this is dropped, after the delete that it is at.
    pub(super) fn start(shared: &Arc<Shared>) -> io::Result<Self> {
        let (jobs, queue) = bounded::<(Arc<Attached>, Vec<ObjectKey>)>(QUEUE);
        let shared = Arc::clone(shared);
        thread::Builder::new()
            .name("ondol-l2-purge".to_owned())
            .spawn(move || {
                for (attached, names) in queue {
                    let left = delete(&attached, names);
                    shared.counters.delete_failed.add(left as u64);
                }
            })?;
        Ok(Self(jobs))
    }

    /// Has these deleted soon; how many will not be, since too many wait.
    pub(super) fn delete(&self, attached: Arc<Attached>, names: Vec<ObjectKey>) -> usize {
        let count = names.len();
        match self.0.try_send((attached, names)) {
            Ok(()) => 0,
            Err(_) => count,
        }
    }
}

/// Deletes what is not locked, or no longer after a while; how many are left.
fn delete(attached: &Attached, mut names: Vec<ObjectKey>) -> usize {
    for pause in PATIENCE {
        match attached.backend.delete(&names) {
            Ok(result) => {
                let gone: Vec<_> = result.gone.gather(&names).into_iter().cloned().collect();
                attached.note_deleted(&gone);
                let mut at = 0..;
                names.retain(|_| at.next().is_some_and(|at| !result.gone.test(at)));
            }
            Err(error) => {
                complain(attached, "corrupt objects could not be deleted", &error);
                return names.len();
            }
        }
        if names.is_empty() {
            return 0;
        }
        thread::sleep(pause);
    }
    let locked = "others hold locks on them";
    complain(attached, "corrupt objects stay", &locked);
    names.len()
}

fn complain(attached: &Attached, what: &'static str, reason: &dyn fmt::Display) {
    if let Some(unwritten) = attached.complaints.of(what, Instant::now()) {
        tracing::warn!(backend = attached.backend.name(), %reason, unwritten, "{what}");
    }
}
