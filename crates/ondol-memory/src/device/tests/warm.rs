//! Devices that outlive their server.

use super::*;

/// A device of each kind that a machine without huge pages has, a state directory, and the pool of the next server.
struct Place {
    _roots: [TempDir; 2],
    env: DeviceEnv,
    uri: String,
    state: PathBuf,
    pool: PoolId,
}

impl Place {
    fn all() -> Vec<Self> {
        vec![
            Self::shm(),
            Self::dir(tempfile::tempdir().unwrap()),
            Self::dir(shm_root().0),
            Self::dax(),
        ]
    }

    fn new(roots: [TempDir; 2], env: DeviceEnv, uri: String) -> Self {
        let state = roots[1].path().join("state");
        fs::create_dir(&state).unwrap();
        Self {
            _roots: roots,
            env,
            uri,
            state,
            pool: PoolId::generate().unwrap(),
        }
    }

    fn shm() -> Self {
        let (root, env) = shm_root();
        Self::new(
            [root, tempfile::tempdir().unwrap()],
            env,
            "shm:pool?size=3MiB".to_owned(),
        )
    }

    fn dir(root: TempDir) -> Self {
        let env = DeviceEnv {
            shm_root: root.path().to_owned(),
            ..DeviceEnv::default()
        };
        let uri = format!("dir:{}?size=768KiB&region=256KiB", root.path().display());
        Self::new([root, tempfile::tempdir().unwrap()], env, uri)
    }

    fn dax() -> Self {
        let (root, env, node) = fake_dax();
        Self::new(
            [root, tempfile::tempdir().unwrap()],
            env,
            format!("dax:{}", node.display()),
        )
    }

    fn options(&self, predecessor: Predecessor) -> OpenOptions {
        OpenOptions {
            pool: Some(self.pool),
            state: Some(self.state.clone()),
            predecessor,
            ..OpenOptions::default()
        }
    }

    fn open(&self, predecessor: Predecessor) -> Result<Device, DeviceError> {
        open_with(&self.uri, &self.env, &self.options(predecessor))
    }

    fn fresh(&self) -> Device {
        self.open(Predecessor::Unknown).unwrap()
    }

    fn keep(&self, record: &DeviceRecord) -> Result<Device, DeviceError> {
        self.open(Predecessor::Keep(record.clone()))
    }

    /// The message with which the device is refused as changed.
    fn changed(&self, record: &DeviceRecord) -> String {
        match self.keep(record) {
            Err(error @ DeviceError::Changed { .. }) => {
                let text = error.to_string();
                assert!(text.contains("`ondol serve --fresh`"), "{text}");
                text
            }
            other => panic!("{}: {other:?}", self.uri),
        }
    }

    /// The state directory of another server, which has a log of this place's pool.
    fn log_of_other(&self) -> OpenOptions {
        let state = self._roots[1].path().join("other");
        let pool = PoolId::generate().unwrap();
        write_log(&state, pool);
        OpenOptions {
            pool: Some(pool),
            state: Some(state),
            ..OpenOptions::default()
        }
    }

    /// Everything in the directory of the device's files.
    fn listing(&self) -> Vec<String> {
        names(&self.env.shm_root)
    }
}

pub(super) fn write_log(state: &Path, pool: PoolId) {
    write_file(
        state.join("log/pool.json"),
        &format!(r#"{{"pool":"{pool}","boot":"x","devices":[]}}"#),
    );
}

fn open_with(uri: &str, env: &DeviceEnv, options: &OpenOptions) -> Result<Device, DeviceError> {
    Device::open(&uri.parse().unwrap(), env, options)
}

/// Bytes that differ from page to page and from backing to backing.
fn pattern(index: usize, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let page = bytes.len() / 4096 + index * 17 + 1;
        bytes.extend((page as u64).to_le_bytes());
        bytes.resize(len.min(bytes.len().next_multiple_of(4096)), page as u8);
    }
    bytes
}

fn fill(device: &Device) {
    for (index, backing) in device.backings().iter().enumerate() {
        let file = backing.open_write().unwrap();
        let usable = backing.usable();
        let bytes = pattern(index, (usable.end - usable.start) as usize);
        let mut written = 0;
        while written < bytes.len() {
            let at = usable.start + written as u64;
            written += rustix::io::pwrite(&file, &bytes[written..], at).unwrap();
        }
    }
}

