//! Looks after the server while instances replay: kills it when it is time, sees when it is away and back.

use std::time::{Duration, Instant};

use super::args::Args;
use super::crew::Interrupts;
use super::pool::{Pool, Sight};

/// How often it is looked for a server that is away.
const LOOK_FOR: Duration = Duration::from_millis(5);

/// How often it is looked whether a server of others is there.
const LOOK_AFTER: Duration = Duration::from_millis(100);

/// The server was away and came back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Restart {
    /// Of the server that came back.
    pub(super) incarnation: u64,
    pub(super) seconds_away: f64,
    /// What it had when it was back.
    pub(super) objects: Option<u64>,
}

/// All that was seen of restarts.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    pub(super) list: Vec<Restart>,
    /// Why the server did not come back.
    pub(super) failure: Option<String>,
}

/// Whether it makes sense to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tended {
    GoOn,
    GivenUp,
}

#[derive(Debug)]
pub(super) struct Watch<'a> {
    pool: &'a mut Pool,
    /// Requests after which the server is killed, the last one first.
    kills: Vec<u64>,
    patience: Duration,
    /// Since when the server is not seen.
    away: Option<Instant>,
    /// How long it was away, if it is there again and only not spoken to yet.
    was_away: Option<Duration>,
    looked: Option<Instant>,
    /// How far each instance was at the last restart.
    marks: Vec<u64>,
    instances: u64,
    /// So many requests an instance may be ahead of its part of the next restart.
    lead: u64,
    seen: Restarts,
}

/// How far an instance is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// Requests that it has done.
    pub(super) done: u64,
    pub(super) has_ended: bool,
}

impl<'a> Watch<'a> {
    pub(super) fn new(pool: &'a mut Pool, requests: u64, args: &Args) -> Self {
        let (restarts, instances) = (args.restarts.into(), args.instances.into());
        let between = requests / (restarts + 1) / instances;
        Self {
            pool,
            kills: spread(requests, restarts),
            patience: Duration::from_secs(args.patience),
            instances,
            lead: (between / 2).max(3),
            away: None,
            was_away: None,
            looked: None,
            marks: Vec::new(),
            seen: Restarts::default(),
        }
    }

    /// Does what is to be done now that the instances are so far.
    pub(super) fn tend(&mut self, steps: &[Step]) -> Tended {
        if self.seen.failure.is_some() {
            return Tended::GivenUp;
        }
        if self.is_time_to_kill(steps) {
            self.kills.pop();
            self.marks = steps.iter().map(|step| step.done).collect();
            self.away = Some(Instant::now());
            if let Err(error) = self.pool.restart() {
                self.seen.failure = Some(format!("the server was not started again: {error:#}"));
                return Tended::GivenUp;
            }
        }
        let pause = self.look_again(LOOK_AFTER);
        let is_due = self.looked.is_none_or(|looked| looked.elapsed() >= pause);
        if is_due && (self.away.is_some() || self.pool.is_others()) {
            self.look();
            self.looked = Some(Instant::now());
        }
        match self.seen.failure {
            Some(_) => Tended::GivenUp,
            None => Tended::GoOn,
        }
    }

    /// How many requests an instance may do before the next restart: one that waits for the server longer than others
    /// shall not find that these have done everything meanwhile. `None` if there is no further restart.
    pub(super) fn allowance(&self) -> Option<u64> {
        let next = self.kills.last()?;
        Some(next / self.instances + self.lead)
    }

    /// Whether enough is done, the server is there, and every instance has used it since it was killed last.
    fn is_time_to_kill(&self, steps: &[Step]) -> bool {
        let done = steps.iter().map(|step| step.done).sum::<u64>();
        // One request was under way at the kill; the next one has met the new server as a whole.
        let mut since = steps.iter().zip(&self.marks);
        self.away.is_none()
            && self.kills.last().is_some_and(|next| *next <= done)
            && since.all(|(step, mark)| step.has_ended || step.done >= mark + 2)
    }

    /// How long to wait for the next look, at most so long.
    pub(super) fn look_again(&self, most: Duration) -> Duration {
        match self.away {
            Some(_) => LOOK_FOR,
            None => most,
        }
    }

    fn look(&mut self) {
        match self.pool.look() {
            Ok(Sight::Same) => {
                self.away = None;
                self.was_away = None;
            }
            Ok(Sight::Another {
                incarnation,
                objects,
            }) => {
                let away = self.away.take().map(|away| away.elapsed());
                let away = self.was_away.take().or(away);
                self.seen.list.push(Restart {
                    incarnation,
                    seconds_away: away.unwrap_or_default().as_secs_f64(),
                    objects,
                });
            }
            Ok(missed) => {
                let since = *self.away.get_or_insert_with(Instant::now);
                if missed == Sight::Back {
                    self.was_away.get_or_insert_with(|| since.elapsed());
                }
                // The instances have their own patience with a server of others.
                if !self.pool.is_others() && since.elapsed() > self.patience {
                    self.seen.failure = Some(format!(
                        "the server was started again and waited for in vain for {} s",
                        self.patience.as_secs()
                    ));
                }
            }
            Err(error) => self.seen.failure = Some(format!("{error:#}")),
        }
    }

    /// Waits until a server that is away is back, and says what was seen.
    pub(super) fn finish(mut self, interrupts: &Interrupts) -> Restarts {
        while self.away.is_some() && !self.pool.is_others() && !interrupts.has_come() {
            if self.tend(&[]) == Tended::GivenUp {
                break;
            }
            std::thread::sleep(LOOK_FOR);
        }
        self.seen
    }
}

/// So many places that part so many requests evenly, the last one first.
fn spread(requests: u64, places: u64) -> Vec<u64> {
    let place =
        |number: u64| (u128::from(requests) * u128::from(number) / u128::from(places + 1)) as u64;
    (1..=places)
        .rev()
        .map(|number| place(number).max(1))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_spread_evenly_and_lie_inside() {
        assert_eq!(spread(100, 3), [75, 50, 25]);
        assert_eq!(spread(4, 3), [3, 2, 1]);
        assert!(spread(10, 0).is_empty());
        assert_eq!(spread(10_000_000, 1000).len(), 1000);
    }
}
