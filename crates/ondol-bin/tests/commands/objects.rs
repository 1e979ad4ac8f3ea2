use std::fs;
use std::io::Read;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::Place;

#[test]
fn what_one_process_puts_another_gets() {
    let place = Place::new();
    let _server = place.serve();
    assert_eq!(
        place.run_with(&["put", "foo"], b"hello\n").text(),
        "stored foo (6 B)\n"
    );
    assert_eq!(place.text(&["get", "foo"]), "hello\n");

    let bytes: Vec<u8> = (0..3_000_000_u32).map(|i| (i * 7 / 3) as u8).collect();
    let file = place.file("big", &bytes);
    let stored = place.text(&["put", "models/big", file.to_str().unwrap()]);
    assert_eq!(stored, "stored models/big (2.86 MiB)\n");
    assert!(place.run(&["get", "models/big"]).stdout == bytes);
    assert_eq!(place.text(&["get", "models/big", "-o", "copy"]), "");
    assert!(fs::read(place.path().join("copy")).unwrap() == bytes);

    assert_eq!(
        place.text(&["put", "nothing", "/dev/null"]),
        "stored nothing (0 B)\n"
    );
    assert_eq!(place.text(&["get", "nothing"]), "");
}

#[test]
fn a_key_that_is_there_keeps_its_first_object_and_that_is_no_error() {
    let place = Place::new();
    let _server = place.serve();
    place.run_with(&["put", "k", "-"], b"first").text();
    let again = place.run_with(&["put", "k", "-"], b"second").text();
    assert_eq!(again, "k is already present; the first object stays\n");
    assert_eq!(place.text(&["get", "k"]), "first");
}

#[test]
fn what_is_not_there_is_said_and_leaves_no_file() {
    let place = Place::new();
    let _server = place.serve();
    let kept = place.file("kept", b"as it was");
    let said = place.run(&["get", "k", "-o", kept.to_str().unwrap()]);
    said.refused(1, &["there is no object k\n"]);
    assert_eq!(fs::read(kept).unwrap(), b"as it was");

    place.run_with(&["put", "k"], b"x").text();
    let said = place.run(&["rm", "a", "k", "b"]);
    said.refused(1, &["there is no object a\n", "there is no object b\n"]);
    assert_eq!(said.stdout, b"removed k\n");
    place
        .run(&["get", "k"])
        .refused(1, &["there is no object k"]);
}

#[test]
fn other_kinds_of_keys_are_written_as_they_are_listed() {
    let place = Place::new();
    let _server = place.serve();
    let keys = [
        "int:5",
        "text:int:5",
        "raw:00ff",
        "lmcache:m@1@0@aa@bf16",
        "plain",
    ];
    for key in keys {
        place.run_with(&["put", key], key.as_bytes()).text();
    }
    let listing = place.text(&["ls", "--json"]);
    let objects: Vec<Value> = listing
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(objects.len(), keys.len());
    for object in &objects {
        let key = object["key"].as_str().unwrap();
        assert_eq!(place.text(&["get", key]), key);
        assert_eq!(object["size"], key.len());
    }
    place
        .run(&["get", "int:five"])
        .refused(2, &["is written text:int:five"]);
}

#[test]
fn a_listing_has_what_was_asked_for() {
    let place = Place::new();
    let _server = place.serve();
    assert_eq!(place.text(&["ls"]).lines().count(), 1);
    for key in ["a/1", "a/2", "b/1"] {
        place.run_with(&["put", key], b"1234567").text();
    }
    let listing = place.text(&["ls"]);
    let lines: Vec<&str> = listing.lines().collect();
    assert!(lines[0].ends_with("PINS  KEY"), "{listing}");
    let row: Vec<&str> = lines[1].split_whitespace().collect();
    assert_eq!(row, ["7", "B", "-", "0", "0", "a/1"]);

    let keys = |args: &[&str]| -> Vec<String> {
        let listing = place.text(&[&["ls", "--json"], args].concat());
        let key = |line| {
            serde_json::from_str::<Value>(line).unwrap()["key"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        listing.lines().map(key).collect()
    };
    assert_eq!(keys(&[]), ["a/1", "a/2", "b/1"]);
    assert_eq!(keys(&["--limit", "2"]), ["a/1", "a/2"]);
    assert_eq!(keys(&["--prefix", "b"]), ["b/1"]);
    assert_eq!(keys(&["--prefix", "a", "--limit", "1"]), ["a/1"]);
    assert!(keys(&["--limit", "0"]).is_empty());
    let line = place.text(&["ls", "--json", "--limit", "1"]);
    let object: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(object["key_bytes"], "a3612f31");
    assert_eq!(
        [&object["tag"], &object["leases"], &object["pins"]],
        [1, 0, 0]
    );
    assert!(object["layout"].is_null() && object["checksum"].is_string());
}

#[test]
fn the_figures_tell_what_happened() {
    let place = Place::new();
    let _server = place.serve();
    assert!(place.json(&["stat", "--json"])["hit_rate"].is_null());
    place.run_with(&["put", "k"], &[7; 5000]).text();
    place.run(&["get", "k"]);
    place.run(&["get", "l"]);
    let stat = place.json(&["stat", "--json"]);
    assert_eq!(stat["hit_rate"], 0.5);
    assert_eq!([&stat["objects"], &stat["object_bytes"]], [1, 5000]);
    assert_eq!(stat["policy"], "arc");
    assert_eq!(stat["pool"]["devices"], json!(["memfd:?size=16MiB"]));
    assert_eq!(stat["pool"]["total_bytes"], 16 << 20);
    assert_eq!(stat["counters"]["ondol_commits_total"], 1);
    assert_eq!(stat["socket"], place.socket().to_str().unwrap());

    let text = place.text(&["stat"]);
    for part in [
        "policy arc",
        "memfd:?size=16MiB",
        "hit rate  50.0 %",
        "8192 B",
        "ondol_commits_total",
    ] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
}

#[test]
fn a_full_pool_makes_room_and_what_is_too_long_is_refused() {
    let place = Place::new();
    let _server = place.serve();
    let bytes = vec![1; 3 << 20];
    for key in 0..12 {
        place.run_with(&["put", &format!("k{key}")], &bytes).text();
    }
    let stat = place.json(&["stat", "--json"]);
    let count = |name: &str| stat["counters"][name].as_u64().unwrap();
    assert!(
        count("ondol_evictions_total") + count("ondol_drained_objects_total") > 0,
        "{stat}"
    );
    assert!(place.run(&["get", "k11"]).stdout == bytes);

    let too_long = vec![0; (16 << 20) + 1];
    let parts = ["standard input is longer than 16 MiB"];
    place.run_with(&["put", "l"], &too_long).refused(1, &parts);
    let file = place.file("long", &too_long);
    let said = place.run(&["put", "l", file.to_str().unwrap()]);
    said.refused(1, &["long is longer than 16 MiB"]);
    place
        .run(&["put", "l", "missing"])
        .refused(1, &["cannot read missing", "No such file"]);
}

#[test]
fn a_reader_of_the_output_may_have_seen_enough() {
    let place = Place::new();
    let _server = place.serve();
    place.run_with(&["put", "big"], &[b'x'; 1 << 20]).text();
    let mut child = place
        .ondol(&["get", "big"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 3];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (&first, output.status.code(), output.stderr.as_slice()),
        (b"xxx", Some(0), &b""[..])
    );
}
