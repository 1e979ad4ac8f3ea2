use std::collections::VecDeque;
use std::time::Instant;

use ondol_plugin::Key;
use ondol_plugin::l2::ObjectKey;

/// Objects that one step of a walk asks the backend for.
pub(super) const STEP_KEYS: usize = 256;

/// Looks through memory for objects that a backend lacks: after a start, since what was committed shortly before the end may not be
/// stored; after the queue was full; after the backend was out of order.
///
/// It goes step by step, one lookup at a time, and only while little else waits.
#[derive(Debug, Default)]
pub(super) struct Walk {
    pub(super) is_running: bool,
    /// The part of the memory that comes next.
    pub(super) next_part: usize,
    /// What is left of the part before, with lengths in bytes.
    pub(super) rest: VecDeque<(Key, u64)>,
    /// What the backend was asked and has not answered.
    pub(super) asked: Option<Asked>,
    /// Whether the backend lacked something.
    pub(super) found_lacking: bool,
    /// When it may go on, after a lookup has failed.
    pub(super) not_before: Option<Instant>,
}

/// A lookup that is under way.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) objects: Vec<(Key, u64)>,
    pub(super) names: Vec<ObjectKey>,
}

impl Walk {
    pub(super) fn begin(&mut self) {
        *self = Self {
            is_running: true,
            ..Self::default()
        };
    }

    /// It goes no further; what it has asked is still answered.
    pub(super) fn end(&mut self) {
        *self = Self {
            asked: self.asked.take(),
            ..Self::default()
        };
    }

    /// Whether it could go on now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.is_running && self.asked.is_none() && self.not_before.is_none_or(|at| at <= now)
    }

    /// Comes back to these objects before it goes on.
    pub(super) fn put_back(&mut self, objects: Vec<(Key, u64)>) {
        if self.is_running {
            for object in objects.into_iter().rev() {
                self.rest.push_front(object);
            }
        }
    }
}
