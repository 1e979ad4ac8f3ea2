use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How often the same warning is given.
const PERIOD: Duration = Duration::from_secs(1);

/// Keeps a warning from being given more than once a second, whoever provokes it.
#[derive(Debug, Default)]
pub(super) struct Throttle(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    suppressed: u64,
}

/// The warnings that a client can provoke.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    pub(super) refused: Throttle,
    pub(super) stalled: Throttle,
    pub(super) unreadable: Throttle,
    pub(super) busy: Throttle,
    pub(super) exhausted: Throttle,
}

impl Throttle {
    /// Whether the warning may be given now, and how many like it were suppressed since the last one.
    pub(super) fn pass(&self) -> Option<u64> {
        self.pass_at(Instant::now())
    }

    fn pass_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock();
        if state
            .last
            .is_some_and(|last| now.saturating_duration_since(last) < PERIOD)
        {
            state.suppressed += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_passes_once_a_second_with_the_number_of_those_held_back() {
        let throttle = Throttle::default();
        let start = Instant::now();
        let at = |millis| throttle.pass_at(start + Duration::from_millis(millis));
        let found = [0, 1, 999, 1000, 1500, 2001].map(at);
        assert_eq!(found, [Some(0), None, None, Some(2), None, Some(1)]);
    }
}
