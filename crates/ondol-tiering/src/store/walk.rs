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
    /// The last key that it is done with.
    pub(super) after: Option<Key>,
    /// What the backend was asked and has not answered.
    pub(super) asked: Option<Asked>,
    /// When it may go on, after a lookup has failed.
    pub(super) not_before: Option<Instant>,
}

/// A lookup that is under way.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) keys: Vec<Key>,
    pub(super) names: Vec<ObjectKey>,
    /// Where the walk was before.
    pub(super) from: Option<Key>,
}

impl Walk {
    pub(super) fn begin(&mut self) {
        *self = Self {
            is_running: true,
            ..Self::default()
        };
    }

    /// It goes no further, and only waits for what it has asked.
    pub(super) fn end_unless_asked(&mut self) {
        if self.asked.is_none() {
            self.end();
        }
    }

    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    /// Whether it could go on now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.is_running && self.asked.is_none() && self.not_before.is_none_or(|at| at <= now)
    }
}
