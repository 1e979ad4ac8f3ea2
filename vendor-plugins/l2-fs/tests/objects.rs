//! What is stored is there, whole, until it is deleted; in every layout and in every way to move bytes.

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use common::{PAGE, Rig, bytes, every_way, key, object_files, salted, temporary_files};
use l2_fs::{FsConfig, Fsync, LayoutKind};
use ondol_plugin::l2::{
    KvRank, L2Adapter, ListRequest, LoadItem, LoadOutcome, ObjectKey, ObjectRef, PageMut, StoreItem,
};
use rustix::fs::{CWD, FileType, Mode, mknodat};

/// Lengths of bodies and trailers around every boundary.
const SIZES: [(usize, usize); 9] = [
    (0, 0),
    (0, 7),
    (1, 0),
    (PAGE - 1, 100),
    (PAGE, 0),
    (PAGE, 100),
    (PAGE + 1, 2048),
    (16 * PAGE, 200),
    (100_000, 33),
];

#[test]
fn a_batch_of_all_sizes_comes_back_byte_for_byte() {
    for (way, layout, io, direct, fsync) in every_way() {
        let rig = Rig::new(|config| {
            config.layout = layout;
            config.io = io;
            config.direct = direct;
            config.fsync = fsync;
        })
        .counted();
        let objects: Vec<_> = (0..40_u32)
            .map(|n| {
                let (body, trailer) = SIZES[n as usize % SIZES.len()];
                (key(n), bytes(n, body), bytes(n + 1000, trailer))
            })
            .collect();
        let batch = objects
            .iter()
            .map(|(key, body, trailer)| StoreItem {
                key: key.clone(),
                object: ObjectRef::with_trailer(common::Aligned::of(body), trailer.as_slice()),
            })
            .collect();
        let total: usize = objects
            .iter()
            .map(|(_, body, trailer)| body.len() + trailer.len())
            .sum();
        assert_eq!(rig.store_all(batch), Ok(total as u64), "{way}");
        let keys: Vec<_> = objects.iter().map(|(key, ..)| key.clone()).collect();
        let found = rig.lookup(&keys);
        assert_eq!(found.found.count_ones(), keys.len(), "{way}");
        let batch = objects
            .iter()
            .map(|(key, body, trailer)| LoadItem {
                key: key.clone(),
                page: PageMut::new(common::Aligned::new(body.len()), trailer.len()),
            })
            .collect();
        let loaded = rig.load_all(batch);
        for ((index, loaded), (key, body, trailer)) in loaded.into_iter().enumerate().zip(&objects)
        {
            let expected = body.len() + trailer.len();
            assert_eq!(found.sizes[index], expected as u64, "{way} {key}");
            assert_eq!(
                loaded.outcome,
                LoadOutcome::Found(expected as u64),
                "{way} {key}"
            );
            let page = loaded.page.unwrap();
            assert!(
                page.parts() == (&body[..], &trailer[..]),
                "{way} {key}: other bytes"
            );
        }
        // The capacity may still be being written down.
        common::eventually("no temporary file is left", || {
            temporary_files(&rig.dir).is_empty()
        });
        let on_disk: u64 = object_files(&rig.dir).iter().map(|(_, len)| len).sum();
        assert_eq!(rig.adapter.usage().used_bytes, on_disk, "{way}");
    }
}

