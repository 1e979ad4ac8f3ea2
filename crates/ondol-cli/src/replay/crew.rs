//! The instances, as the parent sees them.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::messages::{Said, Task};
use super::progress::Progress;
use super::tally::Tally;
use super::watch::{Step, Tended, Watch};

/// How often it is looked whether a signal has come.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long instances may take to stop once the replay was interrupted.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// Signals that ask the replay to end.
#[derive(Debug)]
pub(super) struct Interrupts {
    seen: Arc<AtomicBool>,
    ids: Vec<SigId>,
}

impl Interrupts {
    pub(super) fn catch() -> Result<Self> {
        let mut interrupts = Self {
            seen: Arc::default(),
            ids: Vec::new(),
        };
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let id = signal_hook::flag::register(signal, Arc::clone(&interrupts.seen));
            interrupts.ids.push(id.context("cannot catch signals")?);
        }
        Ok(interrupts)
    }

    /// Whether one has come since this was last asked.
    pub(super) fn take(&self) -> bool {
        self.seen.swap(false, Ordering::Relaxed)
    }

    /// Whether one has come that was not taken.
    pub(super) fn has_come(&self) -> bool {
        self.seen.load(Ordering::Relaxed)
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        self.ids.drain(..).for_each(|id| {
            signal_hook::low_level::unregister(id);
        });
    }
}

/// What became of the instances.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Of those that came to their end.
    pub(super) tallies: Vec<Tally>,
    /// Why the others did not.
    pub(super) failures: Vec<String>,
    pub(super) interrupted: bool,
    pub(super) seconds: f64,
}

#[derive(Debug)]
enum Event {
    Said(usize, Said),
    Ended(usize),
}

/// Child processes that replay; those that are left are killed when it is dropped.
#[derive(Debug)]
pub(super) struct Crew {
    members: Vec<Member>,
    events: Receiver<Event>,
    lockstep: bool,
    /// Whether instances need a turn for each request.
    paced: bool,
    /// Requests whose turn has come, in lockstep.
    turns: usize,
    requests: usize,
}

#[derive(Debug)]
struct Member {
    child: Child,
    /// None once it shall stop.
    turns: Option<ChildStdin>,
    is_ready: bool,
    has_ended: bool,
    requests: u64,
    /// Turns that it has got.
    given: u64,
    done: u64,
    report: Option<Tally>,
    failure: Option<String>,
}

