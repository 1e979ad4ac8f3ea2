//! The engine behind a replay: one of its own, or a running server's.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use ondol_engine::{Engine, EngineConfig, EngineError};
use ondol_handler::{ControlPlane, SocketOptions, SocketPlane};
use ondol_memory::{DeviceError, DeviceUri, format_size};
use ondol_server::{DoorConfig, House, StateDir, UnixDoor};
use tempfile::TempDir;

use super::args::Args;

const DEFAULT_BYTES: u64 = 1 << 30;
/// Less than this is no pool to measure anything with.
const SMALLEST_BYTES: u64 = 32 << 20;

/// An engine that instances can connect to.
#[derive(Debug)]
pub(super) struct Pool {
    plane: Arc<SocketPlane>,
    evicted_before: u64,
    pub(super) bytes: u64,
    pub(super) policy: String,
    // Behind the plane, which leaves through the door.
    own: Option<Own>,
}

/// An engine of this process, with a door that only the instances know.
#[derive(Debug)]
struct Own {
    door: UnixDoor,
    engine: Arc<Engine>,
    _state: StateDir,
    _dir: TempDir,
}

impl Pool {
    pub(super) fn open(args: &Args) -> Result<Self> {
        let (own, socket) = match &args.socket {
            Some(socket) => (None, socket.clone()),
            None => {
                let own = Own::open(args)?;
                let socket = own.door.socket().to_owned();
                (Some(own), socket)
            }
        };
        let plane = SocketPlane::connect(&socket, SocketOptions::default())?;
        let stats = plane.stats()?;
        Ok(Self {
            evicted_before: evicted(&stats.counters),
            bytes: stats.pool.total_bytes,
            policy: stats.policy,
            plane,
            own,
        })
    }

    /// Where instances connect.
    pub(super) fn socket(&self) -> &Path {
        self.plane.path()
    }

    /// Objects that had to give way since this pool was opened.
    pub(super) fn evictions(&self) -> Result<u64> {
        let stats = self.plane.stats()?;
        Ok(evicted(&stats.counters).saturating_sub(self.evicted_before))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // A server would learn it only when this process ends.
        let _ = self.plane.leave();
        self.own = None;
    }
}

fn evicted(counters: &std::collections::BTreeMap<String, u64>) -> u64 {
    ["ondol_evictions_total", "ondol_drained_objects_total"]
        .iter()
        .filter_map(|name| counters.get(*name))
        .sum()
}

impl Own {
    fn open(args: &Args) -> Result<Self> {
        // Before the memory, which takes a while.
        let dir = tempfile::Builder::new()
            .prefix("ondol-replay-")
            .tempdir()
            .context("cannot make a directory for the socket; TMPDIR says where")?;
        let state = StateDir::lock(dir.path())?;
        let engine = open_engine(args)?;
        let house: Arc<dyn House> = Arc::<Engine>::clone(&engine);
        let socket: PathBuf = state.socket_path();
        let door = UnixDoor::open(house, &state, DoorConfig::new(socket))
            .context("cannot open a socket for the instances; TMPDIR says where")?;
        Ok(Self {
            door,
            engine,
            _state: state,
            _dir: dir,
        })
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.door.stop();
        if let Err(error) = self.engine.remove_files() {
            tracing::warn!(%error, "the pool's files are left behind");
        }
    }
}

/// The engine over what was asked for, or over as much of the default as there is memory for.
fn open_engine(args: &Args) -> Result<Arc<Engine>> {
    let open = |device| {
        let mut config = EngineConfig::new([device]);
        if let Some(policy) = &args.policy {
            config.policy.clone_from(policy);
        }
        Engine::open(config)
    };
    if let Some(device) = &args.pool {
        return Ok(open(device.clone())?);
    }
    let mut bytes = DEFAULT_BYTES;
    loop {
        match open(DeviceUri::memfd(bytes)) {
            Err(EngineError::Device(DeviceError::NoMemory { .. })) if bytes > SMALLEST_BYTES => {
                bytes /= 2;
            }
            result => {
                if result.is_ok() && bytes < DEFAULT_BYTES && !args.quiet {
                    let _ = writeln!(
                        std::io::stderr(),
                        "note: memory is short, so the pool has {} instead of {}; --pool sets its size",
                        format_size(bytes),
                        format_size(DEFAULT_BYTES)
                    );
                }
                return Ok(result?);
            }
        }
    }
}
