//! A plugin that misbehaves inline costs at most the call it is in.

mod common;

use std::time::Duration;

use common::{House, View, eventually, lines, logged};
use ondol_host::{Clock, HOST_STATS_KEY, PluginState};
use ondol_plugin::Hooks;

const HOOKS: [(&str, &str); 6] = [
    ("init", "on_init"),
    ("batch-retrieve", "on_batch_retrieve"),
    ("prefetch", "on_prefetch"),
    ("stage", "on_stage"),
    ("stats", "contribute_stats"),
    ("close", "on_close"),
];

#[test]
fn a_panic_in_any_hook_ends_the_use_of_that_plugin_only() {
    for (short, hook) in HOOKS {
        let name = format!("panic-{short}");
        let house = House::with(&[&name, "healthy"]);
        house.every_seam();
        house.every_seam();

        let report = house.report(&name);
        assert_eq!(
            (report.state, report.panics),
            (PluginState::Panicked, 1),
            "{hook}"
        );
        let reason = report.reason.unwrap();
        assert_eq!(reason, format!("{hook} panicked: broken in {hook}"));
        assert_eq!(house.report("healthy").state, PluginState::Loaded);
        // Twice the healthy one's, once the broken one's.
        assert_eq!(
            house.probe.count(hook),
            3,
            "{hook}: {:?}",
            house.probe.calls()
        );
    }
}

#[test]
fn an_instance_that_panicked_is_not_called_for_anything_else() {
    let house = House::with(&["panic-init"]);
    assert!(house.plugins.is_interested(Hooks::BATCH_RETRIEVE));
    house.every_seam();
    assert_eq!(house.probe.calls(), ["hooks", "deferred", "on_init"]);
    assert!(
        !house.plugins.is_interested(Hooks::ALL),
        "no seam may look for it any more"
    );
}

#[test]
fn the_interest_mask_keeps_what_others_want() {
    let house = House::with(&["panic-init", "healthy"]);
    house.plugins.init(&View);
    assert!(house.plugins.is_interested(Hooks::BATCH_RETRIEVE));
    assert!(house.plugins.is_interested(Hooks::CLOSE));
}

#[test]
fn a_payload_that_panics_when_dropped_is_survived() {
    let house = House::with(&["panic-payload", "healthy"]);
    house.batch_retrieve();
    house.batch_retrieve();
    assert_eq!(house.report("panic-payload").state, PluginState::Panicked);
    assert_eq!(house.probe.count("on_batch_retrieve"), 3);
}

#[test]
fn an_error_that_panics_when_shown_counts_as_a_panic() {
    let house = House::with(&["error-display", "healthy"]);
    house.batch_retrieve();
    house.batch_retrieve();
    let report = house.report("error-display");
    assert_eq!((report.state, report.panics), (PluginState::Panicked, 1));
    assert_eq!(house.probe.count("on_batch_retrieve"), 3);
}

#[test]
fn a_destructor_that_panics_is_survived() {
    let House { plugins, probe, .. } = House::with(&["panic-drop", "healthy"]);
    drop(plugins);
    assert_eq!(probe.count("drop"), 2);
}

#[test]
fn an_error_is_counted_and_the_plugin_stays_in_use() {
    for (short, hook) in HOOKS.into_iter().filter(|(short, _)| *short != "stats") {
        let name = format!("error-{short}");
        let house = House::with(&[&name, "healthy"]);
        house.every_seam();
        house.every_seam();
        let report = house.report(&name);
        assert_eq!(
            (report.state, report.errors),
            (PluginState::Loaded, 2),
            "{hook}"
        );
        assert_eq!(house.probe.count(hook), 4, "{hook}");
    }
}

#[test]
fn only_the_first_error_of_a_kind_is_a_warning() {
    let (_, log) = logged(|| {
        let house = House::tuned(&["error-batch-retrieve"], |options| {
            options.quarantine_after = 0
        });
        (0..5).for_each(|_| house.batch_retrieve());
        assert_eq!(house.report("error-batch-retrieve").errors, 5);
    });
    assert_eq!(
        lines(&log, "WARN", "wrong in on_batch_retrieve"),
        1,
        "{log}"
    );
    assert_eq!(
        lines(&log, "DEBUG", "wrong in on_batch_retrieve"),
        4,
        "{log}"
    );
}

