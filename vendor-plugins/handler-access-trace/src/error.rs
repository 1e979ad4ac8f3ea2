use std::io;
use std::path::PathBuf;

/// Why the trace does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The flush policy is not one of those known.
    #[error(
        "ONDOL_ACCESS_TRACE_FLUSH is {found:?}; expected line, interval, interval:<duration> (such as interval:250ms) or close"
    )]
    Flush {
        /// What the variable holds.
        found: String,
    },
    /// The file can not be opened for appending.
    #[error("ONDOL_ACCESS_TRACE names {}, which can not be opened for appending", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is a pipe.
    #[error("ONDOL_ACCESS_TRACE names {}, which is a pipe; expected a file, since a pipe without a reader blocks for ever", path.display())]
    Pipe {
        /// The file.
        path: PathBuf,
    },
    /// The writer's thread did not start.
    #[error("the thread that writes the trace did not start")]
    Thread {
        /// What the system said.
        source: io::Error,
    },
}
