//! `ondol doctor`, on what real servers leave. Other tests leave things in `/dev/shm` at the same time, so only what
//! belongs to a test's own server is looked at.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Instant;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Place, Said, Server, ShmFiles, WATCHDOG};

/// What the doctor found, and that its exit code says the same.
fn examine(place: &Place, flags: &[&str]) -> Value {
    let args = [&["doctor", "--json"], flags].concat();
    // Of replays only those of this test are looked for.
    let said = Said::of(
        place
            .ondol(&args)
            .env("TMPDIR", place.path())
            .output()
            .unwrap(),
    );
    let report: Value = serde_json::from_slice(&said.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}", said.stderr);
    });
    let sick = findings(&report).any(|found| found["needs_attention"] == true);
    assert_eq!(said.code, Some(sick.into()), "{report:#}");
    report
}

fn findings(report: &Value) -> impl Iterator<Item = &Value> {
    report["findings"].as_array().unwrap().iter()
}

/// The finding that speaks of this path, if there is one.
fn about<'a>(report: &'a Value, path: &Path) -> Option<&'a Value> {
    let path = path.to_str().unwrap();
    findings(report).find(|found| found["what"].as_str().unwrap().contains(path))
}

/// What is said of this test's pool.
fn standing(report: &Value, files: &ShmFiles) -> Value {
    let device = format!("shm:{}", files.path().display());
    let mut left = report["leftovers"].as_array().unwrap().iter();
    let left = left.find(|left| left["device"] == device);
    left.map_or(Value::Null, |left| left["state"].clone())
}

fn serve(place: &Place, files: &ShmFiles) -> Server {
    place.serve_with(&["--pool", &files.device("8MiB")])
}

