//! Storage backends on the command line.

mod check;

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Subcommand;
use ondol_engine::L2Config;
use ondol_host::l2::AdapterSpec;

/// Look after storage backends
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Check(check::Args),
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.command {
        Command::Check(args) => check::run(args),
    }
}

/// Reads one backend, or a list of them, and looks whether the eviction policies that they name exist.
pub(crate) fn read_adapters(text: &str) -> Result<Vec<AdapterSpec>> {
    let specs = AdapterSpec::parse_list(text)?;
    for eviction in specs.iter().filter_map(|spec| spec.eviction.as_ref()) {
        let policies = ondol_catalog::policies();
        let is_known = policies.iter().any(|policy| policy.name == eviction.policy);
        if !is_known && eviction.policy != "noop" {
            let known: Vec<_> = policies.iter().map(|policy| policy.name).collect();
            bail!(
                "`eviction.eviction_policy` is {:?}; expected LRU, ARC, IsolatedLRU, noop or one of: {}",
                eviction.policy,
                known.join(", ")
            );
        }
    }
    Ok(specs)
}

/// As [`read_adapters`], for one.
pub(crate) fn read_adapter(text: &str) -> Result<AdapterSpec> {
    let mut specs = read_adapters(text)?;
    match specs.len() {
        1 => Ok(specs.remove(0)),
        found => bail!("there are {found} backends; expected one"),
    }
}

/// The storage of an engine with these backends and the defaults.
pub(crate) fn config_of(adapters: Vec<AdapterSpec>) -> L2Config {
    L2Config::new(adapters)
}

/// The configuration that a backend was read from.
pub(crate) fn json_of(spec: &AdapterSpec) -> String {
    serde_json::Value::Object(spec.parameters.clone()).to_string()
}
