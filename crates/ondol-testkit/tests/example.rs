//! The backend that the documentation of `ondol_plugin::l2` shows keeps its contract.

#[path = "../../ondol-plugin/src/l2/example.rs"]
mod example;

use ondol_testkit::l2::{Capabilities, Subject};

fn subject() -> Subject {
    Subject::linked(
        env!("CARGO_PKG_NAME"),
        |dir| serde_json::json!({"type": "folder", "path": dir}),
    )
    .with_capabilities(Capabilities::default().persisting())
}

#[test]
fn the_example_keeps_the_contract() {
    ondol_testkit::l2::run(&subject()).assert();
}
