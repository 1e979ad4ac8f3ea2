#![allow(dead_code, reason = "each test binary uses its part")]

use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use broken_plugins::Probe;
use ondol_host::{
    Allowlist, Clock, Environment, HandlerPlugins, LoadOptions, OwnedBatch, PluginReport, Registry,
};
use ondol_plugin::{
    BatchEntry, BatchSource, HandlerView, Key, RegionId, RegionSpan, RetrievedBatch,
};

pub(crate) struct View;

impl HandlerView for View {
    fn is_region_mapped(&self, _: RegionId) -> bool {
        true
    }
    fn get_region_dax_path(&self, _: RegionId) -> Option<PathBuf> {
        None
    }
}

/// Two keys, both found. Counts how many of its kind are alive.
pub(crate) struct Keys {
    keys: [Key; 2],
    alive: Arc<AtomicUsize>,
}

impl Keys {
    pub(crate) fn new(alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, Ordering::SeqCst);
        Self {
            keys: [Key::text("a").unwrap(), Key::text("b").unwrap()],
            alive: Arc::clone(alive),
        }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

impl BatchSource for Keys {
    fn len(&self) -> usize {
        self.keys.len()
    }
    fn entry(&self, index: usize) -> BatchEntry<'_> {
        let region = RegionSpan {
            region_id: RegionId(1),
            offset: 0,
            length: 8,
        };
        BatchEntry::located(
            &self.keys[index],
            region,
            index as u64 * 4,
            4,
            Some(b"data"),
        )
    }
}

/// Plugins under test, with the means to call every seam.
pub(crate) struct House {
    pub(crate) plugins: HandlerPlugins,
    pub(crate) probe: Arc<Probe>,
    pub(crate) clock: Clock,
    pub(crate) alive: Arc<AtomicUsize>,
    pub(crate) owned: AtomicUsize,
}

impl House {
    pub(crate) fn with(names: &[&str]) -> Self {
        Self::tuned(names, |_| {})
    }

    pub(crate) fn tuned(names: &[&str], tune: impl FnOnce(&mut LoadOptions)) -> Self {
        let probe = Probe::new();
        let clock = Clock::manual();
        let mut options = LoadOptions::new(Environment::of([probe.variable()]))
            .with_allowlist(Allowlist::only(names.iter().copied()));
        options.clock = clock.clone();
        tune(&mut options);
        let plugins = HandlerPlugins::load(Registry::global(), options);
        Self {
            plugins,
            probe,
            clock,
            alive: Arc::default(),
            owned: AtomicUsize::new(0),
        }
    }

    pub(crate) fn batch_retrieve(&self) {
        let keys = Keys::new(&self.alive);
        self.plugins
            .batch_retrieve(&View, &RetrievedBatch::new(&keys), &|| self.own());
    }

    pub(crate) fn prefetch(&self) {
        let keys = Keys::new(&self.alive);
        self.plugins
            .prefetch(&View, &RetrievedBatch::new(&keys), &|| self.own());
    }

    pub(crate) fn stage(&self) -> ondol_plugin::StageResult {
        let keys = Keys::new(&self.alive);
        self.plugins.stage(&View, &RetrievedBatch::new(&keys))
    }

    pub(crate) fn every_seam(&self) {
        self.plugins.init(&View);
        self.batch_retrieve();
        self.prefetch();
        self.stage();
        self.plugins.stats();
        self.plugins.close(&View);
    }

    pub(crate) fn report(&self, name: &str) -> PluginReport {
        let mut rows = self
            .plugins
            .report()
            .into_iter()
            .filter(|row| row.name == name);
        rows.next().expect(name)
    }

    fn own(&self) -> OwnedBatch {
        self.owned.fetch_add(1, Ordering::SeqCst);
        OwnedBatch {
            view: Arc::new(View),
            source: Box::new(Keys::new(&self.alive)),
        }
    }
}

/// Waits until `is_so`; for what happens soon, on a thread that nobody can wait for.
pub(crate) fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What is logged on this thread while `act` runs.
pub(crate) fn logged<R>(act: impl FnOnce() -> R) -> (R, String) {
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let result = tracing::subscriber::with_default(subscriber, act);
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    (result, text)
}

/// How many lines of `log` are at `level` and hold `part`.
pub(crate) fn lines(log: &str, level: &str, part: &str) -> usize {
    log.lines()
        .filter(|line| line.contains(&format!(" {level} ")) && line.contains(part))
        .count()
}
