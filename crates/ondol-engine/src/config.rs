use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ondol_host::l2::{AdapterSpec, Backend, check, open_all};
use ondol_memory::{
    DeviceEnv, DeviceError, DeviceUri, Durability, LogError, LogOptions, OpenOptions,
    REGION_ALIGNMENT,
};
use ondol_plugin::l2::L1Mapping;
use ondol_shm::HandleSecret;
use ondol_tiering::{Quotas, TieringConfig, Trial};

/// The eviction policy if none is named: the one that found most, over all capacities, of what the optimum finds in public
/// traces (`docs/benchmarks/hit-rates.md`).
pub const DEFAULT_POLICY: &str = "arc";

/// How an engine is built.
#[derive(Debug)]
#[non_exhaustive]
pub struct EngineConfig {
    /// The memory devices of the pool, in the order in which they fill.
    pub devices: Vec<DeviceUri>,
    /// Where devices look for the system's files.
    pub device_env: DeviceEnv,
    /// How devices are opened; what concerns their predecessor is for the engine to say.
    pub device_options: OpenOptions,
    /// Name of the eviction policy; by default [`DEFAULT_POLICY`].
    pub policy: String,
    /// Length of a region in bytes; by default it follows from the size of the pool.
    pub region_bytes: Option<u64>,
    /// Bytes of pages that one client may hold granted at once; by default a quarter of the pool.
    pub share_limit: Option<u64>,
    /// The secret that signs region handles; by default a fresh one. Handles stay valid over a restart if it is kept.
    pub secret: Option<HandleSecret>,
    /// Where the state is kept; by default it lasts as long as the engine.
    pub persistence: Option<Persistence>,
    /// Whether objects of the last run are checked before they are served.
    pub verify: Verify,
    /// How many bytes the objects of each cache salt may have, in memory and in storage, for policies that go by it; may be
    /// changed while the engine runs. By default there is no limit.
    pub quotas: Arc<Quotas>,
    /// Storage behind the pool; by default there is none.
    pub l2: Option<L2Config>,
    /// The identity of this boot of the machine; by default the kernel says it.
    pub boot_id: Option<String>,
}

impl EngineConfig {
    /// The defaults over these devices.
    pub fn new(devices: impl IntoIterator<Item = DeviceUri>) -> Self {
        Self {
            devices: devices.into_iter().collect(),
            device_env: DeviceEnv::default(),
            device_options: OpenOptions::default(),
            policy: DEFAULT_POLICY.to_owned(),
            region_bytes: None,
            share_limit: None,
            secret: None,
            persistence: None,
            verify: Verify::default(),
            quotas: Arc::default(),
            l2: None,
            boot_id: None,
        }
    }
}

/// Opens storage backends over a pool that is mapped like this; the first one has the highest priority.
type OpenBackends = dyn Fn(&[L1Mapping]) -> Result<Vec<Arc<Backend>>, String> + Send + Sync;

/// Storage behind the pool.
#[derive(Clone)]
#[non_exhaustive]
pub struct L2Config {
    open: Arc<OpenBackends>,
    /// What the backends are made of, as far as it is known.
    specs: Arc<[AdapterSpec]>,
    /// How objects move between memory and storage. Its quotas are the engine's.
    pub tiering: TieringConfig,
    /// How long closing waits for what is still to be stored, and for backends to end.
    pub close_deadline: Duration,
}

impl L2Config {
    /// Storage as these `--l2-adapter` say, by what is linked into this program; the first one has the highest priority.
    pub fn new(adapters: impl IntoIterator<Item = AdapterSpec>) -> Self {
        let specs: Arc<[_]> = adapters.into_iter().collect();
        let adapters = Arc::clone(&specs);
        let open = move |mappings: &[L1Mapping]| {
            open_all(&adapters, mappings).map_err(|error| error.to_string())
        };
        Self {
            specs,
            ..Self::with(open)
        }
    }

