//! Objects between memory and storage.
//!
//! Above is the memory tier (L1), pages that clients share; below are storage backends (L2) behind adapters. Objects flow
//! down after they are committed, and come back ahead of need. [`Tiering`] is the room: it owns the controllers.

#![forbid(unsafe_code)]

mod attached;
mod codec;
mod complaints;
mod config;
mod deletion;
mod error;
mod evict;
mod latch;
mod memory;
mod metrics;
mod naming;
mod prefetch;
mod quota;
mod store;
mod tiering;
mod trial;

pub use config::{StoreOverflow, StorePolicy, TieringConfig};
pub use error::TieringError;
pub use memory::{Leased, MakeDurable, Memory, MemoryError, Page};
pub use naming::object_key;
pub use prefetch::{FetchPolicy, Prefetch, PrefetchReport, PrefetchRequest, Row};
pub use quota::{QuotaTable, Quotas};
pub use tiering::Tiering;
pub use trial::Trial;

#[cfg(test)]
mod tests;
