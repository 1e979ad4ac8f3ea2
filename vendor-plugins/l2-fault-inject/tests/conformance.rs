//! Without faults it keeps what every storage adapter must keep, and with delays too.

use serde_json::json;

mod without_faults {
    use super::*;

    ondol_testkit::l2_conformance!(
        l2_fault_inject,
        config: |_| json!({"type": "fault_inject", "inner": {"type": "map"}}),
    );
}

mod with_delays {
    use super::*;

    ondol_testkit::l2_conformance!(
        l2_fault_inject,
        config: |_| json!({
            "type": "fault_inject",
            "inner": {"type": "map"},
            "store_delay_ms": 2,
            "lookup_delay_ms": 2,
            "load_delay_ms": 2,
            "delete_delay_ms": 0.5,
        }),
    );
}
