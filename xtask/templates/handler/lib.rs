#![doc = include_str!("docs.md")]
#![forbid(unsafe_code)]

mod config;
mod plugin;

pub use config::Config;
pub use plugin::{{Type}};

use ondol_plugin::{HandlerPluginFactory, inventory, package};

inventory::submit! {
    HandlerPluginFactory::new("{{plugin}}", package!(), |context| {
        Ok(Config::from_context(context)?.map(|config| Box::new({{Type}}::new(config)) as _))
    })
}
