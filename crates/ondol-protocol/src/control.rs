use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ondol_plugin::Key;
use ondol_shm::{
    BackingId, ClientId, Grant, LayoutFingerprint, LeaseRef, Location, ObjectMeta, RegionHandle,
    StaleReason,
};
use smallvec::SmallVec;

use crate::{EngineStats, ObjectInfo};

/// One client's line to the engine. Everything that is asked here is asked on behalf of that client: grants,
/// leases and pins that result are its own and end with it.
///
/// Methods may be called from many threads at once. Batches are answered in the order asked.
pub trait ControlPlane: Send + Sync + fmt::Debug {
    /// Who this client is to the engine.
    fn client(&self) -> ClientInfo;

    /// The client's lease table, to be mapped by `ondol_shm::LeaseSlots`.
    ///
    /// # Errors
    /// [`ControlError`], as for all methods.
    fn lease_table(&self) -> Result<OwnedFd, ControlError>;

    /// Every region that exists now.
    ///
    /// # Errors
    /// [`ControlError`].
    fn regions(&self) -> Result<Vec<RegionInfo>, ControlError>;

    /// A descriptor of the file or device that holds the region, which can be mapped as `access` says.
    ///
    /// # Errors
    /// [`ControlError::Refused`] if the handle's token is not the engine's or the region is gone.
    fn open_backing(&self, region: &RegionHandle, access: Access) -> Result<OwnedFd, ControlError>;

    /// Grants pages; the answer has at least one page and at most as many as asked for. A request that is
    /// asked again under the same number is answered with the same pages.
    ///
    /// # Errors
    /// [`ControlError::PoolFull`] if not even one page can be freed, [`ControlError::ShareExceeded`] if the
    /// client holds too much.
    fn grant(&self, request: GrantRequest) -> Result<Vec<Grant>, ControlError>;

    /// Returns granted pages that were not committed. Each page is answered in order.
    ///
    /// # Errors
    /// [`ControlError`].
    fn return_pages(&self, pages: &[Grant]) -> Result<Vec<Result<(), StaleReason>>, ControlError>;

    /// Makes objects visible whose bytes are complete. The page of an object that was already there stays granted.
    ///
    /// # Errors
    /// [`ControlError`].
    fn commit(&self, commits: &[Commit]) -> Result<CommitOutcomes, ControlError>;

    /// Finds and leases objects in one step.
    ///
    /// # Errors
    /// [`ControlError`].
    fn retrieve(&self, request: &Retrieve) -> Result<Retrieved, ControlError>;

    /// Brings objects from storage to memory, for a retrieve that comes soon. Without storage it says what is in memory.
    ///
    /// # Errors
    /// [`ControlError`].
    fn prefetch(&self, request: &Prefetch) -> Result<Prefetched, ControlError> {
        let found = self.locate(&request.keys)?;
        Ok(Prefetched {
            found: found.iter().map(Option::is_some).collect(),
            pending: false,
        })
    }

    /// The engine's index and this client's slot table, for a client on the engine's host, which then finds and leases
    /// objects by itself. Asked again whenever the index is retired. `None` if there is none for this client: it asks
    /// for everything.
    ///
    /// # Errors
    /// [`ControlError`].
    fn index(&self) -> Result<Option<IndexFiles>, ControlError> {
        Ok(None)
    }

    /// Where objects lie, without a lease: a hint that may be stale when it arrives.
    ///
    /// # Errors
    /// [`ControlError`].
    fn locate(&self, keys: &[Key]) -> Result<Vec<Option<Hit>>, ControlError>;

    /// Pins objects. A pin that exists is not made again, so that asking again is safe.
    ///
    /// # Errors
    /// [`ControlError`].
    fn pin(&self, pins: &[Pin]) -> Result<Vec<PinOutcome>, ControlError>;

    /// Takes back pins of this client's; one that does not exist is answered with [`PinOutcome::Absent`].
    ///
    /// # Errors
    /// [`ControlError`].
    fn unpin(&self, pins: &[Pin]) -> Result<Vec<PinOutcome>, ControlError>;

    /// Removes objects, from storage as well. One that is leased is gone for every later reader and stays readable for those
    /// that hold it; one that is pinned stays.
    ///
    /// # Errors
    /// [`ControlError`].
    fn delete(&self, keys: &[Key]) -> Result<Vec<DeleteOutcome>, ControlError>;

    /// Objects in the order of their keys, from the first key behind `after`, at most `limit`.
    ///
    /// # Errors
    /// [`ControlError`].
    fn list(&self, after: Option<&Key>, limit: u32) -> Result<Listing, ControlError>;

