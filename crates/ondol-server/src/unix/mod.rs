//! The door for Ondol's own protocol: one thread a connection, one more that accepts and one that watches the
//! clients' processes.

mod budget;
mod clients;
mod connection;
mod connections;
mod dispatch;
mod listener;
mod throttle;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fmt, io};

use ondol_catalog::Counter;
use ondol_protocol::ControlError;
use ondol_shm::{ForkGuard, PeerCredentials, Process, peer_groups};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::metrics::DoorCounters;
use crate::{House, ServerError, StateDir};

use budget::Budget;
use clients::{Clients, ProcessKey};
use connections::{Connections, Full};
use listener::SocketFile;
use throttle::Warnings;

/// How a [`UnixDoor`] behaves.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DoorConfig {
    /// Path of the socket.
    pub socket: PathBuf,
    /// Mode of the socket's file; who may write it may connect.
    pub mode: u32,
    /// Group that the socket is given to and whose members are let in.
    pub group: Option<u32>,
    /// Users that are let in, besides root and the server's own.
    pub allowed_uids: Vec<u32>,
    /// Connections at once, over all clients.
    pub max_connections: usize,
    /// Connections at once of one process.
    pub max_connections_per_process: usize,
    /// Bytes that messages of all connections may take together, beyond 64 KiB each, while they come and go.
    pub frame_budget: u64,
    /// Clients at once.
    pub max_clients: usize,
    /// How long a new connection may take to say who it is.
    pub hello_timeout: Duration,
    /// How long a request may take to arrive once its first byte is there.
    pub frame_timeout: Duration,
    /// How long a client may take to take an answer, the whole of it.
    pub write_timeout: Duration,
    /// How long [`UnixDoor::stop`] waits for calls that are running.
    pub stop_timeout: Duration,
}

impl DoorConfig {
    /// The defaults, with the socket at this path: mode 0600, 1024 connections, 256 of them of one process, 1024 clients,
    /// 256 MiB of messages, 5 s to say hello.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            mode: 0o600,
            group: None,
            allowed_uids: Vec::new(),
            max_connections: 1024,
            max_connections_per_process: 256,
            frame_budget: 256 << 20,
            max_clients: 1024,
            hello_timeout: Duration::from_secs(5),
            frame_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(10),
            stop_timeout: Duration::from_secs(5),
        }
    }
}

/// An open door: serves until [`stop`](Self::stop). Dropping it stops it, and the clients that came through it leave
/// the engine; what they hold stays theirs until they end it, as the engine keeps it.
///
/// A door watches the processes of its clients for as long as it is open, and nobody does after that. So a door is closed
/// when its engine ends: stop the door, close the engine, drop both. Then the clients are adopted by the next server,
/// which finds out who has died meanwhile. To drop a door while its engine goes on serving others is for tests.
pub struct UnixDoor {
    shared: Arc<Shared>,
    threads: Mutex<Threads>,
    home: ForkGuard,
}

struct Threads {
    running: Vec<JoinHandle<()>>,
    socket: Option<SocketFile>,
}

/// What the threads of a door share.
#[derive(Debug)]
struct Shared {
    config: DoorConfig,
    counters: DoorCounters,
    clients: Clients,
    connections: Connections,
    budget: Budget,
    warnings: Warnings,
    /// Readable, for ever, once the door closes.
    closing: OwnedFd,
}

