//! What a backend gives to those who wait for it, whatever its adapter does.

mod l2;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use l2::{Answer, Guest, Mishap, Rogue, Where, backend, key, keys, options, soon, spec, start};
use ondol_host::l2::{Backend, BackendHealth, LaneOptions, TaskError};
use ondol_plugin::l2::{
    Bitmap, L2Adapter, ListRequest, LoadItem, LoadOutcome, LoadResult, Loaded, LookupResult,
    StoreItem, StoreResult, TaskId,
};
use ondol_testkit::l2::DropCounter;

const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(20);

fn items(counter: &DropCounter, count: usize) -> Vec<StoreItem> {
    keys(count)
        .into_iter()
        .map(|key| StoreItem {
            key,
            object: counter.object(*b"body"),
        })
        .collect()
}

fn pages(counter: &DropCounter, count: usize) -> Vec<LoadItem> {
    keys(count)
        .into_iter()
        .map(|key| LoadItem {
            key,
            page: counter.page(4, 0),
        })
        .collect()
}

#[test]
fn a_batch_is_stored_looked_up_loaded_and_unlocked() {
    let (backend, rogue) = backend(options());
    let counter = DropCounter::new();
    let stored = Answer::of(|done| backend.store(items(&counter, 3), LONG, done));
    rogue.manual.next_store().succeed();
    assert_eq!(stored.wait(), Ok(StoreResult::stored(12)));
    assert_eq!(counter.held(), 0);

    let found = Answer::of(|done| backend.lookup(keys(3), LONG, done));
    rogue
        .manual
        .next_lookup()
        .find(|k| (*k != key(1)).then_some(4));
    assert_eq!(found.wait().unwrap().found.to_string(), "101");
    assert!(rogue.manual.locks().is_locked(&key(0)));
    backend.unlock(vec![key(0), key(2)]);
    soon(|| !rogue.manual.locks().is_locked(&key(0)) && !rogue.manual.locks().is_locked(&key(2)));

    let loaded = Answer::of(|done| backend.load(pages(&counter, 2), LONG, done));
    rogue.manual.next_load().fill(|_| Some(b"body".to_vec()));
    let loaded = loaded.wait().unwrap();
    assert_eq!(loaded.found().count_ones(), 2);
    assert_eq!(loaded.0[0].page.as_ref().unwrap().parts().0, b"body");
    assert_eq!(backend.counts(), Default::default());
    assert_eq!(backend.status().health, BackendHealth::Healthy);
}

#[test]
fn a_refused_submit_is_told_and_lets_its_buffers_go() {
    let (backend, rogue) = backend(options());
    let counter = DropCounter::new();
    rogue.manual.refuse_submits(Some("read-only"));
    let stored = Answer::of(|done| backend.store(items(&counter, 1), LONG, done));
    let error = stored.wait().unwrap_err();
    assert_eq!(error.to_string(), "rogue#0 refused the task: read-only");
    assert_eq!(counter.held(), 0);
}

/// LMCache's controllers free buffers when they give up a task (reference, fault of timeouts).
#[test]
fn pages_of_a_load_that_timed_out_stay_captive_until_the_adapter_ends_it() {
    let (backend, rogue) = backend(options());
    let counter = DropCounter::new();
    let loaded = Answer::of(|done| backend.load(pages(&counter, 2), SHORT, done));
    let held = rogue.manual.next_load();
    let error = loaded.wait().unwrap_err();
    assert!(matches!(error, TaskError::TimedOut { .. }), "{error}");
    let status = backend.status();
    assert_eq!((status.captive_tasks, status.captive_bytes), (1, 8));
    assert_eq!(counter.held(), 2);
    soon(|| rogue.manual.cancelled() == [held.task()]);
    held.fill(|_| Some(b"late".to_vec()));
    soon(|| counter.held() == 0 && backend.status().tasks == 0);
    assert_eq!(backend.counts().late_results, 1);
}

