//! Several writers, living and dead, of one directory.

mod common;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};
use std::{env, thread};

use common::{Rig, bytes, eventually, key, object_files, temporary_files};
use l2_fs::{FsConfig, LayoutKind};
use ondol_plugin::l2::{L2Adapter, LoadOutcome, ObjectRef, StoreItem};

const CHILD: &str = "L2_FS_TEST_CHILD";
const LEN: usize = 200_000;

fn config(layout: LayoutKind) -> impl FnOnce(&mut FsConfig) {
    move |config| config.layout = layout
}

/// Bytes that no other number has, made so quickly that who stores them mostly writes.
fn pattern(n: u32) -> Vec<u8> {
    n.to_le_bytes().repeat(LEN / 4)
}

fn batch(keys: impl IntoIterator<Item = u32>) -> Vec<StoreItem> {
    keys.into_iter()
        .map(|n| StoreItem {
            key: key(n),
            object: ObjectRef::with_trailer(
                common::Aligned::of(&pattern(n)),
                b"trailer".as_slice(),
            ),
        })
        .collect()
}

/// The other process of the test below; nothing by itself.
#[test]
fn a_child_that_stores_until_it_is_killed() {
    let Ok(dir) = env::var(CHILD) else {
        return;
    };
    let layout = if dir.ends_with("sharded") {
        LayoutKind::Sharded
    } else {
        LayoutKind::Lmcache
    };
    let rig = Rig::at(Path::new(&dir), config(layout));
    for round in 0.. {
        rig.store_all(batch(round * 8..round * 8 + 8)).unwrap();
        File::create(Path::new(&dir).join("begun")).unwrap();
    }
}

#[test]
fn a_kill_in_the_middle_of_stores_leaves_no_partial_object_and_no_temporary_file() {
    let mut caught = 0;
    for name in ["flat", "sharded"] {
        let layout = if name == "flat" {
            LayoutKind::Lmcache
        } else {
            LayoutKind::Sharded
        };
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join(name);
        for round in 0..8_u64 {
            let _ = fs::remove_file(dir.join("begun"));
            let mut child = Command::new(env::current_exe().unwrap())
                .args(["--exact", "a_child_that_stores_until_it_is_killed"])
                .env(CHILD, &dir)
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            eventually("the child stores", || dir.join("begun").exists());
            thread::sleep(Duration::from_micros(round * 1700));
            child.kill().unwrap();
            child.wait().unwrap();
            caught += temporary_files(&dir).len();
            let rig = Rig::at(&dir, config(layout)).counted();
            // The lock of the child may outlive it by what the kernel was doing for it.
            eventually("what was half-written is removed", || {
                temporary_files(&dir).is_empty()
            });
            let files = object_files(&dir);
            let on_disk: u64 = files.iter().map(|(_, len)| len).sum();
            assert_eq!(rig.adapter.usage().used_bytes, on_disk, "{name} {round}");
            let mut whole = 0;
            for n in 0..u32::MAX {
                let expected = [&pattern(n)[..], b"trailer"].concat();
                match rig.load(&key(n), LEN, 7) {
                    (LoadOutcome::Missing, _) if whole == files.len() => break,
                    (LoadOutcome::Missing, _) => {}
                    (LoadOutcome::Found(_), found) => {
                        assert!(found == expected, "{name} {round}: {n} has other bytes");
                        whole += 1;
                    }
                    (other, _) => panic!("{name} {round}: {n} is {other:?}"),
                }
            }
            // The next child stores all of it anew.
            let keys: Vec<_> = (0..whole as u32 + 16).map(key).collect();
            rig.adapter.delete(&keys).unwrap();
        }
    }
    println!("{caught} files were being written when their writers were killed");
}

#[test]
fn temporary_files_of_the_dead_go_and_those_of_the_living_stay() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let living = Rig::at(dir.path(), |_| {}).counted();
    let writer = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .find(|name| name.ends_with(".writer"))
        .unwrap();
    let of_the_living = writer.replace(".writer", "-ff.tmp");
    let lmcaches = key(1).file_name().replace(".data", ".tmp");
    let old = key(2).file_name().replace(".data", ".tmp");
    for name in [
        of_the_living.as_str(),
        ".ondol-0123456789abcdef.writer",
        ".ondol-0123456789abcdef-0.tmp",
        ".ondol-fedcba9876543210-1.tmp",
        lmcaches.as_str(),
        old.as_str(),
        "notes.tmp",
    ] {
        fs::write(path(name), b"half").unwrap();
    }
    let hours_ago = SystemTime::now() - Duration::from_secs(7300);
    for name in [old.as_str(), "notes.tmp", of_the_living.as_str()] {
        File::options()
            .write(true)
            .open(path(name))
            .unwrap()
            .set_modified(hours_ago)
            .unwrap();
    }
    let second = Rig::at(dir.path(), |_| {}).counted();
    for (name, stays) in [
        (of_the_living.as_str(), true),
        (writer.as_str(), true),
        (".ondol-0123456789abcdef.writer", false),
        (".ondol-0123456789abcdef-0.tmp", false),
        (".ondol-fedcba9876543210-1.tmp", false),
        (lmcaches.as_str(), true),
        (old.as_str(), false),
        ("notes.tmp", true),
    ] {
        assert_eq!(path(name).exists(), stays, "{name}");
    }
    assert_eq!(second.adapter.status().figures["stale_files_removed"], 3);
    drop((living, second));
    let _third = Rig::at(dir.path(), |_| {}).counted();
    assert!(!path(&of_the_living).exists());
    let writers = fs::read_dir(dir.path()).unwrap();
    let writers = writers.filter(|entry| {
        entry
            .as_ref()
            .unwrap()
            .path()
            .extension()
            .is_some_and(|end| end == "writer")
    });
    assert_eq!(writers.count(), 1, "those that closed took theirs along");
}

