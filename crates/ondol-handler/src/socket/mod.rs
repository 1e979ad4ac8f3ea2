//! The line to a server on the same host.

mod connection;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ondol_plugin::Key;
use ondol_protocol::wire::{Answer, Hello, RequestRef};
use ondol_protocol::{
    Access, ClientInfo, Commit, CommitOutcome, ControlError, ControlPlane, DeleteOutcome,
    EngineStats, Grant, GrantRequest, Hit, Listing, Pin, PinOutcome, RegionInfo, Retrieve,
    Retrieved, StaleReason,
};
use ondol_shm::{ForkGuard, RegionHandle, process_start_time};
use parking_lot::Mutex;

use connection::{Answered, Broken, Connection};

/// How a [`SocketPlane`] behaves.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SocketOptions {
    /// How long to wait for the server: to connect, to send, and for a whole answer.
    pub timeout: Duration,
    /// The most connections that are kept open while nobody uses them.
    pub idle_connections: usize,
    /// Users, besides this process's own and root, whose server is trusted with this process's objects.
    pub server_uids: Vec<u32>,
}

impl Default for SocketOptions {
    /// 10 s, 8 connections, and nobody else's server.
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            idle_connections: 8,
            server_uids: Vec::new(),
        }
    }
}

/// A client's line to a server through a Unix socket.
///
/// Each call has a connection to itself while it runs, from a small pool or a new one, so none waits for another's
/// I/O. All connections are one client to the server. A server that was started again is never joined silently:
/// calls fail until a new plane is connected.
#[derive(Debug)]
pub struct SocketPlane {
    path: PathBuf,
    options: SocketOptions,
    hello: Hello,
    info: ClientInfo,
    lease_table: OwnedFd,
    home: ForkGuard,
    idle: Mutex<Vec<Connection>>,
    /// Why this plane can not be used any more.
    over: OnceLock<ControlError>,
}

impl SocketPlane {
    /// Connects to the server whose socket is at `path`, as a new client.
    ///
    /// # Errors
    /// [`ControlError::Disconnected`] if there is no server, [`ControlError::Refused`] if it does not let this
    /// process in.
    pub fn connect(path: &Path, options: SocketOptions) -> Result<Arc<Self>, ControlError> {
        let mut hello = Hello {
            instance: [0; 16],
            start_time: process_start_time(std::process::id())
                .map_err(|error| ControlError::Failed(format!("/proc: {error}")))?,
            incarnation: 0,
        };
        getrandom::fill(&mut hello.instance)
            .map_err(|error| ControlError::Failed(format!("random bytes: {error}")))?;
        let Greeted {
            connection,
            info,
            lease_table,
        } = greet(path, &options, &hello)??;
        hello.incarnation = info.incarnation;
        Ok(Arc::new(Self {
            path: path.to_owned(),
            options,
            hello,
            info,
            lease_table,
            home: ForkGuard::new(),
            idle: Mutex::new(vec![connection]),
            over: OnceLock::new(),
        }))
    }

