//! The suite itself: a good plugin passes, and each bad one fails one check, for its own reason.

use std::collections::HashSet;
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use anyhow::{Result, bail};
use ondol_plugin::{
    HandlerPlugin, HandlerPluginFactory, HandlerView, Hooks, Key, Package, RetrievedBatch,
    StageResult,
};
use ondol_testkit::handler::{Check, Report, Subject, run};
use serde_json::{Map, Value};

type Built = Result<Option<Box<dyn HandlerPlugin>>>;

const fn factory(
    name: &'static str,
    build: fn(&ondol_plugin::FactoryContext<'_>) -> Built,
) -> HandlerPluginFactory {
    let package = Package {
        name: "suspects",
        version: "0.0.0",
    };
    HandlerPluginFactory::new(name, package, build)
}

/// A plugin with one fault, which is a function of what was called.
struct Suspect {
    fault: fn(&Self, &'static str, Option<&RetrievedBatch<'_>>) -> Result<()>,
    calls: AtomicU64,
    is_busy: AtomicBool,
    closes: (Mutex<usize>, Condvar),
    seen: Mutex<HashSet<Key>>,
    kept: Mutex<Vec<File>>,
}

impl Suspect {
    fn boxed(fault: fn(&Self, &'static str, Option<&RetrievedBatch<'_>>) -> Result<()>) -> Built {
        Ok(Some(Box::new(Self {
            fault,
            calls: AtomicU64::new(0),
            is_busy: AtomicBool::new(false),
            closes: Default::default(),
            seen: Mutex::default(),
            kept: Mutex::default(),
        })))
    }
}

impl HandlerPlugin for Suspect {
    fn on_init(&self, _: &dyn HandlerView) -> Result<()> {
        (self.fault)(self, "on_init", None)
    }

    fn on_batch_retrieve(&self, _: &dyn HandlerView, batch: &RetrievedBatch<'_>) -> Result<()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        (self.fault)(self, "on_batch_retrieve", Some(batch))
    }

    fn on_prefetch(&self, _: &dyn HandlerView, batch: &RetrievedBatch<'_>) -> Result<()> {
        (self.fault)(self, "on_prefetch", Some(batch))
    }

    fn on_stage(
        &self,
        _: &dyn HandlerView,
        batch: &RetrievedBatch<'_>,
    ) -> Result<Option<StageResult>> {
        (self.fault)(self, "on_stage", Some(batch))?;
        let found = batch.entries().filter(|entry| entry.found()).count() as u64;
        Ok(Some(StageResult {
            requested_keys: batch.len() as u64,
            found_keys: found,
            eligible_keys: found,
            issued_ranges: found,
            ..StageResult::default()
        }))
    }

    fn on_close(&self, _: &dyn HandlerView) -> Result<()> {
        (self.fault)(self, "on_close", None)
    }

    fn contribute_stats(&self) -> Option<Map<String, Value>> {
        let calls = self.calls.load(Ordering::Relaxed).into();
        Some(Map::from_iter([("calls".to_owned(), calls)]))
    }
}

fn check(factory: &'static HandlerPluginFactory) -> Report {
    run(&Subject::of("suspects", [factory]))
}

/// Runs the suite on a plugin with this fault and expects that it breaks exactly this check, in this place.
#[track_caller]
fn expect(factory: &'static HandlerPluginFactory, check: Check, place: &str, what: &str) {
    let report = run(&Subject::of("suspects", [factory]));
    let [violation] = report.violations() else {
        panic!("expected one violation, of {check:?}; {report}");
    };
    assert_eq!(
        (violation.check, violation.place.as_str()),
        (check, place),
        "{report}"
    );
    assert!(violation.what.contains(what), "{what:?} in {report}");
    assert!(report.to_string().contains(place), "{report}");
}

#[test]
fn a_good_plugin_passes() {
    static GOOD: HandlerPluginFactory = factory("good", |_| Suspect::boxed(|_, _, _| Ok(())));
    check(&GOOD).assert();
}

#[test]
fn a_plugin_that_wants_no_hook_passes() {
    struct Idle;
    impl HandlerPlugin for Idle {
        fn hooks(&self) -> Hooks {
            Hooks::NONE
        }
        fn on_init(&self, _: &dyn HandlerView) -> Result<()> {
            panic!("it was not asked for")
        }
    }
    static IDLE: HandlerPluginFactory = factory("idle", |_| Ok(Some(Box::new(Idle))));
    check(&IDLE).assert();
}

#[test]
fn a_package_that_registers_nothing_is_told_how() {
    let report = run(&Subject::linked("no-such-package"));
    let [violation] = report.violations() else {
        panic!("{report}")
    };
    assert_eq!(violation.check, Check::Names);
    assert!(violation.what.contains("no-such-package"), "{report}");
    assert!(violation.what.contains("inventory::submit!"), "{report}");
}

#[test]
fn a_name_that_is_not_legal() {
    static ODD: HandlerPluginFactory = factory("Two Words", |_| Suspect::boxed(|_, _, _| Ok(())));
    expect(&ODD, Check::Names, "registration", "\"Two Words\"");
}

#[test]
fn two_plugins_of_one_name() {
    static TWINS: [HandlerPluginFactory; 2] = [
        factory("twin", |_| Suspect::boxed(|_, _, _| Ok(()))),
        factory("twin", |_| Suspect::boxed(|_, _, _| Ok(()))),
    ];
    let report = run(&Subject::of("suspects", &TWINS));
    let [violation] = report.violations() else {
        panic!("{report}")
    };
    assert_eq!(violation.check, Check::Names);
    assert!(violation.what.contains("another one has"), "{report}");
}

#[test]
fn a_factory_that_needs_its_configuration() {
    static NEEDY: HandlerPluginFactory = factory("needy", |context| match context.var("NEEDY") {
        Some(_) => Suspect::boxed(|_, _, _| Ok(())),
        None => bail!("NEEDY is not set"),
    });
    let subject = Subject::of("suspects", [&NEEDY]).with_environment([("NEEDY", "1")]);
    let report = run(&subject);
    let [violation] = report.violations() else {
        panic!("{report}")
    };
    assert_eq!(violation.check, Check::EmptyEnvironment);
    assert!(violation.what.contains("NEEDY is not set"), "{report}");
}

#[test]
fn a_factory_that_panics() {
    static BORN_TO_FAIL: HandlerPluginFactory = factory("born-to-fail", |context| {
        assert!(context.var("FAIL").is_none(), "born to fail");
        Ok(None)
    });
    let subject = Subject::of("suspects", [&BORN_TO_FAIL]).with_environment([("FAIL", "1")]);
    let report = Check::Loading.run(&subject);
    assert!(
        report
            .to_string()
            .contains("factory panicked: born to fail"),
        "{report}"
    );
}

#[test]
fn an_environment_that_switches_nothing_on() {
    static SHY: HandlerPluginFactory = factory("shy", |_| Ok(None));
    expect(&SHY, Check::Loading, "factory", "environment:");
}

#[test]
fn a_hook_that_fails_on_objects_fails_no_other_check_for_that_reason() {
    static FUSSY: HandlerPluginFactory = factory("fussy", |_| {
        Suspect::boxed(|_, hook, batch| {
            let long = |batch: &RetrievedBatch<'_>| batch.entries().any(|e| e.kv_length() > 4096);
            if hook == "on_prefetch" && batch.is_some_and(long) {
                bail!("too long for me");
            }
            Ok(())
        })
    });
    let report = Check::Objects.run(&Subject::of("suspects", [&FUSSY]));
    assert_eq!(report.violations().len(), 1, "{report}");
    assert!(
        report
            .to_string()
            .contains("on_prefetch returned an error: too long for me"),
        "{report}"
    );
    Check::EmptyBatches
        .run(&Subject::of("suspects", [&FUSSY]))
        .assert();
}

#[test]
fn a_hook_that_takes_batches_to_have_a_first_key() {
    static HASTY: HandlerPluginFactory = factory("hasty", |_| {
        Suspect::boxed(|_, hook, batch| {
            if hook == "on_batch_retrieve" {
                batch.and_then(|batch| batch.get(0)).expect("a first key");
            }
            Ok(())
        })
    });
    expect(
        &HASTY,
        Check::EmptyBatches,
        "on_batch_retrieve",
        "panicked: a first key",
    );
}

#[test]
fn a_hook_that_takes_every_key_to_be_found() {
    static HOPEFUL: HandlerPluginFactory = factory("hopeful", |_| {
        Suspect::boxed(|_, hook, batch| match batch {
            // A lone missed key is withstood, so the check of stages is not concerned.
            Some(batch) if hook == "on_prefetch" && batch.entries().any(|entry| !entry.found()) => {
                let own = |entry: ondol_plugin::BatchEntry<'_>| *entry.key() >= Key::integer(9);
                if batch.entries().any(own) {
                    return Ok(());
                }
                bail!("a key has no object")
            }
            _ => Ok(()),
        })
    });
    expect(&HOPEFUL, Check::MissedKeys, "on_prefetch", "no object");
}

#[test]
fn a_hook_that_takes_every_region_to_be_mapped() {
    static BLIND: HandlerPluginFactory = factory("blind", |_| {
        Suspect::boxed(|_, hook, batch| {
            if let Some(batch) = batch
                && hook == "on_batch_retrieve"
            {
                for entry in batch.entries().filter(|entry| entry.found()) {
                    entry.bytes().expect("mapped bytes");
                }
            }
            Ok(())
        })
    });
    expect(
        &BLIND,
        Check::UnmappedRegions,
        "on_batch_retrieve",
        "mapped bytes",
    );
}

#[test]
fn a_hook_that_takes_itself_to_be_alone() {
    static LONELY: HandlerPluginFactory = factory("lonely", |_| {
        Suspect::boxed(|own, hook, _| {
            if hook != "on_prefetch" {
                return Ok(());
            }
            let was_busy = own.is_busy.swap(true, Ordering::SeqCst);
            // Long enough for others to come, if any do.
            std::thread::sleep(Duration::from_micros(50));
            own.is_busy.store(false, Ordering::SeqCst);
            if was_busy {
                bail!("somebody is here already");
            }
            Ok(())
        })
    });
    expect(&LONELY, Check::Threads, "on_prefetch", "here already");
}

#[test]
fn a_hint_that_fails_when_it_is_repeated() {
    static FORGETLESS: HandlerPluginFactory = factory("forgetless", |_| {
        Suspect::boxed(|own, hook, batch| {
            let Some(batch) = batch else { return Ok(()) };
            if hook != "on_prefetch" {
                return Ok(());
            }
            let mut seen = own.seen.lock().unwrap();
            if batch
                .entries()
                .any(|entry| !seen.insert(entry.key().clone()))
            {
                bail!("it is pinned already");
            }
            Ok(())
        })
    });
    let subject = Subject::of("suspects", [&FORGETLESS]);
    let report = Check::Repetition.run(&subject);
    assert!(
        report
            .to_string()
            .contains("on_prefetch returned an error: it is pinned already (it was not the first"),
        "{report}"
    );
}

#[test]
fn a_hint_that_opens_a_file_each_time() {
    static LEAKY: HandlerPluginFactory = factory("leaky", |_| {
        Suspect::boxed(|own, hook, _| {
            if hook == "on_stage" {
                own.kept.lock().unwrap().push(File::open("/dev/null")?);
            }
            Ok(())
        })
    });
    expect(&LEAKY, Check::Repetition, "on_stage", "file descriptors");
}

#[test]
fn figures_that_grow_with_each_hint() {
    #[derive(Default)]
    struct Hoarder(AtomicUsize);
    impl HandlerPlugin for Hoarder {
        fn on_prefetch(&self, _: &dyn HandlerView, _: &RetrievedBatch<'_>) -> Result<()> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
        fn contribute_stats(&self) -> Option<Map<String, Value>> {
            let hints: Vec<_> = (0..self.0.load(Ordering::Relaxed)).collect();
            Some(Map::from_iter([("hints".to_owned(), hints.into())]))
        }
    }
    static HOARDER: HandlerPluginFactory =
        factory("hoarder", |_| Ok(Some(Box::<Hoarder>::default())));
    expect(
        &HOARDER,
        Check::Repetition,
        "on_prefetch",
        "characters of figures",
    );
}

#[test]
fn a_close_that_takes_an_init_to_have_been() {
    static TRUSTING: HandlerPluginFactory = factory("trusting", |_| {
        Suspect::boxed(|own, hook, _| {
            match hook {
                "on_init" => own.is_busy.store(true, Ordering::Relaxed),
                "on_close" => assert!(own.is_busy.load(Ordering::Relaxed), "never initialised"),
                _ => {}
            }
            Ok(())
        })
    });
    expect(&TRUSTING, Check::Close, "on_close", "never initialised");
}

#[test]
fn a_close_that_takes_itself_to_be_the_last() {
    static FINAL: HandlerPluginFactory = factory("final", |_| {
        Suspect::boxed(|own, hook, _| {
            if hook == "on_close" {
                let mut closes = own.closes.0.lock().unwrap();
                *closes += 1;
                // The first comes before any hint.
                if *closes > 2 {
                    bail!("closed already");
                }
            }
            Ok(())
        })
    });
    expect(&FINAL, Check::Close, "on_close", "closed already");
}

#[test]
fn a_stage_that_promises_more_than_there_is() {
    struct Boastful(fn(&mut StageResult));
    impl HandlerPlugin for Boastful {
        fn on_stage(
            &self,
            _: &dyn HandlerView,
            batch: &RetrievedBatch<'_>,
        ) -> Result<Option<StageResult>> {
            let keys = batch.len() as u64;
            let found = batch.entries().filter(|entry| entry.found()).count() as u64;
            let mut result = StageResult {
                requested_keys: keys,
                found_keys: found,
                eligible_keys: found,
                issued_ranges: 1,
                ..StageResult::default()
            };
            (self.0)(&mut result);
            Ok(Some(result))
        }
    }
    static ALL_FOUND: HandlerPluginFactory = factory("all-found", |_| {
        Ok(Some(Box::new(Boastful(|result| {
            result.found_keys = result.requested_keys;
            result.eligible_keys = result.requested_keys;
        }))))
    });
    static SHORT: HandlerPluginFactory = factory("short", |_| {
        Ok(Some(Box::new(Boastful(|result| {
            result.requested_keys = result.found_keys;
        }))))
    });
    static ELIGIBLE: HandlerPluginFactory = factory("eligible", |_| {
        Ok(Some(Box::new(Boastful(|result| result.eligible_keys += 1))))
    });
    expect(&ALL_FOUND, Check::Stage, "on_stage", "1 found keys");
    expect(&SHORT, Check::Stage, "on_stage", "0 requested keys");
    expect(&ELIGIBLE, Check::Stage, "on_stage", "eligible keys");
}

#[test]
fn figures_under_the_hosts_key() {
    struct Forger;
    impl HandlerPlugin for Forger {
        fn contribute_stats(&self) -> Option<Map<String, Value>> {
            Some(Map::from_iter([("host".to_owned(), Value::Null)]))
        }
    }
    static FORGER: HandlerPluginFactory = factory("forger", |_| Ok(Some(Box::new(Forger))));
    expect(&FORGER, Check::Statistics, "contribute_stats", "\"host\"");
}

#[test]
fn figures_that_panic() {
    struct Shaky;
    impl HandlerPlugin for Shaky {
        fn contribute_stats(&self) -> Option<Map<String, Value>> {
            panic!("no figures")
        }
    }
    static SHAKY: HandlerPluginFactory = factory("shaky", |_| Ok(Some(Box::new(Shaky))));
    let report = Check::Statistics.run(&Subject::of("suspects", [&SHAKY]));
    assert!(
        report
            .to_string()
            .contains("contribute_stats panicked: no figures"),
        "{report}"
    );
}

#[test]
fn a_hook_that_never_returns_is_named_and_left_alone() {
    static STUCK: HandlerPluginFactory = factory("stuck", |_| {
        Suspect::boxed(|own, hook, _| {
            if hook == "on_close" {
                let never = own.closes.0.lock().unwrap();
                drop(own.closes.1.wait_while(never, |_| true));
            }
            Ok(())
        })
    });
    let subject = Subject::of("suspects", [&STUCK]).with_deadline(Duration::from_millis(100));
    let report = Check::Close.run(&subject);
    assert!(
        report.to_string().contains("on_close did not return"),
        "{report}"
    );
}

#[test]
fn a_destructor_that_panics() {
    struct Sore;
    impl HandlerPlugin for Sore {}
    impl Drop for Sore {
        fn drop(&mut self) {
            panic!("not like this");
        }
    }
    static SORE: HandlerPluginFactory = factory("sore", |_| Ok(Some(Box::new(Sore))));
    let report = Check::EmptyBatches.run(&Subject::of("suspects", [&SORE]));
    assert!(
        report
            .to_string()
            .contains("destructor panicked: not like this"),
        "{report}"
    );
}

#[test]
fn an_error_that_cannot_be_shown_is_the_plugins_panic() {
    #[derive(Debug)]
    struct Unprintable;
    impl std::fmt::Display for Unprintable {
        fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            panic!("unprintable")
        }
    }
    impl std::error::Error for Unprintable {}
    static MUTE: HandlerPluginFactory = factory("mute", |_| {
        Suspect::boxed(|_, hook, _| match hook {
            "on_init" => Err(Unprintable.into()),
            _ => Ok(()),
        })
    });
    let report = Check::Objects.run(&Subject::of("suspects", [&MUTE]));
    assert!(
        report.to_string().contains("on_init panicked: unprintable"),
        "{report}"
    );
}
