//! The suite itself: a good adapter passes.

use ondol_plugin::l2::WorkerAdapter;
use ondol_testkit::l2::MapBackend;

ondol_testkit::l2_conformance!(open: |_| Ok(Box::new(WorkerAdapter::new("map", 3, MapBackend::new())?)));
