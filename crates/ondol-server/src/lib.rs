//! The doors of the server: bytes in, engine call, bytes out. One module a protocol.
//!
//! [`UnixDoor`] speaks Ondol's own protocol (`docs/protocol.md`) over a Unix socket, with one thread a connection.
//! [`StateDir`] is the directory that a server owns while it runs.

#![forbid(unsafe_code)]

mod error;
mod house;
pub mod http;
mod metrics;
mod state_dir;
mod unix;

pub use error::ServerError;
pub use house::{Adopted, House, Reclaimed, Tenant};
pub use state_dir::StateDir;
pub use unix::{DoorConfig, UnixDoor};
