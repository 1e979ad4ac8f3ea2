//! `ondol doctor`, on what real servers leave. Other tests leave things in `/dev/shm` at the same time, so only what
//! belongs to a test's own server is looked at.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Instant;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
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

fn serve_and_end(place: &Place, flags: &[&str]) {
    let mut server = place.serve_with(flags);
    place.run_with(&["put", "k"], b"x").text();
    server.end(Signal::TERM);
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
    // Unless somebody says that there must be one.
    let elsewhere = place.path().join("mistyped");
    let report = examine(&place, &["--state-dir", elsewhere.to_str().unwrap()]);
    assert_eq!(about(&report, &elsewhere).unwrap()["needs_attention"], true);
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
fn a_pool_whose_owner_file_is_gone_is_told_from_one_that_is_gone_and_goes_with_its_log() {
    let files = ShmFiles::new("doctor-stray");
    let place = Place::new();
    let dir = place.path().join("regions");
    fs::create_dir(&dir).unwrap();
    let second = format!("dir:{}?size=4MiB&region=2MiB", dir.display());
    let flags = ["--pool", &files.device("8MiB"), "--pool", &second];
    serve_and_end(&place, &flags);
    let owners = [
        PathBuf::from(format!("{}.owner", files.path().display())),
        dir.join("ondol.owner"),
    ];
    for owner in &owners {
        fs::remove_file(owner).unwrap();
    }
    let foreign = dir.join("ondol-000007.region");
    fs::write(&foreign, "not the pool's").unwrap();

    let report = examine(&place, &[]);
    for (device, owner) in owners.iter().enumerate() {
        let state = format!("there, but its owner file {} is gone", owner.display());
        assert_eq!(report["devices"][device]["state"], state);
        let found = about(&report, owner).unwrap();
        assert_eq!(found["needs_attention"], true);
        let remedy = found["remedy"].as_str().unwrap();
        assert!(remedy.contains("--remove"), "{remedy}");
    }
    assert!(files.path().exists());

    let report = examine(&place, &["--remove"]);
    for device in [&files.path(), &dir] {
        let removed = report["removed"].as_array().unwrap().iter();
        let said = removed.filter(|said| said.as_str().unwrap().contains(device.to_str().unwrap()));
        assert_eq!(said.count(), 1, "{report:#}");
    }
    assert!(!files.path().exists());
    let left: Vec<_> = fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(left, [foreign]);
}

#[test]
fn another_file_under_the_name_of_a_pool_without_owner_file_is_left_alone() {
    let files = ShmFiles::new("doctor-other");
    let place = Place::new();
    serve_and_end(&place, &["--pool", &files.device("8MiB")]);
    fs::remove_file(format!("{}.owner", files.path().display())).unwrap();
    // As long as the pool, so that its inode alone tells.
    let other = files.path().with_extension("other");
    fs::File::create(&other).unwrap().set_len(8 << 20).unwrap();
    fs::rename(&other, files.path()).unwrap();
    assert_eq!(examine(&place, &[])["devices"][0]["state"], "gone");
    examine(&place, &["--remove"]);
    assert!(files.path().exists());
    assert!(!place.state_dir().join("log").exists());
}

#[test]
fn lease_book_and_slot_table_of_a_living_client_are_asked_for() {
    let files = ShmFiles::new("doctor-book");
    let place = Place::new();
    let mut server = serve(&place, &files);
    let mut client = waiting_client(&place);
    server.end(Signal::KILL);
    let report = examine(&place, &[]);
    let known = report["clients"].as_array().unwrap().iter();
    let mut known = known.filter(|known| known["pid"] == client.id());
    let id = known.next_back().unwrap()["id"].as_u64().unwrap();
    // An empty directory would be that of a server that knew no slot tables.
    fs::write(place.state_dir().join("slots/notes"), "somebody's").unwrap();
    let needed = ["leases", "slots"].map(|kind| place.state_dir().join(kind).join(id.to_string()));
    for file in &needed {
        assert!(about(&report, file).is_none(), "{report:#}");
        let whole = fs::read(file).unwrap();
        let damages: [&dyn Fn(); 3] = [
            &|| fs::remove_file(file).unwrap(),
            &|| fs::write(file, &whole[..whole.len() / 2]).unwrap(),
            &|| fs::write(file, [&[0; 64], &whole[64..]].concat()).unwrap(),
        ];
        for damage in damages {
            damage();
            let report = examine(&place, &[]);
            let found = about(&report, file).unwrap_or_else(|| panic!("{report:#}"));
            assert_eq!(found["needs_attention"], true);
            let remedy = found["remedy"].as_str().unwrap();
            assert!(remedy.contains("end that process"), "{remedy}");
            place
                .run(&["serve", "--pool", &files.device("8MiB")])
                .refused(1, &["may still read the pool", file.to_str().unwrap()]);
        }
        fs::write(file, &whole).unwrap();
        assert!(about(&examine(&place, &[]), file).is_none());
    }
    fs::remove_file(&needed[0]).unwrap();
    client.kill().unwrap();
    client.wait().unwrap();
    assert!(about(&examine(&place, &[]), &needed[0]).is_none());
    let server = serve(&place, &files);
    assert_eq!(server.ready_with("start"), "warm");
}

#[test]
fn what_is_not_ondols_is_left_alone_and_named_where_a_server_would_not_start() {
    let files = ShmFiles::new("doctor-foreign");
    let place = Place::new();
    serve_and_end(&place, &["--pool", &files.device("8MiB")]);
    let state = place.state_dir();
    let strangers = ["leases/notes", "slots/notes", "log/notes"].map(|name| state.join(name));
    for stranger in &strangers {
        fs::write(stranger, "somebody's").unwrap();
    }
    examine(&place, &["--clean"]);
    assert!(strangers.iter().all(|stranger| stranger.exists()));

    let elsewhere = place.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let names = ["1", "notes", "pool.json"];
    for name in names {
        fs::write(elsewhere.join(name), "somebody's").unwrap();
    }
    for name in ["leases", "slots", "log"] {
        let (link, aside) = (state.join(name), place.path().join(name));
        fs::rename(&link, &aside).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
        for flags in [&[][..], &["--clean"]] {
            let report = examine(&place, flags);
            assert_eq!(about(&report, &link).unwrap()["needs_attention"], true);
        }
        let said = place.run(&["doctor", "--remove"]);
        said.refused(1, &["cannot use", link.to_str().unwrap()]);
        assert!(names.iter().all(|name| elsewhere.join(name).exists()));
        fs::remove_file(&link).unwrap();
        fs::rename(&aside, &link).unwrap();
    }

    for name in ["ondol.sock", "lock"] {
        let path = state.join(name);
        let _ = fs::remove_file(&path);
        match name {
            "lock" => fs::create_dir(&path).unwrap(),
            _ => fs::write(&path, "").unwrap(),
        }
        let report = examine(&place, &[]);
        assert_eq!(about(&report, &path).unwrap()["needs_attention"], true);
        match name {
            "lock" => fs::remove_dir(&path).unwrap(),
            _ => fs::remove_file(&path).unwrap(),
        }
    }

    examine(&place, &["--remove"]);
    assert!(strangers.iter().all(|stranger| stranger.exists()));
    assert!(!files.path().exists());
}

#[test]
fn a_disk_without_room_for_the_log_needs_attention() {
    let files = ShmFiles::new("doctor-disk");
    let place = Place::new();
    let root = place.path().join("small");
    fs::create_dir(&root).unwrap();
    let flags = MountFlags::empty();
    if let Err(error) = mount("tmpfs", &root, "tmpfs", flags, Some(c"size=8M,mode=0700")) {
        println!("SKIPPED: no file system can be mounted here: {error}");
        return;
    }
    let _mounted = Mounted(root.clone());
    let state = root.join("state");
    let state_flags = ["--state-dir", state.to_str().unwrap()];
    let pool = files.device("8MiB");
    let serve = ["--pool", &pool, "--log-segment", "1MiB"];
    place
        .serve_with(&[&serve[..], &state_flags].concat())
        .end(Signal::TERM);
    let log = state.join("log");
    assert!(about(&examine(&place, &state_flags), &log).is_none());
    let ballast = fs::File::create(root.join("ballast")).unwrap();
    let room = 512 << 10;
    let free = |disk: rustix::fs::StatVfs| disk.f_bfree * disk.f_frsize;
    let left = free(rustix::fs::statvfs(&root).unwrap());
    std::io::copy(
        &mut std::io::Read::take(std::io::repeat(0), left - room),
        &mut &ballast,
    )
    .unwrap();
    let report = examine(&place, &state_flags);
    let found = about(&report, &log).unwrap_or_else(|| panic!("{report:#}"));
    assert_eq!(found["needs_attention"], true);
    assert!(found["remedy"].as_str().unwrap().contains("make room"));
}

/// A file system that goes with the test.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
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
