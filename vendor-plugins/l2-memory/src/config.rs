use std::time::Duration;

use serde::Deserialize;

use crate::Error;

const GIB: f64 = (1_u64 << 30) as f64;

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
                positive("max_size_bytes", bytes as f64, "")?;
                bytes
            }
            (gib, None) => bytes(positive("max_size_gb", gib.unwrap_or(1.0), "")?),
        };
        let bandwidth = raw.bandwidth_gb.map(|gib| {
            let hint = "; leave it out for transfers that take no time";
            positive("bandwidth_gb", gib, hint)
        });
        let latency = match raw.latency_ms {
            None | Some(0.0) => Duration::ZERO,
            Some(ms) => {
                let seconds = positive("latency_ms", ms, ", or 0")? / 1000.0;
                Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
            }
        };
        let workers = raw.num_workers.unwrap_or(4);
        positive("num_workers", workers as f64, "")?;
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
            capacity: bytes(positive("max_size_gb", raw.max_size_gb, "")?),
            bandwidth: Some(positive("mock_bandwidth_gb", raw.mock_bandwidth_gb, "")? * GIB),
            latency: Duration::ZERO,
            workers: 4,
        }))
    }
}

fn positive(field: &'static str, found: f64, hint: &'static str) -> Result<f64, Error> {
    match found > 0.0 && found.is_finite() {
        true => Ok(found),
        false => Err(Error::NotPositive { field, found, hint }),
    }
}

fn bytes(gib: f64) -> u64 {
    // A float becomes the nearest integer there is; nothing is larger than an integer's limit.
    ((gib * GIB) as u64).max(1)
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
    fn a_number_that_is_not_positive_is_named() {
        for (field, value) in [
            ("max_size_gb", json!(0)),
            ("max_size_gb", json!(-1)),
            ("max_size_bytes", json!(0)),
            ("bandwidth_gb", json!(0)),
            ("latency_ms", json!(-0.1)),
            ("num_workers", json!(0)),
        ] {
            let error = memory(json!({field: value})).unwrap_err();
            assert!(
                error.contains(field) && error.contains("above 0"),
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
