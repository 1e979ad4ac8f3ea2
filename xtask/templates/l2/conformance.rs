//! What every storage backend must withstand.

use ondol_testkit::l2::Capabilities;

ondol_testkit::l2_conformance!(
    {{module}},
    // A backend that persists is opened on the directory, `|dir| json!({"type": …, "path": dir})`, with the capabilities
    // `.persisting()`: the suite then asks for what was stored before a restart, too.
    config: |_| serde_json::json!({"type": "{{type}}"}),
    capabilities: Capabilities::default(),
);
