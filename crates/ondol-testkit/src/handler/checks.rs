use std::collections::BTreeSet;
use std::fs;
use std::sync::{Arc, Barrier};
use std::thread;

use ondol_plugin::{HandlerPluginFactory, Hooks, Key, RegionId, RegionSpan, StageResult};

use super::call::{Caller, Instance, build};
use super::{Report, Subject, Violation};
use crate::apart::{Complaint, Outcome, complaint};
use crate::{FakeBatch, FakeView};

/// One thing that handler plugins must withstand. The numbers are those of the promises in
/// `docs/contract/CONTRACT.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Check {
    /// The package registers something, under names of a-z, 0-9 and dashes that differ (C15, C24).
    Names,
    /// With no variable set every factory builds a plugin or declines (C24).
    EmptyEnvironment,
    /// With the suite's environment every factory builds or declines, and one at least builds: the other checks would
    /// check nothing otherwise.
    Loading,
    /// Objects in mapped regions, with their bytes.
    Objects,
    /// Batches without a key.
    EmptyBatches,
    /// Keys that were not found, alone and among others.
    MissedKeys,
    /// Objects in regions that are not mapped, not known, or have no path; and a region that is unmapped between two
    /// hints (C3).
    UnmappedRegions,
    /// All hooks from many threads at once, while the handler closes (C20).
    Threads,
    /// The same hint many times: no error, and neither figures, file descriptors, threads, mappings nor locked memory
    /// grow with each (C21).
    Repetition,
    /// `on_close` without `on_init`, twice, and before hints that come late (C1, C2, C3).
    Close,
    /// A stage speaks of the keys that were asked for, and is ready only if it can be.
    Stage,
    /// Figures can be asked for at any time and leave the key `host` to the host (C15).
    Statistics,
}

/// How often a hint is repeated. Something that grows with every hint grows by so much.
const REPETITIONS: usize = 256;
/// How often growth must be seen in a row.
const WINDOWS: usize = 3;
const THREADS: usize = 8;
const ROUNDS: usize = 32;
/// The key under which the host writes its own figures, in place of a plugin's.
const HOST_KEY: &str = "host";

impl Check {
    /// Every check.
    pub const ALL: [Self; 12] = [
        Self::Names,
        Self::EmptyEnvironment,
        Self::Loading,
        Self::Objects,
        Self::EmptyBatches,
        Self::MissedKeys,
        Self::UnmappedRegions,
        Self::Threads,
        Self::Repetition,
        Self::Close,
        Self::Stage,
        Self::Statistics,
    ];

    /// The check in a few words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Names => "names",
            Self::EmptyEnvironment => "empty environment",
            Self::Loading => "loading",
            Self::Objects => "objects",
            Self::EmptyBatches => "empty batches",
            Self::MissedKeys => "missed keys",
            Self::UnmappedRegions => "unmapped regions",
            Self::Threads => "many threads",
            Self::Repetition => "repetition",
            Self::Close => "close",
            Self::Stage => "stage",
            Self::Statistics => "statistics",
        }
    }

    /// Runs this check on all plugins of the subject.
    pub fn run(self, subject: &Subject) -> Report {
        let violation = |plugin: &str, Complaint { place, what }| Violation {
            check: self,
            plugin: plugin.to_owned(),
            place,
            what,
        };
        let found = match self {
            Self::Names => names(subject),
            Self::EmptyEnvironment => empty_environment(subject),
            Self::Loading => loading(subject),
            Self::Objects => each(subject, objects),
            Self::EmptyBatches => each(subject, empty_batches),
            Self::MissedKeys => each(subject, missed_keys),
            Self::UnmappedRegions => each(subject, unmapped_regions),
            Self::Threads => each(subject, threads),
            Self::Repetition => each(subject, repetition),
            Self::Close => each(subject, close),
            Self::Stage => each(subject, stage),
            Self::Statistics => each(subject, statistics),
        };
        let violations = found
            .into_iter()
            .map(|(plugin, complaint)| violation(plugin, complaint));
        Report::of(violations.collect())
    }
}

