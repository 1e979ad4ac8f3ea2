//! A process that is killed while it writes.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use super::world::{Choices, World};
use super::*;

const DIRECTORY: &str = "ONDOL_TEST_LOG_DIRECTORY";
const SEED: &str = "ONDOL_TEST_LOG_SEED";

/// The process that is killed: it goes on for ever and tells each change that it was told of.
#[test]
#[ignore = "runs in a process of its own"]
fn append_until_killed() {
    let (Ok(dir), Ok(seed)) = (std::env::var(DIRECTORY), std::env::var(SEED)) else {
        return;
    };
    let log = Log::create(Path::new(&dir), POOL, &world::pool(), tiny()).unwrap();
    let mut world = World::new();
    let mut out = io::stdout().lock();
    for (number, choice) in Choices(seed.parse().unwrap()).enumerate() {
        if let Some(change) = world.plan(choice) {
            log.record(&change).unwrap();
            world.image.apply(&change).unwrap();
        }
        log.flush(log.position()).unwrap();
        writeln!(out, "told {number}").unwrap();
    }
}

#[test]
fn what_a_killed_process_was_told_is_there() {
    for seed in 0..6_u64 {
        let dir = temp_dir();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "log::tests::crash::append_until_killed",
                "--exact",
                "--ignored",
                "--nocapture",
            ])
            .env(DIRECTORY, dir.path())
            .env(SEED, seed.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut last_told = 0;
        for line in lines {
            // The last line may be cut off.
            let line = line.unwrap_or_default();
            if let Some(number) = line
                .strip_prefix("told ")
                .and_then(|number| number.parse::<u64>().ok())
            {
                last_told = last_told.max(number);
            }
            if last_told == 300 + 777 * seed {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(last_told >= 300 + 777 * seed);
        let recovered = recover(dir.path(), tiny()).unwrap();
        let mut world = World::new();
        let matches = Choices(seed)
            .zip(0..last_told + 1000)
            .any(|(choice, number)| {
                if let Some(change) = world.plan(choice) {
                    world.image.apply(&change).unwrap();
                }
                number >= last_told && world.image == recovered.image
            });
        assert!(
            matches,
            "seed {seed}: the state is none that was told of after step {last_told}"
        );
    }
}
