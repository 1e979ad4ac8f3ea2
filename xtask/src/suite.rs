//! Everything that the project checks about itself, in one run.

use std::process::{Command, Stdio};

use anyhow::Result;

use crate::contract;
use crate::instructions;
use crate::licences;
use crate::torture;
use crate::workspace::{self, Workspace};

/// The version whose format `deny.toml` is written in.
const CARGO_DENY: &str = "0.20.2";

/// How much to run.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Options {
    /// Leave out release builds, the model checker and instruction counts
    #[arg(long)]
    pub quick: bool,
}

/// Licences, formatting, lints, docs, all tests, models, instruction counts and the contract.
///
/// # Errors
/// The first thing that fails.
pub fn test(options: Options) -> Result<()> {
    let workspace = Workspace::load()?;
    components()?;
    say("licences");
    let packages = licences::check(&workspace)?;
    println!("{packages} packages against the allow-list of deny.toml");
    say("format");
    workspace::run(workspace.cargo().args(["fmt", "--all", "--", "--check"]))?;
    say("lints");
    workspace::run(workspace.cargo().args([
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]))?;
    say("docs");
    let mut docs = workspace.cargo();
    workspace::run(
        // The executable and the facade are both called `ondol`, and only one page can be.
        docs.args([
            "doc",
            "--quiet",
            "--workspace",
            "--no-deps",
            "--exclude",
            "ondol-bin",
        ])
        .env("RUSTDOCFLAGS", "-D warnings"),
    )?;
    say("tests");
    if answers(workspace::cargo().args(["nextest", "--version"])) {
        workspace::run(workspace.cargo().args(["nextest", "run", "--workspace"]))?;
        workspace::run(workspace.cargo().args(["test", "--workspace", "--doc"]))?;
    } else {
        workspace::run(workspace.cargo().args(["test", "--workspace"]))?;
    }
    say("torture");
    torture::run(&torture::Options::short())?;
    if !options.quick {
        say("models of the shared-memory protocols");
        let mut loom = workspace.cargo();
        loom.args(["test", "-p", "ondol-shm", "--release", "--lib", "loom"]);
        // Its own directory: the flag would otherwise rebuild everything, twice.
        loom.arg("--target-dir")
            .arg(workspace.target().join("loom"));
        workspace::run(loom.env("RUSTFLAGS", "--cfg loom"))?;
        say("instructions of the hot paths");
        if instructions::is_possible() {
            instructions::run(instructions::Options::default())?;
        } else {
            println!(
                "NOT COUNTED: valgrind does not run here, so longer hot paths would pass; apt-get install valgrind"
            );
        }
    }
    say("contract");
    contract::run(&contract::Options {
        quick: options.quick,
        ..contract::Options::default()
    })
}

/// What [`test`](test()) does, and all of `deny.toml`; installs cargo-deny if it is missing.
///
/// # Errors
/// The first thing that fails.
pub fn ci(options: Options) -> Result<()> {
    let workspace = Workspace::load()?;
    say("dependencies");
    if !answers(workspace::cargo().args(["deny", "--version"])) {
        let version = ["--version", CARGO_DENY];
        workspace::run(
            workspace::cargo()
                .args(["install", "--locked", "cargo-deny"])
                .args(version),
        )?;
    }
    let checks = ["deny", "check", "bans", "licenses", "sources"];
    workspace::run(workspace.cargo().args(checks))?;
    test(options)
}

fn say(what: &str) {
    println!("== {what}");
}

/// Installs what the toolchain file asks for, where rustup did not yet.
fn components() -> Result<()> {
    for (command, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        if !answers(workspace::cargo().args([command, "--version"])) {
            workspace::run(Command::new("rustup").args(["component", "add", component]))?;
        }
    }
    Ok(())
}

fn answers(command: &mut Command) -> bool {
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}