    /// Path of the server's socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn call(&self, request: RequestRef<'_>) -> Result<Answered, ControlError> {
        if !self.home.is_home() {
            return Err(ControlError::Refused(
                "this client belongs to the process that connected it; a forked child must connect itself"
                    .to_owned(),
            ));
        }
        if let Some(error) = self.over.get() {
            return Err(error.clone());
        }
        // A statement of its own: the lock is not held while the connection is used.
        let idle = self.idle.lock().pop();
        if let Some(mut connection) = idle {
            match connection.ask(&self.path, request) {
                Ok(result) => {
                    self.keep(connection);
                    return result;
                }
                Err(Broken {
                    was_closed: true, ..
                }) => self.idle.lock().clear(),
                Err(Broken { error, .. }) => return Err(error),
            }
        }
        let mut connection = self.join()?;
        match connection.ask(&self.path, request) {
            Ok(result) => {
                self.keep(connection);
                result
            }
            Err(Broken { error, .. }) => Err(error),
        }
    }

    /// A further connection of this client.
    fn join(&self) -> Result<Connection, ControlError> {
        let Greeted {
            connection, info, ..
        } = match greet(&self.path, &self.options, &self.hello)? {
            Ok(greeted) => greeted,
            Err(error @ ControlError::Disconnected { .. }) => return Err(self.end(error)),
            Err(error) => return Err(error),
        };
        if (info.incarnation, info.id) != (self.info.incarnation, self.info.id) {
            return Err(self.end(ControlError::Disconnected {
                reason: format!(
                    "{}: the server was started again and does not know this client; connect anew",
                    self.path.display()
                ),
                sent: false,
            }));
        }
        Ok(connection)
    }

    fn keep(&self, connection: Connection) {
        let mut idle = self.idle.lock();
        if idle.len() < self.options.idle_connections && self.over.get().is_none() {
            idle.push(connection);
        }
    }

    /// From now on every call fails like this.
    fn end(&self, error: ControlError) -> ControlError {
        let error = self.over.get_or_init(|| error).clone();
        self.idle.lock().clear();
        error
    }

    fn unexpected(&self, answer: &Answer) -> ControlError {
        ControlError::Protocol(format!(
            "{}: the server answered another question: {:?}",
            self.path.display(),
            answer.op()
        ))
    }

    /// An answer must have one element for each that was asked.
    fn paired<T>(&self, asked: usize, answers: Vec<T>) -> Result<Vec<T>, ControlError> {
        if answers.len() == asked {
            return Ok(answers);
        }
        Err(ControlError::Protocol(format!(
            "{}: {} answers came; expected {asked}",
            self.path.display(),
            answers.len()
        )))
    }
}

/// A connection on which hello was said, and what the server answered.
struct Greeted {
    connection: Connection,
    info: ClientInfo,
    lease_table: OwnedFd,
}

/// Connects and says hello. The inner error is the server's.
fn greet(
    path: &Path,
    options: &SocketOptions,
    hello: &Hello,
) -> Result<Result<Greeted, ControlError>, ControlError> {
    let mut connection = Connection::open(path, options)?;
    let answered = match connection.ask(path, RequestRef::Hello(hello)) {
        Ok(answered) => answered,
        // What the caller came to ask has not left.
        Err(Broken { error, .. }) => {
            return Err(match error {
                ControlError::TimedOut { waited_ms } => ControlError::Disconnected {
                    reason: format!(
                        "the server at {} did not answer a hello within {waited_ms} ms; it is stopped or overloaded",
                        path.display()
                    ),
                    sent: false,
                },
                ControlError::Disconnected { reason, .. } => ControlError::Disconnected {
                    reason,
                    sent: false,
                },
                error => error,
            });
        }
    };
    Ok(match answered {
        Ok((Answer::Hello(info), Some(lease_table))) => Ok(Greeted {
            connection,
            info,
            lease_table,
        }),
        Ok((answer, _)) => Err(ControlError::Protocol(format!(
            "{}: the server answered a hello with {:?}",
            path.display(),
            answer.op()
        ))),
        Err(error) => Err(error),
    })
}

impl ControlPlane for SocketPlane {
    fn client(&self) -> ClientInfo {
        self.info
    }

    fn lease_table(&self) -> Result<OwnedFd, ControlError> {
        self.lease_table
            .try_clone()
            .map_err(|error| ControlError::Failed(format!("lease table: {error}")))
    }

    fn regions(&self) -> Result<Vec<RegionInfo>, ControlError> {
        let mut all: Vec<RegionInfo> = Vec::new();
        loop {
            let after = all
                .last()
                .map_or(0, |region| region.handle.span.region_id.0);
            let (regions, more) = match self.call(RequestRef::Regions { after })?.0 {
                Answer::Regions { regions, more } => (regions, more),
                answer => return Err(self.unexpected(&answer)),
            };
            let ids = regions.iter().map(|region| region.handle.span.region_id.0);
            let ascending = std::iter::once(after)
                .chain(ids.clone())
                .zip(ids)
                .all(|(before, id)| before < id);
            if !ascending || (more && regions.is_empty()) {
                return Err(ControlError::Protocol(format!(
                    "{}: regions did not come in the order of their ids",
                    self.path.display()
                )));
            }
            all.extend(regions);
            if !more {
                return Ok(all);
            }
        }
    }

