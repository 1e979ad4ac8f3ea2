//! What people see who clean up.

use super::warm::write_log;
use super::*;

fn options(state: &Path, pool: u8) -> OpenOptions {
    OpenOptions {
        pool: Some(PoolId([pool; 16])),
        state: Some(state.to_owned()),
        ..OpenOptions::default()
    }
}

fn found(env: &DeviceEnv) -> Vec<(String, Standing, usize)> {
    let found = find_leftovers(env).unwrap();
    found
        .iter()
        .map(|left| {
            let name = left.owner_file.file_name().unwrap().to_str().unwrap();
            (name.to_owned(), left.standing, left.files)
        })
        .collect()
}

#[test]
fn the_living_the_warm_and_the_orphans_are_told_apart_and_removed() {
    let (root, env) = shm_root();
    let states = tempfile::tempdir().unwrap();
    let [warm, gone] = ["warm", "gone"].map(|name| states.path().join(name));
    write_log(&warm, PoolId([1; 16]));
    let make = |name: &str, options: &OpenOptions| {
        let uri = format!("shm:{name}?size=64KiB").parse().unwrap();
        Device::open(&uri, &env, options).unwrap()
    };
    drop(make("a-warm", &options(&warm, 1)));
    drop(make("b-gone", &options(&gone, 1)));
    drop(make("c-other-pool", &options(&warm, 2)));
    drop(make("d-no-log", &OpenOptions::default()));
    let moved = make("e-moved", &OpenOptions::default());
    drop(moved);
    fs::rename(root.path().join("e-moved"), root.path().join("elsewhere")).unwrap();
    fs::write(root.path().join("e-moved"), "precious").unwrap();
    fs::write(root.path().join("f-empty.owner"), "").unwrap();
    let living = Holder::start("shm:g-living?size=64KiB", &env, "hold");
    let here = make("h-here", &options(&warm, 1));
    // None of ours.
    fs::write(root.path().join("x.owner"), "precious").unwrap();
    fs::create_dir(root.path().join("y.owner")).unwrap();
    symlink("a-warm.owner", root.path().join("z.owner")).unwrap();

    let expected: Vec<_> = [
        ("a-warm.owner", Standing::Warm, 1),
        ("b-gone.owner", Standing::Orphan, 1),
        ("c-other-pool.owner", Standing::Orphan, 1),
        ("d-no-log.owner", Standing::Orphan, 1),
        ("e-moved.owner", Standing::Orphan, 0),
        ("f-empty.owner", Standing::Orphan, 0),
        ("g-living.owner", Standing::Living, 1),
        ("h-here.owner", Standing::Living, 1),
    ]
    .map(|(name, standing, files)| (name.to_owned(), standing, files))
    .into();
    assert_eq!(found(&env), expected);
    // Looking changes nothing.
    assert_eq!(found(&env), expected);

    let all = find_leftovers(&env).unwrap();
    assert_eq!(all[0].bytes, 65_536);
    assert_eq!(all[0].pool, Some(PoolId([1; 16])));
    assert_eq!(all[0].state, Some(fs::canonicalize(&warm).unwrap()));
    assert!(all[0].has_log && !all[1].has_log && all[1].state.is_some());
    assert_eq!(all[0].pid, Some(std::process::id()));
    assert_eq!((all[6].pid, all[6].is_running), (Some(living.pid()), true));
    assert_eq!((all[5].pid, all[5].pool), (None, None));
    assert!(all.iter().all(|left| left.scheme() == "shm"));
    assert_eq!(all[0].device, root.path().join("a-warm"));

    for left in &all {
        let removed = left.remove();
        let is_living = left.standing == Standing::Living;
        assert_eq!(
            matches!(removed, Err(DeviceError::InUse { .. })),
            is_living,
            "{removed:?}"
        );
        assert_eq!(removed.is_ok(), !is_living, "{removed:?}");
    }
    assert_eq!(
        names(root.path()),
        [
            "e-moved",
            "elsewhere",
            "g-living",
            "g-living.owner",
            "h-here",
            "h-here.owner",
            "x.owner",
            "y.owner",
            "z.owner"
        ]
    );
    drop(here);

    let pid = living.pid();
    living.kill();
    let left = find_leftovers(&env).unwrap();
    assert_eq!((left[0].pid, left[0].is_running), (Some(pid), false));
    assert_eq!(left[0].standing, Standing::Orphan);
}

#[test]
fn what_was_used_since_it_was_examined_is_not_removed() {
    let (root, env) = shm_root();
    let uri = "shm:pool?size=64KiB";
    drop(open(uri, &env).unwrap());
    let [left] = &find_leftovers(&env).unwrap()[..] else {
        panic!("one device")
    };
    drop(open(uri, &env).unwrap());
    let text = left.remove().unwrap_err().to_string();
    assert!(text.contains("examine it again"), "{text}");
    assert_eq!(names(root.path()), ["pool", "pool.owner"]);
    left.remove().unwrap_err();

    let [left] = &find_leftovers(&env).unwrap()[..] else {
        panic!("one device")
    };
    left.remove().unwrap();
    assert!(names(root.path()).is_empty());
    // Nor is something made to be removed.
    left.remove().unwrap_err();
    assert!(names(root.path()).is_empty());
}

#[test]
fn a_directory_is_examined_by_its_name() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("notes"), "precious").unwrap();
    assert!(find_leftover_dir(root.path()).unwrap().is_none());
    assert!(
        find_leftover_dir(&root.path().join("gone"))
            .unwrap()
            .is_none()
    );
    let state = root.path().join("state");
    write_log(&state, PoolId([3; 16]));
    let uri = format!("dir:{}?size=128KiB&region=64KiB", root.path().display());
    let device = Device::open(
        &uri.parse().unwrap(),
        &DeviceEnv::default(),
        &options(&state, 3),
    );
    let device = device.unwrap();
    let standing = || {
        let left = find_leftover_dir(root.path()).unwrap().unwrap();
        assert_eq!((left.scheme(), left.files, left.bytes), ("dir", 2, 131_072));
        left.standing
    };
    assert_eq!(standing(), Standing::Living);
    drop(device);
    assert_eq!(standing(), Standing::Warm);
    fs::remove_dir_all(&state).unwrap();
    assert_eq!(standing(), Standing::Orphan);
    find_leftover_dir(root.path())
        .unwrap()
        .unwrap()
        .remove()
        .unwrap();
    assert_eq!(names(root.path()), ["notes"]);
}

#[test]
fn of_a_dax_device_only_the_lock_file_is_removed() {
    let (_root, env, node) = fake_dax();
    drop(open(&format!("dax:{}", node.display()), &env).unwrap());
    assert_eq!(
        found(&env),
        [("dax0.0.dax-owner".to_owned(), Standing::Orphan, 0)]
    );
    let left = &find_leftovers(&env).unwrap()[0];
    assert_eq!(left.device, Path::new("/dev/dax0.0"));
    left.remove().unwrap();
    assert!(node.exists() && names(&env.shm_root).is_empty());
}

#[test]
fn who_looks_does_not_keep_a_server_from_starting() {
    let (_root, env) = shm_root();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                find_leftovers(&env).unwrap();
            }
        });
        let opened: Vec<_> = (0..300)
            .map(|_| open("shm:pool?size=64KiB", &env).map(drop))
            .collect();
        done.store(true, Ordering::Relaxed);
        for result in opened {
            result.unwrap();
        }
    });
}
