//! A log begins, ends cleanly, fails and goes on, and is removed.

use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::Ordering;
use std::thread;

use super::world::{Choices, World};
use super::*;

fn attach(number: u64) -> Change {
    Change::Attach {
        client: ondol_shm::ClientId(number),
        process: Default::default(),
        instance: [1; 16],
    }
}

fn clients(recovered: &Recovered) -> u64 {
    recovered.image.clients.len() as u64
}

#[test]
fn the_mark_of_a_clean_stop_counts_until_something_is_recorded() {
    let dir = temp_dir();
    let log = Log::create(dir.path(), POOL, &world::pool(), single()).unwrap();
    log.record(&attach(1)).unwrap();
    log.close().unwrap();
    log.close().unwrap();
    let refused = log.record(&attach(2)).unwrap_err();
    assert!(refused.to_string().contains("closed"), "{refused}");
    assert_eq!(log.stats().refused_records, 1);
    drop(log);
    for _ in 0..3 {
        let recovered = recover(dir.path(), single()).unwrap();
        assert_eq!((recovered.clean, clients(&recovered)), (true, 1));
        recovered.log.close().unwrap();
    }
    let recovered = recover(dir.path(), single()).unwrap();
    recovered.log.record(&attach(2)).unwrap();
    recovered.log.flush(recovered.log.position()).unwrap();
    drop(recovered);
    let recovered = recover(dir.path(), single()).unwrap();
    assert_eq!((recovered.clean, clients(&recovered)), (false, 2));
    recovered.log.close().unwrap();
    drop(recovered);
    assert!(recover(dir.path(), single()).unwrap().clean);
}

#[test]
fn what_was_recorded_and_not_flushed_is_no_promise() {
    let dir = temp_dir();
    let log = Log::create(dir.path(), POOL, &world::pool(), single()).unwrap();
    log.record(&attach(1)).unwrap();
    let told = log.position();
    log.flush(told).unwrap();
    log.record(&attach(2)).unwrap();
    drop(log);
    assert_eq!(clients(&recover(dir.path(), single()).unwrap()), 1);
}

/// Fails writes with `flag` up, and returns what was tried to be written, each once.
fn fail_and_recover(options: LogOptions, flag: fn(&faults::Faults) -> &AtomicBool) -> Vec<Vec<u8>> {
    let dir = temp_dir();
    let log = Log::create(dir.path(), POOL, &world::pool(), options.clone()).unwrap();
    let faults = &log.shared.faults;
    flag(faults).store(true, Ordering::Relaxed);
    log.record(&attach(1)).unwrap();
    let first = log.position();
    let error = log.flush(first).unwrap_err();
    assert!(error.to_string().contains("ordered by a test"), "{error}");
    log.record(&attach(2)).unwrap();
    thread::scope(|scope| {
        let flushers: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| log.flush(log.position())))
            .collect();
        flushers
            .into_iter()
            .for_each(|flusher| assert!(flusher.join().unwrap().is_err()));
    });
    let stats = log.stats();
    assert!(
        stats.failed_flushes >= 2 && stats.last_error.is_some(),
        "{stats:?}"
    );
    assert!(stats.durable < first);
    flag(faults).store(false, Ordering::Relaxed);
    // Nobody asks: it is found out in the background that writing works again.
    wait_until("another try", || log.stats().last_error.is_none());
    assert_eq!(log.stats().durable, log.position());
    let mut attempts = faults.attempts.lock().clone();
    drop(log);
    assert_eq!(clients(&recover(dir.path(), options).unwrap()), 2);
    attempts.dedup();
    attempts
}

#[test]
fn a_batch_that_could_not_be_written_is_written_again_byte_for_byte_before_the_next() {
    let by_write = fail_and_recover(single(), |faults| &faults.fail_write);
    let options = LogOptions {
        durability: Durability::Fsync,
        ..single()
    };
    let by_sync = fail_and_recover(options, |faults| &faults.fail_sync);
    for attempts in [by_write, by_sync] {
        assert_eq!(attempts.len(), 2, "the first batch, then the second");
    }
}

#[test]
fn without_room_for_a_segment_records_are_refused_until_there_is_room() {
    let dir = temp_dir();
    let log = Log::create(dir.path(), POOL, &world::pool(), tiny()).unwrap();
    log.shared
        .faults
        .fail_segment
        .store(true, Ordering::Relaxed);
    let mut world = World::new();
    let mut choices = Choices(10);
    let refused = loop {
        let change = choices.find_map(|choice| world.plan(choice)).unwrap();
        match log.record(&change) {
            Ok(()) => world.image.apply(&change).unwrap(),
            Err(error) => break error,
        }
    };
    assert!(refused.to_string().contains("make room"), "{refused}");
    assert!(log.stats().last_error.is_some());
    log.flush(log.position()).unwrap();
    log.shared
        .faults
        .fail_segment
        .store(false, Ordering::Relaxed);
    for change in choices.by_ref().take(500).filter_map(|choice| {
        let change = world.plan(choice)?;
        world.image.apply(&change).unwrap();
        Some(change)
    }) {
        log.record(&change).unwrap();
    }
    assert_eq!(log.stats().last_error, None);
    log.flush(log.position()).unwrap();
    drop(log);
    assert_eq!(recover(dir.path(), tiny()).unwrap().image, world.image);
}

