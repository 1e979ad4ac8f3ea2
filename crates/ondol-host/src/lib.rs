//! Finds, checks and guards plugins.
//!
//! [`Registry::global`] is what was linked into this process; [`HandlerPlugins::load`] makes instances of what
//! the allowlist admits, and its seam methods are how a handler calls them. A plugin that fails to load is
//! reported and left out; a plugin that errs, panics, dawdles or hangs costs at most the call it is in.
//!
//! With nobody listening a seam is one relaxed load ([`HandlerPlugins::is_interested`]). With somebody
//! listening an inline call costs a published tick and a landing pad, but no look at a clock: time is
//! counted by a watchdog thread, see [`Clock`].
//!
//! # What no guard can do
//! An abort, a stack overflow, `process::exit` or a segmentation fault in a plugin ends the process. A thread
//! that hangs in a plugin stays; the plugin is quarantined for everyone else, and whatever the hung call was
//! given stays captive until it lets go.

#![forbid(unsafe_code)]

#[cfg(not(panic = "unwind"))]
compile_error!(
    "ondol-host needs `panic = \"unwind\"`: with `panic = \"abort\"` the first panic in a plugin would end the process. \
     Remove `panic = \"abort\"` from the profile"
);

mod call;
mod clock;
mod guard;
mod hook;
pub mod l2;
mod lane;
mod options;
mod plugins;
mod record;
mod registry;
mod report;
mod stage;

pub use clock::{Clock, TICK};
pub use guard::{Panicked, guarded};
pub use lane::OwnedBatch;
pub use options::{ALLOWLIST_VARIABLE, Allowlist, Environment, LoadOptions};
pub use plugins::{HOST_STATS_KEY, HandlerPlugins};
pub use registry::{Registry, RegistryMismatch};
pub use report::{PluginReport, PluginState};
