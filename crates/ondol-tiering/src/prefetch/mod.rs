//! From storage to memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ondol_plugin::Key;
use ondol_plugin::l2::Bitmap;

use crate::attached::AttachedBackends;
use crate::{Leased, Memory, TieringConfig};

/// One row of a request: the chunks of one object group and rank. All rows of a request are equally long.
#[derive(Clone, Debug)]
pub struct Row {
    /// The keys, one for each chunk.
    pub keys: Vec<Key>,
    /// Chunks that a sliding window reaches over; `None` for full attention.
    pub window: Option<usize>,
    /// Length of each object in bytes, if it is known.
    pub expected_len: Option<u64>,
}

/// Which of the chunks that are there are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchPolicy {
    /// The longest prefix that every row can serve.
    Prefix,
    /// Every chunk that every row has.
    Full,
}

/// A request to bring objects into memory.
#[derive(Clone, Debug)]
pub struct PrefetchRequest {
    /// What is wanted.
    pub rows: Vec<Row>,
    /// Which of it.
    pub policy: FetchPolicy,
    /// How long this may take, after which it reports what it has.
    pub timeout: Duration,
}

/// A request that is under way. Dropping it does not stop it; what it loads is admitted all the same.
#[derive(Debug)]
pub struct Prefetch {}

/// What a prefetch has.
#[derive(Debug)]
pub struct PrefetchReport {
    /// For each row, which chunks are in memory and leased.
    pub present: Vec<Bitmap>,
    /// Those that were there before.
    pub from_memory: Vec<Bitmap>,
    /// The leases, row by row; dropped with the report.
    pub leases: Vec<Vec<Option<Leased>>>,
    /// Whether the time was over before everything that was planned had come.
    pub timed_out: bool,
}

impl Prefetch {
    /// Waits until it is done, or `until`; what it has then.
    pub fn wait(self, until: Instant) -> PrefetchReport {
        let _ = until;
        PrefetchReport {
            present: Vec::new(),
            from_memory: Vec::new(),
            leases: Vec::new(),
            timed_out: false,
        }
    }
}

/// Brings objects into memory.
#[derive(Debug)]
pub(crate) struct PrefetchController {
    _memory: Arc<Memory>,
    _backends: Arc<AttachedBackends>,
}

impl PrefetchController {
    pub(crate) fn start(
        memory: Arc<Memory>,
        backends: Arc<AttachedBackends>,
        config: Arc<TieringConfig>,
    ) -> std::io::Result<Self> {
        let _ = config;
        Ok(Self {
            _memory: memory,
            _backends: backends,
        })
    }

    pub(crate) fn submit(&self, request: PrefetchRequest) -> Prefetch {
        let _ = request;
        Prefetch {}
    }
}
