//! The start of an engine: what an earlier run left is gone on with, given up, or refused.
//!
//! A crash at any point leaves something that the next start knows what to do with. A pool begins with its devices,
//! then its record, then its log: without a log there is no pool, and files of a dead server are made anew. A pool that
//! is given up ends with its log, then its files are replaced. One that is gone on with gets a new run, by `begin_run`,
//! when nothing can be refused any more and before the first change.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use ondol_catalog::{Policy, failpoint};
use ondol_directory::{AdoptedClient, Directory, LastRun, RecoverError, Recovery, Verifier};
use ondol_memory::{
    Arena, Device, DeviceUri, Durability, Image, Log, NoJournal, OpenOptions, Pool, PoolId,
    PoolRecord, Predecessor, Recovered, RunId, find_strays,
};
use ondol_protocol::ClientId;
use ondol_shm::{BackingId, LeaseBook, Liveness, Process, ProcessIdentity, SlotTableView, boot_id};

use crate::client_files::{ClientFiles, Kind};
use crate::config::{EngineConfig, EngineError, Persistence, Verify};
use crate::reader::Reader;

/// A client of the last run that is not proven dead: what it held is kept until it comes back or its process ends.
#[derive(Debug)]
pub struct Adopted {
    /// Its name.
    pub id: ClientId,
    /// The random number by which it knows itself again.
    pub instance: [u8; 16],
    /// Its process as it was written down.
    pub identity: ProcessIdentity,
    /// Its process; `None` if it lies where its end cannot be seen.
    pub process: Option<Process>,
}

/// What an engine began with.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct RestartReport {
    /// Whether the pool of the last run is gone on with.
    pub warm: bool,
    /// Objects that were found again.
    pub objects: u64,
    /// Seconds until requests could be served.
    pub seconds: f64,
    /// Why the pool is warm or empty, in words.
    pub why: String,
}

/// The parts of an engine.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) directory: Directory,
    pub(crate) devices: Arc<[Device]>,
    pub(crate) kept: Option<Kept>,
    pub(crate) adopted: Vec<Adopted>,
    /// Clients that died before this run, of which not all could be taken back yet.
    pub(crate) dead: Vec<ClientId>,
    pub(crate) next_client: u64,
    pub(crate) restart: RestartReport,
}

/// What keeps the state over a restart.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) log: Arc<Log>,
    pub(crate) books: ClientFiles,
    pub(crate) slots: ClientFiles,
    pub(crate) durability: Durability,
    /// Where the log lies.
    pub(crate) log_dir: PathBuf,
    /// What stands beside it.
    pub(crate) record: PoolRecord,
}

impl Kept {
    /// Begins a run in which nothing is served, so that a copy of the state that was made during the last one does not fit
    /// the devices any more.
    pub(crate) fn end_run(&self, devices: &[Device]) -> Result<(), EngineError> {
        begin_run(&self.log_dir, &self.record, devices)?;
        let mut record = self.record.clone();
        record.devices = devices.iter().map(Device::record).collect();
        record.save(&self.log_dir)?;
        Ok(())
    }
}

/// Gives the devices a new run. `record` is the one beside the log, and lists every run that a device may name at any
/// moment from here on; the caller saves one that lists the new run alone. A server that is killed in between leaves
/// devices of which some may name the new run, and others the one before: then the next start finds both in the record.
fn begin_run(log_dir: &Path, record: &PoolRecord, devices: &[Device]) -> Result<(), EngineError> {
    let run = RunId::generate()?;
    let mut between = record.clone();
    for (known, device) in between.devices.iter_mut().zip(devices) {
        known.expect_runs(device.run().into_iter().chain([run]));
    }
    between.save(log_dir)?;
    failpoint!("device.run_expected");
    devices.iter().try_for_each(|device| device.set_run(run))?;
    Ok(())
}

/// Devices that were opened for an engine that is to be. Until then what is new of them is unlinked when this is
/// dropped, and nothing else.
struct Opening {
    devices: Vec<Device>,
    keep: bool,
}

impl Opening {
    fn new() -> Self {
        Self {
            devices: Vec::new(),
            keep: false,
        }
    }

    fn finish(mut self) -> Arc<[Device]> {
        self.keep = true;
        std::mem::take(&mut self.devices).into()
    }

    fn pool(&self, region_bytes: Option<u64>) -> Result<Pool, EngineError> {
        let arenas = self.devices.iter().flat_map(|device| {
            let (alignment, whole) = (device.alignment(), device.whole_backing_regions());
            device.backings().iter().map(move |backing| Arena {
                usable: backing.usable(),
                alignment,
                whole,
            })
        });
        let pool = Pool::new(arenas, region_bytes);
        if pool.extents().largest_arena() == 0 {
            return Err(EngineError::TooSmall {
                found: self.devices.iter().map(Device::capacity).sum(),
            });
        }
        Ok(pool)
    }