#[test]
fn objects_of_a_store_that_timed_out_stay_captive_until_the_adapter_ends_it() {
    let (backend, rogue) = backend(options());
    let counter = DropCounter::new();
    let stored = Answer::of(|done| backend.store(items(&counter, 2), SHORT, done));
    let held = rogue.manual.next_store();
    assert!(matches!(stored.wait(), Err(TaskError::TimedOut { .. })));
    assert_eq!(counter.held(), 2);
    held.succeed();
    soon(|| counter.held() == 0 && backend.status().tasks == 0);
}

#[test]
fn what_a_late_lookup_locked_is_unlocked() {
    let (backend, rogue) = backend(options());
    let found = Answer::of(|done| backend.lookup(keys(3), SHORT, done));
    let held = rogue.manual.next_lookup();
    assert!(matches!(found.wait(), Err(TaskError::TimedOut { .. })));
    // Somebody else's lock stays.
    rogue.manual.locks().lock(&key(1));
    held.find(|k| (*k != key(1)).then_some(4));
    soon(|| backend.counts().late_results == 1 && !rogue.manual.locks().is_locked(&key(2)));
    assert!(!rogue.manual.locks().is_locked(&key(0)));
    assert!(rogue.manual.locks().is_locked(&key(1)));
}

#[test]
fn a_wrong_lookup_is_broken_and_what_it_locked_is_unlocked() {
    for (found, sizes, error) in [(2, 3, None), (3, 2, None), (3, 3, Some("no".to_owned()))] {
        let (backend, rogue) = backend(options());
        let answer = Answer::of(|done| backend.lookup(keys(3), LONG, done));
        rogue.manual.next_lookup().end(LookupResult {
            found: Bitmap::with_prefix(found, 1),
            sizes: vec![4; sizes],
            error,
        });
        assert!(matches!(answer.wait(), Err(TaskError::Broken { .. })));
        soon(|| !rogue.manual.locks().is_locked(&key(0)));
        assert_eq!(backend.counts().breaches, 1);
        assert_eq!(backend.status().health, BackendHealth::Degraded);
    }
}

#[test]
fn a_load_that_answers_for_too_few_pages_or_too_many_bytes_is_broken() {
    let counter = DropCounter::new();
    let (backend, rogue) = backend(options());
    let answer = Answer::of(|done| backend.load(pages(&counter, 2), LONG, done));
    rogue.manual.next_load().end(LoadResult::failed(1, "x"));
    assert!(matches!(answer.wait(), Err(TaskError::Broken { .. })));

    let answer = Answer::of(|done| backend.load(pages(&counter, 2), LONG, done));
    rogue.manual.next_load().each(|_| LoadOutcome::Found(5));
    let error = answer.wait().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("5 bytes into a page with room for 4"),
        "{error}"
    );
    soon(|| counter.held() == 0);
}

#[test]
fn an_object_whose_page_did_not_come_back_is_not_found() {
    let (backend, rogue) = backend(options());
    let counter = DropCounter::new();
    let answer = Answer::of(|done| backend.load(pages(&counter, 1), LONG, done));
    rogue.manual.next_load().end(LoadResult(vec![Loaded {
        page: None,
        outcome: LoadOutcome::Found(4),
    }]));
    let result = answer.wait().unwrap();
    assert!(matches!(result.0[0].outcome, LoadOutcome::Failed(_)));
}

#[test]
fn results_of_unknown_tasks_are_counted_and_disturb_nobody() {
    let mut quick = options();
    quick.sweep_every = Duration::from_millis(20);
    let (backend, rogue) = backend(quick);
    let counter = DropCounter::new();
    let first = Answer::of(|done| backend.store(items(&counter, 1), LONG, done));
    let _second = Answer::of(|done| backend.store(items(&counter, 1), LONG, done));
    let held = rogue.manual.next_store();
    let task = held.task();
    rogue.forge_store(TaskId(4711));
    soon(|| backend.counts().unknown_tasks == 1);
    held.succeed();
    assert_eq!(first.wait(), Ok(StoreResult::stored(4)));
    // The same result a second time.
    rogue.forge_store(task);
    soon(|| backend.counts().unknown_tasks == 2);
    assert_eq!(backend.status().tasks, 1);
}

