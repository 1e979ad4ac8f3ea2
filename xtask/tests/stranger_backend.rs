//! A storage backend and a server of it outside this workspace, as somebody makes them who has the pages alone.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use xtask::workspace::{Workspace, cargo, said};

/// What a command that must succeed says.
fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", said(&output));
    said(&output)
}

/// The figures of a replay over a pool that evicts most of what is stored, with or without storage behind it.
fn replay(server: &Path, storage: Option<&Value>) -> Value {
    let mut command = Command::new(server);
    // One request after the other, so that nothing but storage makes a difference.
    command.args(["replay", "--lockstep", "--json", "--quiet", "--requests"]);
    command.args(["400", "--pool", "4MiB", "--block-bytes", "4096"]);
    if let Some(storage) = storage {
        command.args(["--l2-adapter", &storage.to_string()]);
    }
    let figures: Value = serde_json::from_str(&succeeds(&mut command)).unwrap();
    assert_eq!(figures["verify_failures"], 0, "{figures}");
    assert_eq!(figures["alloc_failures"], 0, "{figures}");
    figures
}

#[test]
fn a_strangers_backend_passes_its_tests_the_check_and_serves_a_replay() {
    let workspace = Workspace::load().unwrap();
    let dir = workspace.root.join("tests/stranger-backend");
    // The versions that are downloaded already.
    std::fs::copy(workspace.root.join("Cargo.lock"), dir.join("Cargo.lock")).unwrap();
    let cargo = |arguments: &[&str]| {
        let mut cargo = cargo();
        cargo.args(arguments).arg("--target-dir");
        succeeds(cargo.arg(workspace.target()).current_dir(&dir))
    };

    // Its own tests, and the conformance suite.
    let tested = cargo(&["test", "--quiet"]);
    for passed in ["10 passed", "23 passed"] {
        assert!(tested.contains(passed), "{tested}");
    }
    let mut check = Command::new(env!("CARGO_BIN_EXE_xtask"));
    let checked = succeeds(check.args(["contract-check", "--plugin"]).arg(&dir));
    assert!(checked.contains("journal_file is linked"), "{checked}");

    cargo(&["build", "--quiet", "--package", "stranger-server"]);
    let server = workspace.target().join("debug/stranger-server");
    let temp = tempfile::tempdir().unwrap();
    let storage = json!({"type": "journal_file", "path": temp.path().join("kv.journal")});
    let without = replay(&server, None);
    let with = replay(&server, Some(&storage));
    let again = replay(&server, Some(&storage));
    let rate = |figures: &Value| figures["hit_rate"].as_f64().unwrap();
    assert!(rate(&with) > rate(&without), "{with}\n{without}");
    // Every block that was stored once is there after a restart.
    assert_eq!(rate(&again), 1.0, "{again}");
    for figures in [&with, &again] {
        assert_ne!(figures["l2_hits"], 0, "{figures}");
        assert_eq!(figures["l2_failures"], 0, "{figures}");
        assert_eq!(figures["l2_corrupt"], 0, "{figures}");
    }
}
