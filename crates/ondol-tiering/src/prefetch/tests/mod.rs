//! Named after the faults that they guard against.

mod failures;
mod planning;
mod rig;