    fn open_backing(&self, region: &RegionHandle, access: Access) -> Result<OwnedFd, ControlError> {
        let request = RequestRef::OpenBacking {
            handle: region,
            access,
        };
        match self.call(request)? {
            (Answer::OpenBacking, Some(file)) => Ok(file),
            (answer, _) => Err(self.unexpected(&answer)),
        }
    }

    fn grant(&self, request: GrantRequest) -> Result<Vec<Grant>, ControlError> {
        match self.call(RequestRef::Grant(request))?.0 {
            Answer::Grant(grants)
                if (1..=u64::from(request.count)).contains(&(grants.len() as u64)) =>
            {
                Ok(grants)
            }
            Answer::Grant(grants) => Err(ControlError::Protocol(format!(
                "{}: {} pages came; expected 1 to {}",
                self.path.display(),
                grants.len(),
                request.count
            ))),
            answer => Err(self.unexpected(&answer)),
        }
    }

    fn return_pages(&self, pages: &[Grant]) -> Result<Vec<Result<(), StaleReason>>, ControlError> {
        match self.call(RequestRef::ReturnPages(pages))?.0 {
            Answer::ReturnPages(results) => self.paired(pages.len(), results),
            answer => Err(self.unexpected(&answer)),
        }
    }

    fn commit(&self, commits: &[Commit]) -> Result<Vec<CommitOutcome>, ControlError> {
        match self.call(RequestRef::Commit(commits))?.0 {
            Answer::Commit(outcomes) => self.paired(commits.len(), outcomes),
            answer => Err(self.unexpected(&answer)),
        }
    }

    fn retrieve(&self, request: &Retrieve) -> Result<Retrieved, ControlError> {
        match self.call(RequestRef::Retrieve(request))?.0 {
            Answer::Retrieve(Retrieved { hits, mismatches }) => Ok(Retrieved {
                hits: self.paired(request.keys.len(), hits)?,
                mismatches,
            }),
            answer => Err(self.unexpected(&answer)),
        }
    }

    fn locate(&self, keys: &[Key]) -> Result<Vec<Option<Hit>>, ControlError> {
        match self.call(RequestRef::Locate(keys))?.0 {
            Answer::Locate(hits) => self.paired(keys.len(), hits),
            answer => Err(self.unexpected(&answer)),
        }
    }

    fn pin(&self, pins: &[Pin]) -> Result<Vec<PinOutcome>, ControlError> {
        match self.call(RequestRef::Pin(pins))?.0 {
            Answer::Pin(outcomes) => self.paired(pins.len(), outcomes),
            answer => Err(self.unexpected(&answer)),
        }
    }

    fn unpin(&self, pins: &[Pin]) -> Result<Vec<PinOutcome>, ControlError> {
        match self.call(RequestRef::Unpin(pins))?.0 {
            Answer::Unpin(outcomes) => self.paired(pins.len(), outcomes),
            answer => Err(self.unexpected(&answer)),
        }
    }

    fn delete(&self, keys: &[Key]) -> Result<Vec<DeleteOutcome>, ControlError> {
        match self.call(RequestRef::Delete(keys))?.0 {
            Answer::Delete(outcomes) => self.paired(keys.len(), outcomes),
            answer => Err(self.unexpected(&answer)),
        }
    }

    fn list(&self, after: Option<&Key>, limit: u32) -> Result<Listing, ControlError> {
        match self.call(RequestRef::List { after, limit })?.0 {
            Answer::List(listing) => Ok(listing),
            answer => Err(self.unexpected(&answer)),
        }
    }

    fn stats(&self) -> Result<EngineStats, ControlError> {
        match self.call(RequestRef::Stats)?.0 {
            Answer::Stats(stats) => Ok(*stats),
            answer => Err(self.unexpected(&answer)),
        }
    }

    fn ping(&self) -> Result<(), ControlError> {
        match self.call(RequestRef::Ping)?.0 {
            Answer::Ping => Ok(()),
            answer => Err(self.unexpected(&answer)),
        }
    }

    fn leave(&self) -> Result<(), ControlError> {
        match self.call(RequestRef::Leave)?.0 {
            Answer::Leave => Ok(()),
            answer => Err(self.unexpected(&answer)),
        }
    }
}
