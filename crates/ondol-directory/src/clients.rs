//! Clients come, come back, leave and die.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ondol_catalog::failpoint;
use ondol_memory::{Change, JournalError};
use ondol_shm::{ClientId, LeaseBook};

use crate::client::{Client, Newcomer, Reclaimed};
use crate::directory::{AttachError, Directory, DirectoryError};
use crate::state::State;

impl Directory {
    /// Lets a client in, whose leases stand in `lease_table` and, for the next server, in `book`. Names only grow.
    ///
    /// # Errors
    /// [`AttachError`]; if the client was recorded but is not durable, it is known until [`detach`](Self::detach).
    pub fn attach(
        &self,
        client: ClientId,
        who: Newcomer,
        lease_table: BorrowedFd<'_>,
        book: Option<LeaseBook>,
    ) -> Result<(), AttachError> {
        let entry = Arc::new(Client::new(client, who, lease_table, book)?);
        let mut state = self.state.lock();
        state.change(&Change::Attach {
            client,
            process: who.process,
            instance: who.instance,
        })?;
        failpoint!("attach.recorded");
        self.clients.write().insert(client, entry);
        self.flush(state)?;
        failpoint!("attach.flushed");
        Ok(())
    }

    /// Lets a client of the last run come back, whose leases stand in `lease_table`: from now on they end by it.
    ///
    /// # Errors
    /// [`AttachError`]; then it still waits.
    pub fn resume(&self, client: ClientId, lease_table: BorrowedFd<'_>) -> Result<(), AttachError> {
        let client = self.client(client).map_err(|_| AttachError::Unknown)?;
        let mut ledger = client.ledger.lock();
        if !ledger.adopted || ledger.closed {
            return Err(AttachError::Unknown);
        }
        ledger.leases.take_table(lease_table)?;
        ledger.adopted = false;
        self.counters.resumed_clients.increment();
        Ok(())
    }

    /// The client leaves: its pins end now and nothing more is granted to it. Its leases end when their readers drop
    /// them, its grants when they are returned: an address that it may still use is not given to somebody else.
    pub fn leave(&self, client: ClientId) -> Result<Reclaimed, DirectoryError> {
        let record = self.client(client)?;
        let mut state = self.state.lock();
        record.ledger.lock().closed = true;
        state.slots.leave(client);
        let pins = self.end_pins(&mut state, &record)?;
        failpoint!("detach.unpinned");
        self.flush(state)?;
        Ok(Reclaimed {
            pins,
            ..Reclaimed::default()
        })
    }

    /// Whether the client has left and holds neither lease nor grant any more, so that it may be forgotten.
    pub fn is_gone(&self, client: ClientId) -> bool {
        let Ok(record) = self.client(client) else {
            return true;
        };
        let mut ledger = record.ledger.lock();
        ledger.sweep();
        let is_idle = ledger.closed && ledger.leases.is_empty();
        drop(ledger);
        if !is_idle {
            return false;
        }
        let mut state = self.state.lock();
        self.take_returned_by(&mut state, Some(client));
        state.slots.is_empty(client) && state.pool.granted_to(client).0 == 0
    }

    /// Forgets a client that is dead, or gone, and takes back what it held.
    ///
    /// # Errors
    /// [`DirectoryError::Journal`]: what was not recorded the client still holds, and it is not forgotten; asked
    /// again, the rest is taken back.
    pub fn detach(&self, client: ClientId) -> Result<Reclaimed, DirectoryError> {
        let mut state = self.state.lock();
        let record = self.client(client)?;
        let mut reclaimed = Reclaimed::default();
        self.take_returned_by(&mut state, Some(client));
        // First, so that whatever else cannot be taken back now, what it read can be reused.
        if let Some((leases, (hits, misses))) = state.slots.remove(client) {
            reclaimed.leases = leases.count;
            self.count_found(hits, misses);
        }
        let mut ledger = record.ledger.lock();
        let left = std::mem::replace(&mut ledger.closed, true);
        ledger.sweep();
        reclaimed.leases += ledger.leases.end_all(|booked| booked.release()) as u64;
        drop(ledger);
        self.counters.reclaimed_leases.add(reclaimed.leases);
        if !left {
            self.counters.dead_clients.increment();
        }
        reclaimed.pins = self.end_pins(&mut state, &record)?;
        failpoint!("detach.unpinned");
        for grant in state.pool.grants_of(client) {
            state.change(&Change::Return { grant, client })?;
            reclaimed.grants += 1;
            self.counters.reclaimed_grants.increment();
        }
        failpoint!("detach.returned");
        state.change(&Change::Detach { client })?;
        failpoint!("detach.recorded");
        self.clients.write().remove(&client);
        if let Err(error) = state.release_retired() {
            tracing::warn!(%error, "pages of removed objects stay captive for now");
        }
        // Nobody waits for this answer: if the record is lost with this process, the next one finds the client dead
        // or gone and takes back the same.
        if let Err(error) = self.flush(state) {
            tracing::warn!(%error, %client, "that a client is gone is not durable yet");
        }
        Ok(reclaimed)
    }

    fn end_pins(&self, state: &mut State, client: &Client) -> Result<u64, JournalError> {
        let mut book = client.book.lock();
        // A request that was already on its way finds the book closed, so nothing is given to a client that is gone.
        book.closed = true;
        let mut ended = 0;
        let mut refused = None;
        let mut pins = std::mem::take(&mut book.pins).into_iter();
        'pins: for (key, (entry, mut numbers)) in pins.by_ref() {
            while let Some(&pin) = numbers.first() {
                let change = Change::Unpin {
                    key: key.clone(),
                    client: client.id,
                    pin,
                };
                if let Err(error) = state.change(&change) {
                    refused = Some(error);
                    book.pins.insert(key, (entry, numbers));
                    break 'pins;
                }
                numbers.remove(&pin);
                entry.unpin();
                ended += 1;
            }
        }
        book.pins.extend(pins);
        self.counters.reclaimed_pins.add(ended);
        refused.map_or(Ok(ended), Err)
    }
}