#[test]
fn memory_and_lengths_on_no_boundary_are_read_and_written_all_the_same() {
    for (way, layout, io, direct, _) in every_way() {
        let rig = Rig::new(|config| {
            (config.layout, config.io, config.direct) = (layout, io, direct);
        });
        for (n, len) in [3 * PAGE, 3 * PAGE + 5, 10].into_iter().enumerate() {
            let key = key(n as u32);
            let expected = bytes(n as u32, len);
            // A vector lies anywhere but on a boundary of a page, but for chance.
            let object = ObjectRef::with_trailer(expected.clone(), b"trailer".as_slice());
            rig.store_all(vec![StoreItem {
                key: key.clone(),
                object,
            }])
            .unwrap();
            for body in [len, len - 1, len + 7, len / 2 + 1] {
                let room = len + 7 - body.min(len + 7);
                let page = PageMut::new(vec![0; body], room);
                let loaded = rig
                    .load_all(vec![LoadItem {
                        key: key.clone(),
                        page,
                    }])
                    .remove(0);
                assert_eq!(
                    loaded.outcome,
                    LoadOutcome::Found(len as u64 + 7),
                    "{way} {body}"
                );
                let page = loaded.page.unwrap();
                let (first, second) = page.parts();
                let all = [first, second].concat();
                assert!(
                    all[..len] == expected[..] && &all[len..len + 7] == b"trailer",
                    "{way} {body}"
                );
            }
        }
    }
}

#[test]
fn a_file_of_lmcaches_is_given_back_as_it_is_and_ours_is_one_of_lmcaches() {
    let dir = tempfile::tempdir().unwrap();
    let name = "org-SEP-model@0x01000100@0@00000007@tenant.data";
    let raw = bytes(7, 3 * PAGE);
    fs::write(dir.path().join(name), &raw).unwrap();
    let rig = Rig::at(dir.path(), |_| {}).counted();
    let theirs = salted(7, "tenant");
    assert_eq!(rig.find(&theirs), Some(3 * PAGE as u64));
    // With room for a trailer that is not there.
    let (outcome, found) = rig.load(&theirs, 3 * PAGE, 100);
    assert_eq!(outcome, LoadOutcome::Found(3 * PAGE as u64));
    assert_eq!(found, raw);
    // The core may take the end of it for a trailer first.
    let (outcome, found) = rig.load(&theirs, 3 * PAGE - 100, 100);
    assert_eq!(
        (outcome, found),
        (LoadOutcome::Found(3 * PAGE as u64), raw.clone())
    );
    // LMCache's reader takes as many bytes as its buffer has, from the beginning.
    rig.store(&salted(8, "tenant"), &raw, b"trailer").unwrap();
    let ours = fs::read(dir.path().join(name.replace("00000007", "00000008"))).unwrap();
    assert_eq!(ours[..raw.len()], raw);
    assert_eq!(&ours[raw.len()..], b"trailer");
    // What is there is not written again.
    assert_eq!(rig.store(&theirs, &bytes(1, 9), b"x"), Ok(0));
    rig.assert_holds(&theirs, &raw, raw.len());
}

#[test]
fn models_whose_names_share_a_file_have_one_object() {
    let named = |model| ObjectKey::new(model, KvRank(1), 0, [1], "").unwrap();
    let rig = Rig::new(|_| {}).counted();
    assert_eq!(rig.store(&named("a-SEP-b"), b"bytes", b""), Ok(5));
    assert_eq!(rig.store(&named("a/b"), b"bytes", b""), Ok(0));
    assert_eq!(rig.find(&named("a/b")), Some(5));
    assert_eq!(rig.adapter.usage().used_bytes, 5);
    assert!(
        rig.adapter
            .delete(&[named("a-SEP-b")])
            .unwrap()
            .gone
            .test(0)
    );
    assert_eq!(rig.find(&named("a/b")), None);
    let rig = Rig::new(|config| config.layout = LayoutKind::Sharded).counted();
    assert_eq!(rig.store(&named("a-SEP-b"), b"bytes", b""), Ok(5));
    assert_eq!(rig.find(&named("a/b")), None);
}

