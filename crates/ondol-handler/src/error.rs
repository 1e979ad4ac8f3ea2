use ondol_protocol::{ControlError, RefusedCommit};
use ondol_shm::{LeaseTableError, RegionError};

/// Why a call of a handler failed. A key that is not there is no error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandlerError {
    /// The handler was closed.
    #[error("the handler is closed; call reconnect first")]
    Closed,
    /// The call was made in a forked child.
    #[error("the handler belongs to the parent process; a forked child must connect its own")]
    Forked,
    /// The engine refused, failed or is not there.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// No configured page holds that many bytes.
    #[error("{asked} bytes were asked for; the longest page here has {longest}")]
    TooLong {
        /// Bytes asked for.
        asked: u64,
        /// The longest page in bytes.
        longest: u64,
    },
    /// The page was allocated before a reconnect, or from a server that does not know this handler any more.
    #[error("the page belongs to a connection that is over; allocate a new one and write it again")]
    ForeignPage,
    /// The engine did not accept the object.
    #[error("the object was not stored: {0}")]
    NotStored(RefusedCommit),
    /// All leases that a client can hold are in use.
    #[error(
        "{held} objects are held and {asked} more were asked for; a client can hold {limit}: drop some first"
    )]
    TooManyLeases {
        /// Leases in use.
        held: u64,
        /// Leases asked for.
        asked: u64,
        /// Leases that there are.
        limit: u64,
    },
    /// The numbers of keys and pages differ.
    #[error("{keys} keys and {pages} pages were given; expected one page for each key")]
    LengthMismatch {
        /// Number of keys.
        keys: usize,
        /// Number of pages.
        pages: usize,
    },
    /// Shared memory is not as the engine described it.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The lease table is not usable.
    #[error(transparent)]
    LeaseTable(#[from] LeaseTableError),
    /// Shared memory could not be mapped.
    #[error("cannot map the memory of region {region}: {source}")]
    Map {
        /// The region.
        region: u64,
        /// The system's answer.
        source: std::io::Error,
    },
}

// Its text stands in the error's own, so it is no source to be printed after it.
impl From<RefusedCommit> for HandlerError {
    fn from(reason: RefusedCommit) -> Self {
        Self::NotStored(reason)
    }
}

impl HandlerError {
    /// Whether the call may have been carried out although it failed; it can be repeated safely.
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, Self::Control(error) if may_be_done(error))
    }

    /// Whether the server is not there now; nothing was sent, or it is not known what became of it.
    pub fn is_disconnected(&self) -> bool {
        matches!(
            self,
            Self::Control(ControlError::Disconnected { .. } | ControlError::TimedOut { .. })
        )
    }

    pub(crate) fn is_unknown_client(&self) -> bool {
        matches!(self, Self::Control(ControlError::UnknownClient(_)))
    }
}

/// Whether what was asked may have been carried out, or may still be: an engine that failed may have recorded it, and
/// an answer that could not be read was an answer.
pub(crate) fn may_be_done(error: &ControlError) -> bool {
    error.is_outcome_unknown()
        || matches!(error, ControlError::Failed(_) | ControlError::Protocol(_))
}
