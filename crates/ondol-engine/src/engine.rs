use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use ondol_catalog::failpoint;
use ondol_directory::{AttachError, Directory, DirectoryError, Newcomer, Reclaimed};
use ondol_memory::{Backing, Device, DeviceUri, Durability, LogStats};
use ondol_protocol::{ClientId, ClientInfo, Commit, ControlError, EngineStats};
use ondol_shm::{
    ForkGuard, HandleSecret, Process, ProcessIdentity, SlotTableView, create_lease_table,
};
use ondol_tiering::{Quotas, Tiering};
use parking_lot::{Mutex, RwLock};

use crate::Session;
use crate::config::{EngineConfig, EngineError, L2Config};
use crate::start::{self, Adopted, Kept, Parts, RestartReport};
use crate::sync::sync_bytes;
use crate::tier::Tier;

/// What the engine knows of a client besides what the directory keeps.
#[derive(Debug)]
struct Attached {
    /// Its process; 0 for this one.
    pid: u32,
    standing: Standing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// The directory does not know it yet.
    Arriving,
    Here,
    /// Its process has ended, and not all that it held could be taken back yet.
    Dead,
}

/// The thread that loads the objects of the last run.
#[derive(Debug)]
struct Loader {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// Memory, pool and directory of one server, or of one process that embeds them.
#[derive(Debug)]
pub struct Engine {
    directory: Arc<Directory>,
    secret: HandleSecret,
    incarnation: u64,
    share_limit: u64,
    max_page_bytes: u64,
    /// The name of the next client; locked while one is let in, as names are recorded in their order.
    next_client: Mutex<u64>,
    clients: Mutex<BTreeMap<ClientId, Attached>>,
    adopted: Mutex<Vec<Adopted>>,
    restart: RestartReport,
    kept: Option<Kept>,
    /// Whether the engine is closed; held by those who commit, so that closing waits for them.
    closed: RwLock<bool>,
    loader: Mutex<Option<Loader>>,
    /// Held while the engine is being closed.
    closing: Mutex<()>,
    tier: OnceLock<Tier>,
    quotas: Arc<Quotas>,
    home: ForkGuard,
    // Last, so that the devices' locks outlive everything that uses their bytes.
    devices: Arc<[Device]>,
}

impl Engine {
    /// Opens the devices and builds pool and directory over them: an empty pool, or the one of the last run where
    /// [`EngineConfig::persistence`] says where it is kept.
    ///
    /// # Errors
    /// [`EngineError`]; then no new file is left behind, and what an earlier run left is as it was, unless it was to be
    /// given up.
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
        let has = |kind: fn(&DeviceUri) -> bool| config.devices.iter().any(kind);
        if config.persistence.is_some()
            && has(|uri| matches!(uri, DeviceUri::Memfd { .. }))
            && has(|uri| matches!(uri, DeviceUri::Dax { .. }))
        {
            return Err(EngineError::MemfdBesideDax);
        }
        // Before the pool, which may take long.
        if let Some(l2) = &config.l2 {
            l2.check()?;
        }
        let secret = match &config.secret {
            Some(secret) => secret.clone(),
            None => HandleSecret::generate()?,
        };
        let mut incarnation = [0; 8];
        getrandom::fill(&mut incarnation)?;
        let started = Instant::now();
        let Parts {
            directory,
            devices,
            kept,
            adopted,
            dead,
            next_client,
            restart,
        } = match &config.persistence {
            None => start::start_volatile(&config, policy)?,
            Some(persistence) => start::start_kept(&config, policy, persistence)?,
        };
        if kept.is_some() && !restart.warm {
            tracing::info!(why = restart.why, "cold start: the pool is empty");
        }
        let (total, largest) = directory.with_pool(|pool| {
            let extents = pool.extents();
            (extents.total_bytes(), extents.largest_arena())
        });
        directory.set_salt_limits(Arc::<Quotas>::clone(&config.quotas));
        directory.open_index();
        let directory = Arc::new(directory);
        let loader = load_in_background(&directory, &restart, started)?;
        let clients = adopted.iter().map(|client| {
            let attached = Attached {
                pid: client.process.as_ref().map_or(0, Process::pid),
                standing: Standing::Here,
            };
            (client.id, attached)
        });
        let dead = dead.into_iter().map(|id| {
            let standing = Standing::Dead;
            (id, Attached { pid: 0, standing })
        });
        let clients = clients.chain(dead);
        let engine = Self {
            directory,
            secret,
            // 0 means none on the wire.
            incarnation: u64::from_le_bytes(incarnation).max(1),
            share_limit: config.share_limit.unwrap_or(total / 4),
            max_page_bytes: largest,
            next_client: Mutex::new(next_client),
            clients: Mutex::new(clients.collect()),
            adopted: Mutex::new(adopted),
            restart,
            kept,
            closed: RwLock::new(false),
            loader: Mutex::new(loader),
            closing: Mutex::new(()),
            tier: OnceLock::new(),
            quotas: Arc::clone(&config.quotas),
            home: ForkGuard::new(),
            devices,
        };
        if let Some(l2) = &config.l2
            && let Err(error) = engine.open_tier(l2)
        {
            engine.give_up();
            return Err(error);
        }
        Ok(Arc::new(engine))
    }

