#![doc = include_str!("docs.md")]
#![deny(unsafe_code)]

mod config;
mod error;
#[allow(
    unsafe_code,
    reason = "system calls on memory; the module states why each is sound"
)]
mod memory;
mod pins;
mod plugin;

pub use config::Config;
pub use error::Error;
pub use plugin::Prefault;

use ondol_plugin::{HandlerPluginFactory, inventory, package};

inventory::submit! {
    HandlerPluginFactory::new("prefault", package!(), |context| {
        let Some(config) = Config::from_context(context)? else {
            return Ok(None);
        };
        Ok(Some(Box::new(Prefault::new(&config))))
    })
}
