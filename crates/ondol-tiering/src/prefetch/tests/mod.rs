//! Named after the faults that they guard against.

mod failures;
mod hangs;
mod life;
mod planning;
mod random;
mod rig;
