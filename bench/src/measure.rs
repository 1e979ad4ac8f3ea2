//! What is made of a sample: a figure with a unit, of which more or less is better.

use serde::Serialize;

use crate::meter::Sample;
use crate::stats;

const MIB: f64 = (1 << 20) as f64;

/// A figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Measure {
    /// Nanoseconds for each unit of work, which has this name: the median step's, if steps were timed one by one.
    Each(&'static str),
    /// Units of work in a second, in millions.
    Millions(&'static str),
    /// Units of work in a second.
    PerSecond(&'static str),
    /// Work is bytes: 10⁹ of them in a second.
    Bandwidth,
    /// Milliseconds that something took as a whole.
    Milliseconds,
    /// A share of a hundred, of which more is better.
    Percent,
}

impl Measure {
    /// Its unit.
    pub(crate) fn unit(self) -> String {
        match self {
            Self::Each(what) => format!("ns/{what}"),
            Self::Millions(what) => format!("M {what}/s"),
            Self::PerSecond(what) => format!("{what}/s"),
            Self::Bandwidth => "GB/s".into(),
            Self::Milliseconds => "ms".into(),
            Self::Percent => "%".into(),
        }
    }

    /// What processor time and instructions are given for.
    pub(crate) fn counted(self) -> &'static str {
        match self {
            Self::Each("key") | Self::Millions("keys") => "key",
            Self::Each(what) => what,
            Self::Millions(what) | Self::PerSecond(what) => what.trim_end_matches('s'),
            Self::Bandwidth => "MiB",
            Self::Milliseconds | Self::Percent => "time",
        }
    }

    /// How many of those a sample has.
    pub(crate) fn count(self, sample: &Sample) -> f64 {
        match self {
            Self::Bandwidth => sample.work as f64 / MIB,
            _ => sample.work as f64,
        }
    }

    /// The figure of a sample.
    pub(crate) fn of(self, sample: &Sample) -> f64 {
        let (work, seconds) = (sample.work as f64, sample.elapsed.as_secs_f64());
        match self {
            Self::Each(_) => match &sample.latencies {
                Some(latencies) => stats::quantile(latencies, 0.5),
                None => seconds * 1e9 / work,
            },
            Self::Millions(_) => work / seconds / 1e6,
            Self::PerSecond(_) => work / seconds,
            Self::Bandwidth => work / seconds / 1e9,
            Self::Milliseconds => seconds * 1e3 / work,
            Self::Percent => work,
        }
    }

    /// Whether `one` is better than `other`.
    pub(crate) fn is_better(self, one: f64, other: f64) -> bool {
        match self {
            Self::Each(_) | Self::Milliseconds => one < other,
            Self::Millions(_) | Self::PerSecond(_) | Self::Bandwidth | Self::Percent => one > other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn figures_are_in_their_units() {
        let sample = Sample {
            work: 4 << 20,
            elapsed: Duration::from_millis(2),
            ..Sample::default()
        };
        let work = f64::from(4 << 20);
        assert_eq!(Measure::Each("key").of(&sample), 2e6 / work);
        assert_eq!(Measure::PerSecond("objects").of(&sample), work * 500.0);
        assert_eq!(Measure::Millions("keys").of(&sample), work * 500.0 / 1e6);
        assert_eq!(Measure::Bandwidth.of(&sample), work * 500.0 / 1e9);
        assert_eq!(Measure::Bandwidth.count(&sample), 4.0);
        assert_eq!(Measure::PerSecond("objects").counted(), "object");
    }

    #[test]
    fn what_interrupts_a_few_steps_does_not_count_for_the_time_of_one() {
        let mut latencies = stats::latencies();
        for nanos in [100, 100, 100, 5_000_000] {
            latencies.record(nanos).unwrap();
        }
        let sample = Sample {
            work: 4,
            elapsed: Duration::from_millis(5),
            latencies: Some(latencies),
            ..Sample::default()
        };
        assert_eq!(Measure::Each("key").of(&sample), 100.0);
        assert_eq!(Measure::PerSecond("keys").of(&sample), 800.0);
    }

    #[test]
    fn of_times_less_is_better_and_of_speeds_more() {
        assert!(Measure::Each("key").is_better(1.0, 2.0));
        assert!(Measure::Milliseconds.is_better(1.0, 2.0));
        assert!(Measure::Bandwidth.is_better(2.0, 1.0));
        assert!(Measure::PerSecond("objects").is_better(2.0, 1.0));
    }
}
