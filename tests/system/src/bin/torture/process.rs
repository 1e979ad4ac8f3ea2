//! A child process: started, watched, stopped, killed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};

/// Threads that a server may have for a while.
const PASSING_THREADS: usize = 16;

/// A child, killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    /// Whether a SIGKILL was sent from here.
    pub(crate) was_killed: bool,
    /// Whether it was stopped from here and not continued.
    pub(crate) is_stopped: bool,
    ended: Option<ExitStatus>,
}

impl Process {
    /// This program again, with these arguments; what it complains about goes to the end of `log`.
    ///
    /// # Errors
    /// If it does not start.
    pub(crate) fn start(
        arguments: &[String],
        failpoints: Option<&str>,
        log: &Path,
    ) -> anyhow::Result<Self> {
        let log = OpenOptions::new().create(true).append(true).open(log)?;
        let complaints = log.try_clone()?;
        Self::start_with(arguments, failpoints, &log, complaints)
    }

    fn start_with(
        arguments: &[String],
        failpoints: Option<&str>,
        mut log: &File,
        complaints: File,
    ) -> anyhow::Result<Self> {
        let armed = failpoints.unwrap_or("");
        writeln!(log, "--- {} [{armed}]", arguments.join(" "))?;
        let mut command = Command::new(std::env::current_exe()?);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ONDOL_") {
                command.env_remove(name);
            }
        }
        let mut child = command
            .args(arguments)
            .env(crate::FAILPOINTS, armed)
            .env("RUST_BACKTRACE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(complaints)
            .spawn()
            .context("cannot start a process")?;
        let stdout = child.stdout.take().context("no output")?;
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let stdin = child.stdin.take();
        Ok(Self {
            child,
            stdin,
            lines,
            was_killed: false,
            is_stopped: false,
            ended: None,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a line. One that has just died does not hear it; its end is seen elsewhere.
    pub(crate) fn tell(&mut self, line: &str) {
        if let Some(stdin) = &mut self.stdin {
            let _ = writeln!(stdin, "{line}");
        }
    }

    /// The next line, if there is one.
    pub(crate) fn line(&self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    /// The next line of one that has ended.
    pub(crate) fn last_line(&self) -> Option<String> {
        self.lines.recv().ok()
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        Ok(self.ended)
    }

    /// Whether it ended by SIGKILL, though none was sent from here: it has killed itself at a failpoint.
    pub(crate) fn has_killed_itself(&self) -> bool {
        let killed = |status: &ExitStatus| status.signal() == Some(Signal::KILL.as_raw());
        !self.was_killed && self.ended.as_ref().is_some_and(killed)
    }

    /// Sends a signal; to one that is not there any more, none.
    pub(crate) fn signal(&mut self, signal: Signal) {
        if self.ended.is_some() {
            return;
        }
        self.was_killed |= signal == Signal::KILL;
        match signal {
            Signal::STOP => self.is_stopped = true,
            Signal::CONT => self.is_stopped = false,
            _ => {}
        }
        if let Some(pid) = Pid::from_raw(self.pid().cast_signed()) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Whether some thread of it is stopped, by whomever.
    pub(crate) fn seems_stopped(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        stat.rsplit_once(") ")
            .is_some_and(|(_, state)| state.starts_with('T'))
    }

    /// Kills it, if it still runs, and waits for its end.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn kill(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.ended()? {
            return Ok(status);
        }
        self.signal(Signal::KILL);
        let status = self.child.wait()?;
        self.ended = Some(status);
        Ok(status)
    }

    /// What it has open, and the names of its threads, in the order of the alphabet. Left out are threads of the
    /// kernel's, and those that a backend's lane or the tier begin when they need them; these are few, however long it runs.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn descriptors_and_threads(&self) -> io::Result<(Vec<String>, Vec<String>)> {
        let list = |what: &str| fs::read_dir(format!("/proc/{}/{what}", self.pid()));
        let mut open = Vec::new();
        for descriptor in list("fd")? {
            // One that has just been closed leads nowhere.
            let target = fs::read_link(descriptor?.path()).unwrap_or_default();
            let target = target.to_string_lossy().into_owned();
            // Each thread that moves bytes opens one when it first needs it.
            if !target.is_empty() && !target.contains("[io_uring]") {
                open.push(target.replace(|letter: char| letter.is_ascii_hexdigit(), ""));
            }
        }
        let mut threads = Vec::new();
        for task in list("task")? {
            let name = fs::read_to_string(task?.path().join("comm")).unwrap_or_default();
            threads.push(name.trim().to_owned());
        }
        let passing = |name: &str| {
            name.is_empty()
                || name.starts_with("iou-")
                || name.starts_with("l2-")
                || name == "ondol-l2-decode"
        };
        let asking = threads.iter().filter(|name| passing(name)).count();
        if asking > PASSING_THREADS {
            let what = format!("{asking} threads that are to be there for a while: {threads:?}");
            return Err(io::Error::other(what));
        }
        threads.retain(|name| !passing(name));
        open.sort();
        threads.sort();
        Ok((open, threads))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