impl UnixDoor {
    /// Opens the socket and serves `house` behind it. Needs the lock of a state directory, so that a socket which a
    /// dead server left can be told from one that belongs to somebody.
    ///
    /// # Errors
    /// [`ServerError`] if the socket belongs to a living server, or cannot be made.
    pub fn open(
        house: Arc<dyn House>,
        state: &StateDir,
        config: DoorConfig,
    ) -> Result<Self, ServerError> {
        let path = config.socket.clone();
        let failed = |action| ServerError::io(action, &path);
        let (listener, socket) = listener::listen(&path, config.mode, config.group)?;
        let closing = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| failed("make an event descriptor for")(error.into()))?;
        let clients = Clients::new(house, config.max_clients, &closing)
            .map_err(failed("make an epoll descriptor for"))?;
        let shared = Arc::new(Shared {
            counters: DoorCounters::new(),
            clients,
            connections: Connections::default(),
            budget: Budget::new(config.frame_budget),
            warnings: Warnings::default(),
            closing,
            config,
        });
        let mut door = Self {
            shared: Arc::clone(&shared),
            threads: Mutex::new(Threads {
                running: Vec::new(),
                socket: Some(socket),
            }),
            home: ForkGuard::new(),
        };
        let running = &mut door.threads.get_mut().running;
        running.push(
            start("ondol-watch", {
                let shared = Arc::clone(&shared);
                move || shared.watch()
            })
            .map_err(failed("start a thread for"))?,
        );
        running.push(
            start("ondol-accept", move || shared.accept(&listener))
                .map_err(failed("start a thread for"))?,
        );
        tracing::debug!(
            socket = %path.display(),
            state = %state.path().display(),
            "the door is open"
        );
        Ok(door)
    }

    /// Whether the socket can be opened, to be asked before anything costly is done for the sake of serving it. A socket
    /// that a dead server left is removed.
    ///
    /// # Errors
    /// [`ServerError`], as [`open`](Self::open) would give it.
    pub fn rehearse(_: &StateDir, config: &DoorConfig) -> Result<(), ServerError> {
        listener::rehearse(&config.socket, config.mode, config.group)
    }

    /// Path of the socket.
    pub fn socket(&self) -> &Path {
        &self.shared.config.socket
    }

    /// What was counted so far.
    pub fn counters(&self) -> impl Iterator<Item = &Counter> {
        self.shared.counters.iter()
    }

    /// Closes the door: removes the socket, closes all connections and waits, for a bounded time, for the calls that
    /// are running. A second call does nothing, nor does one in a forked child, which has no door of its own.
    pub fn stop(&self) {
        if !self.home.is_home() {
            return;
        }
        let Threads { running, socket } = &mut *self.threads.lock();
        let Some(socket) = socket.take() else {
            return;
        };
        drop(socket);
        if let Err(error) = rustix::io::write(&self.shared.closing, &1_u64.to_ne_bytes()) {
            tracing::error!(%error, "cannot tell the door's threads to end");
        }
        for thread in running.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the door had panicked");
            }
        }
        let still_running = self
            .shared
            .connections
            .close_all(self.shared.config.stop_timeout);
        if still_running > 0 {
            tracing::warn!(
                still_running,
                "calls of clients did not end in time; the door is closed without them"
            );
        }
    }
}

