//! The commands of the executable `ondol`, for any binary that links its own set of plugins.
//!
//! Such a binary names its plugin crates, so that they are linked, and says which packages it expects to find:
//!
//! ```no_run
//! // use handler_acme as _;
//! fn main() -> std::process::ExitCode {
//!     ondol_cli::main(&[/* "handler-acme" */])
//! }
//! ```
//!
//! | exit code | meaning |
//! |---|---|
//! | 0 | done; also when `put` finds its key there already |
//! | 1 | refused or failed, as the message says; also when `get` or `rm` finds no such object, or `doctor` something that needs attention |
//! | 2 | the command line is wrong |
//! | 78 | the linked plugins are not the expected ones; nothing was done |
//! | 130 | a signal has ended `replay`; its figures are those of what was done |

#![forbid(unsafe_code)]

mod cli;
mod client;
mod contract;
mod doctor;
mod l2;
mod log;
mod output;
mod plugins;
mod replay;
mod serve;
pub mod workload;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use ondol_host::Registry;

/// `EX_CONFIG` of sysexits.h: the program was put together wrongly.
const WRONG_PLUGINS: u8 = 78;

/// What clap answers, too.
#[cfg(feature = "failpoints")]
const WRONG_COMMAND_LINE: u8 = 2;

/// Runs the command that the process was started with. `expected` names the packages whose plugins the binary was
/// built to hold; if others are registered, both lists are printed and nothing else is done.
pub fn main(expected: &[&str]) -> ExitCode {
    if let Err(mismatch) = Registry::global().verify_expected(expected) {
        complain(&mismatch.to_string());
        return ExitCode::from(WRONG_PLUGINS);
    }
    #[cfg(feature = "failpoints")]
    if let Err(error) = arm_failpoints() {
        complain(&error);
        return ExitCode::from(WRONG_COMMAND_LINE);
    }
    let result = match cli::Cli::try_parse() {
        Ok(cli) => cli.run(expected),
        Err(error) => {
            // Help for a reader that has gone is no failure; there is nobody left to tell.
            let _ = error.print();
            return u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from);
        }
    };
    match result {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&explain(&error));
            ExitCode::FAILURE
        }
    }
}

/// Does what the environment says of failpoints, in a build for tests.
#[cfg(feature = "failpoints")]
fn arm_failpoints() -> Result<(), String> {
    const VARIABLE: &str = "ONDOL_FAILPOINTS";
    match std::env::var(VARIABLE) {
        Ok(orders) => {
            ondol_catalog::arm_failpoints(&orders).map_err(|error| format!("{VARIABLE}: {error}"))
        }
        Err(std::env::VarError::NotPresent) => Ok(()),
        Err(std::env::VarError::NotUnicode(_)) => Err(format!("{VARIABLE} is not UTF-8")),
    }
}

/// The chain of causes in one line. A message that ends with its own cause says it once.
fn explain(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if line.is_empty() {
            line = cause;
        } else if !line.ends_with(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line
}

fn complain(message: &str) {
    // Not `eprintln!`, which panics when the reader of standard error has gone.
    let _ = writeln!(io::stderr(), "error: {message}");
}

/// Whether whoever read the output has seen enough.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::{Context, anyhow};

    #[test]
    fn a_cause_is_said_once() {
        let error = anyhow!("disk full").context("cannot write /x: disk full");
        let error = Err::<(), _>(error).context("the start failed").unwrap_err();
        assert_eq!(
            explain(&error),
            "the start failed: cannot write /x: disk full"
        );
    }
}
