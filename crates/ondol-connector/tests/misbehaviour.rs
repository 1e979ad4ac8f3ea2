//! Connectors that do what they must not: the tasks concerned fail, the health tells, nothing hangs, and no page comes back that
//! the connector may still write to.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::*;
use ondol_plugin::l2::{Completion, Health, L2Adapter, LoadOutcome};
use parking_lot::Mutex;

const LONG: Duration = Duration::from_secs(60);

fn completion_of(future: u64) -> Completion {
    Completion {
        future,
        ok: true,
        ..Completion::default()
    }
}

#[test]
fn a_completion_for_nobody_changes_nothing() {
    let strings = Strings::new();
    let bridge = strings.bridge(LONG);
    let task = bridge.submit_lookup_and_lock(keys([1])).unwrap();
    let taken = strings.next();
    strings.complete(completion_of(taken.future + 1000));
    wait_for("the count", || {
        (figure(&bridge, "unknown_completions") == 1).then_some(())
    });
    assert!(bridge.query_lookup_and_lock(task).is_none());
    expect_health(&bridge, Health::Degraded, "not pending");
    strings.complete(taken.succeed());
    assert!(lookup_result(&bridge, task).found.test(0));
}

#[test]
fn a_second_completion_changes_nothing() {
    let strings = Strings::new();
    let bridge = strings.bridge(LONG);
    let (items, _) = load_items([1]);
    let task = bridge.submit_load(items).unwrap();
    let taken = strings.next();
    let second = completion_of(taken.future);
    strings.complete(taken.succeed());
    strings.complete(second);
    assert_eq!(load_result(&bridge, task).found().count_ones(), 1);
    wait_for("the count", || {
        (figure(&bridge, "unknown_completions") == 1).then_some(())
    });
    assert!(bridge.query_load(task).is_none());
}

#[test]
fn a_lost_completion_is_a_failure_in_time_and_its_pages_stay_captive() {
    let strings = Strings::new();
    let bridge = strings.bridge(SHORT);
    let (items, alive) = load_items(0..2);
    let load = bridge.submit_load(items).unwrap();
    let lookup = bridge.submit_lookup_and_lock(keys([1])).unwrap();
    let store = bridge.submit_store(vec![item(3, 7)]).unwrap();
    let loaded = load_result(&bridge, load);
    assert_eq!(loaded.found().count_ones(), 0);
    assert!(loaded.0.iter().all(|loaded| loaded.page.is_none()));
    let found = lookup_result(&bridge, lookup);
    assert!(found.error.unwrap().contains("did not answer"));
    assert!(store_result(&bridge, store).0.unwrap_err().retryable);
    assert_eq!(figure(&bridge, "locked_keys"), 0);
    assert!(alive.iter().all(is_held));
    expect_health(&bridge, Health::Failed, "has not answered");

    // When the completions come at last, they give the pages back and change nothing else.
    for _ in 0..3 {
        strings.complete(strings.next().succeed());
    }
    wait_for("the pages", || (!alive.iter().any(is_held)).then_some(()));
    wait_for("the count", || {
        (figure(&bridge, "late_completions") == 3).then_some(())
    });
    assert!(bridge.query_load(load).is_none());
    assert!(bridge.query_lookup_and_lock(lookup).is_none());
    assert_eq!(figure(&bridge, "locked_keys"), 0);
    assert_eq!(figure(&bridge, "timed_out_requests"), 3);
    // The store did happen.
    assert_eq!(bridge.usage().used_bytes, 7);
    expect_health(&bridge, Health::Degraded, "");
}

/// In LMCache: with nobody at the other end, tasks never ended, and the adapter said that it was healthy.
#[test]
fn a_connector_that_answers_nothing_is_not_healthy_and_gets_no_more_memory() {
    let strings = Strings::new();
    let bridge = strings.bridge(Duration::from_millis(1));
    let refusal = wait_for("a refusal", || {
        let (items, _) = load_items([1]);
        bridge.submit_load(items).err()
    });
    assert!(refusal.to_string().contains("does not answer"), "{refusal}");
    expect_health(&bridge, Health::Failed, "has not answered");
    // It comes to itself, and so does the bridge.
    while strings.is_taken(1) {
        strings.complete(strings.next().succeed());
    }
    let task = wait_for("a request that is taken", || {
        bridge.submit_lookup_and_lock(keys([1])).ok()
    });
    lookup_result(&bridge, task);
}

