use std::collections::HashMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ondol_protocol::ClientId;
use parking_lot::{Condvar, Mutex};

use super::clients::ProcessKey;

/// The connections that are being served.
#[derive(Debug, Default)]
pub(super) struct Connections {
    table: Arc<Table>,
}

#[derive(Debug, Default)]
struct Table {
    live: Mutex<Live>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Live {
    served: HashMap<u64, Served>,
    by_process: HashMap<ProcessKey, usize>,
    next: u64,
    closed: bool,
}

#[derive(Debug)]
struct Served {
    stream: Arc<UnixStream>,
    process: Option<ProcessKey>,
    client: Option<ClientId>,
}

/// One connection's place; given back when dropped, by whatever way its thread ends.
#[derive(Debug)]
pub(super) struct Ticket {
    table: Arc<Table>,
    number: u64,
    stream: Arc<UnixStream>,
}

/// Why a connection gets no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// As many connections as are allowed.
    All,
    /// As many of this process as are allowed.
    Process,
}

impl Connections {
    /// A place for the connection of `process`, if there is one.
    pub(super) fn admit(
        &self,
        stream: &Arc<UnixStream>,
        process: Option<ProcessKey>,
        limit: usize,
        limit_per_process: usize,
    ) -> Result<Ticket, Full> {
        let mut live = self.table.live.lock();
        if live.closed || live.served.len() >= limit {
            return Err(Full::All);
        }
        if let Some(process) = process {
            let count = live.by_process.entry(process).or_default();
            if *count >= limit_per_process {
                return Err(Full::Process);
            }
            *count += 1;
        }
        let number = live.next;
        live.next += 1;
        let served = Served {
            stream: Arc::clone(stream),
            process,
            client: None,
        };
        live.served.insert(number, served);
        Ok(Ticket {
            table: Arc::clone(&self.table),
            number,
            stream: Arc::clone(stream),
        })
    }

    /// Closes all connections of a client.
    pub(super) fn close_of(&self, client: ClientId) {
        let live = self.table.live.lock();
        let of_client = |served: &&Served| served.client == Some(client);
        for served in live.served.values().filter(of_client) {
            shut(&served.stream);
        }
    }

    /// Closes all connections for good, waits for their threads, and says how many did not end in time.
    pub(super) fn close_all(&self, timeout: Duration) -> usize {
        let deadline = Instant::now() + timeout;
        let mut live = self.table.live.lock();
        live.closed = true;
        live.served.values().for_each(|served| shut(&served.stream));
        while !live.served.is_empty() {
            if self.table.ended.wait_until(&mut live, deadline).timed_out() {
                break;
            }
        }
        live.served.len()
    }
}

impl Ticket {
    pub(super) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Notes whose connection this is.
    pub(super) fn belongs_to(&self, client: ClientId) {
        if let Some(served) = self.table.live.lock().served.get_mut(&self.number) {
            served.client = Some(client);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut live = self.table.live.lock();
        let served = live.served.remove(&self.number);
        if let Some(process) = served.and_then(|served| served.process)
            && let Some(count) = live.by_process.get_mut(&process)
        {
            *count -= 1;
            if *count == 0 {
                live.by_process.remove(&process);
            }
        }
        drop(live);
        self.table.ended.notify_all();
    }
}

fn shut(stream: &UnixStream) {
    // Fails only if the other side has closed already.
    let _ = stream.shutdown(Shutdown::Both);
}