#[test]
fn a_task_whose_number_is_in_use_is_broken() {
    let (backend, rogue) = backend(options());
    let counter = DropCounter::new();
    let first = Answer::of(|done| backend.store(items(&counter, 1), LONG, done));
    let held = rogue.manual.next_store();
    rogue.number_all(held.task());
    let second = Answer::of(|done| backend.store(items(&counter, 1), LONG, done));
    assert!(matches!(second.wait(), Err(TaskError::Broken { .. })));
    held.succeed();
    assert_eq!(first.wait(), Ok(StoreResult::stored(4)));
}

#[test]
fn a_result_whose_signal_is_lost_is_found_and_counted() {
    let mut quick = options();
    quick.sweep_every = Duration::from_millis(50);
    let (backend, rogue) = l2::backend_of(Rogue::new().without_signals(), quick);
    let counter = DropCounter::new();
    let stored = Answer::of(|done| backend.store(items(&counter, 1), LONG, done));
    rogue.manual.next_store().succeed();
    assert_eq!(stored.wait(), Ok(StoreResult::stored(4)));
    let found = Answer::of(|done| backend.lookup(keys(1), LONG, done));
    rogue.manual.next_lookup().find(|_| None);
    assert!(found.wait().is_ok());
    // Sweeps go on while something is outstanding.
    let _waiting = Answer::of(|done| backend.load(pages(&counter, 1), LONG, done));
    soon(|| backend.counts().lost_signals == 2);
    assert_eq!(backend.status().health, BackendHealth::Degraded);
}

#[test]
fn descriptors_that_are_not_distinct_are_refused_by_name() {
    let error = start(Rogue::new().with_one_descriptor(), options()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("store and lookup are both number"), "{text}");

    let first = Rogue::new();
    let (_backend, _) = l2::backend_of(first.clone(), options());
    let error =
        Backend::start("twin#1", spec(), false, Box::new(Guest(first)), options()).unwrap_err();
    assert!(error.to_string().contains("is one of rogue#0's"), "{error}");
}

#[test]
fn an_adapter_that_does_not_show_its_descriptors_is_not_started() {
    for (mishap, options) in [(Mishap::Hang, quick_to_judge()), (Mishap::Panic, options())] {
        let rogue = Rogue::new();
        rogue.set(Where::EventFds, mishap);
        let error = start(rogue.clone(), options).unwrap_err();
        assert!(error.to_string().contains("event_fds"), "{error}");
        // One that panicked is not called again.
        assert_eq!(rogue.manual.is_closed(), mishap == Mishap::Hang);
        rogue.release();
    }
}

#[test]
fn descriptors_can_be_claimed_again_once_their_backend_is_closed() {
    let rogue = Rogue::new();
    let (backend, _) = l2::backend_of(rogue.clone(), options());
    backend.close(LONG);
    soon(|| start(rogue.clone(), options()).is_ok());
}

