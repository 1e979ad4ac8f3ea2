//! Waiting for a server that is away.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ondol_handler::{ControlError, HandlerError};

/// How long to wait until a call is tried again that may be repeated.
const PAUSE: Duration = Duration::from_millis(10);

/// The replay shall end; what was begun is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stopped;

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the replay was stopped")
    }
}

impl std::error::Error for Stopped {}

/// How long calls are repeated that fail because the server is away.
#[derive(Debug)]
pub(super) struct Patience {
    limit: Duration,
    since: Option<Instant>,
}

impl Patience {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, since: None }
    }

    /// A call was answered.
    pub(super) fn restore(&mut self) {
        self.since = None;
    }

    /// Waits a little after a call that may be repeated.
    ///
    /// # Errors
    /// The call's own error if it is of another kind or has come for too long, [`Stopped`] if `stop` says so.
    pub(super) fn wait(&mut self, error: HandlerError, stop: impl FnOnce() -> bool) -> Result<()> {
        if !may_pass(&error) {
            return Err(error.into());
        }
        if stop() {
            return Err(Stopped.into());
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.limit {
            let limit = self.limit.as_secs();
            return Err(error)
                .with_context(|| format!("the server was waited for in vain for {limit} s"));
        }
        thread::sleep(PAUSE);
        Ok(())
    }
}

/// Whether an error may pass, so that the call is to be repeated.
fn may_pass(error: &HandlerError) -> bool {
    error.is_disconnected() || matches!(error, HandlerError::Control(ControlError::Failed(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn away() -> HandlerError {
        ControlError::TimedOut { waited_ms: 1 }.into()
    }

    #[test]
    fn patience_ends_and_is_restored() {
        let mut patience = Patience::new(Duration::from_millis(30));
        let mut waits = || {
            let mut waits = 0;
            loop {
                match patience.wait(away(), || false) {
                    Ok(()) => waits += 1,
                    Err(error) => {
                        assert!(
                            format!("{error:#}").contains("no answer within"),
                            "{error:#}"
                        );
                        patience.restore();
                        return waits;
                    }
                }
            }
        };
        assert!(waits() > 0);
        assert!(waits() > 0);
    }

    #[test]
    fn what_cannot_pass_is_not_waited_for() {
        let mut patience = Patience::new(Duration::from_secs(60));
        let error = patience.wait(HandlerError::Closed, || false).unwrap_err();
        assert!(error.is::<HandlerError>());
        let error = patience.wait(away(), || true).unwrap_err();
        assert!(error.is::<Stopped>());
    }
}
