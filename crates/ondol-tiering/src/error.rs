use std::io;
use std::time::Duration;

/// Why the storage tier did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TieringError {
    /// A backend's `serde` cannot be used.
    #[error("serde of {backend}: {reason}")]
    Transforms {
        /// The backend.
        backend: String,
        /// What is wrong.
        reason: String,
    },
    /// A backend's `eviction` cannot be used.
    #[error("eviction of {backend}: {reason}")]
    Eviction {
        /// The backend.
        backend: String,
        /// What is wrong.
        reason: String,
    },
    /// The system has no thread left.
    #[error("cannot start a thread of the storage tier: {0}; raise the limit of threads")]
    Thread(#[from] io::Error),
    /// No backend has this number.
    #[error("no storage backend has the number {id}; there are {known}")]
    UnknownBackend {
        /// The number asked for.
        id: u64,
        /// The numbers that there are, with names.
        known: String,
    },
    /// A backend that is drained is still in use.
    #[error(
        "{backend} is still in use after {waited:?} and stays draining: it takes no new work; drain it again to wait on"
    )]
    StillInUse {
        /// The backend.
        backend: String,
        /// How long was waited.
        waited: Duration,
    },
    /// An object is deleted in memory and may still be in a backend.
    #[error("{backend} has not deleted what was deleted in memory: {reason}; delete it again")]
    NotDeleted {
        /// The backend.
        backend: String,
        /// What it said.
        reason: String,
    },
    /// The storage tier was closed.
    #[error("the storage tier is closed")]
    Closed,
}
