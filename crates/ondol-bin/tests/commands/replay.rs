use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{Place, Said, ShmFiles, WATCHDOG};

/// Arguments for a workload of small blocks from three processes.
fn small<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let args = [
        "replay",
        "--instances=3",
        "--block-bytes=4KiB",
        "--json",
        "--quiet",
        "--seed=7",
    ];
    [&args[..], more].concat()
}

/// More requests than are replayed before a test has done what it wants.
const MANY: &str = "--requests=40000";

/// The command, with a directory of its own for temporary files, which must be empty at the end.
fn replay(place: &Place, args: &[&str]) -> (Command, PathBuf) {
    let temporary = place.path().join("tmp");
    fs::create_dir_all(&temporary).unwrap();
    let mut command = place.ondol(args);
    command.env("TMPDIR", &temporary);
    (command, temporary)
}

fn run(place: &Place, args: &[&str]) -> Said {
    let (mut command, temporary) = replay(place, args);
    let said = Said::of(command.output().unwrap());
    assert_empty(&temporary);
    said
}

fn assert_empty(dir: &Path) {
    let left: Vec<_> = fs::read_dir(dir).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

fn number(figures: &Value, name: &str) -> u64 {
    let found = figures[name].as_u64();
    found.unwrap_or_else(|| panic!("{name} in {figures}"))
}

/// Checks what holds for all figures of a replay.
#[track_caller]
fn assert_adds_up(figures: &Value) {
    let of = |name| number(figures, name);
    assert_eq!(of("verify_failures"), 0);
    let written = of("stored") + of("already_present");
    assert_eq!(
        of("blocks"),
        of("block_hits") + written + of("alloc_failures") + of("duplicates")
    );
    let block_bytes = of("block_bytes");
    assert_eq!(of("bytes_read"), of("block_hits") * block_bytes);
    assert_eq!(of("bytes_verified"), 2 * of("bytes_read"));
    if of("repeated_calls") == 0 {
        assert_eq!(of("bytes_written"), written * block_bytes);
    } else {
        // What was not stored for certain was written again.
        assert!(of("bytes_written") >= written * block_bytes);
    }
    let hit_rate = of("block_hits") as f64 / of("blocks") as f64;
    assert!((figures["hit_rate"].as_f64().unwrap() - hit_rate).abs() < 1e-9);
    for (operation, count) in [
        ("match_prefix", of("requests")),
        ("verify", 2 * of("block_hits")),
    ] {
        let operation = &figures["operations"][operation];
        assert_eq!(number(operation, "count"), count);
        let [p50, p99] = ["p50_us", "p99_us"].map(|name| operation[name].as_f64().unwrap());
        assert!(0.0 < p50 && p50 <= p99, "{operation}");
    }
    for (rate, bytes) in [("read_gbps", "bytes_read"), ("write_gbps", "bytes_written")] {
        let rate = figures[rate].as_f64().unwrap();
        assert_eq!(rate > 0.0, of(bytes) > 0, "{rate} for {bytes}");
    }
    assert!(figures["seconds"].as_f64().unwrap() > 0.0);
}

fn figures(said: Said) -> Value {
    let figures = serde_json::from_str(&said.text()).unwrap();
    assert_adds_up(&figures);
    figures
}

#[test]
fn instances_read_what_others_wrote() {
    let place = Place::new();
    let args = small(&["--requests=300", "--pool=64MiB"]);
    let first = figures(run(&place, &args));
    assert_eq!(number(&first, "requests"), 300);
    assert_eq!(number(&first, "instances"), 3);
    assert_eq!(number(&first, "pool_bytes"), 64 << 20);
    assert_eq!(first["policy"], "arc");
    assert!(number(&first, "block_hits") > 0);
    assert_eq!(number(&first, "evictions"), 0);
    assert_eq!(number(&first, "alloc_failures"), 0);

    // The same seed is the same workload, whoever was faster.
    let second = figures(run(&place, &args));
    assert_eq!(second["blocks"], first["blocks"]);

    // One after another, the same blocks hit.
    let in_step = [&args[..], &["--lockstep"]].concat();
    let [third, fourth] = [(); 2].map(|()| figures(run(&place, &in_step)));
    for name in ["blocks", "block_hits", "stored", "requests_fully_served"] {
        assert_eq!(third[name], fourth[name], "{name}");
    }
    assert_eq!(third["blocks"], first["blocks"]);
    assert_eq!(number(&third, "already_present"), 0);
}

#[test]
fn a_pool_smaller_than_the_working_set_evicts_and_stays_right() {
    let place = Place::new();
    let args = small(&["--requests=300", "--pool=4MiB", "--hold=0.6"]);
    let evicting = figures(run(&place, &args));
    assert!(number(&evicting, "evictions") > 0);
    assert!(number(&evicting, "block_hits") > 0);
    assert_eq!(number(&evicting, "pool_bytes"), 4 << 20);
}

#[test]
fn the_figures_are_for_people_too() {
    let place = Place::new();
    let said = run(&place, &["replay", "--requests=50", "--pool=64MiB"]);
    let text = said.text();
    for part in [
        "seed-42: 50 requests",
        "from 1 instance;",
        "pool of 64 MiB (arc)",
        "verify failures",
        "GB/s",
    ] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
}

#[test]
fn a_trace_is_replayed_and_what_is_wrong_in_it_is_named() {
    let place = Place::new();
    let line = |ids: &str| {
        format!(
            "{{\"timestamp\": 1, \"input_length\": 900, \"output_length\": 1, \"hash_ids\": {ids}, \"more\": {{}}}}\n"
        )
    };
    let text = [line("[1, 2]"), line("[1, 2, 3]"), line("[1, 2]")].concat();
    place.file("good.jsonl", text.as_bytes());
    place.file(
        "bad.jsonl",
        format!("{text}{}", line("[1, \"2\"]")).as_bytes(),
    );

    let args = ["replay", "--json", "--pool=16MiB", "--trace"];
    let replayed = figures(run(&place, &[&args[..], &["good.jsonl"]].concat()));
    for (name, value) in [
        ("requests", 3),
        ("blocks", 7),
        ("block_hits", 4),
        ("stored", 3),
        ("requests_fully_served", 1),
        ("bytes_written", 3 * 65_536),
    ] {
        assert_eq!(number(&replayed, name), value, "{name}");
    }
    run(&place, &[&args[..], &["bad.jsonl"]].concat())
        .refused(1, &["bad.jsonl", "line 4", "hash_ids[1]", "\"2\""]);
    // What is not replayed is not read.
    figures(run(
        &place,
        &[&args[..], &["bad.jsonl", "--requests=3"]].concat(),
    ));
    run(&place, &[&args[..], &["no.jsonl"]].concat()).refused(1, &["no.jsonl", "No such file"]);
}

#[test]
fn what_cannot_be_is_refused() {
    let place = Place::new();
    for (arg, parts) in [
        ("--pool=much", ["much", "2GiB"]),
        ("--pool=0", ["--pool", "0 bytes"]),
        ("--block-bytes=63", ["63 bytes", "64"]),
        ("--hold=2", ["--hold", "from 0 to 1"]),
        ("--instances=0", ["--instances", "1..=512"]),
        ("--requests=0", ["--requests", "1..="]),
    ] {
        run(&place, &["replay", arg]).refused(2, &parts);
    }
    for option in ["--pool=1MiB", "--policy=lru"] {
        run(&place, &["replay", "--socket=s", option]).refused(2, &["cannot be used with"]);
    }
    run(&place, &["replay", "--pool=16MiB", "--policy=fifo"]).refused(1, &["fifo", "lru"]);
    run(&place, &["replay", "--pool=100TiB"]).refused(1, &["100 TiB", "choose a smaller size"]);
    let said = run(&place, &["replay", "--pool=4MiB", "--block-bytes=8MiB"]);
    said.refused(1, &["--block-bytes is 8388608", "4194304"]);
    // Not even a table of nothing.
    assert!(said.stdout.is_empty());
    run(&place, &["replay", "--socket=s", "--restarts=1"]).refused(2, &["cannot be used with"]);
    run(&place, &["replay", "--restarts=5", "--requests=5"]).refused(1, &["--restarts is 5"]);
    run(
        &place,
        &["replay", "--restarts=1", "--pool=memfd:?size=4MiB"],
    )
    .refused(1, &["gone with the server", "shm:"]);
    run(
        &place,
        &["replay", "--restarts=1", "--pool=16MiB", "--policy=fifo"],
    )
    .refused(1, &["the server ended with"]);
    run(&place, &["replay", "--socket=s"]).refused(1, &["ondol serve"]);
}

#[test]
fn a_running_server_keeps_what_was_replayed() {
    let place = Place::new();
    let mut server = place.serve();
    let socket = place.socket();
    let socket = ["--socket", socket.to_str().unwrap()];
    let all = [
        &["replay", "--block-bytes=4KiB", "--instances=2", "--json"],
        &socket[..],
    ]
    .concat();
    let args = [&all[..], &["--requests=30"]].concat();
    let first = figures(run(&place, &args));
    assert!(number(&first, "stored") > 0);
    let second = figures(run(&place, &args));
    assert_eq!(number(&second, "block_hits"), number(&first, "blocks"));
    assert_eq!(number(&second, "requests_fully_served"), 30);
    let clients = &place.json(&["stat", "--json"])["clients"];
    let replays = clients.as_array().unwrap().len();
    assert!(replays <= 1, "{clients}");

    // Something else under the name of a block.
    place.text(&["rm", "replay/seed-42/4096/0"]);
    place
        .run_with(&["put", "replay/seed-42/4096/0"], &[7; 4096])
        .text();
    let said = run(&place, &[&args[..], &["--quiet"]].concat());
    let damaged: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert!(number(&damaged, "verify_failures") > 0);
    said.refused(1, &["replay/seed-42/4096/0", "magic", "did not hold"]);

    let (mut command, _) = replay(&place, &[&all[..], &[MANY, "--patience=1"]].concat());
    let mut replaying = Running::start(&mut command);
    replaying.wait_until("a block is stored", || {
        // Besides the one that asks.
        let clients = &place.json(&["stat", "--json"])["clients"];
        clients.as_array().unwrap().len() > 2
    });
    server.end(Signal::KILL);
    replaying.end().refused(
        1,
        &["instance 0: ", "in vain for 1 s", "figures are missing"],
    );
}

#[test]
fn a_block_that_a_request_names_twice_is_nobody_elses() {
    let place = Place::new();
    let line = "{\"timestamp\": 1, \"input_length\": 9, \"output_length\": 1, \"hash_ids\": [1, 1, 2, 1]}\n";
    place.file("twice.jsonl", [line, line].concat().as_bytes());
    let args = ["replay", "--json", "--pool=16MiB", "--trace=twice.jsonl"];
    let replayed = figures(run(&place, &args));
    for (name, value) in [
        ("blocks", 8),
        ("block_hits", 4),
        ("stored", 2),
        ("duplicates", 2),
        ("already_present", 0),
    ] {
        assert_eq!(number(&replayed, name), value, "{name}");
    }
}

/// Checks that each restart left objects, and that these were hit.
#[track_caller]
fn assert_warm(figures: &Value, restarts: usize) {
    let list = figures["restarts"].as_array().unwrap();
    assert_eq!(list.len(), restarts, "{figures}");
    for restart in list {
        assert!(number(restart, "objects") > 0, "{figures}");
        assert!(number(restart, "warm_hits") > 0, "{figures}");
    }
}

#[test]
fn a_replay_goes_on_over_restarts_of_its_server_and_removes_the_pool() {
    let place = Place::new();
    let pool = ShmFiles::new("replay-restarts");
    let device = format!("--pool={}", pool.device("64MiB"));
    for args in [
        &["--requests=1200", "--restarts=4", &device][..],
        &["--requests=400", "--restarts=3", "--lockstep", &device],
    ] {
        let figures = figures(run(&place, &small(args)));
        let restarts = if args.len() == 3 { 4 } else { 3 };
        assert_warm(&figures, restarts);
        assert_eq!(number(&figures, "failed_instances"), 0);
        assert!(number(&figures, "repeated_calls") > 0);
        assert!(!pool.path().exists());
    }
    let said = run(
        &place,
        &small(&["--requests=600", "--restarts=2"])[..]
            .iter()
            .copied()
            .filter(|arg| *arg != "--json")
            .collect::<Vec<_>>(),
    );
    let text = said.text();
    assert!(
        text.contains("WARM HITS") && text.contains("calls repeated"),
        "{text}"
    );
}

#[test]
fn a_replay_with_restarts_that_is_interrupted_leaves_nothing_behind() {
    let place = Place::new();
    let pool = ShmFiles::new("replay-interrupted");
    let device = format!("--pool={}", pool.device("64MiB"));
    for (signal, restarts) in [
        (Signal::INT, "--restarts=900"),
        (Signal::TERM, "--restarts=1"),
    ] {
        let (mut command, temporary) = replay(&place, &small(&[MANY, restarts, &device]));
        let mut running = Running::start(&mut command);
        let mut processes = Vec::new();
        let pid = running.pid();
        running.wait_until("server and instances run", || {
            processes = children(pid);
            processes.len() == 4
        });
        running.signal(signal);
        let said = running.end();
        assert_eq!(said.code, Some(130), "{}", said.stderr);
        for process in processes {
            assert_eq!(parent(process), None);
        }
        assert_empty(&temporary);
        assert!(!pool.path().exists());
    }
}

#[test]
fn a_server_that_is_killed_and_started_again_is_waited_for() {
    let place = Place::new();
    let pool = ShmFiles::new("replay-waits");
    let device = pool.device("64MiB");
    let mut server = place.serve_with(&["--pool", &device]);
    let socket = place.socket();
    let args = ["--requests=2000", "--socket", socket.to_str().unwrap()];
    let (mut command, _) = replay(&place, &small(&args));
    let mut replaying = Running::start(&mut command);
    let objects = || number(&place.json(&["stat", "--json"]), "objects");
    replaying.wait_until("some blocks are stored", || objects() > 100);
    server.end(Signal::KILL);
    let _server = place.serve_with(&["--pool", &device]);
    let figures = figures(replaying.end());
    assert_warm(&figures, 1);
    assert_eq!(number(&figures, "requests"), 2000);
}

/// A replay that runs; killed when dropped.
struct Running(Option<Child>);

impl Running {
    fn start(command: &mut Command) -> Self {
        let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(Some(piped.spawn().unwrap()))
    }

    fn pid(&self) -> u32 {
        self.0.as_ref().unwrap().id()
    }

    fn wait_until(&mut self, what: &str, mut happened: impl FnMut() -> bool) {
        let deadline = Instant::now() + WATCHDOG;
        while !happened() {
            let ended = self.0.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "it ended before {what}");
            assert!(Instant::now() < deadline, "not seen: {what}");
            sleep(Duration::from_millis(5));
        }
    }

    fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    fn end(mut self) -> Said {
        Said::of(self.0.take().unwrap().wait_with_output().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn send(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Parent of the process, if it has not ended.
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    (state != "Z").then_some(parent)
}

fn children(of: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| parent(*pid) == Some(of))
        .collect()
}

/// Starts a replay that takes a while and waits until all its instances are at work; also gives their processes.
fn start_long(place: &Place, requests: &str) -> (Running, Vec<u32>, PathBuf) {
    let args = small(&[requests, "--pool=64MiB"]);
    let (mut command, temporary) = replay(place, &args);
    let mut running = Running::start(&mut command);
    let mut socket = None;
    running.wait_until("the socket is there", || {
        let dirs = fs::read_dir(&temporary).unwrap().flatten();
        socket = dirs
            .map(|dir| dir.path().join("ondol.sock"))
            .find(|path| fs::metadata(path).is_ok_and(|found| found.file_type().is_socket()));
        socket.is_some()
    });
    let socket = socket.unwrap();
    let mut instances = Vec::new();
    let pid = running.pid();
    running.wait_until("all instances are at work", || {
        let said = place.run(&["stat", "--json", "--socket", socket.to_str().unwrap()]);
        let Ok(stat) = serde_json::from_slice::<Value>(&said.stdout) else {
            return false;
        };
        let clients = stat["clients"].as_array().unwrap().iter();
        let working = clients.filter(|client| number(client, "objects") > 0);
        let mut working: Vec<u32> = working
            .map(|client| number(client, "pid").try_into().unwrap())
            .collect();
        working.sort_unstable();
        instances = children(pid);
        instances.sort_unstable();
        working.len() == 3 && working == instances
    });
    (running, instances, temporary)
}

#[test]
fn an_instance_that_is_killed_is_missed_and_nothing_is_left_behind() {
    let place = Place::new();
    let (running, instances, temporary) = start_long(&place, "--requests=10000");
    send(instances[1], Signal::KILL);
    let said = running.end();
    let figures: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_adds_up(&figures);
    assert_eq!(number(&figures, "failed_instances"), 1);
    // Those of the others.
    let others = number(&figures, "requests");
    assert!((6_666..=6_667).contains(&others), "{others}");
    let process = format!("process {} was ended by signal 9 (SIGKILL)", instances[1]);
    said.refused(1, &["instance ", &process]);
    for instance in instances {
        assert_eq!(parent(instance), None);
    }
    assert_empty(&temporary);
}

#[test]
fn in_step_the_turns_of_a_killed_instance_are_passed_over() {
    let place = Place::new();
    let (mut command, temporary) = replay(
        &place,
        &small(&["--lockstep", "--requests=3000", "--pool=64MiB"]),
    );
    let mut running = Running::start(&mut command);
    let mut instances = Vec::new();
    let pid = running.pid();
    running.wait_until("all instances run", || {
        instances = children(pid);
        instances.len() == 3
    });
    send(instances[0], Signal::KILL);
    let said = running.end();
    let figures: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(number(&figures, "requests"), 2000);
    said.refused(1, &["signal 9"]);
    assert_empty(&temporary);
}

#[test]
fn an_interrupted_replay_shows_what_was_done_and_leaves_nothing_behind() {
    let place = Place::new();
    for signal in [Signal::INT, Signal::TERM] {
        let (running, instances, temporary) = start_long(&place, MANY);
        running.signal(signal);
        let said = running.end();
        let figures: Value = serde_json::from_slice(&said.stdout).unwrap();
        assert_adds_up(&figures);
        assert!((3..40_000).contains(&number(&figures, "requests")));
        assert_eq!(number(&figures, "failed_instances"), 0);
        said.refused(130, &["interrupted"]);
        for instance in instances {
            assert_eq!(parent(instance), None);
        }
        assert_empty(&temporary);
    }
}

#[test]
fn instances_do_not_outlive_a_replay_that_is_killed() {
    let place = Place::new();
    let (running, instances, _) = start_long(&place, MANY);
    running.signal(Signal::KILL);
    assert_eq!(running.end().code, None);
    let deadline = Instant::now() + WATCHDOG;
    while instances.iter().any(|instance| parent(*instance).is_some()) {
        assert!(Instant::now() < deadline, "{instances:?}");
        sleep(Duration::from_millis(5));
    }
}
