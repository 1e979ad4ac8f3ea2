//! What is recovered is what there was.

use std::sync::Arc;
use std::thread;

use proptest::prelude::*;

use super::world::{Choices, World};
use super::*;

/// Does what the choices say, recorded and applied, with a flush every so often.
fn run(log: &Log, world: &mut World, choices: impl IntoIterator<Item = u64>, flush_every: u64) {
    for (count, choice) in (1..).zip(choices) {
        let Some(change) = world.plan(choice) else {
            continue;
        };
        log.record(&change).unwrap();
        world.image.apply(&change).unwrap();
        if count % flush_every == 0 {
            log.flush(log.position()).unwrap();
        }
    }
    log.flush(log.position()).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Free lists, grants with their requests, pins, the order of commits: everything counts, over several lives of
    /// the log and however many segments and checkpoints there were.
    #[test]
    fn a_recovered_state_equals_the_live_one(
        lives in proptest::collection::vec((any::<u64>(), 1..1500_usize, 1..40_u64, any::<bool>()), 1..4),
        fsync in any::<bool>(),
    ) {
        let dir = temp_dir();
        let mut options = tiny();
        if fsync {
            options.durability = Durability::Fsync;
        }
        let mut world = World::new();
        let mut log = Log::create(dir.path(), POOL, &world::pool(), options.clone()).unwrap();
        for (seed, steps, flush_every, close) in lives {
            run(&log, &mut world, Choices(seed).take(steps), flush_every);
            if close {
                log.close().unwrap();
            }
            drop(log);
            let report = inspect_log(dir.path()).unwrap();
            prop_assert_eq!(&report.problem, &None);
            let recovered = recover(dir.path(), options.clone()).unwrap();
            prop_assert_eq!(&recovered.image, &world.image);
            prop_assert_eq!((recovered.clean, recovered.cut_bytes), (close, 0));
            prop_assert_eq!((report.changes, report.clean), (recovered.changes, close));
            log = recovered.log;
        }
    }

    #[test]
    fn a_checkpoint_holds_the_whole_state(seed in any::<u64>(), steps in 0..3000_usize) {
        let dir = temp_dir();
        let world = World::after(Choices(seed).take(steps));
        let identity = Identity::new(POOL);
        let go_on = AtomicBool::new(false);
        checkpoint::write(dir.path(), &identity, 4096, &world.image, &go_on).unwrap();
        let path = &checkpoints(dir.path())[0];
        let mut progress = progress::Progress::quiet();
        let read = checkpoint::read(path, &identity, world::pool(), &go_on, &mut progress).unwrap();
        prop_assert_eq!(&read, &world.image);
        let counted = checkpoint::count(path, &identity).unwrap();
        prop_assert_eq!(counted.objects, world.image.objects.len() as u64);
    }
}

#[test]
fn checkpoints_are_made_while_the_log_is_written_and_keep_it_short() {
    let dir = temp_dir();
    let mut world = World::new();
    let log = Log::create(dir.path(), POOL, &world::pool(), tiny()).unwrap();
    for seed in 0..20 {
        run(&log, &mut world, Choices(seed).take(500), 3);
        let before = log.stats().checkpoints;
        let needless = || segments(dir.path()).len() > 5;
        wait_until("a checkpoint", || {
            log.stats().checkpoints > before || !needless()
        });
    }
    wait_until("the last checkpoint", || segments(dir.path()).len() <= 5);
    let stats = log.stats();
    assert!(stats.checkpoints >= 2, "{stats:?}");
    assert_eq!((stats.failed_checkpoints, stats.last_error), (0, None));
    assert_eq!(stats.position, stats.durable);
    drop(log);
    assert_eq!(checkpoints(dir.path()).len(), 1);
    let recovered = recover(dir.path(), tiny()).unwrap();
    assert_eq!(recovered.image, world.image);
}

#[test]
fn whatever_any_of_many_flushers_was_told_is_there() {
    let dir = temp_dir();
    let log = Arc::new(Log::create(dir.path(), POOL, &world::pool(), tiny()).unwrap());
    let world = Arc::new(Mutex::new(World::new()));
    let threads: Vec<_> = (0..8)
        .map(|seed| {
            let (log, world) = (log.clone(), world.clone());
            thread::spawn(move || {
                for choice in Choices(seed).take(600) {
                    let position = {
                        let mut world = world.lock();
                        if let Some(change) = world.plan(choice) {
                            log.record(&change).unwrap();
                            world.image.apply(&change).unwrap();
                        }
                        log.position()
                    };
                    log.flush(position).unwrap();
                    assert!(log.stats().durable >= position);
                }
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    drop(Arc::into_inner(log).unwrap());
    let recovered = recover(dir.path(), tiny()).unwrap();
    assert_eq!(recovered.image, world.lock().image);
}
