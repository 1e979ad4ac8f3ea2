use std::io;
use std::path::PathBuf;

use ondol_plugin::l2::StoreError;
use rustix::io::Errno;

/// Why a directory cannot be opened as a storage backend.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The system refused.
    #[error("cannot {action} {path}: {source}", path = path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// Something else is in the directory's place.
    #[error("{path} is no directory; expected one, or nothing if it is to be made", path = path.display())]
    NoDirectory {
        /// The path.
        path: PathBuf,
    },
    /// The file that remembers the capacity is not one.
    #[error(
        "{path} holds {found:?}; expected {{\"version\":1,\"capacity_bytes\":…}}. Remove it to have the capacity worked out anew",
        path = path.display()
    )]
    Memo {
        /// The file.
        path: PathBuf,
        /// What is in it, the beginning at least.
        found: String,
    },
    /// What has the name of the file that remembers the capacity is no file.
    #[error(
        "{path} is no plain file; expected the one that remembers the capacity, or none. Remove it to have the capacity worked out anew",
        path = path.display()
    )]
    NoMemo {
        /// What has its name.
        path: PathBuf,
    },
    /// `io_uring` was asked for.
    #[error(
        "io is \"io_uring\", and the kernel does not allow it: {0}; expected a kernel that does (see kernel.io_uring_disabled and seccomp), or \"auto\" or \"threads\""
    )]
    NoIoUring(io::Error),
    /// Threads or descriptors that could not be had.
    #[error("cannot start: {0}")]
    Start(#[from] io::Error),
}

/// Why an object was not stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StoreFailure {
    #[error("the file name of {key} would have {found} bytes; expected at most {most}. {advice}")]
    NameTooLong {
        key: String,
        found: usize,
        most: usize,
        advice: &'static str,
    },
    #[error("an object of {found} bytes; expected at most the capacity of {capacity}")]
    TooLarge { found: u64, capacity: u64 },
    #[error(
        "the capacity of {capacity} bytes is used up by objects that are locked or being written"
    )]
    AllLocked { capacity: u64 },
    #[error("the file system is full, and nothing is stored until it has space again")]
    ReadOnly,
    #[error("the task was cancelled, or the adapter closed, before all of it was begun")]
    NotBegun,
    #[error("what was begun did not end; see the log")]
    Lost,
    #[error("cannot {action} {file}: {source}")]
    Io {
        action: &'static str,
        file: String,
        source: Errno,
    },
}

impl StoreFailure {
    /// Whether the disk or a quota is full.
    pub(crate) fn is_full(&self) -> bool {
        matches!(
            self,
            Self::Io {
                source: Errno::NOSPC | Errno::DQUOT,
                ..
            }
        )
    }

    /// Whether trying again may mend it.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            Self::NameTooLong { .. } | Self::TooLarge { .. } => false,
            Self::AllLocked { .. } | Self::ReadOnly | Self::NotBegun | Self::Lost => true,
            // What no later try mends without somebody's help.
            Self::Io { source, .. } => !matches!(
                *source,
                Errno::ACCESS
                    | Errno::PERM
                    | Errno::NAMETOOLONG
                    | Errno::FBIG
                    | Errno::LOOP
                    | Errno::NOTDIR
                    | Errno::EXIST
            ),
        }
    }
}

impl From<StoreFailure> for StoreError {
    fn from(failure: StoreFailure) -> Self {
        Self {
            retryable: failure.is_retryable(),
            reason: failure.to_string(),
        }
    }
}
