//! Benchmarks; `cargo xtask bench` builds and runs them.

#![forbid(unsafe_code)]

mod hit_rate;

use clap::{Parser, Subcommand};

/// Measures Ondol.
#[derive(Debug, Parser)]
#[command(name = "ondol-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    HitRate(hit_rate::Args),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::HitRate(args) => hit_rate::run(&args),
    }
}
