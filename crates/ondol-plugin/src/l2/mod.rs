//! Storage backends: what an adapter or a connector implements, and what it is given.

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
