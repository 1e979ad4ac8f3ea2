use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::{fs, thread};

use rustix::process::{Pid, Signal, kill_process};

use crate::WATCHDOG;

/// The executable `actor` in a process of its own, which does what it is told line by line; see its help.
#[derive(Debug)]
pub struct Actor {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Actor {
    /// Starts `program`, the path of the executable `actor`, in a role.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn spawn<'a>(
        program: &str,
        arguments: impl IntoIterator<Item = &'a str>,
        variables: &[(&str, &str)],
    ) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).envs(variables.iter().copied());
        Self::start(&mut command)
    }

    /// The same, with what it complains about written to a file.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn spawn_saying<'a>(
        program: &str,
        arguments: impl IntoIterator<Item = &'a str>,
        complaints: File,
    ) -> Self {
        Self::start(Command::new(program).args(arguments).stderr(complaints))
    }

    fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the actor starts");
        let stdout = child.stdout.take().expect("its output");
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let stdin = child.stdin.take();
        Self {
            child,
            stdin,
            lines,
        }
    }

    /// The same in a PID namespace of its own, where nobody outside is seen; nothing, with the reason printed, where
    /// that is not permitted. [`kill`](Self::kill) ends it all the same.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn spawn_apart<'a>(
        program: &'a str,
        arguments: impl IntoIterator<Item = &'a str>,
    ) -> Option<Self> {
        let apart = ["--pid", "--fork", "--kill-child", "--"];
        let tried = Command::new("unshare").args(apart).arg("true").output();
        match tried {
            Ok(output) if output.status.success() => {}
            tried => {
                println!("SKIPPED: no PID namespace can be made here: {tried:?}");
                return None;
            }
        }
        let arguments = apart.into_iter().chain([program]).chain(arguments);
        Some(Self::spawn("unshare", arguments, &[]))
    }

    /// A client of the server at `socket`, connected.
    ///
    /// # Panics
    /// If it does not connect.
    pub fn client(program: &str, socket: &Path) -> Self {
        Self::client_with(program, socket, &[], &[])
    }

    /// A client with further arguments and variables, connected.
    ///
    /// # Panics
    /// If it does not connect.
    pub fn client_with(
        program: &str,
        socket: &Path,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let socket = socket.to_str().expect("a path in UTF-8");
        let arguments = ["client", socket]
            .into_iter()
            .chain(arguments.iter().copied());
        let actor = Self::spawn(program, arguments, variables);
        assert_eq!(actor.line(), "ready");
        actor
    }

    /// The process's number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives an order without waiting for the answer.
    ///
    /// # Panics
    /// If the actor does not listen any more.
    pub fn tell(&mut self, order: &str) {
        let stdin = self.stdin.as_mut().expect("an open input");
        writeln!(stdin, "{order}").unwrap_or_else(|error| panic!("{order}: {error}"));
    }

    /// The next line of the actor's.
    ///
    /// # Panics
    /// If none comes.
    pub fn line(&self) -> String {
        let line = self.lines.recv_timeout(WATCHDOG);
        line.unwrap_or_else(|error| panic!("process {} gave no answer: {error}", self.pid()))
    }

    /// Gives an order; the answer, `ok …` or `err …`.
    ///
    /// # Panics
    /// If none comes.
    pub fn ask(&mut self, order: &str) -> String {
        self.tell(order);
        self.line()
    }

    /// Gives an order that must succeed; what is behind `ok`.
    ///
    /// # Panics
    /// If it fails.
    pub fn ok(&mut self, order: &str) -> String {
        let answer = self.ask(order);
        match answer.strip_prefix("ok") {
            Some(rest) => rest.trim().to_owned(),
            None => panic!("{order}: {answer}"),
        }
    }

    /// Gives an order that must fail; what is behind `err`.
    ///
    /// # Panics
    /// If it succeeds.
    pub fn err(&mut self, order: &str) -> String {
        let answer = self.ask(order);
        match answer.strip_prefix("err") {
            Some(rest) => rest.trim().to_owned(),
            None => panic!("{order}: {answer}"),
        }
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// If the process is not there any more.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid().cast_signed()).expect("a process id");
        kill_process(pid, signal).expect("a signal");
    }

    /// Stops the process, all of its threads, until [`thaw`](Self::thaw).
    ///
    /// # Panics
    /// If it does not stop.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.pid());
        crate::eventually("all threads of a stopped process are stopped", || {
            let tasks = fs::read_dir(&tasks).expect("a process");
            tasks.flatten().all(|task| {
                let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                stat.rsplit_once(") ")
                    .is_none_or(|(_, state)| state.starts_with('T'))
            })
        });
    }

    /// Lets a stopped process go on.
    ///
    /// # Panics
    /// If it is not there any more.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills the process with SIGKILL and waits for its end.
    ///
    /// # Panics
    /// If that fails.
    pub fn kill(mut self) {
        self.child.kill().expect("a signal");
        self.child.wait().expect("its end");
    }

    /// Closes the actor's input, whereupon it ends, and waits for its end.
    ///
    /// # Panics
    /// If it does not end.
    pub fn finish(mut self) -> ExitStatus {
        self.stdin = None;
        self.wait()
    }

    /// How the process ended, if it has.
    ///
    /// # Panics
    /// If that cannot be told.
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child")
    }

    /// Waits for the actor's end.
    ///
    /// # Panics
    /// If it does not end.
    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        crate::eventually("the end of a process", || {
            status = self.child.try_wait().expect("a child");
            status.is_some()
        });
        status.expect("seen just now")
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
