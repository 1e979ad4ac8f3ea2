use std::path::Path;
use std::time::{Duration, Instant};

use tracing::info;

/// Tells once a second how far a recovery has come.
#[derive(Debug)]
pub(super) struct Progress {
    start: Instant,
    told: Instant,
    /// Nobody is told when the work goes on in the background.
    quiet: bool,
    what: &'static str,
}

const INTERVAL: Duration = Duration::from_secs(1);

impl Progress {
    pub(super) fn quiet() -> Self {
        let start = Instant::now();
        Self {
            start,
            told: start,
            quiet: true,
            what: "",
        }
    }

    pub(super) fn begin(what: &'static str, file: &Path, bytes: u64) -> Self {
        info!(file = %file.display(), bytes, "reading {what}");
        let start = Instant::now();
        Self {
            start,
            told: start,
            quiet: false,
            what,
        }
    }

    pub(super) fn tick(&mut self, done: u64) {
        if self.quiet {
            return;
        }
        let now = Instant::now();
        if now - self.told >= INTERVAL {
            self.told = now;
            info!(done, seconds = self.seconds(), "reading {}", self.what);
        }
    }

    pub(super) fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }
}
