//! When it is tried again to reach a server that was not there.

use std::time::{Duration, Instant};

use ondol_protocol::ControlError;
use parking_lot::Mutex;

const FIRST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(1);
/// A wait is shortened by up to one part in so many, so that clients of one server do not all come at once.
const JITTER: u64 = 5;

/// Decides who may try now. Nobody sleeps here: in between, calls fail at once.
#[derive(Debug)]
pub(crate) struct Backoff {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    outage: Option<Outage>,
    random: u64,
}

/// From the first attempt that failed to the first that does not.
#[derive(Debug)]
struct Outage {
    reason: String,
    delay: Duration,
    next: Instant,
    is_probed: bool,
}

/// Leave to try once; what came of it is to be told.
#[derive(Debug)]
#[must_use]
pub(crate) struct Attempt<'a> {
    backoff: &'a Backoff,
    /// Whether this is the one attempt of its time in an outage.
    probes: bool,
}

impl Backoff {
    /// The seed makes the jitter.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            state: Mutex::new(State {
                outage: None,
                random: seed,
            }),
        }
    }

    /// Leave to try at this time.
    ///
    /// # Errors
    /// [`ControlError::Disconnected`], nothing sent, if another thread tries already or it is too early. It says
    /// what was seen last and when it is tried again.
    pub(crate) fn attempt(&self, now: Instant) -> Result<Attempt<'_>, ControlError> {
        let mut state = self.state.lock();
        let not_now = |reason: String| {
            Err(ControlError::Disconnected {
                reason,
                sent: false,
            })
        };
        let probes = match &mut state.outage {
            None => false,
            Some(outage) if outage.is_probed => {
                return not_now(format!("{}; another thread is trying again", outage.reason));
            }
            Some(outage) if now < outage.next => {
                return not_now(format!(
                    "{}; it is tried again in {} ms",
                    outage.reason,
                    (outage.next - now).as_millis().max(1)
                ));
            }
            Some(outage) => {
                outage.is_probed = true;
                true
            }
        };
        Ok(Attempt {
            backoff: self,
            probes,
        })
    }

    /// There is reason to try at this time, whatever was to be waited for.
    pub(crate) fn hasten(&self, now: Instant) {
        if let Some(outage) = &mut self.state.lock().outage {
            outage.next = outage.next.min(now);
        }
    }
}

impl Attempt<'_> {
    /// There is a server, whatever it said.
    pub(crate) fn succeeded(self) {
        self.backoff.state.lock().outage = None;
    }

    /// There is none, as seen at this time.
    pub(crate) fn failed(self, now: Instant, reason: &str) {
        let mut state = self.backoff.state.lock();
        let delay = match &state.outage {
            None => FIRST,
            Some(outage) if self.probes => (outage.delay * 2).min(LONGEST),
            // Of several that tried before there was an outage, the first began it.
            Some(_) => return,
        };
        if state.outage.is_none() {
            tracing::info!(
                reason,
                "the server is not there; calls fail until it is back"
            );
        }
        let shortened = state.jitter(delay);
        state.outage = Some(Outage {
            reason: reason.to_owned(),
            delay,
            next: now + shortened,
            is_probed: false,
        });
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.probes
            && let Some(outage) = &mut self.backoff.state.lock().outage
        {
            outage.is_probed = false;
        }
    }
}

impl State {
    fn jitter(&mut self, delay: Duration) -> Duration {
        // A step of SplitMix64; any sequence that differs between clients does.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let drawn = (self.random ^ (self.random >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32;
        let most = delay.as_micros() as u64 / JITTER;
        delay - Duration::from_micros((drawn * most) >> 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(result: Result<Attempt<'_>, ControlError>) -> String {
        match result.map(drop) {
            Err(ControlError::Disconnected {
                reason,
                sent: false,
            }) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn waits_double_up_to_a_second_and_end_with_the_outage() {
        let backoff = Backoff::new(7);
        let mut now = Instant::now();
        backoff.attempt(now).unwrap().failed(now, "gone");
        let mut expected = FIRST;
        for _ in 0..12 {
            let shortest = expected - expected / JITTER as u32;
            let early = now + shortest - Duration::from_millis(1);
            let text = refusal(backoff.attempt(early));
            assert!(
                text.contains("gone; it is tried again in ") && text.ends_with(" ms"),
                "{text}"
            );
            now += expected;
            backoff.attempt(now).unwrap().failed(now, "gone");
            expected = (2 * expected).min(LONGEST);
        }
        assert_eq!(expected, LONGEST);
        now += LONGEST;
        backoff.attempt(now).unwrap().succeeded();
        // The next outage begins with a short wait.
        backoff.attempt(now).unwrap().failed(now, "gone");
        backoff.attempt(now + FIRST).unwrap().succeeded();
    }

    #[test]
    fn one_that_hastens_is_let_try_and_waits_no_less_after_it() {
        let backoff = Backoff::new(7);
        let now = Instant::now();
        backoff.hasten(now);
        backoff.attempt(now).unwrap().failed(now, "gone");
        refusal(backoff.attempt(now));
        backoff.hasten(now);
        backoff.attempt(now).unwrap().failed(now, "gone");
        refusal(backoff.attempt(now + FIRST));
        backoff.attempt(now + 2 * FIRST).unwrap().succeeded();
    }

    #[test]
    fn one_tries_at_a_time_and_one_that_gives_up_leaves_it_to_others() {
        let backoff = Backoff::new(7);
        let now = Instant::now();
        // Until it is known that the server is away, all may try; together they begin one outage.
        let attempts = [(); 5].map(|()| backoff.attempt(now).unwrap());
        attempts
            .into_iter()
            .for_each(|attempt| attempt.failed(now, "gone"));
        let later = now + FIRST;
        let probe = backoff.attempt(later).unwrap();
        assert!(refusal(backoff.attempt(later)).contains("another thread"));
        drop(probe);
        backoff.attempt(later).unwrap().succeeded();
        let attempts = [(); 2].map(|()| backoff.attempt(later).unwrap());
        drop(attempts);
    }

    #[test]
    fn seeds_make_different_waits() {
        let waits = |seed| {
            let mut state = State {
                outage: None,
                random: seed,
            };
            [(); 8].map(|()| state.jitter(LONGEST))
        };
        assert_ne!(waits(1), waits(2));
        for wait in waits(1) {
            assert!(wait <= LONGEST && wait >= LONGEST - LONGEST / JITTER as u32);
        }
    }
}
