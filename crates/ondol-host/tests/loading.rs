//! What loads, what does not, and what is said about it.

mod common;

use common::{House, lines, logged};
use ondol_host::{
    ALLOWLIST_VARIABLE, Environment, HandlerPlugins, LoadOptions, PluginState, Registry,
};
use ondol_plugin::Hooks;

#[test]
fn a_plugin_that_fails_to_load_leaves_the_others_in_use() {
    let culprits = [
        (
            "factory-errs",
            PluginState::Failed,
            "could not open the device: no such device",
        ),
        (
            "factory-panics",
            PluginState::Failed,
            "panicked: born to fail",
        ),
        (
            "factory-error-display",
            PluginState::Failed,
            "panicked: unprintable",
        ),
        (
            "panic-hooks",
            PluginState::Failed,
            "panicked: broken in hooks",
        ),
        (
            "panic-deferred",
            PluginState::Failed,
            "panicked: broken in deferred",
        ),
        ("factory-declines", PluginState::Declined, "declined"),
    ];
    for (name, state, reason) in culprits {
        let house = House::with(&[name, "healthy"]);
        let report = house.report(name);
        assert_eq!(report.state, state, "{name}");
        assert!(
            report.reason.as_ref().unwrap().contains(reason),
            "{report:?}"
        );
        assert_eq!(house.report("healthy").state, PluginState::Loaded, "{name}");
        house.batch_retrieve();
        assert_eq!(house.probe.count("on_batch_retrieve"), 1, "{name}");
        assert_eq!(
            house.plugins.stats().keys().collect::<Vec<_>>(),
            ["healthy"]
        );
    }
}

#[test]
fn an_instance_that_failed_to_load_is_destroyed_under_guard() {
    let house = House::with(&["panic-hooks"]);
    assert_eq!(house.probe.calls(), ["hooks", "drop"]);
    assert!(!house.plugins.is_interested(Hooks::ALL));
}

#[test]
fn failures_are_warned_of_and_declining_is_quiet() {
    let (_, log) = logged(|| House::with(&["factory-errs", "factory-declines", "healthy"]));
    assert_eq!(lines(&log, "WARN", "factory-errs"), 1, "{log}");
    assert_eq!(lines(&log, "WARN", "factory-declines"), 0, "{log}");
    assert_eq!(lines(&log, "DEBUG", "factory-declines"), 1, "{log}");
    assert_eq!(lines(&log, "INFO", "healthy"), 1, "{log}");
}

#[test]
fn only_what_the_allowlist_names_is_built() {
    let house = House::with(&["healthy"]);
    for row in house.plugins.report() {
        let expected = match row.name {
            "healthy" => PluginState::Loaded,
            "" | "two words" | "comma,name" => PluginState::Rejected,
            _ => PluginState::Skipped,
        };
        assert_eq!(row.state, expected, "{row:?}");
    }
    assert_eq!(house.probe.calls(), ["hooks", "deferred"]);
}

#[test]
fn names_that_match_nothing_are_one_warning() {
    let (house, log) = logged(|| House::with(&["healthy", "missing-b", "missing-a"]));
    assert_eq!(house.plugins.unmatched(), ["missing-a", "missing-b"]);
    assert_eq!(lines(&log, "WARN", "missing-a, missing-b"), 1, "{log}");
    assert_eq!(lines(&log, "WARN", "missing"), 1, "{log}");
}

#[test]
fn the_allowlist_is_read_from_the_environment() {
    let none: [(&str, &str); 0] = [];
    let environment = Environment::of([(ALLOWLIST_VARIABLE, " healthy , twin")]);
    let plugins = HandlerPlugins::load(Registry::global(), LoadOptions::new(environment));
    let loaded: Vec<_> = plugins
        .report()
        .into_iter()
        .filter(|row| row.state == PluginState::Loaded)
        .map(|row| row.name)
        .collect();
    assert_eq!(loaded, ["healthy", "twin"]);

    let nothing_linked =
        HandlerPlugins::load(&Registry::of([]), LoadOptions::new(Environment::of(none)));
    assert_eq!(nothing_linked.report(), []);
    assert!(nothing_linked.unmatched().is_empty());
}

#[test]
fn the_first_of_two_equal_names_wins_with_a_warning() {
    let (house, log) = logged(|| House::with(&["twin"]));
    let twins: Vec<_> = house
        .plugins
        .report()
        .into_iter()
        .filter(|row| row.name == "twin")
        .map(|row| (row.package, row.state))
        .collect();
    assert_eq!(
        twins,
        [
            ("broken-plugins", PluginState::Loaded),
            ("broken-plugins-other", PluginState::Duplicate)
        ]
    );
    assert_eq!(lines(&log, "WARN", "twin"), 1, "{log}");
    house.batch_retrieve();
    assert_eq!(house.probe.count("on_batch_retrieve"), 1);
    assert_eq!(house.plugins.stats().len(), 1);
}

#[test]
fn a_twin_that_is_not_allowed_is_skipped_without_a_warning() {
    let (house, log) = logged(|| House::with(&["healthy"]));
    let twins = house
        .plugins
        .report()
        .into_iter()
        .filter(|row| row.name == "twin");
    assert!(twins.map(|row| row.state).eq([PluginState::Skipped; 2]));
    assert_eq!(lines(&log, "WARN", "twin"), 0, "{log}");
}

#[test]
fn a_report_is_plain_json() {
    let house = House::with(&["healthy-deferred"]);
    let json = serde_json::to_value(house.report("healthy-deferred")).unwrap();
    assert_eq!(
        json,
        serde_json::json!({
            "name": "healthy-deferred",
            "package": "broken-plugins",
            "version": env!("CARGO_PKG_VERSION"),
            "state": "loaded",
            "reason": null,
            "hooks": ["on_init", "on_batch_retrieve", "on_prefetch", "on_stage", "on_close", "contribute_stats"],
            "deferred": ["on_batch_retrieve", "on_prefetch"],
            "errors": 0, "panics": 0, "overruns": 0, "dropped": 0,
        })
    );
}

#[test]
fn the_global_registry_is_what_is_linked_here() {
    let registry = Registry::global();
    assert_eq!(
        registry.verify_expected(&["broken-plugins", "broken-plugins-other"]),
        Ok(())
    );
    let mismatch = registry.verify_expected(&["broken-plugins"]).unwrap_err();
    assert_eq!(mismatch.unexpected(), ["broken-plugins-other"]);
    assert!(std::ptr::eq(registry, Registry::global()));
}
