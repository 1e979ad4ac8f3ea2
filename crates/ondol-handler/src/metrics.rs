use ondol_catalog::{Counter, METRICS, Metric, MetricKind, linkme::distributed_slice};

#[distributed_slice(METRICS)]
#[linkme(crate = ondol_catalog::linkme)]
static LAYOUT_MISMATCHES: Metric = Metric::new(
    "ondol_handler_layout_mismatches_total",
    MetricKind::Counter,
    "Objects that a handler did not get because their layout was not the expected one.",
);

#[distributed_slice(METRICS)]
#[linkme(crate = ondol_catalog::linkme)]
static CHECKSUM_MISMATCHES: Metric = Metric::new(
    "ondol_handler_checksum_mismatches_total",
    MetricKind::Counter,
    "Objects that a handler did not give out because their bytes did not match their checksum.",
);

#[distributed_slice(METRICS)]
#[linkme(crate = ondol_catalog::linkme)]
static HITS: Metric = Metric::new(
    "ondol_handler_hits_total",
    MetricKind::Counter,
    "Objects that a handler gave to its reader.",
);

#[distributed_slice(METRICS)]
#[linkme(crate = ondol_catalog::linkme)]
static MISSES: Metric = Metric::new(
    "ondol_handler_misses_total",
    MetricKind::Counter,
    "Keys that a handler did not find.",
);

#[distributed_slice(METRICS)]
#[linkme(crate = ondol_catalog::linkme)]
static STORES: Metric = Metric::new(
    "ondol_handler_stores_total",
    MetricKind::Counter,
    "Objects that a handler made visible.",
);

#[derive(Debug)]
pub(crate) struct Counters {
    pub(crate) layout_mismatches: Counter,
    pub(crate) checksum_mismatches: Counter,
    pub(crate) hits: Counter,
    pub(crate) misses: Counter,
    pub(crate) stores: Counter,
}

impl Counters {
    pub(crate) const fn new() -> Self {
        Self {
            layout_mismatches: Counter::new(&LAYOUT_MISMATCHES),
            checksum_mismatches: Counter::new(&CHECKSUM_MISMATCHES),
            hits: Counter::new(&HITS),
            misses: Counter::new(&MISSES),
            stores: Counter::new(&STORES),
        }
    }
}
