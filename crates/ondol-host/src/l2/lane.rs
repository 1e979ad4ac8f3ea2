use std::io;
use std::sync::Arc;
use std::time::Duration;

use ondol_plugin::l2::{
    AdapterStatus, CloseReport, DeleteResult, KeyPage, L2Adapter, ListRequest, LoadItem,
    LoadResult, LookupResult, ObjectKey, StoreItem, StoreResult, Usage,
};

use super::AdapterSpec;

/// How a lane watches its adapter.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LaneOptions {
    /// How long a call into the adapter may take before it counts as hanging.
    pub hang_after: Duration,
}

impl Default for LaneOptions {
    fn default() -> Self {
        Self {
            hang_after: Duration::from_secs(10),
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
}

/// An adapter behind its lane: a thread that makes all submits and watches the three descriptors, so that an adapter that blocks
/// stalls itself only.
#[derive(Debug)]
pub struct Backend {
    spec: AdapterSpec,
}

impl Backend {
    /// Starts the lane of an adapter called `name`.
    ///
    /// # Errors
    /// If the system has no thread or descriptor left.
    pub fn start(
        name: &str,
        spec: AdapterSpec,
        verifies: bool,
        adapter: Box<dyn L2Adapter>,
        options: LaneOptions,
    ) -> io::Result<Arc<Self>> {
        let _ = (name, verifies, adapter, options);
        Ok(Arc::new(Self { spec }))
    }

    /// Its name, such as `fs#0`.
    pub fn name(&self) -> &str {
        ""
    }

    /// How it was configured.
    pub fn spec(&self) -> &AdapterSpec {
        &self.spec
    }

    /// Whether the adapter checks what it gives back.
    pub fn verifies(&self) -> bool {
        false
    }

    /// Stores a batch. `done` is called once, on the lane's thread or the watchdog's, and returns soon.
    pub fn store(
        &self,
        batch: Vec<StoreItem>,
        timeout: Duration,
        done: impl FnOnce(Result<StoreResult, TaskError>) + Send + 'static,
    ) {
        let _ = (batch, timeout, done);
    }

    /// Looks keys up and locks what is there. A result that comes after the timeout is unlocked here.
    pub fn lookup(
        &self,
        keys: Vec<ObjectKey>,
        timeout: Duration,
        done: impl FnOnce(Result<LookupResult, TaskError>) + Send + 'static,
    ) {
        let _ = (keys, timeout, done);
    }

    /// Loads a batch. Pages that come back after the timeout are let go here.
    pub fn load(
        &self,
        batch: Vec<LoadItem>,
        timeout: Duration,
        done: impl FnOnce(Result<LoadResult, TaskError>) + Send + 'static,
    ) {
        let _ = (batch, timeout, done);
    }

    /// Takes one lock from each of these keys.
    pub fn unlock(&self, keys: Vec<ObjectKey>) {
        let _ = keys;
    }

    /// Deletes objects; blocks.
    ///
    /// # Errors
    /// [`TaskError`].
    pub fn delete(&self, keys: &[ObjectKey]) -> Result<DeleteResult, TaskError> {
        let _ = keys;
        Err(TaskError::Unusable {
            backend: String::new(),
            reason: String::new(),
        })
    }

    /// What is stored.
    pub fn usage(&self) -> Usage {
        Usage::default()
    }

    /// A page of keys; blocks.
    ///
    /// # Errors
    /// [`TaskError`].
    pub fn list_keys(&self, request: &ListRequest) -> Result<KeyPage, TaskError> {
        let _ = request;
        Ok(KeyPage::default())
    }

    /// How it fares.
    pub fn status(&self) -> BackendStatus {
        BackendStatus::default()
    }

    /// Ends the adapter within `deadline`; tasks that are left then stay captive.
    pub fn close(&self, deadline: Duration) -> CloseReport {
        let _ = deadline;
        CloseReport::default()
    }
}
