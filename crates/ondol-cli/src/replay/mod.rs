//! `ondol replay`.

use std::process::ExitCode;

/// Replay a trace of requests against the engine
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("this build holds no replay")
}
