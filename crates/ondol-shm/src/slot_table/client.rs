use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::{Grant, PageId};

/// The client's side of its slot table.
#[derive(Debug)]
pub struct SlotTable {}

/// A hold on a page that stands in a slot; it ends when it is dropped, without a message.
#[derive(Debug)]
pub struct SlotLease {}

impl SlotTable {
    /// Maps the table that the server made for this client.
    ///
    /// # Errors
    /// If it is none or cannot be mapped.
    pub fn open(_file: BorrowedFd<'_>) -> io::Result<Arc<Self>> {
        todo!()
    }

    /// The index that this table may be used with; 0 for none. It is the server's word.
    pub fn incarnation(&self) -> u64 {
        todo!()
    }

    /// Publishes a hold on a page, which is none before it is confirmed: after a fence, and a look at what could have
    /// ended it. `now` is in milliseconds. `None` if all slots are in use.
    pub(crate) fn publish(self: &Arc<Self>, _page: PageId, _now: u64) -> Option<SlotLease> {
        todo!()
    }

    /// Counts finds and misses, for the server's figures.
    pub fn count(&self, _hits: u64, _misses: u64) {
        todo!()
    }

    /// Notes that the object in this page was used; the oldest of too many notes are lost.
    pub fn note_hit(&self, _page: PageId) {
        todo!()
    }

    /// Gives a granted page back; whether there was room for that.
    pub fn give_back(&self, _grant: Grant) -> bool {
        todo!()
    }

    /// Number of leases in use.
    pub fn in_use(&self) -> usize {
        todo!()
    }
}

impl SlotLease {
    /// The page that is held.
    pub fn page(&self) -> PageId {
        todo!()
    }
}
