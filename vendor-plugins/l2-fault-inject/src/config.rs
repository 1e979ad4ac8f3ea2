use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::Error;

/// What fails, and how often. Unknown parameters are ignored, as LMCache does.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(try_from = "Raw")]
pub struct FaultInjectConfig {
    /// The configuration of the backend that is wrapped.
    pub inner: Map<String, Value>,
    /// Chooses other tasks and keys for the same rates.
    pub seed: u64,
    /// Share of keys whose loads always fail.
    pub drop_rate: f64,
    /// Places of a load batch that always fail, from its head.
    pub gap_indices: Vec<usize>,
    /// The same as shares of the batch, from its tail.
    pub gap_tail_ratios: Vec<f64>,
    /// Stores.
    pub store: Operation,
    /// Lookups.
    pub lookup: Operation,
    /// Loads.
    pub load: Operation,
    /// Deletes, which neither hang nor are lost.
    pub delete: Operation,
    /// Share of loaded objects of which a bit is flipped.
    pub corrupt_rate: f64,
    /// Share of loaded objects of which only a half comes.
    pub short_read_rate: f64,
}

/// What happens to tasks of one kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Operation {
    /// Share that fails.
    pub error_rate: f64,
    /// Share that never ends and keeps its buffers.
    pub hang_rate: f64,
    /// Share of whose end nobody is told.
    pub lost_rate: f64,
    /// How long a result is held back, at most.
    pub delay: Duration,
}

#[derive(Deserialize)]
struct Raw {
    inner: Map<String, Value>,
    #[serde(default)]
    rate: f64,
    #[serde(default)]
    seed: i64,
    #[serde(default)]
    gap_indices: Vec<usize>,
    #[serde(default)]
    gap_tail_ratios: Vec<f64>,
    #[serde(default)]
    store_error_rate: f64,
    #[serde(default)]
    store_hang_rate: f64,
    #[serde(default)]
    store_lost_rate: f64,
    #[serde(default)]
    store_delay_ms: f64,
    #[serde(default)]
    lookup_error_rate: f64,
    #[serde(default)]
    lookup_hang_rate: f64,
    #[serde(default)]
    lookup_lost_rate: f64,
    #[serde(default)]
    lookup_delay_ms: f64,
    #[serde(default)]
    load_error_rate: f64,
    #[serde(default)]
    load_hang_rate: f64,
    #[serde(default)]
    load_lost_rate: f64,
    #[serde(default)]
    load_delay_ms: f64,
    #[serde(default)]
    delete_error_rate: f64,
    #[serde(default)]
    delete_delay_ms: f64,
    #[serde(default)]
    corrupt_rate: f64,
    #[serde(default)]
    short_read_rate: f64,
}

impl TryFrom<Raw> for FaultInjectConfig {
    type Error = Error;

    fn try_from(raw: Raw) -> Result<Self, Error> {
        for ratio in &raw.gap_tail_ratios {
            share("gap_tail_ratios", *ratio)?;
        }
        Ok(Self {
            inner: raw.inner,
            seed: raw.seed.cast_unsigned(),
            drop_rate: share("rate", raw.rate)?,
            gap_indices: raw.gap_indices,
            gap_tail_ratios: raw.gap_tail_ratios,
            store: Operation {
                error_rate: share("store_error_rate", raw.store_error_rate)?,
                hang_rate: share("store_hang_rate", raw.store_hang_rate)?,
                lost_rate: share("store_lost_rate", raw.store_lost_rate)?,
                delay: delay("store_delay_ms", raw.store_delay_ms)?,
            },
            lookup: Operation {
                error_rate: share("lookup_error_rate", raw.lookup_error_rate)?,
                hang_rate: share("lookup_hang_rate", raw.lookup_hang_rate)?,
                lost_rate: share("lookup_lost_rate", raw.lookup_lost_rate)?,
                delay: delay("lookup_delay_ms", raw.lookup_delay_ms)?,
            },
            load: Operation {
                error_rate: share("load_error_rate", raw.load_error_rate)?,
                hang_rate: share("load_hang_rate", raw.load_hang_rate)?,
                lost_rate: share("load_lost_rate", raw.load_lost_rate)?,
                delay: delay("load_delay_ms", raw.load_delay_ms)?,
            },
            delete: Operation {
                error_rate: share("delete_error_rate", raw.delete_error_rate)?,
                delay: delay("delete_delay_ms", raw.delete_delay_ms)?,
                ..Operation::default()
            },
            corrupt_rate: share("corrupt_rate", raw.corrupt_rate)?,
            short_read_rate: share("short_read_rate", raw.short_read_rate)?,
        })
    }
}

