//! Storage backends: which are linked in, what a configuration means, and the lane that each one runs behind.

mod describe;
mod lane;
mod open;
mod places;
mod registry;
mod resolve;
mod spec;

pub use lane::{Backend, BackendHealth, BackendStatus, LaneCounts, LaneOptions, TaskError};
pub use open::{Cause, OpenError, check, open, open_all};
pub use registry::{L2Registry, Linked};
pub use spec::{AdapterSpec, EvictionSpec, SpecError};
