//! What one client tells the server without a message: which pages it reads, what it found, which pages it gives back.
//!
//! [`SlotTable`] is the client's side, which maps the file and is the only one to write it; [`SlotTableView`] the server's,
//! which reads it with system calls, so that a client that cuts the file short harms itself only.

mod client;
mod server;

pub use client::{SlotLease, SlotTable};
pub use server::{HeldPage, SlotTableView};

/// Number of leases that one client can hold at once without asking the server.
pub const LEASE_SLOTS_SHARED: u32 = 65_536;
