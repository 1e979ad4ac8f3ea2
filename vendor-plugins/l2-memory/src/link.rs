use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::Error;

/// A simulated connection, which all transfers share.
#[derive(Debug)]
pub(crate) struct Link {
    bandwidth: Option<f64>,
    latency: Duration,
    state: Mutex<State>,
    closed: Condvar,
}

#[derive(Debug)]
struct State {
    free_at: Instant,
    is_closed: bool,
}

impl Link {
    /// A link of so many bytes per second, or one on which transfers take no time but this latency.
    pub(crate) fn new(bandwidth: Option<f64>, latency: Duration) -> Self {
        Self {
            bandwidth,
            latency,
            state: Mutex::new(State {
                free_at: Instant::now(),
                is_closed: false,
            }),
            closed: Condvar::new(),
        }
    }

    /// Returns when so many bytes have passed.
    pub(crate) fn pass(&self, bytes: u64) -> Result<(), Error> {
        let mut state = self.state.lock();
        let now = Instant::now();
        let begin = state.free_at.max(now);
        let passed = later(begin, self.transfer_time(bytes));
        state.free_at = passed;
        let arrived = later(passed, self.latency);
        // Without a simulation there is nothing to wait for.
        while !state.is_closed && Instant::now() < arrived {
            self.closed.wait_until(&mut state, arrived);
        }
        match state.is_closed {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }

    /// Ends all waiting.
    pub(crate) fn close(&self) {
        self.state.lock().is_closed = true;
        self.closed.notify_all();
    }

    fn transfer_time(&self, bytes: u64) -> Duration {
        let seconds = self
            .bandwidth
            .map_or(0.0, |bandwidth| bytes as f64 / bandwidth);
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

/// That much later, or in a century: nobody waits longer.
fn later(instant: Instant, by: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
    instant + by.min(CENTURY)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn transfers_take_their_turn_on_the_link() {
        let link = Link::new(Some(1000.0), Duration::ZERO);
        let begun = Instant::now();
        link.pass(20).unwrap();
        link.pass(30).unwrap();
        // It cannot be faster than it says.
        assert!(begun.elapsed() >= Duration::from_millis(50));
    }

    #[test]
    fn a_latency_is_waited_for() {
        let link = Link::new(None, Duration::from_millis(20));
        let begun = Instant::now();
        link.pass(1 << 40).unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn a_close_ends_the_longest_wait() {
        let link = Arc::new(Link::new(Some(1e-300), Duration::MAX));
        let waiting = thread::spawn({
            let link = Arc::clone(&link);
            move || link.pass(u64::MAX)
        });
        link.close();
        assert_eq!(waiting.join().unwrap(), Err(Error::Closed));
        assert_eq!(link.pass(0), Err(Error::Closed));
    }
}
