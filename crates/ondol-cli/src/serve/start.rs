//! From settings to a server that serves: what is cheap and may be refused first, what takes long last.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::bail;
use ondol_engine::{Engine, EngineConfig, EngineError, Persistence};
use ondol_memory::{DeviceUri, Durability, format_size};
use ondol_server::http::{HttpConfig, HttpDoor, HttpError, HttpSocket, Watched};
use ondol_server::{DoorConfig, StateDir, UnixDoor};

use super::config::{Config, Http};

const DEFAULT_HTTP: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9855);

/// Mode of socket and pool for a group.
const GROUP_MODE: u32 = 0o660;

/// What runs while the server serves.
pub(super) struct Running {
    door: Arc<UnixDoor>,
    http: Option<HttpDoor>,
    engine: Arc<Engine>,
    // Last, so that no other server starts while this one ends.
    _state: StateDir,
}

/// Opens everything in order. `given_up` is looked at between the steps.
pub(super) fn open(
    config: Config,
    pool_from: &str,
    given_up: &AtomicBool,
) -> anyhow::Result<Running> {
    let go_on = || {
        if given_up.load(Ordering::Relaxed) {
            bail!("the start was given up");
        }
        Ok(())
    };
    let state = StateDir::lock(&config.state_dir)?;
    let door_config = door_config(&config, &state);
    UnixDoor::rehearse(&state, &door_config)?;
    if let Some(group) = config.group
        && door_config.socket.parent() == Some(state.path())
    {
        state.open_to_group(group)?;
    }
    let http = bind(config.http)?;
    warn_of_vain_durability(&config, state.path());
    warn_of_unreachable_socket(&config, &door_config.socket);
    go_on()?;

    let engine = Engine::open(engine_config(config, &state)?).map_err(|error| {
        use EngineError::{Device, NoDevice, OtherDevices, TooSmall};
        let is_of_the_pool = matches!(
            error,
            Device(_) | NoDevice | OtherDevices { .. } | TooSmall { .. }
        );
        let error = anyhow::Error::from(error);
        match is_of_the_pool {
            true => error.context(format!("cannot open the pool ({pool_from})")),
            false => error,
        }
    })?;
    // From here on there is something that wants to be closed.
    let open_doors = || -> anyhow::Result<_> {
        go_on()?;
        let house = Arc::clone(&engine);
        let door = Arc::new(UnixDoor::open(house, &state, door_config)?);
        let open = |socket| {
            let watched = Watched::new(Arc::clone(&engine), Arc::clone(&door));
            HttpDoor::open(socket, Arc::new(watched), HttpConfig::default())
        };
        let http = http.map(open).transpose()?;
        Ok((door, http))
    };
    match open_doors() {
        Ok((door, http)) => Ok(Running {
            door,
            http,
            engine,
            _state: state,
        }),
        Err(error) => {
            if let Err(error) = engine.close() {
                tracing::warn!(%error, "a start that failed is not left tidily");
            }
            Err(error)
        }
    }
}

fn engine_config(config: Config, state: &StateDir) -> anyhow::Result<EngineConfig> {
    let mut engine = EngineConfig::new(config.devices);
    engine.secret = Some(state.secret()?);
    engine.region_bytes = config.region_bytes;
    engine.share_limit = config.share_limit;
    if let Some(policy) = config.policy {
        engine.policy = policy;
    }
    engine.verify = config.verify;
    engine.l2 = config.l2.config();
    let mut persistence = Persistence::new(state.path());
    persistence.durability = config.durability;
    persistence.fresh = config.fresh;
    persistence.log.segment_bytes = config.log_segment.unwrap_or(persistence.log.segment_bytes);
    persistence.log.compact_bytes = config.log_compact;
    engine.persistence = Some(persistence);
    let options = &mut engine.device_options;
    options.group = config.group;
    options.mode = mode(config.pool_mode, config.group).unwrap_or(options.mode);
    Ok(engine)
}

fn door_config(config: &Config, state: &StateDir) -> DoorConfig {
    let socket = config.socket.clone();
    let mut door = DoorConfig::new(socket.unwrap_or_else(|| state.socket_path()));
    door.group = config.group;
    door.mode = mode(config.socket_mode, config.group).unwrap_or(door.mode);
    door.allowed_uids.clone_from(&config.allowed_uids);
    door.max_clients = config.max_clients.unwrap_or(door.max_clients);
    door.max_connections = config.max_connections.unwrap_or(door.max_connections);
    door.max_connections_per_process = config
        .max_connections_per_process
        .unwrap_or(door.max_connections_per_process);
    door.frame_budget = config.frame_budget.unwrap_or(door.frame_budget);
    door
}

