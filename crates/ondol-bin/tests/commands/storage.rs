//! Storage behind the pool, as people configure, try and watch it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Place, ShmFiles, WATCHDOG};

/// A backend in a directory of this place.
fn fs_backend(place: &Place, more: Value) -> String {
    let mut backend = json!({"type": "fs", "base_path": place.path().join("kv")});
    let more = more.as_object().unwrap().clone();
    backend.as_object_mut().unwrap().extend(more);
    backend.to_string()
}

/// Objects in the first backend of the server of this place.
fn stored(place: &Place) -> u64 {
    let stats = place.json(&["stat", "--json"]);
    stats["l2"]["backends"][0]["objects"].as_u64().unwrap()
}

#[track_caller]
fn soon(mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + WATCHDOG;
    while !is_so() {
        assert!(Instant::now() < end, "it did not come to be");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Files of objects in a directory of LMCache's layout.
fn object_files(place: &Place) -> usize {
    let entries = fs::read_dir(place.path().join("kv")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name());
    names
        .filter(|name| name.to_string_lossy().ends_with(".data"))
        .count()
}

#[test]
fn a_check_tries_a_backend_and_leaves_no_object_behind() {
    let place = Place::new();
    let key = place.file("key", &[7; 32]);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    for backend in [
        r#"{"type":"memory"}"#.to_owned(),
        fs_backend(&place, json!({})),
        fs_backend(
            &place,
            json!({"layout": "sharded", "serde": [{"type": "zstd"}, {"type": "aesgcm", "master_key_path": key}]}),
        ),
    ] {
        let text = place.text(&["l2", "check", &backend]);
        for step in [
            "serde", "open", "store", "lookup", "load", "compare", "list", "unlock", "delete",
            "usage", "health", "close",
        ] {
            let line = text.lines().find(|line| line.starts_with(step)).unwrap();
            assert!(line.contains(" ok "), "{line}");
        }
        assert!(!text.contains("left behind"), "{text}");
        if backend.contains("fs") {
            assert_eq!(object_files(&place), 0);
            fs::remove_dir_all(place.path().join("kv")).unwrap();
        }
    }
}

#[test]
fn a_check_that_fails_says_which_step_and_why() {
    let place = Place::new();
    place.file("kv", b"no directory");
    let said = place.run(&["l2", "check", &fs_backend(&place, json!({}))]);
    assert_eq!(said.code, Some(1));
    let text = String::from_utf8(said.stdout).unwrap();
    let failed = |text: &str, step: &str| {
        let mut lines = text.lines();
        lines.any(|line| line.starts_with(step) && line.contains(" FAILED "))
    };
    assert!(failed(&text, "open"), "{text}");
    assert!(text.contains("fs (also fs_native)"), "{text}");
    // What a server would refuse.
    let serde = json!({"base_path": place.path().join("other"), "serde": {"type": "gzip"}});
    let said = place.run(&["l2", "check", &fs_backend(&place, serde)]);
    assert_eq!(said.code, Some(1));
    let text = String::from_utf8(said.stdout).unwrap();
    assert!(failed(&text, "serde"), "{text}");
    assert!(text.contains("gzip"), "{text}");
    place
        .run(&["l2", "check", "fs"])
        .refused(2, &["which is no JSON"]);
}

#[test]
fn objects_come_back_from_storage_after_a_start_with_an_empty_pool() {
    let place = Place::new();
    let backend = fs_backend(&place, json!({}));
    let flags = ["--pool", "memfd:?size=16MiB", "--l2-adapter", &backend];
    let mut server = place.serve_with(&flags);
    let file = place.file("bytes", &[7; 100_000]);
    place.text(&["put", "k", file.to_str().unwrap()]);
    soon(|| stored(&place) == 1);
    assert_eq!(server.end(Signal::TERM).code(), Some(0));
    assert_eq!(object_files(&place), 1);

    let _server = place.serve_with(&flags);
    let pool = place.json(&["stat", "--json"]);
    assert_eq!(pool["objects"], 0);
    place
        .run(&["get", "k", "--l2-wait=0"])
        .refused(1, &["there is no object k"]);
    let loaded = place.run(&["get", "k"]);
    assert_eq!((loaded.code, loaded.stdout), (Some(0), vec![7; 100_000]));
    let text = place.text(&["stat"]);
    for part in ["STORAGE", "fs#0", "healthy"] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
}

#[test]
fn backends_are_configured_in_the_file_and_the_environment_with_commas_and_all() {
    let place = Place::new();
    let dir = place.path().join("a,b");
    let file = format!(
        r#"
pool = "memfd:?size=16MiB"
l2_lookup_timeout = 1.5
[[l2_adapter]]
type = "fs"
base_path = "{}"
[l2_adapter.eviction]
eviction_policy = "LRU"
"#,
        dir.display()
    );
    let config = place.file("ondol.toml", file.as_bytes());
    let mut server = place.serve_with(&["--config", config.to_str().unwrap()]);
    assert!(dir.is_dir());
    assert_eq!(server.end(Signal::TERM).code(), Some(0));

    let mut command = place.ondol(&["serve", "--config", config.to_str().unwrap()]);
    command.env(
        "ONDOL_L2_ADAPTER",
        r#"[{"type":"memory","num_workers":1},{"type":"memory"}]"#,
    );
    let _server = crate::support::Server::start(&mut command);
    let stats = place.json(&["stat", "--json"]);
    let names: Vec<_> = stats["l2"]["backends"].as_array().unwrap().iter().collect();
    let names: Vec<_> = names
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["memory#0", "memory#1"]);
}

#[test]
fn a_backend_that_is_required_keeps_the_server_from_starting_and_another_is_left_out() {
    let place = Place::new();
    let pool = ["serve", "--pool", "memfd:?size=16MiB", "--l2-adapter"];
    let said = place.run(&[&pool[..], &[r#"{"type":"s3"}"#]].concat());
    said.refused(
        1,
        &[
            "storage backend s3#0: `type` is \"s3\", a type of LMCache that this program does not have",
            "fs (also fs_native)",
        ],
    );
    let mut server = place.serve_with(&[
        "--pool",
        "memfd:?size=16MiB",
        "--l2-adapter",
        r#"{"type":"s3","required":false}"#,
        "--l2-adapter",
        r#"{"type":"memory"}"#,
    ]);
    let stats = place.json(&["stat", "--json"]);
    assert_eq!(stats["l2"]["backends"][0]["name"], "memory#1");
    assert_eq!(server.end(Signal::TERM).code(), Some(0));
}

#[test]
fn adapters_are_listed_with_their_parameters() {
    let place = Place::new();
    let listing = place.json(&["plugins", "--json"]);
    let adapters = listing["adapters"].as_array().unwrap();
    let fs = adapters.iter().find(|row| row["type"] == "fs").unwrap();
    assert_eq!(fs["aliases"], json!(["fs_native"]));
    assert_eq!(fs["package"], "l2-fs");
    let base_path = &fs["parameters"][0];
    assert_eq!(base_path["name"], "base_path");
    assert!(base_path["default"].is_null());
    let text = place.text(&["plugins"]);
    for part in [
        "l2 adapter",
        "parameters of {\"type\":\"memory\"}",
        "(required)",
    ] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
}

/// Arguments for a replay whose working set is much larger than 4 MiB.
fn workload<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let args = [
        "replay",
        "--instances=2",
        "--requests=200",
        "--block-bytes=4KiB",
        "--seed=7",
        "--lockstep",
        "--json",
        "--quiet",
    ];
    [&args[..], more].concat()
}

#[test]
fn a_replay_over_a_small_pool_hits_what_storage_has() {
    let place = Place::new();
    let rate = |figures: &Value| figures["hit_rate"].as_f64().unwrap();
    let alone = place.json(&workload(&["--pool=4MiB"]));
    assert!(alone["l2_hits"].is_null());
    let whole = place.json(&workload(&["--pool=256MiB"]));
    let backend = format!("--l2-adapter={}", fs_backend(&place, json!({})));
    let with = place.json(&workload(&["--pool=4MiB", &backend]));
    assert_eq!(with["verify_failures"], 0);
    assert!(with["l2_stored"].as_u64().unwrap() > 0);
    assert!(with["l2_hits"].as_u64().unwrap() > 0);
    // As good as a pool that everything fits, but for what left before it was stored.
    assert!(
        rate(&with) > rate(&alone) && rate(&with) > 0.9 * rate(&whole),
        "{alone} {with} {whole}"
    );
}

#[test]
fn a_replay_with_storage_goes_on_over_restarts_of_its_server() {
    let place = Place::new();
    let shm = ShmFiles::new("storage");
    let pool = format!("--pool={}", shm.device("4MiB"));
    let backend = format!("--l2-adapter={}", fs_backend(&place, json!({})));
    let args = [
        "replay",
        "--instances=2",
        "--requests=200",
        "--block-bytes=4KiB",
        "--seed=7",
        "--json",
        "--quiet",
        "--restarts=3",
        &pool,
        &backend,
    ];
    let figures = place.json(&args);
    assert_eq!(figures["verify_failures"], 0);
    assert_eq!(figures["restarts"].as_array().unwrap().len(), 3);
}

#[test]
fn a_replay_over_encrypted_and_compressed_storage_reads_what_was_written() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let key = place.file("key", &[9; 32]);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let transforms = json!([{"type": "zstd"}, {"type": "aesgcm", "master_key_path": key}]);
    let backend = fs_backend(&place, json!({"serde": transforms}));
    let backend = format!("--l2-adapter={backend}");
    let figures = place.json(&workload(&["--pool=4MiB", &backend]));
    assert_eq!(figures["verify_failures"], 0);
    assert!(figures["l2_hits"].as_u64().unwrap() > 0);
    assert_eq!(figures["l2_corrupt"], 0);
}

#[cfg(feature = "l2-fault-inject")]
#[test]
fn faults_of_storage_are_counted_and_never_read() {
    let place = Place::new();
    let backend = json!({
        "type": "fault_inject", "seed": 1, "inner": {"type": "memory"},
        "corrupt_rate": 0.1, "short_read_rate": 0.1, "store_error_rate": 0.05,
        "lookup_error_rate": 0.05, "load_error_rate": 0.05,
        "store_hang_rate": 0.01, "lookup_lost_rate": 0.01, "load_lost_rate": 0.01,
    });
    let backend = format!("--l2-adapter={backend}");
    let args = workload(&["--pool=4MiB", "--l2-wait=1", &backend]);
    // It complains of each object.
    let said = place.run(&[&["--log=off"], &args[..]].concat());
    let figures: Value = serde_json::from_str(&said.text()).unwrap();
    assert_eq!(figures["verify_failures"], 0);
    for name in ["l2_hits", "l2_failures", "l2_corrupt"] {
        assert!(figures[name].as_u64().unwrap() > 0, "{name} in {figures}");
    }
}

#[cfg(feature = "connector-example-cpp")]
#[test]
fn a_replay_over_the_connector_in_cpp_hits_what_it_has() {
    let place = Place::new();
    let backend = json!({
        "type": "native_plugin", "module_path": "connector_example_cpp",
        "class_name": "FsConnector", "adapter_params": {"base_path": place.path().join("kv")},
    });
    place.text(&["l2", "check", &backend.to_string()]);
    let backend = format!("--l2-adapter={backend}");
    let figures = place.json(&workload(&["--pool=4MiB", &backend]));
    assert_eq!(figures["verify_failures"], 0);
    assert!(figures["l2_hits"].as_u64().unwrap() > 0);
}
