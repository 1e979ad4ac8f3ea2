//! A disk that is really full.

use std::process::Command;

use super::world::{Choices, World};
use super::*;

/// A file system of its own, which ends with this.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount(size: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let options = format!("size={size}");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(dir.path())
            .status();
        mounted
            .is_ok_and(|status| status.success())
            .then_some(Self(dir))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.0.path()).status();
        assert!(unmounted.is_ok_and(|status| status.success()));
    }
}

#[test]
fn a_full_disk_refuses_records_and_recovers_by_itself() {
    let Some(disk) = SmallDisk::mount("256k") else {
        println!("SKIPPED: no tmpfs can be mounted here");
        return;
    };
    let dir = disk.0.path().join("log");
    let options = LogOptions {
        segment_bytes: 16 << 10,
        compact_bytes: Some(u64::MAX),
        ..LogOptions::default()
    };
    let log = Log::create(&dir, POOL, &world::pool(), options.clone()).unwrap();
    wait_until("the next segment", || log.stats().segments == 2);
    let ballast = disk.0.path().join("ballast");
    let mut size = 256 << 10;
    while size > 0 && fs::write(&ballast, vec![1; size]).is_err() {
        size -= 4096;
    }
    let mut world = World::new();
    let mut choices = Choices(12);
    let refused = loop {
        let change = choices.find_map(|choice| world.plan(choice)).unwrap();
        match log.record(&change) {
            Ok(()) => world.image.apply(&change).unwrap(),
            Err(error) => break error,
        }
    };
    assert!(refused.to_string().contains("make room"), "{refused}");
    // All that was accepted has its place.
    log.flush(log.position()).unwrap();
    let stats = log.stats();
    assert!(
        stats.refused_records == 1 && stats.last_error.is_some(),
        "{stats:?}"
    );
    fs::remove_file(&ballast).unwrap();
    for choice in choices.take(100) {
        if let Some(change) = world.plan(choice) {
            log.record(&change).unwrap();
            world.image.apply(&change).unwrap();
        }
    }
    log.flush(log.position()).unwrap();
    assert_eq!(log.stats().last_error, None);
    drop(log);
    let recovered = recover(&dir, options).unwrap();
    assert_eq!(recovered.image, world.image);
    drop(recovered);
}
