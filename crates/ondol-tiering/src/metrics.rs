ondol_catalog::counters! {
    /// What the stores of one backend count.
    pub(crate) struct StoreCounters {
        submitted SUBMITTED "ondol_l2_store_submitted_objects_total" "Objects that were handed to a backend to be stored, tries again included.";
        stored STORED "ondol_l2_stored_objects_total" "Objects that a backend stored, or had already.";
        stored_bytes STORED_BYTES "ondol_l2_stored_bytes_total" "Bytes that a backend says it transferred to store objects.";
        failed FAILED_STORES "ondol_l2_failed_store_batches_total" "Batches that a backend did not store as a whole; nothing of them counts as stored.";
        timed_out TIMED_OUT_STORES "ondol_l2_timed_out_store_batches_total" "Batches among those that did not finish in time.";
        retried RETRIED_STORES "ondol_l2_store_retries_total" "Objects that are tried again after a failure.";
        given_up GIVEN_UP "ondol_l2_store_given_up_objects_total" "Objects that were not stored after all tries; found again when memory is next walked.";
        deferred DEFERRED "ondol_l2_store_deferred_objects_total" "Objects that found the queue full and are left in memory to be found later.";
        dropped DROPPED "ondol_l2_store_dropped_objects_total" "Objects that waited longest and were dropped for others, as the configuration demands.";
        gone GONE "ondol_l2_store_gone_objects_total" "Objects that left memory before it was their turn to be stored.";
        encode_failures ENCODE_FAILURES "ondol_l2_encode_failures_total" "Objects that could not be made ready to be stored.";
        breaker_opened BREAKER_OPENED "ondol_l2_breaker_opened_total" "Times that stores were kept away from a backend because it failed too often in a row.";
        walks WALKS "ondol_l2_walks_total" "Times that memory was walked to find what a backend lacks.";
        walk_found WALK_FOUND "ondol_l2_walk_found_objects_total" "Objects in memory that a walk found in the backend already.";
        walk_queued WALK_QUEUED "ondol_l2_walk_queued_objects_total" "Objects in memory that a walk found the backend to lack, and that wait to be stored.";
    }
}

ondol_catalog::counters! {
    /// What the storage tier counts of all backends together.
    pub(crate) struct AdmissionCounters {
        unadmitted UNADMITTED "ondol_l2_unadmitted_objects_total" "Commits of objects that were not used often enough yet to be stored.";
    }
}

ondol_catalog::counters! {
    /// What the eviction from one backend counts.
    pub(crate) struct EvictCounters {
        evicted EVICTED "ondol_l2_evicted_objects_total" "Objects that were deleted from a backend to make room.";
        evicted_bytes EVICTED_BYTES "ondol_l2_evicted_bytes_total" "Bytes of those objects.";
        locked LOCKED "ondol_l2_evict_locked_objects_total" "Objects that were to go and were passed over, since a load had them locked.";
        delete_failures DELETE_FAILURES "ondol_l2_evict_failures_total" "Deletes that a backend refused as a whole.";
    }
}
