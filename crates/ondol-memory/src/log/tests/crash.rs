//! A process that is killed while it writes, at any moment and at every step.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use super::world::{Choices, World};
use super::*;

const DIRECTORY: &str = "ONDOL_TEST_LOG_DIRECTORY";
const SEED: &str = "ONDOL_TEST_LOG_SEED";
const STEPS: &str = "ONDOL_TEST_LOG_STEPS";
const FAILPOINTS: &str = "ONDOL_FAILPOINTS";

/// The process that is killed: it tells each change that it was told of. It goes on from what is there.
#[test]
#[ignore = "runs in a process of its own"]
fn append_until_killed() {
    let variable = |name| std::env::var(name).ok();
    let Some(dir) = variable(DIRECTORY) else {
        return;
    };
    let dir = Path::new(&dir);
    ondol_catalog::arm_failpoints(&variable(FAILPOINTS).unwrap_or_default()).unwrap();
    let number = |name| -> u64 { variable(name).unwrap().parse().unwrap() };
    let options = LogOptions {
        durability: Durability::Fsync,
        ..tiny()
    };
    let is_first = !Log::exists(dir).unwrap();
    let (log, mut world) = match is_first {
        true => {
            fs::write(
                dir.join("segment-0000000000000000.log.draft"),
                b"of an older log",
            )
            .unwrap();
            let record = PoolRecord {
                pool: POOL,
                boot: "a boot".to_owned(),
                fsync: true,
                devices: Vec::new(),
            };
            record.save(dir).unwrap();
            let log = Log::create(dir, POOL, &world::pool(), options).unwrap();
            (log, World::new())
        }
        false => {
            let Recovered { log, image, .. } = recover(dir, options).unwrap();
            (log, World { image })
        }
    };
    let mut out = io::stdout().lock();
    for (step, choice) in (0..number(STEPS)).zip(Choices(number(SEED))) {
        if let Some(change) = world.plan(choice) {
            log.record(&change).unwrap();
            world.image.apply(&change).unwrap();
        }
        log.flush(log.position()).unwrap();
        writeln!(out, "told {step}").unwrap();
    }
    if is_first {
        wait_until("a checkpoint", || log.stats().checkpoints > 0);
    }
    log.close().unwrap();
}

/// How a process ended.
struct Ended {
    /// The step that it was told of last.
    told: Option<u64>,
    killed: bool,
}

/// Lets the process run, and kills it when it was told of `last`, if there is such a number.
fn run(dir: &Path, seed: u64, steps: u64, failpoints: &str, last: Option<u64>) -> Ended {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "log::tests::crash::append_until_killed",
            "--exact",
            "--ignored",
            "--nocapture",
        ])
        .env(DIRECTORY, dir)
        .env(SEED, seed.to_string())
        .env(STEPS, steps.to_string())
        .env(FAILPOINTS, failpoints)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut told = None;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        // The last line may be cut off.
        let line = line.unwrap_or_default();
        let number = line.strip_prefix("told ").map(str::parse);
        if let Some(Ok(number)) = number {
            told = Some(number);
        }
        if last.is_some() && told == last {
            child.kill().unwrap();
        }
    }
    let status = child.wait().unwrap();
    assert!(
        status.success() || status.signal() == Some(9),
        "{failpoints}: {status}"
    );
    Ended {
        told,
        killed: !status.success(),
    }
}

/// What is in the log is what was told of, and perhaps what came next.
fn check(dir: &Path, mut world: World, seed: u64, told: Option<u64>, context: &str) -> World {
    let recovered = recover(dir, tiny()).unwrap_or_else(|error| panic!("{context}: {error}"));
    if told.is_none() && world.image == recovered.image {
        return world;
    }
    let last = told.unwrap_or(0);
    for (number, choice) in (0..last + 500).zip(Choices(seed)) {
        if let Some(change) = world.plan(choice) {
            world.image.apply(&change).unwrap();
        }
        if number >= last && world.image == recovered.image {
            return world;
        }
    }
    panic!("{context}: the state is none that came after step {told:?}");
}

#[test]
fn what_a_killed_process_was_told_is_there() {
    for seed in 0..6_u64 {
        let dir = temp_dir();
        let last = 300 + 777 * seed;
        let Ended { told, .. } = run(dir.path(), seed, u64::MAX, "", Some(last));
        assert!(told >= Some(last));
        check(dir.path(), World::new(), seed, told, "killed from outside");
    }
}

#[test]
fn a_kill_between_any_two_steps_loses_nothing_that_was_told() {
    let mine = |name: &str| {
        ["log.", "checkpoint.", "recover.", "close."]
            .iter()
            .any(|area| name.starts_with(area))
    };
    let points = ondol_catalog::failpoints();
    let names: Vec<_> = points
        .iter()
        .map(|point| point.name)
        .filter(|name| mine(name))
        .collect();
    assert!(names.len() > 20, "{names:?}");
    let mut reached = Vec::new();
    for name in &names {
        for hit in [1, 2, 7] {
            let context = format!("{name}=kill@{hit}");
            let dir = temp_dir();
            let first = run(dir.path(), 1, 900, &context, None);
            let state = match Log::exists(dir.path()).unwrap() {
                true => check(dir.path(), World::new(), 1, first.told, &context),
                false => {
                    assert_eq!(first.told, None, "{context}: the log is gone");
                    World::new()
                }
            };
            // A segment that was made ahead, were it ever so far, so that there is something to sweep.
            if Log::exists(dir.path()).unwrap() {
                fs::write(dir.path().join(files::segment_name(1 << 40)), b"").unwrap();
            }
            // Once more, so that what the first life left is recovered by one that is killed as well.
            let second = run(dir.path(), 2, 300, &context, None);
            if Log::exists(dir.path()).unwrap() {
                check(dir.path(), state, 2, second.told, &context);
            } else {
                assert_eq!((first.told, second.told), (None, None), "{context}");
            }
            if first.killed || second.killed {
                reached.push(*name);
            }
        }
    }
    let missed: Vec<_> = names
        .iter()
        .filter(|name| !reached.contains(name))
        .collect();
    assert!(missed.is_empty(), "nobody was killed at {missed:?}");
}
