//! Who is attached, which process each client belongs to, and who may still come back.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ondol_catalog::failpoint;
use ondol_protocol::wire::Hello;
use ondol_protocol::{ClientId, ControlError};
use ondol_shm::{Process, ProcessIdentity};
use parking_lot::Mutex;
use rustix::event::epoll;

use crate::house::Adopted;
use crate::{House, Reclaimed, Tenant};

/// What tells a process from all others of this boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ProcessKey {
    /// Its inode number, which reads the same from all namespaces.
    Inode(u64),
    /// Before Linux 6.9, its number and its start time.
    Visible(u32, u64),
    /// The same of a process in a PID namespace that cannot be seen from here: it has nothing but the random number of
    /// its handler.
    Instance([u8; 16]),
}

impl ProcessKey {
    /// The key of a process, unless only its handler can tell.
    pub(super) fn of(process: &ProcessIdentity) -> Option<Self> {
        match *process {
            ProcessIdentity { inode, .. } if inode != 0 => Some(Self::Inode(inode)),
            ProcessIdentity {
                pid, start_time, ..
            } if pid != 0 => Some(Self::Visible(pid, start_time)),
            _ => None,
        }
    }
}

/// The epoll mark of the descriptor that says that the door closes.
const CLOSING: u64 = 0;

#[derive(Debug)]
pub(super) struct Clients {
    house: Arc<dyn House>,
    limit: usize,
    epoll: OwnedFd,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    processes: HashMap<ProcessKey, Attached>,
    marks: HashMap<u64, ProcessKey>,
    last_mark: u64,
    /// Clients of an earlier server of whose processes nothing can be seen.
    unseen: Vec<Unseen>,
    clients: usize,
}

/// The clients of one process.
#[derive(Debug)]
struct Attached {
    /// Watched by epoll for as long as it is open.
    process: Process,
    mark: u64,
    by_instance: HashMap<[u8; 16], Guest>,
}

#[derive(Debug)]
enum Guest {
    Here(Seat),
    /// Was a client of the server before this one, and has not come back yet.
    Away(ClientId),
}

/// A client that was let in.
#[derive(Debug)]
struct Seat {
    client: Client,
    /// Connections whose hello was not answered yet, or whose answer may not have arrived.
    greeting: usize,
    /// Whether an answer to a hello has arrived, so that the client knows who it is.
    was_greeted: bool,
}

#[derive(Debug)]
struct Unseen {
    id: ClientId,
    instance: [u8; 16],
    process: ProcessIdentity,
}

/// A client with its line to the engine.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) id: ClientId,
    pub(super) session: Arc<dyn Tenant>,
    process: ProcessKey,
    instance: [u8; 16],
    has_left: Arc<AtomicBool>,
}

/// How a client came to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// Another connection of a client that is there.
    Known,
    New,
    /// It outlived the server before this one.
    Resumed,
}

/// A process that has ended, with its clients.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) pid: u32,
    pub(super) clients: Vec<Departed>,
}

#[derive(Debug)]
pub(super) struct Departed {
    pub(super) id: ClientId,
    /// To be dropped after [`Clients::died`], as a session that ends leaves: a client that has left is none that died.
    /// Nothing if it was a client of the server before this one that had not come back.
    session: Option<Arc<dyn Tenant>>,
}

impl Client {
    /// Notes that the client has left; whether that is news.
    pub(super) fn leave(&self) -> bool {
        !self.has_left.swap(true, Ordering::Relaxed)
    }

    /// Whether the client has left and holds nothing any more.
    pub(super) fn is_gone(&self) -> bool {
        self.has_left.load(Ordering::Relaxed) && self.session.is_gone()
    }
}

impl Guest {
    fn is_gone(&self) -> bool {
        matches!(self, Self::Here(seat) if seat.client.is_gone())
    }

    fn departed(self) -> Departed {
        match self {
            Self::Here(Seat { client, .. }) => Departed {
                id: client.id,
                session: Some(client.session),
            },
            Self::Away(id) => Departed { id, session: None },
        }
    }
}

impl Departed {
    /// Whether it was a client of the server before this one that had not come back.
    pub(super) fn was_away(&self) -> bool {
        self.session.is_none()
    }
}

