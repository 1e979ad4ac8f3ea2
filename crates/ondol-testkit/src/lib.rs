//! What the author of a plugin runs against their own crate: conformance suites, and fakes to write tests with.
//!
//! For storage backends there are [`l2_conformance!`] and [`connector_conformance!`], with fakes in [`l2`]. For handler
//! plugins, one line in `tests/conformance.rs` of the plugin's crate makes a test of every check:
//!
//! ```ignore
//! //! What every handler plugin must withstand.
//! ondol_testkit::handler_conformance!(my_plugin, environment: [("MY_PLUGIN", "on")]);
//! ```
//!
//! The first argument is the library's name as `use` takes it; naming it is also what links the plugin into the test.
//! The environment is what switches the plugin on; leave it out if nothing does. The suite reads nothing else of the
//! process's environment. What is checked, and why, stands with [`handler::Check`].
//!
//! [`FakeView`] and [`FakeBatch`] stand in for a handler in tests of one's own:
//!
//! ```
//! use ondol_plugin::{Key, RegionId, RegionSpan, RetrievedBatch};
//! use ondol_testkit::{FakeBatch, FakeView};
//!
//! let region = RegionSpan { region_id: RegionId(1), offset: 0, length: 1 << 20 };
//! let view = FakeView::new().with_region(region.region_id, "/dev/dax0.0");
//! let batch = FakeBatch::new()
//!     .with_object(Key::text("a")?, region, 4096, *b"bytes")
//!     .with_missed(Key::text("b")?);
//! let batch = RetrievedBatch::new(&batch);
//! assert_eq!(batch.entries().filter(|entry| entry.found()).count(), 1);
//! # let _ = view;
//! # Ok::<(), ondol_plugin::KeyError>(())
//! ```

#![forbid(unsafe_code)]

mod apart;
pub mod connector;
mod fakes;
pub mod handler;
pub mod l2;

pub use fakes::{FakeBatch, FakeView};
