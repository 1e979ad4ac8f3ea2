//! The capacity, and disks that are full.

mod common;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use common::{PAGE, Rig, bytes, eventually, every_way, key, object_files, salted, temporary_files};
use l2_fs::{FsConfig, LayoutKind};
use ondol_plugin::l2::{Health, L2Adapter, ListRequest, LoadOutcome, ObjectKey};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

const MIB: usize = 1 << 20;

fn used(rig: &Rig) -> u64 {
    rig.adapter.usage().used_bytes
}

fn on_disk(rig: &Rig) -> u64 {
    object_files(&rig.dir).iter().map(|(_, len)| len).sum()
}

fn there(rig: &Rig, keys: impl IntoIterator<Item = u32>) -> Vec<u32> {
    keys.into_iter()
        .filter(|n| rig.find(&key(*n)).is_some())
        .collect()
}

#[test]
fn what_was_used_longest_ago_makes_room_and_what_is_locked_does_not() {
    for (way, layout, io, direct, _) in every_way() {
        let rig = Rig::new(|config| {
            (config.layout, config.io, config.direct) = (layout, io, direct);
            config.capacity = Some(5 * PAGE as u64);
        })
        .counted();
        for n in 0..4 {
            rig.store(&key(n), &bytes(n, PAGE), b"t").unwrap();
        }
        // 0 is read, 1 is locked: 2 is the one.
        rig.load(&key(0), PAGE, 1);
        assert!(rig.lookup(&[key(1)]).found.test(0));
        rig.store(&key(4), &bytes(4, PAGE), b"t").unwrap();
        assert_eq!(there(&rig, 0..5), [0, 1, 3, 4], "{way}");
        assert!(used(&rig) <= 5 * PAGE as u64, "{way}");
        assert_eq!(used(&rig), on_disk(&rig), "{way}");
        assert_eq!(rig.adapter.status().figures["evicted"], 1, "{way}");
        let too_large = rig.store(&key(9), &bytes(9, 5 * PAGE), b"t").unwrap_err();
        assert!(
            !too_large.retryable && too_large.reason.contains("capacity"),
            "{way}: {too_large}"
        );
        assert_eq!(there(&rig, 0..5), [0, 1, 3, 4], "{way}");
        // Nothing can make room while all is locked; it can be tried again.
        let locked = rig.lookup(&[key(0), key(3), key(4)]);
        assert_eq!(locked.found.count_ones(), 3, "{way}");
        let held = rig.store(&key(5), &bytes(5, PAGE), b"t").unwrap_err();
        assert!(
            held.retryable && held.reason.contains("locked"),
            "{way}: {held}"
        );
        rig.adapter.submit_unlock(&[key(3)]);
        rig.store(&key(5), &bytes(5, PAGE), b"t").unwrap();
        assert_eq!(there(&rig, 0..6), [0, 1, 4, 5], "{way}");
    }
}

#[test]
fn usage_of_each_salt_and_the_order_of_use_outlive_a_restart() {
    for layout in [LayoutKind::Lmcache, LayoutKind::Sharded] {
        let dir = tempfile::tempdir().unwrap();
        let open = |capacity: Option<u64>| {
            let change = |config: &mut FsConfig| {
                config.layout = layout;
                config.capacity = capacity;
            };
            Rig::at(dir.path(), change).counted()
        };
        let keys: Vec<_> = (0..6)
            .map(|n| salted(n, ["", "a", "b"][n as usize % 3]))
            .collect();
        let before = {
            let rig = open(None);
            for (n, key) in keys.iter().enumerate() {
                rig.store(key, &bytes(n as u32, 1000 * (n + 1)), b"trailer")
                    .unwrap();
            }
            rig.adapter.usage()
        };
        assert_eq!(before.bytes_by_salt.len(), 3);
        // The order is that of the files' times.
        for (at, n) in [3, 0, 5, 1, 4, 2].into_iter().enumerate() {
            let name = |path: &Path| {
                path.file_name()
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .contains(&format!("@{n:08x}"))
            };
            let (path, _) = object_files(dir.path())
                .into_iter()
                .find(|(path, _)| name(path))
                .unwrap();
            let time = SystemTime::now() - Duration::from_secs(1000 - at as u64);
            File::options()
                .write(true)
                .open(path)
                .unwrap()
                .set_modified(time)
                .unwrap();
        }
        let rig = open(None);
        assert_eq!(rig.adapter.usage(), before, "{layout:?}");
        assert_eq!(used(&rig), on_disk(&rig), "{layout:?}");
        // A smaller capacity is kept from the start on.
        drop(rig);
        let rig = open(Some(14_000));
        eventually("the excess is removed", || used(&rig) <= 14_000);
        let left: Vec<_> = keys.iter().map(|key| rig.find(key).is_some()).collect();
        assert_eq!(left, [false, true, true, false, true, false], "{layout:?}");
        assert_eq!(used(&rig), on_disk(&rig), "{layout:?}");
    }
}

