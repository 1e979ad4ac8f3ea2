//! Storage backends: what an adapter or a connector implements, and what it is given.
//!
//! There are three ways to write one, from the smallest to the freest:
//!
//! * a [`BlockingBackend`], one object at a time; [`WorkerAdapter`] adds threads, results, signals and locks;
//! * a [`NativeConnector`], batches of names and buffers behind one descriptor, in Rust or in C; Ondol adds the rest;
//! * an [`L2Adapter`], which does all of it by itself; [`Completions`] has the queues of results with their descriptors,
//!   [`Locks`] counts locks, [`WorkerPool`] runs jobs.
//!
//! # A whole backend
//! It keeps files in a directory under the names that LMCache gives them, and is found again after a restart:
//! ```no_run
#![doc = include_str!("example.rs")]
//! ```

mod adapter;
mod bitmap;
mod buffer;
mod completion;
mod config;
mod connector;
mod factory;
mod locks;
mod notifier;
mod object_key;
mod pool;
mod result;
mod usage;
mod worker;

#[cfg(test)]
mod tests;

pub use adapter::{EventFds, L2Adapter};
pub use bitmap::Bitmap;
pub use buffer::{MAX_TRAILER_BYTES, ObjectRef, ObjectWatch, PageMut, StoredTooLong};
pub use completion::{CompletionQueue, Completions, Ticket};
pub use config::{AdapterConfig, ConfigClass, ConfigError};
pub use connector::{
    Completion, ConnectorEntry, FutureId, NativeConnector, NativeConnectorFactory,
};
pub use factory::{L1Mapping, L2AdapterFactory, OpenContext, OpenInner, Parameter};
pub use locks::Locks;
pub use notifier::EventNotifier;
pub use object_key::{KvRank, MAX_SALT_CHARS, ObjectKey, ObjectKeyError};
pub use pool::WorkerPool;
pub use result::{
    LoadItem, LoadOutcome, LoadResult, Loaded, LookupResult, StoreError, StoreItem, StoreResult,
    TaskId,
};
pub use usage::{
    AdapterStatus, CloseReport, DeleteResult, Health, KeyEntry, KeyPage, ListRequest, Usage,
};
pub use worker::{BlockingBackend, WorkerAdapter};
