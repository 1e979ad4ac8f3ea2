use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

use rustix::process::Signal;

use crate::support::{Place, Server, ShmFiles};

#[test]
fn a_ready_server_says_where_and_with_what() {
    let place = Place::new();
    let server = place.serve();
    let line = server.ready_line();
    let socket = format!("socket={}", place.socket().display());
    let pid = format!("pid={}", server.pid());
    for part in [
        socket.as_str(),
        pid.as_str(),
        "pool=\"16 MiB\"",
        "policy=\"arc\"",
    ] {
        assert!(line.contains(part), "{part:?} in {line}");
    }
}

#[test]
fn a_signal_ends_the_server_cleanly() {
    let place = Place::new();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut server = place.serve();
        place.run_with(&["put", "k"], b"x").text();
        assert!(place.socket().exists());
        let status = server.end(signal);
        assert_eq!(status.code(), Some(0));
        assert!(!place.socket().exists());
        server.wait_for("stopped");
    }
}

#[test]
fn without_a_server_it_is_said_how_to_start_one() {
    let place = Place::new();
    let socket = place.socket();
    for args in [
        &["get", "k"][..],
        &["put", "k"],
        &["ls"],
        &["rm", "k"],
        &["stat"],
    ] {
        place
            .run(args)
            .refused(1, &["ondol serve", socket.to_str().unwrap(), "--socket"]);
    }
    let mut server = place.serve();
    server.end(Signal::TERM);
    place.run(&["stat"]).refused(1, &["ondol serve"]);
}

#[test]
fn a_second_server_is_refused_with_the_first_ones_process() {
    let place = Place::new();
    let server = place.serve();
    let first = format!("process {}", server.pid());
    let state_dir = place.state_dir();
    let said = place.run(&["serve", "--pool", "memfd:?size=16MiB"]);
    said.refused(1, &["another server", &first, state_dir.to_str().unwrap()]);

    // Another state directory does not give it the first one's socket.
    let socket = place.socket();
    let said = place.run(&[
        "serve",
        "--pool",
        "memfd:?size=16MiB",
        "--state-dir",
        "other",
        "--socket",
        socket.to_str().unwrap(),
    ]);
    said.refused(1, &["another server", &first, socket.to_str().unwrap()]);
    assert_eq!(place.text(&["ls"]).lines().count(), 1);
}

#[test]
fn a_killed_server_does_not_keep_the_next_from_starting() {
    let place = Place::new();
    let mut server = place.serve();
    server.end(Signal::KILL);
    assert!(place.socket().exists());
    let _next = place.serve();
    place.run_with(&["put", "k"], b"x").text();
}

#[test]
fn a_server_that_cannot_open_its_socket_leaves_no_pool_behind() {
    let files = ShmFiles::new("stillborn");
    let device = files.device("8MiB");
    let place = Place::new();
    let said = place.run(&[
        "serve",
        "--pool",
        &device,
        "--socket",
        "/nonexistent/ondol.sock",
    ]);
    said.refused(1, &["cannot lock the socket's directory /nonexistent"]);
    assert_eq!(
        said.stderr.matches("No such file").count(),
        1,
        "{}",
        said.stderr
    );
    assert!(!files.path().exists());
}

#[test]
fn the_pool_of_a_living_server_is_not_for_another_one() {
    let files = ShmFiles::new("living");
    let device = files.device("8MiB");
    let place = Place::new();
    let server = place.serve_with(&["--pool", &device]);
    let first = server.pid().to_string();
    for fresh in [&[][..], &["--fresh"]] {
        let flags = ["serve", "--pool", &device, "--state-dir", "other"];
        let said = place.run(&[&flags, fresh].concat());
        let name = files.path();
        said.refused(
            1,
            &[
                "cannot open the pool (--pool)",
                name.to_str().unwrap(),
                &first,
            ],
        );
    }
    place.run_with(&["put", "k"], b"x").text();
}

#[test]
fn however_a_server_ends_the_next_one_has_its_objects() {
    let files = ShmFiles::new("warm");
    let device = files.device("8MiB");
    let place = Place::new();
    let signals = [
        Signal::TERM,
        Signal::KILL,
        Signal::INT,
        Signal::KILL,
        Signal::HUP,
    ];
    for (stored, signal) in signals.into_iter().enumerate() {
        let mut server = place.serve_with(&["--pool", &device]);
        let start = if stored == 0 { "empty" } else { "warm" };
        assert_eq!(server.ready_with("start"), start);
        assert_eq!(server.ready_with("objects"), stored.to_string());
        for key in 0..stored {
            let key = key.to_string();
            assert_eq!(place.text(&["get", &key]), format!("the object {key}"));
        }
        let object = format!("the object {stored}");
        let put = place.run_with(&["put", &stored.to_string()], object.as_bytes());
        put.text();
        server.end(signal);
    }
    assert_eq!(fs::metadata(files.path()).unwrap().len(), 8 << 20);
}

