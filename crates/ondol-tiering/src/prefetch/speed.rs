//! How fast backends load, so that a request does not wait for what cannot come in its time.

use std::time::Duration;

/// What one load batch weighs in the figures after each later one.
const DECAY: f64 = 0.875;
/// Time spent on loads before the figures are believed: single small loads say more of latency than of speed.
const BELIEVED_AFTER: f64 = 0.01;

/// How fast a backend loads: bytes and the time that they took, older batches counting less and less.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Speed {
    bytes: f64,
    seconds: f64,
}

impl Speed {
    /// A batch was loaded.
    pub(super) fn loaded(&mut self, bytes: u64, took: Duration) {
        self.bytes = self.bytes * DECAY + bytes as f64;
        self.seconds = self.seconds * DECAY + took.as_secs_f64();
    }

    /// Seconds that so many bytes will take; 0 while too little is known.
    pub(super) fn seconds(&self, bytes: u64) -> f64 {
        if self.seconds < BELIEVED_AFTER {
            return 0.0;
        }
        bytes as f64 * self.seconds / self.bytes.max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_is_as_fast_as_its_latest_loads() {
        let mut speed = Speed::default();
        assert_eq!(speed.seconds(1 << 30), 0.0);
        speed.loaded(1_000_000, Duration::from_secs(1));
        assert!((speed.seconds(3_000_000) - 3.0).abs() < 0.01);
        for _ in 0..100 {
            speed.loaded(10_000_000, Duration::from_secs(1));
        }
        assert!((speed.seconds(10_000_000) - 1.0).abs() < 0.01);
    }

    #[test]
    fn a_few_small_loads_say_nothing() {
        let mut speed = Speed::default();
        speed.loaded(64, Duration::from_micros(300));
        assert_eq!(speed.seconds(1 << 30), 0.0);
    }

    #[test]
    fn a_backend_that_loads_nothing_is_slow_without_bounds() {
        let mut speed = Speed::default();
        speed.loaded(0, Duration::from_secs(1));
        assert!(speed.seconds(1 << 20).is_finite());
        assert!(speed.seconds(1 << 20) > 1000.0);
    }
}
