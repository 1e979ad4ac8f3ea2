//! What every storage backend must withstand.

use ondol_testkit::l2::Capabilities;

ondol_testkit::l2_conformance!(
    l2_journal_file,
    config: |dir| serde_json::json!({"type": "journal_file", "path": dir.join("kv.journal")}),
    capabilities: Capabilities::default().persisting(),
);