#[test]
fn lists_of_the_wrong_length_are_errors() {
    let strings = Strings::new();
    let bridge = strings.bridge(LONG);
    let (yes, lengths) = (
        |count| Some(vec![true; count]),
        |count| Some(vec![1; count]),
    );
    let wrong = [
        (yes(1), None),
        (yes(3), None),
        (yes(0), None),
        (None, lengths(1)),
        (yes(2), lengths(3)),
    ];
    for (per_key, lengths) in &wrong {
        let lists = |completion| Completion {
            per_key: per_key.clone(),
            lengths: lengths.clone(),
            ..completion
        };
        let task = bridge.submit_lookup_and_lock(keys(0..2)).unwrap();
        strings.complete(lists(strings.next().succeed()));
        let found = lookup_result(&bridge, task);
        assert_eq!(found.found.count_ones(), 0);
        assert!(found.error.unwrap().contains("expected 2"));

        let (items, alive) = load_items(0..2);
        let task = bridge.submit_load(items).unwrap();
        strings.complete(lists(strings.next().succeed()));
        let loaded = load_result(&bridge, task);
        assert_eq!(loaded.found().count_ones(), 0);
        // The pages are back all the same.
        assert!(loaded.0.iter().all(|loaded| loaded.page.is_some()));
        drop(loaded);
        assert!(!alive.iter().any(is_held));

        let task = bridge.submit_store(vec![item(1, 1), item(2, 1)]).unwrap();
        strings.complete(lists(strings.next().succeed()));
        assert!(store_result(&bridge, task).0.is_err());

        std::thread::scope(|scope| {
            let delete = scope.spawn(|| bridge.delete(&keys(0..2)));
            strings.complete(lists(strings.next().succeed()));
            assert!(delete.join().unwrap().is_err());
        });
    }
    assert_eq!(figure(&bridge, "malformed_answers"), 4 * wrong.len() as u64);
    assert_eq!(figure(&bridge, "locked_keys"), 0);
    assert_eq!(bridge.usage().objects, 0);
}

/// LMCache trusts the list of a load that has failed; here it is not even looked at.
#[test]
fn the_list_of_a_failed_request_counts_for_nothing() {
    let strings = Strings::new();
    let bridge = strings.bridge(LONG);
    let fail = |completion| Completion {
        ok: false,
        error: "half of it".into(),
        per_key: Some(vec![true, true]),
        lengths: Some(vec![16, 16]),
        ..completion
    };
    let (items, _) = load_items(0..2);
    let task = bridge.submit_load(items).unwrap();
    strings.complete(fail(strings.next().succeed()));
    for loaded in load_result(&bridge, task).0 {
        assert_eq!(loaded.outcome, LoadOutcome::Failed("half of it".into()));
        assert!(loaded.page.is_some());
    }
    let task = bridge.submit_lookup_and_lock(keys(0..2)).unwrap();
    strings.complete(fail(strings.next().succeed()));
    assert_eq!(lookup_result(&bridge, task).found.count_ones(), 0);
    std::thread::scope(|scope| {
        let delete = scope.spawn(|| bridge.delete(&keys(0..2)));
        strings.complete(fail(strings.next().succeed()));
        assert!(delete.join().unwrap().is_err());
    });
    assert_eq!(figure(&bridge, "locked_keys"), 0);
    assert_eq!(bridge.usage().objects, 0);
}

