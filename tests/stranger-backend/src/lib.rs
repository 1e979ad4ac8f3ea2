#![doc = include_str!("docs.md")]
#![forbid(unsafe_code)]

mod adapter;
mod config;
mod journal;
mod record;

pub use adapter::JournalBackend;
pub use config::JournalFileConfig;
pub use journal::Journal;

use ondol_plugin::l2::{L2AdapterFactory, Parameter};
use ondol_plugin::{inventory, package};

inventory::submit! {
    L2AdapterFactory::new("journal_file", module_path!(), "JournalFileAdapter", package!(), adapter::open)
        .config::<JournalFileConfig>("JournalFileAdapterConfig")
        .parameters(&[
            Parameter::required("path", "the file; it is made if it is not there, its directory is not"),
            Parameter::optional("max_bytes", "no limit", "bytes of objects that are kept; more are refused"),
            Parameter::optional("num_workers", "4", "threads that store and load, 1 to 256"),
        ])
}
