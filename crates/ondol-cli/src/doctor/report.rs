//! What was found, for people and for scripts.

use std::io::Write;
use std::path::PathBuf;

use ondol_memory::{Leftover, format_size};
use serde::Serialize;

use super::hold::Hold;
use crate::output::{Table, counted, stdout};

/// Everything that was looked at.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    /// The state directory.
    pub(super) state_dir: PathBuf,
    /// Who has it: `running`, `stopped` or `never`.
    pub(super) server: &'static str,
    /// That process; the last one, if it has stopped.
    pub(super) pid: Option<u32>,
    pub(super) socket: Option<Socket>,
    /// What is in the log.
    pub(super) log: Option<LogView>,
    /// Why the log cannot be read.
    pub(super) log_error: Option<String>,
    /// The pool's devices, as the log remembers them.
    pub(super) devices: Vec<DeviceView>,
    /// Clients that the log knows.
    pub(super) clients: Vec<ClientView>,
    /// Files of pools in shared memory, of this state directory and others.
    pub(super) leftovers: Vec<LeftoverView>,
    /// What was seen. Healthy if nothing of it needs attention.
    pub(super) findings: Vec<Finding>,
    /// What was removed.
    pub(super) removed: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct Socket {
    pub(super) path: PathBuf,
    /// Whether a dead server left it.
    pub(super) stale: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct LogView {
    pub(super) pool: String,
    /// Whether the server that wrote it was stopped and not killed.
    pub(super) clean: bool,
    pub(super) segments: u64,
    pub(super) bytes: u64,
    /// The end of what was recorded.
    pub(super) position: u64,
    /// Where the last checkpoint stands.
    pub(super) checkpoint: Option<u64>,
    /// Bytes of an unfinished write at the end.
    pub(super) torn_bytes: u64,
    pub(super) objects: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct DeviceView {
    pub(super) device: String,
    /// `there`, `gone` or what is different.
    pub(super) state: String,
    pub(super) volatile: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct ClientView {
    pub(super) id: u64,
    pub(super) pid: u32,
    /// `alive`, `dead` or `unknown`.
    pub(super) state: &'static str,
    pub(super) granted_pages: u64,
    pub(super) pins: u64,
    /// Whether its lease book is there.
    pub(super) book: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct LeftoverView {
    pub(super) device: String,
    pub(super) bytes: u64,
    /// The process that used it last.
    pub(super) pid: Option<u32>,
    pub(super) state_dir: Option<PathBuf>,
    /// `living`, `warm` or `orphan`.
    pub(super) state: &'static str,
}

/// Something worth saying.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    pub(super) what: String,
    /// What to do about it.
    pub(super) remedy: String,
    /// Whether somebody has to do that; the next start of the server sees to the rest.
    pub(super) needs_attention: bool,
    #[serde(skip)]
    pub(super) cure: Option<Cure>,
}

/// What `--clean` can do about something.
#[derive(Debug)]
pub(super) enum Cure {
    /// Remove a file of the state directory.
    File(PathBuf),
    /// Remove the directory of a replay, which is held until then.
    Replay(PathBuf, Hold),
    /// Remove the files of a pool.
    Leftover(Box<Leftover>),
}

impl Report {
    pub(super) fn needs_attention(&self) -> bool {
        self.findings.iter().any(|found| found.needs_attention)
    }

    /// Says that somebody has to do something.
    pub(super) fn attend(&mut self, what: impl Into<String>, remedy: impl Into<String>) {
        self.find(what, remedy, true, None);
    }

    /// Says something.
    pub(super) fn find(
        &mut self,
        what: impl Into<String>,
        remedy: impl Into<String>,
        needs_attention: bool,
        cure: Option<Cure>,
    ) {
        self.findings.push(Finding {
            what: what.into(),
            remedy: remedy.into(),
            needs_attention,
            cure,
        });
    }

    /// Prints it for people.
    pub(super) fn print(&self) -> anyhow::Result<()> {
        let mut out = stdout();
        let state_dir = self.state_dir.display();
        match (self.server, self.pid) {
            ("running", Some(pid)) => writeln!(out, "server   process {pid} runs on {state_dir}")?,
            ("running", None) => writeln!(out, "server   a process runs on {state_dir}")?,
            ("stopped", Some(pid)) => {
                writeln!(
                    out,
                    "server   none runs on {state_dir}; the last was process {pid}"
                )?;
            }
            ("stopped", None) => writeln!(out, "server   none runs on {state_dir}")?,
            _ => writeln!(out, "server   none has run on {state_dir}")?,
        }
        if let Some(socket) = &self.socket {
            let stale = if socket.stale {
                ", left by a dead server"
            } else {
                ""
            };
            writeln!(out, "socket   {}{stale}", socket.path.display())?;
        }
        match (&self.log, &self.log_error) {
            (Some(log), _) => log.print(&mut out)?,
            (None, Some(_)) => writeln!(out, "log      cannot be read, see below")?,
            (None, None) => writeln!(out, "log      none")?,
        }
        for device in &self.devices {
            writeln!(out, "device   {}: {}", device.device, device.state)?;
        }
        if !self.clients.is_empty() {
            let mut table = Table::new([
                ">CLIENT",
                ">PID",
                "STATE",
                ">GRANTED",
                ">PINS",
                "LEASE BOOK",
            ]);
            for client in &self.clients {
                table.row([
                    client.id.to_string(),
                    client.pid.to_string(),
                    client.state.to_owned(),
                    client.granted_pages.to_string(),
                    client.pins.to_string(),
                    if client.book { "there" } else { "none" }.to_owned(),
                ]);
            }
            writeln!(out)?;
            table.write(&mut out, "")?;
        }
        if !self.leftovers.is_empty() {
            let mut table = Table::new(["DEVICE", ">SIZE", "STATE", ">PID", "STATE DIRECTORY"]);
            for left in &self.leftovers {
                let dir = left.state_dir.as_ref();
                table.row([
                    left.device.clone(),
                    format_size(left.bytes),
                    left.state.to_owned(),
                    left.pid
                        .map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
                    dir.map_or_else(|| "-".to_owned(), |dir| dir.display().to_string()),
                ]);
            }
            writeln!(out)?;
            table.write(&mut out, "")?;
        }
        for (heading, attention) in [("note", false), ("ATTENTION", true)] {
            let some = |found: &&Finding| found.needs_attention == attention;
            for found in self.findings.iter().filter(some) {
                writeln!(out, "\n{heading}: {}\n  {}", found.what, found.remedy)?;
            }
        }
        if !self.removed.is_empty() {
            writeln!(out)?;
        }
        for removed in &self.removed {
            writeln!(out, "removed {removed}")?;
        }
        let open = self.findings.iter().filter(|found| found.needs_attention);
        match open.count() as u64 {
            0 => writeln!(out, "\nhealthy")?,
            1 => writeln!(out, "\n1 finding needs attention")?,
            count => writeln!(out, "\n{} need attention", counted(count, "finding"))?,
        }
        out.flush()?;
        Ok(())
    }
}

impl LogView {
    fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        let end = match self.clean {
            true => "closed cleanly",
            false => "not closed: its server runs or was killed",
        };
        let checkpoint = match self.checkpoint {
            Some(position) => format!(", checkpoint at {position}"),
            None => String::new(),
        };
        writeln!(
            out,
            "log      pool {}, {} in {}{checkpoint}, position {}, {}; {end}",
            self.pool,
            format_size(self.bytes),
            counted(self.segments, "segment"),
            self.position,
            counted(self.objects, "object"),
        )
    }
}
