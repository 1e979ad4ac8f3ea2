//! A server in a directory of its own, and commands that know of nothing else.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use std::{fs, thread};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long to wait for what must happen before the test is given up; far more than a busy machine takes.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(120);

/// A directory in which servers keep their state.
pub(crate) struct Place(TempDir);

/// A server; killed when dropped, if it still runs.
pub(crate) struct Server {
    child: Child,
    lines: Receiver<String>,
    log: Vec<String>,
}

/// Removes the files of a `shm:` device, whatever becomes of the test.
pub(crate) struct ShmFiles(String);

impl ShmFiles {
    pub(crate) fn new(test: &str) -> Self {
        Self(format!("ondol-commands-{test}-{}", std::process::id()))
    }

    /// The device, with this size.
    pub(crate) fn device(&self, size: &str) -> String {
        format!("shm:{}?size={size}", self.0)
    }

    pub(crate) fn path(&self) -> PathBuf {
        Path::new("/dev/shm").join(&self.0)
    }
}

impl Drop for ShmFiles {
    fn drop(&mut self) {
        let entries = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name();
            if name
                .to_string_lossy()
                .trim_start_matches('.')
                .starts_with(&self.0)
            {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// What a command said.
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.path().join("ondol")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.state_dir().join("ondol.sock")
    }

    /// A file of this place with these bytes.
    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    /// The command, in an environment in which this place is the default.
    pub(crate) fn ondol(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ondol"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ONDOL_") {
                command.env_remove(name);
            }
        }
        command
            .args(args)
            .env_remove("MARU_PLUGINS")
            // Servers of tests that run at the same time would want the same address.
            .env("ONDOL_HTTP", "off")
            .env("XDG_RUNTIME_DIR", self.path())
            .current_dir(self.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs a command.
    pub(crate) fn run(&self, args: &[&str]) -> Said {
        Said::of(self.ondol(args).output().unwrap())
    }

    /// Runs a command with this standard input.
    pub(crate) fn run_with(&self, args: &[&str], input: &[u8]) -> Said {
        let mut child = self
            .ondol(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // A command that refuses does not read on.
        let _ = stdin.write_all(input);
        drop(stdin);
        Said::of(child.wait_with_output().unwrap())
    }

    /// A command that succeeds; what it printed.
    pub(crate) fn text(&self, args: &[&str]) -> String {
        self.run(args).text()
    }

    /// A command that prints JSON.
    pub(crate) fn json(&self, args: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.text(args)).unwrap()
    }

    /// Starts a server with a small pool of memory without a name.
    pub(crate) fn serve(&self) -> Server {
        self.serve_with(&["--pool", "memfd:?size=16MiB"])
    }

    /// Starts a server with these flags and waits until it is ready.
    pub(crate) fn serve_with(&self, flags: &[&str]) -> Server {
        let mut command = self.ondol(&["serve"]);
        Server::start(command.args(flags))
    }
}

impl Said {
    pub(crate) fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: output.stdout,
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// What a command printed that succeeded and complained about nothing.
    #[track_caller]
    pub(crate) fn text(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (Some(0), ""));
        String::from_utf8(self.stdout).unwrap()
    }

    /// Checks that the command was refused with this code and a message that has all these parts.
    #[track_caller]
    pub(crate) fn refused(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        let mut lines = self.stderr.lines();
        assert!(
            lines.any(|line| line.starts_with("error: ")),
            "{}",
            self.stderr
        );
        for part in parts {
            assert!(self.stderr.contains(part), "{part:?} in {:?}", self.stderr);
        }
    }
}

impl Server {
    /// Starts a server and waits until it is ready.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut server = Self::spawn(command);
        server.wait_for(" ready ");
        server
    }

    /// Starts a server.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self {
            child,
            lines,
            log: Vec::new(),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The first line of its log from now on with this part.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, part: &str) -> String {
        loop {
            match self.lines.recv_timeout(WATCHDOG) {
                Ok(line) => {
                    self.log.push(line.clone());
                    if line.contains(part) {
                        return line;
                    }
                }
                Err(error) => panic!("no line with {part:?} ({error}): {:#?}", self.log),
            }
        }
    }

    /// The line that said that it is ready.
    pub(crate) fn ready_line(&self) -> &str {
        let ready = self.log.iter().find(|line| line.contains(" ready "));
        ready.unwrap()
    }

    /// What follows `name=` in the line that said that it is ready, without quotes.
    pub(crate) fn ready_with(&self, name: &str) -> String {
        let line = self.ready_line();
        let (_, rest) = line.split_once(&format!(" {name}=")).expect(line);
        match rest.strip_prefix('"') {
            Some(quoted) => quoted.split('"').next().unwrap().to_owned(),
            None => rest.split(' ').next().unwrap().to_owned(),
        }
    }

    /// Sends the signal and waits for the end.
    pub(crate) fn end(&mut self, signal: Signal) -> ExitStatus {
        let pid = Pid::from_raw(self.pid().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        self.child.wait().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