    fn open_tier(&self, config: &L2Config) -> Result<(), EngineError> {
        let mut instance = [0; 16];
        getrandom::fill(&mut instance)?;
        let client = self
            .let_in(None, instance)
            .map_err(|error| EngineError::Storage(error.to_string()))?;
        let tier = Tier::open(
            config,
            &self.directory,
            &self.devices,
            client,
            &self.quotas,
            self.promises_durable_bytes(),
        )?;
        let _ = self.tier.set(tier);
        Ok(())
    }

    /// Leaves a pool that is kept to the next start, and nothing of any other.
    fn give_up(&self) {
        let ended = match &self.kept {
            Some(_) => self.close(),
            None => self.remove_files(),
        };
        if let Err(error) = ended {
            tracing::warn!(%error, "the pool of an engine that cannot start is not left as it should be");
        }
    }

    /// Lets a client in that knows itself by the random number `instance`. `process` is the process it lives in, or
    /// `None` for this one.
    ///
    /// # Errors
    /// [`ControlError::Failed`] if the system has no memory or descriptor left for the client's lease table, or the
    /// client cannot be recorded.
    pub fn attach(
        self: &Arc<Self>,
        process: Option<&Process>,
        instance: [u8; 16],
    ) -> Result<Arc<Session>, ControlError> {
        let (id, lease_table) = self.let_in(process, instance)?;
        Ok(self.session(id, lease_table))
    }

    /// Lets a client in: its name and its lease table.
    fn let_in(
        &self,
        process: Option<&Process>,
        instance: [u8; 16],
    ) -> Result<(ClientId, OwnedFd), ControlError> {
        self.forget_departed();
        let failed =
            |error: String| ControlError::Failed(format!("no place for a new client: {error}"));
        let identity = match (process, &self.kept) {
            (Some(process), _) => process.identity(),
            (None, None) => ProcessIdentity::default(),
            (None, Some(_)) => Process::current()
                .map_err(|error| failed(error.to_string()))?
                .identity(),
        };
        let mut next = self.next_client.lock();
        let id = ClientId(*next);
        let lease_table = create_lease_table().map_err(|error| failed(error.to_string()))?;
        let kept = self.kept.as_ref();
        let book = kept.map(|kept| kept.books.create_book(id)).transpose();
        let book = book.map_err(|error| failed(format!("no lease book: {error}")))?;
        failpoint!("attach.book_made");
        let slots = match kept {
            Some(kept) => kept.slots.create_slots(id),
            None => SlotTableView::create_anonymous(),
        };
        let slots = slots.map_err(|error| failed(format!("no slot table: {error}")))?;
        *next += 1;
        let who = Newcomer {
            process: identity,
            instance,
        };
        let attached = Attached {
            pid: process.map_or(0, Process::pid),
            standing: Standing::Arriving,
        };
        self.clients.lock().insert(id, attached);
        if let Err(error) = self.directory.attach(id, who, lease_table.as_fd(), book) {
            // What was recorded of it is taken back, now or later.
            drop(next);
            self.client_died(id);
            return Err(failed(error.to_string()));
        }
        drop(next);
        self.directory.set_slots(id, slots);
        // Unless it has died since.
        if let Some(attached) = self.clients.lock().get_mut(&id)
            && attached.standing == Standing::Arriving
        {
            attached.standing = Standing::Here;
        }
        Ok((id, lease_table))
    }

    fn session(self: &Arc<Self>, id: ClientId, lease_table: OwnedFd) -> Arc<Session> {
        let info = ClientInfo {
            id,
            share_limit: self.share_limit,
            max_page_bytes: self.max_page_bytes,
            incarnation: self.incarnation,
        };
        Arc::new(Session::new(Arc::clone(self), info, lease_table))
    }

    /// The clients of the last run that are not proven dead, to be watched and expected back; given once. They keep
    /// what they held until [`resume`](Self::resume) or [`client_died`](Self::client_died).
    pub fn take_adopted(&self) -> Vec<Adopted> {
        std::mem::take(&mut self.adopted.lock())
    }

