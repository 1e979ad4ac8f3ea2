//! What clients and the engine say to each other, without sockets.
//!
//! [`ControlPlane`] is the meeting point: the engine implements it, the server's door calls it with what it
//! decoded, a client's socket implements it by encoding, and an embedded handler is given the engine's own.

#![forbid(unsafe_code)]

mod control;
mod object;
mod page_size;
mod place;
mod stats;
mod stats_l2;
pub mod wire;

pub use control::{
    Access, Breakdown, ClientInfo, Commit, CommitOutcome, CommitOutcomes, ControlError,
    ControlPlane, DeleteOutcome, GrantRequest, Hit, IndexFiles, Listing, Pin, PinOutcome, Prefetch,
    Prefetched, RefusedCommit, RegionInfo, Retrieve, Retrieved,
};
pub use object::ObjectInfo;
pub use ondol_shm::{ClientId, Grant, LayoutFingerprint, ObjectMeta, StaleReason};
pub use page_size::fitted_page_bytes;
pub use place::{SOCKET_NAME, default_socket, default_state_dir};
pub use stats::{ClassStats, ClientStats, EngineStats, IndexStats, PoolStats};
pub use stats_l2::{BackendStats, L2Stats};
