use std::fs;
use std::path::Path;

use rustix::process::Signal;

use crate::support::Place;

/// Removes the files of a `shm:` device, whatever becomes of the test.
struct ShmFiles(String);

impl ShmFiles {
    fn new(test: &str) -> Self {
        Self(format!("ondol-commands-{test}-{}", std::process::id()))
    }

    fn path(&self) -> std::path::PathBuf {
        Path::new("/dev/shm").join(&self.0)
    }
}

impl Drop for ShmFiles {
    fn drop(&mut self) {
        let entries = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name();
            if name
                .to_string_lossy()
                .trim_start_matches('.')
                .starts_with(&self.0)
            {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

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
        "policy=\"lru\"",
    ] {
        assert!(line.contains(part), "{part:?} in {line}");
    }
}

#[test]
fn a_signal_ends_the_server_cleanly() {
    let place = Place::new();
    for signal in [Signal::TERM, Signal::INT] {
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
    let device = format!("shm:{}?size=8MiB", files.0);
    let place = Place::new();
    let said = place.run(&[
        "serve",
        "--pool",
        &device,
        "--socket",
        "/nonexistent/ondol.sock",
    ]);
    said.refused(1, &["cannot bind the socket", "/nonexistent/ondol.sock"]);
    assert_eq!(
        said.stderr.matches("No such file").count(),
        1,
        "{}",
        said.stderr
    );
    assert!(!files.path().exists());
}

#[test]
fn the_file_of_a_pool_outlives_its_server_and_is_the_next_ones() {
    let files = ShmFiles::new("outlive");
    let device = format!("shm:{}?size=8MiB", files.0);
    let place = Place::new();
    let flags = ["--pool", &device];
    let mut server = place.serve_with(&flags);
    place.run_with(&["put", "k"], b"x").text();

    let first = server.pid().to_string();
    let said = place.run(&["serve", "--pool", &device, "--state-dir", "other"]);
    said.refused(1, &["cannot open the pool (--pool)", &files.0, &first]);

    server.end(Signal::TERM);
    assert_eq!(fs::metadata(files.path()).unwrap().len(), 8 << 20);
    let _next = place.serve_with(&flags);
    place
        .run(&["get", "k"])
        .refused(1, &["there is no object k"]);
    place.run_with(&["put", "k"], b"y").text();
}