    /// Lets a client of the last run come back with the lease table that it had. Whether it is that client is for the
    /// caller to say, by its instance.
    ///
    /// # Errors
    /// [`ControlError::UnknownClient`] if no client of that name is expected, [`ControlError::Refused`] if that is no
    /// lease table.
    pub fn resume(
        self: &Arc<Self>,
        client: ClientId,
        lease_table: OwnedFd,
    ) -> Result<Arc<Session>, ControlError> {
        match self.directory.resume(client, lease_table.as_fd()) {
            Ok(()) => {
                tracing::info!(%client, "a client of the last run came back");
                Ok(self.session(client, lease_table))
            }
            Err(AttachError::Unknown) => Err(ControlError::UnknownClient(format!(
                "no client {client} is expected back; what it held is gone"
            ))),
            Err(error) => Err(ControlError::Refused(error.to_string())),
        }
    }

    /// Takes back everything that a dead client held; `None` if the client is not known (any more). What the journal
    /// refuses to record now is taken back when another client comes or figures are asked for.
    pub fn client_died(&self, client: ClientId) -> Option<Reclaimed> {
        self.clients.lock().get_mut(&client)?.standing = Standing::Dead;
        match self.directory.detach(client) {
            Ok(reclaimed) => {
                tracing::debug!(
                    %client,
                    leases = reclaimed.leases,
                    pins = reclaimed.pins,
                    grants = reclaimed.grants,
                    "took back what a client held whose process ended"
                );
                self.forget(client);
                Some(reclaimed)
            }
            Err(DirectoryError::UnknownClient) => {
                self.forget(client);
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
            .map(|(client, attached)| (*client, attached.standing))
            .collect();
        for (client, standing) in known {
            let is_over = match standing {
                Standing::Arriving => false,
                Standing::Here => self.directory.is_gone(client),
                Standing::Dead => true,
            };
            if is_over
                && !matches!(
                    self.directory.detach(client),
                    Err(DirectoryError::Journal(_))
                )
            {
                self.forget(client);
            }
        }
    }

    fn forget(&self, client: ClientId) {
        self.clients.lock().remove(&client);
        // Book and table may go once the next server is sure not to look for them; else it sweeps them.
        if let Some(kept) = &self.kept
            && self.directory.make_durable().is_ok()
        {
            kept.books.remove(client);
            kept.slots.remove(client);
        }
    }

    /// Names this start of the engine.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// What this engine began with.
    pub fn restart(&self) -> &RestartReport {
        &self.restart
    }

    /// Whether every object of the last run is loaded. Requests are served before.
    pub fn is_loaded(&self) -> bool {
        self.directory.is_loaded()
    }

    /// Whether what is asked for can be recorded.
    ///
    /// # Errors
    /// Why not, in words. Reads are served nevertheless.
    pub fn health(&self) -> Result<(), String> {
        if self.is_closed() {
            return Err("the engine is closed".to_owned());
        }
        let stats = self.log_stats();
        stats
            .and_then(|stats| stats.last_error)
            .map_or(Ok(()), |error| {
                Err(format!("the log does not work: {error}"))
            })
    }

    /// How the log fares; nothing if the state is not kept.
    pub fn log_stats(&self) -> Option<LogStats> {
        self.kept.as_ref().map(|kept| kept.log.stats())
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
        drop(pids);
        stats.l2 = self.tier().map(|tier| tier.tiering.stats());
        stats
    }

    /// The storage behind the pool, if there is any.
    pub fn tiering(&self) -> Option<&Arc<Tiering>> {
        self.tier().map(|tier| &tier.tiering)
    }

    /// How many bytes the objects of each cache salt may have.
    pub fn quotas(&self) -> &Arc<Quotas> {
        &self.quotas
    }

    pub(crate) fn tier(&self) -> Option<&Tier> {
        self.tier.get()
    }

    /// Why the engine works in part only, if it does: a storage backend that was said to be required is out of use, or left out for
    /// now since it does not answer in time or fails to store. Everything else works.
    pub fn degraded(&self) -> Option<String> {
        let tier = self.tier()?;
        tier.broken().or_else(|| tier.tiering.degraded())
    }

    /// Whether the engine is closed, or is being closed now.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.try_read().is_none_or(|closed| *closed)
    }

    /// The client has said that it leaves: it is forgotten at once if it holds nothing, so that no later engine expects it
    /// back.
    pub(crate) fn client_left(&self, client: ClientId) {
        if self.directory.is_gone(client) {
            self.forget_departed();
        }
    }

    /// Answers clients that wait for storage with what memory has, from now on. To be called before their connections are stopped, which
    /// waits for calls that are under way.
    pub fn end_waiting(&self) {
        if let Some(tier) = self.tier() {
            tier.tiering.end_prefetches();
        }
    }

    /// Stops for good: makes objects and log durable and marks that this was a clean stop. Changes are refused from then
    /// on, so clients keep what they hold for the next engine; call it while their sessions are still there. Closing
    /// again does nothing.
    ///
    /// # Errors
    /// [`EngineError`]; then the mark is missing, and everything that was acknowledged is kept as promised.
    pub fn close(&self) -> Result<(), EngineError> {
        let _alone = self.closing.lock();
        // Waits for commits that are on their way; what comes later is refused.
        if std::mem::replace(&mut *self.closed.write(), true) {
            return Ok(());
        }
        if let Some(tier) = self.tier() {
            tier.close();
            failpoint!("close.tier_closed");
        }
        self.directory.close_index();
        failpoint!("close.index_retired");
        self.stop_loading();
        self.forget_departed();
        let Some(kept) = &self.kept else {
            return Ok(());
        };
        failpoint!("close.begun");
        let lasting = self.devices.iter().filter(|device| !device.is_volatile());
        let synced = lasting.map(Device::sync).collect::<Result<Vec<_>, _>>();
        failpoint!("close.synced");
        if let Err(error) = synced {
            self.directory.make_durable()?;
            return Err(error.into());
        }
        kept.log.close()?;
        failpoint!("close.marked");
        if let Err(error) = kept.end_run(&self.devices) {
            // All is as it should be, but a copy that was made before would not be told from this.
            tracing::warn!(%error, "the end of this run could not be written to the devices and beside the log");
        }
        failpoint!("close.run_ended");
        Ok(())
    }

    fn stop_loading(&self) {
        if let Some(Loader { stop, thread }) = self.loader.lock().take() {
            stop.store(true, Ordering::Relaxed);
            if thread.join().is_err() {
                tracing::error!("the thread that loads objects has panicked");
            }
        }
    }

    /// Unlinks the files of the memory devices, for a pool that shall leave nothing behind.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn remove_files(&self) -> Result<(), EngineError> {
        self.devices.iter().try_for_each(Device::remove_files)?;
        Ok(())
    }

