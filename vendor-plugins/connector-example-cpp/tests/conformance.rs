//! The connectors keep their contract, and behind the bridge that of storage adapters.

#[allow(dead_code, reason = "each test file uses a part")]
mod common;

use ondol_testkit::l2::Capabilities;

fn connector() -> Capabilities {
    Capabilities::default().refusing_empty_batches()
}

/// A connector cannot list what it has, so an adapter that is made of one never knows all its usage.
fn adapter() -> Capabilities {
    Capabilities::default().without_lists().learning_usage()
}

mod files {
    ondol_testkit::connector_conformance!(
        open: |dir| super::common::connector("FsConnector", dir),
        capabilities: super::connector().persisting(),
    );
}

mod memory {
    ondol_testkit::connector_conformance!(
        open: |dir| super::common::connector("MemoryConnector", dir),
        capabilities: super::connector(),
    );
}

mod files_as_adapter {
    ondol_testkit::l2_conformance!(
        open: |dir| super::common::adapter("FsConnector", dir),
        capabilities: super::adapter().persisting(),
    );
}

mod memory_as_adapter {
    ondol_testkit::l2_conformance!(
        open: |dir| super::common::adapter("MemoryConnector", dir),
        capabilities: super::adapter(),
    );
}
