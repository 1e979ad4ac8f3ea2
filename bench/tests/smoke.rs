//! The whole benchmark, for an instant.

use std::fs;
use std::process::Command;

#[test]
fn every_scenario_runs_and_is_written_down() {
    let out = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_ondol-bench"))
        .arg("--smoke")
        .arg("--out")
        .arg(out.path())
        .output()
        .unwrap();
    let said = format!(
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{said}");

    let json = fs::read_to_string(out.path().join("results.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let sections = json["sections"].as_array().unwrap();
    let names: Vec<_> = sections
        .iter()
        .map(|section| section["name"].as_str().unwrap())
        .collect();
    for scenario in [
        "lookup",
        "retrieve",
        "store",
        "processes",
        "churn",
        "hit-rate",
        "storage",
        "restart",
        "waiting",
    ] {
        assert!(names.contains(&scenario), "{scenario} is not in {names:?}");
    }
    for section in sections {
        for panel in section["panels"].as_array().unwrap() {
            let plot = format!(
                "{}-{}.svg",
                section["name"].as_str().unwrap(),
                panel["name"].as_str().unwrap()
            );
            assert!(out.path().join(&plot).is_file(), "{plot} is missing");
            for case in panel["cases"].as_array().unwrap() {
                for row in case["rows"].as_array().unwrap() {
                    let median = row["median"].as_f64().unwrap_or(f64::NAN);
                    assert!(median.is_finite() && median >= 0.0, "{plot}: {row}");
                }
            }
        }
    }
    let page = fs::read_to_string(out.path().join("README.md")).unwrap();
    // What is missing on this machine is said, and nothing is missing in silence.
    for baseline in ["redis", "memcached", "maru", "foyer", "lmcache"] {
        assert!(
            page.to_lowercase().contains(baseline),
            "{baseline} is not spoken of"
        );
    }
}
