//! The engine behind a replay: one of its own, or a running server's.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ondol_engine::{Engine, EngineConfig, EngineError};
use ondol_handler::{ControlError, ControlPlane, SocketOptions, SocketPlane};
use ondol_memory::{DeviceError, DeviceUri, format_size};
use ondol_protocol::{EngineStats, L2Stats};
use ondol_server::{DoorConfig, House, StateDir, UnixDoor};
use tempfile::TempDir;

use super::args::{Args, PoolArg};
use super::crew::Interrupts;
use super::server::OwnServer;
use crate::l2::config_of;

const DEFAULT_BYTES: u64 = 1 << 30;
/// Less than this is no pool to measure anything with.
const SMALLEST_BYTES: u64 = 32 << 20;

/// How long the parent waits for an answer: while it does it hears no signal, and a server that does not answer is as
/// good as one that is away.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// How often it is looked whether a server that was started serves.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// An engine that instances can connect to.
#[derive(Debug)]
pub(super) struct Pool {
    plane: Arc<SocketPlane>,
    incarnation: u64,
    /// What this server had done when it was first seen.
    before: Done,
    /// What the servers before this one have done since the pool was opened; `None` if one of them has ended without its
    /// figures.
    by_others: Option<Done>,
    pub(super) bytes: u64,
    /// The longest page that it can hold, in bytes.
    pub(super) longest_page: u64,
    pub(super) policy: String,
    // Behind the plane, which leaves through the door.
    behind: Behind,
}

/// Where the engine runs.
#[derive(Debug)]
enum Behind {
    Here(Own),
    Child(OwnServer),
    Elsewhere,
}

/// What is seen of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    Same,
    /// It was started again.
    Another {
        incarnation: u64,
        objects: Option<u64>,
    },
    Away,
    /// It is there, but this client is not with it yet.
    Back,
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
    /// `None` if a signal came before it was open.
    pub(super) fn open(args: &Args, interrupts: &Interrupts) -> Result<Option<Self>> {
        let mut behind = match &args.socket {
            Some(_) => Behind::Elsewhere,
            None if args.restarts > 0 => Behind::Child(OwnServer::start(args)?),
            None => Behind::Here(Own::open(args)?),
        };
        let socket = match (&behind, &args.socket) {
            (_, Some(socket)) => socket.clone(),
            (Behind::Here(own), _) => own.door.socket().to_owned(),
            (Behind::Child(server), _) => server.socket(),
            (Behind::Elsewhere, None) => bail!("no server was named"),
        };
        let plane = match &mut behind {
            Behind::Child(server) => match await_server(server, &socket, interrupts)? {
                Some(plane) => plane,
                None => return Ok(None),
            },
            _ => connect(&socket)?,
        };
        let stats = plane.stats()?;
        let info = plane.client();
        Ok(Some(Self {
            incarnation: info.incarnation,
            before: Done::of(&stats),
            by_others: Some(Done::default()),
            bytes: stats.pool.total_bytes,
            longest_page: info.max_page_bytes,
            policy: stats.policy,
            plane,
            behind,
        }))
    }

    /// Where instances connect.
    pub(super) fn socket(&self) -> &Path {
        self.plane.path()
    }

    /// Whether the server may end without this process's doing.
    pub(super) fn is_others(&self) -> bool {
        matches!(self.behind, Behind::Elsewhere)
    }

    /// What was done since this pool was opened; `None` if a server has ended that was not asked.
    pub(super) fn done(&self) -> Result<Option<Done>> {
        let by_this = Done::of(&self.plane.stats()?).since(self.before);
        Ok(self.by_others.map(|others| others.and(by_this)))
    }

    /// Kills the server and starts it again.
    pub(super) fn restart(&mut self) -> Result<()> {
        // Those of the last moment are missing.
        let so_far = self.done().ok().flatten();
        let Behind::Child(server) = &mut self.behind else {
            bail!("it is not this process's own");
        };
        server.kill().context("cannot kill it")?;
        server.spawn()?;
        self.by_others = so_far;
        self.before = Done::default();
        Ok(())
    }

    /// Looks for the server.
    pub(super) fn look(&mut self) -> Result<Sight> {
        let mut missed = Sight::Away;
        if let Behind::Child(server) = &mut self.behind {
            if let Some(status) = server.ended()? {
                bail!("the server ended with {status}");
            }
            // The client looks less and less often, which is no matter of how long the server is away.
            if UnixStream::connect(self.plane.path()).is_ok() {
                missed = Sight::Back;
            }
        }
        match self.plane.ping() {
            Ok(()) => {}
            Err(ControlError::UnknownClient(_)) => match connect(self.plane.path()) {
                Ok(plane) => self.plane = plane,
                Err(_) => return Ok(missed),
            },
            Err(_) => return Ok(missed),
        }
        let incarnation = self.plane.client().incarnation;
        if incarnation == self.incarnation {
            return Ok(Sight::Same);
        }
        self.incarnation = incarnation;
        if self.is_others() {
            self.before = Done::default();
            self.by_others = None;
        }
        let objects = self.plane.stats().ok().map(|stats| stats.objects);
        Ok(Sight::Another {
            incarnation,
            objects,
        })
    }
}