#[test]
fn a_load_without_its_pages_is_no_hit() {
    let strings = Strings::new();
    let bridge = strings.bridge(LONG);
    let (items, alive) = load_items(0..2);
    let task = bridge.submit_load(items).unwrap();
    let mut completion = strings.next().succeed();
    let lost = completion.pages.pop();
    strings.complete(completion);
    let loaded = load_result(&bridge, task);
    assert_eq!(loaded.found().to_string(), "10");
    assert!(matches!(loaded.0[1].outcome, LoadOutcome::Failed(_)));
    assert!(loaded.0[1].page.is_none() && is_held(&alive[1]));
    assert_eq!(figure(&bridge, "lost_pages"), 1);
    drop(lost);
}

#[test]
fn pages_of_another_request_are_no_hit() {
    let strings = Strings::new();
    let bridge = strings.bridge(LONG);
    let tasks = [1, 2].map(|number| bridge.submit_load(load_items([number]).0).unwrap());
    let [mut first, mut second] = [strings.next(), strings.next()].map(Taken::succeed);
    std::mem::swap(&mut first.pages, &mut second.pages);
    strings.complete(first);
    strings.complete(second);
    for task in tasks {
        let loaded = load_result(&bridge, task);
        assert_eq!(loaded.found().count_ones(), 0);
        assert!(loaded.0[0].page.is_none());
    }
}

#[test]
fn a_length_beyond_the_page_is_no_hit() {
    let strings = Strings::new();
    let bridge = strings.bridge(LONG);
    let task = bridge.submit_load(load_items(0..2).0).unwrap();
    let mut completion = strings.next().succeed();
    completion.lengths = Some(vec![17, 16]);
    strings.complete(completion);
    let loaded = load_result(&bridge, task);
    assert_eq!(loaded.found().to_string(), "01");
    expect_health(&bridge, Health::Degraded, "expected at most 16");
}

#[test]
fn a_number_that_is_given_twice_fails_the_second_request_only() {
    let strings = Strings::new();
    let bridge = strings.bridge(LONG);
    let first = bridge.submit_lookup_and_lock(keys([1])).unwrap();
    let taken = strings.next();
    let number = taken.future;
    strings.on_submit(move |_, _| number);
    let (items, alive) = load_items([2]);
    assert!(bridge.submit_load(items).is_err());
    assert!(bridge.submit_lookup_and_lock(keys([3])).is_err());
    assert!(is_held(&alive[0]));
    strings.complete(taken.succeed());
    assert!(lookup_result(&bridge, first).found.test(0));
    assert_eq!(figure(&bridge, "locked_keys"), 1);
    assert_eq!(figure(&bridge, "malformed_answers"), 2);
}

#[test]
fn a_descriptor_that_hung_up_fails_everything_at_once() {
    let (read, write) = rustix::pipe::pipe().unwrap();
    let strings = Strings::with_fd(Some(read));
    let bridge = strings.bridge(LONG);
    let (items, alive) = load_items([1]);
    let load = bridge.submit_load(items).unwrap();
    let lookup = bridge.submit_lookup_and_lock(keys([1])).unwrap();
    drop(write);
    assert_eq!(load_result(&bridge, load).found().count_ones(), 0);
    assert!(lookup_result(&bridge, lookup).error.is_some());
    expect_health(&bridge, Health::Failed, "descriptor is dead");
    let refusal = bridge.submit_lookup_and_lock(keys([1])).unwrap_err();
    assert!(refusal.to_string().contains("descriptor is dead"));
    // What the connector completes later is found without a signal.
    assert!(is_held(&alive[0]));
    strings.complete_in_silence(strings.next().succeed());
    wait_for("the page", || (!is_held(&alive[0])).then_some(()));
}

