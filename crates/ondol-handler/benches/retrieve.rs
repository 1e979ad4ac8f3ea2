//! What the plugin seam costs a batch retrieve: the same retrieves through a handler without plugins and through one
//! with a plugin that does nothing, in turns.
//!
//! `cargo bench -p ondol-handler --bench retrieve` prints times. For instruction counts, run the binary with
//! `--once none|noop N` under `valgrind --tool=callgrind` for two values of N and divide the difference.

use std::hint::black_box;
use std::time::Instant;

use ondol_engine::{Engine, EngineConfig};
use ondol_handler::{Handler, HandlerConfig, Key, Plugins};
use ondol_host::{Allowlist, Environment, LoadOptions};
use ondol_plugin::{
    HandlerPlugin, HandlerPluginFactory, HandlerView, RetrievedBatch, inventory, package,
};

struct NoOp;

impl HandlerPlugin for NoOp {
    fn on_batch_retrieve(
        &self,
        _: &dyn HandlerView,
        batch: &RetrievedBatch<'_>,
    ) -> anyhow::Result<()> {
        black_box(batch.len());
        Ok(())
    }
}

inventory::submit! {
    HandlerPluginFactory::new("no-op", package!(), |_| Ok(Some(Box::new(NoOp))))
}

fn handler(plugin: bool) -> anyhow::Result<(Handler, Vec<Key>)> {
    let engine = Engine::open(EngineConfig::new(["memfd:?size=16MiB".parse()?]))?;
    let mut config = HandlerConfig::default();
    let names: &[&str] = if plugin { &["no-op"] } else { &["nothing"] };
    let options = LoadOptions::new(Environment::process())
        .with_allowlist(Allowlist::only(names.iter().copied()));
    config.plugins = Plugins::LinkedWith(Box::new(options));
    let handler = Handler::embedded(move || engine.attach(None, [0; 16]), config)?;
    let keys: Vec<_> = (0..1).map(Key::integer).collect();
    for key in &keys {
        handler.store(key, handler.alloc(4096)?)?;
    }
    Ok((handler, keys))
}

fn run(handler: &Handler, keys: &[Key], calls: u32) -> anyhow::Result<()> {
    for _ in 0..calls {
        black_box(handler.batch_retrieve(black_box(keys))?);
    }
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<_> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--once") {
        let (handler, keys) = handler(arguments.get(at + 1).is_some_and(|which| which == "noop"))?;
        let calls = arguments
            .get(at + 2)
            .and_then(|calls| calls.parse().ok())
            .unwrap_or(1000);
        return run(&handler, &keys, calls);
    }
    const CALLS: u32 = 100_000;
    const ROUNDS: usize = 25;
    let sides = [
        ("no plugin", handler(false)?),
        ("one no-op plugin", handler(true)?),
    ];
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for ((_, (handler, keys)), times) in sides.iter().zip(&mut times) {
            let start = Instant::now();
            run(handler, keys, CALLS)?;
            times.push(start.elapsed().as_nanos() as f64 / f64::from(CALLS));
        }
    }
    for ((name, _), times) in sides.iter().zip(&mut times) {
        times.sort_unstable_by(f64::total_cmp);
        println!(
            "{name}: median {:.1}, least {:.1} ns a batch of one",
            times[ROUNDS / 2],
            times[0]
        );
    }
    println!(
        "difference of the medians: {:.1} ns a call",
        times[1][ROUNDS / 2] - times[0][ROUNDS / 2]
    );
    Ok(())
}