    /// Figures of the whole engine.
    ///
    /// # Errors
    /// [`ControlError`].
    fn stats(&self) -> Result<EngineStats, ControlError>;

    /// Whether the engine answers.
    ///
    /// # Errors
    /// [`ControlError`] says why not.
    fn ping(&self) -> Result<(), ControlError>;

    /// The client leaves: its pins end now and nothing more is granted to it. Its leases end when their guards
    /// are dropped, its grants when they are returned.
    ///
    /// # Errors
    /// [`ControlError`].
    fn leave(&self) -> Result<(), ControlError>;

    /// Where servers come and go that may know this client: lines of one place lead to the same server. `None` if the
    /// engine cannot be another one than it was.
    fn place(&self) -> Option<&Path> {
        None
    }

    /// The longest that one call of this line may wait for storage; who wants to wait longer asks again.
    fn longest_wait(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// Another line has just reached a server at this line's place, so that the next call need not wait until it is time
    /// to look for one.
    fn look_again(&self) {}
}

/// What a client learns when it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientInfo {
    /// The client's name.
    pub id: ClientId,
    /// Bytes of pages that the client may hold granted at once.
    pub share_limit: u64,
    /// The longest page that the pool can hold, in bytes.
    pub max_page_bytes: u64,
    /// Names the start of the engine that this client is with. A client that was told one and finds another server tells
    /// it the last one that it knows, with its lease table: it is the same client there, under that server's
    /// incarnation, or the answer is [`ControlError::UnknownClient`].
    pub incarnation: u64,
}

/// What a client on the engine's host reads and writes for itself.
#[derive(Debug)]
pub struct IndexFiles {
    /// The index, to be mapped by `ondol_shm::IndexReader`.
    pub index: OwnedFd,
    /// The client's slot table, to be mapped by `ondol_shm::SlotTable`: the same file for as long as it is this client.
    pub slots: OwnedFd,
}

/// How a backing is to be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// For reading only.
    Read,
    /// For reading and writing.
    Write,
}

/// What a client needs to map a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionInfo {
    /// The capability.
    pub handle: RegionHandle,
    /// Distance in bytes from the start of one page to the next, and the longest object a page holds.
    pub stride: u64,
    /// The file or device that holds the region.
    pub backing: BackingId,
    /// Length of that file or device in bytes.
    pub backing_len: u64,
    /// Its path, if it has one.
    pub path: Option<PathBuf>,
}

/// A request for pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantRequest {
    /// Number of the request, chosen by the client and never used again for another one.
    pub request: u64,
    /// Page size in bytes; pages have exactly this stride.
    pub stride: u64,
    /// How many pages are wanted.
    pub count: u32,
}

/// An object that is complete and asks to be visible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Its name.
    pub key: Key,
    /// Its bytes: the first `len` bytes of a page granted to this client.
    pub location: Location,
    /// What is known about it.
    pub meta: ObjectMeta,
}

/// What became of a [`Commit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitOutcome {
    /// The object is visible.
    Stored,
    /// The key exists; the first registration stays, the page stays granted.
    AlreadyPresent,
    /// Nothing changed.
    Refused(RefusedCommit),
}

/// What became of the commits of a batch. The outcome of a single one is not on the heap, so that a store need not be.
pub type CommitOutcomes = SmallVec<[CommitOutcome; 1]>;

/// Why a [`Commit`] changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusedCommit {
    /// The page is not this client's to commit.
    #[error("{0}")]
    Stale(#[from] StaleReason),
    /// The object is longer than its page.
    #[error("the object has {len} bytes, its page {stride}")]
    TooLong {
        /// Length of the object.
        len: u64,
        /// Length of the page.
        stride: u64,
    },
    /// The engine could not record it; the page stays granted.
    #[error("the engine could not record the object; its log says why")]
    NotRecorded,
}

/// A request to find and lease objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retrieve {
    /// The objects' names.
    pub keys: Vec<Key>,
    /// One lease proposed for each key.
    pub leases: Vec<LeaseRef>,
    /// Every `group` keys in a row are found all or not at all; at least 1.
    pub group: u32,
    /// Whether to stop at the first group that is not found whole.
    pub prefix: bool,
    /// The layout that the reader expects; an object of another one, or of none, is not found.
    pub expect: Option<LayoutFingerprint>,
    /// Milliseconds that the answer may wait for objects that storage has; 0 for those that are in memory only. An
    /// engine may wait for less, and says so.
    pub wait_ms: u32,
    /// Length of each object in bytes, for storage that does not know it; 0 if the reader does not know it either.
    pub expected_len: u64,
}