/// Complaints, each with the name of its plugin.
type Found = Vec<(&'static str, Complaint)>;

fn names(subject: &Subject) -> Found {
    let mut found = Vec::new();
    let mut complain = |name, what: String| {
        found.extend(
            complaint::<()>("registration", what)
                .err()
                .map(|complaint| (name, complaint)),
        );
    };
    if subject.factories.is_empty() {
        let package = &subject.package;
        complain(
            "",
            format!(
                "of package {package} is not there; submit a factory with inventory::submit! and package!(), and name \
                 the library in the test so that it is linked"
            ),
        );
    }
    let mut names = BTreeSet::new();
    for factory in &subject.factories {
        let name = factory.name();
        if !is_legal(name) {
            complain(
                name,
                format!(
                    "has the name {name:?}; expected a-z and 0-9, with single dashes between them, such as `my-hint`"
                ),
            );
        }
        if !names.insert(name) {
            complain(
                name,
                "has a name that another one has; the second would never be used: rename it"
                    .to_owned(),
            );
        }
    }
    found
}

fn is_legal(name: &str) -> bool {
    let plain = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    name.split('-').all(plain)
}

fn empty_environment(subject: &Subject) -> Found {
    let nothing = Arc::default();
    let check = |factory| match build(factory, &nothing, subject.deadline)? {
        Some(instance) => instance.end(),
        None => Ok(()),
    };
    complaints(subject, check)
}

fn loading(subject: &Subject) -> Found {
    let mut loaded = 0;
    let mut found = complaints(subject, |factory| {
        match build(factory, &subject.environment, subject.deadline)? {
            Some(instance) => {
                loaded += 1;
                instance.end()
            }
            None => Ok(()),
        }
    });
    if loaded == 0 && found.is_empty() && !subject.factories.is_empty() {
        let what = "declines, as every one of the package does under this environment, so its hooks are not checked; \
                    give the suite an `environment:` that switches it on";
        let declined = complaint::<()>("factory", what).err();
        found.extend(declined.map(|complaint| (subject.factories[0].name(), complaint)));
    }
    found
}

/// Runs `check` on every plugin that the subject's environment switches on. One that does not load is the business of
/// [`Check::Loading`].
fn each(subject: &Subject, check: fn(&Instance) -> Outcome<()>) -> Found {
    complaints(subject, |factory| {
        match build(factory, &subject.environment, subject.deadline) {
            Ok(Some(instance)) => {
                check(&instance)?;
                instance.end()
            }
            Ok(None) | Err(_) => Ok(()),
        }
    })
}

fn complaints(
    subject: &Subject,
    mut check: impl FnMut(&'static HandlerPluginFactory) -> Outcome<()>,
) -> Found {
    let factories = subject.factories.iter();
    factories
        .filter_map(|&factory| Some((factory.name(), check(factory).err()?)))
        .collect()
}

const REGION: RegionSpan = RegionSpan {
    region_id: RegionId(1),
    offset: 4 << 20,
    length: 2 << 20,
};
const OTHER_REGION: RegionSpan = RegionSpan {
    region_id: RegionId(2),
    offset: 0,
    length: 1 << 20,
};
/// Of this one the handler has never heard.
const STRANGE_REGION: RegionSpan = RegionSpan {
    region_id: RegionId(u64::MAX),
    offset: u64::MAX - 4096,
    length: 4096,
};
const OBJECT_BYTES: usize = 16 << 10;

fn view() -> FakeView {
    FakeView::new()
        .with_region(REGION.region_id, "/dev/shm/ondol-testkit-is-not-there")
        .with_nameless_region(OTHER_REGION.region_id)
}

fn some_objects() -> FakeBatch {
    FakeBatch::new()
        .with_object(Key::integer(1), REGION, 0, vec![1; OBJECT_BYTES])
        .with_object(Key::integer(2), REGION, 65_536, vec![2; OBJECT_BYTES])
        .with_object(Key::integer(3), OTHER_REGION, 0, Vec::new())
        .with_object(Key::integer(4), OTHER_REGION, 1, vec![4; 1])
}

fn hint(instance: &Instance, view: FakeView, batch: FakeBatch) -> Outcome<()> {
    instance.drive(move |caller| {
        caller.init(&view)?;
        caller.hint(&view, &batch)
    })
}

fn objects(instance: &Instance) -> Outcome<()> {
    hint(instance, view(), some_objects())
}

fn empty_batches(instance: &Instance) -> Outcome<()> {
    hint(instance, view(), FakeBatch::new())
}

fn missed_keys(instance: &Instance) -> Outcome<()> {
    let all = (1..=3).fold(FakeBatch::new(), |batch, key| {
        batch.with_missed(Key::integer(key))
    });
    hint(instance, view(), all)?;
    let some = FakeBatch::new()
        .with_missed(Key::integer(1))
        .with_object(Key::integer(2), REGION, 0, vec![2; OBJECT_BYTES])
        .with_missed(Key::integer(3));
    hint(instance, view(), some)
}

fn unmapped_regions(instance: &Instance) -> Outcome<()> {
    let view = FakeView::new()
        .with_unmapped_region(REGION.region_id, "/dev/shm/ondol-testkit-is-not-there");
    let batch = FakeBatch::new()
        .with_unmapped_object(Key::integer(1), REGION, 0, 4096)
        .with_unmapped_object(Key::integer(2), OTHER_REGION, 4096, 4096)
        .with_unmapped_object(Key::integer(3), STRANGE_REGION, 0, 4096);
    hint(instance, view, batch)?;
    instance.drive(|caller| {
        let view = self::view();
        caller.hint(&view, &some_objects())?;
        view.unmap(REGION.region_id);
        // The bytes of a batch stay valid although its region is on its way out.
        caller.hint(&view, &some_objects())
    })
}

fn threads(instance: &Instance) -> Outcome<()> {
    let view = Arc::new(view());
    let start = Arc::new(Barrier::new(THREADS));
    let work = |number: usize| {
        let (view, start) = (Arc::clone(&view), Arc::clone(&start));
        move |caller: &Caller| {
            let own = Key::integer(100 + number as u64);
            let batch = some_objects()
                .with_object(own.clone(), REGION, 131_072, vec![5; OBJECT_BYTES])
                .with_missed(own);
            start.wait();
            for round in 0..ROUNDS {
                caller.hint(&view, &batch)?;
                caller.stats();
                if number == 0 && round == ROUNDS / 2 {
                    caller.close(&view)?;
                }
            }
            Ok(())
        }
    };
    instance.drive({
        let view = Arc::clone(&view);
        move |caller| caller.init(&view)
    })?;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let work = work(number);
                scope.spawn(move || instance.drive(work))
            })
            .collect();
        let outcomes = threads.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| complaint("testkit", "panicked"))
        });
        // All are joined, whatever the first of them says.
        outcomes.collect::<Vec<_>>().into_iter().collect()
    })
}

