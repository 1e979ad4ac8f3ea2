ondol_catalog::counters! {
    /// What one handler counts.
    pub(crate) struct Counters {
        layout_mismatches LAYOUT_MISMATCHES "ondol_handler_layout_mismatches_total"
            "Objects that a handler did not get because their layout was not the expected one.";
        checksum_mismatches CHECKSUM_MISMATCHES "ondol_handler_checksum_mismatches_total"
            "Objects that a handler did not give out because their bytes did not match their checksum.";
        hits HITS "ondol_handler_hits_total"
            "Objects that a handler gave to its reader.";
        misses MISSES "ondol_handler_misses_total"
            "Keys that a handler did not find.";
        stores STORES "ondol_handler_stores_total"
            "Objects that a handler made visible.";
        reconnects RECONNECTS "ondol_handler_reconnects_total"
            "Times that a server which was started again took a handler up as the client that it was.";
        new_lines NEW_LINES "ondol_handler_new_lines_total"
            "Times that a handler became a new client, as the server did not know it any more.";
    }
}
