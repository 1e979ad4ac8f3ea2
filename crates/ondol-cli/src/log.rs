//! What the program says about its work, on standard error.

use std::io;

use anyhow::Context;
use tracing_subscriber::EnvFilter;

use crate::serve::Given;

/// Where the log's settings come from on the command line.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct LogArgs {
    /// What to log: error, warn, info, debug, trace, off, or a filter such as `warn,ondol_server=debug`
    /// [env: ONDOL_LOG] [default: info for serve, else warn]
    #[arg(
        long,
        global = true,
        value_name = "FILTER",
        hide_short_help = true,
        display_order = 900
    )]
    pub(crate) log: Option<String>,
    /// How to log: text or json [env: ONDOL_LOG_FORMAT] [default: text]
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        hide_short_help = true,
        display_order = 901
    )]
    pub(crate) log_format: Option<String>,
}

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Text,
    Json,
}

impl std::str::FromStr for Format {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => anyhow::bail!("log format is {text:?}; expected text or json"),
        }
    }
}

impl LogArgs {
    /// Starts the log of a command that has no configuration file.
    pub(crate) fn start(&self, default: &str) -> anyhow::Result<()> {
        let layers = crate::serve::Layers::default()
            .with_environment()?
            .with_log(self);
        start(layers.get("log"), default, layers.get("log_format"))
    }
}

/// Starts the log.
pub(crate) fn start(
    filter: Option<&Given>,
    default: &str,
    format: Option<&Given>,
) -> anyhow::Result<()> {
    let filter = match filter {
        Some(given) => given.parse(|text| {
            EnvFilter::try_new(text).with_context(|| format!("{text:?} is no filter for the log"))
        })?,
        None => EnvFilter::new(default),
    };
    let format = format.map_or(Ok(Format::Text), |given| given.parse(str::parse))?;
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    let started = match format {
        Format::Text => subscriber.try_init(),
        Format::Json => subscriber.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("cannot start the log: {error}"))
}
