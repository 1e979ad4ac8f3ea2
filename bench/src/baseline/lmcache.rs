//! LMCache's own benchmark of its storage, where it is installed: `lmcache bench l2`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::Places;
use crate::daemon::find_program;

/// LMCache's megabyte.
const MB: f64 = (1 << 20) as f64;

/// What it reports of one operation, in GB/s (10⁹ bytes a second).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Operation {
    /// `store`, `lookup` or `load`.
    pub(crate) name: String,
    pub(crate) mean: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

#[derive(Deserialize)]
struct Output {
    metrics: serde_json::Map<String, serde_json::Value>,
}

#[derive(Deserialize)]
struct Section {
    operation: String,
    total_keys: u64,
    total_success: u64,
    throughput_avg_mbps: f64,
    throughput_min_mbps: f64,
    throughput_max_mbps: f64,
}

/// Stores and loads objects of so many bytes through LMCache's `fs` adapter in `dir`.
pub(crate) fn bench_files(
    places: &Places,
    dir: &Path,
    bytes: usize,
    objects: usize,
    rounds: usize,
) -> Result<Vec<Operation>> {
    let program = match &places.lmcache {
        Some(program) => program.clone(),
        None => find_program(&["lmcache"])?,
    };
    let adapter = serde_json::json!({"type": "fs", "base_path": dir});
    let result = dir.join("result.json");
    let output = Command::new(&program)
        .args(["bench", "l2", "--format", "json", "--quiet", "--l2-adapter"])
        .arg(adapter.to_string())
        .args(["--data-size-kb", &(bytes >> 10).to_string()])
        .args(["--num-keys", &objects.to_string()])
        .args(["--rounds", &rounds.to_string()])
        .arg("--output")
        .arg(&result)
        .output()
        .with_context(|| format!("start {}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().last().unwrap_or("it said nothing");
    ensure!(
        output.status.success(),
        "lmcache bench l2 ended with {}: {last}",
        output.status
    );
    let text =
        std::fs::read_to_string(&result).context("read what lmcache bench l2 has written")?;
    parse(&text)
}

fn parse(text: &str) -> Result<Vec<Operation>> {
    let output: Output = serde_json::from_str(text).context("the output of lmcache bench l2")?;
    let sections = output.metrics.into_iter();
    let operations = sections.filter(|(key, _)| key.starts_with("op_"));
    operations
        .map(|(_, section)| {
            let section: Section = serde_json::from_value(section)?;
            ensure!(
                section.operation == "Lookup" || section.total_success == section.total_keys,
                "of {} keys {} went through in {}",
                section.total_keys,
                section.total_success,
                section.operation
            );
            Ok(Operation {
                name: section.operation.to_lowercase(),
                mean: section.throughput_avg_mbps * MB / 1e9,
                least: section.throughput_min_mbps * MB / 1e9,
                most: section.throughput_max_mbps * MB / 1e9,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The form in which LMCache 0.5.6 reports.
    const OUTPUT: &str = r#"{
      "title": "L2 Adapter Benchmark Result",
      "metrics": {
        "config": {"num_keys": 32, "keys_per_round": 32},
        "op_0": {"operation": "Store", "rounds": 2, "rounds_timed_out": 0, "total_keys": 64, "total_success": 64,
          "duration_avg_ms": 10.0, "throughput_avg_mbps": 1000.0, "throughput_min_mbps": 900.0,
          "throughput_max_mbps": 1100.0, "ops_per_sec_avg": 3200.0},
        "op_1": {"operation": "Load", "total_keys": 64, "total_success": 63,
          "throughput_avg_mbps": 1.0, "throughput_min_mbps": 1.0, "throughput_max_mbps": 1.0}
      }
    }"#;

    #[test]
    fn its_report_is_read_in_our_units() {
        let whole = OUTPUT.replace("63", "64");
        let found = parse(&whole).unwrap();
        assert_eq!(found[0].name, "store");
        assert_eq!(found[0].mean, 1.048_576);
        assert_eq!(found[1].name, "load");
    }

    #[test]
    fn a_run_that_lost_keys_is_no_figure() {
        let error = parse(OUTPUT).unwrap_err().to_string();
        assert_eq!(error, "of 64 keys 63 went through in Load");
        parse("{}").unwrap_err();
    }
}
