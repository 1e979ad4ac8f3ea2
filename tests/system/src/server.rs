use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ondol_engine::{Engine, EngineConfig};
use ondol_handler::{Handler, HandlerConfig, Key, PageSizes, Plugins, SocketOptions, SocketPlane};
use ondol_protocol::{ClientStats, EngineStats};
use ondol_server::{DoorConfig, StateDir, UnixDoor};
use tempfile::TempDir;

/// A string key.
///
/// # Panics
/// If the text is too long for one.
pub fn key(text: &str) -> Key {
    Key::text(text).expect("a short key")
}

/// The string keys `prefix0`, `prefix1`, …
pub fn keys(prefix: &str, count: usize) -> Vec<Key> {
    (0..count)
        .map(|index| key(&format!("{prefix}{index}")))
        .collect()
}

/// A handler's configuration without plugins, with pages of exactly these sizes, fetched one by one.
pub fn plain(page_sizes: &[u64]) -> HandlerConfig {
    let mut config = HandlerConfig::default();
    config.plugins = Plugins::None;
    config.page_sizes = PageSizes::Fixed(page_sizes.to_vec());
    config.stock_bytes = 1;
    config
}

/// A server in this process: an engine behind a Unix door, in a directory of its own.
#[derive(Debug)]
pub struct Server {
    /// The engine.
    pub engine: Arc<Engine>,
    door: UnixDoor,
    _state: StateDir,
    _dir: TempDir,
}

impl Server {
    /// A pool of so many MiB of nameless memory in regions of 2 MiB, all of which one client may have granted.
    ///
    /// # Panics
    /// If the system does not let it.
    pub fn start(mib: u64) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let state = StateDir::lock(&dir.path().join("state")).expect("the state directory");
        let uri = format!("memfd:?size={mib}MiB").parse().expect("a device");
        let mut config = EngineConfig::new([uri]);
        config.region_bytes = Some(2 << 20);
        config.share_limit = Some(u64::MAX);
        let engine = Engine::open(config).expect("an engine");
        let door = DoorConfig::new(state.socket_path());
        let door = UnixDoor::open(Arc::clone(&engine) as _, &state, door).expect("an open door");
        Self {
            engine,
            door,
            _state: state,
            _dir: dir,
        }
    }

    /// Path of the socket.
    pub fn socket(&self) -> &Path {
        self.door.socket()
    }

    /// A directory that goes with the server.
    pub fn dir(&self) -> PathBuf {
        self._dir.path().to_owned()
    }

    /// A handler that comes through the socket.
    ///
    /// # Panics
    /// If it cannot connect.
    pub fn handler(&self, config: HandlerConfig) -> Handler {
        let path = self.socket().to_owned();
        Handler::embedded(
            move || {
                let mut options = SocketOptions::default();
                options.timeout = Duration::from_secs(30);
                SocketPlane::connect(&path, options)
            },
            config,
        )
        .expect("a connected handler")
    }

    /// A handler without a socket.
    ///
    /// # Panics
    /// If it cannot connect.
    pub fn embedded(&self, config: HandlerConfig) -> Handler {
        let engine = Arc::clone(&self.engine);
        Handler::embedded(move || engine.attach(None, [0; 16]), config)
            .expect("a connected handler")
    }

    /// Closes the door; the engine stays.
    pub fn stop(&self) {
        self.door.stop();
    }

    /// The engine's figures.
    pub fn stats(&self) -> EngineStats {
        self.engine.stats()
    }

    /// Figures of the clients of a process.
    pub fn clients_of(&self, pid: u32) -> Vec<ClientStats> {
        let mut clients = self.stats().clients;
        clients.retain(|client| client.pid == pid);
        clients
    }

    /// The engine's counter of this name.
    ///
    /// # Panics
    /// If there is none.
    pub fn counter(&self, name: &str) -> u64 {
        self.stats().counters[name]
    }
}