#[test]
fn a_hang_in_any_method_of_the_lane_frees_everybody_who_waits() {
    for at in [
        Where::SubmitStore,
        Where::SubmitLookup,
        Where::SubmitLoad,
        Where::Unlock,
        Where::PopStores,
        Where::QueryLookup,
        Where::QueryLoad,
        Where::Cancel,
    ] {
        let (backend, rogue) = backend(quick_to_judge());
        let counter = DropCounter::new();
        // One of each is with the adapter before anything hangs.
        let before = one_of_each(&backend, &counter, LONG);
        let mut store = Some(rogue.manual.next_store());
        let mut lookup = Some(rogue.manual.next_lookup());
        let mut load = Some(rogue.manual.next_load());
        rogue.set(at, Mishap::Hang);
        let mut more = Vec::new();
        match at {
            Where::PopStores => store.take().unwrap().succeed(),
            Where::QueryLookup => lookup.take().unwrap().find(|_| Some(4)),
            Where::QueryLoad => load.take().unwrap().fill(|_| None),
            Where::Unlock => backend.unlock(vec![key(0)]),
            Where::Cancel => more = one_of_each(&backend, &counter, SHORT),
            _ => more = one_of_each(&backend, &counter, LONG),
        }
        for answer in before.iter().chain(&more) {
            let error = answer.recv().unwrap().unwrap();
            let known = match at {
                Where::Cancel => matches!(
                    error,
                    TaskError::Unusable { .. } | TaskError::TimedOut { .. }
                ),
                _ => matches!(error, TaskError::Unusable { .. }),
            };
            assert!(known, "{at:?}: {error}");
        }
        soon(|| backend.status().health == BackendHealth::Quarantined);
        let reason = backend.status().reason.unwrap();
        assert!(reason.contains("did not return within"), "{reason}");
        // New work is refused at once, while the call hangs still.
        let refused = Answer::of(|done| backend.store(items(&counter, 1), LONG, done));
        assert!(matches!(refused.wait(), Err(TaskError::Unusable { .. })));
        rogue.release();
        rogue.manual.close(Duration::ZERO);
        drop((store, lookup, load));
        soon(|| counter.held() == 0);
        assert_eq!(backend.status().health, BackendHealth::Quarantined);
    }
}

#[test]
fn a_lookup_whose_query_hung_is_unlocked_when_the_call_returns() {
    let (backend, rogue) = backend(quick_to_judge());
    let answer = Answer::of(|done| backend.lookup(keys(2), LONG, done));
    rogue.set(Where::QueryLookup, Mishap::Hang);
    rogue.manual.next_lookup().find(|_| Some(4));
    assert!(matches!(answer.wait(), Err(TaskError::Unusable { .. })));
    assert!(rogue.manual.locks().is_locked(&key(0)));
    rogue.release();
    soon(|| !rogue.manual.locks().is_locked(&key(0)) && !rogue.manual.locks().is_locked(&key(1)));
}

#[test]
fn unlocks_that_waited_behind_a_hang_are_carried_out_after_it() {
    let (backend, rogue) = backend(quick_to_judge());
    let found = Answer::of(|done| backend.lookup(keys(1), LONG, done));
    rogue.manual.next_lookup().find(|_| Some(4));
    found.wait().unwrap();
    rogue.set(Where::SubmitStore, Mishap::Hang);
    let counter = DropCounter::new();
    let stored = Answer::of(|done| backend.store(items(&counter, 1), LONG, done));
    backend.unlock(vec![key(0)]);
    assert!(stored.wait().is_err());
    assert!(rogue.manual.locks().is_locked(&key(0)));
    rogue.release();
    soon(|| !rogue.manual.locks().is_locked(&key(0)));
}

#[test]
fn a_panic_in_any_method_of_the_lane_frees_everybody_and_is_the_last_call() {
    for at in [
        Where::SubmitStore,
        Where::SubmitLookup,
        Where::SubmitLoad,
        Where::Unlock,
        Where::PopStores,
        Where::QueryLookup,
        Where::QueryLoad,
    ] {
        let (backend, rogue) = backend(options());
        let counter = DropCounter::new();
        let before = one_of_each(&backend, &counter, LONG);
        let mut store = Some(rogue.manual.next_store());
        let mut lookup = Some(rogue.manual.next_lookup());
        let mut load = Some(rogue.manual.next_load());
        rogue.set(at, Mishap::Panic);
        let mut more = Vec::new();
        match at {
            Where::PopStores => store.take().unwrap().succeed(),
            Where::QueryLookup => lookup.take().unwrap().find(|_| Some(4)),
            Where::QueryLoad => load.take().unwrap().fill(|_| None),
            Where::Unlock => backend.unlock(vec![key(0)]),
            _ => more = one_of_each(&backend, &counter, LONG),
        }
        for answer in before.iter().chain(&more) {
            let error = answer.recv().unwrap().unwrap();
            assert!(matches!(error, TaskError::Unusable { .. }), "{error}");
        }
        let status = backend.health_of_lane();
        assert_eq!(status.health, BackendHealth::Quarantined);
        assert!(status.reason.unwrap().contains("panicked: as told"));
        let calls = rogue.calls();
        assert!(backend.delete(&keys(1)).is_err());
        backend.usage();
        backend.unlock(keys(1));
        backend.close(SHORT);
        assert_eq!(rogue.calls(), calls, "{at:?}");
    }
}

