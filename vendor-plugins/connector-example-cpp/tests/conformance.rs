//! The connectors behind the bridge keep the contract of storage adapters.

mod common;

mod files {
    ondol_testkit::l2_conformance!(
        open: |dir| super::common::adapter("FsConnector", dir),
        capabilities: ondol_testkit::l2::Capabilities::default().persisting().without_lists().learning_usage(),
    );
}

mod memory {
    ondol_testkit::l2_conformance!(
        open: |dir| super::common::adapter("MemoryConnector", dir),
        capabilities: ondol_testkit::l2::Capabilities::default().without_lists().learning_usage(),
    );
}
