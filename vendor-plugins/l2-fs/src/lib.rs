#![doc = include_str!("docs.md")]
#![deny(unsafe_code)]

mod adapter;
mod backend;
mod config;
mod draft;
mod error;
mod index;
mod io;
mod layout;
mod load;
mod place;
mod scan;
mod space;
mod store;
mod task;

pub use adapter::FsAdapter;
pub use config::{FsConfig, Fsync, IoKind, LayoutKind, ParameterError};
pub use error::OpenError;

use ondol_plugin::l2::{L2AdapterFactory, Parameter};
use ondol_plugin::{inventory, package};

inventory::submit! {
    L2AdapterFactory::new("fs", module_path!(), "FsAdapter", package!(), |config, context| {
        let config: FsConfig = config.read()?;
        Ok(Box::new(FsAdapter::open(context.name(), &config)?))
    })
    .aliases(&["fs_native"])
    .config::<FsConfig>("FsConfig")
    .parameters(PARAMETERS)
}

const PARAMETERS: &[Parameter] = &[
    Parameter::required("base_path", "the directory"),
    Parameter::optional(
        "relative_tmp_dir",
        "base_path",
        "where files are written first, relative to base_path",
    ),
    Parameter::optional(
        "read_ahead_size",
        "the kernel's",
        "bytes of a file to read at once, as a hint",
    ),
    Parameter::optional("use_odirect", "false", "whether to bypass the page cache"),
    Parameter::optional("num_workers", "4", "threads"),
    Parameter::optional(
        "max_capacity_gb",
        "0",
        "GiB that files may take; 0: 80 % of what is free at the first start",
    ),
    Parameter::optional("max_capacity_bytes", "0", "the same in bytes"),
    Parameter::optional(
        "layout",
        "lmcache",
        "lmcache (its names, bytes alone) or sharded (many directories, checksums)",
    ),
    Parameter::optional(
        "fsync",
        "none",
        "what is on the disk before a store counts: none, data or full (the name, too)",
    ),
    Parameter::optional("io", "auto", "auto, threads or io_uring"),
    Parameter::optional(
        "create",
        "true",
        "whether to make base_path if it is not there",
    ),
];
