//! The contract's own tests, in every layout and in every way to move bytes.

use ondol_testkit::l2::Capabilities;
use serde_json::json;

/// The suite for one configuration.
macro_rules! conforms {
    ($name:ident, $capabilities:expr, {$($parameters:tt)*}) => {
        mod $name {
            use super::*;

            ondol_testkit::l2_conformance!(
                l2_fs,
                config: |dir| {
                    let mut config = json!({$($parameters)*});
                    config["type"] = json!("fs");
                    config["base_path"] = json!(dir);
                    config
                },
                capabilities: $capabilities,
            );
        }
    };
}

fn flat() -> Capabilities {
    Capabilities::default().persisting()
}

/// Its files are longer than what is stored by their descriptions.
fn sharded() -> Capabilities {
    flat().with_overhead()
}

conforms!(by_default, flat(), {});
conforms!(lmcache_by_threads, flat().evicting(), {"io": "threads", "max_capacity_bytes": 32 << 20});
conforms!(lmcache_by_io_uring, flat(), {"io": "io_uring"});
conforms!(lmcache_direct, flat(), {"use_odirect": true, "fsync": "data", "relative_tmp_dir": "tmp"});
conforms!(sharded_by_threads, sharded(), {"layout": "sharded", "io": "threads", "fsync": "full"});
conforms!(sharded_direct, sharded().evicting(), {"layout": "sharded", "use_odirect": true, "max_capacity_gb": 0.03125});