fn repetition(instance: &Instance) -> Outcome<()> {
    instance.drive(|caller| {
        let (view, batch) = (view(), some_objects());
        caller.init(&view)?;
        let hooks: [(&str, &dyn Fn() -> Outcome<()>); 3] = [
            ("on_batch_retrieve", &|| caller.batch_retrieve(&view, &batch)),
            ("on_prefetch", &|| caller.prefetch(&view, &batch)),
            ("on_stage", &|| caller.stage(&view, &batch).map(drop)),
        ];
        for (hook, call) in hooks {
            // What is made once, at first use, is no growth.
            call()?;
            // Other tests of this process come and go; what grows with each hint grows in every window.
            let mut growth = None;
            for _ in 0..WINDOWS {
                let before = Holdings::now(caller);
                for _ in 0..REPETITIONS {
                    call().or_else(|Complaint { place, what }| {
                        complaint(&place, format!("{what} (it was not the first hint of these objects)"))
                    })?;
                }
                growth = Holdings::now(caller).growth_since(&before);
                if growth.is_none() {
                    break;
                }
            }
            if let Some(growth) = growth {
                return complaint(
                    hook,
                    format!(
                        "made {growth} in {REPETITIONS} hints of the same objects; expected no growth: hints are \
                         idempotent"
                    ),
                );
            }
        }
        Ok(())
    })
}

