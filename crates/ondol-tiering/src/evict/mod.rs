//! Making room in backends that do not do it themselves.
//!
//! A backend with an `eviction` in its configuration has a thread that knows what is stored there: from a listing at the start, from
//! stores, loads and deletes since. When stores have filled the backend to its watermark, the thread deletes by bytes, in the order of
//! a policy. A cache salt that has more than its quota is brought down to it, however full the backend is.
//!
//! An object that is deleted here and that memory still has stays marked as stored in memory. The mark is then wrong: when memory
//! makes room, the object goes before others that are not stored, and is gone for good. It is left all the same. Without it the
//! next walk of the store controller would write the object back into the backend that has just made room, which would have to
//! evict it, or another one, once more. Clients' deletes do take the mark away, see `Tiering::delete`; objects that
//! loads find missing or corrupt are not in memory, and have none.

mod inventory;
mod plan;
mod reports;
mod thread;

use std::io;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::Quotas;
use crate::attached::Attached;
use crate::latch::{self, Latch};
use crate::metrics::EvictCounters;

pub(crate) use reports::Reports;
use thread::EvictThread;

/// The evictions of all backends that want one.
#[derive(Debug)]
pub(crate) struct EvictController {
    quotas: Arc<Quotas>,
    lanes: Arc<Mutex<Vec<Lane>>>,
}

/// The eviction of one backend.
#[derive(Debug)]
struct Lane {
    backend: u64,
    reports: Arc<Reports>,
    counters: Arc<EvictCounters>,
    ended: Arc<Latch>,
}

impl EvictController {
    pub(crate) fn new(quotas: Arc<Quotas>) -> Self {
        let lanes: Arc<Mutex<Vec<Lane>>> = Arc::default();
        let told = Arc::downgrade(&lanes);
        quotas.on_change(move || {
            if let Some(lanes) = told.upgrade() {
                lanes.lock().iter().for_each(|lane| lane.reports.look());
            }
        });
        Self { quotas, lanes }
    }

    /// Begins to make room in a backend, if it wants that.
    ///
    /// # Errors
    /// If the system has no thread left.
    pub(crate) fn add(&self, attached: &Arc<Attached>) -> io::Result<()> {
        let Some(reports) = &attached.evictions else {
            return Ok(());
        };
        let counters = Arc::new(EvictCounters::new());
        let thread = EvictThread::new(
            Arc::clone(attached),
            Arc::clone(reports),
            Arc::clone(&self.quotas),
            Arc::clone(&counters),
        );
        let ended = latch::spawn("ondol-l2-evict", move || thread.run())?;
        self.lanes.lock().push(Lane {
            backend: attached.id,
            reports: Arc::clone(reports),
            counters,
            ended,
        });
        Ok(())
    }

    /// Ends the eviction of one backend, which may take as long as a delete that is under way.
    pub(crate) fn drain(&self, backend: u64) {
        let mut lanes = self.lanes.lock();
        if let Some(at) = lanes.iter().position(|lane| lane.backend == backend) {
            lanes.remove(at).reports.stop();
        }
    }

    /// Ends all evictions; whether they have ended by `until`.
    pub(crate) fn stop(&self, until: Instant) -> bool {
        let lanes = std::mem::take(&mut *self.lanes.lock());
        lanes.iter().for_each(|lane| lane.reports.stop());
        lanes.iter().all(|lane| lane.ended.wait(until))
    }

    /// Counters of one backend.
    pub(crate) fn counters(&self, backend: u64) -> Vec<(&'static str, u64)> {
        let lanes = self.lanes.lock();
        let lane = lanes.iter().find(|lane| lane.backend == backend);
        let counters = lane.map(|lane| &lane.counters);
        counters
            .into_iter()
            .flat_map(|counters| counters.iter())
            .map(|counter| (counter.metric().name, counter.get()))
            .collect()
    }
}

/// The threads end by themselves; nobody waits for them.
impl Drop for EvictController {
    fn drop(&mut self) {
        for lane in self.lanes.lock().drain(..) {
            lane.reports.stop();
        }
    }
}
