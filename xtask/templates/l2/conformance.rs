//! What every storage backend must withstand.

use ondol_testkit::l2::Capabilities;

ondol_testkit::l2_conformance!(
    {{module}},
    config: |_| serde_json::json!({"type": "{{type}}"}),
    // With `.persisting()` the suite asks for what was stored before a restart, too.
    capabilities: Capabilities::default(),
);
