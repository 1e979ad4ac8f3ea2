//! `ondol rm`.

use std::io::Write;
use std::process::ExitCode;

use ondol_handler::{DeleteOutcome, Key, Plugins};

use super::ServerArgs;
use super::key::{self, KeyArg, shown};
use crate::output::stdout;

/// Remove objects
///
/// Whoever is reading a removed object keeps it until done. Objects that are pinned stay. The exit code is 1 if any
/// object was not there or stays; the others are removed all the same.
#[derive(Debug, clap::Args)]
#[command(after_help = key::HELP)]
pub(crate) struct Args {
    /// The objects' keys
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<KeyArg>,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let client = args.server.connect(Plugins::None)?;
    let keys: Vec<Key> = args.keys.iter().map(|KeyArg(key)| key.clone()).collect();
    let outcomes = client.handler.batch_delete(&keys)?;
    let mut out = stdout();
    let mut code = ExitCode::SUCCESS;
    for (key, outcome) in keys.iter().zip(outcomes) {
        let key = shown(key);
        let problem = match outcome {
            DeleteOutcome::Deleted => {
                writeln!(out, "removed {key}")?;
                continue;
            }
            DeleteOutcome::Absent => format!("there is no object {key}"),
            DeleteOutcome::Pinned => {
                format!(
                    "{key} is pinned and stays; it can go when whoever pinned it unpins it or ends"
                )
            }
        };
        out.flush()?;
        crate::complain(&problem);
        code = ExitCode::FAILURE;
    }
    out.flush()?;
    Ok(code)
}
