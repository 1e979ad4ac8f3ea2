//! A torn tail is cut; everything else that is wrong is an error that names the place. No damage makes another state.

use std::ops::Range;

use super::world::{Choices, World};
use super::*;

/// A log in one segment, with what it says.
struct Sample {
    dir: TempDir,
    /// Each change with the byte of the segment at which its record ends.
    changes: Vec<(u64, Change)>,
    last_batch: Range<u64>,
}

fn sample(seed: u64, steps: usize) -> Sample {
    let dir = temp_dir();
    let log = Log::create(dir.path(), POOL, &world::pool(), single()).unwrap();
    let mut world = World::new();
    let mut changes = Vec::new();
    let mut last_batch = 0..0;
    let mut unflushed = log.position().0;
    for choice in Choices(seed).take(steps) {
        let Some(change) = world.plan(choice) else {
            continue;
        };
        log.record(&change).unwrap();
        world.image.apply(&change).unwrap();
        changes.push((log.position().0, change));
        if choice % 3 == 0 {
            last_batch = unflushed..log.position().0;
            unflushed = log.position().0;
            log.flush(log.position()).unwrap();
        }
    }
    if unflushed < log.position().0 {
        last_batch = unflushed..log.position().0;
        log.flush(log.position()).unwrap();
    }
    drop(log);
    // What is made ahead is not part of the sample.
    segments(dir.path())
        .into_iter()
        .skip(1)
        .for_each(|spare| fs::remove_file(spare).unwrap());
    Sample {
        dir,
        changes,
        last_batch,
    }
}

impl Sample {
    fn state_of(&self, bytes: u64) -> (Image, usize) {
        let whole = self.changes.iter().take_while(|(end, _)| *end <= bytes);
        let mut image = Image::new(world::pool());
        let count = whole
            .map(|(_, change)| image.apply(change).unwrap())
            .count();
        (image, count)
    }

    /// A copy with a change made to the segment's bytes.
    fn damaged(&self, damage: impl FnOnce(&mut Vec<u8>)) -> TempDir {
        let copy = copy(self.dir.path());
        let segment = &segments(copy.path())[0];
        let mut bytes = fs::read(segment).unwrap();
        damage(&mut bytes);
        fs::write(segment, bytes).unwrap();
        copy
    }
}

