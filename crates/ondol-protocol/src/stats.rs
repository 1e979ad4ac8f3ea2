use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::L2Stats;

/// Figures of the engine at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EngineStats {
    /// Memory.
    pub pool: PoolStats,
    /// Page sizes in use, smallest first.
    pub classes: Vec<ClassStats>,
    /// Clients, by id.
    pub clients: Vec<ClientStats>,
    /// Visible objects.
    pub objects: u64,
    /// Bytes of visible objects.
    pub object_bytes: u64,
    /// Objects that were removed while readers held them.
    pub retired: u64,
    /// Name of the eviction policy.
    pub policy: String,
    /// The index that clients on the engine's host read, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<IndexStats>,
    /// Counters since start, by metric name.
    pub counters: BTreeMap<String, u64>,
    /// The storage tier, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l2: Option<L2Stats>,
}

/// Figures of the shared index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IndexStats {
    /// The how many-th index it is; it is replaced when it is full.
    pub generation: u64,
    /// Objects that it holds.
    pub objects: u64,
    /// Objects that it does not hold, so that readers ask for what they do not find.
    pub unindexed: u64,
    /// Bytes of memory that it may take.
    pub bytes: u64,
}

/// Figures of the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolStats {
    /// The devices as configured.
    pub devices: Vec<String>,
    /// All bytes that can hold regions.
    pub total_bytes: u64,
    /// Bytes in no region.
    pub free_bytes: u64,
    /// The largest run of free bytes.
    pub largest_free_extent: u64,
    /// Number of regions.
    pub regions: u64,
}

/// Figures of one page size.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClassStats {
    /// Page size in bytes.
    pub stride: u64,
    /// Number of regions.
    pub regions: u64,
    /// Pages in those regions.
    pub pages: u64,
    /// Pages that hold nothing.
    pub free: u64,
    /// Pages granted to clients.
    pub granted: u64,
    /// Pages that hold an object.
    pub committed: u64,
}

/// Figures of one client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientStats {
    /// The client's name.
    pub id: u64,
    /// Its process; 0 if it lives in the engine's own.
    pub pid: u32,
    /// Pages granted to it.
    pub granted_pages: u64,
    /// Their bytes.
    pub granted_bytes: u64,
    /// Leases it holds, those that it took by itself included.
    pub leases: u64,
    /// How long it has held the oldest of them, in milliseconds.
    pub oldest_lease_ms: Option<u64>,
    /// Pins it holds.
    pub pins: u64,
    /// Objects that it stored and that are still there.
    pub objects: u64,
    /// Their bytes.
    pub object_bytes: u64,
    /// Objects that it found because they were brought from storage while it waited.
    pub l2_hits: u64,
}