#[test]
fn a_fresh_start_is_empty_and_shrinks_no_file_of_the_last_run() {
    let files = ShmFiles::new("fresh");
    let place = Place::new();
    let mut server = place.serve_with(&["--pool", &files.device("8MiB")]);
    place.run_with(&["put", "k"], b"x").text();
    server.end(Signal::KILL);
    let old = fs::File::open(files.path()).unwrap();

    // Another size is another pool, which is refused unless the old one is given up.
    let larger = files.device("12MiB");
    place
        .run(&["serve", "--pool", &larger])
        .refused(1, &["cannot open the pool", "--fresh"]);
    let mut server = place.serve_with(&["--pool", &larger, "--fresh"]);
    assert_eq!(server.ready_with("start"), "empty");
    place
        .run(&["get", "k"])
        .refused(1, &["there is no object k"]);
    let kept = old.metadata().unwrap();
    assert_eq!((kept.len(), kept.nlink()), (8 << 20, 0));
    assert_ne!(kept.ino(), fs::metadata(files.path()).unwrap().ino());
    server.end(Signal::TERM);

    let file = place.file("fresh.toml", b"fresh = true");
    let server = place.serve_with(&["--pool", &larger, "--config", file.to_str().unwrap()]);
    assert_eq!(server.ready_with("start"), "empty");
}

#[test]
fn what_is_lost_or_damaged_is_said_with_the_way_out_and_never_an_empty_pool() {
    let files = ShmFiles::new("lost");
    let device = files.device("8MiB");
    let place = Place::new();
    let serve = ["serve", "--pool", &device];
    let stop = |mut server: Server| server.end(Signal::TERM);
    stop(place.serve_with(&["--pool", &device]));

    let name = files.path();
    let elsewhere = name.with_extension("moved");
    fs::rename(&name, &elsewhere).unwrap();
    place
        .run(&serve)
        .refused(1, &[name.to_str().unwrap(), "--fresh"]);
    fs::rename(&elsewhere, &name).unwrap();
    stop(place.serve_with(&["--pool", &device]));

    let log = place.state_dir().join("log");
    let checkpoint = fs::read_dir(&log)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with("checkpoint-")
        });
    let checkpoint = checkpoint.unwrap();
    let mut bytes = fs::read(&checkpoint).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    // Every checkpoint: an older one would do as well.
    fs::write(&checkpoint, &bytes).unwrap();
    let said = place.run(&serve);
    said.refused(
        1,
        &[
            "the log is damaged",
            checkpoint.to_str().unwrap(),
            "--fresh",
        ],
    );
    assert_eq!(
        said.stderr.matches("the log is damaged").count(),
        1,
        "{}",
        said.stderr
    );
    stop(place.serve_with(&["--pool", &device, "--fresh"]));
}

#[test]
fn a_signal_at_any_moment_of_a_start_leaves_what_the_next_one_can_use() {
    let files = ShmFiles::new("early");
    let device = files.device("64MiB");
    let place = Place::new();
    for round in 0..12_u64 {
        let mut command = place.ondol(&["serve", "--pool", &device]);
        if round % 4 == 3 {
            command.arg("--fresh");
        }
        let mut server = Server::spawn(&mut command);
        std::thread::sleep(Duration::from_millis(7 * round));
        let signal = if round % 3 == 0 {
            Signal::KILL
        } else {
            Signal::TERM
        };
        let status = server.end(signal);
        // Before the handler is there the signal ends it.
        assert!(
            signal == Signal::KILL || matches!(status.code(), Some(0) | None),
            "{status}"
        );
    }
    let mut server = place.serve_with(&["--pool", &device]);
    place.run_with(&["put", "k"], b"x").text();
    server.end(Signal::KILL);
    let _server = place.serve_with(&["--pool", &device]);
    assert_eq!(place.text(&["get", "k"]), "x");
    let left = fs::read_dir("/dev/shm").unwrap().filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_string_lossy().contains("ondol-commands-early")
    });
    assert_eq!(left.count(), 2, "the pool and its lock file");
}

#[test]
fn a_group_gets_socket_and_pool() {
    let files = ShmFiles::new("group");
    let place = Place::new();
    let gid = rustix::process::getegid().as_raw();
    let mut server =
        place.serve_with(&["--pool", &files.device("8MiB"), "--group", &gid.to_string()]);
    for path in [place.socket(), files.path()] {
        let found = fs::metadata(&path).unwrap();
        let mode = found.permissions().mode() & 0o777;
        assert_eq!((mode, found.gid()), (0o660, gid), "{}", path.display());
    }
    server.end(Signal::TERM);
    let flags = [
        "--pool",
        &files.device("8MiB"),
        "--fresh",
        "--pool-mode",
        "0640",
        "--socket-mode",
        "0600",
    ];
    let _server = place.serve_with(&flags);
    for (path, mode) in [(place.socket(), 0o600), (files.path(), 0o640)] {
        let found = fs::metadata(&path).unwrap();
        assert_eq!(
            found.permissions().mode() & 0o777,
            mode,
            "{}",
            path.display()
        );
    }
}

#[test]
fn durability_that_memory_cannot_keep_is_warned_of() {
    let place = Place::new();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let state = memory.path().to_str().unwrap();
    let flags = [
        "serve",
        "--pool",
        "memfd:?size=8MiB",
        "--durability",
        "fsync",
        "--state-dir",
        state,
    ];
    let mut server = Server::spawn(&mut place.ondol(&flags));
    server.wait_for("the state directory, where the log lies, is memory");
    server.wait_for("the bytes of this device are gone after a reboot");
    server.wait_for(" ready ");
    server.end(Signal::TERM);
}
