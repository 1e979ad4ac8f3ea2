use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use ondol_handler::{Handler, HandlerConfig, SocketOptions, SocketPlane};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::{Actor, SHM, WATCHDOG, bytes_below, files_below, shared_files};

/// Small, so that a log has several files.
const LOG_SEGMENT: &str = "--log-segment=256KiB";

/// A pool and a state directory that outlive the servers that use them; both go when this is dropped.
#[derive(Debug)]
pub struct Place {
    dir: TempDir,
    pool: String,
    mib: u64,
    tag: String,
}

/// `ondol serve` in a process of its own.
#[derive(Debug)]
pub struct ServerProcess {
    actor: Actor,
    socket: PathBuf,
}

impl Place {
    fn new(mib: u64, pool: impl FnOnce(&Path, &str) -> String) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("ondol-test-")
            .tempdir()
            .expect("a temporary directory");
        let tag = dir.path().file_name().expect("a name");
        let tag = tag.to_string_lossy().into_owned();
        let pool = pool(dir.path(), &tag);
        Self {
            dir,
            pool,
            mib,
            tag,
        }
    }

    /// A pool of so many MiB that is a file in `/dev/shm`.
    ///
    /// # Panics
    /// If there is no temporary directory.
    pub fn shm(mib: u64) -> Self {
        Self::new(mib, |_, tag| format!("shm:{tag}?"))
    }

    /// A pool of so many MiB in files of a directory.
    ///
    /// # Panics
    /// If there is no temporary directory.
    pub fn files(mib: u64) -> Self {
        Self::new(mib, |dir, _| {
            fs::create_dir(dir.join("pool")).expect("a new directory");
            format!("dir:{}?region=2MiB&", dir.join("pool").display())
        })
    }

    /// A pool of so many MiB of huge pages; nothing, with the reason printed, where there are not as many free.
    ///
    /// # Panics
    /// If there is no temporary directory.
    pub fn huge(mib: u64) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        let mount = mounts.lines().find_map(|line| {
            let mut words = line.split(' ').skip(1);
            let path = words.next()?.to_owned();
            (words.next() == Some("hugetlbfs")).then_some(path)
        });
        let free = fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
        let free = free.ok().and_then(|text| text.trim().parse::<u64>().ok());
        match (mount, free) {
            (Some(mount), Some(free)) if free >= mib / 2 => {
                Some(Self::new(mib, |_, tag| format!("hugetlb:{mount}/{tag}?")))
            }
            found => {
                println!("SKIPPED: {mib} MiB of huge pages are not to be had: {found:?}");
                None
            }
        }
    }

    /// The directory in which everything lies that is no shared memory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The servers' state directory.
    pub fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// The servers' socket.
    pub fn socket(&self) -> PathBuf {
        self.state_dir().join("ondol.sock")
    }

    /// The device, of so many MiB.
    pub fn device(&self, mib: u64) -> String {
        format!("{}size={mib}MiB", self.pool)
    }

    fn arguments(&self, device: &str, more: &[&str]) -> Vec<String> {
        let state = self.state_dir();
        let fixed = [
            "serve",
            "--pool",
            device,
            "--region-size=2MiB",
            &format!("--share-limit={}MiB", 2 * self.mib),
            "--http=off",
            "--state-dir",
            &state.to_string_lossy(),
        ]
        .map(str::to_owned);
        let is_set = more.iter().any(|flag| flag.starts_with("--log-segment"));
        let segment = (!is_set).then_some(LOG_SEGMENT);
        let more = segment.iter().chain(more).map(|more| (*more).to_owned());
        fixed.into_iter().chain(more).collect()
    }

    /// A server, as soon as it answers. `program` is the path of the executable `actor`.
    ///
    /// # Panics
    /// If it does not start.
    pub fn serve(&self, program: &str) -> ServerProcess {
        self.serve_with(program, &[])
    }

    /// A server with these flags as well, as soon as it answers.
    ///
    /// # Panics
    /// If it does not start.
    pub fn serve_with(&self, program: &str, more: &[&str]) -> ServerProcess {
        let arguments = self.arguments(&self.device(self.mib), more);
        ServerProcess::await_answer(program, &arguments, self.socket())
    }

    /// A server, as soon as its socket is there, or what it complains about if it ends before.
    ///
    /// # Errors
    /// The last line of what it said.
    ///
    /// # Panics
    /// If neither happens.
    pub fn try_serve(&self, program: &str) -> Result<ServerProcess, String> {
        let said = self.path().join("said");
        let complaints = fs::File::create(&said).expect("a file");
        let arguments = self.arguments(&self.device(self.mib), &[]);
        let words = arguments.iter().map(String::as_str);
        let mut actor = Actor::spawn_saying(program, words, complaints);
        let deadline = Instant::now() + WATCHDOG;
        loop {
            if actor.has_ended().is_some() {
                let said = fs::read_to_string(said).expect("what it said");
                return Err(said.lines().last().unwrap_or_default().to_owned());
            }
            if UnixStream::connect(self.socket()).is_ok() {
                let socket = self.socket();
                return Ok(ServerProcess { actor, socket });
            }
            assert!(Instant::now() < deadline, "the server did not start");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// A server in a PID namespace of its own, as soon as it answers; nothing where that is not permitted.
    ///
    /// # Panics
    /// If it does not start.
    pub fn serve_apart(&self, program: &str) -> Option<ServerProcess> {
        let arguments = self.arguments(&self.device(self.mib), &[]);
        let actor = Actor::spawn_apart(program, arguments.iter().map(String::as_str))?;
        let mut server = ServerProcess {
            actor,
            socket: self.socket(),
        };
        server.wait_until_it_answers();
        Some(server)
    }

    /// What a server complains about that does not start, with this device and these flags.
    ///
    /// # Panics
    /// If it starts.
    #[track_caller]
    pub fn refusal(&self, program: &str, device: &str, more: &[&str]) -> String {
        let arguments = self.arguments(device, more);
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        self.refusal_with(program, &arguments)
    }

    /// What a server complains about that does not start with these arguments alone.
    ///
    /// # Panics
    /// If it starts.
    #[track_caller]
    pub fn refusal_with(&self, program: &str, arguments: &[&str]) -> String {
        let output = Command::new(program)
            .args(arguments)
            .output()
            .expect("a process");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        let error = said.lines().rfind(|line| line.starts_with("error: "));
        error
            .unwrap_or_else(|| panic!("no reason: {said}"))
            .to_owned()
    }

    /// A handler of the server at this place.
    ///
    /// # Panics
    /// If it does not connect.
    pub fn handler(&self, config: HandlerConfig) -> Handler {
        handler(&self.socket(), config)
    }

    /// Every file that servers have left here and in shared memory, with `#` for each number.
    ///
    /// # Panics
    /// If they cannot be read.
    pub fn left(&self) -> BTreeSet<String> {
        let mut names = files_below(self.dir.path()).expect("a directory");
        let shared = shared_files(&self.tag).expect("shared memory");
        names.extend(
            shared
                .into_iter()
                .map(|name| name.replace(&self.tag, "POOL")),
        );
        names
    }

    /// Bytes of the files that servers have left in the state directory.
    ///
    /// # Panics
    /// If they cannot be read.
    pub fn state_bytes(&self) -> u64 {
        bytes_below(&self.state_dir()).expect("a directory")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for name in shared_files(&self.tag).unwrap_or_default() {
            let _ = fs::remove_file(Path::new(SHM).join(name));
        }
        if let Some(path) = self.pool.strip_prefix("hugetlb:") {
            for end in ["", ".owner"] {
                let _ = fs::remove_file(format!("{}{end}", path.trim_end_matches('?')));
            }
        }
    }
}

fn handler(socket: &Path, config: HandlerConfig) -> Handler {
    let socket = socket.to_owned();
    let connect = move || {
        let mut options = SocketOptions::default();
        options.timeout = Duration::from_secs(30);
        SocketPlane::connect(&socket, options)
    };
    Handler::embedded(connect, config).expect("a connected handler")
}

impl ServerProcess {
    /// A server with its state and a pool of so many MiB in `dir`, as soon as it answers. It finds what the last one
    /// has left there.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(program: &str, dir: &Path, mib: u64) -> Self {
        Self::start_with(program, dir, mib, &[])
    }

    /// A server with these flags as well.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_with(program: &str, dir: &Path, mib: u64, more: &[&str]) -> Self {
        let state = dir.join("state");
        fs::create_dir_all(dir.join("pool")).expect("a directory");
        let fixed = [
            "serve".to_owned(),
            format!(
                "--pool=dir:{}?region=2MiB&size={mib}MiB",
                dir.join("pool").display()
            ),
            "--region-size=2MiB".to_owned(),
            format!("--share-limit={}MiB", 2 * mib),
            "--http=off".to_owned(),
            LOG_SEGMENT.to_owned(),
            format!("--state-dir={}", state.display()),
        ];
        let more = more.iter().map(|more| (*more).to_owned());
        let arguments: Vec<_> = fixed.into_iter().chain(more).collect();
        Self::await_answer(program, &arguments, state.join("ondol.sock"))
    }

    fn await_answer(program: &str, arguments: &[String], socket: PathBuf) -> Self {
        let actor = Actor::spawn(program, arguments.iter().map(String::as_str), &[]);
        let mut server = Self { actor, socket };
        server.wait_until_it_answers();
        server
    }

    /// Waits until somebody is let in.
    ///
    /// # Panics
    /// If nobody is, or the server ends.
    fn wait_until_it_answers(&mut self) {
        let deadline = Instant::now() + WATCHDOG;
        loop {
            if let Ok(plane) = SocketPlane::connect(&self.socket, SocketOptions::default()) {
                let _ = ondol_protocol::ControlPlane::leave(&*plane);
                return;
            }
            if let Some(status) = self.actor.has_ended() {
                panic!("the server ended: {status}");
            }
            assert!(Instant::now() < deadline, "the server did not answer");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Path of the socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The process.
    pub fn actor(&mut self) -> &mut Actor {
        &mut self.actor
    }

    /// A handler of this server's.
    ///
    /// # Panics
    /// If it does not connect.
    pub fn handler(&self, config: HandlerConfig) -> Handler {
        handler(&self.socket, config)
    }

    /// Numbers of the process's descriptors and threads.
    ///
    /// # Panics
    /// If it is not there any more.
    pub fn descriptors_and_threads(&self) -> (usize, usize) {
        let count = |what: &str| {
            let path = format!("/proc/{}/{what}", self.actor.pid());
            fs::read_dir(path).expect("a process").count()
        };
        (count("fd"), count("task"))
    }

    /// Kills the server with SIGKILL.
    pub fn kill(self) {
        self.actor.kill();
    }

    /// Sends a signal and waits for the end.
    ///
    /// # Panics
    /// If it does not end.
    pub fn end(mut self, signal: Signal) -> ExitStatus {
        self.actor.signal(signal);
        self.actor.wait()
    }
}