fn mode(chosen: Option<u32>, group: Option<u32>) -> Option<u32> {
    chosen.or(group.map(|_| GROUP_MODE))
}

/// A default that somebody else has, most likely another server, keeps nobody from serving.
fn bind(http: Http) -> anyhow::Result<Option<HttpSocket>> {
    match http {
        Http::Off => Ok(None),
        Http::At(address) => Ok(Some(HttpSocket::bind(address)?)),
        Http::Default => match HttpSocket::bind(DEFAULT_HTTP) {
            Ok(socket) => Ok(Some(socket)),
            Err(error @ (HttpError::InUse(_) | HttpError::Io { .. })) => {
                tracing::warn!(%error, "health and figures are not served; --http names another address");
                Ok(None)
            }
            Err(error) => Err(error.into()),
        },
    }
}

fn warn_of_vain_durability(config: &Config, state: &Path) {
    if config.durability != Durability::Fsync {
        return;
    }
    if is_memory(state) {
        tracing::warn!(
            state_dir = %state.display(),
            "durability is fsync, but the state directory, where the log lies, is memory and gone after a reboot; \
             --state-dir names one on a disk"
        );
    }
    for device in config.devices.iter().filter(|device| is_volatile(device)) {
        tracing::warn!(
            %device,
            "durability is fsync, but the bytes of this device are gone after a reboot; dir: on a disk and dax: keep them"
        );
    }
}

fn is_volatile(device: &DeviceUri) -> bool {
    match device {
        DeviceUri::Shm { .. } | DeviceUri::Memfd { .. } | DeviceUri::Hugetlb { .. } => true,
        DeviceUri::Dir { path, .. } => is_memory(path),
        _ => false,
    }
}

/// Whether a directory lies in memory.
pub(crate) fn is_memory(dir: &Path) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    let found = rustix::fs::statfs(dir);
    found.is_ok_and(|found| matches!(found.f_type, TMPFS | RAMFS))
}

/// A group is of no use where its members cannot go.
fn warn_of_unreachable_socket(config: &Config, socket: &Path) {
    let (Some(group), Some(dir)) = (config.group, socket.parent()) else {
        return;
    };
    let dir = if dir.as_os_str().is_empty() {
        Path::new(".")
    } else {
        dir
    };
    let closed = std::fs::metadata(dir).is_ok_and(|found| {
        let by_group = found.gid() == group && found.mode() & 0o010 != 0;
        !by_group && found.mode() & 0o001 == 0
    });
    if closed {
        tracing::warn!(
            dir = %dir.display(),
            group,
            "the group cannot reach the socket, as it may not enter its directory; --socket names another place"
        );
    }
}

impl Running {
    pub(super) fn announce(&self) {
        let stats = self.engine.stats();
        let restart = self.engine.restart();
        let http = match &self.http {
            Some(http) => http.address().to_string(),
            None => "off".to_owned(),
        };
        tracing::info!(
            socket = %self.door.socket().display(),
            http,
            pool = format_size(stats.pool.total_bytes),
            devices = stats.pool.devices.join(", "),
            start = if restart.warm { "warm" } else { "empty" },
            objects = restart.objects,
            why = restart.why,
            policy = stats.policy,
            pid = std::process::id(),
            version = env!("CARGO_PKG_VERSION"),
            "ready"
        );
    }

    /// Stops in an order in which nothing is asked of what has ended already. What clients hold is not touched: they
    /// hold it still when the next server starts.
    ///
    /// # Errors
    /// If the log cannot be closed.
    pub(super) fn stop(self) -> anyhow::Result<()> {
        let Self {
            door,
            http,
            engine,
            _state,
        } = self;
        if let Some(http) = &http {
            http.announce_stop();
        }
        // The door waits for calls that are under way.
        engine.end_waiting();
        door.stop();
        drop(http);
        // Before the sessions of the door go, so that their clients do not leave the log.
        let closed = engine.close();
        drop(door);
        Ok(closed?)
    }
}
