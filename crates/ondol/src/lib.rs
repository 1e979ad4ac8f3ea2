//! Ondol for programs that embed it: the public names of its crates in one place.
//!
//! A [`Handler`] stores and retrieves objects. What it works on is an [`engine`] in this process, or a server on this
//! host. What runs at its seams are plugins, whose contract is in [`plugin`].
//!
//! | module | for |
//! |---|---|
//! | the root | the handler: what every embedder uses |
//! | [`engine`] | memory, pool and directory in this process |
//! | [`plugin`] | writing a plugin (a plugin's crate depends on `ondol-plugin` alone) |
//! | [`host`] | choosing which linked plugins load, and seeing what became of them |
//! | [`server`] | opening the doors of an engine to other processes |
//!
//! ```
#![doc = include_str!("../examples/embedded.rs")]
//! ```
//!
//! A plugin is linked only where the final program names its crate, `use my_plugin as _;`. An embedder that expects
//! plugins compares what it holds with what it should hold: [`host::Registry::verify_expected`].

#![forbid(unsafe_code)]

pub use ondol_handler::{
    BatchStored, Breakdown, ChecksumMismatch, ControlError, ControlPlane, DeleteOutcome, Expect,
    Handler, HandlerConfig, HandlerCounts, HandlerError, HandlerStats, Health, Key, KeyError,
    KeyTag, Layout, LayoutFingerprint, Listing, Object, ObjectInfo, ObjectMeta, PageMut, PageSizes,
    PinOutcome, Plugins, Prefetched, SocketOptions, SocketPlane, StageResult, Stored,
};
pub use ondol_protocol::default_socket;

/// An engine in this process: devices, pool, directory, storage. A device is parsed from a text, as in the example above.
pub mod engine {
    pub use ondol_engine::{Engine, EngineConfig, EngineError, L2Config, Session};
    pub use ondol_memory::{
        Change, DeviceEnv, DeviceError, DeviceUri, Journal, JournalError, OpenOptions, RemoveReason,
    };
    pub use ondol_protocol::{
        BackendStats, ClassStats, ClientStats, EngineStats, L2Stats, PoolStats,
    };
    pub use ondol_tiering::{Quotas, StoreOverflow, StorePolicy, TieringConfig};
}

/// The contract between Ondol and its plugins.
pub mod plugin {
    pub use ondol_plugin::{
        BatchEntry, BatchSource, FactoryContext, HandlerPlugin, HandlerPluginFactory, HandlerView,
        Hooks, MAX_KEY_BYTES, Package, RegionId, RegionSpan, RetrievedBatch, inventory, package,
    };
}

/// Which plugins load in a handler, and what became of them; which storage an engine has.
pub mod host {
    pub use ondol_host::l2::{AdapterSpec, SpecError};
    pub use ondol_host::{
        ALLOWLIST_VARIABLE, Allowlist, Environment, LoadOptions, PluginReport, PluginState,
        Registry, RegistryMismatch,
    };
}

/// The doors of a server.
pub mod server {
    pub use ondol_server::{DoorConfig, ServerError, StateDir, UnixDoor};
}

/// What a program that stores and retrieves objects needs by name.
pub mod prelude {
    pub use crate::engine::{Engine, EngineConfig};
    pub use crate::{
        Handler, HandlerConfig, HandlerError, Key, Layout, Object, PageMut, Stored, default_socket,
    };
}
