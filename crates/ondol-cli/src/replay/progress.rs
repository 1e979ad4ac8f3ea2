use std::io::{IsTerminal, Write, stderr};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar on standard error, if that is a terminal.
#[derive(Clone, Debug)]
pub(super) struct Progress(ProgressBar);

impl Progress {
    pub(super) fn new(requests: u64, quiet: bool) -> Self {
        let target = if quiet || !stderr().is_terminal() {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr()
        };
        let bar = ProgressBar::with_draw_target(Some(requests), target);
        let template = "{wide_bar} {pos}/{len} requests, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self(bar)
    }

    pub(super) fn set(&self, requests: u64) {
        self.0.set_position(requests);
    }

    /// Writes a line to standard error, above the bar.
    pub(super) fn note(&self, text: &str) {
        self.0.suspend(|| {
            let _ = writeln!(stderr(), "{text}");
        });
    }

    pub(super) fn clear(&self) {
        self.0.finish_and_clear();
    }
}