#[test]
fn a_key_whose_name_would_be_too_long_is_refused_or_has_a_name_of_another_kind() {
    let long = ObjectKey::new(&"m".repeat(300), KvRank(1), 0, [1; 32], &"ü".repeat(128)).unwrap();
    let rig = Rig::new(|_| {});
    let error = rig.store(&long, b"bytes", b"").unwrap_err();
    assert!(!error.retryable, "{error}");
    assert!(
        error.reason.contains("255") && error.reason.contains("sharded"),
        "{error}"
    );
    assert_eq!(rig.find(&long), None);
    assert_eq!(rig.load(&long, 10, 0).0, LoadOutcome::Missing);
    assert!(object_files(&rig.dir).is_empty());
    // The others of its batch are stored.
    let item = |key: &ObjectKey| StoreItem {
        key: key.clone(),
        object: ObjectRef::new(b"bytes"),
    };
    assert!(
        rig.store_all(vec![item(&key(1)), item(&long), item(&key(2))])
            .is_err()
    );
    assert_eq!((rig.find(&key(1)), rig.find(&key(2))), (Some(5), Some(5)));
    let dir = tempfile::tempdir().unwrap();
    let sharded = |config: &mut FsConfig| config.layout = LayoutKind::Sharded;
    Rig::at(dir.path(), sharded)
        .store(&long, b"bytes", b"+")
        .unwrap();
    let rig = Rig::at(dir.path(), sharded).counted();
    assert_eq!(rig.adapter.usage().objects, 1);
    let listed = rig
        .adapter
        .list_keys(&ListRequest {
            page_size: 5,
            ..ListRequest::default()
        })
        .unwrap();
    assert_eq!(listed.entries[0].key, long);
    rig.assert_holds(&long, b"bytes+", 5);
}

#[test]
fn a_locked_object_is_not_deleted_and_locks_are_counted() {
    for layout in [LayoutKind::Lmcache, LayoutKind::Sharded] {
        let rig = Rig::new(|config| config.layout = layout);
        rig.store(&key(1), b"bytes", b"").unwrap();
        for _ in 0..2 {
            assert!(rig.lookup(&[key(1)]).found.test(0));
        }
        for _ in 0..2 {
            let deleted = rig.adapter.delete(&[key(1), key(2)]).unwrap();
            assert_eq!(
                (deleted.gone.to_string(), deleted.locked.to_string()),
                ("01".into(), "10".into())
            );
            rig.adapter.submit_unlock(&[key(1)]);
        }
        rig.adapter.submit_unlock(&[key(1)]);
        assert!(rig.adapter.delete(&[key(1)]).unwrap().gone.test(0));
        assert_eq!(rig.find(&key(1)), None);
        assert!(object_files(&rig.dir).is_empty());
        assert_eq!(rig.adapter.usage().used_bytes, 0);
    }
}

#[test]
fn what_somebody_deleted_is_a_miss_and_is_not_counted_any_more() {
    for (way, layout, io, direct, _) in every_way() {
        let rig =
            Rig::new(|config| (config.layout, config.io, config.direct) = (layout, io, direct))
                .counted();
        rig.store(&key(1), &bytes(1, 2 * PAGE), b"t").unwrap();
        for (path, _) in object_files(&rig.dir) {
            fs::remove_file(path).unwrap();
        }
        assert_eq!(
            rig.load(&key(1), 2 * PAGE, 1).0,
            LoadOutcome::Missing,
            "{way}"
        );
        assert_eq!(rig.find(&key(1)), None, "{way}");
        assert_eq!(rig.adapter.usage().used_bytes, 0, "{way}");
        // And is stored anew, also while it is still taken for stored.
        assert_eq!(rig.store(&key(1), b"again", b""), Ok(5), "{way}");
        for (path, _) in object_files(&rig.dir) {
            fs::remove_file(path).unwrap();
        }
        assert_eq!(rig.store(&key(1), b"again", b""), Ok(5), "{way}");
        rig.assert_holds(&key(1), b"again", 5);
    }
}

