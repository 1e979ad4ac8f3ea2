//! Builds the torture harness of `tests/system` and runs it.

use anyhow::Result;

use crate::workspace::{self, Workspace};

/// Kills of the run that is part of the suite: about a minute on two cores, and some three pools, most of them with storage.
const SHORT: [&str; 2] = ["--kills=150", "--each=0"];

/// Everything goes to the harness, which is built with its failpoints and with the checks of a debug build: they find
/// what a release build would let pass, and most of the time goes into starting processes and not into them.
///
/// `--kills N` processes are killed (100), `--seed S` repeats the plan of a run, `--cast mixed|readers` who works on
/// a pool (each in turn), `--clients N` work at once where they do everything,
/// `--durability none|fsync`, `--device shm|dir` and `--l2 none|fs|memory` (the storage behind the pool) settle what else
/// changes from pool to pool, `--seconds S` ends a run early, `--each N` says how often each failpoint must have killed a
/// process, and `--dir DIR` where to work.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Options {
    /// Options of the harness; `-- --help` shows them
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "OPTIONS"
    )]
    pub options: Vec<String>,
}

impl Options {
    /// What is run as a part of the suite.
    pub fn short() -> Self {
        Self {
            options: SHORT.map(str::to_owned).into(),
        }
    }
}

/// Builds it and runs it.
///
/// # Errors
/// If it does not build, or finds anything wrong.
pub fn run(options: &Options) -> Result<()> {
    let workspace = Workspace::load()?;
    let mut build = workspace.cargo();
    build.args(["build", "--quiet", "-p", "ondol-tests"]);
    workspace::run(build.args(["--bin", "torture", "--features", "failpoints"]))?;
    let mut torture = std::process::Command::new(workspace.target().join("debug/torture"));
    workspace::run(torture.args(&options.options))
}
