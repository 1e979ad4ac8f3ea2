use std::sync::atomic::{AtomicU64, Ordering};

use linkme::distributed_slice;

/// The description of a metric; its values live in [`Counter`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Name in Prometheus' manner, with unit and `_total` where they apply.
    pub name: &'static str,
    /// What the value does over time.
    pub kind: MetricKind,
    /// What is counted, in one sentence.
    pub help: &'static str,
}

/// What a metric's value does over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
}

impl Metric {
    /// A row of [`METRICS`].
    pub const fn new(name: &'static str, kind: MetricKind, help: &'static str) -> Self {
        Self { name, kind, help }
    }
}

/// A count under a [`Metric`]'s name; one per owner, so that two engines in a process do not mix.
#[derive(Debug)]
pub struct Counter {
    metric: &'static Metric,
    value: AtomicU64,
}

impl Counter {
    /// A counter of `metric`, starting at zero.
    pub const fn new(metric: &'static Metric) -> Self {
        Self {
            metric,
            value: AtomicU64::new(0),
        }
    }

    /// Adds one.
    pub fn increment(&self) {
        self.add(1);
    }

    /// Adds `count`.
    pub fn add(&self, count: u64) {
        // Threads that count nothing leave each other the cache line.
        if count > 0 {
            self.value.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// The count so far.
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }

    /// What is counted.
    pub fn metric(&self) -> &'static Metric {
        self.metric
    }
}

/// Every metric that is linked in.
#[distributed_slice]
pub static METRICS: [Metric];

/// Every metric that is linked in, by name.
pub fn metrics() -> Vec<&'static Metric> {
    crate::sorted_by_name(&METRICS, |metric| metric.name)
}

/// Defines the counters of one owner: a row of [`METRICS`] for each, and a struct that holds a [`Counter`] for each.
///
/// ```
/// ondol_catalog::counters! {
///     /// What a shop counts.
///     pub(crate) struct Counters {
///         sold SOLD "shop_sold_total" "Things that were sold.";
///     }
/// }
///
/// let counters = Counters::new();
/// counters.sold.increment();
/// assert_eq!(counters.iter().map(|counter| counter.get()).sum::<u64>(), 1);
/// assert!(ondol_catalog::metrics().iter().any(|metric| metric.name == "shop_sold_total"));
/// ```
#[macro_export]
macro_rules! counters {
    (
        $(#[$attribute:meta])*
        pub(crate) struct $owner:ident {
            $($field:ident $row:ident $name:literal $help:literal;)*
        }
    ) => {
        $(
            #[$crate::linkme::distributed_slice($crate::METRICS)]
            #[linkme(crate = $crate::linkme)]
            static $row: $crate::Metric = $crate::Metric::new($name, $crate::MetricKind::Counter, $help);
        )*

        $(#[$attribute])*
        #[derive(Debug)]
        pub(crate) struct $owner {
            $(pub(crate) $field: $crate::Counter,)*
        }

        impl $owner {
            /// All at zero.
            pub(crate) const fn new() -> Self {
                Self { $($field: $crate::Counter::new(&$row),)* }
            }

            /// Every counter, in the order of their definition.
            pub(crate) fn iter(&self) -> impl Iterator<Item = &$crate::Counter> {
                [$(&self.$field,)*].into_iter()
            }
        }
    };
}
