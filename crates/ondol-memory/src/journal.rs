//! The one place that every change of pool and directory passes.
//!
//! A change is first checked, then recorded here, then applied. A journal that refuses keeps the change from
//! happening, so that a write-ahead log can stand in this place.

use std::fmt;

use ondol_plugin::{Key, RegionId};
use ondol_shm::{ClientId, Grant, Location, ObjectMeta, PageId, ProcessIdentity};

use crate::Extent;

/// One change of the state of pool and directory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// An extent becomes a region with pages of `stride` bytes.
    Carve {
        /// The region's id, one above every id before.
        region: RegionId,
        /// Its bytes.
        extent: Extent,
        /// Its page size.
        stride: u64,
    },
    /// A region whose pages are all free becomes a free extent.
    Dissolve {
        /// The region.
        region: RegionId,
    },
    /// A free page is granted; its generation is one above the last.
    Grant {
        /// The page and its new generation.
        grant: Grant,
        /// Who may write it.
        client: ClientId,
        /// The client's number of the request that is answered with it; asked again, the answer is the same.
        request: u64,
    },
    /// A granted page becomes free again without having held an object.
    Return {
        /// The page.
        grant: Grant,
        /// Who held it.
        client: ClientId,
    },
    /// A granted page holds an object, which is visible from now on.
    Commit {
        /// The object's name.
        key: Key,
        /// Its bytes.
        location: Location,
        /// What is known about it.
        meta: ObjectMeta,
        /// Who stored it.
        client: ClientId,
    },
    /// An object is no longer visible; its page stays captive until [`Change::Release`].
    Remove {
        /// The object's name.
        key: Key,
        /// Its bytes.
        location: Location,
        /// Why.
        reason: RemoveReason,
    },
    /// A page whose object was removed is free: no reader holds it any more.
    Release {
        /// The page.
        page: PageId,
    },
    /// A client pins an object.
    Pin {
        /// The object's name.
        key: Key,
        /// Who pins it.
        client: ClientId,
        /// The client's number of this pin; a pin that exists is not made again.
        pin: u64,
    },
    /// A client takes back one of its pins.
    Unpin {
        /// The object's name.
        key: Key,
        /// Who pinned it.
        client: ClientId,
        /// The client's number of the pin.
        pin: u64,
    },
    /// A client is let in.
    Attach {
        /// Its name, one above every name before.
        client: ClientId,
        /// The process that it lives in.
        process: ProcessIdentity,
        /// The random number by which it knows itself again.
        instance: [u8; 16],
    },
    /// A client that holds neither grant nor pin is forgotten.
    Detach {
        /// Its name.
        client: ClientId,
    },
}

/// Why an object was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RemoveReason {
    /// A client asked for it.
    Deleted,
    /// Its page was needed for others of its size.
    Evicted,
    /// Its region was needed for another page size.
    Drained,
    /// Its bytes are gone: the device was volatile, or they do not fit their checksum.
    Lost,
}

/// The journal could not record a change, or could not make it durable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the journal refused the change: {0}")]
pub struct JournalError(pub String);

/// A place in the journal: the number of bytes recorded before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position(pub u64);

/// Records changes before they happen.
///
/// A change is *recorded* under the lock of the one writer, in memory, so that it takes no time. Before anybody is told
/// of it, and before anybody else can see its effect, it is *flushed*, without that lock.
pub trait Journal: Send + Sync + fmt::Debug {
    /// Records one change. Called by one writer at a time, in the order of the changes.
    ///
    /// # Errors
    /// [`JournalError`] if there is no room for it; the change is then not made.
    fn record(&self, change: &Change) -> Result<(), JournalError>;

    /// The end of what was recorded so far.
    fn position(&self) -> Position;

    /// Waits until everything that was recorded before `position` is as durable as the journal promises. Callers that
    /// wait at the same time share the work.
    ///
    /// # Errors
    /// [`JournalError`] if it could not be made durable now. The changes stay recorded and made; a later flush tries
    /// again.
    fn flush(&self, position: Position) -> Result<(), JournalError>;
}

/// Records nothing: the state lasts as long as the process.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoJournal;

impl Journal for NoJournal {
    fn record(&self, _: &Change) -> Result<(), JournalError> {
        Ok(())
    }

    fn position(&self) -> Position {
        Position(0)
    }

    fn flush(&self, _: Position) -> Result<(), JournalError> {
        Ok(())
    }
}