#[track_caller]
fn assert_corrupt(dir: &Path, named: &str) {
    match recover(dir, single()) {
        Err(error @ LogError::Corrupt { .. }) => {
            let text = error.to_string();
            assert!(
                text.contains(named) && text.contains("ondol serve --fresh"),
                "{text}"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_log_cut_anywhere_holds_what_was_written_whole_before() {
    let sample = sample(1, 40);
    let end = sample.last_batch.end;
    for len in 0..end + 40 {
        let copy = sample.damaged(|bytes| bytes.truncate(len as usize));
        if len < FILE_HEADER as u64 {
            // The header was on the disk before the log was.
            assert_corrupt(copy.path(), "segment-0000000000000000.log");
            continue;
        }
        let recovered = recover(copy.path(), single()).unwrap();
        let (expected, count) = sample.state_of(len);
        assert_eq!(recovered.image, expected, "cut at {len}");
        assert_eq!(recovered.changes, count as u64);
        assert!(recovered.cut_bytes < 1200);
        if len % 4 != 0 {
            continue;
        }
        // The log goes on where it was cut.
        let mut world = World { image: expected };
        let change = Choices(len).find_map(|choice| world.plan(choice)).unwrap();
        recovered.log.record(&change).unwrap();
        world.image.apply(&change).unwrap();
        recovered.log.flush(recovered.log.position()).unwrap();
        drop(recovered.log);
        let again = recover(copy.path(), single()).unwrap();
        assert_eq!(again.image, world.image, "cut at {len}");
        assert_eq!(again.cut_bytes, 0);
    }
}

#[test]
fn no_changed_byte_makes_another_state() {
    let sample = sample(2, 50);
    let end = sample.last_batch.end;
    for at in 0..end + 24 {
        for flip in [1, 0xff] {
            let copy = sample.damaged(|bytes| bytes[at as usize] ^= flip);
            match recover(copy.path(), single()) {
                Ok(recovered) => {
                    assert!(
                        at >= sample.last_batch.start,
                        "damage at {at} was not found"
                    );
                    let whole = if at < end { at } else { end };
                    let (expected, _) = sample.state_of(whole);
                    assert_eq!(recovered.image, expected, "damage at {at}");
                }
                Err(error) => {
                    assert!(at < sample.last_batch.start, "damage at {at}: {error}");
                    assert!(
                        matches!(error, LogError::Corrupt { .. }),
                        "damage at {at}: {error}"
                    );
                    let problem = inspect_log(copy.path()).unwrap().problem;
                    assert!(problem.is_some(), "damage at {at}");
                }
            }
        }
    }
}

#[test]
fn a_damaged_middle_names_the_place_and_is_left_as_it_is() {
    let sample = sample(3, 200);
    let (end, _) = sample.changes[sample.changes.len() / 2];
    let copy = sample.damaged(|bytes| bytes[end as usize + 5] ^= 4);
    let before = fs::read(&segments(copy.path())[0]).unwrap();
    match recover(copy.path(), single()) {
        Err(LogError::Corrupt { file, offset, .. }) => {
            assert_eq!((file, offset), (segments(copy.path())[0].clone(), end));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(fs::read(&segments(copy.path())[0]).unwrap(), before);
}

#[test]
fn bytes_of_another_pool_or_another_place_are_no_records() {
    let (ours, theirs) = (sample(4, 60), temp_dir());
    let end = ours.last_batch.end as usize;
    let log = Log::create(theirs.path(), PoolId([8; 16]), &world::pool(), single()).unwrap();
    let mut world = World::new();
    for choice in Choices(5).take(900) {
        if let Some(change) = world.plan(choice) {
            log.record(&change).unwrap();
            world.image.apply(&change).unwrap();
        }
    }
    log.flush(log.position()).unwrap();
    drop(log);
    let stale = fs::read(&segments(theirs.path())[0]).unwrap();
    let (expected, _) = ours.state_of(u64::MAX);
    for foreign in [
        &stale[end..end + 2000],
        &fs::read(&segments(ours.dir.path())[0]).unwrap()[64..1000],
    ] {
        let copy = ours.damaged(|bytes| bytes[end..end + foreign.len()].copy_from_slice(foreign));
        let recovered = recover(copy.path(), single()).unwrap();
        assert_eq!(recovered.image, expected);
        assert!(recovered.cut_bytes > 0);
    }
    match recover(theirs.path(), single()) {
        Err(LogError::OtherPool {
            found, expected, ..
        }) => {
            assert_eq!((found, expected), (PoolId([8; 16]), POOL));
        }
        other => panic!("{other:?}"),
    }
}

/// A log of several segments without checkpoints since the first.
fn long(seed: u64) -> (TempDir, World) {
    let dir = temp_dir();
    let options = LogOptions {
        compact_bytes: Some(u64::MAX),
        ..tiny()
    };
    let log = Log::create(dir.path(), POOL, &world::pool(), options).unwrap();
    let mut world = World::new();
    for choice in Choices(seed).take(800) {
        if let Some(change) = world.plan(choice) {
            log.record(&change).unwrap();
            world.image.apply(&change).unwrap();
            log.flush(log.position()).unwrap();
        }
    }
    let ahead = || {
        Listing::read(dir.path())
            .unwrap()
            .segments
            .last()
            .unwrap()
            .0
    };
    wait_until("the next segment", || ahead() > log.position().0);
    drop(log);
    (dir, world)
}

#[test]
fn a_missing_file_is_never_an_empty_pool() {
    let (dir, world) = long(6);
    let count = segments(dir.path()).len();
    assert!(count > 4, "{count} segments");
    for missing in 0..count - 1 {
        let copy = copy(dir.path());
        let gone = segments(copy.path())[missing].clone();
        fs::remove_file(&gone).unwrap();
        assert_corrupt(copy.path(), gone.file_name().unwrap().to_str().unwrap());
        let copy = self::copy(dir.path());
        fs::write(&segments(copy.path())[missing], b"").unwrap();
        assert_corrupt(copy.path(), "found 0 bytes");
    }
    let copy = copy(dir.path());
    fs::remove_file(&checkpoints(copy.path())[0]).unwrap();
    assert_corrupt(copy.path(), "segments without a checkpoint");
    assert_eq!(recover(dir.path(), tiny()).unwrap().image, world.image);
}

#[test]
fn a_segment_made_ahead_may_hold_anything_but_records() {
    let (dir, world) = long(7);
    let last = segments(dir.path()).pop().unwrap();
    for bytes in [vec![], vec![0; 30], vec![0x5a; 4096], vec![0; 4096]] {
        let copy = copy(dir.path());
        fs::write(copy.path().join(last.file_name().unwrap()), bytes).unwrap();
        let recovered = recover(copy.path(), tiny()).unwrap();
        assert_eq!(recovered.image, world.image);
    }
}

#[test]
fn a_damaged_checkpoint_is_an_error_wherever_it_is_damaged() {
    let dir = temp_dir();
    drop(Log::create(dir.path(), POOL, &world::pool(), single()).unwrap());
    let world = World::after(Choices(8).take(400));
    let go_on = AtomicBool::new(false);
    checkpoint::write(dir.path(), &Identity::new(POOL), 0, &world.image, &go_on).unwrap();
    assert_eq!(recover(dir.path(), single()).unwrap().image, world.image);
    let path = checkpoints(dir.path())[0].clone();
    let whole = fs::read(&path).unwrap();
    for at in (0..whole.len()).step_by(7) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        fs::write(&path, bytes).unwrap();
        assert_corrupt(dir.path(), "checkpoint-0000000000000000.image");
        fs::write(&path, &whole[..at]).unwrap();
        assert_corrupt(dir.path(), "checkpoint-0000000000000000.image");
    }
    fs::write(&path, &whole).unwrap();
    assert_eq!(recover(dir.path(), single()).unwrap().image, world.image);
}

#[test]
fn an_older_checkpoint_serves_where_the_log_since_is_there() {
    let (dir, world) = long(9);
    let first = segments(dir.path());
    let listing = Listing::read(dir.path()).unwrap();
    let (position, _) = listing.segments[2];
    let damaged = dir.path().join(files::checkpoint_name(position));
    fs::write(&damaged, b"ONDOLIMG and no more").unwrap();
    let copy = copy(dir.path());
    assert_eq!(recover(copy.path(), tiny()).unwrap().image, world.image);
    assert_eq!(checkpoints(copy.path()).len(), 1);
    fs::remove_file(&first[0]).unwrap();
    assert_corrupt(dir.path(), damaged.file_name().unwrap().to_str().unwrap());
}

#[test]
fn a_change_that_does_not_fit_the_state_is_an_error() {
    let dir = temp_dir();
    let log = Log::create(dir.path(), POOL, &world::pool(), single()).unwrap();
    let change = Change::Detach {
        client: ondol_shm::ClientId(3),
    };
    log.record(&change).unwrap();
    log.flush(log.position()).unwrap();
    drop(log);
    assert_corrupt(dir.path(), "there is no such client");
}

#[test]
fn a_link_to_another_directory_is_not_followed_and_foreign_files_stay() {
    let root = tempfile::tempdir().unwrap();
    let real = root.path().join("real");
    fs::create_dir(&real).unwrap();
    for name in ["notes.draft", "segment-0000000000000000.log", "npmrc"] {
        fs::write(real.join(name), "theirs").unwrap();
    }
    let link = root.path().join("log");
    std::os::unix::fs::symlink(&real, &link).unwrap();
    let id = PoolId([1; 16]);
    let empty = Pool::new([], None);
    for error in [
        Log::create(&link, id, &empty, LogOptions::default()).unwrap_err(),
        Log::recover(&link, id, empty.emptied(), LogOptions::default()).unwrap_err(),
        Log::remove(&link).unwrap_err(),
    ] {
        assert!(error.to_string().contains("a symbolic link"), "{error}");
    }
    assert!(Log::exists(&link).is_err());
    assert_eq!(fs::read_dir(&real).unwrap().count(), 3);

    Log::remove(&real).unwrap();
    let mut left: Vec<_> = fs::read_dir(&real)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["notes.draft", "npmrc"]);
}
