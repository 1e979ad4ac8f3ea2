//! Keys to locations: what is visible, who holds what, and what goes when the pool is full.
//!
//! Readers share sharded maps and take no lock that a writer holds while it works; every change of state is made
//! by one writer at a time, is recorded in the journal first, and then applied.
//!
//! # Order
//! A commit is recorded, then visible. A removal is recorded, then invisible; the page is reused only when no
//! lease on it is left, which is asked after the removal: a reader that came first is seen, one that comes later
//! does not find the object.
//!
//! # Locks
//! `state` (the writer) before `clients` before a client's ledger; a shard's lock is taken last and held for one key.

#![forbid(unsafe_code)]

mod client;
mod directory;
mod entry;
mod metrics;
mod policy;
mod room;
mod shards;
mod state;

pub use client::Reclaimed;
pub use directory::{Directory, DirectoryError};
