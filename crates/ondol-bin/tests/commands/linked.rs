//! What the binary says about itself, as far as the plugins concern it that the default features link.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::Place;

fn json(command: &mut Command) -> Value {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The row of a plugin.
fn row<'a>(listing: &'a Value, plugin: &str) -> &'a Value {
    let mut rows = listing["plugins"].as_array().unwrap().iter();
    rows.find(|row| row["name"] == plugin).unwrap()
}

#[test]
fn the_linked_plugins_are_listed_with_what_becomes_of_them() {
    let place = Place::new();
    let listing = json(&mut place.ondol(&["plugins", "--json"]));
    let expected = listing["expected"].as_array().unwrap();
    for plugin in ["access-trace", "prefault"] {
        let package = format!("handler-{plugin}");
        assert!(expected.contains(&json!(package)));
        let row = row(&listing, plugin);
        assert_eq!([&row["package"], &row["kind"]], [&package, "handler"]);
        assert_eq!(row["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(row["state"], "declined");
        assert!(row["reason"].as_str().unwrap().contains("declined"));
    }
    assert_eq!(listing["unmatched"], json!([]));
}

#[test]
fn the_allowlist_and_the_configuration_decide_what_loads() {
    let place = Place::new();
    let mut command = place.ondol(&["plugins", "--json"]);
    command
        .env("MARU_PLUGINS", " access-trace, typo ")
        .env("ONDOL_ACCESS_TRACE", place.path().join("trace"))
        .env("ONDOL_PREFAULT", "1");
    let listing = json(&mut command);
    let trace = row(&listing, "access-trace");
    assert_eq!(trace["state"], "loaded");
    assert!(trace["reason"].is_null() && !trace["hooks"].as_array().unwrap().is_empty());
    let prefault = row(&listing, "prefault");
    assert_eq!(prefault["state"], "skipped");
    assert!(
        prefault["reason"]
            .as_str()
            .unwrap()
            .contains("MARU_PLUGINS")
    );
    assert_eq!(listing["unmatched"], json!(["typo"]));

    command.env("MARU_PLUGINS", " ,");
    let listing = json(&mut command);
    assert_eq!(row(&listing, "prefault")["state"], "loaded");
    assert_eq!(listing["unmatched"], json!([]));
}

#[test]
fn people_get_the_same_in_a_table() {
    let place = Place::new();
    let output = place
        .ondol(&["plugins"])
        .env("MARU_PLUGINS", "prefault,typo")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "NAME",
        "access-trace",
        "skipped",
        "handler-prefault",
        "not linked into this program: typo",
    ] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
}

#[test]
fn a_plugin_that_cannot_load_costs_no_object() {
    let place = Place::new();
    let _server = place.serve();
    let mut put = place.ondol(&["put", "k", "/dev/null"]);
    let output = put
        .env("ONDOL_ACCESS_TRACE", "/nowhere/trace")
        .output()
        .unwrap();
    assert!(output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("WARN") && said.contains("access-trace"),
        "{said}"
    );
    assert_eq!(place.text(&["get", "k"]), "");
}

#[test]
fn the_tables_of_the_contract_are_those_that_are_linked_in() {
    let place = Place::new();
    let tables = place.json(&["contract", "--json"]);
    let names = |table: &str| -> Vec<&str> {
        let rows = tables[table].as_array().unwrap().iter();
        rows.map(|row| row["name"].as_str().unwrap()).collect()
    };
    assert_eq!(
        names("policies"),
        ["arc", "isolated-lru", "lru", "s3-fifo", "sieve"]
    );
    assert!(names("metrics").is_sorted());
    for metric in ["ondol_commits_total", "ondol_door_requests_total"] {
        assert!(names("metrics").contains(&metric), "{metric}");
    }
    assert!(
        tables["metrics"]
            .as_array()
            .unwrap()
            .iter()
            .all(|row| row["kind"] == "counter" || row["kind"] == "gauge")
    );
    assert!(!names("layouts").is_empty());
    let layout = &tables["layouts"][0];
    assert!(layout["revision"].is_u64() && layout["size"].is_u64() && layout["align"].is_u64());
    let field = &layout["fields"][0];
    assert!(field["name"].is_string() && field["offset"].is_u64() && field["size"].is_u64());
}

#[test]
fn the_help_names_every_command_and_not_the_hidden_one() {
    let help = Place::new().text(&["--help"]);
    for command in [
        "serve", "put", "get", "ls", "rm", "stat", "plugins", "l2", "doctor", "replay",
    ] {
        assert!(
            help.contains(&format!("\n  {command} ")),
            "{command} in {help}"
        );
    }
    assert!(!help.contains("contract"));
}