#[test]
fn errors_in_a_row_quarantine_and_are_announced_once() {
    let (house, log) = logged(|| {
        let house = House::with(&["error-batch-retrieve", "healthy"]);
        (0..10).for_each(|_| house.batch_retrieve());
        house
    });
    let report = house.report("error-batch-retrieve");
    assert_eq!((report.state, report.errors), (PluginState::Quarantined, 3));
    assert!(report.reason.unwrap().contains("3 times in a row"));
    assert_eq!(house.probe.count("on_batch_retrieve"), 3 + 10);
    assert_eq!(
        lines(&log, "WARN", "will not be called any more"),
        1,
        "{log}"
    );

    let stats = house.plugins.stats();
    let host = &stats["error-batch-retrieve"][HOST_STATS_KEY];
    assert_eq!(
        (&host["state"], &host["errors"]),
        (&"quarantined".into(), &3.into())
    );
    assert_eq!(
        stats["error-batch-retrieve"].get("figure"),
        None,
        "asked a plugin in quarantine"
    );
    assert_eq!(stats["healthy"]["figure"], 1);
    assert_eq!(stats["healthy"][HOST_STATS_KEY]["state"], "loaded");
}

#[test]
fn a_success_in_between_starts_the_row_again() {
    let house = House::with(&["error-alternating"]);
    (0..20).for_each(|_| house.batch_retrieve());
    let report = house.report("error-alternating");
    assert_eq!((report.state, report.errors), (PluginState::Loaded, 10));
}

#[test]
fn a_success_of_one_hook_does_not_excuse_another() {
    let house = House::with(&["error-prefetch"]);
    for _ in 0..3 {
        house.batch_retrieve();
        house.prefetch();
    }
    assert_eq!(
        house.report("error-prefetch").state,
        PluginState::Quarantined
    );
}

#[test]
fn a_stage_that_fails_is_a_failed_result() {
    for (name, error) in [
        ("panic-stage", "panic-stage: panicked: broken in on_stage"),
        ("error-stage", "error-stage: wrong in on_stage"),
    ] {
        let house = House::with(&[name, "healthy"]);
        let result = house.stage();
        assert!(!result.ready(), "{result:?}");
        assert_eq!(result.error.unwrap(), error);
    }
}

#[test]
fn a_stage_is_ready_only_if_somebody_made_it_so() {
    let ready = House::with(&["healthy"]).stage();
    assert!(ready.ready(), "{ready:?}");
    let ready = House::with(&["healthy", "stage-none"]).stage();
    assert!(ready.ready(), "{ready:?}");
    for names in [
        &[][..],
        &["stage-none"],
        &["stage-short"],
        &["stage-short", "healthy"],
    ] {
        let result = House::with(names).stage();
        assert!(!result.ready(), "{names:?}: {result:?}");
        assert!(result.error.is_some(), "{names:?}: {result:?}");
    }
}

#[test]
fn a_plugin_can_not_forge_the_figures_of_the_host() {
    let stats = House::with(&["stats-host"]).plugins.stats();
    assert_eq!(stats["stats-host"][HOST_STATS_KEY]["state"], "loaded");
}

/// Lets a call of the hanging plugin begin, turns the clock by `pass`, and lets the call end.
fn hang_for(house: &House, pass: Duration, call: impl Fn(&House) + Sync, hook: &str) {
    let before = house.probe.count(hook);
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| call(house));
        house.probe.wait_for(hook, before + 1);
        house.clock.advance(pass);
        house.probe.open();
        caller.join().unwrap();
    });
}

#[test]
fn a_call_that_outlasts_its_budget_is_counted() {
    let house = House::with(&["hang-batch-retrieve"]);
    hang_for(
        &house,
        Duration::from_millis(60),
        House::batch_retrieve,
        "on_batch_retrieve",
    );
    let report = house.report("hang-batch-retrieve");
    assert_eq!((report.state, report.overruns), (PluginState::Loaded, 1));

    let house = House::with(&["hang-batch-retrieve"]);
    hang_for(
        &house,
        Duration::from_millis(50),
        House::batch_retrieve,
        "on_batch_retrieve",
    );
    assert_eq!(house.report("hang-batch-retrieve").overruns, 0);
}

