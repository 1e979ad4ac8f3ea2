//! The plan of a run and what becomes of its processes.

use std::fs;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use ondol_tests::{Random, SHM, SmallDisk, bytes_below, files_below, shared_files};
use rustix::process::Signal;

use crate::cast::{Cast, Role};
use crate::journal::{Kind, Reader};
use crate::oracle::{Fault, Oracle};
use crate::points::{Action, Points, Shot, Site};
use crate::process::Process;
use crate::report::{Report, STORAGE_WORK};
use crate::storage::Storage;
use crate::{Device, Durability, Options};

/// Nothing that is waited for takes longer unless it never comes.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(60);

/// Small, so that regions are carved anew again and again, into pages of other sizes.
const REGION: &str = "2MiB";

const ROUNDS: u64 = 16;
const MIB: u64 = 1 << 20;

/// What a run has found wrong ends it.
pub(crate) type Found<T = ()> = Result<T, Fault>;

impl From<std::io::Error> for Fault {
    fn from(error: std::io::Error) -> Self {
        Self::new(Kind::Broken, format!("the harness: {error}"))
    }
}

impl From<anyhow::Error> for Fault {
    fn from(error: anyhow::Error) -> Self {
        Self::new(Kind::Broken, format!("the harness: {error:#}"))
    }
}

/// A run.
pub(crate) struct Run {
    options: Options,
    random: Random,
    points: Points,
    pub(crate) report: Report,
    each: u64,
    deadline: Option<Instant>,
    next_client: u64,
    /// What the first pool has behind it, by its place among the choices.
    first_storage: u64,
    /// Whether file systems can be mounted, once it was tried.
    may_mount: bool,
}

/// One pool, its processes and what is known about it.
pub(crate) struct Epoch<'a> {
    run: &'a mut Run,
    pub(crate) settings: Settings,
    dir: PathBuf,
    tag: String,
    disk: Option<SmallDisk>,
    server: Option<Server>,
    clients: Vec<Client>,
    pub(crate) journals: Vec<Reader>,
    pub(crate) oracle: Oracle,
    observations: u64,
    /// The newest checkpoint that was seen.
    checkpoint: Option<String>,
}

/// What a pool is like.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    device: Device,
    durability: Durability,
    /// Whether all objects together fit, so that none is evicted.
    roomy: bool,
    pub(crate) pool_bytes: u64,
    names: u64,
    cast: Cast,
    small_disk: bool,
    storage: Storage,
    /// Whether objects leave memory as soon as they are stored.
    skip_memory: bool,
    /// Seed of the faults of storage that fails.
    fault_seed: u64,
}

impl Settings {
    /// Whether nothing that was acknowledged can go but by a delete.
    fn keeps_all(&self) -> bool {
        self.roomy && (!self.skip_memory || self.storage.keeps_all())
    }
}

struct Server {
    process: Process,
    shot: Option<Shot>,
}

struct Client {
    process: Process,
    number: u64,
    role: Role,
    shot: Option<Shot>,
    /// What it has answered to `pause`.
    is_paused: bool,
}

/// What is done to somebody while the clients work.
#[derive(Clone, Copy, Debug)]
enum Event {
    KillClient,
    /// As many clients as there were before some were killed.
    Replenish,
    StopClient,
    ContinueClients,
    StopServer,
    ContinueServer,
    FillDisk,
}

