ondol_catalog::counters! {
    /// Counts since the directory was made.
    pub(crate) struct Counters {
        hits HITS "ondol_lookup_hits_total" "Objects found and leased.";
        misses MISSES "ondol_lookup_misses_total" "Keys asked for and not found.";
        layout_mismatches LAYOUT_MISMATCHES "ondol_layout_mismatches_total" "Objects not served because their layout was not the expected one.";
        commits COMMITS "ondol_commits_total" "Objects that became visible.";
        committed_bytes COMMITTED_BYTES "ondol_committed_bytes_total" "Bytes of objects that became visible.";
        duplicates DUPLICATES "ondol_duplicate_commits_total" "Commits of keys that were there already.";
        refused_commits REFUSED_COMMITS "ondol_refused_commits_total" "Commits of pages that were not the client's or too short.";
        stale_returns STALE_RETURNS "ondol_stale_returns_total" "Returns of pages that were not the client's.";
        granted_pages GRANTED_PAGES "ondol_granted_pages_total" "Pages granted to clients.";
        full POOL_FULL "ondol_pool_full_total" "Grants refused because nothing could be freed.";
        evictions EVICTIONS "ondol_evictions_total" "Objects evicted for others of their page size.";
        drained_objects DRAINED_OBJECTS "ondol_drained_objects_total" "Objects evicted because their region was needed for another page size.";
        drained_regions DRAINED_REGIONS "ondol_drained_regions_total" "Regions given up for another page size.";
        deletes DELETES "ondol_deletes_total" "Objects deleted.";
        reclaimed_leases RECLAIMED_LEASES "ondol_reclaimed_leases_total" "Leases taken back from dead clients.";
        reclaimed_pins RECLAIMED_PINS "ondol_reclaimed_pins_total" "Pins taken back from clients that died or left.";
        reclaimed_grants RECLAIMED_GRANTS "ondol_reclaimed_grants_total" "Granted pages taken back from dead clients.";
        dead_clients DEAD_CLIENTS "ondol_dead_clients_total" "Clients that died without leaving.";
    }
}
