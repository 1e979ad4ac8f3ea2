//! Const tables of Ondol's own rows, collected at link time: metrics, frozen layouts, eviction policies,
//! transforms of what is stored.
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

#[cfg(feature = "failpoints")]
mod failpoint;
mod layout;
mod metric;
mod policy;
mod transform;

#[cfg(feature = "failpoints")]
pub use failpoint::{FAILPOINTS, Failpoint, arm_failpoints, failpoints};
pub use layout::{FrozenField, FrozenLayout, LAYOUTS, layouts};
#[doc(hidden)]
pub use linkme;
pub use metric::{Counter, METRICS, Metric, MetricKind, metrics};
pub use policy::{
    Admitted, EntryId, EvictionPolicy, POLICIES, Policy, PolicyContext, SaltLimits, policies,
    policy,
};
pub use transform::{
    BuiltTransform, Secrecy, TRANSFORMS, Transform, TransformRow, TransformedObject, transform,
    transforms,
};

fn sorted_by_name<T>(rows: &'static [T], name: fn(&T) -> &'static str) -> Vec<&'static T> {
    let mut rows: Vec<_> = rows.iter().collect();
    rows.sort_unstable_by_key(|row| name(row));
    rows
}

/// A place where a test can end the process, stop it or make the operation fail; nothing without the feature
/// `failpoints`. With a second argument the operation can fail: then the function returns that.
///
/// ```
/// fn write() -> Result<(), &'static str> {
///     ondol_catalog::failpoint!("example.write", Err("no space"));
///     ondol_catalog::failpoint!("example.written");
///     Ok(())
/// }
/// assert_eq!(write(), Ok(()));
/// ```
#[cfg(feature = "failpoints")]
#[macro_export]
macro_rules! failpoint {
    ($name:literal) => {{
        #[$crate::linkme::distributed_slice($crate::FAILPOINTS)]
        #[linkme(crate = $crate::linkme)]
        static HERE: $crate::Failpoint = $crate::Failpoint::new($name, false);
        HERE.reach();
    }};
    ($name:literal, $failed:expr) => {{
        #[$crate::linkme::distributed_slice($crate::FAILPOINTS)]
        #[linkme(crate = $crate::linkme)]
        static HERE: $crate::Failpoint = $crate::Failpoint::new($name, true);
        if HERE.reach() {
            return $failed;
        }
    }};
}

/// A place where a test can end the process, stop it or make the operation fail; nothing without the feature
/// `failpoints`. With a second argument the operation can fail: then the function returns that.
///
/// ```
/// fn write() -> Result<(), &'static str> {
///     ondol_catalog::failpoint!("example.write", Err("no space"));
///     ondol_catalog::failpoint!("example.written");
///     Ok(())
/// }
/// assert_eq!(write(), Ok(()));
/// ```
#[cfg(not(feature = "failpoints"))]
#[macro_export]
macro_rules! failpoint {
    ($name:literal $(, $failed:expr)?) => {};
}
