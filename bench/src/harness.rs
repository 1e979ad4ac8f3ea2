//! Turns: every contestant of a case once to warm up, then all of them in turn, round after round, so that what else happens
//! on the machine hits all alike.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::measure::Measure;
use crate::meter::{Meter, Sample};
use crate::report::{Case, Role, Row, markdown};
use crate::stats;

type Turn<'a> = Box<dyn FnMut(&mut Meter) -> Result<()> + 'a>;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    /// How long a turn lasts whose work has no end of its own.
    pub(crate) window: Duration,
}

/// One of those that do the same work.
pub(crate) struct Contestant<'a> {
    name: String,
    role: Role,
    server: Option<u32>,
    turn: Turn<'a>,
}

impl<'a> Contestant<'a> {
    /// A contestant whose turn is what `turn` lets the meter measure.
    pub(crate) fn new(
        name: impl Into<String>,
        role: Role,
        turn: impl FnMut(&mut Meter) -> Result<()> + 'a,
    ) -> Self {
        Self {
            name: name.into(),
            role,
            server: None,
            turn: Box::new(turn),
        }
    }

    /// The same with a server, whose processor time counts.
    pub(crate) fn with_server(mut self, server: Option<u32>) -> Self {
        self.server = server;
        self
    }

    fn take_turn(&mut self, window: Duration) -> Result<Sample> {
        let mut meter = Meter::new(window, self.server);
        (self.turn)(&mut meter).with_context(|| format!("contestant {:?}", self.name))?;
        Ok(meter.finish())
    }
}

impl Effort {
    /// Lets the contestants take turns, and puts what was measured into the case.
    pub(crate) fn contest(
        self,
        mut case: Case,
        measure: Measure,
        contestants: &mut [Contestant<'_>],
    ) -> Result<Case> {
        let during = || format!("case {:?}", case.name);
        for contestant in &mut *contestants {
            contestant.take_turn(self.window).with_context(during)?;
        }
        let mut samples = vec![Vec::new(); contestants.len()];
        for _ in 0..self.rounds {
            for (contestant, samples) in contestants.iter_mut().zip(&mut samples) {
                samples.push(contestant.take_turn(self.window).with_context(during)?);
            }
        }
        let rows = contestants.iter().zip(&samples);
        case.rows = rows
            .map(|(contestant, samples)| row(contestant, samples, measure))
            .collect();
        case.compare(measure);
        println!("{}", markdown::lines(&case, measure));
        Ok(case)
    }
}

fn row(contestant: &Contestant<'_>, samples: &[Sample], measure: Measure) -> Row {
    let values = samples.iter().map(|sample| measure.of(sample)).collect();
    let mut row = Row::of(&contestant.name, contestant.role, values);
    let mut all = Sample::default();
    samples.iter().for_each(|sample| all.add(sample));
    let count = measure.count(&all);
    row.latency_ns = all
        .latencies
        .as_ref()
        .map(|of| [0.5, 0.99, 0.999].map(|share| stats::quantile(of, share)));
    row.cpu_ns = Some(all.cpu.as_secs_f64() * 1e9 / count);
    row.server_cpu_ns = all.server_cpu.map(|cpu| cpu.as_secs_f64() * 1e9 / count);
    row.instructions = all.instructions.map(|of| of as f64 / count);
    row
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn contestants_take_turns_and_the_first_round_does_not_count() {
        let order = RefCell::new(String::new());
        let contestant = |name: char, work: u64| {
            let order = &order;
            Contestant::new(name, Role::Ours, move |meter: &mut Meter| {
                order.borrow_mut().push(name);
                meter.time(work, || Ok(()))
            })
        };
        let mut contestants = [contestant('A', 1), contestant('B', 2)];
        let effort = Effort {
            rounds: 3,
            window: Duration::ZERO,
        };
        let measure = Measure::PerSecond("objects");
        let case = effort.contest(Case::named("x"), measure, &mut contestants);
        let case = case.unwrap();
        assert_eq!(*order.borrow(), "ABABABAB");
        assert!(case.rows.iter().all(|row| row.rounds.len() == 3));
        assert!(case.rows[0].is_reference && case.rows[1].ratio.is_some());
    }

    #[test]
    fn an_error_says_whose_it_is() {
        let fails = Contestant::new("broken", Role::Peer, |_: &mut Meter| anyhow::bail!("gone"));
        let effort = Effort {
            rounds: 1,
            window: Duration::ZERO,
        };
        let result = effort.contest(Case::named("1,024"), Measure::Bandwidth, &mut [fails]);
        let said = format!("{:#}", result.unwrap_err());
        assert_eq!(said, "case \"1,024\": contestant \"broken\": gone");
    }
}