impl Run {
    /// Runs it all and prints what came of it; whether everything was as it must be.
    pub(crate) fn start(options: Options) -> anyhow::Result<bool> {
        let seed = options.seed.map_or_else(
            || {
                let mut bytes = [0; 4];
                getrandom::fill(&mut bytes).map(|()| u64::from(u32::from_le_bytes(bytes)))
            },
            Ok,
        )?;
        println!("torture: --seed {seed} repeats the plan of this run");
        let made = match &options.dir {
            Some(dir) => {
                fs::create_dir_all(dir)?;
                None
            }
            None => Some(
                tempfile::Builder::new()
                    .prefix("ondol-torture-")
                    .tempdir()?,
            ),
        };
        let root = match (&options.dir, &made) {
            (Some(dir), _) => dir.canonicalize()?,
            (None, Some(made)) => made.path().to_owned(),
            (None, None) => unreachable!("one of them is there"),
        };
        let started = Instant::now();
        let each = options.each.unwrap_or(options.kills / 100);
        let mut random = Random::new(seed);
        let mut run = Self {
            first_storage: random.below(64),
            random,
            points: Points::linked(),
            report: Report::default(),
            each,
            deadline: options
                .seconds
                .map(|seconds| started + Duration::from_secs(seconds)),
            next_client: 1,
            may_mount: true,
            options,
        };
        let mut said = 0;
        while !run.is_done() {
            let kills = run.report.kills();
            if kills >= said + 200 {
                said = kills;
                eprintln!(
                    "{kills} kills, {} rounds, {:.0?}",
                    run.report.rounds,
                    started.elapsed()
                );
            }
            let dir = root.join(format!("epoch{}", run.report.epochs));
            run.report.epochs += 1;
            if let Err(fault) = run.epoch(&dir) {
                println!(
                    "{}: {} in round {} of epoch {}; the evidence is in {}",
                    fault.kind.word(),
                    fault.what,
                    run.report.rounds,
                    run.report.epochs - 1,
                    dir.display()
                );
                run.report.faults.push(fault);
                break;
            }
        }
        print!(
            "{}",
            run.report.text(seed, started.elapsed(), &run.points, each)
        );
        let good = run.report.faults.is_empty();
        if !good && let Some(made) = made {
            // What is left there is the evidence.
            let _ = made.keep();
        }
        Ok(good)
    }

    fn is_done(&self) -> bool {
        let kills = self.report.kills();
        // A place that is never reached shall not keep the run from its end.
        let enough = kills >= self.options.kills
            && (self.points.all_reached(self.each) || kills >= self.options.kills * 4);
        enough
            || self
                .deadline
                .is_some_and(|deadline| Instant::now() > deadline)
    }

    fn settings(&mut self) -> Settings {
        let turn = self.report.epochs;
        let cast = self.options.cast.unwrap_or(if turn % 3 == 2 {
            Cast::Readers
        } else {
            Cast::Mixed
        });
        let roomy = cast == Cast::Mixed && turn.is_multiple_of(3);
        let device = self.options.device.unwrap_or(if turn % 2 == 1 {
            Device::Shm
        } else {
            Device::Dir
        });
        let durability = self.options.durability.unwrap_or(if turn % 4 < 2 {
            Durability::None
        } else {
            Durability::Fsync
        });
        let choices = Storage::choices(self.options.l2);
        let storage = choices[((self.first_storage + turn) % choices.len() as u64) as usize];
        Settings {
            device,
            durability,
            roomy,
            pool_bytes: match (roomy, cast, storage.is_there()) {
                (true, ..) => 64 * MIB,
                (false, Cast::Mixed, false) => 8 * MIB,
                // Objects shall leave it, and come back if they can.
                (false, ..) => 6 * MIB,
            },
            cast,
            names: if roomy { 400 } else { 2000 },
            small_disk: self.may_mount && cast == Cast::Mixed && turn % 3 == 1,
            storage,
            skip_memory: storage.is_there() && self.random.once_in(3),
            fault_seed: self.random.draw() >> 8,
        }
    }

    fn epoch(&mut self, dir: &Path) -> Found {
        let settings = self.settings();
        fs::create_dir_all(dir)?;
        if settings.device == Device::Dir {
            fs::create_dir(dir.join("pool"))?;
        }
        let tag = format!("torture-{}-{}", std::process::id(), self.report.epochs);
        let mut disk = None;
        if settings.small_disk {
            match SmallDisk::mount(&dir.join("state"), 24) {
                Ok(mounted) => disk = Some(mounted),
                Err(error) => {
                    self.may_mount = false;
                    println!(
                        "SKIPPED: full disks, as no file system can be mounted here ({error})"
                    );
                }
            }
        }
        *self.report.storages.entry(settings.storage).or_default() += 1;
        let kills_before = self.report.kills();
        let evictions_before = self.report.evictions;
        let mut epoch = Epoch {
            oracle: Oracle::new(settings.keeps_all()),
            run: self,
            settings,
            dir: dir.to_owned(),
            tag,
            disk,
            server: None,
            clients: Vec::new(),
            journals: Vec::new(),
            observations: 0,
            checkpoint: None,
        };
        let result = epoch.play();
        epoch.run.report.stored += epoch.oracle.stored();
        if epoch.settings.cast == Cast::Readers {
            let report = &mut epoch.run.report;
            report.pools_of_readers += 1;
            report.kills_with_readers += report.kills() - kills_before;
            report.evictions_with_readers += report.evictions - evictions_before;
        }
        if epoch.settings.storage.is_there() {
            let kills = epoch.run.report.kills() - kills_before;
            epoch.run.report.kills_with_storage += kills;
        }
        if result.is_err() {
            epoch.freeze_evidence();
            return result;
        }
        let tag = epoch.tag.clone();
        drop(epoch);
        for name in shared_files(&tag)? {
            fs::remove_file(Path::new(SHM).join(name))?;
        }
        Ok(fs::remove_dir_all(dir)?)
    }
}