/// A client that has come and waits for more of its object.
fn waiting_client(place: &Place) -> Child {
    let before = place.json(&["stat", "--json"])["clients"]
        .as_array()
        .unwrap()
        .len();
    let client = place
        .ondol(&["put", "unfinished"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let started = Instant::now();
    while place.json(&["stat", "--json"])["clients"]
        .as_array()
        .unwrap()
        .len()
        == before
    {
        assert!(started.elapsed() < WATCHDOG, "the client does not come");
    }
    client
}

#[test]
fn where_no_server_has_run_there_is_nothing_to_say() {
    let place = Place::new();
    let report = examine(&place, &[]);
    assert_eq!(
        [&report["server"], &report["log"]],
        [&json!("never"), &Value::Null]
    );
    assert!(about(&report, place.path()).is_none());
    assert!(!place.state_dir().exists());
    let said = place.run(&["doctor", "--remove"]);
    said.refused(
        1,
        &["there is no directory", place.state_dir().to_str().unwrap()],
    );
}

#[test]
fn a_running_server_is_shown_and_left_alone() {
    let files = ShmFiles::new("doctor-running");
    let place = Place::new();
    let server = serve(&place, &files);
    place.run_with(&["put", "k"], b"x").text();
    for flags in [&[][..], &["--clean"]] {
        let report = examine(&place, flags);
        assert_eq!(report["server"], "running");
        assert_eq!(report["pid"], server.pid());
        assert_eq!(report["socket"]["stale"], false);
        assert_eq!(report["devices"][0]["state"], "there, 8 MiB");
        assert_eq!(report["log"]["objects"], 1);
        assert_eq!(standing(&report, &files), "living");
        assert!(about(&report, place.path()).is_none(), "{report:#}");
        assert!(about(&report, &files.path()).is_none(), "{report:#}");
    }
    let pid = format!("process {}", server.pid());
    place
        .run(&["doctor", "--remove"])
        .refused(1, &["another server", &pid]);
    assert_eq!(place.text(&["get", "k"]), "x");
}

#[test]
fn what_a_killed_server_left_is_warm_and_cleaning_keeps_it() {
    let files = ShmFiles::new("doctor-killed");
    let place = Place::new();
    let mut server = serve(&place, &files);
    place.run_with(&["put", "k"], b"x").text();
    let mut client = waiting_client(&place);
    server.end(Signal::KILL);
    fs::write(place.state_dir().join("secret.new"), "half").unwrap();
    let stray = place.state_dir().join("leases/999");
    fs::write(&stray, "").unwrap();

    let report = examine(&place, &[]);
    assert_eq!(
        [&report["server"], &report["log"]["clean"]],
        [&json!("stopped"), &json!(false)]
    );
    assert_eq!(standing(&report, &files), "warm");
    assert!(about(&report, &files.path()).is_none(), "{report:#}");
    let clients = report["clients"].as_array().unwrap();
    let known = clients
        .iter()
        .find(|known| known["pid"] == client.id())
        .unwrap();
    assert_eq!(
        [&known["state"], &known["book"]],
        [&json!("alive"), &json!(true)]
    );
    let leftovers = [place.socket(), place.state_dir().join("secret.new"), stray];
    for left in &leftovers {
        let found = about(&report, left).unwrap_or_else(|| panic!("{left:?} in {report:#}"));
        assert_eq!(found["needs_attention"], false);
        assert!(left.exists());
    }

    let report = examine(&place, &["--clean"]);
    for left in &leftovers {
        assert!(!left.exists(), "{left:?}");
        let removed = report["removed"].as_array().unwrap();
        assert!(removed.contains(&json!(left)), "{report:#}");
    }
    assert_eq!(standing(&report, &files), "warm");
    drop(client.stdin.take());
    let _ = client.kill();
    client.wait().unwrap();
    let report = examine(&place, &[]);
    let clients = report["clients"].as_array().unwrap();
    assert!(
        clients.iter().all(|known| known["state"] == "dead"),
        "{report:#}"
    );

    let server = serve(&place, &files);
    assert_eq!(server.ready_with("start"), "warm");
    assert_eq!(place.text(&["get", "k"]), "x");
}

#[test]
fn a_pool_that_nobody_will_come_back_for_is_an_orphan_and_goes() {
    let files = ShmFiles::new("doctor-orphan");
    let place = Place::new();
    let mut server = serve(&place, &files);
    server.end(Signal::KILL);
    fs::remove_dir_all(place.state_dir()).unwrap();
    let report = examine(&place, &[]);
    assert_eq!(standing(&report, &files), "orphan");
    assert_eq!(
        about(&report, &files.path()).unwrap()["needs_attention"],
        true
    );
    assert!(files.path().exists());

    let report = examine(&place, &["--clean"]);
    assert!(about(&report, &files.path()).is_none());
    assert!(!files.path().exists());
    assert_eq!(standing(&examine(&place, &[]), &files), Value::Null);
}

#[test]
fn a_pool_is_given_up_with_its_log_and_only_then() {
    let files = ShmFiles::new("doctor-remove");
    let place = Place::new();
    let dir = place.path().join("regions");
    fs::create_dir(&dir).unwrap();
    let kept = dir.join("of somebody else");
    fs::write(&kept, "").unwrap();
    let second = format!("dir:{}?size=4MiB&region=2MiB", dir.display());
    let flags = ["--pool", &files.device("8MiB"), "--pool", &second];
    let mut server = place.serve_with(&flags);
    place.run_with(&["put", "k"], b"x").text();
    server.end(Signal::TERM);

    let text = Said::of(
        place
            .ondol(&["doctor", "--remove"])
            .env("TMPDIR", place.path())
            .output()
            .unwrap(),
    );
    let text = String::from_utf8(text.stdout).unwrap();
    let log = place.state_dir().join("log");
    for path in [&log, &files.path(), &dir] {
        let line = format!("removed {}", path.display());
        assert!(text.contains(&line), "{line:?} in {text}");
    }
    assert!(!log.exists() && !files.path().exists());
    let left: Vec<_> = fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(left, [kept]);

    let server = place.serve_with(&flags);
    assert_eq!(server.ready_with("start"), "empty");
}

#[test]
fn what_keeps_a_server_from_starting_needs_attention() {
    let files = ShmFiles::new("doctor-sick");
    let place = Place::new();
    serve(&place, &files).end(Signal::TERM);
    let report = examine(&place, &[]);
    assert_eq!(report["log"]["clean"], true);
    assert!(
        findings(&report).all(
            |found| found["needs_attention"] == false || about(&report, place.path()).is_none()
        )
    );

    let moved = files.path().with_extension("moved");
    fs::rename(files.path(), &moved).unwrap();
    let report = examine(&place, &[]);
    assert_eq!(report["devices"][0]["state"], "gone");
    let found = findings(&report).find(|found| {
        found["what"]
            .as_str()
            .unwrap()
            .contains(&files.device("8MiB"))
    });
    assert!(
        found.unwrap()["remedy"]
            .as_str()
            .unwrap()
            .contains("--fresh")
    );
    fs::rename(&moved, files.path()).unwrap();

    let log = place.state_dir().join("log");
    for entry in fs::read_dir(&log).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "image") {
            let mut bytes = fs::read(&path).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            fs::write(&path, bytes).unwrap();
        }
    }
    let report = examine(&place, &[]);
    assert!(report["log_error"].is_string());
    let found = about(&report, &log).unwrap();
    assert_eq!(found["needs_attention"], true);
    place
        .run(&["serve", "--pool", &files.device("8MiB")])
        .refused(1, &["--fresh"]);
}

#[test]
fn directories_of_killed_replays_are_found_and_removed() {
    let place = Place::new();
    let mut replay = place
        .ondol(&[
            "replay",
            "--requests",
            "1000000",
            "--quiet",
            "--pool",
            "memfd:?size=64MiB",
        ])
        .env("TMPDIR", place.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let find = || {
        let mut entries = fs::read_dir(place.path())
            .unwrap()
            .map(|entry| entry.unwrap().path());
        entries.find(|path| path.join("ondol.sock").exists())
    };
    let started = Instant::now();
    let dir = loop {
        if let Some(dir) = find() {
            break dir;
        }
        assert!(started.elapsed() < WATCHDOG, "the replay does not begin");
    };
    assert!(about(&examine(&place, &["--clean"]), &dir).is_none());
    assert!(dir.exists());
    replay.kill().unwrap();
    replay.wait().unwrap();
    assert_eq!(
        about(&examine(&place, &[]), &dir).unwrap()["needs_attention"],
        true
    );
    let report = examine(&place, &["--clean"]);
    assert!(about(&report, &dir).is_none());
    assert!(!dir.exists());
}
