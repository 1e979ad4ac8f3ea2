//! What is said of many measurements: the middle, the spread, percentiles. All of it is here.

use hdrhistogram::Histogram;

/// The longest latency that is told from longer ones, in nanoseconds: a minute.
const LONGEST: u64 = 60_000_000_000;

/// The middle of some values and how far they spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

/// The median, the least and the most; nothing of no values. Values that are no numbers sort last.
pub(crate) fn spread(values: &[f64]) -> Option<Spread> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let (least, most) = (*sorted.first()?, *sorted.last()?);
    let middle = sorted.len() / 2;
    let median = if sorted.len().is_multiple_of(2) {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    } else {
        sorted[middle]
    };
    Some(Spread {
        median,
        least,
        most,
    })
}

/// The median of the ratios of values that were measured in the same rounds: what changes from round to round hits both.
pub(crate) fn paired_ratio(values: &[f64], references: &[f64]) -> Option<f64> {
    let ratios: Vec<f64> = values
        .iter()
        .zip(references)
        .filter(|(_, reference)| **reference > 0.0)
        .map(|(value, reference)| value / reference)
        .collect();
    spread(&ratios).map(|spread| spread.median)
}

/// An empty histogram of nanoseconds, exact to a thousandth.
pub(crate) fn latencies() -> Histogram<u64> {
    let histogram = Histogram::new_with_bounds(1, LONGEST, 3);
    histogram.expect("bounds and digits are in range")
}

/// The latency in nanoseconds that this share of all does not exceed.
pub(crate) fn quantile(latencies: &Histogram<u64>, share: f64) -> f64 {
    latencies.value_at_quantile(share) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_two_in_the_middle() {
        let found = spread(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!(
            found,
            Spread {
                median: 2.5,
                least: 1.0,
                most: 4.0
            }
        );
        assert_eq!(spread(&[7.0]).unwrap().median, 7.0);
        assert_eq!(spread(&[9.0, 1.0, 5.0]).unwrap().median, 5.0);
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn a_ratio_is_of_the_same_round() {
        // Twice as much in each round, though the medians by themselves say 20/9.
        let ratio = paired_ratio(&[2.0, 20.0, 200.0], &[1.0, 10.0, 100.0]).unwrap();
        assert_eq!(ratio, 2.0);
        assert_eq!(
            paired_ratio(&[1.0], &[0.0]),
            None,
            "nothing to compare with"
        );
    }

    #[test]
    fn quantiles_are_of_what_was_recorded() {
        let mut of = latencies();
        for nanos in 1..=1000 {
            of.record(nanos).unwrap();
        }
        assert_eq!(quantile(&of, 0.5), 500.0);
        assert_eq!(quantile(&of, 0.99), 990.0);
        of.saturating_record(LONGEST * 5);
        assert!(
            quantile(&of, 1.0) >= LONGEST as f64,
            "too long is not forgotten"
        );
    }
}
