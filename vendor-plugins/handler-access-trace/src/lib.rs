#![doc = include_str!("docs.md")]
#![forbid(unsafe_code)]

mod config;
mod error;
mod line;
mod plugin;
mod writer;

pub use config::{Config, Flush};
pub use error::Error;
pub use plugin::AccessTrace;

use ondol_plugin::{HandlerPluginFactory, inventory, package};

inventory::submit! {
    HandlerPluginFactory::new("access-trace", package!(), |context| {
        let Some(config) = Config::from_context(context)? else {
            return Ok(None);
        };
        Ok(Some(Box::new(AccessTrace::open(&config)?)))
    })
}
