//! Storage behind a pool, and what a server is told of it.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::L2;

/// What an epoch has behind its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Storage {
    None,
    /// Files in LMCache's layout, with the trailer's checksum.
    Files,
    Compressed,
    /// Files in many directories, with a description of their own.
    Sharded,
    /// So little room that objects have to go there, too.
    Evicting,
    /// Stores, lookups, loads and deletes fail now and then, and what is loaded is not always what was stored.
    Failing,
    /// Gone with its server.
    Memory,
}

/// Bytes that objects may take where there is little room.
const LITTLE_ROOM: u64 = 2 << 20;

/// So long that whatever is there is brought, also under load.
pub(crate) const OBSERVER_WAITS_MS: u64 = 20_000;

const FILES: [Storage; 5] = [
    Storage::Files,
    Storage::Evicting,
    Storage::Compressed,
    Storage::Failing,
    Storage::Sharded,
];

/// Those that epochs have in turn. Seven, so that each meets every device, durability and size of a pool.
const ALL: [Storage; 7] = [
    Storage::Files,
    Storage::Evicting,
    Storage::Memory,
    Storage::Compressed,
    Storage::None,
    Storage::Failing,
    Storage::Sharded,
];

fn area(failpoint: &str) -> &str {
    failpoint.split('.').next().unwrap_or_default()
}

/// Whether only a server with storage comes to this failpoint.
pub(crate) fn is_of_storage(failpoint: &str) -> bool {
    matches!(
        area(failpoint),
        "store" | "spill" | "load" | "admit" | "l2evict"
    )
}

impl Storage {
    /// What epochs may have.
    pub(crate) fn choices(asked: Option<L2>) -> &'static [Self] {
        match asked {
            None => &ALL,
            Some(L2::None) => &[Self::None],
            Some(L2::Memory) => &[Self::Memory],
            Some(L2::Fs) => &FILES,
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Files => "fs",
            Self::Compressed => "fs+zstd",
            Self::Sharded => "fs sharded",
            Self::Evicting => "fs evicting",
            Self::Failing => "fs failing",
            Self::Memory => "memory",
        }
    }

    pub(crate) fn is_there(self) -> bool {
        self != Self::None
    }

    /// Whether a server finds what the one before it stored.
    pub(crate) fn outlives_servers(self) -> bool {
        self.is_there() && self != Self::Memory
    }

    /// Whether what was stored can be had from there until it is deleted.
    pub(crate) fn keeps_all(self) -> bool {
        matches!(self, Self::Files | Self::Compressed | Self::Sharded)
    }

    /// Whether a server with this storage may come to this failpoint.
    pub(crate) fn reaches(self, failpoint: &str) -> bool {
        match area(failpoint) {
            "l2evict" => self == Self::Evicting,
            _ => self.is_there() || !is_of_storage(failpoint),
        }
    }

    /// The value of `--l2-adapter`.
    pub(crate) fn adapter(self, dir: &Path, seed: u64) -> Option<String> {
        let files = |more: Value| {
            let mut parameters = Map::new();
            parameters.insert("type".to_owned(), json!("fs"));
            parameters.insert("base_path".to_owned(), json!(dir));
            if let Value::Object(more) = more {
                parameters.extend(more);
            }
            Value::Object(parameters)
        };
        let adapter = match self {
            Self::None => return None,
            Self::Files => files(json!({})),
            Self::Compressed => files(json!({"serde": [{"type": "checksum"}, {"type": "zstd"}]})),
            Self::Sharded => files(json!({"layout": "sharded", "io": "threads"})),
            Self::Evicting => files(json!({
                "max_capacity_bytes": LITTLE_ROOM,
                "eviction": {"eviction_policy": "LRU", "trigger_watermark": 0.8, "eviction_ratio": 0.2},
            })),
            Self::Failing => json!({
                "type": "fault_inject", "inner": files(json!({})), "seed": seed,
                "store_error_rate": 0.05, "lookup_error_rate": 0.05, "load_error_rate": 0.05,
                "delete_error_rate": 0.05, "corrupt_rate": 0.05, "short_read_rate": 0.05,
                "store_delay_ms": 3, "load_delay_ms": 3,
            }),
            Self::Memory => json!({"type": "memory", "max_size_bytes": 64 << 20}),
        };
        Some(adapter.to_string())
    }
}