impl Unseen {
    /// Whether the process that says hello can be the one that was known. Its instance is a secret of 128 bits, so that
    /// only what contradicts it counts: a forked child has it, too.
    fn can_be(&self, instance: &[u8; 16], process: &ProcessIdentity) -> bool {
        let before = &self.process;
        if self.instance != *instance {
            return false;
        }
        if before.inode != 0 && process.inode != 0 {
            return before.inode == process.inode;
        }
        let comparable =
            before.namespace == process.namespace && before.pid != 0 && process.pid != 0;
        let same_number = (before.pid, before.start_time) == (process.pid, process.start_time);
        same_number || !comparable
    }
}

impl Clients {
    /// Takes over the clients that outlived the server before this one.
    pub(super) fn new(house: Arc<dyn House>, limit: usize, closing: &OwnedFd) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mark = epoll::EventData::new_u64(CLOSING);
        epoll::add(&epoll, closing, mark, epoll::EventFlags::IN)?;
        let mut state = State {
            last_mark: CLOSING,
            ..State::default()
        };
        for adopted in house.take_adopted() {
            state.adopt(&epoll, adopted)?;
        }
        if !state.unseen.is_empty() {
            tracing::warn!(
                clients = state.unseen.len(),
                "clients of the server before this one lie in a PID namespace that cannot be seen from here: what they \
                 hold is kept until they come back, as their end would not be noticed"
            );
        }
        Ok(Self {
            house,
            limit,
            epoll,
            state: Mutex::new(state),
        })
    }

    /// The client that says hello: one that is known, one that comes back, or a new one of this process. `table` is the
    /// lease table that it passed. How its greeting ends must be told to [`end_greeting`](Self::end_greeting).
    pub(super) fn join(
        &self,
        hello: &Hello,
        table: Option<OwnedFd>,
        process: Process,
    ) -> Result<(Client, Arrival), ControlError> {
        let identity = process.identity();
        // Of a client that counts time otherwise it cannot be told.
        if identity.pid != 0
            && hello.start_time != identity.start_time
            && !process.counts_time_otherwise()
        {
            return Err(ControlError::Refused(format!(
                "the hello comes from a process that started at {}, the connection from process {} that started at \
                 {}; a forked child must connect itself",
                hello.start_time, identity.pid, identity.start_time
            )));
        }
        let key = ProcessKey::of(&identity).unwrap_or(ProcessKey::Instance(hello.instance));
        // Dropped after the lock: sessions that end change the engine, and wait for its log.
        let mut gone = Vec::new();
        // Held across `attach` and `resume`, so that two connections of one client at the same time are one client.
        let mut state = self.state.lock();
        if let Some(seat) = state.here(key, &hello.instance) {
            seat.greeting += 1;
            return Ok((seat.client.clone(), Arrival::Known));
        }
        let away = state.away(key, &hello.instance, &identity);
        match away {
            Some(client) if hello.incarnation != 0 => {
                let Some(table) = table else {
                    return Err(ControlError::Refused(
                        "the hello of a client that comes back has no descriptor with it; expected that of its lease table"
                            .to_owned(),
                    ));
                };
                failpoint!("resume.begin");
                state.watch(&self.epoll, key, process)?;
                let resumed = Arc::clone(&self.house).resume(client, table);
                failpoint!("resume.done");
                if matches!(resumed, Ok(_) | Err(ControlError::UnknownClient(_))) {
                    state.forget_away(key, &hello.instance, client);
                }
                let joined = resumed.map(|session| {
                    let arrival = Arrival::Resumed;
                    (state.seat(key, hello.instance, session, arrival), arrival)
                });
                state.forget_if_empty(key);
                return joined;
            }
            // Its first hello was never answered: it knows no server, and holds nothing.
            Some(client) => {
                state.forget_away(key, &hello.instance, client);
                self.house.client_died(client);
            }
            None if hello.incarnation != 0 => {
                return Err(ControlError::UnknownClient(self.explain(hello.incarnation)));
            }
            None => {}
        }
        gone.append(&mut state.forget_gone());
        if state.clients >= self.limit {
            return Err(ControlError::Refused(format!(
                "the server has {} clients, as many as it allows; close some or raise its limit",
                self.limit
            )));
        }
        state.watch(&self.epoll, key, process)?;
        failpoint!("attach.begin");
        let attached = match state.process(key) {
            Ok(process) => Arc::clone(&self.house).attach(process, hello.instance),
            Err(error) => Err(error),
        };
        failpoint!("attach.done");
        let joined = attached.map(|session| {
            let arrival = Arrival::New;
            (state.seat(key, hello.instance, session, arrival), arrival)
        });
        state.forget_if_empty(key);
        joined
    }

    fn explain(&self, known: u64) -> String {
        let incarnation = self.house.incarnation();
        if known == incarnation {
            "it has left, or its process had ended; connect anew".to_owned()
        } else {
            format!(
                "the server was started again (incarnation {incarnation:#x}, this client knew {known:#x}) without what \
                 it held; connect anew"
            )
        }
    }

    /// Whether the client's process has not ended and the client not left.
    pub(super) fn is_known(&self, client: &Client) -> bool {
        self.state.lock().seat_of(client).is_some()
    }

    /// Notes how the greeting of a client that joined has ended, and whether its answer arrived. True if the client is
    /// forgotten, and has to leave: no connection has had an answer or waits for one, so nobody knows of it.
    pub(super) fn end_greeting(&self, client: &Client, has_arrived: bool) -> bool {
        let mut state = self.state.lock();
        let Some(seat) = state.seat_of(client) else {
            return false;
        };
        seat.greeting -= 1;
        seat.was_greeted |= has_arrived;
        let is_unknown = !seat.was_greeted && seat.greeting == 0;
        if is_unknown {
            state.forget(client);
        }
        is_unknown
    }

    /// Forgets a client that is gone: a later hello with its name is a new client's.
    pub(super) fn forget(&self, client: &Client) {
        self.state.lock().forget(client);
    }

    pub(super) fn died(&self, client: ClientId) -> Reclaimed {
        self.house.client_died(client).unwrap_or_default()
    }

    /// Waits for the end of a process that has clients; nothing once the door closes.
    pub(super) fn next_ended(&self) -> Option<Ended> {
        loop {
            let mut space = [MaybeUninit::uninit(); 1];
            let mark = match epoll::wait(&self.epoll, &mut space, None) {
                Ok((events, _)) => events.first().map(|event| event.data.u64()),
                Err(rustix::io::Errno::INTR) => None,
                Err(error) => {
                    tracing::error!(%error, "cannot watch the clients' processes any more");
                    return None;
                }
            };
            match mark {
                Some(CLOSING) => return None,
                Some(mark) => {
                    if let Some(ended) = self.state.lock().remove(mark) {
                        return Some(ended);
                    }
                }
                None => {}
            }
        }
    }
}

