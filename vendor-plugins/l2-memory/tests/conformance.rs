//! What every storage adapter must keep.

use ondol_testkit::l2::Capabilities;
use serde_json::json;

mod memory {
    use super::*;

    ondol_testkit::l2_conformance!(
        l2_memory,
        config: |_| json!({"type": "memory", "max_size_bytes": 48 << 20}),
        capabilities: Capabilities::default().evicting(),
    );
}

mod slow {
    use super::*;

    ondol_testkit::l2_conformance!(
        l2_memory,
        config: |_| json!({"type": "memory", "latency_ms": 0.2, "bandwidth_gb": 2, "num_workers": 2}),
    );
}

mod mock {
    use super::*;

    ondol_testkit::l2_conformance!(
        l2_memory,
        config: |_| json!({"type": "mock", "max_size_gb": 0.05, "mock_bandwidth_gb": 10}),
        capabilities: Capabilities::default().evicting(),
    );
}
