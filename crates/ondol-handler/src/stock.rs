//! Pages that were granted to this client and are not in use, by page size.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ondol_protocol::{ControlError, ControlPlane, Grant, GrantRequest};
use parking_lot::Mutex;

use crate::error::may_be_done;
use crate::index::OwnTable;

const LARGEST_BATCH: u32 = 64;
/// So many pages are returned with one message.
const RETURNED_AT_ONCE: usize = 1024;

#[derive(Debug, Default)]
struct Shelves {
    pages: HashMap<u64, Vec<Grant>>,
    /// How many pages of a size to ask for next.
    next_batch: HashMap<u64, u32>,
    /// Requests whose answer was lost; asked again, they bring the same pages.
    unanswered: Vec<GrantRequest>,
    /// Pages whose commit was not answered; the engine knows whether they are still granted.
    unsettled: Vec<Grant>,
    /// How many threads have taken out of the two above what they ask about.
    settling: usize,
    /// Whether the engine has forgotten this client, and with it every page of its.
    is_abandoned: bool,
}

#[derive(Debug)]
pub(crate) struct Stock {
    shelves: Mutex<Shelves>,
    next_request: AtomicU64,
    batch_bytes: u64,
    table: Arc<OwnTable>,
}

impl Stock {
    /// Pages are returned through the client's table, once there is one.
    pub(crate) fn new(batch_bytes: u64, table: Arc<OwnTable>) -> Self {
        Self {
            shelves: Mutex::default(),
            next_request: AtomicU64::new(1),
            batch_bytes,
            table,
        }
    }

    /// A page of `stride` bytes from stock, or from a new batch. The engine is asked without a lock held.
    pub(crate) fn take(
        &self,
        plane: &dyn ControlPlane,
        stride: u64,
    ) -> Result<Grant, ControlError> {
        if let Some(grant) = self.pop(stride) {
            return Ok(grant);
        }
        self.settle(plane)?;
        if let Some(grant) = self.pop(stride) {
            return Ok(grant);
        }
        match self.fetch(plane, stride) {
            Err(ControlError::PoolFull(_) | ControlError::ShareExceeded { .. })
                if self
                    .give_back_unasked(plane)
                    .is_ok_and(|returned| returned > 0) =>
            {
                // What lay idle here, in other page sizes too, may be all that was missing.
                self.fetch(plane, stride)
            }
            result => result,
        }
    }

    /// Puts a page back that is still granted. More than two batches are not kept: what lies idle here is missing
    /// elsewhere.
    pub(crate) fn put(&self, plane: &dyn ControlPlane, stride: u64, grant: Grant) {
        let most = self.largest_batch(stride) as usize;
        let excess = {
            let mut shelves = self.shelves.lock();
            if shelves.is_abandoned {
                return;
            }
            let shelf = shelves.pages.entry(stride).or_default();
            shelf.push(grant);
            if shelf.len() <= 2 * most {
                return;
            }
            shelf.split_off(most)
        };
        let _ = self.return_unasked(plane, excess);
    }

    /// Notes a page whose commit was not answered.
    pub(crate) fn leave_unsettled(&self, grant: Grant) {
        self.keep_unsettled([grant]);
    }

    fn keep_unsettled(&self, grants: impl IntoIterator<Item = Grant>) {
        let mut shelves = self.shelves.lock();
        if !shelves.is_abandoned {
            shelves.unsettled.extend(grants);
        }
    }

    /// Forgets every page: the engine does not know this client any more.
    pub(crate) fn abandon(&self) {
        let mut shelves = self.shelves.lock();
        *shelves = Shelves {
            is_abandoned: true,
            settling: shelves.settling,
            ..Shelves::default()
        };
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.shelves.lock().is_abandoned
    }

    /// Whether all requests for pages were answered. A client that has left cannot ask again.
    pub(crate) fn is_answered(&self) -> bool {
        let shelves = self.shelves.lock();
        shelves.unanswered.is_empty() && shelves.settling == 0
    }

    /// Whether no page lies here, and none may be granted of which it is not known.
    pub(crate) fn is_empty(&self) -> bool {
        let Shelves {
            pages,
            next_batch: _,
            unanswered,
            unsettled,
            settling,
            is_abandoned: _,
        } = &*self.shelves.lock();
        pages.values().all(Vec::is_empty)
            && unanswered.is_empty()
            && unsettled.is_empty()
            && *settling == 0
    }

    /// Returns every page in stock to the engine; how many were returned. What could not be returned now stays noted.
    pub(crate) fn give_back(&self, plane: &dyn ControlPlane) -> Result<usize, ControlError> {
        self.settle(plane)?;
        let pages = self.clear();
        let count = pages.len();
        self.return_or_keep(plane, pages)?;
        Ok(count)
    }

