use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{Bitmap, ObjectKey};

/// What is stored behind an adapter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that the objects take.
    pub used_bytes: u64,
    /// Bytes that they may take; `None` if nobody says.
    pub capacity_bytes: Option<u64>,
    /// Objects.
    pub objects: u64,
    /// Bytes of each cache salt that has any; objects without a salt stand under the empty one.
    pub bytes_by_salt: BTreeMap<String, u64>,
    /// Whether all of it is known: `false` while what an earlier process stored is still being counted.
    pub is_complete: bool,
}

impl Usage {
    /// The part of the capacity that is used; `None` without a capacity.
    pub fn fraction(&self) -> Option<f64> {
        let capacity = self.capacity_bytes.filter(|capacity| *capacity > 0)?;
        Some(self.used_bytes as f64 / capacity as f64)
    }
}

/// A request for a page of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListRequest {
    /// Only keys of this model.
    pub model_name: Option<String>,
    /// The most keys to answer with; at least 1.
    pub page_size: usize,
    /// Where the last page ended.
    pub cursor: Option<String>,
}

/// A page of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyPage {
    /// The keys, with the bytes that each takes.
    pub entries: Vec<KeyEntry>,
    /// Where the next page begins; `None` if this was the last one.
    pub next_cursor: Option<String>,
}

/// An object in a [`KeyPage`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyEntry {
    /// Its name.
    pub key: ObjectKey,
    /// Bytes that it takes; 0 if that is not known.
    pub size_bytes: u64,
}

/// What became of a delete; both as long as the batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteResult {
    /// Objects that are gone: deleted now, or not there.
    pub gone: Bitmap,
    /// Objects that stay since they are locked.
    pub locked: Bitmap,
}

/// How well an adapter works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Health {
    /// All is well.
    #[default]
    Healthy,
    /// It works in part: it is read-only, say, or slow.
    Degraded,
    /// It does not work.
    Failed,
}

/// How an adapter fares.
#[derive(Clone, Debug, Default)]
pub struct AdapterStatus {
    /// How well it works.
    pub health: Health,
    /// Why, if not well.
    pub reason: Option<String>,
    /// Whether stores are refused now.
    pub read_only: bool,
    /// Figures of the adapter's own.
    pub figures: Map<String, Value>,
}

/// What was left when an adapter closed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CloseReport {
    /// Tasks that may still touch their buffers.
    pub abandoned: u64,
}