#[test]
fn a_descriptor_that_was_never_open_fails_everything_at_once() {
    // SAFETY: no descriptor has this number, so nobody else's is used; that is the fault that is tried.
    #[expect(unsafe_code, reason = "a connector that lies about its descriptor")]
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(1_000_000_000) };
    struct Liar(Puppet, std::os::fd::BorrowedFd<'static>);
    impl ondol_plugin::l2::NativeConnector for Liar {
        fn event_fd(&self) -> std::os::fd::BorrowedFd<'_> {
            self.1
        }
        fn submit_batch_get(
            &self,
            keys: &[String],
            pages: Vec<ondol_plugin::l2::PageMut>,
        ) -> anyhow::Result<ondol_plugin::l2::FutureId> {
            self.0.submit_batch_get(keys, pages)
        }
        fn submit_batch_set(
            &self,
            keys: &[String],
            objects: Vec<ondol_plugin::l2::ObjectRef>,
        ) -> anyhow::Result<ondol_plugin::l2::FutureId> {
            self.0.submit_batch_set(keys, objects)
        }
        fn submit_batch_exists(
            &self,
            keys: &[String],
        ) -> anyhow::Result<ondol_plugin::l2::FutureId> {
            self.0.submit_batch_exists(keys)
        }
        fn drain_completions(&self) -> Vec<Completion> {
            self.0.drain_completions()
        }
        fn close(&self) {}
    }
    let liar = Box::new(Liar(Puppet(Strings::new()), fd));
    let options = ondol_connector::BridgeOptions::default();
    let bridge = ondol_connector::Bridge::new("liar", liar, options).unwrap();
    wait_for("the failure", || {
        (bridge.status().health == Health::Failed).then_some(())
    });
    expect_health(&bridge, Health::Failed, "descriptor is dead");
    assert!(bridge.submit_lookup_and_lock(keys([1])).is_err());
}

#[test]
fn a_drain_that_panics_fails_everything_at_once() {
    let strings = Strings::new();
    let bridge = strings.bridge(LONG);
    let (items, alive) = load_items([1]);
    let load = bridge.submit_load(items).unwrap();
    strings.on_drain(|_| panic!("on purpose"));
    strings.signal();
    let loaded = load_result(&bridge, load);
    assert!(loaded.0[0].page.is_none() && is_held(&alive[0]));
    expect_health(&bridge, Health::Failed, "panicked");
    assert!(bridge.submit_store(vec![item(1, 1)]).is_err());
    assert!(bridge.delete(&keys([1])).is_err());
    assert_eq!(bridge.close(Duration::from_secs(1)).abandoned, 1);
}

#[test]
fn a_drain_that_hangs_does_not_keep_tasks_from_ending() {
    let strings = Strings::new();
    let bridge = strings.bridge(SHORT);
    let (release, gate) = std::sync::mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    strings.on_drain(move |_| {
        let _ = gate.lock().recv();
    });
    let lookup = bridge.submit_lookup_and_lock(keys([1])).unwrap();
    strings.complete(strings.next().succeed());
    assert!(lookup_result(&bridge, lookup).error.is_some());
    wait_for("the health", || {
        let reason = bridge.status().reason.unwrap_or_default();
        reason
            .contains("drain_completions has not returned")
            .then_some(())
    });
    drop(release);
    wait_for("the late completion", || {
        (figure(&bridge, "late_completions") == 1).then_some(())
    });
    assert_eq!(figure(&bridge, "locked_keys"), 0);
}

#[test]
fn a_submit_that_panics_leaves_nothing_behind() {
    let strings = Strings::new();
    let bridge = Arc::new(strings.bridge(LONG));
    strings.on_submit(|_, _| panic!("on purpose"));
    let submit = {
        let bridge = Arc::clone(&bridge);
        std::thread::spawn(move || bridge.submit_lookup_and_lock(keys([1])))
    };
    assert!(submit.join().is_err());
    assert_eq!(figure(&*bridge, "locked_keys"), 0);
    strings.behave();
    let panicked = strings.next();
    // Nobody waits for the number of a submit that did not return.
    strings.complete(panicked.succeed());
    wait_for("the count", || {
        (figure(&*bridge, "unknown_completions") == 1).then_some(())
    });
    let task = bridge.submit_lookup_and_lock(keys([1])).unwrap();
    strings.complete(strings.next().succeed());
    assert!(lookup_result(&*bridge, task).found.test(0));
}

