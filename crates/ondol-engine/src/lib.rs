//! The house: builds the rooms of the server's side in order, and is what its doors open on.
//!
//! An [`Engine`] owns the memory devices, the pool, the directory and the storage tier. A client is let in by
//! [`Engine::attach`] and speaks to the engine through its [`Session`], which is a
//! [`ControlPlane`](ondol_protocol::ControlPlane): directly when it lives in the same process, through a server's
//! door otherwise.
//!
//! ```
//! use ondol_engine::{Engine, EngineConfig};
//! use ondol_protocol::{ControlPlane, GrantRequest};
//!
//! let engine = Engine::open(EngineConfig::new(["memfd:?size=4MiB".parse()?]))?;
//! let session = engine.attach(None, [0; 16])?;
//! let grants = session.grant(GrantRequest { request: 1, stride: 65_536, count: 1 })?;
//! assert_eq!(grants.len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod client_files;
mod config;
mod engine;
mod promises;
mod reader;
mod session;
mod start;
mod sync;
mod tier;

pub use config::{DEFAULT_POLICY, EngineConfig, EngineError, L2Config, Persistence, Verify};
pub use engine::Engine;
pub use ondol_memory::Durability;
pub use session::Session;
pub use start::{Adopted, RestartReport};