#[test]
fn blocking_calls_that_hang_cost_their_caller_no_more_than_their_time() {
    let mut quick = quick_to_judge();
    quick.blocking_timeout = Duration::from_millis(100);
    let (backend, rogue) = backend(quick.clone());
    rogue.set(Where::Delete, Mishap::Hang);
    let error = backend.delete(&keys(1)).unwrap_err();
    assert!(matches!(error, TaskError::TimedOut { .. }), "{error}");
    let status = backend.status();
    assert_eq!(status.health, BackendHealth::Degraded);
    // The lane serves on meanwhile.
    let counter = DropCounter::new();
    let stored = Answer::of(|done| backend.store(items(&counter, 1), LONG, done));
    rogue.manual.next_store().succeed();
    assert!(stored.wait().is_ok());
    rogue.release();
    soon(|| backend.status().health == BackendHealth::Healthy);

    rogue.set(Where::ListKeys, Mishap::Hang);
    assert!(backend.list_keys(&ListRequest::default()).is_err());
    // More calls than there are helpers.
    for _ in 0..6 {
        assert!(backend.list_keys(&ListRequest::default()).is_err());
    }
    rogue.release();
    soon(|| backend.list_keys(&ListRequest::default()).is_ok());
}

#[test]
fn a_panic_in_a_blocking_call_is_the_last_call() {
    let (backend, rogue) = backend(options());
    rogue.set(Where::Delete, Mishap::Panic);
    let error = backend.delete(&keys(1)).unwrap_err();
    assert!(matches!(error, TaskError::Unusable { .. }), "{error}");
    assert_eq!(backend.status().health, BackendHealth::Quarantined);
}

#[test]
fn figures_of_an_adapter_that_hangs_are_the_last_ones_known() {
    let mut quick = quick_to_judge();
    quick.figures_timeout = Duration::from_millis(100);
    let (backend, rogue) = backend(quick);
    rogue.manual.set_usage(ondol_plugin::l2::Usage {
        used_bytes: 7,
        ..Default::default()
    });
    soon(|| backend.usage().used_bytes == 7);
    rogue.set(Where::Usage, Mishap::Hang);
    rogue.set(Where::Status, Mishap::Hang);
    for _ in 0..3 {
        assert_eq!(backend.usage().used_bytes, 7);
        backend.status();
    }
    soon(|| backend.status().health == BackendHealth::Degraded);
    rogue.release();
    rogue.manual.set_usage(ondol_plugin::l2::Usage {
        used_bytes: 8,
        ..Default::default()
    });
    soon(|| backend.usage().used_bytes == 8);
}

#[test]
fn usage_is_never_older_than_the_question() {
    let mut patient = options();
    patient.figures_timeout = LONG;
    let (backend, rogue) = backend(patient);
    for used_bytes in 0..200 {
        rogue.manual.set_usage(ondol_plugin::l2::Usage {
            used_bytes,
            ..Default::default()
        });
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| assert_eq!(backend.usage().used_bytes, used_bytes));
            }
        });
    }
}