/// In LMCache: a delete held up the thread that evicts for half a minute, each time.
#[test]
fn a_delete_that_hangs_fails_in_time_and_the_next_ones_at_once() {
    let strings = Strings::new();
    let bridge = strings.bridge(LONG);
    let task = bridge.submit_store(vec![item(1, 5)]).unwrap();
    strings.complete(strings.next().succeed());
    store_result(&bridge, task);

    let error = bridge.delete(&keys([1])).unwrap_err();
    assert!(error.to_string().contains("did not answer"), "{error}");
    let error = bridge.delete(&keys([2])).unwrap_err();
    assert!(error.to_string().contains("earlier delete"), "{error}");
    // It may be deleted at any time, so it is not found, and it counts until it is known to be gone.
    let task = bridge.submit_lookup_and_lock(keys([1])).unwrap();
    let deleting = strings.next();
    strings.complete(strings.next().succeed());
    assert!(!lookup_result(&bridge, task).found.test(0));
    assert_eq!(bridge.usage().objects, 1);
    strings.complete(deleting.succeed());
    wait_for("the late delete", || {
        (bridge.usage().objects == 0).then_some(())
    });
    assert_eq!(figure(&bridge, "locked_keys"), 0);
    assert_eq!(figure(&bridge, "overdue"), 0);
}

#[test]
fn a_lost_signal_costs_the_task_but_not_its_page() {
    let strings = Strings::new();
    let bridge = strings.bridge(SHORT);
    let (items, alive) = load_items([1]);
    let load = bridge.submit_load(items).unwrap();
    strings.complete_in_silence(strings.next().succeed());
    assert_eq!(load_result(&bridge, load).found().count_ones(), 0);
    wait_for("the page", || (!is_held(&alive[0])).then_some(()));
}

#[test]
fn a_descriptor_that_is_always_readable_is_seen_and_does_no_harm() {
    let strings = Strings::new();
    strings.keeps_signal.store(true, Ordering::Relaxed);
    let bridge = strings.bridge(LONG);
    strings.signal();
    wait_for("the count", || {
        (figure(&bridge, "false_signals") > 0).then_some(())
    });
    expect_health(&bridge, Health::Degraded, "stays readable");
    let task = bridge.submit_lookup_and_lock(keys([1])).unwrap();
    strings.complete(strings.next().succeed());
    assert!(lookup_result(&bridge, task).found.test(0));
}

#[test]
fn a_close_that_hangs_abandons_what_the_connector_has() {
    let strings = Strings::new();
    let bridge = strings.bridge(LONG);
    let (release, gate) = std::sync::mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    strings.on_close(move |_| {
        let _ = gate.lock().recv();
    });
    let (items, alive) = load_items([1]);
    let load = bridge.submit_load(items).unwrap();
    let lookup = bridge.submit_lookup_and_lock(keys([1])).unwrap();
    assert_eq!(bridge.close(SHORT).abandoned, 1);
    assert!(load_result(&bridge, load).0[0].page.is_none());
    assert!(lookup_result(&bridge, lookup).error.is_some());
    assert_eq!(figure(&bridge, "locked_keys"), 0);
    assert!(is_held(&alive[0]));
    drop(bridge);
    assert!(is_held(&alive[0]));
    drop(release);
}

#[test]
fn a_connector_that_loses_requests_when_it_closes_does_not_use_up_the_deadline() {
    let strings = Strings::new();
    let bridge = strings.bridge(LONG);
    let closes = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&closes);
    strings.on_close(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let load = bridge.submit_load(load_items([1]).0).unwrap();
    assert_eq!(bridge.close(Duration::from_millis(300)).abandoned, 1);
    assert_eq!(load_result(&bridge, load).found().count_ones(), 0);
    drop(bridge);
    assert_eq!(closes.load(Ordering::Relaxed), 1);
}

#[test]
fn a_close_that_panics_still_ends_everything() {
    let strings = Strings::new();
    let bridge = strings.bridge(LONG);
    let load = bridge.submit_load(load_items([1]).0).unwrap();
    strings.on_close(|_| panic!("on purpose"));
    assert_eq!(bridge.close(Duration::from_millis(300)).abandoned, 1);
    assert_eq!(load_result(&bridge, load).found().count_ones(), 0);
}
