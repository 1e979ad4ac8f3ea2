use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ondol_plugin::Key;
use ondol_shm::{ClientId, Grant, LeaseLedger, LeaseTableError};
use parking_lot::{Mutex, MutexGuard};

use crate::directory::DirectoryError;
use crate::entry::Entry;

/// Answers to grant requests that are kept so that a repeated request gets the same pages.
const REMEMBERED_GRANTS: usize = 64;

/// What a client held when it left or died.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// Leases that had not ended.
    pub leases: u64,
    /// Pins.
    pub pins: u64,
    /// Granted pages, written or not.
    pub grants: u64,
}

/// What the directory keeps for one client.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: ClientId,
    pub(crate) ledger: Mutex<Ledger>,
    pub(crate) book: Mutex<Book>,
}

/// The client's leases.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) leases: LeaseLedger<Arc<Entry>>,
    /// Whether the client has left or died: no lease is booked any more.
    pub(crate) closed: bool,
    sweep_at: usize,
}

/// The client's pins and its latest grants; changed by the writer only.
#[derive(Debug, Default)]
pub(crate) struct Book {
    /// Each pinned object with the numbers of its pins.
    pub(crate) pins: HashMap<Key, (Arc<Entry>, BTreeSet<u64>)>,
    answered: VecDeque<(u64, Vec<Grant>)>,
    /// Whether the client said that it leaves, or died: nothing is granted or pinned any more.
    pub(crate) closed: bool,
}

impl Client {
    pub(crate) fn new(id: ClientId, lease_table: BorrowedFd<'_>) -> Result<Self, LeaseTableError> {
        let leases = LeaseLedger::open(lease_table)?;
        let ledger = Mutex::new(Ledger {
            leases,
            closed: false,
            sweep_at: Ledger::SWEEP_AT_LEAST,
        });
        Ok(Self {
            id,
            ledger,
            book: Mutex::default(),
        })
    }
}

impl Client {
    /// The book of a client that is still there.
    pub(crate) fn open_book(&self) -> Result<MutexGuard<'_, Book>, DirectoryError> {
        let book = self.book.lock();
        if book.closed {
            Err(DirectoryError::UnknownClient)
        } else {
            Ok(book)
        }
    }
}

impl Ledger {
    const SWEEP_AT_LEAST: usize = 256;

    /// Notes ended leases; returns how many.
    pub(crate) fn sweep(&mut self) -> usize {
        let ended = self.leases.sweep(|entry| entry.release());
        self.sweep_at = Self::SWEEP_AT_LEAST.max(2 * self.leases.len());
        ended
    }

    /// As [`sweep`](Self::sweep), but only when enough leases were booked since to make it worth while.
    pub(crate) fn sweep_if_due(&mut self) {
        if self.leases.len() >= self.sweep_at {
            self.sweep();
        }
    }
}

impl Book {
    /// The answer given to this request before.
    pub(crate) fn answered(&self, request: u64) -> Option<&[Grant]> {
        self.answered
            .iter()
            .find(|(number, _)| *number == request)
            .map(|(_, grants)| grants.as_slice())
    }

    pub(crate) fn remember(&mut self, request: u64, grants: &[Grant]) {
        if self.answered.len() == REMEMBERED_GRANTS {
            self.answered.pop_front();
        }
        self.answered.push_back((request, grants.to_vec()));
    }

    pub(crate) fn pin_count(&self) -> u64 {
        self.pins.values().map(|(_, pins)| pins.len() as u64).sum()
    }
}
