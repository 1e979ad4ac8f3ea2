//! Written by `cargo xtask contract-check --plugin`: links one plugin crate and tells what it registers.

use {crate} as _;
use ondol_host::{HandlerPlugins, LoadOptions, Registry};
use ondol_host::{Allowlist, Environment};

fn main() {
    let nothing: [(&str, &str); 0] = [];
    let options = LoadOptions::new(Environment::of(nothing)).with_allowlist(Allowlist::all());
    let plugins = HandlerPlugins::load(Registry::global(), options);
    let rows: Vec<_> = plugins
        .report()
        .iter()
        .map(|row| {
            serde_json::json!({
                "name": row.name,
                "package": row.package,
                "state": row.state.name(),
                "reason": row.reason,
            })
        })
        .collect();
    // A file, since the plugin may print what it likes.
    let path = std::env::args().nth(1).expect("the path of the report");
    let text = serde_json::Value::from(rows).to_string();
    std::fs::write(path, text).expect("write the report");
}
