//! Who is attached, and which process each client belongs to.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ondol_protocol::wire::Hello;
use ondol_protocol::{ClientId, ControlError};
use ondol_shm::Process;
use parking_lot::Mutex;
use rustix::event::epoll;

use crate::{House, Reclaimed, Tenant};

/// A process by number and start time.
type ProcessKey = (u32, u64);

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
    clients: usize,
}

/// The clients of one process.
#[derive(Debug)]
struct Attached {
    /// Watched by epoll for as long as it is open.
    process: Process,
    mark: u64,
    by_instance: HashMap<[u8; 16], Client>,
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

/// A process that has ended, with its clients.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) pid: u32,
    pub(super) clients: Vec<Client>,
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

impl Clients {
    pub(super) fn new(house: Arc<dyn House>, limit: usize, closing: &OwnedFd) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mark = epoll::EventData::new_u64(CLOSING);
        epoll::add(&epoll, closing, mark, epoll::EventFlags::IN)?;
        let state = State {
            last_mark: CLOSING,
            ..State::default()
        };
        Ok(Self {
            house,
            limit,
            epoll,
            state: Mutex::new(state),
        })
    }

    /// The client that says hello: one that is known, or a new one of this process.
    pub(super) fn join(&self, hello: &Hello, process: Process) -> Result<Client, ControlError> {
        let key = (process.pid(), process.start_time());
        if hello.start_time != process.start_time() {
            return Err(ControlError::Refused(format!(
                "the hello comes from a process that started at {}, the connection from process {} that started at \
                 {}; a forked child must connect itself",
                hello.start_time,
                process.pid(),
                process.start_time()
            )));
        }
        let incarnation = self.house.incarnation();
        if hello.incarnation != 0 && hello.incarnation != incarnation {
            return Err(ControlError::Disconnected {
                reason: format!(
                    "the server was started again (incarnation {incarnation:#x}, this client knew {:#x}); connect anew",
                    hello.incarnation
                ),
                sent: false,
            });
        }
        // Held across `attach`, so that two connections of one client at the same time attach it once.
        let mut state = self.state.lock();
        let known = state
            .processes
            .get(&key)
            .and_then(|attached| attached.by_instance.get(&hello.instance));
        if let Some(client) = known {
            return Ok(client.clone());
        }
        if hello.incarnation != 0 {
            return Err(ControlError::Disconnected {
                reason: "the server does not know this client any more; connect anew".to_owned(),
                sent: false,
            });
        }
        state.forget_gone();
        if state.clients >= self.limit {
            return Err(ControlError::Refused(format!(
                "the server has {} clients, as many as it allows; close some or raise its limit",
                self.limit
            )));
        }
        if !state.processes.contains_key(&key) {
            state.watch(&self.epoll, key, process).map_err(|error| {
                ControlError::Failed(format!(
                    "the server cannot watch the client's process: {error}"
                ))
            })?;
        }
        let result = state.attach(&self.house, key, hello.instance);
        if result.is_err() {
            state.forget_if_empty(key);
        }
        result
    }

    /// Whether the client's process has not ended and the client not left.
    pub(super) fn is_known(&self, client: &Client) -> bool {
        let state = self.state.lock();
        let attached = state.processes.get(&client.process);
        attached.is_some_and(|attached| attached.by_instance.contains_key(&client.instance))
    }

    /// Forgets a client that is gone: a later hello with its name is a new client's.
    pub(super) fn forget(&self, client: &Client) {
        let mut state = self.state.lock();
        if let Some(attached) = state.processes.get_mut(&client.process)
            && attached.by_instance.remove(&client.instance).is_some()
        {
            state.clients -= 1;
            state.forget_if_empty(client.process);
        }
    }

    pub(super) fn died(&self, client: &Client) -> Reclaimed {
        self.house.client_died(client.id).unwrap_or_default()
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
    fn watch(&mut self, epoll: &OwnedFd, key: ProcessKey, process: Process) -> io::Result<()> {
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

    fn attach(
        &mut self,
        house: &Arc<dyn House>,
        key: ProcessKey,
        instance: [u8; 16],
    ) -> Result<Client, ControlError> {
        let Some(attached) = self.processes.get_mut(&key) else {
            return Err(ControlError::Failed(
                "the client's process is lost".to_owned(),
            ));
        };
        let session = Arc::clone(house).attach(&attached.process)?;
        let client = Client {
            id: session.client().id,
            session,
            process: key,
            instance,
            has_left: Arc::default(),
        };
        attached.by_instance.insert(instance, client.clone());
        self.clients += 1;
        Ok(client)
    }

    /// Clients end their leases without a message, so those that left are looked at when another one comes.
    fn forget_gone(&mut self) {
        for attached in self.processes.values_mut() {
            let before = attached.by_instance.len();
            attached.by_instance.retain(|_, client| !client.is_gone());
            self.clients -= before - attached.by_instance.len();
        }
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
        Some(Ended {
            pid: key.0,
            clients: attached.by_instance.into_values().collect(),
        })
    }
}
