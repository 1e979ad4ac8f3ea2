use ondol_protocol::EngineStats;
use serde::Serialize;
use serde_json::{Map, Value};

/// Figures of a handler and of the engine behind it.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct HandlerStats {
    /// The engine's own.
    pub engine: EngineStats,
    /// This handler's, since it was made.
    pub handler: HandlerCounts,
    /// What the plugins contribute, by plugin name.
    pub plugins: Map<String, Value>,
}

/// Figures of one handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HandlerCounts {
    /// Objects given to readers.
    pub hits: u64,
    /// Keys not found.
    pub misses: u64,
    /// Objects made visible.
    pub stores: u64,
    /// Objects not served because of their layout.
    pub layout_mismatches: u64,
    /// Objects not served because of their checksum.
    pub checksum_mismatches: u64,
    /// Times that a server which was started again has taken this handler up as the client that it was.
    pub reconnects: u64,
    /// Times that this handler has become a new client, as the server did not know it any more.
    pub new_lines: u64,
    /// Leases held now.
    pub leases: u64,
    /// Pages in stock, granted and not in use.
    pub stock_pages: u64,
    /// Regions mapped now.
    pub mapped_regions: u64,
}

/// Whether a handler can work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// The engine answers.
    Connected,
    /// The handler was closed.
    Closed,
    /// The engine does not answer, and why; for a server that is away, also when it is looked for again.
    Unreachable(String),
}

impl Health {
    /// Whether the engine answers.
    pub fn is_connected(&self) -> bool {
        *self == Self::Connected
    }
}
