ondol_catalog::counters! {
    /// Counts since the directory was made.
    pub(crate) struct Counters {
        hits HITS "ondol_lookup_hits_total" "Objects found and leased.";
        misses MISSES "ondol_lookup_misses_total" "Keys asked for and not found.";
        index_hits INDEX_HITS "ondol_index_hits_total" "Objects that clients found by themselves; they count as hits, too.";
        index_misses INDEX_MISSES "ondol_index_misses_total" "Keys that clients looked up by themselves and did not find; they count as misses, too.";
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
        recovered_objects RECOVERED_OBJECTS "ondol_recovered_objects_total" "Objects of the last run that were found again.";
        demand_loads DEMAND_LOADS "ondol_demand_loads_total" "Objects of the last run that were asked for before their turn to be loaded.";
        verified_objects VERIFIED_OBJECTS "ondol_verified_objects_total" "Objects of the last run whose bytes fit their checksum when they were first asked for.";
        lost_objects LOST_OBJECTS "ondol_lost_objects_total" "Objects removed because their bytes are gone or do not fit their checksum.";
        adopted_clients ADOPTED_CLIENTS "ondol_adopted_clients_total" "Clients of the last run that were not proven dead, so that what they hold was kept.";
        resumed_clients RESUMED_CLIENTS "ondol_resumed_clients_total" "Clients of the last run that came back.";
        unmatched_leases UNMATCHED_LEASES "ondol_unmatched_leases_total" "Leases of the last run on objects that were gone; they had ended.";
        l2_hits L2_HITS "ondol_lookup_l2_hits_total" "Objects found because they were brought from storage while a reader waited; they count as hits, too.";
        unstored_evictions UNSTORED_EVICTIONS "ondol_unstored_evictions_total" "Objects evicted before a storage backend had them.";
        admitted ADMITTED "ondol_admitted_objects_total" "Objects that became visible because they were loaded from a storage backend.";
        let_go LET_GO "ondol_let_go_objects_total" "Objects that left memory because a storage backend has them.";
        unleased UNLEASED "ondol_tier_leases_refused_total" "Objects that the storage tier could not lease, having as many leases as a client may.";
        dead_clients DEAD_CLIENTS "ondol_dead_clients_total" "Clients that died without leaving.";
    }
}