fn is_filled(device: &Device) -> bool {
    device
        .backings()
        .iter()
        .enumerate()
        .all(|(index, backing)| {
            let usable = backing.usable();
            let mut bytes = Vec::new();
            let file = fs::File::from(backing.open_read().unwrap());
            (&file).take(usable.end).read_to_end(&mut bytes).unwrap();
            bytes.drain(..usable.start as usize);
            bytes == pattern(index, bytes.len())
        })
}

fn ids(device: &Device) -> Vec<FileId> {
    device
        .backings()
        .iter()
        .map(|backing| FileId::of(backing.open_read().unwrap()).unwrap())
        .collect()
}

#[test]
fn every_byte_is_there_after_the_server_is_gone() {
    for place in Place::all() {
        let first = place.fresh();
        assert!(!first.was_kept());
        fill(&first);
        let (record, before, shown) = (first.record(), ids(&first), first.uri().clone());
        assert_eq!(record.is_volatile(), first.is_volatile());
        let usable: Vec<_> = first.backings().iter().map(Backing::usable).collect();
        drop(first);
        let listing = place.listing();

        let second = place.keep(&record).unwrap();
        assert!(second.was_kept() && is_filled(&second), "{}", place.uri);
        assert_eq!((ids(&second), second.uri()), (before, &shown));
        let kept: Vec<_> = second.backings().iter().map(Backing::usable).collect();
        assert_eq!(kept, usable);
        assert_eq!(second.record(), record);
        assert_eq!(place.listing(), listing);
        drop(second);

        // Not after it was given up.
        let third = place.open(Predecessor::Replace).unwrap();
        assert!(!third.was_kept());
        drop(third);
    }
}

#[test]
fn every_byte_is_there_after_the_server_was_killed() {
    for place in Place::all() {
        let options = place.options(Predecessor::Unknown);
        let mut holder = Holder::start_with(&place.uri, &place.env, &options, "hold", "").unwrap();
        // The server's bytes are written by clients, as these are.
        let record = holder.record.clone();
        for (index, file) in record.files.iter().enumerate() {
            let path = match record.uri() {
                DeviceUri::Shm { name, .. } => place.env.shm_root.join(name),
                DeviceUri::Dir { path, .. } => path.join(format!("ondol-{index:06}.region")),
                DeviceUri::Dax { path, .. } => path.clone(),
                other => panic!("{other}"),
            };
            let file_of_client = fs::File::options().write(true).open(path).unwrap();
            let start = if record.uri().scheme() == "dax" {
                2 * MIB
            } else {
                0
            };
            let bytes = pattern(index, (file.len - start) as usize);
            std::os::unix::fs::FileExt::write_all_at(&file_of_client, &bytes, start).unwrap();
        }
        for _ in 0..3 {
            let record = holder.kill();
            let options = place.options(Predecessor::Keep(record));
            holder = Holder::start_with(&place.uri, &place.env, &options, "hold", "").unwrap();
        }
        let record = holder.kill();
        assert!(is_filled(&place.keep(&record).unwrap()), "{}", place.uri);
    }
}

#[test]
fn a_device_of_memory_without_a_name_is_never_kept() {
    let place = Place::shm();
    let open = |predecessor| {
        open_with("memfd:?size=1MiB", &place.env, &place.options(predecessor)).unwrap()
    };
    let record = open(Predecessor::Unknown).record();
    assert!(record.is_volatile() && !record.outlives_process());
    assert!(!open(Predecessor::Keep(record)).was_kept());
}

#[test]
fn a_record_reads_back_from_json() {
    for place in Place::all() {
        let record = place.fresh().record();
        let json = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<DeviceRecord>(&json).unwrap(), record);
    }
}

#[test]
fn without_a_size_a_shm_device_keeps_the_size_that_it_has() {
    let mut place = Place::shm();
    let record = place.fresh().record();
    place.uri = "shm:pool".to_owned();
    let device = place.keep(&record).unwrap();
    assert_eq!(device.uri().to_string(), "shm:pool?size=3MiB");
}

