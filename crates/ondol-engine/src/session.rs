use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use ondol_directory::DirectoryError;
use ondol_memory::{MIN_PAGE_BYTES, Region};
use ondol_plugin::{Key, RegionId, RegionSpan};
use ondol_protocol::{
    Access, ClientInfo, Commit, CommitOutcomes, ControlError, ControlPlane, DeleteOutcome,
    EngineStats, Grant, GrantRequest, Hit, IndexFiles, Listing, Pin, PinOutcome, Prefetch,
    Prefetched, RegionInfo, Retrieve, Retrieved, StaleReason,
};
use ondol_shm::{BackingId, ForkGuard, RegionHandle};

use crate::Engine;
use crate::tier::Wish;

/// One client of an engine. When the last reference goes, the client leaves.
#[derive(Debug)]
pub struct Session {
    engine: Arc<Engine>,
    info: ClientInfo,
    lease_table: OwnedFd,
    home: ForkGuard,
}

impl Session {
    pub(crate) fn new(engine: Arc<Engine>, info: ClientInfo, lease_table: OwnedFd) -> Self {
        Self {
            engine,
            info,
            lease_table,
            home: ForkGuard::new(),
        }
    }

    /// Whether the client has left and nothing that it held is left, so that its session can be dropped.
    pub fn is_gone(&self) -> bool {
        self.engine.directory().is_gone(self.info.id)
    }

    fn explain(&self, asked: u64) -> impl Fn(DirectoryError) -> ControlError {
        let ClientInfo {
            id, share_limit, ..
        } = self.info;
        move |error| match error {
            DirectoryError::Full(breakdown) => ControlError::PoolFull(breakdown),
            DirectoryError::ShareExceeded { held } => ControlError::ShareExceeded {
                asked,
                held,
                limit: share_limit,
            },
            DirectoryError::UnknownClient => {
                ControlError::Refused(format!("client {id} has left; connect again"))
            }
            DirectoryError::LeaseNotBooked(reason) => ControlError::Failed(format!(
                "a lease cannot be written down, so that a restart would forget it: {reason}"
            )),
            DirectoryError::Unverifiable(reason) => ControlError::Failed(format!(
                "an object of the last run cannot be compared with its checksum: {reason}"
            )),
            DirectoryError::BadLease(lease) => ControlError::Refused(format!(
                "lease slot {} number {} is in use or out of range; the client's lease table is damaged",
                lease.slot, lease.sequence
            )),
            DirectoryError::Malformed(reason) => ControlError::Refused(reason.to_owned()),
            DirectoryError::Journal(error) => ControlError::Failed(format!(
                "{error}; it may be done or not, and may be asked again"
            )),
            other => ControlError::Failed(format!("{other:?}")),
        }
    }
}

impl ControlPlane for Session {
    fn client(&self) -> ClientInfo {
        self.info
    }

    fn lease_table(&self) -> Result<OwnedFd, ControlError> {
        self.lease_table
            .try_clone()
            .map_err(|error| ControlError::Failed(format!("lease table: {error}")))
    }

    fn index(&self) -> Result<Option<IndexFiles>, ControlError> {
        let directory = self.engine.directory();
        directory.index(self.info.id).map_err(self.explain(0))
    }

    fn regions(&self) -> Result<Vec<RegionInfo>, ControlError> {
        let places: Vec<_> = self.engine.directory().with_pool(|pool| {
            let place = |(id, region): (RegionId, &Region)| {
                (region.span(id), region.stride(), region.extent().backing)
            };
            pool.regions().map(place).collect()
        });
        // Signed without the pool's lock.
        let backings: Vec<_> = self.engine.backings().collect();
        let describe = |(span, stride, backing): (RegionSpan, u64, BackingId)| {
            let file = backings[backing.0 as usize];
            let handle = self.engine.secret().sign(span);
            RegionInfo {
                handle,
                stride,
                backing,
                backing_len: file.len(),
                path: file.path().map(ToOwned::to_owned),
            }
        };
        Ok(places.into_iter().map(describe).collect())
    }

    fn open_backing(&self, handle: &RegionHandle, access: Access) -> Result<OwnedFd, ControlError> {
        let id = handle.span.region_id;
        if !self.engine.secret().verify(handle) {
            return Err(ControlError::Refused(format!(
                "the token of region {id} is not this engine's"
            )));
        }
        let backing = self
            .engine
            .directory()
            .with_pool(|pool| Some(pool.region(id)?.extent().backing));
        let backing =
            backing.ok_or_else(|| ControlError::Refused(format!("region {id} is gone")))?;
        let file = self.engine.backings().nth(backing.0 as usize);
        let file =
            file.ok_or_else(|| ControlError::Failed(format!("region {id} lies in no device")))?;
        let opened = match access {
            Access::Read => file.open_read(),
            Access::Write => file.open_write(),
        };
        opened.map_err(|error| {
            ControlError::Failed(format!("cannot open the memory of region {id}: {error}"))
        })
    }

