use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ondol_directory::{Directory, DirectoryError, Reclaimed};
use ondol_memory::{
    Arena, Backing, Device, DeviceEnv, DeviceError, DeviceUri, Journal, NoJournal, OpenOptions,
    Pool, REGION_ALIGNMENT,
};
use ondol_protocol::{ClientId, ClientInfo, ControlError, EngineStats};
use ondol_shm::{HandleSecret, Process, create_lease_table};
use parking_lot::Mutex;

use crate::Session;

/// How an engine is built.
#[derive(Debug)]
#[non_exhaustive]
pub struct EngineConfig {
    /// The memory devices of the pool, in the order in which they fill.
    pub devices: Vec<DeviceUri>,
    /// Where devices look for the system's files.
    pub device_env: DeviceEnv,
    /// How devices are opened.
    pub device_options: OpenOptions,
    /// Name of the eviction policy.
    pub policy: String,
    /// Length of a region in bytes; by default it follows from the size of the pool.
    pub region_bytes: Option<u64>,
    /// Bytes of pages that one client may hold granted at once; by default a quarter of the pool.
    pub share_limit: Option<u64>,
    /// The secret that signs region handles; by default a fresh one.
    pub secret: Option<HandleSecret>,
    /// What records every change of state.
    pub journal: Box<dyn Journal>,
}

impl EngineConfig {
    /// The defaults over these devices.
    pub fn new(devices: impl IntoIterator<Item = DeviceUri>) -> Self {
        Self {
            devices: devices.into_iter().collect(),
            device_env: DeviceEnv::default(),
            device_options: OpenOptions::default(),
            policy: "lru".to_owned(),
            region_bytes: None,
            share_limit: None,
            secret: None,
            journal: Box::new(NoJournal),
        }
    }
}

/// Why an engine cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A memory device cannot be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No memory device was given.
    #[error("no memory device is configured; expected at least one, such as `shm:ondol?size=2GiB`")]
    NoDevice,
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
}

/// What the engine knows of a client besides what the directory keeps.
#[derive(Debug)]
struct Attached {
    /// Its process; 0 for this one.
    pid: u32,
    /// Whether that has ended, and not all that the client held could be taken back yet.
    is_dead: bool,
}

/// Memory, pool and directory of one server, or of one process that embeds them.
#[derive(Debug)]
pub struct Engine {
    directory: Directory,
    secret: HandleSecret,
    incarnation: u64,
    share_limit: u64,
    max_page_bytes: u64,
    next_client: AtomicU64,
    clients: Mutex<BTreeMap<ClientId, Attached>>,
    // Last, so that the devices' locks outlive everything that uses their bytes.
    devices: Vec<Device>,
}

impl Engine {
    /// Opens the devices and builds an empty pool and directory over them.
    ///
    /// # Errors
    /// [`EngineError`]; then no file is left behind.
    pub fn open(config: EngineConfig) -> Result<Arc<Self>, EngineError> {
        let policy =
            ondol_catalog::policy(&config.policy).ok_or_else(|| EngineError::UnknownPolicy {
                found: config.policy.clone(),
                known: ondol_catalog::policies()
                    .iter()
                    .map(|policy| policy.name)
                    .collect::<Vec<_>>()
                    .join(", "),
            })?;
        if config.devices.is_empty() {
            return Err(EngineError::NoDevice);
        }
        let secret = match config.secret {
            Some(secret) => secret,
            None => HandleSecret::generate()?,
        };
        let mut incarnation = [0; 8];
        getrandom::fill(&mut incarnation)?;

        let mut devices = Vec::with_capacity(config.devices.len());
        for uri in &config.devices {
            match Device::open(uri, &config.device_env, &config.device_options) {
                Ok(device) => devices.push(device),
                Err(error) => {
                    discard(&devices);
                    return Err(error.into());
                }
            }
        }
        let arenas = devices.iter().flat_map(|device| {
            let (alignment, whole) = (device.alignment(), device.whole_backing_regions());
            device.backings().iter().map(move |backing| Arena {
                usable: backing.usable(),
                alignment,
                whole,
            })
        });
        let pool = Pool::new(arenas, config.region_bytes);
        let (total, largest) = (pool.extents().total_bytes(), pool.extents().largest_arena());
        if largest == 0 {
            discard(&devices);
            return Err(EngineError::TooSmall {
                found: devices.iter().map(Device::capacity).sum(),
            });
        }
        Ok(Arc::new(Self {
            directory: Directory::new(pool, config.journal, policy),
            secret,
            incarnation: u64::from_le_bytes(incarnation),
            share_limit: config.share_limit.unwrap_or(total / 4),
            max_page_bytes: largest,
            next_client: AtomicU64::new(1),
            clients: Mutex::default(),
            devices,
        }))
    }

    /// Lets a client in. `process` is the process it lives in, or `None` for this one.
    ///
    /// # Errors
    /// [`ControlError::Failed`] if the system has no memory or descriptor left for the client's lease table.
    pub fn attach(
        self: &Arc<Self>,
        process: Option<&Process>,
    ) -> Result<Arc<Session>, ControlError> {
        self.forget_departed();
        let failed = |error: String| {
            ControlError::Failed(format!("no lease table for a new client: {error}"))
        };
        let id = ClientId(self.next_client.fetch_add(1, Ordering::Relaxed));
        let lease_table = create_lease_table().map_err(|error| failed(error.to_string()))?;
        self.directory
            .attach(id, lease_table.as_fd())
            .map_err(|error| failed(error.to_string()))?;
        let attached = Attached {
            pid: process.map_or(0, Process::pid),
            is_dead: false,
        };
        self.clients.lock().insert(id, attached);
        let info = ClientInfo {
            id,
            share_limit: self.share_limit,
            max_page_bytes: self.max_page_bytes,
            incarnation: self.incarnation,
        };
        Ok(Arc::new(Session::new(Arc::clone(self), info, lease_table)))
    }

