//! What the tests of the whole system share: servers, clients in processes of their own, content that can be told
//! from any other, and waits that end.
//!
//! No test asserts that something takes a time. Every wait has a deadline ([`WATCHDOG`]) and says what it waited
//! for. Random runs print their seed; `ONDOL_TEST_SEED` repeats one.
//!
//! # What needs no test, as it does not compile
//! A page that was stored is gone: it cannot be stored under a second key, written, or freed.
//! ```compile_fail,E0382
//! # use ondol_handler::{Handler, Key};
//! fn store_twice(handler: &Handler, one: &Key, two: &Key) {
//!     let page = handler.alloc(1).unwrap();
//!     handler.store(one, page).unwrap();
//!     handler.store(two, page).unwrap();
//! }
//! ```
//! ```compile_fail,E0382
//! # use ondol_handler::{Handler, Key};
//! fn write_after_store(handler: &Handler, key: &Key) {
//!     let mut page = handler.alloc(1).unwrap();
//!     handler.store(key, page).unwrap();
//!     page[0] = 1;
//! }
//! ```
//! An object is only read, and its bytes do not outlive it.
//! ```compile_fail,E0594
//! # use ondol_handler::Object;
//! fn write(mut object: Object) {
//!     object[0] = 1;
//! }
//! ```
//! ```compile_fail,E0505
//! # use ondol_handler::Object;
//! fn read_after_drop(object: Object) -> u8 {
//!     let bytes: &[u8] = &object;
//!     drop(object);
//!     bytes[0]
//! }
//! ```
//! The same without the fault:
//! ```
//! # use ondol_handler::{Handler, Key};
//! fn store_and_read(handler: &Handler, key: &Key) -> u8 {
//!     let mut page = handler.alloc(1).unwrap();
//!     page[0] = 1;
//!     handler.store(key, page).unwrap();
//!     let object = handler.retrieve(key).unwrap().unwrap();
//!     let bytes: &[u8] = &object;
//!     bytes[0]
//! }
//! ```

#![deny(unsafe_code)]

mod actor;
mod content;
mod disk;
mod files;
mod lossy;
mod random;
mod serve;
mod server;
mod storage;
mod watch;

pub use actor::Actor;
pub use content::{check, fill};
pub use disk::SmallDisk;
pub use files::{SHM, bytes_below, files_below, shared_files};
pub use lossy::{Call, Lossy};
pub use random::Random;
pub use serve::{Place, ServerProcess};
pub use server::{Server, key, keys, plain};
pub use storage::StorageDir;
pub use watch::{WATCHDOG, eventually, watchdog};
