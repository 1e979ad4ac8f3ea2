//! The rows of what `/metrics` shows besides the counters, and how each value follows from the server's figures.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use ondol_catalog::linkme::distributed_slice;
use ondol_catalog::{METRICS, Metric, MetricKind};
use ondol_engine::RestartReport;
use ondol_memory::LogStats;
use ondol_protocol::{BackendStats, ClassStats, EngineStats, IndexStats, L2Stats};

use super::Sample;

macro_rules! rows {
    ($($row:ident $kind:ident $name:literal $help:literal;)*) => {
        $(
            #[distributed_slice(METRICS)]
            #[linkme(crate = ondol_catalog::linkme)]
            static $row: Metric = Metric::new($name, MetricKind::$kind, $help);
        )*
    };
}

rows! {
    POOL_BYTES Gauge "ondol_pool_bytes" "Bytes of the pool that can hold regions.";
    POOL_FREE Gauge "ondol_pool_free_bytes" "Bytes of the pool in no region.";
    POOL_LARGEST Gauge "ondol_pool_largest_free_bytes" "The largest run of bytes in no region.";
    POOL_REGIONS Gauge "ondol_pool_regions" "Regions of the pool.";
    CLASS_REGIONS Gauge "ondol_class_regions" "Regions of a page size.";
    CLASS_PAGES Gauge "ondol_class_pages" "Pages of a page size.";
    CLASS_FREE Gauge "ondol_class_free_pages" "Pages of a page size that hold nothing.";
    CLASS_GRANTED Gauge "ondol_class_granted_pages"
        "Pages of a page size that clients have and did not store yet.";
    CLASS_COMMITTED Gauge "ondol_class_committed_pages"
        "Pages of a page size that hold a visible object.";
    CLIENTS Gauge "ondol_clients" "Clients that are known.";
    CLIENT_LEASES Gauge "ondol_leases" "Leases of all clients.";
    CLIENT_PINS Gauge "ondol_pins" "Pins of all clients.";
    OBJECTS Gauge "ondol_objects" "Visible objects.";
    OBJECT_BYTES Gauge "ondol_object_bytes" "Bytes of visible objects.";
    RETIRED Gauge "ondol_retired_objects" "Objects that were removed and are still being read.";
    OLDEST_LEASE Gauge "ondol_oldest_lease_seconds" "How long the oldest lease of all clients has been held.";
    INDEX_OBJECTS Gauge "ondol_index_objects" "Objects that clients on this host find in the index.";
    INDEX_UNINDEXED Gauge "ondol_index_unindexed_objects" "Objects that clients on this host must ask for, as the index does not hold them yet.";
    INDEX_BYTES Gauge "ondol_index_bytes" "Bytes of memory that the index may take.";
    INDEX_GENERATION Gauge "ondol_index_generation" "The how many-th index it is; it is replaced when it is full.";
    HEALTHY Gauge "ondol_healthy" "1 while the log can be written, else 0.";
    LOADED Gauge "ondol_loaded"
        "1 once every object that was found at the start is back in the directory, else 0.";
    WARM Gauge "ondol_restart_warm" "1 if the server went on with the pool of an earlier one, else 0.";
    RESTART_OBJECTS Gauge "ondol_restart_objects" "Objects that the server found when it started.";
    RESTART_SECONDS Gauge "ondol_restart_seconds" "How long it took until requests were served.";
    LOG_POSITION Gauge "ondol_log_position_bytes" "The end of what was recorded in the log.";
    LOG_DURABLE Gauge "ondol_log_durable_bytes"
        "The end of what is as durable in the log as was promised.";
    LOG_DISK Gauge "ondol_log_disk_bytes" "Bytes of the log's files.";
    LOG_SEGMENTS Gauge "ondol_log_segments" "Segment files of the log.";
    LOG_FLUSHES Counter "ondol_log_flushes_total" "Writes to the log's files.";
    LOG_FAILED_FLUSHES Counter "ondol_log_failed_flushes_total"
        "Writes to the log's files that failed.";
    LOG_REFUSED Counter "ondol_log_refused_records_total"
        "Changes that were refused because the log had no room for them.";
    LOG_CHECKPOINTS Counter "ondol_log_checkpoints_total" "Checkpoints of the log.";
    LOG_FAILED_CHECKPOINTS Counter "ondol_log_failed_checkpoints_total"
        "Checkpoints of the log that could not be made.";
    L2_STORE_QUEUE Gauge "ondol_l2_store_queue_objects" "Objects that wait to be stored.";
    L2_STORE_QUEUE_LIMIT Gauge "ondol_l2_store_queue_limit_objects"
        "Objects that may wait to be stored before the rest is left to be found later.";
    L2_PREFETCHES Gauge "ondol_l2_prefetches" "Requests to bring objects from storage that are under way.";
    L2_LOADING Gauge "ondol_l2_loading_bytes" "Bytes of pages that loads are filling.";
    L2_CAPTIVE Gauge "ondol_l2_captive_bytes"
        "Bytes that tasks of storage nobody waits for any more may still touch.";
    L2_USED Gauge "ondol_l2_used_bytes" "Bytes that objects take in a storage backend.";
    L2_CAPACITY Gauge "ondol_l2_capacity_bytes" "Bytes that objects may take in a storage backend.";
    L2_OBJECTS Gauge "ondol_l2_objects" "Objects in a storage backend.";
    L2_COMPLETE Gauge "ondol_l2_usage_is_complete"
        "1 once everything in a storage backend is counted, else 0.";
    L2_TASKS Gauge "ondol_l2_tasks" "Stores, lookups and loads of a storage backend that have not finished.";
    L2_CAPTIVE_TASKS Gauge "ondol_l2_captive_tasks" "Those among them that nobody waits for any more.";
    L2_HEALTHY Gauge "ondol_l2_healthy" "1 while a storage backend works as it should, else 0.";
    L2_BREAKER Gauge "ondol_l2_breaker_open"
        "1 while nothing is stored in a storage backend because it failed too often, else 0.";
    L2_DRAINING Gauge "ondol_l2_draining" "1 while a storage backend is taken out of use, else 0.";
    START_TIME Gauge "process_start_time_seconds"
        "When the server was started, in seconds since 1970 began.";
}