// A file that a power failure had left shorter than its own description counted as stored, was never found, and every
// lookup of its key panicked.
#[test]
fn a_file_that_is_too_short_for_its_description_does_not_stand_in_the_way() {
    let directory = tempfile::tempdir().unwrap();
    let open = || {
        Rig::at(directory.path(), |config| {
            config.layout = LayoutKind::Sharded
        })
        .counted()
    };
    let rig = open();
    let body = bytes(1, 100);
    assert_eq!(rig.store(&key(1), &body, b""), Ok(100));
    let (path, _) = object_files(&rig.dir).remove(0);
    let cut = || {
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_len(10).unwrap();
    };
    cut();
    drop(rig);
    // The scan does not list it, since it does not say what it is.
    let rig = open();
    assert_eq!(rig.store(&key(1), &body, b""), Ok(100), "it was not there");
    assert_eq!(rig.find(&key(1)), Some(100));
    rig.assert_holds(&key(1), &body, body.len());
    // One that is known is not taken for stored either.
    cut();
    assert_eq!(rig.store(&key(1), &body, b""), Ok(100));
    rig.assert_holds(&key(1), &body, body.len());
    assert_eq!(rig.adapter.usage().objects, 1);
}

#[test]
fn a_damaged_file_of_the_sharded_layout_is_never_a_hit_and_is_removed() {
    for (way, layout, io, direct, _) in every_way() {
        if layout != LayoutKind::Sharded {
            continue;
        }
        let rig =
            Rig::new(|config| (config.layout, config.io, config.direct) = (layout, io, direct));
        let body = bytes(1, 2 * PAGE);
        let store = || {
            assert!(rig.store(&key(1), &body, b"trailer").unwrap() > 0, "{way}");
            object_files(&rig.dir).remove(0).0
        };
        let whole = fs::read(store()).unwrap();
        rig.adapter.delete(&[key(1)]).unwrap();
        for change in [
            |bytes: &mut Vec<u8>| bytes[0] ^= 1,
            |bytes: &mut Vec<u8>| bytes[2 * PAGE + 1] ^= 1,
            |bytes: &mut Vec<u8>| *bytes.last_mut().unwrap() ^= 1,
            |bytes: &mut Vec<u8>| bytes.truncate(bytes.len() - 1),
            |bytes: &mut Vec<u8>| bytes.truncate(10),
            |bytes: &mut Vec<u8>| bytes.clear(),
            |bytes: &mut Vec<u8>| bytes.fill(0),
        ] {
            let path = store();
            let mut bytes = whole.clone();
            change(&mut bytes);
            fs::write(&path, &bytes).unwrap();
            let (outcome, _) = rig.load(&key(1), 2 * PAGE, 7);
            assert!(
                matches!(outcome, LoadOutcome::Corrupt(_)),
                "{way}: {outcome:?}"
            );
            assert!(!path.exists(), "{way}");
            assert_eq!(rig.find(&key(1)), None, "{way}");
        }
        assert_eq!(rig.adapter.usage().used_bytes, 0, "{way}");
        assert_eq!(rig.adapter.status().figures["damaged"], 7, "{way}");
    }
}

#[test]
fn a_file_that_became_shorter_is_never_a_hit_and_is_removed() {
    for (way, layout, io, direct, _) in every_way() {
        let rig =
            Rig::new(|config| (config.layout, config.io, config.direct) = (layout, io, direct))
                .counted();
        let body = bytes(1, 3 * PAGE);
        for left in [3 * PAGE, 2 * PAGE, 100, 0] {
            rig.store(&key(1), &body, b"trailer").unwrap();
            let (path, _) = object_files(&rig.dir).remove(0);
            let file = fs::File::options().write(true).open(&path).unwrap();
            file.set_len(left as u64).unwrap();
            let (outcome, _) = rig.load(&key(1), 3 * PAGE, 7);
            assert!(
                matches!(outcome, LoadOutcome::Corrupt(_)),
                "{way} {left}: {outcome:?}"
            );
            assert!(!path.exists(), "{way} {left}");
            assert_eq!(rig.find(&key(1)), None, "{way} {left}");
            assert_eq!(rig.adapter.usage().used_bytes, 0, "{way} {left}");
        }
    }
}

