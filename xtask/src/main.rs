//! `cargo xtask`: a thin dispatcher.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xtask::{bench, contract, instructions, new_plugin, suite, torture};

/// The habits of the house
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure Ondol beside what a user would take instead, and beside the limits of the machine
    Bench(bench::Options),
    /// Compare the code with the committed contract
    ContractCheck(contract::Options),
    /// Write the skeleton of a plugin crate
    NewPlugin(new_plugin::Options),
    /// Run everything the project checks about itself
    Test(suite::Options),
    /// Kill servers and clients at every step and check that nothing acknowledged is lost
    Torture(torture::Options),
    /// Count the instructions of the hot paths and compare them with the committed counts
    Instructions(instructions::Options),
    /// Run what `test` does, and cargo-deny, which is installed if it is missing
    Ci(suite::Options),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Bench(options) => bench::run(&options),
        Command::ContractCheck(options) => contract::run(&options),
        Command::NewPlugin(options) => new_plugin::run(&options),
        Command::Test(options) => suite::test(options),
        Command::Torture(options) => torture::run(&options),
        Command::Instructions(options) => instructions::run(options),
        Command::Ci(options) => suite::ci(options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
