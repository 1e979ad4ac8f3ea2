//! `ondol get`.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use ondol_handler::Plugins;

use super::ServerArgs;
use super::key::{self, KeyArg, shown};

/// Write an object to a file, or to standard output
///
/// The bytes go straight from shared memory, to which they come from the storage behind it if need be. If there is no such object, nothing is written and the exit code is 1.
#[derive(Debug, clap::Args)]
#[command(after_help = key::HELP)]
pub(crate) struct Args {
    /// The object's key
    key: KeyArg,
    /// File to write, instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// How long to wait for storage if the object is not in the pool
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    l2_wait: u64,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let KeyArg(key) = &args.key;
    let client = args.server.connect(Plugins::Linked)?;
    let wait = Duration::from_secs(args.l2_wait);
    let Some(object) = client.handler.retrieve_within(key, wait)? else {
        let key = shown(key);
        if client.handler.counts().checksum_mismatches > 0 {
            bail!(
                "the bytes of {key} are not those that were stored; remove it with `ondol rm` and store it again"
            );
        }
        bail!("there is no object {key}");
    };
    match &args.output {
        Some(path) => File::create(path)
            .and_then(|mut file| file.write_all(&object))
            .with_context(|| format!("cannot write {}", path.display()))?,
        None => {
            let mut out = io::stdout().lock();
            out.write_all(&object)?;
            out.flush()?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
