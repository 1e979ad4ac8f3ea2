//! The commands as people and scripts run them: real processes, a server of their own each.

#![allow(
    unused_crate_dependencies,
    reason = "the plugins are named by the binary that these tests run"
)]

mod configuration;
mod doctor;
mod http;
#[cfg(all(feature = "handler-access-trace", feature = "handler-prefault"))]
mod linked;
mod objects;
mod replay;
mod serving;
#[cfg(all(feature = "l2-fs", feature = "l2-memory"))]
mod storage;
mod support;
