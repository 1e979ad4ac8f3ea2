//! What a seam costs: nanoseconds per call with nobody listening and with one inline plugin that
//! does nothing. Prints figures and asserts nothing.
//!
//! `cargo bench -p ondol-host --bench seam` prints the best of several rounds;
//! `valgrind --tool=callgrind <the binary> --once N none|one` makes N calls of one kind, to count instructions.

use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

use ondol_host::{Environment, HandlerPlugins, LoadOptions, OwnedBatch, Registry};
use ondol_plugin::{
    BatchEntry, BatchSource, HandlerPlugin, HandlerPluginFactory, HandlerView, Hooks, Key,
    RegionId, RetrievedBatch, package,
};

struct Idle;

impl HandlerPlugin for Idle {
    fn hooks(&self) -> Hooks {
        Hooks::BATCH_RETRIEVE
    }
}

static IDLE: HandlerPluginFactory =
    HandlerPluginFactory::new("idle", package!(), |_| Ok(Some(Box::new(Idle))));

struct View;

impl HandlerView for View {
    fn is_region_mapped(&self, _: RegionId) -> bool {
        true
    }
    fn get_region_dax_path(&self, _: RegionId) -> Option<PathBuf> {
        None
    }
}

struct One(Key);

impl BatchSource for One {
    fn len(&self) -> usize {
        1
    }
    fn entry(&self, _: usize) -> BatchEntry<'_> {
        BatchEntry::missed(&self.0)
    }
}

const ROUNDS: usize = 9;
const CALLS: u32 = 5_000_000;

fn load(factories: &'static [HandlerPluginFactory]) -> HandlerPlugins {
    let nothing: [(&str, &str); 0] = [];
    HandlerPlugins::load(
        &Registry::of(factories),
        LoadOptions::new(Environment::of(nothing)),
    )
}

fn call(plugins: &HandlerPlugins, calls: u32) {
    let source = One(Key::integer(1));
    let batch = RetrievedBatch::new(&source);
    let own = || -> OwnedBatch { unreachable!("nobody is deferred") };
    for _ in 0..calls {
        black_box(plugins).batch_retrieve(&View, black_box(&batch), &own);
    }
}

fn best(plugins: &HandlerPlugins) -> f64 {
    let rounds = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        call(plugins, CALLS);
        start.elapsed().as_nanos() as f64 / f64::from(CALLS)
    });
    rounds.fold(f64::INFINITY, f64::min)
}

fn main() {
    let kinds: [(&str, HandlerPlugins); 2] = [
        ("none", load(&[])),
        ("one", load(std::slice::from_ref(&IDLE))),
    ];
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--once") {
        let calls = arguments
            .get(at + 1)
            .and_then(|calls| calls.parse().ok())
            .unwrap_or(1_000);
        let wanted = arguments.get(at + 2).map_or("one", String::as_str);
        let chosen = kinds.iter().filter(|(name, _)| *name == wanted);
        chosen.for_each(|(_, plugins)| call(plugins, calls));
        return;
    }
    for (name, plugins) in &kinds {
        println!(
            "batch_retrieve seam, {name:>4} listening: {:6.2} ns per call",
            best(plugins)
        );
    }
}