ondol_catalog::counters! {
    /// What the door of health and figures counts.
    pub(crate) struct HttpCounters {
        requests HTTP_REQUESTS "ondol_http_requests_total"
            "Requests for health and figures that were answered.";
        cut HTTP_CUT "ondol_http_connections_cut_total"
            "Connections for health and figures that were closed for a newer one, as there were too many.";
    }
}

/// Rows by name, for counters that come as names.
static ROWS: LazyLock<BTreeMap<&'static str, &'static Metric>> = LazyLock::new(|| {
    let rows = ondol_catalog::metrics().into_iter();
    rows.map(|metric| (metric.name, metric)).collect()
});

/// The figures of pool, directory and clients.
pub(super) fn of_engine(stats: &EngineStats) -> Vec<Sample> {
    let pool = &stats.pool;
    let clients = || stats.clients.iter();
    let mut samples = vec![
        Sample::new(&POOL_BYTES, pool.total_bytes),
        Sample::new(&POOL_FREE, pool.free_bytes),
        Sample::new(&POOL_LARGEST, pool.largest_free_extent),
        Sample::new(&POOL_REGIONS, pool.regions),
        Sample::new(&CLIENTS, stats.clients.len() as u64),
        Sample::new(&CLIENT_LEASES, clients().map(|c| c.leases).sum::<u64>()),
        Sample::new(&CLIENT_PINS, clients().map(|c| c.pins).sum::<u64>()),
        Sample::new(&OBJECTS, stats.objects),
        Sample::new(&OBJECT_BYTES, stats.object_bytes),
        Sample::new(&RETIRED, stats.retired),
    ];
    let oldest = clients().filter_map(|c| c.oldest_lease_ms).max();
    samples.push(Sample::new(
        &OLDEST_LEASE,
        oldest.unwrap_or_default() as f64 / 1e3,
    ));
    samples.extend(stats.index.iter().flat_map(of_index));
    samples.extend(stats.classes.iter().flat_map(of_class));
    let counters = stats.counters.iter();
    samples.extend(counters.filter_map(|(name, value)| {
        let metric = ROWS.get(name.as_str())?;
        Some(Sample::new(metric, *value))
    }));
    samples
}