fn share(field: &'static str, found: f64) -> Result<f64, Error> {
    match (0.0..=1.0).contains(&found) {
        true => Ok(found),
        false => Err(Error::Share { field, found }),
    }
}

fn delay(field: &'static str, found: f64) -> Result<Duration, Error> {
    Duration::try_from_secs_f64(found / 1000.0).map_err(|_| Error::Milliseconds { field, found })
}

impl FaultInjectConfig {
    /// Whether the load at this place of a batch of so many always fails.
    pub(crate) fn is_gap(&self, index: usize, batch: usize) -> bool {
        // Halves are rounded to the even place, as Python's `round` does.
        let place =
            |ratio: &f64| ((1.0 - ratio) * (batch.saturating_sub(1)) as f64).round_ties_even();
        self.gap_indices.contains(&index)
            || self
                .gap_tail_ratios
                .iter()
                .any(|ratio| place(ratio) as usize == index)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(parameters: Value) -> Result<FaultInjectConfig, String> {
        serde_json::from_value(parameters).map_err(|error| error.to_string())
    }

    #[test]
    fn the_inner_backend_is_all_that_is_required() {
        let config = read(json!({"inner": {"type": "fs"}, "unknown": 1})).unwrap();
        assert_eq!(config.inner["type"], "fs");
        assert_eq!(
            (config.store, config.drop_rate),
            (Operation::default(), 0.0)
        );
        assert!(read(json!({})).unwrap_err().contains("inner"));
        assert!(read(json!({"inner": "fs"})).is_err());
    }

    #[test]
    fn what_is_no_share_is_named() {
        for field in [
            "rate",
            "store_error_rate",
            "lookup_hang_rate",
            "load_lost_rate",
            "delete_error_rate",
            "corrupt_rate",
            "short_read_rate",
        ] {
            for value in [-0.1, 1.1] {
                let error = read(json!({"inner": {}, field: value})).unwrap_err();
                assert!(
                    error.contains(field) && error.contains("from 0 to 1"),
                    "{error}"
                );
            }
            read(json!({"inner": {}, field: 1})).unwrap();
        }
        let error = read(json!({"inner": {}, "gap_tail_ratios": [0.5, 2]})).unwrap_err();
        assert!(error.contains("gap_tail_ratios is 2"), "{error}");
        let error = read(json!({"inner": {}, "load_delay_ms": -1})).unwrap_err();
        assert!(error.contains("load_delay_ms"), "{error}");
    }

    #[test]
    fn gaps_are_counted_from_the_head_or_as_shares_from_the_tail() {
        let config = FaultInjectConfig {
            gap_indices: vec![2],
            gap_tail_ratios: vec![0.0, 1.0],
            ..FaultInjectConfig::default()
        };
        let gaps = |batch| {
            (0..batch)
                .filter(|index| config.is_gap(*index, batch))
                .collect::<Vec<_>>()
        };
        assert_eq!(gaps(6), [0, 2, 5]);
        assert_eq!(gaps(1), [0]);
        assert!(gaps(0).is_empty());
        let middle = FaultInjectConfig {
            gap_tail_ratios: vec![0.5],
            ..FaultInjectConfig::default()
        };
        assert!(middle.is_gap(2, 5) && middle.is_gap(2, 6) && middle.is_gap(4, 8));
    }
}
