use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The system refused something.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Another server owns the state directory.
    #[error(
        "another server ({owner}) owns {}; stop it, or choose another state directory",
        dir.display()
    )]
    AlreadyRunning {
        /// The directory.
        dir: PathBuf,
        /// The other server.
        owner: Owner,
    },
    /// Something in the state directory is not as it must be.
    #[error("{}: found {found}; expected {expected}: {remedy}", path.display())]
    Unsafe {
        /// The file or directory.
        path: PathBuf,
        /// What is there.
        found: String,
        /// What should be there.
        expected: String,
        /// What to do about it.
        remedy: String,
    },
    /// Somebody listens at the socket's path.
    #[error(
        "another server ({owner}) answers at {}; stop it, or choose another socket",
        path.display()
    )]
    SocketInUse {
        /// The path.
        path: PathBuf,
        /// The other server.
        owner: Owner,
    },
    /// The path is longer than the address of a Unix socket can be.
    #[error(
        "the socket path {} has {} bytes; expected at most {limit}: choose a shorter one",
        path.display(),
        path.as_os_str().len()
    )]
    SocketPathTooLong {
        /// The path.
        path: PathBuf,
        /// What the system allows.
        limit: usize,
    },
}

/// The process that owns what we wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(pub Option<u32>);

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(pid) => write!(f, "process {pid}"),
            None => f.write_str("process unknown"),
        }
    }
}

impl ServerError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }
}