#[test]
fn of_two_writers_of_one_key_exactly_one_wins_and_readers_see_one() {
    for layout in [LayoutKind::Lmcache, LayoutKind::Sharded] {
        let dir = tempfile::tempdir().unwrap();
        let rigs: Vec<_> = (0..3)
            .map(|_| Rig::at(dir.path(), config(layout)).counted())
            .collect();
        for n in 0..40 {
            let bodies: Vec<_> = (0..3).map(|writer| bytes(writer + 1, LEN)).collect();
            let stored: Vec<_> = thread::scope(|scope| {
                let threads: Vec<_> = rigs
                    .iter()
                    .zip(&bodies)
                    .map(|(rig, body)| scope.spawn(|| rig.store(&key(n), body, b"").unwrap()))
                    .collect();
                threads
                    .into_iter()
                    .map(|thread| thread.join().unwrap())
                    .collect()
            });
            let winners: Vec<_> = (0..3).filter(|writer| stored[*writer] > 0).collect();
            assert_eq!(winners.len(), 1, "{layout:?} {n}: {stored:?}");
            for rig in &rigs {
                rig.assert_holds(&key(n), &bodies[winners[0]], LEN);
            }
        }
        assert!(temporary_files(dir.path()).is_empty());
        // What another process stored counts once it was found.
        let on_disk: u64 = object_files(dir.path()).iter().map(|(_, len)| len).sum();
        for rig in &rigs {
            rig.lookup(&(0..40).map(key).collect::<Vec<_>>());
            assert_eq!(rig.adapter.usage().used_bytes, on_disk);
        }
    }
}

#[test]
fn stores_lookups_loads_and_deletes_at_once_agree_with_the_disk_in_the_end() {
    for layout in [LayoutKind::Lmcache, LayoutKind::Sharded] {
        let rig = Rig::new(|config| {
            config.layout = layout;
            config.capacity = Some(60 * 5000);
        });
        let rig = &rig;
        // One thread for each kind, since a result is whoever's takes it.
        thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..2000 {
                    let stored = rig.store(&key(n % 97), &bytes(n % 97, 5000), b"t");
                    assert!(stored.is_ok_and(|bytes| bytes == 0 || bytes == 5001));
                }
            });
            scope.spawn(|| {
                for n in 0..2000 {
                    let key = key(n * 31 % 97);
                    if rig.lookup(std::slice::from_ref(&key)).found.test(0) {
                        assert!(
                            rig.adapter
                                .delete(std::slice::from_ref(&key))
                                .unwrap()
                                .locked
                                .test(0)
                        );
                        rig.adapter.submit_unlock(&[key]);
                    }
                }
            });
            scope.spawn(|| {
                for n in 0..2000 {
                    let n = n * 17 % 97;
                    let (outcome, found) = rig.load(&key(n), 5000, 1);
                    match outcome {
                        LoadOutcome::Missing => {}
                        LoadOutcome::Found(5001) => assert!(found[..5000] == bytes(n, 5000)[..]),
                        other => panic!("{other:?}"),
                    }
                }
            });
            scope.spawn(|| {
                for n in 0..2000 {
                    rig.adapter.delete(&[key(n * 7 % 97)]).unwrap();
                }
            });
        });
        let on_disk: u64 = object_files(&rig.dir).iter().map(|(_, len)| len).sum();
        let usage = rig.adapter.usage();
        assert_eq!(usage.used_bytes, on_disk, "{layout:?}");
        assert_eq!(usage.objects, object_files(&rig.dir).len() as u64);
        assert_eq!(rig.adapter.status().figures["locked"], 0);
        assert!(temporary_files(&rig.dir).is_empty());
    }
}

#[test]
fn a_close_ends_every_task_and_gives_every_buffer_back() {
    for io in [l2_fs::IoKind::Threads, l2_fs::IoKind::Auto] {
        let rig = Rig::new(|config| {
            config.io = io;
            config.workers = 2;
        });
        let guard = std::sync::Arc::new(());
        struct Guarded(
            Vec<u8>,
            #[expect(dead_code, reason = "it counts who holds it")] std::sync::Arc<()>,
        );
        impl AsRef<[u8]> for Guarded {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        let tasks: Vec<_> = (0..50)
            .map(|round| {
                let items = (round * 10..round * 10 + 10).map(|n| StoreItem {
                    key: key(n),
                    object: ObjectRef::new(Guarded(pattern(n), guard.clone())),
                });
                rig.adapter.submit_store(items.collect()).unwrap()
            })
            .collect();
        rig.adapter.cancel(tasks[40]);
        let report = rig.adapter.close(common::LIMIT);
        assert_eq!(report.abandoned, 0);
        let mut ended: Vec<_> = rig.adapter.pop_completed_stores();
        ended.sort_by_key(|(task, _)| *task);
        assert_eq!(
            ended.iter().map(|(task, _)| *task).collect::<Vec<_>>(),
            tasks
        );
        assert!(
            ended.iter().all(|(_, result)| result
                .0
                .as_ref()
                .err()
                .is_none_or(|error| error.retryable))
        );
        assert_eq!(std::sync::Arc::strong_count(&guard), 1);
        assert!(rig.adapter.submit_store(Vec::new()).is_err());
        assert_eq!(rig.adapter.close(common::LIMIT).abandoned, 0);
        assert!(temporary_files(&rig.dir).is_empty());
        for (path, len) in object_files(&rig.dir) {
            assert_eq!(len, LEN as u64, "{}", path.display());
        }
    }
}
