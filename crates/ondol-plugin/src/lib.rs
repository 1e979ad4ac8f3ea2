//! The contract between Ondol and its plugins.
//!
//! A plugin is an ordinary crate that depends on this one and on nothing else of Ondol's. A storage backend is in
//! [`l2`]. A handler plugin implements [`HandlerPlugin`] and submits one [`HandlerPluginFactory`] per plugin; the registry
//! is read once, after `main` has started, by the process that embeds the handler.
//!
//! ```
//! use ondol_plugin::{HandlerPlugin, HandlerPluginFactory, HandlerView, Hooks, RetrievedBatch, inventory, package};
//!
//! struct CountHits(std::sync::atomic::AtomicU64);
//!
//! impl HandlerPlugin for CountHits {
//!     fn hooks(&self) -> Hooks {
//!         Hooks::BATCH_RETRIEVE
//!     }
//!     fn on_batch_retrieve(&self, _: &dyn HandlerView, batch: &RetrievedBatch<'_>) -> anyhow::Result<()> {
//!         let hits = batch.entries().filter(|entry| entry.found()).count();
//!         self.0.fetch_add(hits as u64, std::sync::atomic::Ordering::Relaxed);
//!         Ok(())
//!     }
//! }
//!
//! inventory::submit! {
//!     HandlerPluginFactory::new("count-hits", package!(), |_| Ok(Some(Box::new(CountHits(Default::default())))))
//! }
//! ```
//!
//! # What this crate never does
//! It performs no I/O, starts no thread but those that a [`WorkerPool`](l2::WorkerPool) is asked for, knows no async runtime and
//! no other Ondol crate. Its public surface
//! is committed under `docs/contract/` and compared on every build: a change is a deliberate, versioned act.
//! It defines no item through a macro, so that the surface can be read from the source as it stands.

#![forbid(unsafe_code)]

mod batch;
mod factory;
mod hooks;
mod key;
pub mod l2;
mod plugin;
mod region;
mod stage;

pub use batch::{BatchEntry, BatchSource, RetrievedBatch};
pub use factory::{FactoryContext, HandlerPluginFactory, Package};
pub use hooks::Hooks;
/// The registry that factories are submitted to; re-exported so that a plugin needs no version of its own.
pub use inventory;
pub use key::{Key, KeyError, KeyTag, MAX_KEY_BYTES};
pub use plugin::{HandlerPlugin, HandlerView};
pub use region::{RegionId, RegionSpan};
pub use stage::StageResult;
