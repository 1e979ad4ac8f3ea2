use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::{
    AdapterStatus, CloseReport, DeleteResult, KeyPage, ListRequest, LoadItem, LoadResult,
    LookupResult, ObjectKey, StoreItem, StoreResult, TaskId, Usage,
};

/// The three descriptors by which an adapter says that something has finished.
///
/// They differ from each other and stay the same from construction to the end of `close`. Each becomes readable when a
/// task of its kind has finished, and a read of eight bytes resets it; an eventfd does both.
#[derive(Clone, Copy, Debug)]
pub struct EventFds<'a> {
    /// A store has finished.
    pub store: BorrowedFd<'a>,
    /// A lookup has finished.
    pub lookup: BorrowedFd<'a>,
    /// A load has finished.
    pub load: BorrowedFd<'a>,
}

/// A storage backend behind the memory tier.
///
/// Work is done in *tasks*: a batch is submitted, its event descriptor becomes readable once the result can be had, and
/// the result is given exactly once. **The result is there before the signal**: who is signalled asks once and must not
/// find nothing. A signal too many is harmless, one too few loses a task.
///
/// Methods are called from several threads. Submits return at once: they hand the work to threads, a ring or a
/// connection of the adapter's own.
///
/// # Buffers
/// An [`ObjectRef`](super::ObjectRef) and a [`PageMut`](super::PageMut) are guards of memory that the server does not
/// free or reuse while they live, whatever times out, aborts or shuts down. An adapter that still may touch the bytes keeps the
/// guard; one that is done with them lets it go. Pages of a load come back in its result.
///
/// # Locks
/// A key that a lookup found is locked, once for each lookup, until [`submit_unlock`](Self::submit_unlock) names it as
/// often. A locked object is not deleted, nor evicted by the adapter itself.
///
/// The semantics are those of LMCache's `L2AdapterInterface` (`lmcache/v1/distributed/l2_adapters/base.py`, 0.5.6).
pub trait L2Adapter: Send + Sync {
    /// The descriptors that signal finished tasks.
    fn event_fds(&self) -> EventFds<'_>;

    /// Stores a batch. A key that is there already is skipped, and counts as stored with no bytes transferred.
    ///
    /// # Errors
    /// If the batch cannot be begun; nothing of it is stored then.
    fn submit_store(&self, batch: Vec<StoreItem>) -> anyhow::Result<TaskId>;

    /// Every store that has finished since the last call, each once.
    fn pop_completed_stores(&self) -> Vec<(TaskId, StoreResult)>;

    /// Looks objects up and locks those that are there.
    ///
    /// # Errors
    /// If the lookup cannot be begun; nothing is locked then.
    fn submit_lookup_and_lock(&self, keys: Vec<ObjectKey>) -> anyhow::Result<TaskId>;

    /// The result of a lookup, once; `None` if it has not finished, was taken before or is none of this adapter's.
    fn query_lookup_and_lock(&self, task: TaskId) -> Option<LookupResult>;

    /// Takes one lock from each of these keys. Cannot fail; a key that is not locked is ignored.
    fn submit_unlock(&self, keys: &[ObjectKey]);

    /// Loads a batch into pages; each key has an outcome of its own.
    ///
    /// # Errors
    /// If the batch cannot be begun; its pages are let go then.
    fn submit_load(&self, batch: Vec<LoadItem>) -> anyhow::Result<TaskId>;

    /// The result of a load, once; as for lookups.
    fn query_load(&self, task: TaskId) -> Option<LoadResult>;

    /// Deletes objects, those that are locked excepted. May block.
    ///
    /// # Errors
    /// If nothing can be said of any key.
    fn delete(&self, keys: &[ObjectKey]) -> anyhow::Result<DeleteResult>;

    /// What is stored, also of what an earlier process stored. Cheap: asked often.
    fn usage(&self) -> Usage;

    /// A page of the objects that are there, in an order of the adapter's own. May block.
    ///
    /// # Errors
    /// A cursor that is none of this adapter's, or a backend that cannot list.
    fn list_keys(&self, request: &ListRequest) -> anyhow::Result<KeyPage>;

    /// How the adapter fares.
    fn status(&self) -> AdapterStatus;

    /// Nobody waits for this task any more: finish it soon, in whatever way. It reaches a terminal state all the same, and its
    /// result can be had.
    fn cancel(&self, task: TaskId);

    /// Ends the adapter: refuses new tasks, brings every task to a terminal state and lets go of all buffers, within
    /// `deadline`. Results stay to be had. A task that may still touch its buffers then is *abandoned*: its guards are
    /// kept, and so its pages stay captive. Closing again does nothing.
    fn close(&self, deadline: Duration) -> CloseReport;
}
