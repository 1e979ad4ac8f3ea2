//! Storage backends: which are linked in, what a configuration means, and the lane that each one runs behind.

mod lane;
mod spec;

pub use lane::{Backend, BackendHealth, BackendStatus, LaneCounts, LaneOptions, TaskError};
pub use spec::{AdapterSpec, EvictionSpec, SpecError};
