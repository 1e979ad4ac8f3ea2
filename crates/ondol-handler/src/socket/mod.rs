//! The line to a server on the same host.

mod connection;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ondol_plugin::Key;
use ondol_protocol::wire::{Answer, Hello, RequestRef};
use ondol_protocol::{
    Access, ClientInfo, Commit, CommitOutcomes, ControlError, ControlPlane, DeleteOutcome,
    EngineStats, Grant, GrantRequest, Hit, IndexFiles, Listing, Pin, PinOutcome, Prefetch,
    Prefetched, RegionInfo, Retrieve, Retrieved, StaleReason,
};
use ondol_shm::{ForkGuard, RegionHandle, process_start_time};
use parking_lot::Mutex;

use crate::backoff::Backoff;
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
/// I/O. All connections are one client to the server.
///
/// The line outlives its server. While there is none, calls fail with [`ControlError::Disconnected`]; it is looked for
/// again by the calls that come, after a wait that grows from 10 ms to 1 s, and in between they fail at once. A server
/// that was started again and knows this client takes it up as the client that it was: only the
/// [incarnation](ClientInfo::incarnation) changes. One that does not ends the line: from then on every call fails with
/// [`ControlError::UnknownClient`].
#[derive(Debug)]
pub struct SocketPlane {
    path: PathBuf,
    options: SocketOptions,
    /// As it was said first, as a new client.
    hello: Hello,
    /// As it was answered.
    info: ClientInfo,
    lease_table: OwnedFd,
    home: ForkGuard,
    /// Of the server that this client is known to be with; changed only under the lock of `idle`.
    incarnation: AtomicU64,
    /// Connections that nobody uses, all under the current incarnation.
    idle: Mutex<Vec<Connection>>,
    backoff: Backoff,
    /// Why this plane can not be used any more.
    over: OnceLock<ControlError>,
}

