//! The server's side of memory: devices, and the pool of regions and pages that is cut from them.
//!
//! [`Device`] owns files, [`Pool`] owns the book of what they hold. The pool is plain state: it takes no lock,
//! performs no I/O and never learns what an object's key means.

#![forbid(unsafe_code)]

mod device;
mod extent;
mod image;
mod journal;
mod log;
mod own_dir;
mod pool;
mod size;

pub use device::*;
pub use extent::{Arena, Extent, ExtentAllocator, NotAllocated, REGION_ALIGNMENT};
pub use image::{ClientRecord, Image, StoredObject};
pub use journal::{Change, Journal, JournalError, NoJournal, Position, RemoveReason};
pub use log::{
    CheckpointReport, ClientReport, Durability, Log, LogError, LogOptions, LogReport, LogStats,
    PoolRecord, Recovered, SegmentReport, UnknownDurability, inspect_log,
};
pub use own_dir::check_own_dir;
pub use pool::{ApplyError, MIN_PAGE_BYTES, PageState, Pool, Region};
pub use size::*;
