use std::time::{Duration, Instant};

/// Keeps stores away from a backend that fails, and lets one try now and then.
///
/// It is told the time, and so knows no clock.
#[derive(Debug)]
pub(super) struct Breaker {
    opens_after: u32,
    pause: Duration,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Stores pass. So many failed in a row.
    Closed { failures: u32 },
    /// No store passes until then.
    Open { until: Instant },
    /// One store is trying.
    HalfOpen,
}

/// Whether a store may go to the backend now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Permit {
    /// It may.
    Pass,
    /// It may, as the only one: its outcome decides.
    Probe,
    /// Not before then; `None` if an outcome is waited for.
    Wait(Option<Instant>),
}

impl Breaker {
    pub(super) fn new(opens_after: u32, pause: Duration) -> Self {
        Self {
            opens_after: opens_after.max(1),
            pause,
            state: State::Closed { failures: 0 },
        }
    }

    /// Whether a store may go now. After a [`Permit::Probe`] whoever does send one says so with [`probing`](Self::probing).
    pub(super) fn permit(&self, now: Instant) -> Permit {
        match self.state {
            State::Closed { .. } => Permit::Pass,
            State::Open { until } if now >= until => Permit::Probe,
            State::Open { until } => Permit::Wait(Some(until)),
            State::HalfOpen => Permit::Wait(None),
        }
    }

    /// A store tries whether the backend works again.
    pub(super) fn probing(&mut self) {
        self.state = State::HalfOpen;
    }

    /// Something worked; whether that closed the breaker.
    pub(super) fn succeeded(&mut self) -> bool {
        let was_open = self.is_open();
        self.state = State::Closed { failures: 0 };
        was_open
    }

    /// Something failed; whether that opened the breaker, which was closed before.
    pub(super) fn failed(&mut self, now: Instant) -> bool {
        let until = now + self.pause;
        match &mut self.state {
            State::Closed { failures } => {
                *failures += 1;
                if *failures < self.opens_after {
                    return false;
                }
                self.state = State::Open { until };
                true
            }
            // What was under way when it opened says nothing new.
            State::Open { .. } => false,
            State::HalfOpen => {
                self.state = State::Open { until };
                false
            }
        }
    }

    pub(super) fn is_open(&self) -> bool {
        !matches!(self.state, State::Closed { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(5);

    #[test]
    fn it_opens_after_failures_in_a_row_only() {
        let now = Instant::now();
        let mut breaker = Breaker::new(3, PAUSE);
        assert!(!breaker.failed(now) && !breaker.failed(now));
        assert!(!breaker.succeeded(), "it was closed");
        assert!(!breaker.failed(now) && !breaker.failed(now));
        assert_eq!(breaker.permit(now), Permit::Pass);
        assert!(breaker.failed(now));
        assert_eq!(breaker.permit(now), Permit::Wait(Some(now + PAUSE)));
    }

    #[test]
    fn one_store_tries_after_the_pause_and_decides() {
        let now = Instant::now();
        let mut breaker = Breaker::new(1, PAUSE);
        assert!(breaker.failed(now));
        assert!(!breaker.failed(now), "what was under way");
        let later = now + PAUSE;
        assert_eq!(breaker.permit(later), Permit::Probe);
        breaker.probing();
        assert_eq!(breaker.permit(later), Permit::Wait(None), "only one");
        assert!(!breaker.failed(later), "it was open");
        assert_eq!(breaker.permit(later), Permit::Wait(Some(later + PAUSE)));
        assert_eq!(breaker.permit(later + PAUSE), Permit::Probe);
        breaker.probing();
        assert!(breaker.succeeded());
        assert_eq!(breaker.permit(later), Permit::Pass);
    }
}
