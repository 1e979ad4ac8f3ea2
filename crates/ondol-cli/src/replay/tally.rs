//! What an instance counts and measures.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Counts and times of one instance, or of several.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Tally {
    pub(super) requests: u64,
    pub(super) requests_fully_served: u64,
    pub(super) blocks: u64,
    pub(super) block_hits: u64,
    pub(super) stored: u64,
    pub(super) already_present: u64,
    /// Blocks that were skipped, as the pool was full even after this instance had let go of everything.
    pub(super) alloc_failures: u64,
    /// Blocks that their request names a second time, and that were not there for it the first time.
    pub(super) duplicates: u64,
    /// Calls that failed as the server was away or could not record, and were repeated.
    pub(super) repeated_calls: u64,
    /// By incarnation of the server, of all but the first: the blocks that hit under it and were written before it.
    pub(super) warm_hits: BTreeMap<u64, u64>,
    pub(super) verify_failures: u64,
    /// Bytes of the blocks that hit.
    pub(super) bytes_read: u64,
    /// Bytes that were compared, those of a block once when it came and once before it was dropped.
    pub(super) bytes_verified: u64,
    /// Bytes of the blocks that were written, stored or not.
    pub(super) bytes_written: u64,
    pub(super) verifying: Duration,
    /// Time spent on writing and storing.
    pub(super) writing: Duration,
    pub(super) match_prefix: Timings,
    pub(super) verify: Timings,
    pub(super) alloc: Timings,
    pub(super) store: Timings,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        let Self {
            requests,
            requests_fully_served,
            blocks,
            block_hits,
            stored,
            already_present,
            alloc_failures,
            duplicates,
            repeated_calls,
            warm_hits,
            verify_failures,
            bytes_read,
            bytes_verified,
            bytes_written,
            verifying,
            writing,
            match_prefix,
            verify,
            alloc,
            store,
        } = other;
        self.requests += requests;
        self.requests_fully_served += requests_fully_served;
        self.blocks += blocks;
        self.block_hits += block_hits;
        self.stored += stored;
        self.already_present += already_present;
        self.alloc_failures += alloc_failures;
        self.duplicates += duplicates;
        self.repeated_calls += repeated_calls;
        for (incarnation, hits) in warm_hits {
            *self.warm_hits.entry(*incarnation).or_default() += hits;
        }
        self.verify_failures += verify_failures;
        self.bytes_read += bytes_read;
        self.bytes_verified += bytes_verified;
        self.bytes_written += bytes_written;
        self.verifying += *verifying;
        self.writing += *writing;
        self.match_prefix.add(match_prefix);
        self.verify.add(verify);
        self.alloc.add(alloc);
        self.store.add(store);
    }

    pub(super) fn read_gbps(&self) -> f64 {
        gbps(self.bytes_verified, self.verifying)
    }

    pub(super) fn write_gbps(&self) -> f64 {
        gbps(self.bytes_written, self.writing)
    }
}

fn gbps(bytes: u64, time: Duration) -> f64 {
    if time.is_zero() {
        return 0.0;
    }
    bytes as f64 / time.as_secs_f64() / 1e9
}

/// How long an operation took, each time; between processes as pairs of nanoseconds and how often.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "Vec<(u64, u64)>", into = "Vec<(u64, u64)>")]
pub(super) struct Timings(Histogram<u64>);

impl Timings {
    /// Does `work` and notes the time it took.
    pub(super) fn time<T>(&mut self, work: impl FnOnce() -> T) -> (T, Duration) {
        let start = Instant::now();
        let result = work();
        let elapsed = start.elapsed();
        self.note(elapsed);
        (result, elapsed)
    }

    /// Does `work` and notes the time it took if it succeeded.
    pub(super) fn time_success<T, E>(
        &mut self,
        work: impl FnOnce() -> Result<T, E>,
    ) -> (Result<T, E>, Duration) {
        let start = Instant::now();
        let result = work();
        let elapsed = start.elapsed();
        if result.is_ok() {
            self.note(elapsed);
        }
        (result, elapsed)
    }

    fn note(&mut self, elapsed: Duration) {
        let nanoseconds = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        self.0.saturating_record(nanoseconds);
    }

    pub(super) fn count(&self) -> u64 {
        self.0.len()
    }

    /// In microseconds; 0 if there is none.
    pub(super) fn percentile(&self, percentile: f64) -> f64 {
        self.0.value_at_percentile(percentile) as f64 / 1e3
    }

    fn add(&mut self, other: &Self) {
        for (value, count) in other.pairs() {
            self.0.saturating_record_n(value, count);
        }
    }

    fn pairs(&self) -> impl Iterator<Item = (u64, u64)> {
        let recorded = self.0.iter_recorded();
        recorded.map(|step| (step.value_iterated_to(), step.count_at_value()))
    }
}

impl Default for Timings {
    fn default() -> Self {
        const HOUR: u64 = 3_600_000_000_000;
        // The bounds are in order and three digits are few, which is all that can be wrong.
        let histogram = Histogram::new_with_bounds(1, HOUR, 3);
        Self(histogram.unwrap_or_else(|error| unreachable!("{error}")))
    }
}

impl From<Vec<(u64, u64)>> for Timings {
    fn from(pairs: Vec<(u64, u64)>) -> Self {
        let mut timings = Self::default();
        for (value, count) in pairs {
            timings.0.saturating_record_n(value, count);
        }
        timings
    }
}

impl From<Timings> for Vec<(u64, u64)> {
    fn from(timings: Timings) -> Self {
        timings.pairs().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_hits_survive_the_way_between_processes_and_are_added_by_incarnation() {
        let mut sum = Tally::default();
        for (incarnation, hits) in [(u64::MAX, 5), (7, 2), (u64::MAX, 1)] {
            let one = Tally {
                warm_hits: BTreeMap::from([(incarnation, hits)]),
                ..Tally::default()
            };
            let text = serde_json::to_string(&one).unwrap();
            sum.add(&serde_json::from_str(&text).unwrap());
        }
        assert_eq!(sum.warm_hits, BTreeMap::from([(7, 2), (u64::MAX, 6)]));
    }

    #[test]
    fn timings_survive_the_way_between_processes_and_are_merged() {
        let of = |values: &[u64]| {
            let pairs: Vec<_> = values.iter().map(|value| (*value, 1)).collect();
            Timings::from(pairs)
        };
        let slow = of(&[5_000_000, 7_000_000, u64::MAX]);
        let text = serde_json::to_string(&slow).unwrap();
        let mut merged = of(&[1_000, 2_000, 3_000, 4_000]);
        merged.add(&serde_json::from_str(&text).unwrap());
        assert_eq!(merged.count(), 7);
        let near = |percentile, expected: f64| {
            let found = merged.percentile(percentile);
            assert!((found - expected).abs() <= expected / 500.0, "{found}");
        };
        near(0.0, 1.0);
        near(50.0, 4.0);
        near(75.0, 7_000.0);
        assert_eq!(Timings::default().percentile(99.0), 0.0);
    }
}
