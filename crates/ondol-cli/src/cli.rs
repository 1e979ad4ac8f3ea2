use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::client::{get, list, put, remove, stat};
use crate::log::LogArgs;
use crate::{contract, doctor, l2, plugins, replay, serve};

/// Keeps the KV caches of LLM inference warm, in shared memory.
#[derive(Debug, Parser)]
#[command(name = "ondol", version)]
pub(crate) struct Cli {
    #[command(flatten)]
    log: LogArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<serve::Args>),
    Put(put::Args),
    Get(get::Args),
    Ls(list::Args),
    Rm(remove::Args),
    Stat(stat::Args),
    Plugins(plugins::Args),
    L2(l2::Args),
    Doctor(doctor::Args),
    Replay(replay::Args),
    #[command(hide = true)]
    Contract(contract::Args),
}

impl Cli {
    pub(crate) fn run(self, expected: &[&str]) -> anyhow::Result<ExitCode> {
        let Self { log, command } = self;
        match command {
            // Its configuration file may speak of the log as well.
            Command::Serve(args) => return serve::run(&args, &log),
            // The command prints itself what loading would log.
            Command::Plugins(_) => log.start("off")?,
            _ => log.start("warn")?,
        }
        match command {
            Command::Serve(_) => unreachable!("returned above"),
            Command::Put(args) => put::run(&args),
            Command::Get(args) => get::run(&args),
            Command::Ls(args) => list::run(&args),
            Command::Rm(args) => remove::run(&args),
            Command::Stat(args) => stat::run(&args),
            Command::Doctor(args) => doctor::run(&args),
            Command::Plugins(args) => plugins::run(&args, expected),
            Command::L2(args) => l2::run(&args),
            Command::Replay(args) => replay::run(&args),
            Command::Contract(args) => contract::run(&args),
        }
    }
}