#[test]
fn what_waits_too_long_is_refused_while_the_lane_hangs() {
    let mut slow = options();
    slow.hang_after = LONG;
    slow.queue = 2;
    let (backend, rogue) = backend(slow);
    rogue.set(Where::SubmitStore, Mishap::Hang);
    let counter = DropCounter::new();
    let current = Answer::of(|done| backend.store(items(&counter, 1), LONG, done));
    soon(|| rogue.is_hanging());
    let waiting = Answer::of(|done| backend.store(items(&counter, 1), SHORT, done));
    let also = Answer::of(|done| backend.store(items(&counter, 1), LONG, done));
    let one_too_many = Answer::of(|done| backend.store(items(&counter, 1), LONG, done));
    assert!(matches!(
        one_too_many.wait(),
        Err(TaskError::Refused { .. })
    ));
    assert_eq!(backend.counts().overflows, 1);
    assert!(matches!(waiting.wait(), Err(TaskError::TimedOut { .. })));
    rogue.release();
    rogue.manual.next_store().succeed();
    rogue.manual.next_store().succeed();
    assert!(current.wait().is_ok() && also.wait().is_ok());
}

#[test]
fn close_refuses_what_waits_lets_the_rest_finish_and_reports_nothing() {
    let (backend, rogue) = backend(options());
    let counter = DropCounter::new();
    let stored = Answer::of(|done| backend.store(items(&counter, 1), LONG, done));
    let held = rogue.manual.next_store();
    // Before the close begins, the lookups below shall not reach the adapter either.
    rogue.manual.refuse_submits(Some("not now"));
    let report = std::thread::scope(|scope| {
        let closing = scope.spawn(|| backend.close(LONG));
        soon(|| {
            let refused = Answer::of(|done| backend.lookup(keys(1), LONG, done));
            matches!(refused.wait(), Err(TaskError::Unusable { .. }))
        });
        held.succeed();
        closing.join().unwrap()
    });
    assert_eq!(stored.wait(), Ok(StoreResult::stored(4)));
    assert_eq!(report.abandoned, 0);
    assert!(rogue.manual.is_closed());
    assert_eq!(backend.close(LONG).abandoned, 0);
}

#[test]
fn close_reports_abandoned_tasks_and_leaves_their_pages_captive() {
    let (backend, rogue) = backend(options());
    let counter = DropCounter::new();
    let loaded = Answer::of(|done| backend.load(pages(&counter, 2), LONG, done));
    rogue.manual.next_load().lose();
    assert_eq!(backend.close(Duration::from_millis(100)).abandoned, 1);
    assert!(matches!(loaded.wait(), Err(TaskError::Unusable { .. })));
    assert_eq!(counter.held(), 2);
    drop(backend);
    assert_eq!(counter.held(), 2);
    drop(rogue);
    soon(|| counter.held() == 0);
}

#[test]
fn close_of_an_adapter_that_hangs_comes_back() {
    for at in [Where::SubmitStore, Where::Close] {
        let (backend, rogue) = backend(quick_to_judge());
        let counter = DropCounter::new();
        rogue.set(at, Mishap::Hang);
        let stored = Answer::of(|done| backend.store(items(&counter, 1), LONG, done));
        backend.close(Duration::from_millis(100));
        assert!(stored.wait().is_err());
        drop(backend);
        rogue.release();
        drop(rogue);
        soon(|| counter.held() == 0);
    }
}

#[test]
fn a_destructor_that_hangs_does_not_hang_who_lets_go() {
    let mut impatient = options();
    impatient.end_grace = Duration::from_millis(50);
    let (backend, rogue) = backend(impatient);
    rogue.set(Where::Drop, Mishap::Hang);
    drop(backend);
    rogue.release();
}

#[test]
fn the_last_handle_may_be_let_go_in_a_callback() {
    let (backend, rogue) = backend(options());
    let counter = DropCounter::new();
    let held = Arc::clone(&backend);
    let answer = Answer::of(|done| {
        backend.store(items(&counter, 1), LONG, move |result| {
            drop(held);
            done(result);
        });
    });
    drop(backend);
    rogue.manual.next_store().succeed();
    assert!(answer.wait().is_ok());
    soon(|| rogue.manual.is_closed());
}