    /// As [`give_back`](Self::give_back), so that the engine has the pages when it is next asked for some.
    fn give_back_unasked(&self, plane: &dyn ControlPlane) -> Result<usize, ControlError> {
        let pages = self.clear();
        let count = pages.len();
        self.return_unasked(plane, pages)?;
        Ok(count)
    }

    fn clear(&self) -> Vec<Grant> {
        let shelves = std::mem::take(&mut self.shelves.lock().pages);
        shelves.into_values().flatten().collect()
    }

    /// Returns pages without asking the engine, as long as the table has room: it looks there before it needs pages.
    fn return_unasked(
        &self,
        plane: &dyn ControlPlane,
        mut pages: Vec<Grant>,
    ) -> Result<(), ControlError> {
        if let Some(table) = self.table.get() {
            while pages.last().is_some_and(|grant| table.give_back(*grant)) {
                pages.pop();
            }
        }
        self.return_or_keep(plane, pages)
    }

    /// Returns pages; those that the engine may not have taken back are kept, to be returned later.
    fn return_or_keep(
        &self,
        plane: &dyn ControlPlane,
        mut pages: Vec<Grant>,
    ) -> Result<(), ControlError> {
        while !pages.is_empty() {
            let rest = pages.split_off(pages.len().min(RETURNED_AT_ONCE));
            if let Err(error) = plane.return_pages(&pages) {
                tracing::debug!(%error, pages = pages.len(), "pages could not be returned now");
                self.keep_unsettled(pages.into_iter().chain(rest));
                return Err(error);
            }
            pages = rest;
        }
        Ok(())
    }

    pub(crate) fn len(&self) -> u64 {
        self.shelves
            .lock()
            .pages
            .values()
            .map(|pages| pages.len() as u64)
            .sum()
    }

    fn largest_batch(&self, stride: u64) -> u32 {
        (self.batch_bytes / stride.max(1)).clamp(1, LARGEST_BATCH.into()) as u32
    }

    fn pop(&self, stride: u64) -> Option<Grant> {
        self.shelves.lock().pages.get_mut(&stride)?.pop()
    }

    fn fetch(&self, plane: &dyn ControlPlane, stride: u64) -> Result<Grant, ControlError> {
        let most = self.largest_batch(stride);
        let count = {
            let mut shelves = self.shelves.lock();
            let next = shelves.next_batch.entry(stride).or_insert(1);
            let count = (*next).min(most);
            *next = (count * 2).min(most);
            count
        };
        let request = GrantRequest {
            request: self.next_request.fetch_add(1, Ordering::Relaxed),
            stride,
            count,
        };
        let mut grants = plane.grant(request).inspect_err(|error| {
            if may_be_done(error) {
                self.keep_unanswered([request]);
            }
        })?;
        let first = grants
            .pop()
            .ok_or_else(|| ControlError::Protocol("a grant without a page".to_owned()))?;
        if !grants.is_empty() {
            self.shelves
                .lock()
                .pages
                .entry(stride)
                .or_default()
                .append(&mut grants);
        }
        Ok(first)
    }

    fn keep_unanswered(&self, requests: impl IntoIterator<Item = GrantRequest>) {
        let mut shelves = self.shelves.lock();
        if !shelves.is_abandoned {
            shelves.unanswered.extend(requests);
        }
    }

    /// Asks again for what was not answered, and returns what may or may not have been committed. At the first
    /// question that is not answered either the rest is left for another time.
    pub(crate) fn settle(&self, plane: &dyn ControlPlane) -> Result<(), ControlError> {
        let (requests, grants) = {
            let mut shelves = self.shelves.lock();
            shelves.settling += 1;
            (
                std::mem::take(&mut shelves.unanswered),
                std::mem::take(&mut shelves.unsettled),
            )
        };
        let settled = self.settle_these(plane, requests, grants);
        self.shelves.lock().settling -= 1;
        settled
    }

    fn settle_these(
        &self,
        plane: &dyn ControlPlane,
        requests: Vec<GrantRequest>,
        grants: Vec<Grant>,
    ) -> Result<(), ControlError> {
        let mut requests = requests.into_iter();
        while let Some(request) = requests.next() {
            match plane.grant(request) {
                Ok(pages) => {
                    let mut shelves = self.shelves.lock();
                    if !shelves.is_abandoned {
                        let shelf = shelves.pages.entry(request.stride).or_default();
                        shelf.extend(pages);
                    }
                }
                // Had it been carried out before, it would have brought the same pages.
                Err(error @ (ControlError::PoolFull(_) | ControlError::ShareExceeded { .. })) => {
                    tracing::debug!(%error, "a repeated request for pages was refused");
                }
                // A door that turns connections away says nothing about the request.
                Err(ControlError::Refused(_)) => self.keep_unanswered([request]),
                Err(error) => {
                    self.keep_unanswered(std::iter::once(request).chain(requests));
                    self.keep_unsettled(grants);
                    return Err(error);
                }
            }
        }
        self.return_or_keep(plane, grants)
    }
}
