//! `ondol serve`.

mod config;
mod layers;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;

use anyhow::Context;
use ondol_engine::{Engine, EngineConfig};
use ondol_host::guarded;
use ondol_memory::format_size;
use ondol_server::{DoorConfig, StateDir, UnixDoor};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::log::{self, LogArgs};
use config::Config;

pub(crate) use config::{Args, read_path};
pub(crate) use layers::{Given, Layers};

/// What runs while the server serves; dropped from the first to the last.
struct Running {
    door: UnixDoor,
    engine: Arc<Engine>,
    // Last, so that no other server starts while this one ends.
    _state: StateDir,
}

enum Event {
    Opened(anyhow::Result<Running>),
    Signal(i32),
}

pub(crate) fn run(args: &Args, log: &LogArgs) -> anyhow::Result<ExitCode> {
    let layers = args.layers(log)?;
    log::start(layers.get("log"), "info", layers.get("log_format"))?;
    let config = Config::read(&layers)?;

    // Before the pool is opened, which takes a while if it is large: a signal must end that too.
    let (sender, events) = mpsc::channel();
    watch_signals(sender.clone()).context("cannot wait for signals")?;
    thread::Builder::new()
        .name("ondol-open".to_owned())
        .spawn(move || {
            let pool_from = layers.origin("pool", "the default pool").to_owned();
            // Caught, as the loop below would wait for ever for what a panic keeps from being sent.
            let opened = guarded(|| open(config, &pool_from)).unwrap_or_else(|panicked| {
                Err(anyhow::anyhow!("the start of the server {panicked}"))
            });
            let _ = sender.send(Event::Opened(opened));
        })
        .context("cannot start a thread")?;

    let mut running = None;
    for event in events {
        match event {
            Event::Opened(opened) => {
                let opened = opened?;
                announce(&opened);
                running = Some(opened);
            }
            Event::Signal(signal) => {
                let signal = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
                tracing::info!(signal, ready = running.is_some(), "stopping");
                break;
            }
        }
    }
    if let Some(Running {
        door,
        engine,
        _state,
    }) = running
    {
        door.stop();
        drop((door, engine));
        tracing::info!("stopped");
    }
    Ok(ExitCode::SUCCESS)
}

fn watch_signals(sender: Sender<Event>) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let watch = move || {
        for signal in signals.forever() {
            if sender.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new()
        .name("ondol-signals".to_owned())
        .spawn(watch)?;
    Ok(())
}

fn open(config: Config, pool_from: &str) -> anyhow::Result<Running> {
    let state = StateDir::lock(&config.state_dir)?;
    let mut engine = EngineConfig::new(config.devices);
    engine.secret = Some(state.secret()?);
    engine.region_bytes = config.region_bytes;
    engine.share_limit = config.share_limit;
    if let Some(policy) = config.policy {
        engine.policy = policy;
    }
    let engine =
        Engine::open(engine).with_context(|| format!("cannot open the pool ({pool_from})"))?;

    let mut door = DoorConfig::new(config.socket.unwrap_or_else(|| state.socket_path()));
    door.mode = config.socket_mode.unwrap_or(door.mode);
    door.allowed_uids = config.allowed_uids;
    door.max_clients = config.max_clients.unwrap_or(door.max_clients);
    door.max_connections = config.max_connections.unwrap_or(door.max_connections);
    let house = Arc::clone(&engine);
    let door = UnixDoor::open(house, &state, door).inspect_err(|_| {
        // A server that cannot serve leaves no pool behind.
        if let Err(error) = engine.remove_files() {
            tracing::warn!(%error, "the pool's files are left behind");
        }
    })?;
    Ok(Running {
        door,
        engine,
        _state: state,
    })
}

fn announce(running: &Running) {
    let stats = running.engine.stats();
    tracing::info!(
        socket = %running.door.socket().display(),
        pool = format_size(stats.pool.total_bytes),
        devices = stats.pool.devices.join(", "),
        policy = stats.policy,
        pid = std::process::id(),
        version = env!("CARGO_PKG_VERSION"),
        "ready"
    );
}
