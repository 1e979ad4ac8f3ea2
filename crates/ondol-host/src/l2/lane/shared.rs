use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ondol_plugin::l2::EventNotifier;
use parking_lot::{Condvar, Mutex};

use super::ledger::{Command, Done, Ledger, Quarantine, Stage};
use super::{LaneOptions, TaskError};

/// What the threads of one backend have in common.
pub(super) struct Shared {
    pub(super) name: String,
    pub(super) options: LaneOptions,
    pub(super) ledger: Mutex<Ledger>,
    /// For the watchdog: there is something to watch, or to deliver.
    pub(super) to_watch: Condvar,
    /// For who closes: something has ended.
    pub(super) has_ended: Condvar,
    /// Wakes the lane.
    pub(super) control: EventNotifier,
    pub(super) call: CallMark,
}

/// Which call into the adapter the lane is in, in one word.
#[derive(Default)]
pub(super) struct CallMark(AtomicU64);

/// A method of the adapter that the lane calls.
#[derive(Clone, Copy, Debug)]
pub(super) enum Method {
    SubmitStore = 1,
    SubmitLookup,
    SubmitLoad,
    Unlock,
    Cancel,
    PopStores,
    QueryLookup,
    QueryLoad,
}

impl Method {
    const ALL: [Self; 8] = [
        Self::SubmitStore,
        Self::SubmitLookup,
        Self::SubmitLoad,
        Self::Unlock,
        Self::Cancel,
        Self::PopStores,
        Self::QueryLookup,
        Self::QueryLoad,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::SubmitStore => "submit_store",
            Self::SubmitLookup => "submit_lookup_and_lock",
            Self::SubmitLoad => "submit_load",
            Self::Unlock => "submit_unlock",
            Self::Cancel => "cancel",
            Self::PopStores => "pop_completed_stores",
            Self::QueryLookup => "query_lookup_and_lock",
            Self::QueryLoad => "query_load",
        }
    }
}

const METHOD_BITS: u32 = 4;

impl CallMark {
    pub(super) fn enter(&self, sequence: u64, method: Method) {
        let word = sequence << METHOD_BITS | method as u64;
        self.0.store(word, Ordering::Relaxed);
    }

    pub(super) fn leave(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// The word, which differs from call to call, and the method's name; `None` between calls.
    pub(super) fn read(&self) -> Option<(u64, &'static str)> {
        let word = self.0.load(Ordering::Relaxed);
        let code = word & ((1 << METHOD_BITS) - 1);
        let method = Method::ALL
            .into_iter()
            .find(|method| *method as u64 == code)?;
        Some((word, method.name()))
    }
}

impl Shared {
    pub(super) fn unusable(&self, reason: impl Into<String>) -> TaskError {
        TaskError::Unusable {
            backend: self.name.clone(),
            reason: reason.into(),
        }
    }

    pub(super) fn broken(&self, reason: impl Into<String>) -> TaskError {
        TaskError::Broken {
            backend: self.name.clone(),
            reason: reason.into(),
        }
    }

    /// Why nothing is taken now.
    pub(super) fn refusal(&self, ledger: &Ledger) -> Option<TaskError> {
        if let Some(quarantine) = &ledger.quarantine {
            return Some(self.unusable(&quarantine.reason));
        }
        match ledger.stage {
            Stage::Open => None,
            Stage::Closing { .. } => Some(self.unusable("it is being closed")),
        }
    }

    /// Gives the lane something to do, or refuses it.
    pub(super) fn give(&self, command: Command) {
        let mut ledger = self.ledger.lock();
        if let Command::Work { .. } = command {
            let full = ledger.waiting() >= self.options.queue;
            let refusal = self.refusal(&ledger).or_else(|| {
                full.then(|| {
                    ledger.counts.overflows += 1;
                    TaskError::Refused {
                        backend: self.name.clone(),
                        reason: format!(
                            "{} batches wait already, as many as may",
                            self.options.queue
                        ),
                    }
                })
            });
            if let Some(error) = refusal {
                let Command::Work { payload, task } = command else {
                    return;
                };
                ledger.failures.extend(task.done.map(|done| (done, error)));
                self.to_watch.notify_all();
                drop(ledger);
                drop(payload);
                return;
            }
        } else if ledger.lane_ended {
            return;
        }
        ledger.push(command);
        let wake = std::mem::take(&mut ledger.lane_asleep);
        if ledger.watchdog_asleep {
            self.to_watch.notify_all();
        }
        drop(ledger);
        if wake {
            self.control.notify();
        }
    }

    /// Answers who has waited long enough.
    pub(super) fn expire(&self, now: Instant) {
        let mut ledger = self.ledger.lock();
        let aftermath = ledger.expire(&self.name, now);
        let wake = !aftermath.failures.is_empty() && std::mem::take(&mut ledger.lane_asleep);
        drop(ledger);
        if wake {
            self.control.notify();
        }
        aftermath.settle();
    }

    /// Takes the adapter out of use and answers everybody who waits for it.
    pub(super) fn quarantine(&self, reason: String, panicked: bool) {
        let mut ledger = self.ledger.lock();
        let before = ledger.quarantine.take();
        let is_first = before.is_none();
        let error = self.unusable(&reason);
        ledger.quarantine = Some(match before {
            // A panic weighs more, as it forbids every further call.
            Some(before) if before.panicked || !panicked => before,
            _ => Quarantine { reason, panicked },
        });
        let aftermath = ledger.fail_all(&error);
        let wake = std::mem::take(&mut ledger.lane_asleep);
        drop(ledger);
        if is_first {
            tracing::error!(%error, waiting = aftermath.failures.len(), "a storage backend is out of use from now on");
        }
        if wake {
            self.control.notify();
        }
        aftermath.settle();
    }

    /// Has the watchdog answer these.
    pub(super) fn fail_elsewhere(&self, ledger: &mut Ledger, failures: Vec<(Done, TaskError)>) {
        if !failures.is_empty() {
            ledger.failures.extend(failures);
            self.to_watch.notify_all();
        }
    }
}
