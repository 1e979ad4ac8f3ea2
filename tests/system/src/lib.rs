//! What the tests of the whole system share: servers, clients in processes of their own, content that can be told
//! from any other, and waits that end.
//!
//! No test asserts that something takes a time. Every wait has a deadline ([`WATCHDOG`]) and says what it waited
//! for. Random runs print their seed; `ONDOL_TEST_SEED` repeats one.

#![deny(unsafe_code)]

mod actor;
mod content;
mod lossy;
mod random;
mod server;
mod watch;

pub use actor::{Actor, ServerProcess};
pub use content::{check, fill};
pub use lossy::{Call, Lossy};
pub use random::Random;
pub use server::{Server, key, keys, plain};
pub use watch::{WATCHDOG, eventually, watchdog};
