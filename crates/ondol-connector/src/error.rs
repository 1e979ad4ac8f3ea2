use std::path::PathBuf;

/// Why a connector that is written in C cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectorError {
    /// The library cannot be loaded.
    #[error("{} cannot be loaded: {reason}; expected a shared library of this machine's kind", path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// What the loader says.
        reason: String,
    },
    /// The library exports no table.
    #[error("{} does not export `{symbol}`, so it is no library of connectors (see include/ondol_connector.h): {reason}", path.display())]
    NoEntry {
        /// The file.
        path: PathBuf,
        /// The function that was looked for.
        symbol: &'static str,
        /// What the loader says.
        reason: String,
    },
    /// The table is of another version.
    #[error(
        "the connectors of {library} were compiled for version {found} of the interface; expected version {expected}: compile them with this release's include/ondol_connector.h"
    )]
    Version {
        /// Where the table comes from.
        library: String,
        /// Its version.
        found: u32,
        /// The version of this program.
        expected: u32,
    },
    /// A structure is shorter than its version needs.
    #[error(
        "the {structure} of {library} has {found} bytes; expected at least {expected}: compile it with include/ondol_connector.h"
    )]
    TooSmall {
        /// Where the table comes from.
        library: String,
        /// Which structure.
        structure: &'static str,
        /// The bytes that it says to have.
        found: usize,
        /// The bytes that it must have.
        expected: usize,
    },
    /// The table says something that cannot be.
    #[error("the table of {library} is malformed: {reason}")]
    Malformed {
        /// Where the table comes from.
        library: String,
        /// What was found and what was expected.
        reason: String,
    },
    /// There is no such connector.
    #[error("{library} has no connector {found:?}; it has {}", list(known))]
    UnknownClass {
        /// Where the table comes from.
        library: String,
        /// The name that was asked for.
        found: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// A connector lacks functions.
    #[error(
        "connector {class} of {library} lacks {}; it was not opened",
        list(missing)
    )]
    Incomplete {
        /// Where the table comes from.
        library: String,
        /// The connector.
        class: String,
        /// The functions that are NULL.
        missing: Vec<String>,
    },
    /// The connector did not open.
    #[error("connector {class} of {library} cannot be opened: {reason}")]
    Open {
        /// Where the table comes from.
        library: String,
        /// The connector.
        class: String,
        /// What it says.
        reason: String,
    },
    /// The connector opened and has no event descriptor.
    #[error(
        "connector {class} of {library} gave {found} as its event descriptor, which is not open ({reason}); it was closed again"
    )]
    EventFd {
        /// Where the table comes from.
        library: String,
        /// The connector.
        class: String,
        /// The number.
        found: i32,
        /// What is wrong with it.
        reason: String,
    },
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    names.join(", ")
}
