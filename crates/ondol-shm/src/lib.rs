//! What two processes touch: mappings of the pool, region handles, lease slots, and how descriptors and
//! identities of processes cross a socket.
//!
//! Most of the project's `unsafe` lives here, in small modules that state their invariant. No registry is
//! linked in, so that a model checker can run the crate: `RUSTFLAGS="--cfg loom" cargo test -p ondol-shm --lib`.

mod claims;
mod fences;
mod fork;
#[cfg(not(loom))]
mod free_slots;
mod handle;
mod hazard;
mod holds;
#[cfg(not(loom))]
mod home;
#[cfg(not(loom))]
mod huge_pages;
mod ids;
mod lease;
mod object;
mod return_ring;
mod sync;

#[cfg(not(loom))]
mod copy;
#[cfg(not(loom))]
mod fds;
mod index;
#[cfg(not(loom))]
mod lease_book;
#[cfg(not(loom))]
mod lease_table;
#[cfg(not(loom))]
mod mapping;
#[cfg(not(loom))]
mod peer;
#[cfg(not(loom))]
mod prefetch;
#[cfg(not(loom))]
mod process;
#[cfg(not(loom))]
mod region;
#[cfg(not(loom))]
mod sealed;
#[cfg(not(loom))]
mod slot_table;
#[cfg(not(loom))]
mod spin;
#[cfg(not(loom))]
mod write_back;

#[cfg(not(loom))]
pub use copy::{CopyKernel, checksum, copy, copy_out, copy_out_verified, copy_with_checksum};
#[cfg(not(loom))]
pub use fds::{MAX_FDS, recv_with_fds, recv_with_fds_soon, send_with_fds, send_with_fds_by};
pub use fork::ForkGuard;
pub use handle::{HandleSecret, RegionHandle, TOKEN_BYTES};
pub use holds::HoldCount;
#[cfg(not(loom))]
pub use home::HUGE_PAGE;
#[cfg(not(loom))]
pub use huge_pages::sample_huge_pages;
pub use ids::{BackingId, ClientId, Generation, Grant, Location, PageId, StaleReason};
#[cfg(not(loom))]
pub use index::{IndexError, IndexFull, IndexReader, IndexWriter, IndexedObject, Looked, RecordId};
pub use lease::LeaseRef;
#[cfg(not(loom))]
pub use lease_book::{BookedLease, LeaseBook, LeaseBookError};
#[cfg(not(loom))]
pub use lease_table::{
    LEASE_SLOTS, Lease, LeaseLedger, LeaseRefusal, LeaseSlots, LeaseTableError, RefusedLease,
    create_lease_table,
};
#[cfg(not(loom))]
pub use mapping::{ReadMapping, WriteMapping};
pub use object::{LayoutFingerprint, ObjectMeta};
#[cfg(not(loom))]
pub use peer::{PeerCredentials, peer_groups};
#[cfg(not(loom))]
pub use process::{Liveness, Process, ProcessIdentity, boot_id, process_start_time};
#[cfg(not(loom))]
pub use region::{Hold, LeasedBytes, PageBytes, ReadRegion, RegionError, WriteRegion};
#[cfg(not(loom))]
pub use slot_table::{
    HIT_PLACES, HeldPage, SLOTS, SlotLease, SlotTable, SlotTableView, monotonic_ms,
};
#[cfg(not(loom))]
pub use spin::Spin;
#[cfg(not(loom))]
pub use write_back::write_back;
