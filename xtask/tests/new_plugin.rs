//! The skeleton of a plugin crate, out of tree: it builds, passes its tests and the contract check.

use std::path::Path;
use std::process::{Command, Output};

use xtask::workspace::{Workspace, said};

fn xtask(arguments: &[&str], path: &Path) -> Output {
    // Somewhere else than in the checkout, as a vendor would call it.
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    let command = command
        .args(arguments)
        .arg(path)
        .current_dir(std::env::temp_dir());
    command.output().unwrap()
}

#[test]
fn a_new_plugin_passes_its_tests_and_the_contract_check() {
    let workspace = Workspace::load().unwrap();
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("acme");
    let written = xtask(
        &["new-plugin", "acme-hint", "--kind", "handler", "--path"],
        &dir,
    );
    assert!(written.status.success(), "{}", said(&written));

    // The versions that are downloaded already.
    std::fs::copy(workspace.root.join("Cargo.lock"), dir.join("Cargo.lock")).unwrap();
    let mut cargo = xtask::workspace::cargo();
    cargo
        .args(["test", "--quiet"])
        .arg("--target-dir")
        .arg(workspace.target())
        .current_dir(&dir);
    let tested = cargo.output().unwrap();
    assert!(tested.status.success(), "{}", said(&tested));
    // Its own tests, and the conformance suite.
    for passed in ["4 passed", "12 passed"] {
        assert!(said(&tested).contains(passed), "{}", said(&tested));
    }

    let checked = xtask(&["contract-check", "--plugin"], &dir);
    assert!(checked.status.success(), "{}", said(&checked));
    assert!(
        said(&checked).contains("acme-hint is declined"),
        "{}",
        said(&checked)
    );

    // Three faults that a vendor may well make: a name that is no name, a factory that errs where nothing is
    // configured, and an arrow to another crate of ours.
    let lib = dir.join("src/lib.rs");
    let text = std::fs::read_to_string(&lib).unwrap();
    std::fs::write(
        &lib,
        text.replace("\"acme-hint\"", "\"Acme\"").replace(
            "Ok(Config",
            "anyhow::bail!(\"not set\"); #[allow(unreachable_code)] Ok(Config",
        ),
    )
    .unwrap();
    let broken = xtask(&["contract-check", "--plugin"], &dir);
    assert!(!broken.status.success());
    for fault in [
        "plugin `Acme` has a name",
        "plugin `Acme` is failed",
        "not set",
    ] {
        assert!(said(&broken).contains(fault), "{fault}: {}", said(&broken));
    }
    let manifest = dir.join("Cargo.toml");
    let text = std::fs::read_to_string(&manifest).unwrap();
    let host = workspace.root.join("crates/ondol-host");
    std::fs::write(
        &manifest,
        text.replace(
            "[dependencies]\n",
            &format!("[dependencies]\nondol-host = {{ path = {host:?} }}\n"),
        ),
    )
    .unwrap();
    let arrow = xtask(&["contract-check", "--plugin"], &dir);
    assert!(!arrow.status.success());
    assert!(
        said(&arrow).contains("depends on ondol-host"),
        "{}",
        said(&arrow)
    );
}

/// Writes a plugin of this kind, and runs its tests and its check; what both said.
fn written_and_checked(kind: &str, dir: &Path) -> (String, String) {
    let workspace = Workspace::load().unwrap();
    let written = xtask(&["new-plugin", "acme-disk", "--kind", kind, "--path"], dir);
    assert!(written.status.success(), "{}", said(&written));
    std::fs::copy(workspace.root.join("Cargo.lock"), dir.join("Cargo.lock")).unwrap();
    let mut cargo = xtask::workspace::cargo();
    cargo
        .args(["test", "--quiet"])
        .arg("--target-dir")
        .arg(workspace.target())
        .current_dir(dir);
    let tested = cargo.output().unwrap();
    assert!(tested.status.success(), "{}", said(&tested));
    let checked = xtask(&["contract-check", "--plugin"], dir);
    assert!(checked.status.success(), "{}", said(&checked));
    (said(&tested), said(&checked))
}

/// Of the test binaries that ran, how many tests passed in the one with the most.
fn most_passed(said: &str) -> u32 {
    let counts = said
        .split(" passed")
        .filter_map(|before| before.rsplit(' ').next()?.parse().ok());
    counts.max().unwrap_or(0)
}

#[test]
fn a_new_storage_backend_passes_its_tests_and_the_contract_check() {
    let temp = tempfile::tempdir().unwrap();
    let (tested, checked) = written_and_checked("l2", &temp.path().join("acme"));
    // The conformance suite has many more tests than the skeleton itself.
    assert!(most_passed(&tested) > 20, "{tested}");
    assert!(checked.contains("acme_disk is linked"), "{checked}");
}

#[test]
fn a_new_connector_passes_its_tests_and_the_contract_check() {
    let temp = tempfile::tempdir().unwrap();
    let (tested, checked) = written_and_checked("connector", &temp.path().join("acme"));
    assert!(most_passed(&tested) > 10, "{tested}");
    assert!(
        checked.contains("connector_acme_disk::AcmeDiskConnector is linked"),
        "{checked}"
    );
}