    /// Takes back everything that a dead client held; `None` if the client is not known (any more). What the journal
    /// refuses to record now is taken back when another client comes or figures are asked for.
    pub fn client_died(&self, client: ClientId) -> Option<Reclaimed> {
        self.clients.lock().get_mut(&client)?.is_dead = true;
        match self.directory.detach(client) {
            Ok(reclaimed) => {
                tracing::debug!(%client, ?reclaimed, "reclaimed what a dead client held");
                self.clients.lock().remove(&client);
                Some(reclaimed)
            }
            Err(DirectoryError::UnknownClient) => {
                self.clients.lock().remove(&client);
                None
            }
            Err(error) => {
                tracing::error!(%client, ?error, "not all that a dead client held could be reclaimed; trying again later");
                None
            }
        }
    }

    /// Forgets clients that left and whose last reader is gone, and the dead that could not be forgotten before.
    pub fn forget_departed(&self) {
        let known: Vec<_> = self
            .clients
            .lock()
            .iter()
            .map(|(client, attached)| (*client, attached.is_dead))
            .collect();
        for (client, is_dead) in known {
            if (is_dead || self.directory.is_gone(client))
                && !matches!(
                    self.directory.detach(client),
                    Err(DirectoryError::Journal(_))
                )
            {
                self.clients.lock().remove(&client);
            }
        }
    }

    /// Names this start of the engine.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Figures of the whole engine.
    pub fn stats(&self) -> EngineStats {
        self.forget_departed();
        let mut stats = self.directory.stats();
        stats.pool.devices = self
            .devices
            .iter()
            .map(|device| device.uri().to_string())
            .collect();
        let pids = self.clients.lock();
        for client in &mut stats.clients {
            client.pid = pids
                .get(&ClientId(client.id))
                .map_or(0, |attached| attached.pid);
        }
        stats
    }

    /// Unlinks the files of the memory devices, for a pool that shall leave nothing behind.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn remove_files(&self) -> Result<(), EngineError> {
        self.devices.iter().try_for_each(Device::remove_files)?;
        Ok(())
    }

    pub(crate) fn directory(&self) -> &Directory {
        &self.directory
    }

    pub(crate) fn secret(&self) -> &HandleSecret {
        &self.secret
    }

    /// All backings in the order of their ids.
    pub(crate) fn backings(&self) -> impl Iterator<Item = &Backing> {
        self.devices.iter().flat_map(Device::backings)
    }
}

/// Leaves nothing behind of devices that were opened for an engine that is not to be.
fn discard(devices: &[Device]) {
    for device in devices {
        if let Err(error) = device.remove_files() {
            tracing::warn!(%error, device = %device.uri(), "files of the pool are left behind");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(dir: &std::path::Path) -> Vec<std::ffi::OsString> {
        let mut files: Vec<_> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .filter(|name| !name.to_string_lossy().ends_with(".owner"))
            .collect();
        files.sort();
        files
    }

    #[test]
    fn an_engine_that_cannot_be_leaves_no_file_behind() {
        let dir = tempfile::tempdir().unwrap();
        let first = format!("dir:{}?size=2MiB&region=2MiB", dir.path().display());
        let second = "dir:/nonexistent/ondol?size=2MiB";
        let config = EngineConfig::new([first.parse().unwrap(), second.parse().unwrap()]);
        assert!(matches!(Engine::open(config), Err(EngineError::Device(_))));
        assert_eq!(files(dir.path()), [""; 0]);
    }

    #[test]
    fn every_byte_of_a_directory_of_odd_regions_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let uri = format!("dir:{}?size=9MiB&region=3MiB", dir.path().display());
        let engine = Engine::open(EngineConfig::new([uri.parse().unwrap()])).unwrap();
        let pool = engine.stats().pool;
        assert_eq!(
            (pool.total_bytes, pool.largest_free_extent),
            (9 << 20, 3 << 20)
        );
        engine.remove_files().unwrap();
    }

    #[test]
    fn an_unknown_policy_is_answered_with_the_known_ones() {
        let mut config = EngineConfig::new(["memfd:?size=2MiB".parse().unwrap()]);
        config.policy = "mru".to_owned();
        let error = Engine::open(config).unwrap_err().to_string();
        assert!(
            error.contains("\"mru\"") && error.contains("lru"),
            "{error}"
        );
    }

    #[test]
    fn a_group_that_no_batch_can_fill_is_no_reason_to_die() {
        use ondol_plugin::Key;
        use ondol_protocol::{ControlPlane, Retrieve};
        use ondol_shm::LeaseRef;

        let engine =
            Engine::open(EngineConfig::new(["memfd:?size=2MiB".parse().unwrap()])).unwrap();
        let session = engine.attach(None).unwrap();
        for keys in [Vec::new(), vec![Key::integer(1)]] {
            let leases = keys
                .iter()
                .map(|_| LeaseRef {
                    slot: 0,
                    sequence: 1,
                })
                .collect();
            let request = Retrieve {
                keys,
                leases,
                group: u32::MAX,
                prefix: true,
                expect: None,
            };
            let answer = session.retrieve(&request).unwrap();
            assert!(answer.hits.iter().all(Option::is_none));
        }
    }
}
