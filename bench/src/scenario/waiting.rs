//! A round trip that does nothing: what asking costs, whatever is asked.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::Result;
use ondol::{ControlPlane, SocketPlane};

use super::Context;
use crate::baseline::Peer;
use crate::daemon::{Daemon, ECHO, own_program};
use crate::harness::Contestant;
use crate::measure::Measure;
use crate::meter::Meter;
use crate::report::{Axis, Case, Panel, Role, Section};

/// Bytes of an echoed message.
const MESSAGE: usize = 64;

pub(super) fn run(context: &mut Context) -> Result<Section> {
    let measure = Measure::Each("round trip");
    let server = context.serve(64 << 20, &[])?;
    let plane = server.plane()?;
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("echo.sock");
    let mut echo = Daemon::start(
        &own_program()?,
        [ECHO.as_ref(), path.as_os_str()],
        dir.path().join("said"),
    )?;
    echo.wait_for(&path)?;
    let mut stream = std::os::unix::net::UnixStream::connect(&path)?;
    let mut contestants = vec![
        ondol(&plane).with_server(Some(server.pid())),
        Contestant::new(
            "an echo of 64 bytes over a Unix socket",
            Role::Limit,
            move |meter: &mut Meter| {
                meter.each(|| {
                    let mut message = [1; MESSAGE];
                    stream.write_all(&message)?;
                    Ok(stream.read_exact(&mut message)?)
                })
            },
        )
        .with_server(Some(echo.pid())),
        Contestant::new(
            "two threads that spin on a cache line",
            Role::Limit,
            |meter: &mut Meter| {
                // Gone when others take their turns.
                let spinner = Spinner::start();
                meter.each(|| {
                    spinner.round_trip();
                    Ok(())
                })
            },
        ),
    ];
    for peer in &mut context.peers.present {
        if peer.ping().is_some() {
            contestants.push(pinged(&mut **peer));
        }
    }
    println!("Waiting");
    let case = context
        .effort
        .contest(Case::named("round trip"), measure, &mut contestants)?;
    drop(contestants);
    Ok(Section {
        name: "waiting",
        title: "Waiting",
        about: vec![
            "Ondol's `ping`, the least request of each other server, and two limits: another process that sends back what it gets, \
             both blocking, and two threads that never sleep. The difference between the two is the wake-up of an idle processor."
                .to_owned(),
        ],
        panels: vec![Panel {
            name: "round-trip".into(),
            title: "A round trip that does nothing".into(),
            measure,
            axis: Axis::Names("what"),
            cases: vec![case],
        }],
        absent: context.peers.absent.clone(),
    })
}

fn ondol(plane: &Arc<SocketPlane>) -> Contestant<'_> {
    Contestant::new("Ondol", Role::Ours, move |meter: &mut Meter| {
        meter.each(|| Ok(plane.ping()?))
    })
}

fn pinged(peer: &mut dyn Peer) -> Contestant<'_> {
    let (name, server) = (peer.name().to_owned(), peer.server());
    Contestant::new(name, Role::Peer, move |meter: &mut Meter| {
        meter.each(|| peer.ping().unwrap_or(Ok(())))
    })
    .with_server(server)
}

/// Sends back what comes, one connection after the other.
pub(crate) fn echo(path: &std::path::Path) -> Result<()> {
    for stream in UnixListener::bind(path)?.incoming() {
        let mut stream = stream?;
        let mut message = [0; MESSAGE];
        while stream.read_exact(&mut message).is_ok() && stream.write_all(&message).is_ok() {}
    }
    Ok(())
}

/// A thread that answers without ever sleeping.
struct Spinner {
    lines: Arc<Lines>,
    thread: Option<JoinHandle<()>>,
}

/// Each on a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

#[derive(Default)]
struct Lines {
    asked: Line,
    answered: Line,
}

const STOP: u64 = u64::MAX;
/// So often a waiting side looks before it lets another thread have the processor, which may be the one it waits for.
const SPINS: u32 = 10_000;

fn wait_while(word: &AtomicU64, value: u64) -> u64 {
    let mut spins = 0;
    loop {
        let found = word.load(Ordering::Acquire);
        if found != value {
            return found;
        }
        spins += 1;
        if spins < SPINS {
            std::hint::spin_loop();
        } else {
            spins = 0;
            thread::yield_now();
        }
    }
}

impl Spinner {
    fn start() -> Self {
        let lines = Arc::new(Lines::default());
        let answering = Arc::clone(&lines);
        let answer = move || {
            let mut last = 0;
            loop {
                last = wait_while(&answering.asked.0, last);
                if last == STOP {
                    break;
                }
                answering.answered.0.store(last, Ordering::Release);
            }
        };
        Self {
            lines,
            thread: Some(thread::spawn(answer)),
        }
    }

    fn round_trip(&self) {
        let last = self.lines.answered.0.load(Ordering::Acquire);
        self.lines.asked.0.store(last + 1, Ordering::Release);
        wait_while(&self.lines.answered.0, last);
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.lines.asked.0.store(STOP, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
