use std::collections::HashMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ondol_protocol::ClientId;
use parking_lot::{Condvar, Mutex};

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
    streams: HashMap<u64, (Arc<UnixStream>, Option<ClientId>)>,
    next: u64,
    closed: bool,
}

/// One connection's place; given back when dropped, by whatever way its thread ends.
#[derive(Debug)]
pub(super) struct Ticket {
    table: Arc<Table>,
    number: u64,
    stream: Arc<UnixStream>,
}

impl Connections {
    /// A place for the connection, if there is one.
    pub(super) fn admit(&self, stream: &Arc<UnixStream>, limit: usize) -> Option<Ticket> {
        let mut live = self.table.live.lock();
        if live.closed || live.streams.len() >= limit {
            return None;
        }
        let number = live.next;
        live.next += 1;
        live.streams.insert(number, (Arc::clone(stream), None));
        Some(Ticket {
            table: Arc::clone(&self.table),
            number,
            stream: Arc::clone(stream),
        })
    }

    /// Closes all connections of a client.
    pub(super) fn close_of(&self, client: ClientId) {
        let live = self.table.live.lock();
        let of_client = |(_, owner): &&(_, Option<ClientId>)| *owner == Some(client);
        for (stream, _) in live.streams.values().filter(of_client) {
            shut(stream);
        }
    }

    /// Closes all connections for good, waits for their threads, and says how many did not end in time.
    pub(super) fn close_all(&self, timeout: Duration) -> usize {
        let deadline = Instant::now() + timeout;
        let mut live = self.table.live.lock();
        live.closed = true;
        live.streams.values().for_each(|(stream, _)| shut(stream));
        while !live.streams.is_empty() {
            if self.table.ended.wait_until(&mut live, deadline).timed_out() {
                break;
            }
        }
        live.streams.len()
    }
}

impl Ticket {
    pub(super) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Notes whose connection this is.
    pub(super) fn belongs_to(&self, client: ClientId) {
        if let Some((_, owner)) = self.table.live.lock().streams.get_mut(&self.number) {
            *owner = Some(client);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.table.live.lock().streams.remove(&self.number);
        self.table.ended.notify_all();
    }
}

fn shut(stream: &UnixStream) {
    // Fails only if the other side has closed already.
    let _ = stream.shutdown(Shutdown::Both);
}
