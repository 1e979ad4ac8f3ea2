//! What clients tell without a message: which pages they read, what they found, which pages they give back.
//!
//! A client takes a lease from the index by naming the page in a slot that only it writes, and looking whether the object
//! is still there. So a page may be reused only when its object was made unfindable first and no slot named it after that.
//! Everything here is the writer's. Tables are read with system calls, so that one that its client cut short is an error:
//! then nobody knows what the client reads, and nothing is reused until it is dead.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::OwnedFd;

use foldhash::fast::RandomState;
use ondol_catalog::failpoint;
use ondol_memory::Position;
use ondol_shm::{ClientId, Grant, PageId, SlotTableView};

/// So many notes of what clients found are taken at once, under the writer's lock; of those who wrote more, the last ones.
/// Readers write them many times faster than they can be dealt with.
const HITS_AT_ONCE: u32 = 2048;
/// Of each client so many at least.
const HITS_OF_EACH: u32 = 16;

/// One client's table.
#[derive(Debug)]
struct Table {
    view: SlotTableView,
    /// Whether the client was ever given it; else there is nothing to read.
    is_given: bool,
    /// Whether the client has left, so that it may use no index any more.
    has_left: bool,
    /// Whether it is sure that the client can take no lease from now on.
    is_shut: bool,
    /// What was last scanned.
    leases: Leases,
    /// What the client had counted when that was last asked.
    counted: (u64, u64),
    /// Pages that were given back and whose return the journal refused.
    refused: Vec<Grant>,
    /// Where the journal has what was last read from the ring of returns, as long as the ring has it too.
    returned: Option<Position>,
    has_complained: bool,
}

/// What a client holds by its slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leases {
    pub(crate) count: u64,
    /// Since when the oldest is held, in milliseconds of the monotonic clock.
    pub(crate) oldest: Option<u64>,
}

/// The tables of all clients that are not dead.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    tables: BTreeMap<ClientId, Table>,
    /// How many slots named a page when they were last scanned.
    held: HashMap<PageId, u32, RandomState>,
    /// Whether a table could not be read then, so that any page may be held.
    is_blind: bool,
}

impl Slots {
    /// A new client's table.
    pub(crate) fn add(&mut self, client: ClientId, view: SlotTableView) {
        self.tables.insert(client, Table::new(view, false));
    }

    /// The table of a client of the last run, which no index may be used with yet.
    pub(crate) fn adopt(&mut self, client: ClientId, view: SlotTableView) {
        let mut table = Table::new(view, true);
        // An earlier server has counted that.
        table.counted = table.view.counts().unwrap_or_default();
        self.tables.insert(client, table);
    }

    /// Gives a client its table, to be used with the index of this name; nothing if it has none, or has left.
    pub(crate) fn give(&mut self, client: ClientId, index: u64) -> io::Result<Option<OwnedFd>> {
        let table = self.tables.get_mut(&client);
        let Some(table) = table.filter(|table| !table.has_left) else {
            return Ok(None);
        };
        let opened = table.view.open_for_client()?;
        table.view.set_incarnation(index)?;
        table.is_given = true;
        Ok(Some(opened))
    }

    /// Lets clients use the index of this name, and no other.
    pub(crate) fn set_index(&mut self, index: u64) {
        let tables = self.tables.iter_mut().filter(|(_, table)| table.is_given);
        for (client, table) in tables.filter(|(_, table)| !table.has_left) {
            if let Err(error) = table.view.set_incarnation(index) {
                table.complain(*client, &error);
            }
        }
    }

    /// The client leaves: it takes no lease any more.
    pub(crate) fn leave(&mut self, client: ClientId) {
        if let Some(table) = self.tables.get_mut(&client) {
            table.has_left = true;
            table.shut(client);
        }
    }

    /// Whether a client that has left holds nothing, and will not.
    pub(crate) fn is_empty(&mut self, client: ClientId) -> bool {
        let Some(table) = self.tables.get_mut(&client) else {
            return true;
        };
        // In this order.
        table.has_left
            && table.shut(client)
            && table.scan(client, |_| {})
            && table.leases.count == 0
    }

    /// Forgets a client that is dead, or holds nothing; what its slots name, and what it counted since.
    pub(crate) fn remove(&mut self, client: ClientId) -> Option<(Leases, (u64, u64))> {
        let mut table = self.tables.remove(&client)?;
        // For one whose process lives. Of a dead one it does not matter whether it can be written or read.
        let _ = table.view.set_incarnation(0);
        table.has_complained = true;
        table.scan(client, |_| {});
        Some((table.leases, table.count(client)))
    }

    /// Whether no client can hold anything by a slot.
    pub(crate) fn are_unused(&self) -> bool {
        !self.tables.values().any(|table| table.is_given)
    }

    /// Notes what all clients hold. Who is not named now reads nothing that was made unfindable before.
    pub(crate) fn scan(&mut self) {
        self.held.clear();
        self.is_blind = false;
        for (&client, table) in &mut self.tables {
            let held = &mut self.held;
            let is_seen = table.scan(client, |page| *held.entry(page).or_default() += 1);
            self.is_blind |= !is_seen;
        }
        failpoint!("slots.scanned");
    }

    /// Whether a page was held when that was last noted.
    pub(crate) fn hold(&self, page: PageId) -> bool {
        self.is_blind || self.held.contains_key(&page)
    }

    /// How many leases there were on each page when that was last noted.
    pub(crate) fn leases_by_page(&self) -> HashMap<PageId, u32, RandomState> {
        self.held.clone()
    }

