//! `cargo xtask`: a thin dispatcher.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xtask::contract;

/// The habits of the house
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compare the code with the committed contract
    ContractCheck(contract::Options),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::ContractCheck(options) => contract::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