impl State {
    fn adopt(&mut self, epoll: &OwnedFd, adopted: Adopted) -> io::Result<()> {
        let Adopted {
            id,
            instance,
            identity,
            process,
        } = adopted;
        let key = process
            .as_ref()
            .and_then(|process| ProcessKey::of(&process.identity()));
        match (key, process) {
            (Some(key), Some(process)) => {
                self.add(epoll, key, process)?;
                if let Some(attached) = self.processes.get_mut(&key) {
                    attached.by_instance.insert(instance, Guest::Away(id));
                }
            }
            _ => self.unseen.push(Unseen {
                id,
                instance,
                process: identity,
            }),
        }
        self.clients += 1;
        Ok(())
    }

    fn here(&mut self, key: ProcessKey, instance: &[u8; 16]) -> Option<&mut Seat> {
        let attached = self.processes.get_mut(&key)?;
        match attached.by_instance.get_mut(instance)? {
            Guest::Here(seat) => Some(seat),
            Guest::Away(_) => None,
        }
    }

    /// The seat of this very client, not of a later one with its name.
    fn seat_of(&mut self, client: &Client) -> Option<&mut Seat> {
        let seat = self.here(client.process, &client.instance);
        seat.filter(|seat| seat.client.id == client.id)
    }

    fn forget(&mut self, client: &Client) {
        if self.seat_of(client).is_some()
            && let Some(attached) = self.processes.get_mut(&client.process)
        {
            attached.by_instance.remove(&client.instance);
            self.clients -= 1;
            self.forget_if_empty(client.process);
        }
    }

