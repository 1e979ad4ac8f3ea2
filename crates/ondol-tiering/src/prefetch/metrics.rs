ondol_catalog::counters! {
    /// What the prefetch controller counts.
    pub(crate) struct PrefetchCounters {
        requests REQUESTS "ondol_l2_prefetch_requests_total" "Prefetches that were asked for.";
        from_memory FROM_MEMORY "ondol_l2_prefetch_from_memory_total" "Prefetches that memory served alone.";
        refused REFUSED "ondol_l2_prefetch_refused_total" "Prefetches that got only what memory had, since too many were under way.";
        timed_out TIMED_OUT "ondol_l2_prefetch_timed_out_total" "Prefetches whose time was over before everything had come.";
        looked_up LOOKED_UP "ondol_l2_prefetch_looked_up_total" "Keys that were looked up in a backend.";
        lookup_failed LOOKUP_FAILED "ondol_l2_prefetch_lookup_failed_total" "Lookups of a batch in a backend that failed; nothing counts as found there.";
        loaded LOADED "ondol_l2_prefetch_loaded_total" "Objects that were loaded into memory.";
        loaded_bytes LOADED_BYTES "ondol_l2_prefetch_loaded_bytes_total" "Bytes of objects that were loaded into memory.";
        shared SHARED "ondol_l2_prefetch_shared_total" "Objects that a prefetch got by the load of another one.";
        unverified UNVERIFIED "ondol_l2_prefetch_unverified_total" "Objects that were loaded without a checksum to compare them with.";
        missing MISSING "ondol_l2_prefetch_missing_total" "Objects that a lookup had found and the load did not.";
        failed FAILED "ondol_l2_prefetch_failed_total" "Objects that could not be read.";
        corrupt CORRUPT "ondol_l2_prefetch_corrupt_total" "Objects that were not what was stored; they are deleted in that backend.";
        foreign FOREIGN "ondol_l2_prefetch_foreign_total" "Objects that were not served and stay where they are: without a trailer, or stored with other transforms.";
        delete_failed DELETE_FAILED "ondol_l2_prefetch_delete_failed_total" "Corrupt objects that could not be deleted.";
        other_length OTHER_LENGTH "ondol_l2_prefetch_other_length_total" "Objects of another length than was expected.";
        unknown_length UNKNOWN_LENGTH "ondol_l2_prefetch_unknown_length_total" "Objects that were not loaded since nobody knows how long they are.";
        too_long TOO_LONG "ondol_l2_prefetch_too_long_total" "Objects that were not loaded since they would not fit memory.";
        l1_oom L1_OOM "ondol_l2_prefetch_l1_oom_total" "Objects that were not loaded since memory had no room.";
        not_recorded NOT_RECORDED "ondol_l2_prefetch_not_recorded_total" "Objects that were loaded and could not be admitted.";
        deleted DELETED "ondol_l2_prefetch_deleted_total" "Objects that were deleted while they were loaded, and so not admitted.";
        too_slow TOO_SLOW "ondol_l2_prefetch_too_slow_total" "Objects that were not loaded since their backend would not bring them in time.";
    }
}
