use std::ops::RangeInclusive;
use std::time::Duration;

use serde::Deserialize;

use crate::Error;

const GIB: f64 = (1_u64 << 30) as f64;
/// GiB: 1 byte to 1 EiB.
const SIZES: RangeInclusive<f64> = 1.0 / GIB..=GIB;
/// Bytes: 1 to 1 EiB.
const BYTES: RangeInclusive<f64> = 1.0..=GIB * GIB;
/// GiB per second: the slowest takes a second for a KiB.
const BANDWIDTHS: RangeInclusive<f64> = 1.0 / (1_u64 << 20) as f64..=GIB;
/// Milliseconds: up to an hour.
const LATENCIES: RangeInclusive<f64> = 1e-6..=3.6e6;
/// Threads.
const WORKERS: RangeInclusive<f64> = 1.0..=256.0;

/// The parameters of `memory`. Unknown ones are ignored, as LMCache does.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "RawMemoryConfig")]
pub struct MemoryConfig {
    /// Bytes that objects may take.
    pub capacity: u64,
    /// Simulated bytes per second; `None` if transfers take no time.
    pub bandwidth: Option<f64>,
    /// Simulated latency of a transfer.
    pub latency: Duration,
    /// Threads.
    pub workers: usize,
}

#[derive(Deserialize)]
struct RawMemoryConfig {
    max_size_gb: Option<f64>,
    max_size_bytes: Option<u64>,
    bandwidth_gb: Option<f64>,
    latency_ms: Option<f64>,
    num_workers: Option<usize>,
}

/// The parameters of `mock`, which are LMCache's.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "RawMockConfig")]
pub struct MockConfig(MemoryConfig);

#[derive(Deserialize)]
struct RawMockConfig {
    max_size_gb: f64,
    mock_bandwidth_gb: f64,
}

impl From<MockConfig> for MemoryConfig {
    fn from(config: MockConfig) -> Self {
        config.0
    }
}

impl TryFrom<RawMemoryConfig> for MemoryConfig {
    type Error = Error;

    fn try_from(raw: RawMemoryConfig) -> Result<Self, Error> {
        let capacity = match (raw.max_size_gb, raw.max_size_bytes) {
            (Some(_), Some(_)) => return Err(Error::TwoSizes),
            (None, Some(bytes)) => {
                within("max_size_bytes", bytes as f64, BYTES, "")?;
                bytes
            }
            (gib, None) => bytes(within("max_size_gb", gib.unwrap_or(1.0), SIZES, "")?),
        };
        let bandwidth = raw.bandwidth_gb.map(|gib| {
            let hint = "; leave it out for transfers that take no time";
            within("bandwidth_gb", gib, BANDWIDTHS, hint)
        });
        let latency = match raw.latency_ms {
            None | Some(0.0) => Duration::ZERO,
            Some(ms) => {
                let seconds = within("latency_ms", ms, LATENCIES, ", or 0")? / 1000.0;
                Duration::from_secs_f64(seconds)
            }
        };
        let workers = raw.num_workers.unwrap_or(4);
        within("num_workers", workers as f64, WORKERS, "")?;
        Ok(Self {
            capacity,
            bandwidth: bandwidth.transpose()?.map(|gib| gib * GIB),
            latency,
            workers,
        })
    }
}

impl TryFrom<RawMockConfig> for MockConfig {
    type Error = Error;

    fn try_from(raw: RawMockConfig) -> Result<Self, Error> {
        Ok(Self(MemoryConfig {
            capacity: bytes(within("max_size_gb", raw.max_size_gb, SIZES, "")?),
            bandwidth: Some(
                within("mock_bandwidth_gb", raw.mock_bandwidth_gb, BANDWIDTHS, "")? * GIB,
            ),
            latency: Duration::ZERO,
            workers: 4,
        }))
    }
}

fn within(
    field: &'static str,
    found: f64,
    range: RangeInclusive<f64>,
    hint: &'static str,
) -> Result<f64, Error> {
    if range.contains(&found) {
        return Ok(found);
    }
    let (least, most) = range.into_inner();
    Err(Error::Number {
        field,
        found,
        least,
        most,
        hint,
    })
}

fn bytes(gib: f64) -> u64 {
    (gib * GIB) as u64
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn memory(parameters: Value) -> Result<MemoryConfig, String> {
        serde_json::from_value(parameters).map_err(|error| error.to_string())
    }

    fn mock(parameters: Value) -> Result<MemoryConfig, String> {
        let config = serde_json::from_value::<MockConfig>(parameters);
        config.map(Into::into).map_err(|error| error.to_string())
    }

    #[test]
    fn memory_needs_no_parameter() {
        let config = memory(json!({})).unwrap();
        assert_eq!((config.capacity, config.bandwidth), (1 << 30, None));
        assert_eq!((config.latency, config.workers), (Duration::ZERO, 4));
    }

    #[test]
    fn sizes_are_gib_or_bytes() {
        assert_eq!(memory(json!({"max_size_gb": 2})).unwrap().capacity, 2 << 30);
        assert_eq!(
            memory(json!({"max_size_gb": 0.5})).unwrap().capacity,
            1 << 29
        );
        assert_eq!(memory(json!({"max_size_bytes": 77})).unwrap().capacity, 77);
        let error = memory(json!({"max_size_gb": 1, "max_size_bytes": 1})).unwrap_err();
        assert!(error.contains("both given"), "{error}");
    }

    #[test]
    fn the_simulation_is_of_gib_per_second_and_milliseconds() {
        let config = memory(json!({"bandwidth_gb": 0.25, "latency_ms": 1.5, "num_workers": 2}));
        let config = config.unwrap();
        assert_eq!(config.bandwidth, Some((1_u64 << 28) as f64));
        assert_eq!(
            (config.latency, config.workers),
            (Duration::from_micros(1500), 2)
        );
    }

    #[test]
    fn a_number_that_cannot_be_is_named_with_what_can() {
        for (field, value) in [
            ("max_size_gb", json!(0)),
            ("max_size_gb", json!(-1)),
            ("max_size_bytes", json!(0)),
            ("bandwidth_gb", json!(0)),
            ("latency_ms", json!(-0.1)),
            ("num_workers", json!(0)),
            ("max_size_gb", json!(1e30)),
            ("max_size_gb", json!(1e-300)),
            ("max_size_bytes", json!(u64::MAX)),
            ("bandwidth_gb", json!(1e-300)),
            ("latency_ms", json!(1e300)),
            ("num_workers", json!(1_000_000)),
        ] {
            let error = memory(json!({field: value})).unwrap_err();
            assert!(
                error.contains(field) && error.contains("expected a number from"),
                "{error}"
            );
        }
        let error = memory(json!({"max_size_gb": "much"})).unwrap_err();
        assert!(error.contains("much"), "{error}");
    }

    #[test]
    fn mock_takes_what_lmcache_takes() {
        let config = mock(json!({"max_size_gb": 1, "mock_bandwidth_gb": 10, "eviction": {}}));
        assert_eq!(config.unwrap().bandwidth, Some(10.0 * GIB));
        for (missing, parameters) in [
            ("max_size_gb", json!({"mock_bandwidth_gb": 1})),
            ("mock_bandwidth_gb", json!({"max_size_gb": 1})),
        ] {
            let error = mock(parameters).unwrap_err();
            assert!(error.contains(missing), "{error}");
        }
        let error = mock(json!({"max_size_gb": 1, "mock_bandwidth_gb": 0})).unwrap_err();
        assert!(error.contains("mock_bandwidth_gb"), "{error}");
    }
}
