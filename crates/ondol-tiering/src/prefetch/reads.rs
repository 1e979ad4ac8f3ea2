//! Whether a backend answers in time, so that prefetches do not wait for one of which everything hangs.

use std::time::Instant;

use parking_lot::Mutex;

use crate::TieringConfig;

/// What prefetches ask of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    Lookup,
    Load,
}

/// The circuit breaker of one backend's lookups and loads.
///
/// Time-outs in a row open it; lookups and loads count by themselves, since a backend may find everything and load nothing. While it is
/// open one request may try after each pause. It closes once what had timed out ends in time.
#[derive(Debug, Default)]
pub(crate) struct Reads(Mutex<State>);

#[derive(Clone, Copy, Debug, Default)]
struct State {
    lookups: u32,
    loads: u32,
    /// When a request may try next; `None` if all may.
    opens: Option<Instant>,
}

impl State {
    fn row(&mut self, read: Read) -> &mut u32 {
        match read {
            Read::Lookup => &mut self.lookups,
            Read::Load => &mut self.loads,
        }
    }
}

impl Reads {
    /// Whether a request may ask the backend. `loads` says whether a load of it is under way: then its outcome is waited for.
    pub(crate) fn may_ask(&self, config: &TieringConfig, loads: bool) -> bool {
        let mut state = self.0.lock();
        let Some(opens) = state.opens else {
            return true;
        };
        let now = Instant::now();
        let may_try = now >= opens && !loads;
        if may_try {
            state.opens = Some(now + config.breaker_pause);
        }
        may_try
    }

    /// Something ended in time, well or not; whether that closed the breaker.
    pub(crate) fn ended(&self, read: Read, config: &TieringConfig) -> bool {
        let mut state = self.0.lock();
        *state.row(read) = 0;
        let hangs = state.lookups.max(state.loads) >= limit(config);
        state.opens.take_if(|_| !hangs).is_some()
    }

    /// Something did not end in time; whether that opened the breaker, which was closed before.
    pub(crate) fn timed_out(&self, read: Read, config: &TieringConfig) -> bool {
        let mut state = self.0.lock();
        let row = state.row(read);
        *row = row.saturating_add(1);
        if *row < limit(config) {
            return false;
        }
        let was_closed = state.opens.is_none();
        state.opens = Some(Instant::now() + config.breaker_pause);
        was_closed
    }

    /// What is wrong, if it is left out.
    pub(crate) fn complaint(&self) -> Option<String> {
        let state = *self.0.lock();
        state.opens?;
        Some(format!(
            "it does not answer in time: {} lookups and {} loads timed out in a row; prefetches leave it out",
            state.lookups, state.loads
        ))
    }
}

fn limit(config: &TieringConfig) -> u32 {
    config.read_breaker_timeouts.max(1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn config(pause: Duration) -> TieringConfig {
        TieringConfig {
            read_breaker_timeouts: 2,
            breaker_pause: pause,
            ..TieringConfig::default()
        }
    }

    #[test]
    fn time_outs_in_a_row_open_it_and_lookups_that_work_do_not_hide_loads_that_hang() {
        let (reads, config) = (Reads::default(), config(Duration::from_secs(3600)));
        assert!(!reads.timed_out(Read::Load, &config));
        assert!(!reads.ended(Read::Load, &config), "it was closed");
        assert!(!reads.timed_out(Read::Load, &config));
        assert!(!reads.ended(Read::Lookup, &config));
        assert!(reads.may_ask(&config, false) && reads.complaint().is_none());
        assert!(reads.timed_out(Read::Load, &config));
        assert!(!reads.may_ask(&config, false));
        assert!(!reads.ended(Read::Lookup, &config), "loads still hang");
        assert!(!reads.may_ask(&config, false));
        let complaint = reads.complaint().expect("it is left out");
        assert!(complaint.contains("2 loads"), "{complaint}");
        assert!(!reads.timed_out(Read::Load, &config), "it was open");
        assert!(reads.ended(Read::Load, &config));
        assert!(reads.may_ask(&config, false) && reads.complaint().is_none());
    }

    #[test]
    fn one_may_try_after_a_pause_unless_a_load_is_still_waited_for() {
        let (reads, short) = (Reads::default(), config(Duration::ZERO));
        let long = config(Duration::from_secs(3600));
        reads.timed_out(Read::Lookup, &short);
        assert!(reads.timed_out(Read::Lookup, &short));
        assert!(!reads.may_ask(&long, true));
        assert!(reads.may_ask(&long, false), "the pause is over");
        assert!(!reads.may_ask(&long, false), "only one");
    }
}