#[test]
fn a_log_that_is_being_made_or_removed_is_none() {
    let dir = temp_dir();
    let at = dir.path().join("state/log");
    assert!(!Log::exists(&at).unwrap());
    Log::remove(&at).unwrap();
    assert!(matches!(
        recover(&at, single()),
        Err(LogError::Missing { .. })
    ));
    drop(Log::create(&at, POOL, &world::pool(), single()).unwrap());
    assert!(Log::exists(&at).unwrap());
    files::retire(&at).unwrap();
    assert!(!Log::exists(&at).unwrap());
    assert!(matches!(
        recover(&at, single()),
        Err(LogError::Missing { .. })
    ));
    assert!(matches!(inspect_log(&at), Err(LogError::Missing { .. })));
    let log = Log::create(&at, POOL, &world::pool(), single()).unwrap();
    log.record(&attach(1)).unwrap();
    log.flush(log.position()).unwrap();
    drop(log);
    // Another log in its place begins with nothing of the old one.
    drop(Log::create(&at, PoolId([9; 16]), &world::pool(), single()).unwrap());
    assert_eq!(inspect_log(&at).unwrap().pool, PoolId([9; 16]));
    Log::remove(&at).unwrap();
    assert_eq!(fs::read_dir(&at).unwrap().count(), 0);
}

#[test]
fn files_are_their_owners_alone_and_drafts_are_swept() {
    let dir = temp_dir();
    let at = dir.path().join("log");
    let log = Log::create(&at, POOL, &world::pool(), single()).unwrap();
    wait_until("the next segment", || log.stats().segments == 2);
    drop(log);
    let record = PoolRecord {
        pool: POOL,
        boot: "a boot".to_owned(),
        fsync: true,
        devices: Vec::new(),
    };
    record.save(&at).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&at), 0o700);
    for entry in fs::read_dir(&at).unwrap() {
        assert_eq!(mode(&entry.unwrap().path()), 0o600);
    }
    for draft in [
        "checkpoint-0000000000001000.image.draft",
        "segment-0000000000001000.log.draft",
    ] {
        fs::write(at.join(draft), b"half of it").unwrap();
    }
    drop(recover(&at, single()).unwrap());
    assert!(Listing::read(&at).unwrap().drafts.is_empty());
    assert_eq!(PoolRecord::load(&at).unwrap(), Some(record));
}

#[test]
fn a_pool_record_is_replaced_whole_and_refused_when_it_is_none() {
    let dir = temp_dir();
    assert_eq!(PoolRecord::load(dir.path()).unwrap(), None);
    for boot in ["one", "two"] {
        let record = PoolRecord {
            pool: POOL,
            boot: boot.to_owned(),
            fsync: false,
            devices: Vec::new(),
        };
        record.save(dir.path()).unwrap();
        assert_eq!(PoolRecord::load(dir.path()).unwrap(), Some(record));
    }
    fs::write(dir.path().join("pool.json"), b"{").unwrap();
    let error = PoolRecord::load(dir.path()).unwrap_err().to_string();
    assert!(
        error.contains("pool.json") && error.contains("--fresh"),
        "{error}"
    );
}

#[test]
fn a_failing_checkpoint_is_counted_and_tried_again() {
    let dir = temp_dir();
    let options = LogOptions {
        compact_bytes: Some(0),
        ..tiny()
    };
    let log = Log::create(dir.path(), POOL, &world::pool(), options.clone()).unwrap();
    let base = checkpoints(dir.path())[0].clone();
    let whole = fs::read(&base).unwrap();
    fs::write(&base, b"").unwrap();
    let mut world = World::new();
    for choice in Choices(11).take(300) {
        if let Some(change) = world.plan(choice) {
            log.record(&change).unwrap();
            world.image.apply(&change).unwrap();
        }
    }
    log.flush(log.position()).unwrap();
    wait_until("a failure", || log.stats().failed_checkpoints > 0);
    fs::write(&base, whole).unwrap();
    wait_until("a checkpoint", || log.stats().checkpoints > 0);
    drop(log);
    assert_eq!(recover(dir.path(), options).unwrap().image, world.image);
}

#[test]
fn durability_has_two_names() {
    for durability in [Durability::None, Durability::Fsync] {
        assert_eq!(durability.to_string().parse(), Ok(durability));
    }
    let error = "full".parse::<Durability>().unwrap_err().to_string();
    assert!(error.contains("expected `none` or `fsync`"), "{error}");
}