#[test]
fn another_size_than_the_log_says_is_refused_with_both() {
    for (mut place, query, sizes) in [
        (Place::shm(), "?size=4MiB", ["4 MiB", "3 MiB"]),
        (
            Place::dir(tempfile::tempdir().unwrap()),
            "?size=1024KiB&region=256KiB",
            ["4 files of 262144 bytes", "3 files of 262144 bytes"],
        ),
        (
            Place::dir(tempfile::tempdir().unwrap()),
            "?size=768KiB",
            ["1 files of 786432 bytes", "3 files of 262144 bytes"],
        ),
        (Place::dax(), "?size=8MiB", ["6 MiB", "14 MiB"]),
    ] {
        let device = place.fresh();
        fill(&device);
        let record = device.record();
        drop(device);
        let uri = place.uri.clone();
        let (path, _) = uri.split_once('?').unwrap_or((&uri, ""));
        place.uri = format!("{path}{query}");
        let text = place.changed(&record);
        assert!(sizes.iter().all(|size| text.contains(size)), "{text}");
        place.uri = uri;
        assert!(is_filled(&place.keep(&record).unwrap()));
    }
}

#[test]
fn a_device_of_another_pool_is_refused() {
    for mut place in Place::all() {
        let device = place.fresh();
        fill(&device);
        let record = device.record();
        drop(device);
        let there = std::mem::replace(&mut place.pool, PoolId::generate().unwrap());
        let text = place.changed(&record);
        assert!(
            text.contains(&there.to_string()) && text.contains(&place.pool.to_string()),
            "{text}"
        );
        place.pool = there;
        assert!(is_filled(&place.keep(&record).unwrap()));
    }
}

#[test]
fn a_device_that_was_used_since_is_refused() {
    for place in Place::all() {
        let [first, second] = [1, 2].map(RunId);
        let device = place.fresh();
        fill(&device);
        assert_eq!((device.run(), device.record().runs()), (None, &[][..]));
        let without = device.record();
        device.set_run(first).unwrap();
        let old = device.record();
        assert_eq!((device.run(), old.runs()), (Some(first), &[first][..]));
        drop(device);

        let device = place.keep(&old).unwrap();
        assert_eq!(device.run(), Some(first));
        // Until it is said, nothing changes.
        drop(device);
        let device = place.keep(&old).unwrap();
        device.set_run(second).unwrap();
        let now = device.record();
        drop(device);
        for record in [&old, &without] {
            let text = place.changed(record);
            assert!(
                text.contains(&format!("last used in run {second}")),
                "{text}"
            );
            assert!(text.contains("older copy"), "{text}");
        }
        assert!(place.changed(&old).contains(&format!("run {first}")));
        // A server that may have been killed before or after it said so.
        let mut either = old.clone();
        either.expect_runs([first, second]);
        assert_eq!(place.keep(&either).unwrap().run(), Some(second));
        assert!(is_filled(&place.keep(&now).unwrap()), "{}", place.uri);
    }
}

#[test]
fn a_device_of_a_version_that_named_no_run_is_accepted_once() {
    for place in Place::all() {
        let device = place.fresh();
        fill(&device);
        let mut record = device.record();
        drop(device);
        let device = place.keep(&record).unwrap();
        let run = RunId(5);
        record.expect_runs(device.run().into_iter().chain([run]));
        // Killed here, the next start finds none.
        drop(device);
        let device = place.keep(&record).unwrap();
        device.set_run(run).unwrap();
        drop(device);
        assert!(is_filled(&place.keep(&record).unwrap()), "{}", place.uri);
        record.expect_runs([RunId(6)]);
        place.changed(&record);
    }
}

#[test]
fn a_device_of_another_kind_is_refused() {
    let mut place = Place::shm();
    let record = place.fresh().record();
    place.uri = format!("dir:{}?size=3MiB", place.env.shm_root.display());
    let text = place.changed(&record);
    assert!(text.contains("a dir: device is asked for"), "{text}");
    assert!(text.contains("shm:pool?size=3MiB"), "{text}");
    assert_eq!(place.listing(), ["pool", "pool.owner"]);
}