impl Crew {
    /// Starts one process for each task. They wait for [`run`](Self::run).
    pub(super) fn start(tasks: &[Task], lockstep: bool, progress: &Progress) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let (sender, events) = channel();
        let mut crew = Self {
            members: Vec::with_capacity(tasks.len()),
            events,
            lockstep,
            paced: tasks.iter().any(|task| task.paced),
            turns: 0,
            requests: tasks.iter().map(|task| task.requests.len()).sum(),
        };
        for task in tasks {
            // From this thread, which lives as long as the replay: instances are killed when it ends.
            let child = Command::new(&program)
                .args(["replay", &format!("--{}", super::AS_INSTANCE)])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .with_context(|| format!("cannot start {}", program.display()))?;
            crew.members
                .push(Member::new(child, task.requests.len() as u64));
        }
        for (index, (member, task)) in crew.members.iter_mut().zip(tasks).enumerate() {
            let mut line = serde_json::to_vec(task)?;
            line.push(b'\n');
            // One that has died meanwhile is noticed when its output ends.
            let _ = member.tell(&line);
            member.listen(index, sender.clone(), progress.clone())?;
        }
        Ok(crew)
    }

    /// Lets the instances replay, until all have ended, and looks after the server meanwhile.
    pub(super) fn run(
        mut self,
        interrupts: &Interrupts,
        progress: &Progress,
        watch: &mut Watch<'_>,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let mut started: Option<Instant> = None;
        let mut stop_by: Option<Instant> = None;
        let mut kill = false;
        while self.members.iter().any(|member| !member.has_ended) {
            if interrupts.take() {
                kill |= outcome.interrupted;
                outcome.interrupted = true;
                stop_by = Some(Instant::now() + STOP_WITHIN);
                self.members
                    .iter_mut()
                    .for_each(|member| member.turns = None);
            }
            if kill || stop_by.is_some_and(|stop_by| stop_by <= Instant::now()) {
                self.kill();
            }
            if !outcome.interrupted && watch.tend(&self.steps()) == Tended::GivenUp {
                // Without a server nothing is left to be done.
                self.members
                    .iter_mut()
                    .for_each(|member| member.turns = None);
            }
            match self.events.recv_timeout(watch.look_again(LOOK_EVERY)) {
                Ok(event) => self.handle(event, progress),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let all_ready = self
                .members
                .iter()
                .all(|member| member.is_ready || member.has_ended);
            if all_ready && started.is_none() {
                started = Some(Instant::now());
                self.begin();
            }
            if started.is_some() && self.paced && !self.lockstep {
                let turns = watch.allowance().unwrap_or(u64::MAX);
                self.members
                    .iter_mut()
                    .for_each(|member| member.go_up_to(turns));
            }
        }
        outcome.seconds = started.map_or(0.0, |started| started.elapsed().as_secs_f64());
        for (index, member) in self.members.iter_mut().enumerate() {
            match (member.report.take(), member.failure.take()) {
                (Some(tally), _) => outcome.tallies.push(tally),
                (None, Some(failure)) => {
                    outcome.failures.push(format!(
                        "instance {index}: {failure}; its figures are missing"
                    ));
                }
                (None, None) => {}
            }
        }
        outcome
    }

    fn handle(&mut self, event: Event, progress: &Progress) {
        let index = match event {
            Event::Said(index, said) => {
                let member = &mut self.members[index];
                match said {
                    Said::Ready => member.is_ready = true,
                    Said::Done(done) => member.done = done,
                    Said::Damage(text) => progress.note(&format!("instance {index}: {text}")),
                    Said::Failed(text) => member.failure = Some(text),
                    Said::Report(tally) => {
                        member.done = tally.requests;
                        member.report = Some(*tally);
                    }
                }
                index
            }
            Event::Ended(index) => {
                self.members[index].end();
                index
            }
        };
        progress.set(self.done());
        self.pass_turn(index);
    }

    /// Requests that are done.
    fn done(&self) -> u64 {
        self.members.iter().map(|member| member.done).sum()
    }

    fn steps(&self) -> Vec<Step> {
        let step = |member: &Member| Step {
            done: member.done,
            has_ended: member.has_ended,
        };
        self.members.iter().map(step).collect()
    }

    fn begin(&mut self) {
        if self.lockstep {
            self.give_turn();
        } else if !self.paced {
            self.members.iter_mut().for_each(Member::go);
        }
    }

    /// In lockstep, the next request's turn comes once the one before is done or its instance gone.
    fn pass_turn(&mut self, from: usize) {
        if !self.lockstep || self.turns == 0 || (self.turns - 1) % self.members.len() != from {
            return;
        }
        let round = (self.turns - 1) / self.members.len();
        let member = &self.members[from];
        if member.has_ended || member.done > round as u64 {
            self.give_turn();
        }
    }

    /// Lets the instance of the next request go; those that are gone are passed over with their requests.
    fn give_turn(&mut self) {
        while self.turns < self.requests {
            let member = self.turns % self.members.len();
            self.turns += 1;
            if !self.members[member].has_ended {
                self.members[member].go();
                return;
            }
        }
    }

    fn kill(&mut self) {
        for member in &mut self.members {
            if !member.has_ended {
                let _ = member.child.kill();
            }
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.kill();
        for member in &mut self.members {
            let _ = member.child.wait();
        }
    }
}

impl Member {
    fn new(mut child: Child, requests: u64) -> Self {
        Self {
            requests,
            given: 0,
            turns: child.stdin.take(),
            child,
            is_ready: false,
            has_ended: false,
            done: 0,
            report: None,
            failure: None,
        }
    }

    fn tell(&mut self, line: &[u8]) -> std::io::Result<()> {
        match &mut self.turns {
            Some(turns) => turns.write_all(line),
            None => Ok(()),
        }
    }

    fn go(&mut self) {
        self.given += 1;
        let _ = self.tell(b"go\n");
    }

    /// Gives it turns until it has got so many.
    fn go_up_to(&mut self, turns: u64) {
        let missing = turns.min(self.requests).saturating_sub(self.given);
        self.given += missing;
        let lines = b"go\n".repeat(usize::try_from(missing).unwrap_or(0));
        let _ = self.tell(&lines);
    }

    /// Starts a thread that passes on what the instance says.
    fn listen(&mut self, index: usize, events: Sender<Event>, progress: Progress) -> Result<()> {
        let stdout = self.child.stdout.take().context("no output to read")?;
        let listen = move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                match serde_json::from_str(&line) {
                    Ok(said) => {
                        let _ = events.send(Event::Said(index, said));
                    }
                    // A plugin in the instance has printed something.
                    Err(_) => progress.note(&line),
                }
            }
            let _ = events.send(Event::Ended(index));
        };
        thread::Builder::new()
            .name("ondol-listen".to_owned())
            .spawn(listen)
            .context("cannot start a thread")?;
        Ok(())
    }

    fn end(&mut self) {
        // Whatever it was doing, it can say nothing more.
        self.turns = None;
        let status = self.child.wait();
        self.has_ended = true;
        if self.report.is_none() && self.failure.is_none() {
            let how = status.map_or_else(|error| error.to_string(), describe);
            self.failure = Some(format!(
                "process {} {how} before it had reported",
                self.child.id()
            ));
        }
    }
}

fn describe(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => {
            let name = signal_hook::low_level::signal_name(signal).unwrap_or("unknown");
            format!("was ended by signal {signal} ({name})")
        }
        None => format!("ended with {status}"),
    }
}
