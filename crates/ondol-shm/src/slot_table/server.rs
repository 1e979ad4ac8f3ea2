use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use crate::{Grant, PageId};

/// A page that a client holds by a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldPage {
    /// The page.
    pub page: PageId,
    /// When the hold was published, in milliseconds of the monotonic clock.
    pub since: u64,
}

/// The server's side of one client's slot table.
#[derive(Debug)]
pub struct SlotTableView {
    _file: File,
}

impl SlotTableView {
    /// A new table at `path`, for a client that may outlive this server.
    ///
    /// # Errors
    /// If there is a file, or no room for one.
    pub fn create(_path: &Path) -> io::Result<Self> {
        todo!()
    }

    /// A new table in memory, for a client that ends with this server.
    ///
    /// # Errors
    /// If the system has no memory or descriptor left.
    pub fn create_anonymous() -> io::Result<Self> {
        todo!()
    }

    /// The table of a client of the last run. From here on no lease is confirmed under the last server's index.
    ///
    /// # Errors
    /// If it is none.
    pub fn adopt(_path: &Path) -> io::Result<Self> {
        todo!()
    }

    /// A descriptor for the client.
    ///
    /// # Errors
    /// If the system has no descriptor left.
    pub fn open_for_client(&self) -> io::Result<OwnedFd> {
        todo!()
    }

    /// Lets the client use the index of this name, and no other; 0 for none.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn set_incarnation(&self, _incarnation: u64) -> io::Result<()> {
        todo!()
    }

    /// Calls `held` with every page that the client holds. Begins with the fence that must stand between making an object
    /// unfindable and this. A page that is not named here and cannot be found any more is not read.
    ///
    /// # Errors
    /// If the table cannot be read: then nothing is known about what the client holds.
    pub fn scan(&self, _held: impl FnMut(HeldPage)) -> io::Result<()> {
        todo!()
    }

    /// Calls `hit` with the pages of objects that the client found since the last time, the oldest first.
    ///
    /// # Errors
    /// If the table cannot be read.
    pub fn drain_hits(&mut self, _hit: impl FnMut(PageId)) -> io::Result<()> {
        todo!()
    }

    /// Calls `returned` with the pages that the client gave back since the last time. They are the client's until
    /// [`returns_done`](Self::returns_done) is called.
    ///
    /// # Errors
    /// If the table cannot be read.
    pub fn drain_returns(&mut self, _returned: impl FnMut(Grant)) -> io::Result<()> {
        todo!()
    }

    /// Frees the ring's places of what was drained.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn returns_done(&mut self) -> io::Result<()> {
        todo!()
    }

    /// What the client counted: hits and misses.
    ///
    /// # Errors
    /// If the table cannot be read.
    pub fn counts(&self) -> io::Result<(u64, u64)> {
        todo!()
    }
}
