#![doc = include_str!("docs.md")]
#![forbid(unsafe_code)]

mod adapter;
mod config;

pub use adapter::{{Type}}Backend;
pub use config::{{Type}}Config;

use ondol_plugin::l2::{L2AdapterFactory, Parameter};
use ondol_plugin::{inventory, package};

inventory::submit! {
    L2AdapterFactory::new("{{type}}", module_path!(), "{{Type}}Adapter", package!(), adapter::open)
        .config::<{{Type}}Config>("{{Type}}AdapterConfig")
        .parameters(&[
            Parameter::optional("max_objects", "no limit", "objects that are kept; more are refused"),
            Parameter::optional("num_workers", "4", "threads that store and load"),
        ])
}
