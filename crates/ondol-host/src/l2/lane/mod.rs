//! An adapter behind its lane.
//!
//! The *lane* is a thread that makes every submit and polls the three descriptors. What it waits for, and who waits for
//! it, stands in the *ledger*, which is never locked while foreign code runs; so whoever finds the lane hanging can answer
//! in its stead: a callback is taken out of the ledger before it is called, and can be taken once. That is the
//! *watchdog's* part. Calls that may block, and those that others wait for, run on *helpers*.

mod backend;
mod descriptors;
mod guest;
mod helpers;
mod ledger;
mod runner;
mod shared;
mod types;
mod watchdog;

pub use backend::Backend;
pub use types::{BackendHealth, BackendStatus, LaneCounts, LaneOptions, TaskError};