#[test]
fn a_file_that_changed_is_refused_and_left_as_it_is() {
    // What is done to a file, and what the message says of it.
    type Change = (&'static str, fn(&Path));
    let changes: [Change; 6] = [
        ("is gone", |path| fs::remove_file(path).unwrap()),
        ("another file, inode", |path| {
            fs::copy(path, path.with_extension("copy")).unwrap();
            fs::rename(path.with_extension("copy"), path).unwrap();
        }),
        ("bytes; expected", |path| {
            let file = fs::File::options().write(true).open(path).unwrap();
            file.set_len(65536).unwrap();
        }),
        ("bytes; expected", |path| {
            let file = fs::File::options().write(true).open(path).unwrap();
            file.set_len(16 * MIB).unwrap();
        }),
        ("is a symbolic link", |path| {
            fs::rename(path, path.with_extension("moved")).unwrap();
            symlink(path.with_extension("moved"), path).unwrap();
        }),
        ("is no plain file", |path| {
            fs::remove_file(path).unwrap();
            rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        }),
    ];
    for (said, change) in changes {
        for place in [
            Place::shm(),
            Place::dir(tempfile::tempdir().unwrap()),
            Place::dir(shm_root().0),
        ] {
            let device = place.fresh();
            let record = device.record();
            let path = device.backings().last().unwrap().path().unwrap().to_owned();
            drop(device);
            change(&path);
            let before = (place.listing(), fs::symlink_metadata(&path).ok());
            let text = place.changed(&record);
            assert!(text.contains(said), "{said}: {text}");
            assert!(text.contains(&path.display().to_string()), "{text}");
            let after = (place.listing(), fs::symlink_metadata(&path).ok());
            let id = |meta: &Option<fs::Metadata>| meta.as_ref().map(|m| (m.ino(), m.len()));
            assert_eq!((&before.0, id(&before.1)), (&after.0, id(&after.1)));
        }
    }
}

#[test]
fn a_file_that_was_emptied_and_drawn_out_again_is_refused() {
    for place in [Place::shm(), Place::dir(shm_root().0)] {
        let device = place.fresh();
        if !device.is_volatile() {
            println!("SKIPPED in part: no file system of memory");
            continue;
        }
        let (record, path) = (
            device.record(),
            device.backings()[0].path().unwrap().to_owned(),
        );
        drop(device);
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_len(0).unwrap();
        file.set_len(record.files[0].len).unwrap();
        let text = place.changed(&record);
        assert!(text.contains("cut out"), "{text}");
    }
}

#[test]
fn a_directory_that_is_not_mounted_is_refused() {
    let place = Place::dir(tempfile::tempdir().unwrap());
    let record = place.fresh().record();
    let root = &place.env.shm_root;
    let away = root.with_extension("away");
    fs::rename(root, &away).unwrap();
    let text = place.changed(&record);
    assert!(text.contains("there is no directory"), "{text}");
    fs::rename(&away, root).unwrap();
    assert!(place.keep(&record).unwrap().was_kept());
}

#[test]
fn a_device_whose_lock_file_is_gone_is_refused() {
    for place in [Place::shm(), Place::dir(tempfile::tempdir().unwrap())] {
        let record = place.fresh().record();
        let listing = place.listing();
        let lock = listing
            .iter()
            .find(|name| name.ends_with(".owner"))
            .unwrap();
        let lock = place.env.shm_root.join(lock);
        let text = fs::read(&lock).unwrap();
        fs::remove_file(&lock).unwrap();
        let refused = place.changed(&record);
        assert!(refused.contains(&lock.display().to_string()), "{refused}");
        assert!(!lock.exists());
        // Put back, it serves again.
        fs::write(&lock, text).unwrap();
        place.keep(&record).unwrap();
    }
}

#[test]
fn a_file_that_the_lock_file_does_not_name_is_refused() {
    let place = Place::shm();
    let record = place.fresh().record();
    let lock = place.env.shm_root.join("pool.owner");
    let text = fs::read_to_string(&lock).unwrap();
    let inode = record.files[0].inode.unwrap();
    fs::write(&lock, text.replace(&format!(" {inode}\n"), " 1\n")).unwrap();
    let text = place.changed(&record);
    assert!(text.contains("is not the file that"), "{text}");
}

#[test]
fn a_dax_device_whose_header_changed_is_refused() {
    let place = Place::dax();
    let record = place.fresh().record();
    let DeviceUri::Dax { path, .. } = record.uri().clone() else {
        panic!("{record:?}")
    };
    let bytes = fs::read(&path).unwrap();
    for (at, byte, said) in [
        (64, b'X', "header is gone"),
        (72, 9, "header has version 9"),
        (80, !bytes[80], "header is damaged"),
    ] {
        let mut changed = bytes.clone();
        changed[at] = byte;
        fs::write(&path, changed).unwrap();
        let text = place.changed(&record);
        assert!(text.contains(said), "{text}");
    }
    // What another version wrote is not overwritten by the way.
    let mut other = bytes.clone();
    other[72] = 9;
    fs::write(&path, &other).unwrap();
    let text = place.open(Predecessor::Unknown).unwrap_err().to_string();
    assert!(
        text.contains("version 9") && text.contains("--fresh"),
        "{text}"
    );
    assert_eq!(fs::read(&path).unwrap(), other);
    drop(place.open(Predecessor::Replace).unwrap());

    fs::write(&path, &bytes).unwrap();
    // The lock file lies in memory, and is gone after a reboot.
    fs::remove_file(place.env.shm_root.join("dax0.0.dax-owner")).unwrap();
    assert!(place.keep(&record).unwrap().was_kept());
}

#[test]
fn a_device_of_a_living_server_is_never_taken() {
    for place in Place::all() {
        let options = place.options(Predecessor::Unknown);
        let holder = Holder::start_with(&place.uri, &place.env, &options, "hold", "").unwrap();
        let record = holder.record.clone();
        for predecessor in [
            Predecessor::Unknown,
            Predecessor::Replace,
            Predecessor::Keep(record.clone()),
        ] {
            let error = place.open(predecessor).unwrap_err();
            assert!(
                matches!(error, DeviceError::InUse { pid: Some(pid), .. } if pid == holder.pid()),
                "{error:?}"
            );
        }
        holder.kill();
        assert!(place.keep(&record).unwrap().was_kept());
    }
}

#[test]
fn what_a_stopped_server_will_come_back_for_is_taken_by_force_only() {
    for place in Place::all() {
        let other = place.log_of_other();
        let device = open_with(&place.uri, &place.env, &other).unwrap();
        fill(&device);
        let record = device.record();
        drop(device);

        let error = place.open(Predecessor::Unknown).unwrap_err();
        let text = error.to_string();
        let state = fs::canonicalize(other.state.as_ref().unwrap()).unwrap();
        assert!(
            matches!(&error, DeviceError::Reserved { state: found, .. } if *found == state),
            "{text}"
        );
        assert!(
            text.contains("start that one") && text.contains("--fresh"),
            "{text}"
        );
        let keep = |options: &OpenOptions| {
            let options = OpenOptions {
                predecessor: Predecessor::Keep(record.clone()),
                ..options.clone()
            };
            open_with(&place.uri, &place.env, &options)
        };
        assert!(is_filled(&keep(&other).unwrap()));

        // Nor by a server with a copy of the log, as then both would be sure that the bytes are theirs.
        let copy = OpenOptions {
            state: Some(place.state.clone()),
            ..other.clone()
        };
        let error = keep(&copy).unwrap_err();
        assert!(matches!(error, DeviceError::Reserved { .. }), "{error:?}");
        // But by one whose state directory was moved.
        let aside = state.with_extension("aside");
        fs::rename(&state, &aside).unwrap();
        assert!(is_filled(&keep(&copy).unwrap()));
        fs::rename(&aside, &state).unwrap();

        drop(place.open(Predecessor::Replace).unwrap());
        let error = keep(&other).unwrap_err();
        assert!(matches!(error, DeviceError::Changed { .. }), "{error:?}");
    }
}

#[test]
fn what_nobody_will_come_back_for_is_replaced() {
    type Change = fn(&Path);
    let changes: [Change; 4] = [
        |state| fs::remove_dir_all(state).unwrap(),
        |state| fs::remove_dir_all(state.join("log")).unwrap(),
        |state| fs::remove_file(state.join("log/pool.json")).unwrap(),
        // That server has begun another pool.
        |state| write_log(state, PoolId([9; 16])),
    ];
    for change in changes {
        for place in Place::all() {
            let other = place.log_of_other();
            drop(open_with(&place.uri, &place.env, &other).unwrap());
            change(other.state.as_deref().unwrap());
            assert!(!place.open(Predecessor::Unknown).unwrap().was_kept());
        }
    }
    // The server's own state directory, reached by another path.
    for mut place in Place::all() {
        write_log(&place.state, place.pool);
        drop(place.fresh());
        let link = place.state.with_extension("link");
        symlink(&place.state, &link).unwrap();
        place.state = link;
        place.pool = PoolId::generate().unwrap();
        assert!(!place.fresh().was_kept());
    }
}

#[test]
fn what_a_server_without_a_log_left_is_replaced() {
    for place in Place::all() {
        drop(open_with(&place.uri, &place.env, &OpenOptions::default()).unwrap());
        let record = place.fresh().record();
        // And such a server makes a device unknown to whoever had a log of it.
        fs::remove_dir_all(&place.state).unwrap();
        drop(open_with(&place.uri, &place.env, &OpenOptions::default()).unwrap());
        fs::create_dir(&place.state).unwrap();
        assert!(place.changed(&record).contains("no pool"));
    }
}

#[test]
fn a_lock_file_of_an_earlier_version_is_that_of_a_dead_server() {
    let place = Place::shm();
    drop(place.fresh());
    let lock = place.env.shm_root.join("pool.owner");
    let text = fs::read_to_string(&lock).unwrap();
    let old: String = text
        .lines()
        .filter(|line| !line.starts_with("pool ") && !line.starts_with("state "))
        .map(|line| format!("{line}\n"))
        .collect();
    assert_eq!(old.lines().count(), 6, "{old}");
    fs::write(&lock, old).unwrap();
    assert!(!place.fresh().was_kept());
}

#[test]
fn what_is_given_up_stays_with_those_who_map_it() {
    for place in [Place::shm(), Place::dir(tempfile::tempdir().unwrap())] {
        let device = place.fresh();
        fill(&device);
        let backing = &device.backings()[0];
        let (before, len) = (ids(&device)[0], backing.len());
        let old = backing.open_read().unwrap();
        let map = ReadMapping::new(old.as_fd(), len).unwrap();
        drop(device);

        let device = place.open(Predecessor::Replace).unwrap();
        assert_ne!(ids(&device)[0], before);
        assert_eq!(map.len() as u64, len);
        assert_eq!(fstat(&old).unwrap().st_size as u64, len);
        let mut bytes = vec![0; len as usize];
        (&fs::File::from(old)).read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, pattern(0, len as usize));
        let mut new = vec![1; len as usize];
        let file = device.backings()[0].open_read().unwrap();
        (&fs::File::from(file)).read_exact(&mut new).unwrap();
        assert!(new.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn bytes_can_be_made_durable() {
    for place in Place::all() {
        let device = place.fresh();
        fill(&device);
        device.sync().unwrap();
        for backing in device.backings() {
            backing.sync().unwrap();
            backing
                .sync_ranges(std::iter::once(
                    backing.usable().start..backing.usable().start + 4096,
                ))
                .unwrap();
        }
        assert!(is_filled(&device));
    }
    let place = Place::dir(tempfile::tempdir().unwrap());
    let device = place.fresh();
    if !device.is_volatile() {
        fs::remove_file(device.backings()[1].path().unwrap()).unwrap();
        let text = device.sync().unwrap_err().to_string();
        assert!(
            text.contains("cannot sync") && text.contains("000001"),
            "{text}"
        );
    }
}

#[test]
fn files_are_given_to_a_group_and_a_kept_one_again() {
    const GROUP: u32 = 23_456;
    for place in [Place::shm(), Place::dir(tempfile::tempdir().unwrap())] {
        let options = |predecessor| OpenOptions {
            mode: 0o660,
            group: Some(GROUP),
            ..place.options(predecessor)
        };
        let device = match open_with(&place.uri, &place.env, &options(Predecessor::Unknown)) {
            Ok(device) => device,
            Err(error @ DeviceError::Group { .. }) => {
                let text = error.to_string();
                assert!(
                    text.contains("23456") && text.contains("add the server's user"),
                    "{text}"
                );
                println!("SKIPPED: {text}");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let access = |device: &Device| -> Vec<_> {
            let paths = device
                .backings()
                .iter()
                .map(|backing| backing.path().unwrap());
            paths
                .map(|path| fs::metadata(path).unwrap())
                .map(|meta| (meta.gid(), meta.mode() & 0o7777))
                .collect()
        };
        let all = |device: &Device, wanted| access(device).iter().all(|found| *found == wanted);
        assert!(all(&device, (GROUP, 0o660)), "{:?}", access(&device));
        let record = device.record();
        drop(device);

        let keep = Predecessor::Keep(record);
        let device = place.open(keep.clone()).unwrap();
        assert!(all(&device, (GROUP, 0o600)), "{:?}", access(&device));
        drop(device);
        let other = OpenOptions {
            group: Some(GROUP + 1),
            ..options(keep)
        };
        let device = open_with(&place.uri, &place.env, &other).unwrap();
        assert!(all(&device, (GROUP + 1, 0o660)), "{:?}", access(&device));
    }
}

#[test]
fn fifty_killed_servers_leave_what_one_leaves() {
    for place in [Place::shm(), Place::dir(shm_root().0)] {
        let mut record = place.fresh().record();
        let listing = place.listing();
        let usage = |place: &Place| -> u64 {
            let files = names(&place.env.shm_root);
            let blocks = files.iter().map(|name| {
                fs::metadata(place.env.shm_root.join(name))
                    .unwrap()
                    .blocks()
            });
            blocks.sum()
        };
        let used = usage(&place);
        for round in 0..50_u64 {
            let predecessor = match round % 3 {
                0 => Predecessor::Unknown,
                1 => Predecessor::Keep(record),
                _ => Predecessor::Replace,
            };
            let options = place.options(predecessor);
            let holder = Holder::start_with(&place.uri, &place.env, &options, "hold", "").unwrap();
            record = holder.kill();
        }
        assert_eq!(place.listing(), listing);
        assert_eq!(usage(&place), used);
    }
}

#[test]
fn wherever_a_start_is_cut_off_the_next_one_manages() {
    let steps = ondol_catalog::failpoints();
    let steps = steps
        .iter()
        .map(|point| point.name)
        .filter(|name| name.starts_with("device.") && *name != "device.sync");
    let mut cut = std::collections::BTreeMap::new();
    for step in steps {
        cut.insert(step, 0);
        for hit in 1..=3 {
            for place in Place::all() {
                let first = place.fresh();
                fill(&first);
                first.set_run(RunId(1)).unwrap();
                let mut record = first.record();
                record.expect_runs([RunId(1), HOLDERS_RUN]);
                drop(first);
                let listing = place.listing();
                let pool = place.pool;
                for predecessor in [
                    Predecessor::Keep(record.clone()),
                    Predecessor::Unknown,
                    Predecessor::Replace,
                ] {
                    let keeps = matches!(predecessor, Predecessor::Keep(_));
                    let mut options = place.options(predecessor);
                    if !keeps {
                        options.pool = Some(PoolId::generate().unwrap());
                    }
                    let failpoints = format!("{step}=kill@{hit}");
                    let held =
                        Holder::start_with(&place.uri, &place.env, &options, "hold", &failpoints);
                    match held {
                        Some(holder) => drop(holder.kill()),
                        None => *cut.get_mut(step).unwrap() += 1,
                    }
                    if keeps {
                        // What was kept is still there, whether or not that start came to its end.
                        let device = place.keep(&record).unwrap();
                        assert!(is_filled(&device), "{} {failpoints}", place.uri);
                        assert_eq!(place.pool, pool);
                    } else {
                        let next = place.open(Predecessor::Unknown);
                        let next = next
                            .unwrap_or_else(|error| panic!("{} {failpoints}: {error}", place.uri));
                        assert!(!next.was_kept());
                    }
                    assert_eq!(place.listing(), listing, "{} {failpoints}", place.uri);
                }
            }
        }
    }
    assert!(
        cut.len() >= 7 && cut.values().all(|times| *times > 0),
        "{cut:?}"
    );
}

#[test]
fn a_start_that_gives_up_another_servers_files_halfway_has_taken_them() {
    // Killed between the words of the lock file and the end of the old file: that must not look like the old pool.
    for place in [Place::shm(), Place::dir(tempfile::tempdir().unwrap())] {
        let other = place.log_of_other();
        let first = open_with(&place.uri, &place.env, &other).unwrap();
        let record = first.record();
        drop(first);
        let options = place.options(Predecessor::Replace);
        for failpoint in ["device.record=kill@1", "device.unlink=kill@1"] {
            let held = Holder::start_with(&place.uri, &place.env, &options, "hold", failpoint);
            assert!(held.is_none(), "{failpoint} was not reached");
            let keep = OpenOptions {
                predecessor: Predecessor::Keep(record.clone()),
                ..other.clone()
            };
            let error = open_with(&place.uri, &place.env, &keep).unwrap_err();
            assert!(matches!(error, DeviceError::Changed { .. }), "{error:?}");
        }
        // The one that was killed starts without force.
        assert!(!place.fresh().was_kept());
    }
}
