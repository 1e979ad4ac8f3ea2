#![doc = include_str!("docs.md")]
#![forbid(unsafe_code)]

mod config;
mod connector;

pub use config::{{Type}}Config;
pub use connector::{{Type}}Connector;

use ondol_plugin::l2::{NativeConnectorFactory, Parameter};
use ondol_plugin::{inventory, package};

inventory::submit! {
    NativeConnectorFactory::new(module_path!(), "{{Type}}Connector", package!(), connector::open)
        .config::<{{Type}}Config>("{{Type}}ConnectorConfig")
        .parameters(&[Parameter::optional("num_workers", "4", "threads that serve requests")])
}
