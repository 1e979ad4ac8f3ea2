//! A server that is a process of its own, so that it can be killed and started again.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use anyhow::{Context, Error, Result, bail};
use ondol_host::l2::AdapterSpec;
use ondol_memory::{DeviceEnv, DeviceUri, Leftover, find_leftover_dir, find_leftovers};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use tempfile::TempDir;

use super::args::{Args, PoolArg};
use crate::l2::json_of;

/// How long a server that is asked to end may take before it is killed.
const END_WITHIN: Duration = Duration::from_secs(10);

/// The server, its state directory and its pool. All are removed when this is dropped.
#[derive(Debug)]
pub(super) struct OwnServer {
    child: Option<Child>,
    pool: DeviceUri,
    policy: Option<String>,
    adapters: Vec<AdapterSpec>,
    dir: TempDir,
    has_served: bool,
}

impl OwnServer {
    /// Starts a server, which may not serve yet.
    pub(super) fn start(args: &Args) -> Result<Self> {
        let pool = outliving(args.pool.as_ref())?;
        let dir = tempfile::Builder::new()
            .prefix("ondol-replay-")
            .tempdir()
            .context("cannot make a directory for the server's state; TMPDIR says where")?;
        let mut server = Self {
            child: None,
            pool,
            policy: args.policy.clone(),
            adapters: args.l2_adapter.clone(),
            dir,
            has_served: false,
        };
        server.spawn()?;
        Ok(server)
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.path().join(ondol_handler::SOCKET_NAME)
    }

    /// Starts the process. To be called by a thread that lives as long as the replay: the server is killed when that
    /// ends.
    pub(super) fn spawn(&mut self) -> Result<()> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(&program);
        command
            .args(["replay", &format!("--{}", super::AS_SERVER)])
            .arg(self.dir.path())
            .arg(format!("--pool={}", self.pool))
            .args(self.policy.iter().map(|name| format!("--policy={name}")))
            .args(flags(&self.adapters))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            // A terminal's ctrl-C is for the replay, which ends its server last.
            .process_group(0);
        // What configures the servers of this user is not about this one.
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"ONDOL_") {
                command.env_remove(name);
            }
        }
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        self.child = Some(child);
        Ok(())
    }

    /// Notes that it serves.
    pub(super) fn serves(&mut self) {
        self.has_served = true;
    }

    /// Kills the process with SIGKILL.
    pub(super) fn kill(&mut self) -> io::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        match &mut self.child {
            Some(child) => child.try_wait(),
            None => Ok(None),
        }
    }

    /// Ends the process. One that has not served yet may be about to make its pool, and is asked to end so that it
    /// leaves nothing that nobody knows.
    fn end(&mut self) -> io::Result<()> {
        if !self.has_served
            && let Some(child) = &mut self.child
            && let Some(pid) = Pid::from_raw(child.id().cast_signed())
        {
            let deadline = Instant::now() + END_WITHIN;
            kill_process(pid, Signal::TERM)?;
            while child.try_wait()?.is_none() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(10));
            }
        }
        self.kill()
    }

    /// Removes the files of the pool, which outlive the server by design.
    fn remove_pool(&self) -> Result<()> {
        let mut found = find_leftovers(&DeviceEnv::default())?;
        if let DeviceUri::Dir { path, .. } = &self.pool {
            found.extend(find_leftover_dir(path)?);
        }
        let state = fs::canonicalize(self.dir.path())?;
        let is_ours = |left: &&Leftover| {
            let its = left.state.as_deref();
            its.is_some_and(|its| fs::canonicalize(its).is_ok_and(|its| its == state))
        };
        for left in found.iter().filter(is_ours) {
            left.remove()?;
        }
        Ok(())
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(%error, "the server of the replay could not be ended");
        }
        if let Err(error) = self.remove_pool() {
            tracing::warn!(%error, pool = %self.pool, "the pool's files are left behind; `ondol doctor --clean` removes them");
        }
    }
}

/// The pool as a device that outlives a process.
fn outliving(pool: Option<&PoolArg>) -> Result<DeviceUri> {
    let size = match pool {
        Some(PoolArg::Device(device @ DeviceUri::Memfd { .. })) => bail!(
            "--pool is {device}, which is gone with the server; --restarts needs a device that outlives a process, \
             such as shm:replay?size=2GiB"
        ),
        Some(PoolArg::Device(device)) => return Ok(device.clone()),
        Some(PoolArg::Size(bytes)) => format!("?size={bytes}"),
        None => String::new(),
    };
    Ok(format!("shm:ondol-replay-{}{size}", std::process::id()).parse()?)
}

fn flags(adapters: &[AdapterSpec]) -> impl Iterator<Item = String> {
    adapters
        .iter()
        .map(|spec| format!("--l2-adapter={}", json_of(spec)))
}

/// Makes this process the server: it ends with its parent, and serves.
pub(super) fn become_server(dir: &Path, pool: &PoolArg, args: &Args) -> Error {
    // Kept over the exec below.
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return Error::from(error).context("cannot follow the parent");
    }
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return Error::from(error).context("cannot find this program's own file"),
    };
    let pool = match pool {
        PoolArg::Size(bytes) => bytes.to_string(),
        PoolArg::Device(device) => device.to_string(),
    };
    let mut command = Command::new(program);
    command
        .args(["--log=error", "serve", "--http=off", "--pool", &pool])
        .arg("--state-dir")
        .arg(dir)
        .args(args.policy.iter().map(|name| format!("--policy={name}")))
        .args(flags(&args.l2_adapter));
    Error::from(command.exec()).context("cannot become a server")
}
