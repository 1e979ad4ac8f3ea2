//! The binary holds exactly its own plugin, whatever else the workspace links elsewhere.

use std::process::Command;

use serde_json::{Value, json};

#[test]
fn it_holds_its_own_plugin_and_no_other() {
    let output = Command::new(env!("CARGO_BIN_EXE_custom-server"))
        .args(["plugins", "--json"])
        .env_remove("MARU_PLUGINS")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let listing: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(listing["expected"], json!(["example-plugin"]));
    let plugins = listing["plugins"].as_array().unwrap();
    let [plugin] = &plugins[..] else {
        panic!("expected one plugin: {listing}");
    };
    assert_eq!(plugin["name"], "example");
    assert_eq!(plugin["package"], "example-plugin");
    assert_eq!(plugin["state"], "loaded");
}
