//! The client library that an inference engine embeds.
//!
//! A [`Handler`] writes KV-cache objects into shared memory and reads them without a copy, through a server on the
//! same host or through an engine in the same process. What a vendor adds runs here, behind the plugin seams.
//!
//! ```
//! use ondol_engine::{Engine, EngineConfig};
//! use ondol_handler::{Handler, HandlerConfig, Key};
//!
//! let engine = Engine::open(EngineConfig::new(["memfd:?size=4MiB".parse()?]))?;
//! let connect = move || engine.attach(None, [0; 16]);
//! let handler = Handler::embedded(connect, HandlerConfig::default())?;
//!
//! let key = Key::text("prompt/0")?;
//! let mut page = handler.alloc(5)?;
//! page.copy_from_slice(b"hello");
//! handler.store(&key, page)?;
//!
//! let object = handler.retrieve(&key)?.expect("it was stored just now");
//! assert_eq!(&*object, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What the guards promise
//! * A [`PageMut`] is written by its holder alone; storing it consumes it, so a visible object is never written.
//! * An [`Object`] keeps its bytes from reuse until its last clone is dropped: beyond a deleted key, an eviction,
//!   [`Handler::close`] and a server that has gone away.
//! * In a forked child every call fails, and dropping an inherited guard does nothing. Shared memory is not mapped there:
//!   touching the bytes of an inherited guard faults, as the parent could end its lease meanwhile.

#![forbid(unsafe_code)]

mod backoff;
mod batch;
mod config;
mod error;
#[cfg(test)]
mod fake;
mod farewell;
mod handler;
mod index;
mod layout;
mod line;
mod lookup;
mod metrics;
mod object;
mod pins;
mod regions;
mod sizing;
mod socket;
mod stats;
mod stock;

pub use config::{Expect, HandlerConfig, Plugins};
pub use error::HandlerError;
pub use handler::{BatchStored, Handler, Prefetched, Stored};
pub use layout::Layout;
pub use object::{ChecksumMismatch, Object, PageMut};
pub use ondol_plugin::{Key, KeyError, KeyTag, StageResult};
pub use ondol_protocol::{
    Breakdown, ControlError, ControlPlane, DeleteOutcome, LayoutFingerprint, Listing, ObjectInfo,
    ObjectMeta, PinOutcome, SOCKET_NAME, default_socket,
};
pub use sizing::PageSizes;
pub use socket::{SocketOptions, SocketPlane};
pub use stats::{HandlerCounts, HandlerStats, Health};
