//! Adapters and buffers that a test has in its hand.
//!
//! [`NullAdapter`] answers at once and stores nothing, for measuring what is around an adapter. [`ManualAdapter`] lets the test
//! decide when and how each task ends. [`MapBackend`] is the smallest backend that keeps what it is given.
//! [`DropCounter`] makes buffers that tell whether somebody still holds them.

mod held;
mod manual;
mod map;
mod null;

pub use held::DropCounter;
pub use manual::{HeldLoad, HeldLookup, HeldStore, ManualAdapter};
pub use map::MapBackend;
pub use null::NullAdapter;
