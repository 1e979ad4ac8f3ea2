//! An engine that gets no memory for its index. Alone in its process, in which nobody gets any.

use std::os::fd::AsFd;

use ondol_engine::{Engine, EngineConfig};
use ondol_plugin::Key;
use ondol_protocol::{ControlPlane, GrantRequest};
use ondol_shm::IndexReader;

#[test]
fn without_memory_for_an_index_clients_ask_and_with_it_they_are_given_one() {
    ondol_catalog::arm_failpoints("index.make=error@1").unwrap();
    let config = EngineConfig::new(["memfd:?size=2MiB".parse().unwrap()]);
    let engine = Engine::open(config).unwrap();
    let session = engine.attach(None, [1; 16]).unwrap();
    assert!(session.index().unwrap().is_none());
    assert_eq!(engine.stats().index, None);
    let request = GrantRequest {
        request: 1,
        stride: 1 << 20,
        count: 1,
    };
    assert_eq!(session.grant(request).unwrap().len(), 1);
    assert_eq!(session.locate(&[Key::integer(1)]).unwrap(), [None]);

    ondol_catalog::arm_failpoints("index.make=error@1000").unwrap();
    let files = session.index().unwrap().unwrap();
    assert!(IndexReader::open(files.index.as_fd()).unwrap().is_current());
    assert!(engine.stats().index.is_some());
}