    /// The pages that were held when that was last noted.
    pub(crate) fn held(&self) -> impl Iterator<Item = PageId> {
        self.held.keys().copied()
    }

    /// What a client held when that was last noted.
    pub(crate) fn leases_of(&self, client: ClientId) -> Leases {
        let table = self.tables.get(&client);
        table.map(|table| table.leases).unwrap_or_default()
    }

    /// Takes what clients found since: the pages of these objects; of many the last ones of each client.
    pub(crate) fn take_hits(&mut self, mut hit: impl FnMut(PageId)) {
        let (mut places, mut clients) = (HITS_AT_ONCE, self.tables.len() as u32);
        for (client, table) in &mut self.tables {
            // What one client leaves the next ones may use.
            let most = (places / clients).max(HITS_OF_EACH);
            clients -= 1;
            if !table.is_given {
                continue;
            }
            let drained = table.view.drain_hits(most, |page| {
                places = places.saturating_sub(1);
                hit(page);
            });
            if let Err(error) = drained {
                table.complain(*client, &error);
            }
        }
    }

    /// Takes the pages that one client, or each, gave back since. [`settle_returns`](Self::settle_returns) follows.
    pub(crate) fn take_returns(&mut self, of: Option<ClientId>) -> Vec<(ClientId, Grant)> {
        let mut returned = Vec::new();
        let tables = self.tables.iter_mut().filter(|(_, table)| table.is_given);
        for (&client, table) in tables.filter(|(client, _)| of.is_none_or(|of| of == **client)) {
            returned.extend(table.refused.drain(..).map(|grant| (client, grant)));
            let drained = table
                .view
                .drain_returns(|grant| returned.push((client, grant)));
            if let Err(error) = drained {
                table.complain(client, &error);
            }
        }
        returned
    }

    /// Of what was taken, the journal has up to `position` all but what was `refused`.
    pub(crate) fn settle_returns(
        &mut self,
        taken: &[(ClientId, Grant)],
        refused: Vec<(ClientId, Grant)>,
        position: Position,
    ) {
        for (client, _) in taken {
            if let Some(table) = self.tables.get_mut(client) {
                table.returned = Some(position);
            }
        }
        for (client, grant) in refused {
            if let Some(table) = self.tables.get_mut(&client) {
                table.refused.push(grant);
            }
        }
    }

    /// Whether a ring has returns that the journal has, too.
    pub(crate) fn have_returned(&self) -> bool {
        let mut tables = self.tables.values();
        tables.any(|table| table.returned.is_some())
    }

    /// What the journal has up to `durable` may be dropped from the rings.
    pub(crate) fn drop_returned(&mut self, durable: Position) {
        for (client, table) in &mut self.tables {
            if table.returned.is_some_and(|position| position <= durable)
                && table.refused.is_empty()
            {
                table.returned = None;
                if let Err(error) = table.view.returns_done() {
                    table.complain(*client, &error);
                }
            }
        }
    }

    /// Takes what clients counted since: hits and misses.
    pub(crate) fn take_counts(&mut self) -> (u64, u64) {
        let tables = self.tables.iter_mut().filter(|(_, table)| table.is_given);
        tables.fold((0, 0), |(hits, misses): (u64, u64), (client, table)| {
            let (more_hits, more_misses) = table.count(*client);
            // They are the client's words.
            (
                hits.saturating_add(more_hits),
                misses.saturating_add(more_misses),
            )
        })
    }
}

impl Table {
    fn new(view: SlotTableView, is_given: bool) -> Self {
        Self {
            view,
            is_given,
            has_left: false,
            is_shut: false,
            leases: Leases::default(),
            counted: (0, 0),
            refused: Vec::new(),
            returned: None,
            has_complained: false,
        }
    }

    /// Calls `held` with every page that is held; whether that could be seen.
    fn scan(&mut self, client: ClientId, mut held: impl FnMut(PageId)) -> bool {
        if !self.is_given {
            return true;
        }
        let mut leases = Leases::default();
        let scanned = self.view.scan(|slot| {
            leases.count += 1;
            let oldest = leases
                .oldest
                .map_or(slot.since, |oldest| oldest.min(slot.since));
            leases.oldest = Some(oldest);
            held(slot.page);
        });
        match scanned {
            Ok(()) => self.leases = leases,
            Err(ref error) => self.complain(client, error),
        }
        scanned.is_ok()
    }

    /// Keeps the client from taking leases; whether that is sure.
    fn shut(&mut self, client: ClientId) -> bool {
        if !self.is_given {
            return true;
        }
        if !self.is_shut {
            match self.view.set_incarnation(0) {
                Ok(()) => self.is_shut = true,
                Err(error) => self.complain(client, &error),
            }
        }
        self.is_shut
    }

    fn count(&mut self, client: ClientId) -> (u64, u64) {
        match self.view.counts() {
            Ok(counted) => {
                let (hits, misses) = std::mem::replace(&mut self.counted, counted);
                // A client that counts backwards is not believed.
                (
                    counted.0.saturating_sub(hits),
                    counted.1.saturating_sub(misses),
                )
            }
            Err(error) => {
                self.complain(client, &error);
                (0, 0)
            }
        }
    }

    fn complain(&mut self, client: ClientId, error: &io::Error) {
        if !std::mem::replace(&mut self.has_complained, true) {
            tracing::warn!(
                %error, %client,
                "the slot table of a client cannot be used: no page is freed until its process has ended"
            );
        }
    }
}