    /// Calls `commit` once the bytes of these objects are as durable as their records will be.
    pub(crate) fn with_durable_bytes<T>(
        &self,
        commits: &[Commit],
        commit: impl FnOnce() -> Result<T, ControlError>,
    ) -> Result<T, ControlError> {
        let closed = self.closed.read();
        if *closed {
            return Err(ControlError::Failed(
                "the engine is being stopped".to_owned(),
            ));
        }
        if self.promises_durable_bytes() {
            let places = commits.iter().map(|commit| &commit.location);
            sync_bytes(&self.directory, &self.devices, places).map_err(|error| {
                ControlError::Failed(format!("the objects' bytes are not durable: {error}"))
            })?;
            failpoint!("commit.bytes_synced");
        }
        commit()
    }

    fn promises_durable_bytes(&self) -> bool {
        let kept = self.kept.as_ref();
        kept.is_some_and(|kept| kept.durability == Durability::Fsync)
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

impl Drop for Engine {
    fn drop(&mut self) {
        // The thread is not there in a forked child.
        if self.home.is_home() {
            if let Some(tier) = self.tier.get()
                && !*self.closed.get_mut()
            {
                tier.close();
            }
            self.directory.close_index();
            self.stop_loading();
        }
    }
}

fn load_in_background(
    directory: &Arc<Directory>,
    restart: &RestartReport,
    started: Instant,
) -> Result<Option<Loader>, EngineError> {
    if !restart.warm {
        return Ok(None);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let (directory, asked) = (Arc::clone(directory), Arc::clone(&stop));
    let (objects, why) = (restart.objects, restart.why.clone());
    let load = move || {
        while !asked.load(Ordering::Relaxed) {
            if directory.load_some() {
                let seconds = started.elapsed().as_secs_f64();
                let rate = objects as f64 / seconds.max(1e-9);
                tracing::info!(
                    why,
                    "warm start: {objects} objects in {seconds:.3} s ({rate:.0} objects/s)"
                );
                return;
            }
        }
    };
    let thread = thread::Builder::new()
        .name("ondol-loader".to_owned())
        .spawn(load)
        .map_err(EngineError::Thread)?;
    Ok(Some(Loader { stop, thread }))
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
        let session = engine.attach(None, [0; 16]).unwrap();
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
                wait_ms: 0,
                expected_len: 0,
            };
            let answer = session.retrieve(&request).unwrap();
            assert!(answer.hits.iter().all(Option::is_none));
        }
    }
}