    /// Storage whose backends `open` makes once the pool stands, which is mapped as it is told; the first one has the highest
    /// priority. Why it cannot is said in words, and ends the start.
    pub fn with(
        open: impl Fn(&[L1Mapping]) -> Result<Vec<Arc<Backend>>, String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            open: Arc::new(open),
            specs: Arc::new([]),
            tiering: TieringConfig::default(),
            close_deadline: Duration::from_secs(5),
        }
    }

    /// Refuses what can be seen to be wrong without opening anything.
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        check(&self.specs).map_err(|error| EngineError::Storage(error.to_string()))?;
        for spec in self.specs.iter() {
            Trial::new(spec, false).map_err(|error| EngineError::Storage(error.to_string()))?;
        }
        Ok(())
    }

    pub(crate) fn open(&self, mappings: &[L1Mapping]) -> Result<Vec<Arc<Backend>>, String> {
        (self.open)(mappings)
    }
}

impl fmt::Debug for L2Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("L2Config")
            .field("tiering", &self.tiering)
            .field("close_deadline", &self.close_deadline)
            .finish_non_exhaustive()
    }
}

/// Where and how the state of an engine is kept.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Persistence {
    /// The state directory, which exists and is this engine's alone: it gets `log`, `leases` and `slots`.
    pub dir: PathBuf,
    /// What an acknowledgement promises; goes before that of `log`.
    pub durability: Durability,
    /// Whether to give up what an earlier run left, and begin with an empty pool.
    pub fresh: bool,
    /// How the log is kept.
    pub log: LogOptions,
}

impl Persistence {
    /// The defaults in this directory.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            durability: Durability::default(),
            fresh: false,
            log: LogOptions::default(),
        }
    }
}

/// Whether objects of the last run are checked before they are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Verify {
    /// They are taken as they are.
    Never,
    /// One that carries a checksum is compared with it when it is first asked for; if it does not fit, it is removed.
    #[default]
    Checksum,
}

/// Why an engine cannot be built, or not be closed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A memory device cannot be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No memory device was given.
    #[error("no memory device is configured; expected at least one, such as `shm:ondol?size=2GiB`")]
    NoDevice,
    /// A pool that begins anew with each server beside a device that its clients go on mapping.
    #[error(
        "a memfd: device ends with its server, so that the whole pool would begin anew while clients still read and write the dax: device; leave one of them out"
    )]
    MemfdBesideDax,
    /// The devices hold no region.
    #[error(
        "the pool has {found} usable bytes; expected at least {REGION_ALIGNMENT} in one piece: give it a larger size"
    )]
    TooSmall {
        /// Usable bytes found.
        found: u64,
    },
    /// There is no such policy.
    #[error("eviction policy is {found:?}; expected one of: {known}")]
    UnknownPolicy {
        /// The name found.
        found: String,
        /// The names that exist.
        known: String,
    },
    /// The system has no randomness to give.
    #[error("no random bytes: {0}")]
    Random(#[from] getrandom::Error),
    /// The log cannot be read, begun or closed.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The state directory cannot be used.
    #[error("cannot {action} {}: {source}", path.display())]
    State {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The pool of the last run lies on other devices.
    #[error(
        "the pool is configured on {configured}, but the one in {} lies on {found}; configure those in that order, or \
         start with `--fresh`, which gives it up", dir.display()
    )]
    OtherDevices {
        /// The state directory.
        dir: PathBuf,
        /// The devices of the log.
        found: String,
        /// Those that were asked for.
        configured: String,
    },
    /// The lease book or the slot table of a client that may still read the pool cannot be used.
    #[error(
        "client {client} of the last run (process {pid}) may still read the pool, and what it reads stands in {}, which \
         cannot be used: {reason}; end that process, or start with `--fresh`, which leaves it its memory", path.display()
    )]
    LeaseBook {
        /// The client.
        client: u64,
        /// Its process as it is numbered here, 0 if it is not.
        pid: u32,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// What the log says makes no pool.
    #[error("{0}; start with `--fresh`, which begins with an empty pool")]
    Recover(String),
    /// The machine was restarted, and what is gone since cannot be taken out of the log.
    #[error(
        "{reason}. The machine was restarted, so the log has to be written before anything is served: start again when \
         there is room in {}", dir.display()
    )]
    NotRecorded {
        /// The log's directory.
        dir: PathBuf,
        /// What the log says.
        reason: String,
    },
    /// The log could not be closed, so that the next start will not find the mark of a clean stop.
    #[error("the log could not be closed: {0}")]
    Close(#[from] ondol_memory::JournalError),
    /// Storage behind the pool could not be opened.
    #[error("{0}")]
    Storage(String),
    /// A thread could not be started.
    #[error("cannot start a thread of the engine: {0}; raise the limit of threads")]
    Thread(std::io::Error),
}