fn connect(socket: &Path) -> Result<Arc<SocketPlane>, ControlError> {
    let mut options = SocketOptions::default();
    options.timeout = ANSWER_WITHIN;
    SocketPlane::connect(socket, options)
}

/// Connects to a server as soon as it serves; `None` if a signal has come before.
fn await_server(
    server: &mut OwnServer,
    socket: &Path,
    interrupts: &Interrupts,
) -> Result<Option<Arc<SocketPlane>>> {
    loop {
        match connect(socket) {
            Ok(plane) => {
                server.serves();
                return Ok(Some(plane));
            }
            Err(ControlError::Disconnected { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        if let Some(status) = server.ended()? {
            bail!("the server ended with {status} before it served");
        }
        if interrupts.has_come() {
            return Ok(None);
        }
        thread::sleep(LOOK_EVERY);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // A server would learn it only when this process ends.
        let _ = self.plane.leave();
        self.behind = Behind::Elsewhere;
    }
}

/// What a server has done, as far as a replay tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Done {
    /// Objects that had to give way.
    pub(super) evictions: u64,
    /// What storage behind the pool did, if there is any.
    pub(super) l2: Option<StorageWork>,
}

/// What storage did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StorageWork {
    /// Objects that were brought into the pool.
    pub(super) loaded: u64,
    /// Objects that were stored, once for each backend.
    pub(super) stored: u64,
    /// Stores, lookups and loads that failed.
    pub(super) failures: u64,
    /// Objects that were not what was stored.
    pub(super) corrupt: u64,
}

impl Done {
    fn of(stats: &EngineStats) -> Self {
        let sum = |counters: &BTreeMap<String, u64>, names: &[&str]| -> u64 {
            names.iter().filter_map(|name| counters.get(*name)).sum()
        };
        let evictions = ["ondol_evictions_total", "ondol_drained_objects_total"];
        let work = |l2: &L2Stats| StorageWork {
            loaded: sum(&l2.counters, &["ondol_l2_prefetch_loaded_total"]),
            stored: sum(&l2.counters, &["ondol_l2_stored_objects_total"]),
            failures: sum(
                &l2.counters,
                &[
                    "ondol_l2_failed_store_batches_total",
                    "ondol_l2_prefetch_lookup_failed_total",
                    "ondol_l2_prefetch_failed_total",
                ],
            ),
            corrupt: sum(&l2.counters, &["ondol_l2_prefetch_corrupt_total"]),
        };
        Self {
            evictions: sum(&stats.counters, &evictions),
            l2: stats.l2.as_ref().map(work),
        }
    }

    /// What was done after `before`.
    fn since(self, before: Self) -> Self {
        self.combine(before, u64::saturating_sub)
    }

    fn and(self, other: Self) -> Self {
        self.combine(other, u64::saturating_add)
    }

    fn combine(self, other: Self, with: fn(u64, u64) -> u64) -> Self {
        let [ours, theirs] = [self.l2, other.l2].map(Option::unwrap_or_default);
        Self {
            evictions: with(self.evictions, other.evictions),
            l2: self.l2.or(other.l2).map(|_| StorageWork {
                loaded: with(ours.loaded, theirs.loaded),
                stored: with(ours.stored, theirs.stored),
                failures: with(ours.failures, theirs.failures),
                corrupt: with(ours.corrupt, theirs.corrupt),
            }),
        }
    }
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
        if !args.l2_adapter.is_empty() {
            config.l2 = Some(config_of(args.l2_adapter.clone()));
        }
        Engine::open(config)
    };
    match &args.pool {
        Some(PoolArg::Device(device)) => return Ok(open(device.clone())?),
        Some(PoolArg::Size(bytes)) => return Ok(open(DeviceUri::memfd(*bytes))?),
        None => {}
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