    /// The backings of devices that are new.
    fn lost(&self) -> BTreeSet<BackingId> {
        let kept = self.devices.iter().flat_map(|device| {
            let kept = device.was_kept();
            device.backings().iter().map(move |_| kept)
        });
        (0..)
            .zip(kept)
            .filter(|(_, kept)| !kept)
            .map(|(id, _)| BackingId(id))
            .collect()
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        let new = self.devices.iter().filter(|device| !device.was_kept());
        for device in new.filter(|_| !self.keep) {
            if let Err(error) = device.remove_files() {
                tracing::warn!(%error, device = %device.uri(), "files of the pool are left behind");
            }
        }
    }
}

/// An engine whose state lasts as long as itself.
pub(crate) fn start_volatile(
    config: &EngineConfig,
    policy: &'static Policy,
) -> Result<Parts, EngineError> {
    let started = Instant::now();
    let mut opening = Opening::new();
    for uri in &config.devices {
        let device = Device::open(uri, &config.device_env, &config.device_options)?;
        opening.devices.push(device);
    }
    let pool = opening.pool(config.region_bytes)?;
    Ok(Parts {
        directory: Directory::new(pool, Arc::new(NoJournal), policy),
        devices: opening.finish(),
        kept: None,
        adopted: Vec::new(),
        dead: Vec::new(),
        next_client: 1,
        restart: RestartReport {
            seconds: started.elapsed().as_secs_f64(),
            why: "its state is not kept".to_owned(),
            ..RestartReport::default()
        },
    })
}

/// An engine whose state is kept in a directory.
pub(crate) fn start_kept(
    config: &EngineConfig,
    policy: &'static Policy,
    persistence: &Persistence,
) -> Result<Parts, EngineError> {
    let start = Start {
        started: Instant::now(),
        boot: boot(config)?,
        config,
        policy,
        persistence,
    };
    match start.past()? {
        Past::None(why) => start.begin(Predecessor::Unknown, why),
        Past::GivenUp(why) => {
            start.remove_strays()?;
            Log::remove(&start.log_dir())?;
            failpoint!("recover.log_removed");
            start.begin(Predecessor::Replace, why)
        }
        Past::Pool(record) => start.go_on(&record),
    }
}

fn boot(config: &EngineConfig) -> Result<String, EngineError> {
    if let Some(boot) = &config.boot_id {
        return Ok(boot.clone());
    }
    boot_id().map_err(|source| EngineError::State {
        action: "read",
        path: "/proc/sys/kernel/random/boot_id".into(),
        source,
    })
}

/// The pool of the last run, as it is gone on with.
struct Resumed {
    directory: Directory,
    recovery: Recovery,
    devices: Arc<[Device]>,
    record: PoolRecord,
}

/// What an earlier run left, and what is to become of it.
enum Past {
    /// Nothing that was finished.
    None(String),
    /// A pool that is not wanted, or of which nothing can be left.
    GivenUp(String),
    Pool(PoolRecord),
}

struct Start<'a> {
    started: Instant,
    boot: String,
    config: &'a EngineConfig,
    policy: &'static Policy,
    persistence: &'a Persistence,
}

