//! Written by `cargo xtask contract-check --plugin`: links one plugin crate and tells what it registers.

use {crate} as _;
use ondol_host::l2::L2Registry;
use ondol_host::{Allowlist, Environment};
use ondol_host::{HandlerPlugins, LoadOptions, Registry};

fn main() {
    let nothing: [(&str, &str); 0] = [];
    let options = LoadOptions::new(Environment::of(nothing)).with_allowlist(Allowlist::all());
    let plugins = HandlerPlugins::load(Registry::global(), options);
    let reports = plugins.report();
    let handlers = reports.iter().map(|row| {
        serde_json::json!({
            "kind": "handler",
            "name": row.name,
            "package": row.package,
            "state": row.state.name(),
            "reason": row.reason,
        })
    });
    let backends = L2Registry::global();
    let row = |kind: &str, name: &str, package: &str| {
        serde_json::json!({"kind": kind, "name": name, "package": package, "state": "linked"})
    };
    let adapters = backends.adapters().iter();
    let adapters = adapters.map(|row_of| row("adapter", row_of.type_name(), row_of.package().name));
    let connectors = backends.connectors().iter();
    let connectors = connectors.map(|row_of| {
        let name = format!("{}::{}", row_of.module_path(), row_of.class_name());
        row("connector", &name, row_of.package().name)
    });
    let rows: Vec<_> = handlers.chain(adapters).chain(connectors).collect();
    // A file, since the plugin may print what it likes.
    let path = std::env::args().nth(1).expect("the path of the report");
    let text = serde_json::Value::from(rows).to_string();
    std::fs::write(path, text).expect("write the report");
}