#[test]
fn everybody_is_called_back_exactly_once_whatever_ends_the_task() {
    const BATCHES: usize = 200;
    for round in 0..6 {
        let mut quick = quick_to_judge();
        quick.queue = 50;
        let (backend, rogue) = backend(quick);
        let counter = DropCounter::new();
        let answered: Vec<_> = (0..4 * BATCHES).map(|_| AtomicUsize::new(0)).collect();
        let answered = Arc::new(answered);
        std::thread::scope(|scope| {
            let ending = scope.spawn(|| {
                for _ in 0..BATCHES {
                    let (stores, lookups, loads) = rogue.manual.waiting();
                    if stores > 0 {
                        rogue.manual.next_store().succeed();
                    }
                    if lookups > 0 {
                        rogue.manual.next_lookup().find(|_| Some(4));
                    }
                    if loads > 0 {
                        rogue.manual.next_load().fill(|_| None);
                    }
                    std::thread::yield_now();
                }
            });
            for thread in 0..4 {
                let (backend, answered) = (&backend, &answered);
                let counter = &counter;
                scope.spawn(move || {
                    for at in 0..BATCHES {
                        let id = thread * BATCHES + at;
                        let timeout = Duration::from_micros((at as u64 % 7) * 300);
                        let answered = Arc::clone(answered);
                        let count = move || {
                            answered[id].fetch_add(1, Ordering::SeqCst);
                        };
                        match at % 3 {
                            0 => backend.store(items(counter, 1), timeout, move |_| count()),
                            1 => backend.lookup(keys(1), timeout, move |_| count()),
                            _ => backend.load(pages(counter, 1), timeout, move |_| count()),
                        }
                    }
                });
            }
            ending.join().unwrap();
            match round % 3 {
                0 => drop(backend.close(Duration::from_millis(20))),
                1 => rogue.set(Where::SubmitLoad, Mishap::Panic),
                _ => rogue.set(Where::SubmitLookup, Mishap::Hang),
            }
        });
        backend.close(Duration::from_millis(50));
        let counts = answered.iter().map(|count| count.load(Ordering::SeqCst));
        assert!(
            counts.clone().all(|count| count == 1),
            "round {round}: {:?}",
            counts.collect::<Vec<_>>()
        );
        rogue.release();
    }
}

#[test]
fn a_callback_that_panics_leaves_the_lane_at_work() {
    let (backend, rogue) = backend(options());
    let counter = DropCounter::new();
    backend.store(items(&counter, 1), LONG, |_| panic!("of the core's own"));
    rogue.manual.next_store().succeed();
    let stored = Answer::of(|done| backend.store(items(&counter, 1), LONG, done));
    rogue.manual.next_store().succeed();
    assert!(stored.wait().is_ok());
}

#[test]
fn a_dead_descriptor_neither_hangs_nor_spins() {
    let mut quick = options();
    quick.sweep_every = Duration::from_millis(50);
    let (backend, rogue) = l2::backend_of(Rogue::new().with_dead_store_descriptor(), quick);
    let counter = DropCounter::new();
    let stored = Answer::of(|done| backend.store(items(&counter, 1), LONG, done));
    rogue.manual.next_store().succeed();
    assert_eq!(stored.wait(), Ok(StoreResult::stored(4)));
    assert!(backend.counts().breaches >= 1);
}

fn quick_to_judge() -> LaneOptions {
    let mut options = options();
    options.hang_after = Duration::from_millis(100);
    options
}

/// A store, a lookup and a load, and why each failed.
fn one_of_each(
    backend: &Backend,
    counter: &DropCounter,
    timeout: Duration,
) -> Vec<Receiver<Option<TaskError>>> {
    let (store, stored) = channel();
    let (lookup, found) = channel();
    let (load, loaded) = channel();
    backend.store(items(counter, 1), timeout, move |result| {
        store.send(result.err()).unwrap();
    });
    backend.lookup(keys(1), timeout, move |result| {
        lookup.send(result.err()).unwrap();
    });
    backend.load(pages(counter, 1), timeout, move |result| {
        load.send(result.err()).unwrap();
    });
    vec![stored, found, loaded]
}