#[test]
fn overruns_in_a_row_quarantine() {
    let house = House::tuned(&["hang-batch-retrieve"], |options| {
        options.quarantine_after = 1
    });
    hang_for(
        &house,
        Duration::from_millis(60),
        House::batch_retrieve,
        "on_batch_retrieve",
    );
    let report = house.report("hang-batch-retrieve");
    assert_eq!(
        (report.state, report.overruns),
        (PluginState::Quarantined, 1)
    );
    assert!(report.reason.unwrap().contains("budget of 50ms"));
}

#[test]
fn a_stage_may_take_its_time() {
    let house = House::tuned(&["hang-stage"], |options| options.quarantine_after = 1);
    let stage = |house: &House| assert!(house.stage().ready());
    hang_for(&house, Duration::from_secs(3600), stage, "on_stage");
    let report = house.report("hang-stage");
    assert_eq!((report.state, report.overruns), (PluginState::Loaded, 0));
}

#[test]
fn a_call_that_never_returns_is_quarantined_for_all_others() {
    let house = House::with(&["hang-batch-retrieve", "healthy"]);
    std::thread::scope(|scope| {
        let stuck = scope.spawn(|| house.batch_retrieve());
        house.probe.wait_for("on_batch_retrieve", 1);
        house.clock.advance(Duration::from_secs(1));
        assert_eq!(
            house.report("hang-batch-retrieve").state,
            PluginState::Loaded
        );
        house.clock.advance(Duration::from_millis(10));
        let report = house.report("hang-batch-retrieve");
        assert_eq!(report.state, PluginState::Quarantined);
        assert!(report.reason.unwrap().contains("on_batch_retrieve hangs"));

        // On this thread too, which would hang for ever if the plugin were called.
        (0..3).for_each(|_| house.batch_retrieve());
        assert_eq!(
            house.plugins.stats()["hang-batch-retrieve"][HOST_STATS_KEY]["state"],
            "quarantined"
        );
        assert_eq!(house.probe.count("on_batch_retrieve"), 1 + 3);
        assert!(!stuck.is_finished());
        house.probe.open();
        stuck.join().unwrap();
    });
    // The call that was stuck reached the plugins behind the one it was stuck in.
    assert_eq!(house.probe.count("on_batch_retrieve"), 1 + 3 + 1);
}

#[test]
fn statistics_that_hang_hang_one_caller() {
    let house = House::with(&["hang-stats", "healthy"]);
    std::thread::scope(|scope| {
        scope.spawn(|| house.plugins.stats());
        house.probe.wait_for("contribute_stats", 1);
        house.clock.advance(Duration::from_secs(2));
        let stats = house.plugins.stats();
        assert_eq!(stats["hang-stats"][HOST_STATS_KEY]["state"], "quarantined");
        assert_eq!(stats["healthy"]["figure"], 1);
        house.probe.open();
    });
}

#[test]
fn the_clock_of_one_handler_does_not_judge_the_plugins_of_another() {
    let house = House::with(&["hang-batch-retrieve"]);
    let other = House::with(&["hang-batch-retrieve"]);
    std::thread::scope(|scope| {
        scope.spawn(|| house.batch_retrieve());
        house.probe.wait_for("on_batch_retrieve", 1);
        other.clock.advance(Duration::from_secs(3600));
        assert_eq!(
            house.report("hang-batch-retrieve").state,
            PluginState::Loaded
        );
        house.probe.open();
    });
}

#[test]
fn the_watchdog_of_the_process_finds_a_call_that_hangs() {
    // Twice, with a pause without plugins in between, in which the watchdog's thread ends.
    for _ in 0..2 {
        let house = House::tuned(&["hang-batch-retrieve"], |options| {
            options.clock = Clock::system();
            options.hang_after = Duration::from_millis(50);
        });
        std::thread::scope(|scope| {
            scope.spawn(|| house.batch_retrieve());
            eventually("the hanging plugin is in quarantine", || {
                house.report("hang-batch-retrieve").state == PluginState::Quarantined
            });
            house.batch_retrieve();
            house.probe.open();
        });
    }
}

#[test]
fn a_destructor_that_hangs_is_left_behind() {
    let House { plugins, probe, .. } = House::tuned(&["hang-drop", "healthy"], |options| {
        options.close_grace = Duration::from_millis(20);
    });
    let (_, log) = logged(|| drop(plugins));
    assert_eq!(lines(&log, "WARN", "destructor"), 1, "{log}");
    probe.open();
    probe.wait_for("drop", 2);
}
