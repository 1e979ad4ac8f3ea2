use std::io;
use std::path::{Path, PathBuf};

use crate::PoolId;

/// A log cannot be begun, read or gone on with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The file system refused.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// There is no log here.
    #[error(
        "{dir} holds no log; expected one that Ondol wrote. Start with `ondol serve --fresh`, which begins an empty one"
    )]
    Missing {
        /// The directory.
        dir: PathBuf,
    },
    /// Bytes that were written whole are not what they were.
    #[error(
        "the log is damaged: {file}, byte {offset}: found {found}; expected {expected}. What comes after cannot be \
         trusted, as pages may have been used anew since. Bring the whole log back from a copy that was made after its last \
         server had ended, or start with `ondol serve --fresh`, which begins with an empty pool"
    )]
    Corrupt {
        /// The file.
        file: PathBuf,
        /// Where in it.
        offset: u64,
        /// What is there.
        found: String,
        /// What should be there.
        expected: String,
    },
    /// A file belongs to another pool.
    #[error(
        "{file} is of pool {found}; expected pool {expected}. Take it away, or start with `ondol serve --fresh`"
    )]
    OtherPool {
        /// The file.
        file: PathBuf,
        /// Whose it is.
        found: PoolId,
        /// Whose log is read.
        expected: PoolId,
    },
    /// A file was written in a format that this build does not know.
    #[error(
        "{file} has format {found}; expected {expected}. Use the build that wrote it, or start with `ondol serve --fresh`"
    )]
    Version {
        /// The file.
        file: PathBuf,
        /// Its format.
        found: u32,
        /// The format of this build.
        expected: u32,
    },
}

impl LogError {
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }

    /// Bytes at a place of a file are not what they were.
    pub(super) fn corrupt(
        file: &Path,
        offset: u64,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        Self::Corrupt {
            file: file.to_owned(),
            offset,
            found: found.into(),
            expected: expected.into(),
        }
    }

    /// Whoever wanted the work is about to end.
    pub(super) fn interrupted(file: &Path) -> Self {
        Self::io("finish with", file)(io::ErrorKind::Interrupted.into())
    }
}
