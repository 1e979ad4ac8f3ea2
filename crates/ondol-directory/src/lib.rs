//! Keys to locations: what is visible, who holds what, and what goes when the pool is full.
//!
//! Readers share sharded maps and take no lock that a writer holds while it works; every change of state is made
//! by one writer at a time, is recorded in the journal first, and then applied.
//!
//! # Order
//! A change is recorded and applied under the writer's lock; before anybody is told of it, it is durable, which is
//! waited for without that lock. A commit is recorded, durable, visible, answered. A removal is recorded, invisible,
//! durable, answered; the page is reused only when no lease on it is left, which is asked after the removal: a reader
//! that came first is seen, one that comes later does not find the object. An eviction is not answered to anybody: its
//! record is durable before the grant is answered that hands out the page, which is as early as anything depends on it.
//!
//! If something cannot be made durable now, whoever waits for it is told that its outcome is not settled; it stays
//! recorded, what is committed stays invisible, and the next success settles both.
//!
//! # Locks
//! `state` (the writer) before `clients` before a client's ledger or book; a shard's lock is taken last and held for
//! one key. The journal is waited for without any of them.

#![forbid(unsafe_code)]

mod client;
mod clients;
mod commits;
mod directory;
mod entry;
mod grants;
mod ids;
mod index;
mod lookups;
mod metrics;
mod pages;
mod policy;
mod recover;
mod returns;
mod room;
mod shards;
mod slots;
mod state;
mod stats;
mod tier;
mod verify;

pub use client::{AdoptedClient, Newcomer, Reclaimed};
pub use commits::CommitListener;
pub use directory::{AttachError, Directory, DirectoryError};
pub use recover::{LastRun, RecoverError, Recovery};
pub use returns::Returns;
pub use tier::{Admission, Admitted};
pub use verify::Verifier;
