//! What every native connector must withstand.

ondol_testkit::connector_conformance!(
    {{module}},
    class: "{{Type}}Connector",
    config: |_| serde_json::json!({}),
    // With `.persisting()` the suite asks for what was stored before a restart, too.
    capabilities: ondol_testkit::l2::Capabilities::default(),
);