#[test]
fn what_another_process_stored_anew_is_loaded_as_it_is() {
    let rig = Rig::new(|_| {}).counted();
    rig.store(&key(1), b"bytes", b"").unwrap();
    let path = object_files(&rig.dir).remove(0).0;
    fs::remove_file(&path).unwrap();
    fs::write(&path, b"more bytes").unwrap();
    rig.assert_holds(&key(1), b"more bytes", 10);
    assert_eq!(rig.find(&key(1)), Some(10));
    assert_eq!(rig.adapter.usage().used_bytes, 10);
}

#[test]
fn a_link_in_the_place_of_a_directory_of_objects_is_not_followed() {
    let outside = tempfile::tempdir().unwrap();
    let rig = Rig::new(|config| config.layout = LayoutKind::Sharded).counted();
    rig.store(&key(1), b"bytes", b"").unwrap();
    let shard = object_files(&rig.dir)
        .remove(0)
        .0
        .parent()
        .unwrap()
        .to_owned();
    fs::remove_dir_all(&shard).unwrap();
    symlink(outside.path(), &shard).unwrap();
    assert_eq!(rig.load(&key(1), 5, 0).0, LoadOutcome::Missing);
    assert_eq!(rig.find(&key(1)), None);
    let error = rig.store(&key(1), b"bytes", b"").unwrap_err();
    assert!(!error.retryable, "{error}");
    assert!(rig.adapter.delete(&[key(1)]).unwrap().gone.test(0));
    assert!(fs::read_dir(outside.path()).unwrap().next().is_none());
}

#[test]
fn an_object_that_does_not_fit_its_page_stays_and_the_page_is_not_filled() {
    for (way, layout, io, direct, _) in every_way() {
        let rig =
            Rig::new(|config| (config.layout, config.io, config.direct) = (layout, io, direct));
        rig.store(&key(1), &bytes(1, 2 * PAGE), b"t").unwrap();
        let (outcome, page) = rig.load(&key(1), 2 * PAGE, 0);
        assert!(
            matches!(&outcome, LoadOutcome::Failed(why) if why.contains("8193")),
            "{way}: {outcome:?}"
        );
        assert!(page.iter().all(|byte| *byte == 0), "{way}");
        assert_eq!(rig.find(&key(1)), Some(2 * PAGE as u64 + 1), "{way}");
    }
}

#[test]
fn links_and_directories_in_the_place_of_files_are_not_followed() {
    let outside = tempfile::tempdir().unwrap();
    let victim = outside.path().join("victim");
    fs::write(&victim, b"not yours").unwrap();
    let rig = Rig::new(|_| {}).counted();
    symlink(&victim, rig.dir.join(key(1).file_name())).unwrap();
    fs::create_dir(rig.dir.join(key(2).file_name())).unwrap();
    for n in [1, 2] {
        assert_eq!(rig.find(&key(n)), None);
        assert_eq!(rig.load(&key(n), 100, 0).0, LoadOutcome::Missing);
        let error = rig.store(&key(n), b"bytes", b"").unwrap_err();
        assert!(!error.retryable, "{error}");
    }
    assert_eq!(fs::read(&victim).unwrap(), b"not yours");
    assert!(temporary_files(&rig.dir).is_empty());
}