/// The answer to [`Retrieve`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retrieved {
    /// For each key what was found; the lease of a hit is the one proposed for it.
    pub hits: Vec<Option<Hit>>,
    /// How many objects were there under another layout.
    pub mismatches: u32,
    /// Whether objects that are not found here are still on their way from storage: the wait was over before. Asked again,
    /// they may be there.
    pub pending: bool,
}

/// A request to bring objects from storage to memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefetch {
    /// The objects' names.
    pub keys: Vec<Key>,
    /// Every `group` keys in a row are wanted all or not at all; at least 1.
    pub group: u32,
    /// Whether nothing is wanted behind the first group that is not there whole.
    pub prefix: bool,
    /// Length of each object in bytes, for storage that does not know it; 0 if it is not known.
    pub expected_len: u64,
    /// Milliseconds that the answer may wait for what is on its way; 0 for an answer at once.
    pub wait_ms: u32,
}

/// The answer to [`Prefetch`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefetched {
    /// For each key whether its object is in memory. What was brought stays for some seconds, if nothing else needs the
    /// room; it is not leased.
    pub found: Vec<bool>,
    /// Whether more is on its way.
    pub pending: bool,
}

/// A found object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Where it lies.
    pub location: Location,
    /// What is known about it.
    pub meta: ObjectMeta,
}

/// One pin of a client's on an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pin {
    /// The object.
    pub key: Key,
    /// The client's number of this pin, never used again for another one.
    pub number: u64,
}

/// What became of a pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinOutcome {
    /// It was done.
    Done,
    /// There is no such object, or no such pin.
    Absent,
}

/// What became of a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteOutcome {
    /// The object is gone.
    Deleted,
    /// There was none.
    Absent,
    /// It is pinned and stays.
    Pinned,
}

/// A part of the list of objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The objects, in the order of their keys.
    pub objects: Vec<ObjectInfo>,
    /// Whether there are more behind the last one.
    pub more: bool,
}

/// Where the bytes are that keep an allocation from succeeding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breakdown {
    /// Page size asked for.
    pub asked: u64,
    /// Bytes of objects that readers hold, or that were removed while readers held them.
    pub leased: u64,
    /// Bytes of objects that are pinned.
    pub pinned: u64,
    /// Bytes of pages granted to clients.
    pub granted: u64,
    /// Bytes that a running transfer may still touch.
    pub captive: u64,
    /// Bytes in regions of other page sizes that cannot be drained.
    pub other_classes: u64,
    /// Free bytes that lie in no region.
    pub free: u64,
    /// The largest run of them.
    pub largest_free_extent: u64,
}

impl fmt::Display for Breakdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            asked,
            leased,
            pinned,
            granted,
            captive,
            other_classes,
            free,
            largest_free_extent,
        } = self;
        write!(
            f,
            "no page of {asked} bytes can be freed: {leased} bytes leased, {pinned} pinned, {granted} granted, \
             {captive} captive, {other_classes} in other page sizes, {free} free (largest run {largest_free_extent}); \
             drop objects, unpin, or start the server with a larger pool"
        )
    }
}

/// Why the engine did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// Nothing can be freed.
    #[error("{0}")]
    PoolFull(Breakdown),
    /// The client holds as much as it may.
    #[error(
        "the client holds {held} bytes of granted pages and asked for {asked} more; its share is {limit}"
    )]
    ShareExceeded {
        /// Bytes asked for.
        asked: u64,
        /// Bytes held.
        held: u64,
        /// Bytes that may be held.
        limit: u64,
    },
    /// The request is not one that can be served; nothing changed.
    #[error("refused: {0}")]
    Refused(String),
    /// The engine failed. What a batch asked for before the part that failed is done; asking again is safe.
    #[error("the engine failed: {0}")]
    Failed(String),
    /// The server has gone away. Whether a request that was on its way was carried out is not known if `sent`.
    #[error("the server is not there: {reason}{}", if *sent { "; whether the request was carried out is not known" } else { "" })]
    Disconnected {
        /// What was seen.
        reason: String,
        /// Whether the request had left.
        sent: bool,
    },
    /// No answer came in time; whether the request was carried out is not known.
    #[error("no answer within {waited_ms} ms; whether the request was carried out is not known")]
    TimedOut {
        /// How long was waited.
        waited_ms: u64,
    },
    /// The server does not know this client (any more) and has done nothing. What the client held is gone; it can
    /// connect as a new one.
    #[error("the server does not know this client any more: {0}")]
    UnknownClient(String),
    /// The other side does not speak this protocol.
    #[error("protocol error: {0}")]
    Protocol(String),
}

impl ControlError {
    /// Whether the request may have been carried out although it failed.
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(
            self,
            Self::TimedOut { .. } | Self::Disconnected { sent: true, .. }
        )
    }
}
