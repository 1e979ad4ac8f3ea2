//! `ondol serve`.

mod config;
mod group;
mod l2;
mod layers;
mod start;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use ondol_host::guarded;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::log::{self, LogArgs};
use config::Config;
use start::Running;

pub(crate) use config::{Args, policy_help, read_path};
pub(crate) use layers::{Given, Layers};

/// How long a start that a signal ended may take to reach a place where it can be left tidily. Whatever it leaves
/// otherwise is no more than what SIGKILL would leave.
const TIDY_END: Duration = Duration::from_secs(5);

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
    let given_up = Arc::new(AtomicBool::new(false));
    thread::Builder::new()
        .name("ondol-open".to_owned())
        .spawn({
            let given_up = Arc::clone(&given_up);
            move || {
                let pool_from = layers.origin("pool", "the default pool").to_owned();
                // Caught, as the loop below would wait for ever for what a panic keeps from being sent.
                let opened = guarded(|| start::open(config, &pool_from, &given_up));
                let opened = opened.unwrap_or_else(|panicked| {
                    Err(anyhow::anyhow!("the start of the server {panicked}"))
                });
                let _ = sender.send(Event::Opened(opened));
            }
        })
        .context("cannot start a thread")?;

    let mut running = None;
    for event in &events {
        match event {
            Event::Opened(opened) => {
                let opened = opened?;
                opened.announce();
                running = Some(opened);
            }
            Event::Signal(signal) => {
                let signal = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
                tracing::info!(signal, ready = running.is_some(), "stopping");
                break;
            }
        }
    }
    given_up.store(true, Ordering::Relaxed);
    if let Some(running) = running.or_else(|| opened_late(&events)) {
        running.stop()?;
    }
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// What a start that was given up has become by the time that it ends; `None` if it takes too long, or has ended
/// without anything to stop.
fn opened_late(events: &Receiver<Event>) -> Option<Running> {
    let deadline = Instant::now() + TIDY_END;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match events.recv_timeout(left) {
            Ok(Event::Opened(opened)) => return opened.ok(),
            Ok(Event::Signal(_)) => {}
            Err(_) => return None,
        }
    }
}

fn watch_signals(sender: Sender<Event>) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
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