impl Drop for UnixDoor {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for UnixDoor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnixDoor")
            .field("socket", &self.shared.config.socket)
            .finish_non_exhaustive()
    }
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).spawn(work)
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &std::os::unix::net::UnixListener) {
        loop {
            let mut ready = [
                PollFd::new(listener, PollFlags::IN),
                PollFd::new(&self.closing, PollFlags::IN),
            ];
            match poll(&mut ready, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "cannot wait for connections; the door closes");
                    return;
                }
            }
            if !ready[1].revents().is_empty() {
                return;
            }
            match listener.accept() {
                Ok((stream, _)) => self.admit(stream),
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock
                            | io::ErrorKind::Interrupted
                            | io::ErrorKind::ConnectionAborted
                    ) => {}
                Err(error) => {
                    // Out of descriptors or memory: the connection waits in the queue until there are some.
                    if let Some(suppressed) = self.warnings.exhausted.pass() {
                        tracing::warn!(%error, suppressed, "cannot accept connections; trying again");
                    }
                    self.pause(Duration::from_millis(50));
                }
            }
        }
    }

    /// Waits for a while, or until the door closes.
    fn pause(&self, duration: Duration) {
        let mut closing = [PollFd::new(&self.closing, PollFlags::IN)];
        let timeout = duration.try_into().ok();
        let _ = poll(&mut closing, timeout.as_ref());
    }

    fn admit(self: &Arc<Self>, stream: UnixStream) {
        let stream = Arc::new(stream);
        let process = match self.identify(&stream) {
            Ok(process) => process,
            Err(error) => return self.refuse(&stream, error),
        };
        let DoorConfig {
            max_connections,
            max_connections_per_process,
            ..
        } = self.config;
        let admitted = self.connections.admit(
            &stream,
            ProcessKey::of(&process.identity()),
            max_connections,
            max_connections_per_process,
        );
        let ticket = match admitted {
            Ok(ticket) => ticket,
            Err(full) => {
                let text = match full {
                    Full::All => format!(
                        "the server has {max_connections} connections, as many as it allows; close some or raise its limit"
                    ),
                    Full::Process => format!(
                        "process {} has {max_connections_per_process} connections, as many as one may; close some or raise \
                         the server's limit",
                        process.pid()
                    ),
                };
                return self.refuse(&stream, ControlError::Refused(text));
            }
        };
        let shared = Arc::clone(self);
        let spawned = start("ondol-client", move || {
            connection::serve(&shared, ticket, process);
        });
        if let Err(error) = spawned {
            let text = format!("the server cannot start a thread: {error}");
            self.refuse(&stream, ControlError::Failed(text));
        }
    }

    /// The process that connects, if its user may.
    fn identify(&self, stream: &UnixStream) -> Result<Process, ControlError> {
        let unseen = |error: io::Error| {
            ControlError::Failed(format!("the server cannot see who connects: {error}"))
        };
        let peer = PeerCredentials::of(stream).map_err(unseen)?;
        if !self.may_connect(stream, &peer).map_err(unseen)? {
            let own = rustix::process::geteuid().as_raw();
            let group = match self.config.group {
                Some(group) => format!("a member of group {group}, "),
                None => String::new(),
            };
            return Err(ControlError::Refused(format!(
                "user {} may not connect; expected user {own}, root, {group}or a user whom the server's configuration \
                 allows",
                peer.uid
            )));
        }
        Process::of_peer(stream).map_err(unseen)
    }

    fn may_connect(&self, stream: &UnixStream, peer: &PeerCredentials) -> io::Result<bool> {
        let PeerCredentials { uid, gid, .. } = *peer;
        let own = rustix::process::geteuid().as_raw();
        if uid == 0 || uid == own || self.config.allowed_uids.contains(&uid) {
            return Ok(true);
        }
        match self.config.group {
            Some(group) if group == gid => Ok(true),
            Some(group) => Ok(peer_groups(stream)?.contains(&group)),
            None => Ok(false),
        }
    }

    /// Turns a connection away that has said nothing yet.
    fn refuse(&self, stream: &UnixStream, error: ControlError) {
        self.counters.refused.increment();
        if let Some(suppressed) = self.warnings.refused.pass() {
            tracing::warn!(%error, suppressed, "a connection was refused");
        }
        // It fits into a socket that nothing was written to, so that nobody makes the thread wait that accepts.
        connection::send_refusal(stream, &error, Instant::now());
    }

    /// Reclaims what clients held when their processes end, until the door closes.
    fn watch(&self) {
        while let Some(ended) = self.clients.next_ended() {
            for client in &ended.clients {
                self.connections.close_of(client.id);
                self.counters.died.increment();
                let reclaimed = self.clients.died(client.id);
                tracing::info!(
                    client = %client.id,
                    pid = ended.pid,
                    reason = "its process has ended",
                    noticed_by = "the descriptor of the process",
                    was_away = client.was_away(),
                    grants = reclaimed.grants,
                    leases = reclaimed.leases,
                    pins = reclaimed.pins,
                    "a client is dead; what it held is reclaimed"
                );
            }
        }
    }
}
