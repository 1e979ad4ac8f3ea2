//! Builds the benchmark and the server that it measures, and runs it.

use std::process::Command;

use anyhow::Result;

use crate::workspace::{self, Workspace};

/// Where the committed results are.
const RESULTS: &str = "docs/benchmarks";

/// Everything goes to `ondol-bench`; `-- --help` shows its options.
///
/// A run of all scenarios replaces the results in `docs/benchmarks`, unless `--out DIR` names another directory. One of some
/// scenarios alone (`--only SCENARIO`) prints its results, and writes them if `--out` is given.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Options {
    /// Options of the benchmark; `-- --help` shows them
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "OPTIONS"
    )]
    pub options: Vec<String>,
}

/// Builds it, as it is released and with all baselines that are libraries, and runs it.
///
/// # Errors
/// If it does not build, or a scenario fails.
pub fn run(options: &Options) -> Result<()> {
    let workspace = Workspace::load()?;
    let mut build = workspace.cargo();
    build.args(["build", "--quiet", "--release"]);
    build.args(["-p", "ondol-bin", "-p", "ondol-bench"]);
    workspace::run(build.args(["--features", "ondol-bench/foyer"]))?;
    let built = workspace.target().join("release");
    let mut command = Command::new(built.join("ondol-bench"));
    command.arg("--server").arg(built.join("ondol"));
    if replaces_results(&options.options) {
        command.arg("--out").arg(workspace.root.join(RESULTS));
    }
    workspace::run(command.args(&options.options))
}

/// Whether a run with these options measures everything, and is not told where to write.
fn replaces_results(options: &[String]) -> bool {
    let decides = ["--out", "--only", "--smoke", "--help", "-h"];
    let names = |option: &String| decides.contains(&option.split('=').next().unwrap_or_default());
    !options.iter().any(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_run_replaces_the_results() {
        let replaces = |options: &[&str]| {
            replaces_results(
                &options
                    .iter()
                    .map(|option| (*option).to_owned())
                    .collect::<Vec<_>>(),
            )
        };
        assert!(replaces(&[]));
        assert!(replaces(&["--quick", "--maru", "127.0.0.1:5555"]));
        for options in [
            &["--quick", "--only", "store"][..],
            &["--only=store"],
            &["--out", "/tmp/x"],
            &["--help"],
        ] {
            assert!(!replaces(options), "{options:?}");
        }
    }
}