#[test]
fn a_use_is_noted_for_the_order_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::at(dir.path(), |_| {}).counted();
    for n in 0..3 {
        rig.store(&key(n), &bytes(n, 100), b"").unwrap();
    }
    drop(rig);
    for (path, _) in object_files(dir.path()) {
        let yesterday = SystemTime::now() - Duration::from_secs(86_400);
        File::options()
            .write(true)
            .open(path)
            .unwrap()
            .set_modified(yesterday)
            .unwrap();
    }
    let rig = Rig::at(dir.path(), |_| {}).counted();
    rig.assert_holds(&key(1), &bytes(1, 100), 100);
    drop(rig);
    let rig = Rig::at(dir.path(), |config| config.capacity = Some(150)).counted();
    eventually("the excess is removed", || used(&rig) <= 150);
    assert_eq!(there(&rig, 0..3), [1]);
}

#[test]
fn a_capacity_that_was_worked_out_is_kept_and_leaves_room_for_what_was_there() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(key(1).file_name()), bytes(1, 12_345)).unwrap();
    let capacity = |rig: &Rig| rig.adapter.usage().capacity_bytes.unwrap();
    let rig = Rig::at(dir.path(), |_| {}).counted();
    let first = capacity(&rig);
    assert_eq!(
        (first - 12_345) % 8,
        0,
        "eight tenths of what is free, and what was there"
    );
    rig.store(&key(2), &bytes(2, 100_000), b"").unwrap();
    drop(rig);
    let memo = fs::read_to_string(dir.path().join(".ondol-l2-fs.json")).unwrap();
    assert_eq!(
        memo,
        format!("{{\"version\":1,\"capacity_bytes\":{first}}}\n")
    );
    let rig = Rig::at(dir.path(), |_| {});
    assert_eq!(capacity(&rig), first);
    drop(rig);
    // What is configured comes first, and is not kept.
    assert_eq!(
        capacity(&Rig::at(dir.path(), |config| config.capacity = Some(5)).counted()),
        5
    );
    assert_eq!(capacity(&Rig::at(dir.path(), |_| {})), first);
}

#[test]
fn lookups_are_answered_while_files_are_counted() {
    for layout in [LayoutKind::Lmcache, LayoutKind::Sharded] {
        let dir = tempfile::tempdir().unwrap();
        let change = |config: &mut FsConfig| config.layout = layout;
        let rig = Rig::at(dir.path(), change).counted();
        for n in 0..300 {
            rig.store(&key(n), &bytes(n, 50), b"").unwrap();
        }
        drop(rig);
        let rig = Rig::at(dir.path(), change);
        let keys: Vec<_> = (0..301).map(key).collect();
        let found = rig.lookup(&keys);
        assert_eq!(found.found.leading_ones(), 300);
        assert!(found.sizes[..300].iter().all(|size| *size == 50));
        rig.adapter.submit_unlock(&keys);
        rig.adapter.delete(&keys[..100]).unwrap();
        rig.store(&key(0), &bytes(0, 50), b"").unwrap();
        let rig = rig.counted();
        assert_eq!(rig.adapter.usage().objects, 201, "{layout:?}");
        assert_eq!(used(&rig), on_disk(&rig), "{layout:?}");
        let request = ListRequest {
            page_size: 1000,
            ..ListRequest::default()
        };
        assert_eq!(rig.adapter.list_keys(&request).unwrap().entries.len(), 201);
    }
}