    /// The client of the server before this one that says hello.
    fn away(
        &self,
        key: ProcessKey,
        instance: &[u8; 16],
        process: &ProcessIdentity,
    ) -> Option<ClientId> {
        let attached = self.processes.get(&key);
        match attached.and_then(|attached| attached.by_instance.get(instance)) {
            Some(Guest::Away(id)) => Some(*id),
            Some(Guest::Here(_)) => None,
            None => {
                let mut unseen = self.unseen.iter();
                let found = unseen.find(|unseen| unseen.can_be(instance, process));
                found.map(|unseen| unseen.id)
            }
        }
    }

    fn forget_away(&mut self, key: ProcessKey, instance: &[u8; 16], client: ClientId) {
        if let Some(attached) = self.processes.get_mut(&key) {
            attached.by_instance.remove(instance);
        }
        self.unseen.retain(|unseen| unseen.id != client);
        self.clients -= 1;
    }

    /// Watches the process, unless it is watched already.
    fn watch(
        &mut self,
        epoll: &OwnedFd,
        key: ProcessKey,
        process: Process,
    ) -> Result<(), ControlError> {
        self.add(epoll, key, process).map_err(|error| {
            ControlError::Failed(format!(
                "the server cannot watch the client's process: {error}"
            ))
        })
    }

    fn add(&mut self, epoll: &OwnedFd, key: ProcessKey, process: Process) -> io::Result<()> {
        if self.processes.contains_key(&key) {
            return Ok(());
        }
        let mark = self.last_mark + 1;
        let data = epoll::EventData::new_u64(mark);
        epoll::add(epoll, &process, data, epoll::EventFlags::IN)?;
        self.last_mark = mark;
        self.marks.insert(mark, key);
        let attached = Attached {
            process,
            mark,
            by_instance: HashMap::new(),
        };
        self.processes.insert(key, attached);
        Ok(())
    }

    fn process(&self, key: ProcessKey) -> Result<&Process, ControlError> {
        let attached = self.processes.get(&key);
        attached.map(|attached| &attached.process).ok_or_else(|| {
            ControlError::Failed("the server has lost sight of the client's process".to_owned())
        })
    }

    /// Notes a client that was let in, whose process is watched.
    fn seat(
        &mut self,
        key: ProcessKey,
        instance: [u8; 16],
        session: Arc<dyn Tenant>,
        arrival: Arrival,
    ) -> Client {
        let client = Client {
            id: session.client().id,
            session,
            process: key,
            instance,
            has_left: Arc::default(),
        };
        if let Some(attached) = self.processes.get_mut(&key) {
            let guest = Guest::Here(Seat {
                client: client.clone(),
                greeting: 1,
                // The server before this one has answered it.
                was_greeted: arrival == Arrival::Resumed,
            });
            attached.by_instance.insert(instance, guest);
            self.clients += 1;
        }
        client
    }

    /// Clients end their leases without a message, so those that left are looked at when another one comes.
    fn forget_gone(&mut self) -> Vec<Guest> {
        let mut gone = Vec::new();
        for attached in self.processes.values_mut() {
            let leaving = attached.by_instance.extract_if(|_, guest| guest.is_gone());
            gone.extend(leaving.map(|(_, guest)| guest));
        }
        self.clients -= gone.len();
        let Self {
            processes, marks, ..
        } = self;
        processes.retain(|_, attached| {
            let keep = !attached.by_instance.is_empty();
            if !keep {
                marks.remove(&attached.mark);
            }
            keep
        });
        gone
    }

    fn forget_if_empty(&mut self, key: ProcessKey) {
        let is_empty = |attached: &Attached| attached.by_instance.is_empty();
        if self.processes.get(&key).is_some_and(is_empty)
            && let Some(attached) = self.processes.remove(&key)
        {
            self.marks.remove(&attached.mark);
        }
    }

    fn remove(&mut self, mark: u64) -> Option<Ended> {
        let key = self.marks.remove(&mark)?;
        let attached = self.processes.remove(&key)?;
        self.clients -= attached.by_instance.len();
        let guests = attached.by_instance.into_values();
        Some(Ended {
            pid: attached.process.pid(),
            clients: guests.map(Guest::departed).collect(),
        })
    }
}
