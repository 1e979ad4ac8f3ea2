use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ondol_plugin::{HandlerView, Key, RegionId};
use ondol_protocol::{ClientInfo, ControlPlane, Prefetch};
use ondol_shm::{ForkGuard, LeaseSlots};

use crate::HandlerError;
use crate::farewell::{self, Farewell};
use crate::index::{OwnTable, SharedIndex};
use crate::pins::Pins;
use crate::regions::Regions;
use crate::stock::Stock;

/// One connection to an engine, with everything that is only good with it.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) plane: Arc<dyn ControlPlane>,
    pub(crate) info: ClientInfo,
    pub(crate) stock: Arc<Stock>,
    pub(crate) regions: Regions,
    pub(crate) pins: Pins,
    /// Leases that the engine books.
    pub(crate) leases: Arc<LeaseSlots>,
    /// What is found and leased without asking.
    pub(crate) index: SharedIndex,
    pub(crate) home: ForkGuard,
    /// Whether the handler has left this connection.
    over: AtomicBool,
    /// The incarnation under which what was lost with the one before is settled.
    settled: AtomicU64,
}

impl Line {
    pub(crate) fn open(
        plane: Arc<dyn ControlPlane>,
        stock_bytes: u64,
    ) -> Result<Self, HandlerError> {
        let info = plane.client();
        let open_leases =
            || -> Result<_, HandlerError> { Ok(LeaseSlots::open(plane.lease_table()?.as_fd())?) };
        let leases = open_leases().inspect_err(|_| {
            // Nobody else will say that this client is not used.
            let _ = plane.leave();
        })?;
        let table = Arc::new(OwnTable::new());
        Ok(Self {
            plane,
            info,
            stock: Arc::new(Stock::new(stock_bytes, Arc::clone(&table))),
            regions: Regions::default(),
            pins: Pins::new(),
            leases,
            index: SharedIndex::new(table),
            home: ForkGuard::new(),
            over: AtomicBool::new(false),
            settled: AtomicU64::new(info.incarnation),
        })
    }

    /// After a server that was started again has taken this client up, what the last one did not answer is asked
    /// again, and told again what no server has heard. Whether there is a new server that this line has not been seen
    /// with before.
    pub(crate) fn settle_after_resume(&self) -> bool {
        // In this order: incarnations do not come again, so a change that another thread has seen is no change here.
        let before = self.settled.load(Ordering::Acquire);
        let now = self.plane.client().incarnation;
        if now == before
            || self
                .settled
                .compare_exchange(before, now, Ordering::AcqRel, Ordering::Acquire)
                .is_err()
        {
            return false;
        }
        ondol_catalog::failpoint!("client.settle");
        self.index.look_again();
        if let Err(error) = self.stock.settle(&*self.plane) {
            // Kept, and asked again when pages are needed, or by the next call on the next server.
            tracing::debug!(%error, "what the last server did not answer is not settled yet");
        }
        if self.is_over() {
            // The handler left while this was asked.
            self.farewell().say();
        }
        self.reached();
        true
    }

    /// Has objects brought from storage, without waiting for it; how many are there at once, and whether any are on their way.
    pub(crate) fn promote(
        &self,
        keys: Vec<Key>,
        object_bytes: Option<u64>,
    ) -> Result<(u64, bool), HandlerError> {
        let request = Prefetch {
            keys,
            group: 1,
            prefix: false,
            expected_len: object_bytes.unwrap_or(0),
            wait_ms: 0,
        };
        let answer = self.plane.prefetch(&request)?;
        let there = answer.found.iter().filter(|found| **found).count();
        Ok((there as u64, answer.pending))
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// The engine has just answered. If it is a server that took the place of another one, it is told again what that
    /// one did not hear. To be called without a lock.
    pub(crate) fn reached(&self) {
        farewell::repeat(&*self.plane);
    }

    /// Leaves the engine: what is in stock goes back, pins end. Objects and pages that are still held keep what
    /// they need of this line alive.
    pub(crate) fn leave(&self) {
        self.over.store(true, Ordering::Release);
        ondol_catalog::failpoint!("client.close.begun");
        self.farewell().say();
    }

    pub(crate) fn farewell(&self) -> Farewell {
        Farewell::new(&self.plane, &self.stock, &self.leases, self.index.slots())
    }

    /// Number of objects that are held.
    pub(crate) fn leases_in_use(&self) -> usize {
        self.leases.in_use() + self.index.slots().map_or(0, |slots| slots.in_use())
    }

    /// Gives the line up without a word: the engine does not know it any more. Objects that are still held keep their
    /// memory, pages that are still held can be written but not stored.
    pub(crate) fn abandon(&self) {
        self.over.store(true, Ordering::Release);
        self.stock.abandon();
    }
}

impl HandlerView for Line {
    fn is_region_mapped(&self, region: RegionId) -> bool {
        !self.is_over()
            && self
                .regions
                .known(region)
                .is_some_and(|region| region.is_mapped())
    }

    fn get_region_dax_path(&self, region: RegionId) -> Option<PathBuf> {
        self.regions.known(region)?.info.path.clone()
    }
}
