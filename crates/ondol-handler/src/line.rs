use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ondol_plugin::{HandlerView, Key, RegionId};
use ondol_protocol::{ClientInfo, ControlError, ControlPlane, Hit, Prefetch, Retrieve};
use ondol_shm::{ForkGuard, LEASE_SLOTS, Lease, LeaseSlots};

use crate::batch::Sighting;
use crate::farewell::{self, Farewell};
use crate::object::Object;
use crate::pins::Pins;
use crate::regions::Regions;
use crate::stock::Stock;
use crate::{Expect, HandlerError};

/// One connection to an engine, with everything that is only good with it.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) plane: Arc<dyn ControlPlane>,
    pub(crate) info: ClientInfo,
    pub(crate) stock: Arc<Stock>,
    pub(crate) regions: Regions,
    pub(crate) pins: Pins,
    pub(crate) slots: Arc<LeaseSlots>,
    pub(crate) home: ForkGuard,
    /// Whether the handler has left this connection.
    over: AtomicBool,
    /// The incarnation under which what was lost with the one before is settled.
    settled: AtomicU64,
}

/// What a look-up found, before any of it is an object.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) hits: Vec<Option<(Hit, Lease)>>,
    pub(crate) mismatches: u32,
    /// Whether more is on its way from storage.
    pending: bool,
}

impl Line {
    pub(crate) fn open(
        plane: Arc<dyn ControlPlane>,
        stock_bytes: u64,
    ) -> Result<Self, HandlerError> {
        let info = plane.client();
        let open_slots =
            || -> Result<_, HandlerError> { Ok(LeaseSlots::open(plane.lease_table()?.as_fd())?) };
        let slots = open_slots().inspect_err(|_| {
            // Nobody else will say that this client is not used.
            let _ = plane.leave();
        })?;
        Ok(Self {
            plane,
            info,
            stock: Arc::new(Stock::new(stock_bytes)),
            regions: Regions::default(),
            pins: Pins::new(),
            slots,
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

    /// Finds and leases objects. A lease that comes with a hit is booked at the engine; all others end here. A wait that is
    /// longer than an answer may take is made of several.
    pub(crate) fn find(
        &self,
        keys: &[Key],
        group: u32,
        prefix: bool,
        expect: Expect,
    ) -> Result<Found, HandlerError> {
        let begun = Instant::now();
        loop {
            let left = expect.wait.saturating_sub(begun.elapsed());
            let wait = left.min(self.plane.longest_wait());
            let asked = Instant::now();
            let found = self.find_once(keys, group, prefix, Expect { wait, ..expect })?;
            // One that does not wait although it was asked to is not asked again and again.
            let is_over = left <= wait || asked.elapsed() < wait / 2;
            if !found.pending || is_over {
                return Ok(found);
            }
        }
    }

    fn find_once(
        &self,
        keys: &[Key],
        group: u32,
        prefix: bool,
        expect: Expect,
    ) -> Result<Found, HandlerError> {
        let mut leases: Vec<Option<Lease>> = Vec::with_capacity(keys.len());
        for _ in keys {
            let lease = self
                .slots
                .propose()
                .ok_or_else(|| HandlerError::TooManyLeases {
                    held: self.slots.in_use().saturating_sub(leases.len()) as u64,
                    asked: keys.len() as u64,
                    limit: LEASE_SLOTS.into(),
                })?;
            leases.push(Some(lease));
        }
        let request = Retrieve {
            keys: keys.to_vec(),
            leases: leases.iter().flatten().map(Lease::reference).collect(),
            group,
            prefix,
            expect: expect.layout,
            wait_ms: milliseconds(expect.wait),
            expected_len: expect.object_bytes.unwrap_or(0),
        };
        ondol_catalog::failpoint!("client.retrieve.leased");
        let answer = self.plane.retrieve(&request)?;
        ondol_catalog::failpoint!("client.retrieve.answered");
        if answer.hits.len() != keys.len() {
            let found = answer.hits.len();
            return Err(
                ControlError::Protocol(format!("{found} answers to {} keys", keys.len())).into(),
            );
        }
        let hits = answer
            .hits
            .into_iter()
            .zip(&mut leases)
            .map(|(hit, lease)| hit.zip(lease.take()))
            .collect();
        Ok(Found {
            hits,
            mismatches: answer.mismatches,
            pending: answer.pending,
        })
    }

    /// Has objects brought from storage, without waiting for it; whether any are on their way.
    pub(crate) fn promote(
        &self,
        keys: Vec<Key>,
        object_bytes: Option<u64>,
    ) -> Result<bool, HandlerError> {
        let request = Prefetch {
            keys,
            group: 1,
            prefix: false,
            expected_len: object_bytes.unwrap_or(0),
            wait_ms: 0,
        };
        Ok(self.plane.prefetch(&request)?.pending)
    }

    /// The object of a hit; maps its region if need be.
    pub(crate) fn object(&self, hit: Hit, lease: Lease) -> Result<Object, HandlerError> {
        let region = self.regions.get(&*self.plane, hit.location.page.region)?;
        let bytes = region.read(&*self.plane)?.view(hit.location, lease)?;
        Ok(Object::new(bytes, hit.meta))
    }

    /// What was found, without mapping anything for it.
    pub(crate) fn sight(&self, found: Found) -> Result<Vec<Option<Sighting>>, HandlerError> {
        let sight = |(hit, lease): (Hit, Lease)| {
            let region = self.regions.get(&*self.plane, hit.location.page.region)?;
            let elsewhere = Sighting::Elsewhere {
                handle: region.info.handle.span,
                kv_offset: u64::from(hit.location.page.index) * region.info.stride,
                kv_length: hit.location.len,
            };
            let bytes = region
                .mapped()
                .and_then(|region| region.view(hit.location, lease).ok());
            Ok(bytes.map_or(elsewhere, |bytes| {
                Sighting::Mapped(Object::new(bytes, hit.meta))
            }))
        };
        let hits = found.hits.into_iter();
        hits.map(|hit| hit.map(sight).transpose()).collect()
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
        Farewell::new(&self.plane, &self.stock, &self.slots)
    }

    /// Gives the line up without a word: the engine does not know it any more. Objects that are still held keep their
    /// memory, pages that are still held can be written but not stored.
    pub(crate) fn abandon(&self) {
        self.over.store(true, Ordering::Release);
        self.stock.abandon();
    }
}

/// Whole milliseconds, rounded up, so that a short wait is not none at all.
fn milliseconds(wait: Duration) -> u32 {
    u32::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX)
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
