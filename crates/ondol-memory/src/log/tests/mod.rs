mod codec;
mod crash;
mod damage;
mod full_disk;
mod lifecycle;
mod states;
mod world;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::files::Listing;
use super::*;

const POOL: PoolId = PoolId([7; 16]);

/// Segments of a few pages, and checkpoints all the time.
fn tiny() -> LogOptions {
    LogOptions {
        segment_bytes: 4096,
        compact_bytes: Some(8192),
        ..LogOptions::default()
    }
}

/// One segment that holds everything.
fn single() -> LogOptions {
    LogOptions {
        segment_bytes: 16 << 10,
        ..LogOptions::default()
    }
}

/// Many small syncs are slow on a disk; where they go to memory they are still calls to a file system.
fn temp_dir() -> TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}

fn recover(dir: &Path, options: LogOptions) -> Result<Recovered, LogError> {
    Log::recover(dir, POOL, world::pool(), options)
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    Listing::read(dir)
        .unwrap()
        .segments
        .into_iter()
        .map(|(_, path)| path)
        .collect()
}

fn checkpoints(dir: &Path) -> Vec<PathBuf> {
    Listing::read(dir)
        .unwrap()
        .checkpoints
        .into_iter()
        .map(|(_, path)| path)
        .collect()
}

/// A copy of a log that a test may damage.
fn copy(dir: &Path) -> TempDir {
    let copy = temp_dir();
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

/// Waits for what happens in the background; a test that waits in vain fails.
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{what} did not come about"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}
