use std::time::Duration;

use ondol_plugin::l2::AdapterStatus;

/// How a lane watches its adapter.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LaneOptions {
    /// How long an adapter may take to open; after a part of that it is said which one is waited for.
    pub open_timeout: Duration,
    /// How long a call into the adapter may take before it counts as hanging; after half of that it counts as slow.
    pub hang_after: Duration,
    /// How often tasks are asked for whose signal may have been lost.
    pub sweep_every: Duration,
    /// Batches that may wait to be submitted; what comes on top is refused.
    pub queue: usize,
    /// How long a delete or a list may take before its caller goes on without it.
    pub blocking_timeout: Duration,
    /// How long is waited for figures before the last ones known are given.
    pub figures_timeout: Duration,
    /// How long is waited for an adapter's destructor.
    pub end_grace: Duration,
}

impl Default for LaneOptions {
    fn default() -> Self {
        Self {
            open_timeout: Duration::from_secs(60),
            hang_after: Duration::from_secs(10),
            sweep_every: Duration::from_secs(2),
            queue: 4096,
            blocking_timeout: Duration::from_secs(60),
            figures_timeout: Duration::from_millis(250),
            end_grace: Duration::from_secs(5),
        }
    }
}

/// Why a task has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// The adapter did not take it.
    #[error("{backend} refused the task: {reason}")]
    Refused {
        /// The backend.
        backend: String,
        /// What it said.
        reason: String,
    },
    /// It did not finish in time; what it may still touch stays captive until it does.
    #[error("{backend} did not finish within {waited:?}")]
    TimedOut {
        /// The backend.
        backend: String,
        /// How long was waited.
        waited: Duration,
    },
    /// The adapter broke its contract.
    #[error("{backend} broke the contract: {reason}")]
    Broken {
        /// The backend.
        backend: String,
        /// How.
        reason: String,
    },
    /// The adapter is not called any more.
    #[error("{backend} is out of use: {reason}")]
    Unusable {
        /// The backend.
        backend: String,
        /// Why.
        reason: String,
    },
}

/// How well a backend works, as its lane sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackendHealth {
    /// All is well.
    #[default]
    Healthy,
    /// It works in part, or slowly.
    Degraded,
    /// It is not called any more.
    Quarantined,
}

/// How a backend fares.
#[derive(Clone, Debug, Default)]
pub struct BackendStatus {
    /// How well it works.
    pub health: BackendHealth,
    /// Why, if not well.
    pub reason: Option<String>,
    /// What the adapter says of itself.
    pub adapter: AdapterStatus,
    /// Tasks that have not finished.
    pub tasks: u64,
    /// Those among them that nobody waits for any more.
    pub captive_tasks: u64,
    /// Bytes that those may still touch.
    pub captive_bytes: u64,
    /// Those among them that loads may still fill.
    pub captive_load_bytes: u64,
    /// What went wrong since the lane started.
    pub counts: LaneCounts,
}

/// What a lane counted since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneCounts {
    /// Breaches of the contract, of every sort.
    pub breaches: u64,
    /// Those among them where a result was there and no signal came.
    pub lost_signals: u64,
    /// Those among them where a result was of no task that is known.
    pub unknown_tasks: u64,
    /// Tasks that did not finish in time.
    pub timeouts: u64,
    /// Results that came when nobody waited for them any more.
    pub late_results: u64,
    /// Batches that were refused since too many waited.
    pub overflows: u64,
}
