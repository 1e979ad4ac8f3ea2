//! Const tables of Ondol's own rows, collected at link time: metrics, frozen layouts, eviction policies.
//!
//! A row is plain const data in the crate that it describes; a table is the sum of the rows that are linked in.
//! This crate declares the tables and knows nobody who fills them. What *vendors* add goes through the registry
//! of `ondol-plugin` instead.
//!
//! ```
//! use ondol_catalog::{METRICS, Metric, MetricKind, linkme::distributed_slice};
//!
//! #[distributed_slice(METRICS)]
//! #[linkme(crate = ondol_catalog::linkme)]
//! static EXAMPLES: Metric = Metric::new("example_total", MetricKind::Counter, "Examples given.");
//!
//! assert!(ondol_catalog::metrics().iter().any(|metric| metric.name == "example_total"));
//! ```
//!
//! An element's position in a table is the linker's choice: read tables through the sorting functions.

// The tables' attribute expands to unsafe code of linkme's own; nothing here is written with `unsafe`.
#![deny(unsafe_code)]

mod layout;
mod metric;
mod policy;

pub use layout::{FrozenField, FrozenLayout, LAYOUTS, layouts};
#[doc(hidden)]
pub use linkme;
pub use metric::{Counter, METRICS, Metric, MetricKind, metrics};
pub use policy::{EntryId, EvictionPolicy, POLICIES, Policy, policies, policy};

fn sorted_by_name<T>(rows: &'static [T], name: fn(&T) -> &'static str) -> Vec<&'static T> {
    let mut rows: Vec<_> = rows.iter().collect();
    rows.sort_unstable_by_key(|row| name(row));
    rows
}