fn mknod(path: &Path, kind: FileType) {
    mknodat(CWD, path, kind, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

type Make = fn(&Path);

/// What may have the name of a file and is none, as somebody else may make it.
const NO_FILES: [(&str, Make); 5] = [
    ("a pipe", |path| mknod(path, FileType::Fifo)),
    ("a socket", |path| mknod(path, FileType::Socket)),
    ("a directory", |path| fs::create_dir(path).unwrap()),
    ("a link to a pipe", |path| {
        let pipe = path.with_extension("pipe");
        if !pipe.exists() {
            mknod(&pipe, FileType::Fifo);
        }
        symlink(pipe, path).unwrap();
    }),
    ("a link to nothing", |path| {
        symlink("/nothing/here", path).unwrap()
    }),
];

// Opening a pipe waits for its other end: as many pipes as there are threads, and nothing was ever loaded again.
#[test]
fn what_is_no_file_in_the_place_of_an_object_is_a_miss_and_blocks_nobody() {
    for (way, layout, io, direct, fsync) in every_way() {
        if fsync != Fsync::None {
            continue;
        }
        for (what, make) in NO_FILES {
            let way = format!("{what}, {way}");
            let dir = tempfile::tempdir().unwrap();
            let open = || {
                Rig::at(dir.path(), |config| {
                    (config.layout, config.io, config.direct) = (layout, io, direct);
                    config.workers = 2;
                })
                .counted()
            };
            let rig = open();
            let body = bytes(1, 2 * PAGE);
            for n in 0..4 {
                rig.store(&key(n), &body, b"t").unwrap();
            }
            for (path, _) in object_files(dir.path()) {
                fs::remove_file(&path).unwrap();
                make(&path);
            }
            rig.store(&key(7), &body, b"t").unwrap();
            // It is taken for stored until it is looked at, by loads of several threads, or by a store.
            let load = |n| LoadItem {
                key: key(n),
                page: PageMut::new(common::Aligned::new(2 * PAGE), 1),
            };
            for loaded in rig.load_all((0..3).map(load).collect()) {
                assert_eq!(loaded.outcome, LoadOutcome::Missing, "{way}");
            }
            for n in 0..4 {
                let error = rig.store(&key(n), &body, b"t").unwrap_err();
                assert!(!error.retryable, "{way}: {error}");
                assert_eq!(rig.find(&key(n)), None, "{way}");
            }
            let whole = [&body[..], b"t"].concat();
            let check = |rig: &Rig| {
                assert_eq!(rig.adapter.usage().objects, 1, "{way}");
                rig.assert_holds(&key(7), &whole, body.len());
            };
            check(&rig);
            drop(rig);
            let rig = open();
            check(&rig);
            for n in 0..4 {
                assert_eq!(rig.load(&key(n), 2 * PAGE, 1).0, LoadOutcome::Missing);
                assert_eq!(rig.find(&key(n)), None, "{way}");
            }
            assert!(temporary_files(dir.path()).is_empty(), "{way}");
        }
    }
}

#[test]
fn what_is_no_file_in_the_place_of_the_files_of_writers_blocks_no_start() {
    for (what, make) in NO_FILES {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        make(&at(".ondol-0123456789abcdef.writer"));
        make(&at(".ondol-00000000deadbeef-1.tmp"));
        make(&at("org-SEP-model@0x01000100@0@00000001.tmp"));
        // Nobody can tell whether the writer of this one lives.
        fs::write(at(".ondol-0123456789abcdef-1.tmp"), b"half").unwrap();
        let rig = Rig::at(dir.path(), |_| {}).counted();
        rig.store(&key(1), b"bytes", b"").unwrap();
        drop(rig);
        assert!(at(".ondol-0123456789abcdef-1.tmp").exists(), "{what}");
        let memo = at(".ondol-l2-fs.json");
        fs::remove_file(&memo).unwrap();
        make(&memo);
        let error = l2_fs::FsAdapter::open("fs", &FsConfig::new(dir.path()))
            .unwrap_err()
            .to_string();
        assert!(error.contains(".ondol-l2-fs.json"), "{what}: {error}");
        assert!(error.contains("plain file"), "{what}: {error}");
    }
}

// An eviction of it never succeeded, so that its bytes counted for ever.
#[test]
fn a_directory_in_the_place_of_an_object_does_not_stand_in_the_way_of_room() {
    let rig = Rig::new(|config| config.capacity = Some(1000)).counted();
    rig.store(&key(1), &bytes(1, 900), b"").unwrap();
    let path = object_files(&rig.dir).remove(0).0;
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(rig.store(&key(2), &bytes(2, 900), b""), Ok(900));
    assert_eq!(rig.adapter.usage().used_bytes, 900);
    assert!(path.is_dir());
}

#[test]
fn directories_and_files_are_their_owners_alone() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("a/b");
    let rig = Rig::at(&base, |config| {
        config.layout = LayoutKind::Sharded;
        config.relative_tmp_dir = "tmp/x".into();
    });
    rig.store(&key(1), b"bytes", b"").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let file = object_files(&base).remove(0).0;
    assert_eq!(mode(&file), 0o600);
    for directory in [base.as_path(), &base.join("tmp/x"), file.parent().unwrap()] {
        assert_eq!(mode(directory), 0o700, "{}", directory.display());
    }
    // One that exists stays as it is.
    let open = dir.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
    Rig::at(&open, |_| {});
    assert_eq!(mode(&open), 0o755);
}

#[test]
fn a_directory_that_cannot_be_used_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    let mut config = FsConfig::new(&missing);
    config.create = false;
    let error = l2_fs::FsAdapter::open("fs", &config)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("missing") && error.contains("No such file"),
        "{error}"
    );
    let file = dir.path().join("file");
    fs::write(&file, b"").unwrap();
    let error = l2_fs::FsAdapter::open("fs", &FsConfig::new(&file))
        .unwrap_err()
        .to_string();
    assert!(error.contains("file is no directory"), "{error}");
    fs::write(dir.path().join(".ondol-l2-fs.json"), b"{\"version\":9}").unwrap();
    let error = l2_fs::FsAdapter::open("fs", &FsConfig::new(dir.path()))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(".ondol-l2-fs.json") && error.contains("version"),
        "{error}"
    );
}