fn of_index(index: &IndexStats) -> [Sample; 4] {
    [
        (&INDEX_OBJECTS, index.objects),
        (&INDEX_UNINDEXED, index.unindexed),
        (&INDEX_BYTES, index.bytes),
        (&INDEX_GENERATION, index.generation),
    ]
    .map(|(metric, value)| Sample::new(metric, value))
}

fn of_class(class: &ClassStats) -> [Sample; 5] {
    [
        (&CLASS_REGIONS, class.regions),
        (&CLASS_PAGES, class.pages),
        (&CLASS_FREE, class.free),
        (&CLASS_GRANTED, class.granted),
        (&CLASS_COMMITTED, class.committed),
    ]
    .map(|(metric, value)| Sample::new(metric, value).labelled("stride", class.stride))
}

/// The figures of storage. What is counted for each backend stands under its name only, so that the sum of all is not counted
/// twice.
pub(super) fn of_storage(l2: &L2Stats) -> Vec<Sample> {
    let mut samples = vec![
        Sample::new(&L2_STORE_QUEUE, l2.store_queue),
        Sample::new(&L2_STORE_QUEUE_LIMIT, l2.store_queue_limit),
        Sample::new(&L2_PREFETCHES, l2.prefetches),
        Sample::new(&L2_LOADING, l2.loading_bytes),
        Sample::new(&L2_CAPTIVE, l2.captive_bytes),
    ];
    samples.extend(l2.backends.iter().flat_map(of_backend));
    let is_of_backends = |name: &String| {
        let mut backends = l2.backends.iter();
        backends.any(|backend| backend.counters.contains_key(name))
    };
    let counters = l2.counters.iter().filter(|(name, _)| !is_of_backends(name));
    samples.extend(counters.filter_map(|(name, value)| {
        let metric = ROWS.get(name.as_str())?;
        Some(Sample::new(metric, *value))
    }));
    samples
}

fn of_backend(backend: &BackendStats) -> Vec<Sample> {
    let mut samples = vec![
        Sample::new(&L2_USED, backend.used_bytes),
        Sample::new(&L2_OBJECTS, backend.objects),
        Sample::new(&L2_COMPLETE, backend.is_complete),
        Sample::new(&L2_TASKS, backend.tasks),
        Sample::new(&L2_CAPTIVE_TASKS, backend.captive_tasks),
        Sample::new(&L2_HEALTHY, backend.health == "healthy"),
        Sample::new(&L2_BREAKER, backend.breaker_open),
        Sample::new(&L2_DRAINING, backend.draining),
    ];
    let capacity = backend.capacity_bytes;
    samples.extend(capacity.map(|capacity| Sample::new(&L2_CAPACITY, capacity)));
    samples.extend(backend.counters.iter().filter_map(|(name, value)| {
        let metric = ROWS.get(name.as_str())?;
        Some(Sample::new(metric, *value))
    }));
    let name = |sample: Sample| sample.labelled("backend", &backend.name);
    samples.into_iter().map(name).collect()
}