impl Epoch<'_> {
    fn play(&mut self) -> Found {
        let expected = self.begin()?;
        self.replenish()?;
        for _ in 0..ROUNDS {
            self.round()?;
            if self.run.is_done() {
                break;
            }
        }
        if self.run.random.once_in(2) {
            self.begin_anew()?;
        }
        self.end(&expected)
    }

    /// Gives the pool up under the clients that use it: they go on as new clients of an empty one, and what they hold
    /// of the old one stays as it is. What is in storage that outlives servers is still there.
    fn begin_anew(&mut self) -> Found {
        self.happen(Event::ContinueClients)?;
        if let Some(disk) = &self.disk {
            disk.free()?;
        }
        // Clients come to this place nowhere else.
        let replaced = self.run.points.first("client.replace");
        let role = self.settings.cast.another();
        self.add_client_with(role, replaced)?;
        self.work_until(Instant::now() + Duration::from_millis(30))?;
        self.end_server(Signal::KILL)?;
        self.start_server(false, None)?;
        self.until_ready(true)?;
        // The observer waits until storage has all that is acknowledged, if it keeps all.
        self.check(false)?;
        if !self.settings.storage.outlives_servers() {
            self.run.report.stored += self.oracle.stored();
            self.oracle = self.oracle.follow();
        } else if !self.settings.storage.keeps_all() {
            self.oracle.may_lose();
        }
        self.end_server(Signal::KILL)?;
        self.start_server(true, None)?;
        self.until_ready(true)?;
        for client in &mut self.clients {
            client.process.tell("fresh");
        }
        self.check(false)?;
        self.go();
        self.work_until(Instant::now() + Duration::from_millis(100))
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.dir.join("state")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.state_dir().join("ondol.sock")
    }

    fn server_log(&self) -> PathBuf {
        self.dir.join("server.log")
    }

    fn flags(&self, fresh: bool) -> Vec<String> {
        let size = self.settings.pool_bytes;
        let pool = match self.settings.device {
            Device::Shm => format!("shm:{}?size={size}", self.tag),
            Device::Dir => format!(
                "dir:{}?region={REGION}&size={size}",
                self.dir.join("pool").display()
            ),
        };
        let durability = match self.settings.durability {
            Durability::None => "none",
            Durability::Fsync => "fsync",
        };
        let mut flags: Vec<String> = [
            "serve",
            "--pool",
            &pool,
            &format!("--region-size={REGION}"),
            &format!("--share-limit={}", 2 * size),
            "--durability",
            durability,
            "--http=off",
            "--log-segment=4KiB",
            "--log-compact=8KiB",
            "--state-dir",
            &self.state_dir().display().to_string(),
        ]
        .map(str::to_owned)
        .into();
        flags.extend(fresh.then(|| "--fresh".to_owned()));
        let storage = self.settings.storage;
        if let Some(adapter) = storage.adapter(&self.storage_dir(), self.settings.fault_seed) {
            flags.push(format!("--l2-adapter={adapter}"));
            let skip = self.settings.skip_memory;
            flags.extend(skip.then(|| "--l2-store-policy=skip_l1".to_owned()));
        }
        flags
    }

    fn storage_dir(&self) -> PathBuf {
        self.dir.join("storage")
    }

    /// An order for the next process at this site.
    fn next_shot(&mut self, site: Site, role: Role) -> Option<Shot> {
        let storage = self.settings.storage;
        let reaches = |name: &str| storage.reaches(name) && role.reaches(name);
        let run = &mut *self.run;
        run.points.next(site, &mut run.random, reaches)
    }

    /// Starts servers until one has made a new pool and ended well; what lies in the state directory and in shared
    /// memory after that. Then starts the one that finds it.
    fn begin(&mut self) -> Found<Files> {
        for _ in 0..4 + self.run.random.below(5) {
            let Some(shot) = self.next_shot(Site::Fresh, Role::All) else {
                break;
            };
            self.start_server(true, Some(shot))?;
            self.until_ready(false)?;
            self.end_server(Signal::KILL)?;
        }
        self.start_server(true, None)?;
        self.until_ready(true)?;
        self.end_server(Signal::TERM)?;
        let expected = self.files()?;
        self.start_server(false, None)?;
        self.until_ready(true)?;
        Ok(expected)
    }

    fn start_server(&mut self, fresh: bool, shot: Option<Shot>) -> Found {
        let order = shot.as_ref().map(Shot::order);
        // One that cannot write its log brings nothing from storage.
        let fails = shot.is_some_and(|shot| shot.action == Action::Error);
        self.oracle
            .server_begins(fails && self.settings.storage.is_there());
        let process = Process::start(&self.flags(fresh), order.as_deref(), &self.server_log())?;
        self.run.report.starts += 1;
        self.server = Some(Server { process, shot });
        Ok(())
    }

    fn add_client(&mut self, role: Role) -> Found {
        let shot = if self.run.random.once_in(5) {
            None
        } else {
            self.next_shot(Site::Client, role)
        };
        self.add_client_with(role, shot)
    }

    fn add_client_with(&mut self, role: Role, shot: Option<Shot>) -> Found {
        let number = self.run.next_client;
        self.run.next_client += 1;
        let random = &mut self.run.random;
        let seed = random.draw() >> 8;
        let journal = self.dir.join(format!("journal.{number}"));
        let storage = self.settings.storage.is_there();
        let fixed = [
            "client".to_owned(),
            format!("--socket={}", self.socket().display()),
            format!("--journal={}", journal.display()),
            format!("--number={number}"),
            format!("--seed={seed}"),
            format!("--names={}", self.settings.names),
            format!("--role={}", role.word()),
        ];
        let storage = storage.then(|| "--storage".to_owned());
        let arguments: Vec<_> = fixed.into_iter().chain(storage).collect();
        let order = shot.as_ref().map(Shot::order);
        let log = self.dir.join("clients.log");
        let process = Process::start(&arguments, order.as_deref(), &log)?;
        self.journals.push(Reader::new(journal));
        self.clients.push(Client {
            process,
            number,
            role,
            shot,
            is_paused: false,
        });
        Ok(())
    }

    /// One window of work, one end of the server, one check.
    fn round(&mut self) -> Found {
        self.run.report.rounds += 1;
        let shot = if self.run.random.once_in(8) {
            None
        } else {
            self.next_shot(Site::Server, Role::All)
        };
        let random = &mut self.run.random;
        let window = Duration::from_millis(80 + random.below(170));
        let window = match (self.settings.cast, self.settings.storage.is_there()) {
            // A writer fills the pool first.
            (Cast::Readers, _) => 4 * window,
            (Cast::Mixed, true) => 2 * window,
            (Cast::Mixed, false) => window,
        };
        let mut plan = plan(random, window, self.disk.is_some());
        if self.settings.cast == Cast::Readers {
            plan.extend(deaths(random, window));
            plan.sort_by_key(|(at, _)| *at);
        }
        let clean = random.once_in(5);
        let pause = Duration::from_millis(random.below(40));
        let client_dies_meanwhile = random.once_in(4);

        self.look_at_figures();
        // The server of the last round goes, and one that is armed comes.
        self.end_server(if clean { Signal::TERM } else { Signal::KILL })?;
        if client_dies_meanwhile {
            self.kill_client(0)?;
        }
        thread::sleep(pause);
        if let Some(disk) = &self.disk
            && disk.free()?
            && self.run.random.once_in(3)
        {
            self.start_on_full_disk()?;
        }
        self.start_server(false, shot)?;
        self.until_ready(false)?;
        self.ensure_server()?;
        self.check(false)?;
        self.replenish()?;
        self.go();

        let begun = Instant::now();
        for (at, event) in plan {
            self.work_until(begun + at)?;
            self.happen(event)?;
        }
        self.work_until(begun + window)?;
        self.happen(Event::ContinueServer)?;
        // A place that has not been reached yet may lie on the way out.
        if let Some(Server {
            shot: Some(shot), ..
        }) = &self.server
            && (shot.name.starts_with("close.") || self.run.random.once_in(3))
        {
            self.end_server(Signal::TERM)?;
        }
        if self.run.random.once_in(2) {
            self.happen(Event::ContinueClients)?;
        }
        Ok(())
    }

    fn happen(&mut self, event: Event) -> Found {
        match event {
            Event::KillClient => {
                let chosen = self.run.random.below(64) as usize;
                self.kill_client(chosen)?;
            }
            Event::Replenish => self.replenish()?,
            Event::StopClient => {
                let chosen = self.run.random.below(64) as usize;
                let count = self.clients.len().max(1);
                if let Some(client) = self.clients.get_mut(chosen % count) {
                    client.process.signal(Signal::STOP);
                    self.run.report.stops += 1;
                }
            }
            Event::ContinueClients => {
                for client in &mut self.clients {
                    client.process.signal(Signal::CONT);
                }
            }
            Event::StopServer => {
                if let Some(server) = &mut self.server {
                    server.process.signal(Signal::STOP);
                    self.run.report.stops += 1;
                }
            }
            Event::ContinueServer => {
                if let Some(server) = &mut self.server {
                    server.process.signal(Signal::CONT);
                }
            }
            Event::FillDisk => {
                if let Some(disk) = &self.disk {
                    disk.fill()?;
                    self.run.report.disks_filled += 1;
                }
            }
        }
        Ok(())
    }

    fn kill_client(&mut self, chosen: usize) -> Found {
        let count = self.clients.len();
        if count == 0 {
            return Ok(());
        }
        let mut chosen = chosen % count;
        // Without its writer nothing would be evicted.
        if self.clients[chosen].role == Role::Writes && !self.run.random.once_in(4) {
            chosen = (chosen + 1) % count;
        }
        let mut client = self.clients.swap_remove(chosen);
        let status = client.process.kill()?;
        self.client_ended(&client, status, false)
    }

    /// Accounts for a client that is not there any more.
    fn client_ended(&mut self, client: &Client, status: ExitStatus, may_end: bool) -> Found {
        if status.signal() == Some(Signal::KILL.as_raw()) {
            self.run.report.client_kills += 1;
            match client.shot {
                Some(shot) if client.process.has_killed_itself() => self.run.points.hit(shot),
                Some(shot) if shot.action == Action::Kill => self.run.points.missed(shot),
                _ => {}
            }
            return Ok(());
        }
        if may_end && status.success() {
            if let Some(shot) = client.shot.filter(|shot| shot.action == Action::Kill) {
                self.run.points.missed(shot);
            }
            return Ok(());
        }
        // A client whose own steps are made to fail may not even come to work.
        if let Some(shot) = client.shot.filter(|shot| shot.action == Action::Error) {
            self.run.points.hit(shot);
            return Ok(());
        }
        Err(Fault::new(
            Kind::Broken,
            format!("client {} ended by itself: {status}", client.number),
        ))
    }

    /// Looks after all processes: who has ended, who has stopped.
    fn tend(&mut self) -> Found {
        self.tend_server()?;
        for index in (0..self.clients.len()).rev() {
            let client = &mut self.clients[index];
            while let Some(line) = client.process.line() {
                client.is_paused |= line == "paused";
            }
            if let Some(status) = client.process.ended()? {
                let client = self.clients.swap_remove(index);
                self.client_ended(&client, status, false)?;
                continue;
            }
            if let Some(shot) = client.shot.filter(|shot| shot.action == Action::Stop)
                && !client.process.is_stopped
                && client.process.seems_stopped()
            {
                // It goes on when the others do.
                client.process.is_stopped = true;
                client.shot = None;
                self.run.report.stops += 1;
                self.run.points.hit(shot);
            }
        }
        Ok(())
    }

    /// Accounts for a server that has ended by itself, and lets one that has stopped itself go on.
    fn tend_server(&mut self) -> Found {
        let Some(server) = &mut self.server else {
            return Ok(());
        };
        if let Some(status) = server.process.ended()? {
            let own = server.process.has_killed_itself();
            let shot = server.shot;
            self.server = None;
            return match shot {
                Some(shot) if own => {
                    self.run.report.server_kills += 1;
                    self.run.points.hit(shot);
                    Ok(())
                }
                // A start that is made to fail says so and ends.
                Some(shot) if shot.action == Action::Error && status.code() == Some(1) => {
                    self.run.points.hit(shot);
                    Ok(())
                }
                _ => Err(Fault::new(
                    Kind::Broken,
                    format!(
                        "the server ended by itself: {status}: {}",
                        last_line(&self.server_log())
                    ),
                )),
            };
        }
        if let Some(shot) = server.shot.filter(|shot| shot.action == Action::Stop)
            && !server.process.is_stopped
            && server.process.seems_stopped()
        {
            server.shot = None;
            self.run.report.stops += 1;
            self.run.points.hit(shot);
            thread::sleep(Duration::from_millis(20));
            if let Some(server) = &mut self.server {
                server.process.signal(Signal::CONT);
            }
        }
        Ok(())
    }

    fn work_until(&mut self, deadline: Instant) -> Found {
        while self.server.is_some() && Instant::now() < deadline {
            self.tend()?;
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Ends the server, if there is one.
    fn end_server(&mut self, signal: Signal) -> Found {
        self.tend_server()?;
        let Some(server) = &mut self.server else {
            return Ok(());
        };
        server.process.signal(Signal::CONT);
        server.process.signal(signal);
        let deadline = Instant::now() + WATCHDOG;
        loop {
            let Some(server) = &mut self.server else {
                // At a failpoint on its way out.
                return Ok(());
            };
            if let Some(status) = server.process.ended()? {
                if server.process.has_killed_itself() {
                    return self.tend_server();
                }
                let shot = server.shot;
                self.server = None;
                if let Some(shot) = shot {
                    // Whether an error was met cannot be seen from here.
                    if shot.action == Action::Error {
                        self.run.points.hit(shot);
                    } else {
                        self.run.points.missed(shot);
                    }
                }
                if status.signal() == Some(Signal::KILL.as_raw()) {
                    self.run.report.server_kills += 1;
                } else if status.success() {
                    self.run.report.clean_ends += 1;
                } else if shot.is_none_or(|shot| shot.action != Action::Error)
                    && self.disk.is_none()
                {
                    return Err(Fault::new(
                        Kind::Broken,
                        format!("a server that was asked to end ended with {status}"),
                    ));
                }
                return Ok(());
            }
            if server.process.seems_stopped() {
                // It was to stop itself on its way out.
                server.process.signal(Signal::CONT);
            }
            if Instant::now() > deadline {
                return Err(Fault::new(
                    Kind::Broken,
                    format!("the server did not end within {} s", WATCHDOG.as_secs()),
                ));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until the server answers; one that is to die may die instead, if not `must`.
    fn until_ready(&mut self, must: bool) -> Found {
        let deadline = Instant::now() + WATCHDOG;
        loop {
            self.tend_server()?;
            if self.server.is_none() {
                if must {
                    return Err(Fault::new(Kind::Broken, "the server died of no failpoint"));
                }
                return Ok(());
            }
            if UnixStream::connect(self.socket()).is_ok() {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Fault::new(
                    Kind::Broken,
                    format!("the server did not start within {} s", WATCHDOG.as_secs()),
                ));
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// A server that runs: this one, or, if it died of its failpoint, one that is not armed.
    pub(crate) fn ensure_server(&mut self) -> Found {
        self.tend_server()?;
        if self.server.is_none() {
            self.start_server(false, None)?;
            self.until_ready(true)?;
        }
        Ok(())
    }

    /// Whether what the server says may be an error that it was told to meet.
    pub(crate) fn may_fail(&self) -> bool {
        let shot = self.server.as_ref().and_then(|server| server.shot);
        shot.is_some_and(|shot| shot.action == Action::Error)
    }

    /// Whether the server is not armed, and so has no reason to end.
    pub(crate) fn is_steady(&self) -> bool {
        self.server
            .as_ref()
            .is_some_and(|server| server.shot.is_none())
    }

    pub(crate) fn has_server(&mut self) -> Found<bool> {
        self.tend()?;
        Ok(self.server.is_some())
    }

    /// A server on a disk without room starts or says why not.
    fn start_on_full_disk(&mut self) -> Found {
        let Some(disk) = &self.disk else {
            return Ok(());
        };
        disk.fill()?;
        self.run.report.starts_on_full_disk += 1;
        self.start_server(false, None)?;
        let deadline = Instant::now() + WATCHDOG;
        while Instant::now() < deadline {
            let Some(server) = &mut self.server else {
                break;
            };
            if let Some(status) = server.process.ended()? {
                self.server = None;
                let said = last_line(&self.server_log());
                if status.code() != Some(1) || !said.contains("space") {
                    return Err(Fault::new(
                        Kind::Broken,
                        format!("on a full disk the server ended with {status}: {said}"),
                    ));
                }
                break;
            }
            if UnixStream::connect(self.socket()).is_ok() {
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
        if let Some(disk) = &self.disk {
            disk.free()?;
        }
        self.end_server(Signal::KILL)
    }

    /// What the server has counted since its start, if it answers.
    fn look_at_figures(&mut self) {
        if let Some(stats) = self.figures() {
            let evictions = stats.counters.get("ondol_evictions_total");
            self.run.report.evictions += evictions.copied().unwrap_or(0);
            let l2 = stats.l2.unwrap_or_default();
            for (name, _) in STORAGE_WORK {
                let count = l2.counters.get(name).copied().unwrap_or(0);
                *self.run.report.storage_work.entry(name).or_default() += count;
            }
        }
        // A checkpoint is named by the place in the log that it stands for.
        let names = fs::read_dir(self.state_dir().join("log"));
        let names = names.into_iter().flatten().flatten();
        let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let newest = names.filter(|name| name.ends_with(".image")).max();
        if newest > self.checkpoint {
            self.checkpoint = newest;
            self.run.report.checkpoints += 1;
        }
    }

    fn replenish(&mut self) -> Found {
        loop {
            let there: Vec<_> = self.clients.iter().map(|client| client.role).collect();
            let mixed = self.run.options.clients;
            let Some(role) = self.settings.cast.missing(&there, mixed) else {
                return Ok(());
            };
            self.add_client(role)?;
        }
    }

    /// Tells all clients that run to pause, and waits until they do.
    pub(crate) fn pause(&mut self) -> Found {
        for client in &mut self.clients {
            client.is_paused = false;
            client.process.tell("pause");
        }
        let deadline = Instant::now() + WATCHDOG;
        let impatient = Instant::now() + Duration::from_secs(1);
        loop {
            self.tend()?;
            let waits = |client: &Client| !client.is_paused && !client.process.is_stopped;
            if !self.clients.iter().any(waits) {
                return Ok(());
            }
            // They wait for a server's answers. One whose steps fail may let nobody in.
            if self.may_fail() && Instant::now() > impatient {
                self.end_server(Signal::KILL)?;
            }
            self.ensure_server()?;
            if Instant::now() > deadline {
                return Err(Fault::new(
                    Kind::Broken,
                    format!("a client did not pause within {} s", WATCHDOG.as_secs()),
                ));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn go(&mut self) {
        for client in &mut self.clients {
            client.process.tell("go");
        }
    }

    /// Lets a process look at everything; whether it could.
    pub(crate) fn observe(&mut self, all_free: bool) -> Found<bool> {
        self.observations += 1;
        let journal = self.dir.join(format!("observed.{}", self.observations));
        let mut arguments = vec![
            "observe".to_owned(),
            format!("--socket={}", self.socket().display()),
            format!("--journal={}", journal.display()),
            format!("--names={}", self.settings.names),
            format!("--turn={}", self.observations),
        ];
        let storage = self.settings.storage;
        if storage.outlives_servers() {
            arguments.push(format!("--storage={}", self.storage_dir().display()));
        }
        if storage.keeps_all() {
            arguments.push("--storage-keeps-all".to_owned());
        }
        let pids = self.clients.iter().map(|client| client.process.pid());
        arguments.extend(pids.map(|pid| format!("--alive={pid}")));
        if all_free {
            arguments.push(format!("--all-free={}", self.settings.pool_bytes));
        }
        self.journals.push(Reader::new(journal));
        let mut observer = Process::start(&arguments, None, &self.dir.join("observers.log"))?;
        let deadline = Instant::now() + WATCHDOG;
        while observer.ended()?.is_none() {
            self.tend()?;
            if Instant::now() > deadline {
                return Err(Fault::new(Kind::Broken, "an observer did not end"));
            }
            thread::sleep(Duration::from_millis(1));
        }
        while let Some(line) = observer.last_line() {
            if line == "observed" {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(crate) fn report(&mut self) -> &mut Report {
        &mut self.run.report
    }

    /// Ends all clients and looks whether anything is left that nobody holds.
    fn end(&mut self, expected: &Files) -> Found {
        self.happen(Event::ContinueClients)?;
        if let Some(disk) = &self.disk {
            disk.free()?;
        }
        self.end_server(Signal::KILL)?;
        self.start_server(false, None)?;
        self.until_ready(true)?;
        self.check(false)?;
        for client in &mut self.clients {
            client.process.signal(Signal::CONT);
            client.process.tell("go");
            client.process.tell("end");
        }
        let deadline = Instant::now() + WATCHDOG;
        while let Some(mut client) = self.clients.pop() {
            loop {
                if let Some(status) = client.process.ended()? {
                    self.client_ended(&client, status, true)?;
                    break;
                }
                if client.process.seems_stopped() {
                    client.process.signal(Signal::CONT);
                }
                if Instant::now() > deadline {
                    return Err(Fault::new(
                        Kind::Broken,
                        format!("client {} did not end", client.number),
                    ));
                }
                self.tend_server()?;
                thread::sleep(Duration::from_millis(1));
            }
        }
        self.check(true)?;
        let worn = self.settled(None)?;
        self.end_server(Signal::TERM)?;
        let found = self.files()?;
        if found != *expected {
            return Err(Fault::new(
                Kind::Leaked,
                format!("these files are left: {found:?}; expected {expected:?}"),
            ));
        }
        let log_bytes = bytes_below(&self.state_dir().join("log"))?;
        if log_bytes > 2 * MIB {
            return Err(Fault::new(
                Kind::Leaked,
                format!("the log has grown to {log_bytes} bytes"),
            ));
        }
        self.start_server(false, None)?;
        self.until_ready(true)?;
        let new = self.settled(Some(&worn))?;
        if worn != new {
            return Err(Fault::new(
                Kind::Leaked,
                format!(
                    "a server that has seen much has open {:?} and the threads {:?}, a new one {:?} and {:?}",
                    worn.0, worn.1, new.0, new.1
                ),
            ));
        }
        self.end_server(Signal::TERM)
    }

    /// Descriptors and threads of a server without clients, when they do not change any more, or are as hoped.
    fn settled(&mut self, hoped: Option<&Worn>) -> Found<Worn> {
        let deadline = Instant::now() + Duration::from_secs(5);
        let mut before = None;
        let mut same = 0;
        loop {
            self.tend_server()?;
            let server = self.server.as_ref().context("no server")?;
            let now = server.process.descriptors_and_threads()?;
            let is_same = before.as_ref() == Some(&now);
            same = if is_same { same + 1 } else { 0 };
            let as_hoped = hoped.is_none_or(|hoped| *hoped == now);
            before = Some(now.clone());
            if (same >= 20 && as_hoped) || Instant::now() > deadline {
                return Ok(now);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn files(&self) -> Found<Files> {
        let mut state = files_below(&self.state_dir())?;
        state.remove("ballast");
        let pool = self.dir.join("pool");
        if pool.exists() {
            state.extend(
                files_below(&pool)?
                    .into_iter()
                    .map(|name| format!("pool/{name}")),
            );
        }
        Ok((state, shared_files(&self.tag)?))
    }

    /// Stops everything as it is, and leaves it there.
    fn freeze_evidence(&mut self) {
        if let Some(disk) = &mut self.disk {
            disk.keep();
            println!(
                "the small disk stays mounted at {}",
                self.state_dir().display()
            );
        }
        println!(
            "{:?}; files in {} that belong to it: {:?}",
            self.settings,
            SHM,
            shared_files(&self.tag).unwrap_or_default()
        );
    }
}

/// What a process has open, and the names of its threads.
type Worn = (Vec<String>, Vec<String>);

/// Names of files, in the state directory and in shared memory.
type Files = (
    std::collections::BTreeSet<String>,
    std::collections::BTreeSet<String>,
);

/// What happens when, in the order of time.
fn plan(random: &mut Random, window: Duration, has_disk: bool) -> Vec<(Duration, Event)> {
    let mut plan = Vec::new();
    let moment =
        |random: &mut Random| Duration::from_micros(random.below(window.as_micros() as u64));
    if random.once_in(2) {
        plan.push((moment(random), Event::KillClient));
    }
    if random.once_in(2) {
        let at = moment(random);
        plan.push((at, Event::StopClient));
        if random.once_in(2) {
            plan.push((at + Duration::from_millis(30), Event::ContinueClients));
        }
    }
    if random.once_in(4) {
        let at = moment(random);
        plan.push((at, Event::StopServer));
        plan.push((at + Duration::from_millis(20), Event::ContinueServer));
    }
    if has_disk && random.once_in(2) {
        plan.push((moment(random), Event::FillDisk));
    }
    plan.sort_by_key(|(at, _)| *at);
    plan
}

/// Clients that die one after the other, each replaced at once.
fn deaths(random: &mut Random, window: Duration) -> Vec<(Duration, Event)> {
    let count = 2 + random.below(4);
    let both = |number: u64| {
        let at = window.mul_f64(number as f64 / count as f64);
        [(at, Event::KillClient), (at, Event::Replenish)]
    };
    (0..count).flat_map(both).collect()
}

fn last_line(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().last().unwrap_or_default().to_owned()
}
