//! The one place that every change of pool and directory passes.
//!
//! A change is first checked, then recorded here, then applied. A journal that refuses keeps the change from
//! happening, so that a write-ahead log can stand in this place.

use std::fmt;

use ondol_plugin::{Key, RegionId};
use ondol_shm::{ClientId, Grant, Location, ObjectMeta, PageId};

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
    /// A client pins an object, once more.
    Pin {
        /// The object's name.
        key: Key,
        /// Who pins it.
        client: ClientId,
    },
    /// A client takes back one of its pins.
    Unpin {
        /// The object's name.
        key: Key,
        /// Who pinned it.
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
}

/// The journal could not record a change, which therefore does not happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the journal refused the change: {0}")]
pub struct JournalError(pub String);

/// Records changes before they happen.
pub trait Journal: Send + Sync + fmt::Debug {
    /// Records one change.
    ///
    /// # Errors
    /// [`JournalError`] if it could not; the change is then not made.
    fn record(&self, change: &Change) -> Result<(), JournalError>;
}

/// Records nothing: the state lasts as long as the process.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoJournal;

impl Journal for NoJournal {
    fn record(&self, _: &Change) -> Result<(), JournalError> {
        Ok(())
    }
}
