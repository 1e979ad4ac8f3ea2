use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Figures of the storage tier.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct L2Stats {
    /// The backends, in the order of their priority.
    pub backends: Vec<BackendStats>,
    /// Objects that wait to be stored.
    pub store_queue: u64,
    /// The most that may wait before the rest is left to be found later.
    pub store_queue_limit: u64,
    /// Prefetches that are under way.
    pub prefetches: u64,
    /// Bytes of pages that loads are filling.
    pub loading_bytes: u64,
    /// Bytes that tasks nobody waits for any more may still touch.
    pub captive_bytes: u64,
    /// Counters since start, by metric name.
    pub counters: BTreeMap<String, u64>,
}

/// Figures of one storage backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BackendStats {
    /// Its name, such as `fs#0`.
    pub name: String,
    /// Its type.
    pub type_name: String,
    /// `healthy`, `degraded`, `quarantined` or `failed`.
    pub health: String,
    /// Why, if not healthy.
    pub reason: Option<String>,
    /// Whether it is being drained.
    pub draining: bool,
    /// Whether its circuit breaker is open, so that nothing is stored there now.
    pub breaker_open: bool,
    /// Bytes that its objects take.
    pub used_bytes: u64,
    /// Bytes that they may take.
    pub capacity_bytes: Option<u64>,
    /// Objects in it.
    pub objects: u64,
    /// Whether all of that is known yet.
    pub is_complete: bool,
    /// Bytes of each cache salt.
    pub bytes_by_salt: BTreeMap<String, u64>,
    /// Stores, lookups and loads that have not finished.
    pub tasks: u64,
    /// Tasks that nobody waits for any more and that have not finished.
    pub captive_tasks: u64,
    /// Counters since start, by metric name.
    pub counters: BTreeMap<String, u64>,
    /// Figures of the adapter's own.
    pub figures: BTreeMap<String, Value>,
}
