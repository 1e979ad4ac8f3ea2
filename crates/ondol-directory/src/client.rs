use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use ondol_memory::ClientRecord;
use ondol_plugin::Key;
use ondol_shm::{
    BookedLease, ClientId, Grant, LeaseBook, LeaseLedger, LeaseTableError, ProcessIdentity,
    SlotTableView,
};
use parking_lot::{Mutex, MutexGuard};

use crate::directory::DirectoryError;
use crate::entry::Entry;

/// Answers to grant requests that are kept so that a repeated request gets the same answer when its pages are no
/// longer granted, or never were.
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

/// Who a client is beyond its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Newcomer {
    /// The process that it lives in.
    pub process: ProcessIdentity,
    /// The random number by which it knows itself again.
    pub instance: [u8; 16],
}

/// A client of the last run that is not proven dead, with the leases that its book says it may hold.
#[derive(Debug)]
pub struct AdoptedClient {
    /// Its name.
    pub id: ClientId,
    /// Its lease book.
    pub book: LeaseBook,
    /// What stands there; leases that ended and were not swept are among them.
    pub leases: Vec<BookedLease>,
    /// Its slot table, if it had one; what it reads without having asked stands there.
    pub slots: Option<SlotTableView>,
}

/// What the directory keeps for one client.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: ClientId,
    pub(crate) who: Newcomer,
    pub(crate) ledger: Mutex<Ledger>,
    pub(crate) book: Mutex<Book>,
    /// Objects that it found because they were brought from storage while it waited.
    pub(crate) l2_hits: AtomicU64,
}

/// An object that is leased, and since when.
#[derive(Debug)]
pub(crate) struct Booked {
    entry: Arc<Entry>,
    since: Instant,
}

impl Booked {
    /// An object whose lease is counted.
    pub(crate) fn new(entry: Arc<Entry>, since: Instant) -> Self {
        Self { entry, since }
    }

    /// The lease has ended.
    pub(crate) fn release(&self) {
        self.entry.release();
    }
}

/// The client's leases.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) leases: LeaseLedger<Booked>,
    /// Whether the client has left or died: no lease is booked any more.
    pub(crate) closed: bool,
    /// Whether it is a client of the last run that did not come back yet.
    pub(crate) adopted: bool,
    sweep_at: usize,
}

/// A client's pinned objects, with the numbers of its pins on each.
pub(crate) type Pins = HashMap<Key, (Arc<Entry>, BTreeSet<u64>)>;

/// The client's pins and its latest grants; changed by the writer only.
#[derive(Debug, Default)]
pub(crate) struct Book {
    pub(crate) pins: Pins,
    answered: VecDeque<(u64, Result<Vec<Grant>, DirectoryError>)>,
    /// Whether the client said that it leaves, or died: nothing is granted or pinned any more.
    pub(crate) closed: bool,
}

impl Client {
    pub(crate) fn new(
        id: ClientId,
        who: Newcomer,
        lease_table: BorrowedFd<'_>,
        book: Option<LeaseBook>,
    ) -> Result<Self, LeaseTableError> {
        Ok(Self {
            id,
            who,
            ledger: Mutex::new(Ledger::new(LeaseLedger::open(lease_table, book)?, false)),
            book: Mutex::default(),
            l2_hits: AtomicU64::new(0),
        })
    }

    /// A client of the last run, with what it holds.
    pub(crate) fn adopted(
        id: ClientId,
        who: Newcomer,
        leases: LeaseLedger<Booked>,
        pins: Pins,
    ) -> Self {
        Self {
            id,
            who,
            ledger: Mutex::new(Ledger::new(leases, true)),
            book: Mutex::new(Book {
                pins,
                ..Book::default()
            }),
            l2_hits: AtomicU64::new(0),
        }
    }

    /// A client that died before this run, with the pins that it could not be relieved of.
    pub(crate) fn dead(id: ClientId, who: Newcomer, pins: Pins) -> Self {
        let mut ledger = Ledger::new(LeaseLedger::ended(), false);
        ledger.closed = true;
        Self {
            id,
            who,
            ledger: Mutex::new(ledger),
            book: Mutex::new(Book {
                pins,
                closed: true,
                ..Book::default()
            }),
            l2_hits: AtomicU64::new(0),
        }
    }

    /// The book of a client that is still there.
    pub(crate) fn open_book(&self) -> Result<MutexGuard<'_, Book>, DirectoryError> {
        let book = self.book.lock();
        if book.closed {
            Err(DirectoryError::UnknownClient)
        } else {
            Ok(book)
        }
    }

    pub(crate) fn record(&self) -> ClientRecord {
        let book = self.book.lock();
        let pins = book.pins.iter();
        let pins: BTreeMap<_, _> = pins
            .map(|(key, (_, numbers))| (key.clone(), numbers.clone()))
            .collect();
        ClientRecord {
            process: self.who.process,
            instance: self.who.instance,
            pins,
        }
    }
}

impl Ledger {
    const SWEEP_AT_LEAST: usize = 256;

    fn new(leases: LeaseLedger<Booked>, adopted: bool) -> Self {
        Self {
            leases,
            closed: false,
            adopted,
            sweep_at: Self::SWEEP_AT_LEAST,
        }
    }

    /// How long the oldest lease has been held that is not swept.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        let since = self.leases.protected().map(|booked| booked.since).min();
        since.map(|since| since.elapsed())
    }

    /// Notes ended leases; returns how many.
    pub(crate) fn sweep(&mut self) -> usize {
        let ended = self.leases.sweep(|booked| booked.release());
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
    pub(crate) fn answered(&self, request: u64) -> Option<&Result<Vec<Grant>, DirectoryError>> {
        let mut answered = self.answered.iter();
        answered
            .find(|(number, _)| *number == request)
            .map(|(_, answer)| answer)
    }

    pub(crate) fn remember(&mut self, request: u64, answer: Result<Vec<Grant>, DirectoryError>) {
        if self.answered.len() == REMEMBERED_GRANTS {
            self.answered.pop_front();
        }
        self.answered.push_back((request, answer));
    }

    pub(crate) fn pin_count(&self) -> u64 {
        self.pins.values().map(|(_, pins)| pins.len() as u64).sum()
    }
}