/// A file system of a few MiB.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Nothing, with the reason printed, where none can be mounted.
    fn mount(at: &Path, mib: usize) -> Option<Self> {
        fs::create_dir_all(at).unwrap();
        let options = std::ffi::CString::new(format!("size={mib}M,mode=0700")).unwrap();
        match mount("tmpfs", at, "tmpfs", MountFlags::empty(), Some(&*options)) {
            Ok(()) => Some(Self(at.to_owned())),
            Err(error) => {
                println!("SKIPPED: no file system can be mounted here: {error}");
                None
            }
        }
    }

    /// Leaves `left` bytes free, to the nearest page.
    fn fill(&self, left: u64) {
        let stat = rustix::fs::statvfs(&self.0).unwrap();
        let bytes = (stat.f_bavail * stat.f_frsize).saturating_sub(left);
        let mut file = File::options()
            .create(true)
            .append(true)
            .open(self.0.join("ballast"))
            .unwrap();
        file.write_all(&vec![0; bytes as usize]).unwrap();
    }

    fn free(&self) {
        fs::remove_file(self.0.join("ballast")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

fn big(n: u32) -> (ObjectKey, Vec<u8>) {
    (key(n), bytes(n, MIB))
}

#[test]
fn a_full_disk_is_made_room_on_and_the_store_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path(), 16) else {
        return;
    };
    for (way, layout, io, direct, fsync) in every_way() {
        let base = dir.path().join("objects-of-a-test");
        let rig = Rig::at(&base, |config| {
            (config.layout, config.io, config.direct, config.fsync) = (layout, io, direct, fsync);
            config.capacity = Some(1 << 30);
        })
        .counted();
        for n in 0..40 {
            let (key, body) = big(n);
            assert_eq!(
                rig.store(&key, &body, b"trailer"),
                Ok(MIB as u64 + 7),
                "{way} {n}"
            );
            rig.assert_holds(&key, &[&body[..], b"trailer"].concat(), MIB);
            assert_eq!(used(&rig), on_disk(&rig), "{way} {n}");
        }
        let status = rig.adapter.status();
        assert_eq!(
            (status.health, status.read_only),
            (Health::Healthy, false),
            "{way}"
        );
        assert!(temporary_files(&base).is_empty(), "{way}");
        drop(rig);
        fs::remove_dir_all(&base).unwrap();
    }
    drop(disk);
}

#[test]
fn a_disk_that_others_have_filled_is_read_only_until_there_is_space() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path(), 16) else {
        return;
    };
    let rig = Rig::at(dir.path(), |config| config.capacity = Some(1 << 30)).counted();
    for n in 0..4 {
        let (key, body) = big(n);
        rig.store(&key, &body, b"").unwrap();
    }
    let kept: Vec<_> = (0..4).map(key).collect();
    assert_eq!(rig.lookup(&kept).found.count_ones(), 4);
    disk.fill(0);
    for n in 10..14 {
        let (key, body) = big(n);
        let error = rig.store(&key, &body, b"").unwrap_err();
        assert!(error.retryable && error.reason.contains("full"), "{error}");
        assert_eq!(rig.find(&key), None);
    }
    let status = rig.adapter.status();
    assert_eq!((status.health, status.read_only), (Health::Degraded, true));
    assert!(status.reason.unwrap().contains("full"));
    assert!(temporary_files(dir.path()).is_empty());
    // What is there can be read, and what is locked is all there.
    for n in 0..4 {
        let (key, body) = big(n);
        rig.assert_holds(&key, &body, MIB);
    }
    // Objects that nobody holds any more make room.
    rig.adapter.submit_unlock(&kept);
    let (key, body) = big(20);
    assert_eq!(rig.store(&key, &body, b""), Ok(MIB as u64));
    assert!(!rig.adapter.status().read_only);
    // Full again, and with nothing to remove: not until somebody makes room.
    rig.adapter.delete(&[key]).unwrap();
    disk.fill(0);
    let (key, body) = big(21);
    assert!(rig.store(&key, &body, b"").is_err());
    assert!(rig.store(&key, &body, b"").is_err());
    assert!(rig.adapter.status().read_only);
    disk.free();
    assert_eq!(rig.store(&key, &body, b""), Ok(MIB as u64));
    assert_eq!(rig.adapter.status().health, Health::Healthy);
    rig.assert_holds(&key, &body, MIB);
}

#[test]
fn a_failed_store_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path(), 8) else {
        return;
    };
    for (way, layout, io, direct, fsync) in every_way() {
        let base = dir.path().join("objects-of-a-test");
        let rig = Rig::at(&base, |config| {
            (config.layout, config.io, config.direct, config.fsync) = (layout, io, direct, fsync);
            config.capacity = Some(1 << 30);
        })
        .counted();
        // Enough for a part of the object.
        disk.fill(MIB as u64 / 2);
        let (key, body) = big(1);
        assert!(rig.store(&key, &body, b"trailer").is_err(), "{way}");
        assert_eq!(rig.load(&key, MIB, 7).0, LoadOutcome::Missing, "{way}");
        assert!(
            object_files(&base).is_empty() && temporary_files(&base).is_empty(),
            "{way}"
        );
        disk.free();
        assert_eq!(
            rig.store(&key, &body, b"trailer"),
            Ok(MIB as u64 + 7),
            "{way}"
        );
        drop(rig);
        fs::remove_dir_all(&base).unwrap();
    }
}
