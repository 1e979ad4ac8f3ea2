use std::io;
use std::sync::Arc;
use std::time::Duration;

use ondol_host::l2::Backend;
use ondol_plugin::Key;
use ondol_plugin::l2::CloseReport;
use ondol_protocol::L2Stats;

use crate::attached::AttachedBackends;
use crate::prefetch::PrefetchController;
use crate::{Memory, Prefetch, PrefetchRequest, Quotas, TieringConfig};

/// The storage tier: backends and the controllers that move objects.
#[derive(Debug)]
pub struct Tiering {
    prefetch: PrefetchController,
    quotas: Arc<Quotas>,
}

impl Tiering {
    /// Starts the controllers.
    ///
    /// # Errors
    /// If the system has no thread left.
    pub fn start(
        memory: Arc<Memory>,
        backends: Vec<Arc<Backend>>,
        config: TieringConfig,
    ) -> io::Result<Arc<Self>> {
        let _ = backends;
        let attached: Arc<AttachedBackends> = Arc::default();
        let config = Arc::new(config);
        Ok(Arc::new(Self {
            prefetch: PrefetchController::start(memory, attached, config)?,
            quotas: Arc::default(),
        }))
    }

    /// Hears that objects were committed; returns at once.
    pub fn committed(&self, objects: &[(Key, u64)]) {
        let _ = objects;
    }

    /// Brings objects into memory.
    pub fn prefetch(&self, request: PrefetchRequest) -> Prefetch {
        self.prefetch.submit(request)
    }

    /// The quotas of cache salts.
    pub fn quotas(&self) -> &Arc<Quotas> {
        &self.quotas
    }

    /// Figures.
    pub fn stats(&self) -> L2Stats {
        L2Stats::default()
    }

    /// Stops the controllers, lets stores that wait finish, and closes the backends.
    pub fn close(&self, deadline: Duration) -> CloseReport {
        let _ = deadline;
        CloseReport::default()
    }
}