/// How often one call tries to join a server that is started again and again meanwhile.
const JOINS: usize = 4;

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
        } = greet(path, &options, &hello, None)?;
        let seed = hello.instance.first_chunk().copied().unwrap_or_default();
        Ok(Arc::new(Self {
            path: path.to_owned(),
            options,
            hello,
            info,
            lease_table,
            home: ForkGuard::new(),
            incarnation: AtomicU64::new(info.incarnation),
            idle: Mutex::new(vec![connection]),
            backoff: Backoff::new(u64::from_ne_bytes(seed)),
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
            match connection.ask(&self.path, request, None) {
                Ok(result) => return self.finish(connection, result),
                Err(Broken {
                    was_closed: true, ..
                }) => {
                    // The others of that server's are of no more use.
                    let gone = connection.incarnation;
                    self.idle
                        .lock()
                        .retain(|connection| connection.incarnation != gone);
                }
                Err(Broken { error, .. }) => return Err(error),
            }
        }
        let mut connection = self.join()?;
        match connection.ask(&self.path, request, None) {
            Ok(result) => self.finish(connection, result),
            Err(Broken { error, .. }) => Err(error),
        }
    }

    fn finish(
        &self,
        connection: Connection,
        result: Result<Answered, ControlError>,
    ) -> Result<Answered, ControlError> {
        if let Err(error @ ControlError::UnknownClient(_)) = result {
            return Err(self.end(error));
        }
        self.keep(connection);
        result
    }

    /// A further connection of this client, to the server that is there now.
    fn join(&self) -> Result<Connection, ControlError> {
        for _ in 0..JOINS {
            let attempt = self.backoff.attempt(Instant::now())?;
            let known = self.incarnation.load(Ordering::Acquire);
            let hello = Hello {
                incarnation: known,
                ..self.hello
            };
            let table = Some(self.lease_table.as_fd());
            match greet(&self.path, &self.options, &hello, table) {
                Ok(greeted) => {
                    attempt.succeeded();
                    if let Some(connection) = self.admit(known, greeted)? {
                        return Ok(connection);
                    }
                }
                Err(ControlError::Disconnected { reason, .. }) => {
                    attempt.failed(Instant::now(), &reason);
                    return Err(ControlError::Disconnected {
                        reason,
                        sent: false,
                    });
                }
                Err(error @ ControlError::UnknownClient(_)) => {
                    attempt.succeeded();
                    if self.incarnation.load(Ordering::Acquire) == known {
                        return Err(self.end(error));
                    }
                    // It was asked for a server before the one that another thread has found meanwhile.
                }
                Err(error) => {
                    attempt.succeeded();
                    return Err(error);
                }
            }
        }
        Err(ControlError::Disconnected {
            reason: format!(
                "the server at {} was started again {JOINS} times while this client joined it",
                self.path.display()
            ),
            sent: false,
        })
    }

    /// The connection, if it is to the server that this client is with now. One that was asked as the client `known`
    /// to a server and is answered by another has taken this client to that one.
    fn admit(&self, known: u64, greeted: Greeted) -> Result<Option<Connection>, ControlError> {
        let Greeted {
            connection, info, ..
        } = greeted;
        if info.id != self.info.id {
            return Err(self.end(ControlError::UnknownClient(format!(
                "the server at {} took client {} for client {}",
                self.path.display(),
                self.info.id,
                info.id
            ))));
        }
        let found = info.incarnation;
        let mut idle = self.idle.lock();
        let current = self.incarnation.load(Ordering::Acquire);
        if found == current {
            return Ok(Some(connection));
        }
        if current != known {
            // Another thread was taken further meanwhile; which of the two servers is the later one is asked again.
            return Ok(None);
        }
        self.incarnation.store(found, Ordering::Release);
        idle.retain(|connection| connection.incarnation == found);
        drop(idle);
        tracing::info!(
            socket = %self.path.display(),
            client = %self.info.id,
            "the server was started again and knows this client, which goes on as it was"
        );
        Ok(Some(connection))
    }

    fn keep(&self, connection: Connection) {
        let mut idle = self.idle.lock();
        if idle.len() < self.options.idle_connections
            && connection.incarnation == self.incarnation.load(Ordering::Acquire)
            && self.over.get().is_none()
        {
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
    fn paired<T, A: AsRef<[T]>>(&self, asked: usize, answers: A) -> Result<A, ControlError> {
        if answers.as_ref().len() == asked {
            return Ok(answers);
        }
        Err(ControlError::Protocol(format!(
            "{}: {} answers came; expected {asked}",
            self.path.display(),
            answers.as_ref().len()
        )))
    }
}

/// A connection on which hello was said, and what the server answered.
#[derive(Debug)]
struct Greeted {
    connection: Connection,
    info: ClientInfo,
    lease_table: OwnedFd,
}

/// Says hello on a new connection. A client that was there before shows its lease table, so that a server that was
/// started again can take it up.
fn greet(
    path: &Path,
    options: &SocketOptions,
    hello: &Hello,
    lease_table: Option<BorrowedFd<'_>>,
) -> Result<Greeted, ControlError> {
    let mut connection = Connection::open(path, options)?;
    let answered = match connection.ask(path, RequestRef::Hello(hello), lease_table) {
        Ok(answered) => answered?,
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
    ondol_catalog::failpoint!("client.hello.answered");
    let (answer, fds) = answered;
    match (answer, fds.into_iter().next()) {
        (Answer::Hello(info), Some(lease_table)) => {
            connection.incarnation = info.incarnation;
            Ok(Greeted {
                connection,
                info,
                lease_table,
            })
        }
        (answer, _) => Err(ControlError::Protocol(format!(
            "{}: the server answered a hello with {:?}",
            path.display(),
            answer.op()
        ))),
    }
}

impl ControlPlane for SocketPlane {
    fn client(&self) -> ClientInfo {
        ClientInfo {
            incarnation: self.incarnation.load(Ordering::Acquire),
            ..self.info
        }
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
        let (answer, fds) = self.call(request)?;
        match (answer, fds.into_iter().next()) {
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

    fn commit(&self, commits: &[Commit]) -> Result<CommitOutcomes, ControlError> {
        match self.call(RequestRef::Commit(commits))?.0 {
            Answer::Commit(outcomes) => self.paired(commits.len(), outcomes),
            answer => Err(self.unexpected(&answer)),
        }
    }

    fn retrieve(&self, request: &Retrieve) -> Result<Retrieved, ControlError> {
        match self.call(RequestRef::Retrieve(request))?.0 {
            Answer::Retrieve(answer) => Ok(Retrieved {
                hits: self.paired(request.keys.len(), answer.hits)?,
                ..answer
            }),
            answer => Err(self.unexpected(&answer)),
        }
    }

    fn prefetch(&self, request: &Prefetch) -> Result<Prefetched, ControlError> {
        match self.call(RequestRef::Prefetch(request))?.0 {
            Answer::Prefetch(answer) => Ok(Prefetched {
                found: self.paired(request.keys.len(), answer.found)?,
                ..answer
            }),
            answer => Err(self.unexpected(&answer)),
        }
    }

    /// Half of the time that an answer may take.
    fn longest_wait(&self) -> Duration {
        self.options.timeout / 2
    }

    fn index(&self) -> Result<Option<IndexFiles>, ControlError> {
        let (answer, fds) = self.call(RequestRef::Index)?;
        match (answer, <[OwnedFd; 2]>::try_from(fds)) {
            (Answer::Index, Ok([index, slots])) => Ok(Some(IndexFiles { index, slots })),
            (Answer::NoIndex, _) => Ok(None),
            (answer, _) => Err(self.unexpected(&answer)),
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
            Answer::Leave => {
                // Little is left to be said, and the server's connections are few.
                self.idle.lock().clear();
                Ok(())
            }
            answer => Err(self.unexpected(&answer)),
        }
    }

    fn place(&self) -> Option<&Path> {
        Some(&self.path)
    }

    fn look_again(&self) {
        self.backoff.hasten(Instant::now());
    }
}