    fn grant(&self, request: GrantRequest) -> Result<Vec<Grant>, ControlError> {
        let GrantRequest {
            request,
            stride,
            count,
        } = request;
        let ClientInfo {
            id,
            share_limit,
            max_page_bytes,
            ..
        } = self.info;
        if !(MIN_PAGE_BYTES..=max_page_bytes).contains(&stride) || count == 0 {
            return Err(ControlError::Refused(format!(
                "{count} pages of {stride} bytes were asked for; expected at least one page of {MIN_PAGE_BYTES} to {max_page_bytes} bytes"
            )));
        }
        let grants = self
            .engine
            .directory()
            .grant(id, request, stride, count, share_limit);
        grants.map_err(self.explain(stride))
    }

    fn return_pages(&self, pages: &[Grant]) -> Result<Vec<Result<(), StaleReason>>, ControlError> {
        self.engine
            .directory()
            .return_pages(self.info.id, pages)
            .map_err(self.explain(0))
    }

    fn commit(&self, commits: &[Commit]) -> Result<CommitOutcomes, ControlError> {
        self.engine.with_durable_bytes(commits, || {
            let directory = self.engine.directory();
            directory
                .commit(self.info.id, commits)
                .map_err(self.explain(0))
        })
    }

    fn retrieve(&self, request: &Retrieve) -> Result<Retrieved, ControlError> {
        let directory = self.engine.directory();
        let id = self.info.id;
        let retrieve = || directory.retrieve(id, request).map_err(self.explain(0));
        let Some(tier) = self.engine.tier() else {
            return retrieve();
        };
        if request.wait_ms == 0 {
            let found = retrieve()?;
            tier.used(&request.keys, &found);
            return Ok(found);
        }
        let whole = directory.retrieve_whole(id, request);
        if let Some(whole) = whole.map_err(self.explain(0))? {
            tier.used(&request.keys, &whole);
            return Ok(whole);
        }
        let wish = Wish {
            keys: &request.keys,
            group: request.group,
            prefix: request.prefix,
            expected_len: request.expected_len,
        };
        let brought = tier.bring(wish, Duration::from_millis(request.wait_ms.into()));
        // What was brought is leased by the storage tier until the client has leased it.
        let found = retrieve()?;
        tier.used(&request.keys, &found);
        if brought.loaded > 0 {
            let hits = found.hits.iter().flatten().count() as u64;
            directory.count_l2_hits(id, brought.loaded.min(hits));
        }
        Ok(Retrieved {
            pending: brought.pending,
            ..found
        })
    }

    fn prefetch(&self, request: &Prefetch) -> Result<Prefetched, ControlError> {
        let mut pending = false;
        if let Some(tier) = self.engine.tier() {
            let wish = Wish::from(request);
            if request.wait_ms > 0 {
                let brought = tier.bring(wish, Duration::from_millis(request.wait_ms.into()));
                pending = brought.pending;
                tier.keep(brought);
            } else {
                pending = tier.promote(wish);
            }
        }
        let found = self.locate(&request.keys)?;
        Ok(Prefetched {
            found: found.iter().map(Option::is_some).collect(),
            pending,
        })
    }

    fn locate(&self, keys: &[Key]) -> Result<Vec<Option<Hit>>, ControlError> {
        Ok(self.engine.directory().locate(keys))
    }

    fn pin(&self, pins: &[Pin]) -> Result<Vec<PinOutcome>, ControlError> {
        self.engine
            .directory()
            .pin(self.info.id, pins)
            .map_err(self.explain(0))
    }

    fn unpin(&self, pins: &[Pin]) -> Result<Vec<PinOutcome>, ControlError> {
        self.engine
            .directory()
            .unpin(self.info.id, pins)
            .map_err(self.explain(0))
    }

    fn delete(&self, keys: &[Key]) -> Result<Vec<DeleteOutcome>, ControlError> {
        let directory = self.engine.directory();
        let from_memory = || directory.delete(keys).map_err(self.explain(0));
        match self.engine.tier() {
            Some(tier) => tier.delete(keys, from_memory)?,
            None => from_memory(),
        }
    }

    fn list(&self, after: Option<&Key>, limit: u32) -> Result<Listing, ControlError> {
        Ok(self.engine.directory().list(after, limit))
    }

    fn stats(&self) -> Result<EngineStats, ControlError> {
        Ok(self.engine.stats())
    }

    fn ping(&self) -> Result<(), ControlError> {
        Ok(())
    }

    fn leave(&self) -> Result<(), ControlError> {
        // What its clients hold a closed engine keeps for the next one, also if its log could not be closed.
        if self.engine.is_closed() {
            return Err(ControlError::Failed(
                "the engine is being stopped".to_owned(),
            ));
        }
        self.engine
            .directory()
            .leave(self.info.id)
            .map_err(self.explain(0))?;
        self.engine.client_left(self.info.id);
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A forked child has a copy of the engine, whose locks may be held for ever, but the parent's journal.
        if !self.home.is_home() {
            return;
        }
        // Leases that readers still hold outlive the session; the engine forgets the client when they have ended.
        let _ = self.leave();
    }
}