#[test]
fn a_file_system_in_memory_works() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        println!("SKIPPED: no /dev/shm");
        return;
    };
    let rig = Rig::at(dir.path(), |config| config.direct = true);
    let body = bytes(1, 5 * PAGE);
    rig.store(&key(1), &body, b"trailer").unwrap();
    rig.assert_holds(&key(1), &[&body[..], b"trailer"].concat(), body.len());
    let file = object_files(dir.path()).remove(0).0;
    assert_eq!(fs::metadata(file).unwrap().size(), 5 * PAGE as u64 + 7);
}

#[test]
fn a_listing_has_every_key_once_and_takes_no_cursor_of_somebody_elses() {
    let rig = Rig::new(|_| {}).counted();
    for n in 0..25 {
        rig.store(&key(n), &bytes(n, n as usize), b"").unwrap();
    }
    let other = ObjectKey::new("other", KvRank(1), 0, [1], "").unwrap();
    rig.store(&other, b"x", b"").unwrap();
    let mut request = ListRequest {
        model_name: Some("org/model".into()),
        page_size: 10,
        cursor: None,
    };
    let mut seen = Vec::new();
    loop {
        let page = rig.adapter.list_keys(&request).unwrap();
        assert!(page.entries.len() <= 10);
        seen.extend(page.entries);
        request.cursor = page.next_cursor;
        if request.cursor.is_none() {
            break;
        }
        // What comes and goes meanwhile does not disturb the rest.
        rig.adapter.delete(&[key(0)]).unwrap();
    }
    let expected: Vec<_> = (0..25).map(|n| (key(n), u64::from(n))).collect();
    let seen: Vec<_> = seen
        .into_iter()
        .map(|entry| (entry.key, entry.size_bytes))
        .collect();
    assert_eq!(seen, expected);
    for cursor in ["", "7", "zzz-7", "0000000000000000-7"] {
        request.cursor = Some(cursor.into());
        let error = rig.adapter.list_keys(&request).unwrap_err().to_string();
        assert!(error.contains("cursor"), "{error}");
    }
    request.cursor = None;
    request.page_size = 0;
    assert!(rig.adapter.list_keys(&request).is_err());
}