impl Start<'_> {
    fn log_dir(&self) -> PathBuf {
        self.persistence.dir.join("log")
    }

    fn log_options(&self) -> ondol_memory::LogOptions {
        let mut options = self.persistence.log.clone();
        options.durability = self.persistence.durability;
        options
    }

    /// Unlinks files of a pool that is given up if their lock file is gone: only the log still knows whose they are, and
    /// that goes next.
    fn remove_strays(&self) -> Result<(), EngineError> {
        // A record that cannot be read names nothing.
        let Ok(Some(record)) = PoolRecord::load(&self.log_dir()) else {
            return Ok(());
        };
        let rebooted = record.boot != self.boot;
        let devices = record.devices.iter();
        for device in devices.filter(|device| !(rebooted && device.is_volatile())) {
            if let Some(strays) = find_strays(device, &self.config.device_env)?
                && !strays.owner_file.exists()
            {
                strays.remove()?;
            }
        }
        Ok(())
    }

    fn past(&self) -> Result<Past, EngineError> {
        let dir = self.log_dir();
        if self.persistence.fresh {
            return Ok(Past::GivenUp("a fresh one was asked for".to_owned()));
        }
        let exists = Log::exists(&dir).map_err(|source| EngineError::State {
            action: "look for a log in",
            path: dir.clone(),
            source,
        })?;
        if !exists {
            return Ok(Past::None("there is no log of an earlier run".to_owned()));
        }
        // A log without its record is damaged; recovery says so.
        let record = PoolRecord::load(&dir)?.ok_or(ondol_memory::LogError::Missing { dir })?;
        if record
            .devices
            .iter()
            .all(|device| !device.outlives_process())
        {
            return Ok(Past::GivenUp(
                "the memory of the last run ended with its server".to_owned(),
            ));
        }
        let known: Vec<_> = record.devices.iter().map(|device| device.uri()).collect();
        let configured = &self.config.devices;
        let is_same = known.len() == configured.len()
            && configured
                .iter()
                .zip(&known)
                .all(|(uri, known)| is_same(uri, known));
        if !is_same {
            return Err(EngineError::OtherDevices {
                dir: self.persistence.dir.clone(),
                found: list(known),
                configured: list(configured),
            });
        }
        if let Some(memfd) = record
            .devices
            .iter()
            .find(|device| !device.outlives_process())
        {
            return Ok(Past::GivenUp(format!(
                "the memory of {} ended with its server",
                memfd.uri()
            )));
        }
        if record.boot != self.boot && record.devices.iter().all(|device| device.is_volatile()) {
            return Ok(Past::GivenUp(
                "the machine was restarted since, and the pool lay in its memory".to_owned(),
            ));
        }
        Ok(Past::Pool(record))
    }

    fn device_options(&self, pool: PoolId, predecessor: Predecessor) -> OpenOptions {
        let mut options = self.config.device_options.clone();
        options.pool = Some(pool);
        options.state = Some(self.persistence.dir.clone());
        options.predecessor = predecessor;
        options
    }

    fn record(&self, pool: PoolId, devices: &[Device]) -> PoolRecord {
        PoolRecord {
            pool,
            boot: self.boot.clone(),
            fsync: self.persistence.durability == Durability::Fsync,
            devices: devices.iter().map(Device::record).collect(),
        }
    }

    /// Lease books and slot tables.
    fn client_files(&self) -> Result<[ClientFiles; 2], EngineError> {
        let open = |kind| {
            let dir = &self.persistence.dir;
            ClientFiles::open(dir, kind).map_err(|source| EngineError::State {
                action: "make",
                path: ClientFiles::place(dir, kind),
                source,
            })
        };
        Ok([open(Kind::LeaseBook)?, open(Kind::SlotTable)?])
    }

    fn sweep(
        &self,
        files: &[ClientFiles; 2],
        clients: &BTreeSet<ClientId>,
    ) -> Result<(), EngineError> {
        files.iter().try_for_each(|files| {
            files.sweep(clients).map_err(|source| EngineError::State {
                action: "sweep",
                path: files.dir().to_owned(),
                source,
            })
        })
    }

    /// Begins a new, empty pool.
    fn begin(&self, predecessor: Predecessor, why: String) -> Result<Parts, EngineError> {
        let pool_id = PoolId::generate()?;
        let options = self.device_options(pool_id, predecessor);
        let mut opening = Opening::new();
        for uri in &self.config.devices {
            let device = Device::open(uri, &self.config.device_env, &options)?;
            opening.devices.push(device);
        }
        self.begin_on(opening, pool_id, why)
    }

    fn begin_on(
        &self,
        opening: Opening,
        pool_id: PoolId,
        why: String,
    ) -> Result<Parts, EngineError> {
        let pool = opening.pool(self.config.region_bytes)?;
        let files = self.client_files()?;
        self.sweep(&files, &BTreeSet::new())?;
        failpoint!("recover.devices_made");
        let run = RunId::generate()?;
        opening
            .devices
            .iter()
            .try_for_each(|device| device.set_run(run))?;
        let record = self.record(pool_id, &opening.devices);
        record.save(&self.log_dir())?;
        failpoint!("recover.record_saved");
        let log = Log::create(&self.log_dir(), pool_id, &pool, self.log_options())?;
        let log = Arc::new(log);
        Ok(Parts {
            directory: Directory::new(pool, Arc::<Log>::clone(&log), self.policy),
            devices: opening.finish(),
            kept: Some(self.kept(log, files, record)),
            adopted: Vec::new(),
            dead: Vec::new(),
            next_client: 1,
            restart: RestartReport {
                seconds: self.started.elapsed().as_secs_f64(),
                why,
                ..RestartReport::default()
            },
        })
    }

    /// Goes on with the pool of the last run.
    fn go_on(&self, record: &PoolRecord) -> Result<Parts, EngineError> {
        let other_boot = record.boot != self.boot;
        let mut opening = Opening::new();
        for known in &record.devices {
            let predecessor = if other_boot && known.is_volatile() {
                Predecessor::Replace
            } else {
                Predecessor::Keep(known.clone())
            };
            let options = self.device_options(record.pool, predecessor);
            let device = Device::open(known.uri(), &self.config.device_env, &options)?;
            opening.devices.push(device);
        }
        let empty = opening.pool(self.config.region_bytes)?;
        let Recovered {
            log,
            image,
            clean,
            changes,
            cut_bytes,
        } = Log::recover(&self.log_dir(), record.pool, empty, self.log_options())?;
        failpoint!("recover.replayed");
        tracing::info!(
            objects = image.objects.len(),
            changes,
            cut_bytes,
            clean,
            seconds = self.started.elapsed().as_secs_f64(),
            "log replayed"
        );
        if other_boot && !clean && !record.fsync {
            drop(log);
            Log::remove(&self.log_dir())?;
            let why = "the machine was restarted without a clean stop of the server, and with durability `none` its \
                       bytes are not to be trusted after that";
            tracing::warn!(objects = image.objects.len(), "the pool is given up: {why}");
            return self.begin_on(opening, record.pool, why.to_owned());
        }

        let files = self.client_files()?;
        let known: BTreeSet<_> = image.clients.keys().copied().collect();
        let next_client = image.next_client;
        let (adopted, held) = if other_boot {
            Default::default()
        } else {
            self.adopt(&image, &files)?
        };
        let living: BTreeSet<_> = adopted.iter().map(|client| client.id).collect();
        let devices_lost = opening.lost();
        let log = Arc::new(log);
        let reader = self.config.verify == Verify::Checksum;
        let Resumed {
            directory,
            recovery,
            devices,
            record,
        } = self.recover(record, image, &log, opening, devices_lost, held, reader)?;
        // The next start may have to look for those as well of whom it is not durable that they are gone.
        let keep = match recovery.refused {
            Some(_) => &known,
            None => &living,
        };
        self.sweep(&files, keep)?;
        if let Some(error) = &recovery.refused {
            tracing::warn!(
                reason = error.0,
                clients = recovery.unforgotten.len(),
                "the log could not be written: pages and pins of clients that are dead stay taken until it can"
            );
        }
        for (client, reclaimed) in &recovery.dead {
            tracing::info!(
                %client,
                pins = reclaimed.pins,
                grants = reclaimed.grants,
                "a client is forgotten that died while there was no server, or that held nothing"
            );
        }
        if !adopted.is_empty() || recovery.unmatched > 0 {
            tracing::info!(
                clients = adopted.len(),
                leases = recovery.leases,
                ended_leases = recovery.unmatched,
                "clients of the last run are expected back"
            );
        }
        if recovery.lost > 0 {
            tracing::warn!(
                objects = recovery.lost,
                "the machine was restarted since; what lay in its memory is gone, the rest is kept"
            );
        }
        let why = match (other_boot, clean) {
            (_, true) => "the last run was stopped cleanly",
            (false, false) => {
                "the last run ended without a clean stop, and the bytes are still there"
            }
            (true, false) => "the machine was restarted, and every object was made durable before",
        };
        tracing::debug!(
            known = known.len(),
            living = living.len(),
            "clients of the last run"
        );
        Ok(Parts {
            directory,
            devices,
            kept: Some(self.kept(log, files, record)),
            adopted,
            dead: recovery.unforgotten.iter().map(|(id, _)| *id).collect(),
            next_client,
            restart: RestartReport {
                warm: true,
                objects: recovery.objects,
                seconds: self.started.elapsed().as_secs_f64(),
                why: why.to_owned(),
            },
        })
    }

    fn kept(&self, log: Arc<Log>, [books, slots]: [ClientFiles; 2], record: PoolRecord) -> Kept {
        Kept {
            log,
            books,
            slots,
            durability: self.persistence.durability,
            log_dir: self.log_dir(),
            record,
        }
    }

    /// Makes the directory, and then says that this boot and this run have the pool.
    #[expect(clippy::too_many_arguments, reason = "all that was found out so far")]
    fn recover(
        &self,
        record: &PoolRecord,
        image: Image,
        log: &Arc<Log>,
        mut opening: Opening,
        lost: BTreeSet<BackingId>,
        adopted: Vec<AdoptedClient>,
        verify: bool,
    ) -> Result<Resumed, EngineError> {
        match begin_run(&self.log_dir(), record, &opening.devices) {
            // As on a full disk. The run before goes on, and what is cached can be read.
            Err(EngineError::Log(error)) => {
                tracing::warn!(%error, "no new run: a copy of the state that is made now could not be told from a later one");
            }
            begun => begun?,
        }
        let next = self.record(record.pool, &opening.devices);
        if next.fsync && !record.fsync {
            // What was committed until now was not made durable then.
            opening.devices.iter().try_for_each(Device::sync)?;
        }
        // From here on an error leaves the files of devices that are new: the log may name them.
        opening.keep = true;
        let devices = opening.finish();
        let verifier = if verify {
            let reader = Reader::new(Arc::clone(&devices)).map_err(|error| EngineError::State {
                action: "make",
                path: "a lease table".into(),
                source: std::io::Error::other(error),
            })?;
            Some(Arc::new(reader) as Arc<dyn Verifier>)
        } else {
            None
        };
        let last = LastRun {
            adopted,
            lost,
            rebooted: record.boot != self.boot,
            verifier,
        };
        let journal = Arc::<Log>::clone(log);
        let recovered = Directory::recover(image, journal, self.policy, last);
        let (directory, recovery) = recovered.map_err(|error| match error {
            RecoverError::Journal(error) => EngineError::NotRecorded {
                dir: self.log_dir(),
                reason: error.0,
            },
            error => EngineError::Recover(error.to_string()),
        })?;
        failpoint!("recover.directory_made");
        if next != *record {
            next.save(&self.log_dir())?;
        }
        failpoint!("recover.record_saved_again");
        Ok(Resumed {
            directory,
            recovery,
            devices,
            record: next,
        })
    }

    /// The clients that are not proven dead, with their lease books and slot tables.
    fn adopt(
        &self,
        image: &Image,
        [books, tables]: &[ClientFiles; 2],
    ) -> Result<(Vec<Adopted>, Vec<AdoptedClient>), EngineError> {
        let mut adopted = Vec::new();
        let mut held = Vec::new();
        for (&id, client) in &image.clients {
            let process = match Process::find(&client.process) {
                Ok(Liveness::Dead) => continue,
                Ok(Liveness::Alive(process)) => Some(process),
                Ok(Liveness::Unknown) => None,
                Err(error) => {
                    tracing::warn!(%error, client = %id, "it cannot be seen whether a client lives; it is taken to");
                    None
                }
            };
            let unusable = |path, reason| EngineError::LeaseBook {
                client: id.0,
                pid: client.process.pid,
                path,
                reason,
            };
            let path = books.path(id);
            let (book, leases) =
                LeaseBook::open(&path).map_err(|error| unusable(path, error.to_string()))?;
            let path = tables.path(id);
            let slots = if tables.was_empty() {
                // Each client is given one when it is let in: the last server was one that knew no such tables.
                tables.create_slots(id)
            } else {
                SlotTableView::adopt(&path)
            };
            let slots = slots.map_err(|error| unusable(path, error.to_string()))?;
            let mut named = 0_u32;
            let is_empty = slots.scan(|_| named += 1).is_ok() && named == 0;
            let holds_nothing = is_empty
                && leases.is_empty()
                && client.pins.is_empty()
                && image.pool.granted_to(id).0 == 0;
            if holds_nothing {
                // Perhaps it never learned its name: the answer may have been lost with the last server. If it did, it
                // loses nothing by becoming a new client.
                continue;
            }
            held.push(AdoptedClient {
                id,
                book,
                leases,
                slots: Some(slots),
            });
            adopted.push(Adopted {
                id,
                instance: client.instance,
                identity: client.process,
                process,
            });
        }
        Ok((adopted, held))
    }
}

/// Whether a device that was asked for is this one, whose size is known.
fn is_same(asked: &DeviceUri, known: &DeviceUri) -> bool {
    use DeviceUri::{Dax, Dir, Shm};
    match (asked, known) {
        (
            Shm { name, size, .. },
            Shm {
                name: n, size: s, ..
            },
        ) => name == n && (size.is_none() || size == s),
        (
            Dax { path, size, .. },
            Dax {
                path: p, size: s, ..
            },
        ) => path == p && (size.is_none() || size == s),
        (
            Dir {
                path, size, region, ..
            },
            Dir {
                path: p,
                size: s,
                region: r,
                ..
            },
        ) => path == p && size == s && (region.is_none() || r.is_none() || region == r),
        _ => asked == known,
    }
}

fn list<'a>(uris: impl IntoIterator<Item = &'a DeviceUri>) -> String {
    let uris: Vec<_> = uris.into_iter().map(ToString::to_string).collect();
    uris.join(", ")
}