/// How the log fares.
pub(super) fn of_log(log: &LogStats) -> [Sample; 9] {
    [
        (&LOG_POSITION, log.position.0),
        (&LOG_DURABLE, log.durable.0),
        (&LOG_DISK, log.bytes_on_disk),
        (&LOG_SEGMENTS, log.segments),
        (&LOG_FLUSHES, log.flushes),
        (&LOG_FAILED_FLUSHES, log.failed_flushes),
        (&LOG_REFUSED, log.refused_records),
        (&LOG_CHECKPOINTS, log.checkpoints),
        (&LOG_FAILED_CHECKPOINTS, log.failed_checkpoints),
    ]
    .map(|(metric, value)| Sample::new(metric, value))
}

/// What the server began with, and whether all of it is there.
pub(super) fn of_restart(restart: &RestartReport, is_loaded: bool) -> [Sample; 4] {
    [
        Sample::new(&WARM, restart.warm),
        Sample::new(&RESTART_OBJECTS, restart.objects),
        Sample::new(&RESTART_SECONDS, restart.seconds),
        Sample::new(&LOADED, is_loaded),
    ]
}

/// Whether the server does its work.
pub(super) fn of_health(is_healthy: bool) -> Sample {
    Sample::new(&HEALTHY, is_healthy)
}

/// When the server was started.
pub(super) fn of_start(seconds: f64) -> Sample {
    Sample::new(&START_TIME, seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::exposition::render;

    #[test]
    fn every_figure_of_the_engine_is_on_the_page() {
        let mut stats = EngineStats {
            objects: 3,
            retired: 1,
            ..EngineStats::default()
        };
        stats.pool.total_bytes = 1 << 40;
        stats.classes = [64, 4096]
            .map(|stride| ClassStats {
                stride,
                pages: 10,
                free: 7,
                ..ClassStats::default()
            })
            .into();
        stats.counters = BTreeMap::from([
            ("ondol_commits_total".to_owned(), 5),
            ("unheard_of".to_owned(), 1),
        ]);
        let page = render(of_engine(&stats));
        for line in [
            "ondol_pool_bytes 1099511627776",
            "ondol_objects 3",
            "ondol_retired_objects 1",
            "# TYPE ondol_class_free_pages gauge",
            "ondol_class_free_pages{stride=\"64\"} 7",
            "ondol_class_free_pages{stride=\"4096\"} 7",
            "# TYPE ondol_commits_total counter",
            "ondol_commits_total 5",
        ] {
            assert!(
                page.lines().any(|found| found == line),
                "{line:?} in {page}"
            );
        }
        assert!(!page.contains("unheard_of"));
    }

    #[test]
    fn what_is_counted_for_each_backend_stands_under_its_name_only() {
        let backend = |name: &str, stored| BackendStats {
            name: name.to_owned(),
            health: "healthy".to_owned(),
            used_bytes: 10 * stored,
            counters: BTreeMap::from([("ondol_commits_total".to_owned(), stored)]),
            ..BackendStats::default()
        };
        let l2 = L2Stats {
            backends: vec![backend("fs#0", 2), backend("s3#1", 3)],
            store_queue: 7,
            counters: BTreeMap::from([
                ("ondol_commits_total".to_owned(), 5),
                ("ondol_deletes_total".to_owned(), 4),
            ]),
            ..L2Stats::default()
        };
        let page = render(of_storage(&l2));
        for line in [
            "ondol_l2_store_queue_objects 7",
            "ondol_l2_used_bytes{backend=\"fs#0\"} 20",
            "ondol_l2_healthy{backend=\"s3#1\"} 1",
            "ondol_commits_total{backend=\"fs#0\"} 2",
            "ondol_commits_total{backend=\"s3#1\"} 3",
            "ondol_deletes_total 4",
        ] {
            assert!(
                page.lines().any(|found| found == line),
                "{line:?} in {page}"
            );
        }
        assert!(!page.contains("ondol_commits_total 5"));
        assert!(!page.contains("ondol_l2_capacity_bytes"));
    }
}
