use crate::Position;

/// What a log does and how it fares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogStats {
    /// The end of what was recorded.
    pub position: Position,
    /// The end of what is as durable as promised.
    pub durable: Position,
    /// Bytes of its files.
    pub bytes_on_disk: u64,
    /// Number of its segments.
    pub segments: u64,
    /// Checkpoints made since it was opened.
    pub checkpoints: u64,
    /// Checkpoints that could not be made since it was opened.
    pub failed_checkpoints: u64,
    /// Batches written since it was opened.
    pub flushes: u64,
    /// Writes that failed since it was opened.
    pub failed_flushes: u64,
    /// Changes that were refused since it was opened.
    pub refused_records: u64,
    /// Why the log does not work now; nothing if it does.
    pub last_error: Option<String>,
}
