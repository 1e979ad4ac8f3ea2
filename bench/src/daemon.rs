//! Programs that serve the benchmark and end with it, however it ends.

use std::ffi::{OsStr, OsString};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use anyhow::{Context, Error, Result, bail};
use rustix::process::{Signal, set_parent_process_death_signal};

/// The hidden command that becomes another program and ends with its parent.
pub(crate) const FOLLOW: &str = "follow";

/// The hidden command that sends back what it gets.
pub(crate) const ECHO: &str = "echo";

/// How long a program may take until its socket answers.
const START_WITHIN: Duration = Duration::from_secs(60);

/// A process that is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Child,
    said: PathBuf,
}

impl Daemon {
    /// Starts `program`. To be called by a thread that lives as long as it: the process is killed when that ends. What it says
    /// goes to the file `said`.
    pub(crate) fn start(
        program: &Path,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        said: PathBuf,
    ) -> Result<Self> {
        let complaints = fs::File::create(&said)?;
        let mut command = Command::new(own_program()?);
        command
            .arg(FOLLOW)
            .arg(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(complaints.try_clone()?)
            .stderr(complaints);
        // What configures the servers of this user is not about this one.
        for (name, _) in env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"ONDOL_") {
                command.env_remove(name);
            }
        }
        let child = command
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        Ok(Self { child, said })
    }

    /// Waits until something answers at `socket`.
    pub(crate) fn wait_for(&mut self, socket: &Path) -> Result<()> {
        let deadline = Instant::now() + START_WITHIN;
        while UnixStream::connect(socket).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended with {status}: {}", self.last_words());
            }
            if Instant::now() > deadline {
                bail!(
                    "nothing answers at {} after {} s: {}",
                    socket.display(),
                    START_WITHIN.as_secs(),
                    self.last_words()
                );
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn last_words(&self) -> String {
        let said = fs::read(&self.said).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        said.lines().last().unwrap_or("it said nothing").to_owned()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes this process `program`, which is killed when its parent ends.
pub(crate) fn follow(program: &OsStr, arguments: &[OsString]) -> Error {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return Error::from(error).context("cannot follow the parent");
    }
    let error = Command::new(program).args(arguments).exec();
    Error::from(error).context(format!("cannot become {}", Path::new(program).display()))
}

/// The file of this program.
pub(crate) fn own_program() -> Result<PathBuf> {
    env::current_exe().context("find this program's own file")
}

/// The first of these programs that is in the path.
pub(crate) fn find_program(names: &[&str]) -> Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let candidates = || {
        names
            .iter()
            .flat_map(|name| env::split_paths(&path).map(move |dir| dir.join(name)))
    };
    candidates()
        .find(|file| file.is_file())
        .with_context(|| format!("no {} in the path", names.join(" and no ")))
}
