//! Deferred plugins: called later, on a thread of their own, or not at all.

mod common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{House, View, eventually};
use ondol_host::PluginState;

const LONG: Duration = Duration::from_secs(120);

#[test]
fn a_deferred_plugin_gets_every_batch_and_holds_none_afterwards() {
    let house = House::with(&["healthy-deferred"]);
    for _ in 0..10 {
        house.batch_retrieve();
        house.prefetch();
    }
    assert!(house.plugins.settle(LONG));
    assert_eq!(house.probe.count("on_batch_retrieve"), 10);
    assert_eq!(house.probe.count("on_prefetch"), 10);
    assert_eq!(
        house.alive.load(Ordering::SeqCst),
        0,
        "a batch is still held"
    );
    assert_eq!(house.report("healthy-deferred").dropped, 0);
}

#[test]
fn hooks_that_can_not_be_deferred_stay_inline() {
    let house = House::with(&["healthy-deferred"]);
    house.plugins.init(&View);
    assert!(house.stage().ready());
    house.plugins.close(&View);
    for hook in ["on_init", "on_stage", "on_close"] {
        assert_eq!(house.probe.count(hook), 1, "{hook}");
    }
}

#[test]
fn a_batch_is_copied_for_deferred_plugins_only() {
    let house = House::with(&["healthy"]);
    house.batch_retrieve();
    assert_eq!(house.owned.load(Ordering::SeqCst), 0);

    // This one defers batch retrieves and takes prefetches inline.
    let house = House::with(&["hang-lane"]);
    house.prefetch();
    assert_eq!(house.owned.load(Ordering::SeqCst), 0);
    assert_eq!(house.probe.count("on_prefetch"), 1);
}

#[test]
fn a_full_lane_drops_without_waiting_or_copying() {
    let house = House::tuned(&["hang-lane", "healthy"], |options| {
        options.lane_capacity = 1
    });
    house.batch_retrieve();
    house.probe.wait_for("on_batch_retrieve", 2); // in the lane, and the healthy one
    (0..5).for_each(|_| house.batch_retrieve());
    assert_eq!(house.report("hang-lane").dropped, 4);
    assert_eq!(house.owned.load(Ordering::SeqCst), 2);
    assert_eq!(house.probe.count("on_batch_retrieve"), 1 + 6);
    house.probe.open();
    assert!(house.plugins.settle(LONG));
    assert_eq!(house.probe.count("on_batch_retrieve"), 2 + 6);
}

#[test]
fn a_lane_that_hangs_keeps_the_batch_it_is_in_and_no_other() {
    let house = House::with(&["hang-lane"]);
    (0..5).for_each(|_| house.batch_retrieve());
    house.probe.wait_for("on_batch_retrieve", 1);
    assert_eq!(house.alive.load(Ordering::SeqCst), 5);

    house.clock.advance(Duration::from_secs(9));
    assert_eq!(
        house.report("hang-lane").state,
        PluginState::Loaded,
        "a lane has more time"
    );
    house.clock.advance(Duration::from_secs(2));
    let report = house.report("hang-lane");
    assert_eq!(
        (report.state, report.dropped),
        (PluginState::Quarantined, 4)
    );
    assert_eq!(
        house.alive.load(Ordering::SeqCst),
        1,
        "the plugin may still touch the one it has"
    );

    house.batch_retrieve();
    assert_eq!(house.alive.load(Ordering::SeqCst), 1);
    house.probe.open();
    eventually("the batch is let go", || {
        house.alive.load(Ordering::SeqCst) == 0
    });
    assert_eq!(house.probe.count("on_batch_retrieve"), 1);
}

#[test]
fn a_slow_lane_is_no_overrun() {
    let house = House::tuned(&["hang-lane"], |options| options.quarantine_after = 1);
    house.batch_retrieve();
    house.probe.wait_for("on_batch_retrieve", 1);
    house.clock.advance(Duration::from_secs(5));
    house.probe.open();
    assert!(house.plugins.settle(LONG));
    let report = house.report("hang-lane");
    assert_eq!((report.state, report.overruns), (PluginState::Loaded, 0));
}

#[test]
fn a_panic_on_the_lane_ends_the_use_of_the_plugin() {
    let house = House::with(&["panic-lane", "healthy"]);
    (0..5).for_each(|_| house.batch_retrieve());
    assert!(house.plugins.settle(LONG));
    let report = house.report("panic-lane");
    assert_eq!((report.state, report.panics), (PluginState::Panicked, 1));
    assert_eq!(house.probe.count("on_batch_retrieve"), 1 + 5);
    assert_eq!(house.alive.load(Ordering::SeqCst), 0);
}

#[test]
fn no_batch_follows_the_close() {
    let house = House::with(&["hang-lane"]);
    (0..5).for_each(|_| house.batch_retrieve());
    house.probe.wait_for("on_batch_retrieve", 1);
    house.plugins.close(&View);
    assert_eq!(house.report("hang-lane").dropped, 4);
    assert_eq!(house.alive.load(Ordering::SeqCst), 1);
    house.probe.open();
    assert!(house.plugins.settle(LONG));
    assert_eq!(house.probe.count("on_batch_retrieve"), 1);
}

#[test]
fn settling_gives_up_on_a_lane_that_hangs() {
    let house = House::with(&["hang-lane"]);
    house.batch_retrieve();
    house.probe.wait_for("on_batch_retrieve", 1);
    assert!(!house.plugins.settle(Duration::from_millis(1)));
    house.probe.open();
    assert!(house.plugins.settle(LONG));
}

#[test]
fn what_is_queued_is_delivered_before_the_end() {
    let house = House::tuned(&["hang-lane"], |options| options.close_grace = LONG);
    (0..5).for_each(|_| house.batch_retrieve());
    house.probe.open();
    let House { plugins, probe, .. } = house;
    drop(plugins);
    assert_eq!(probe.count("on_batch_retrieve"), 5);
    assert_eq!(probe.calls().last(), Some(&"drop"));
}

#[test]
fn a_lane_that_hangs_does_not_hang_the_end() {
    let house = House::tuned(&["hang-lane", "healthy"], |options| {
        options.close_grace = Duration::from_millis(20);
    });
    (0..5).for_each(|_| house.batch_retrieve());
    house.probe.wait_for("on_batch_retrieve", 6);
    let House {
        plugins,
        probe,
        alive,
        ..
    } = house;
    drop(plugins);
    assert_eq!(
        alive.load(Ordering::SeqCst),
        1,
        "the plugin may still touch the one it has"
    );
    probe.wait_for("drop", 1);
    assert_eq!(
        probe.count("drop"),
        1,
        "a plugin that is in a call was destroyed"
    );
    probe.open();
    probe.wait_for("drop", 2);
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}