/// What this process and the plugin's figures hold now.
struct Holdings([(&'static str, usize); 5]);

impl Holdings {
    fn now(caller: &Caller) -> Self {
        let entries = |dir: &str| fs::read_dir(dir).map_or(0, Iterator::count);
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let locked_kib = status
            .lines()
            .find_map(|line| line.strip_prefix("VmLck:"))
            .and_then(|line| line.split_whitespace().next()?.parse().ok())
            .unwrap_or(0);
        let figures = caller.stats().map_or(0, |(_, size)| size);
        Self([
            ("file descriptors", entries("/proc/self/fd")),
            ("threads", entries("/proc/self/task")),
            ("mappings", maps.lines().count()),
            ("locked pages", locked_kib / 4),
            ("characters of figures", figures),
        ])
    }

    /// What has grown with every hint, in words.
    fn growth_since(self, before: &Self) -> Option<String> {
        let mut pairs = before.0.into_iter().zip(self.0);
        pairs.find_map(|((what, before), (_, after))| {
            let grew = after.saturating_sub(before) >= REPETITIONS / 2;
            grew.then(|| format!("{after} {what} of {before}"))
        })
    }
}

fn close(instance: &Instance) -> Outcome<()> {
    instance.drive(|caller| {
        let view = view();
        // A handler may close that was never told of its construction, and one that reconnects closes again.
        caller.close(&view)?;
        caller.init(&view)?;
        caller.hint(&view, &some_objects())?;
        caller.close(&view)?;
        caller.close(&view)?;
        view.unmap(REGION.region_id);
        view.unmap(OTHER_REGION.region_id);
        caller.hint(&view, &some_objects())?;
        caller.stats();
        Ok(())
    })
}

fn stage(instance: &Instance) -> Outcome<()> {
    if !instance.wants(Hooks::STAGE) {
        return Ok(());
    }
    instance.drive(|caller| {
        let view = view();
        caller.init(&view)?;
        let none = FakeBatch::new();
        let missed = FakeBatch::new().with_missed(Key::integer(1));
        let mixed = some_objects().with_missed(Key::integer(9));
        for (batch, keys, found) in [
            (none, 0, 0),
            (missed, 1, 0),
            (some_objects(), 4, 4),
            (mixed, 5, 4),
        ] {
            if let Some(result) = caller.stage(&view, &batch)? {
                judge(&result, keys, found)?;
            }
        }
        Ok(())
    })
}

fn judge(result: &StageResult, keys: u64, found: u64) -> Outcome<()> {
    let wrong = |what: String| complaint("on_stage", what);
    if result.requested_keys != keys {
        return wrong(format!(
            "speaks of {} requested keys; expected {keys}, the length of the batch",
            result.requested_keys
        ));
    }
    if result.found_keys > found {
        return wrong(format!(
            "speaks of {} found keys; expected at most {found}, as many as the batch holds",
            result.found_keys
        ));
    }
    if result.eligible_keys > result.found_keys {
        return wrong(format!(
            "speaks of {} eligible keys among {} found; expected no more than were found",
            result.eligible_keys, result.found_keys
        ));
    }
    Ok(())
}

fn statistics(instance: &Instance) -> Outcome<()> {
    if !instance.wants(Hooks::STATS) {
        return Ok(());
    }
    instance.drive(|caller| {
        let view = view();
        let idle = caller.stats();
        caller.init(&view)?;
        caller.hint(&view, &some_objects())?;
        let busy = caller.stats();
        caller.close(&view)?;
        let closed = caller.stats();
        for (names, _) in [idle, busy, closed].into_iter().flatten() {
            if names.iter().any(|name| name == HOST_KEY) {
                return complaint(
                    "contribute_stats",
                    format!(
                        "has a figure {HOST_KEY:?}, which the host's own replace; expected any other name"
                    ),
                );
            }
        }
        Ok(())
    })
}
