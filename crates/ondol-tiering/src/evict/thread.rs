use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ondol_catalog::{EntryId, PolicyContext, failpoint};
use ondol_plugin::l2::{ListRequest, Usage};

use super::inventory::{Inventory, Victim};
use super::plan::{self, Plan};
use super::reports::{Heard, Report, Reports};
use crate::Quotas;
use crate::attached::Attached;
use crate::metrics::EvictCounters;

/// Objects in a page of a listing.
const PAGE_KEYS: usize = 512;
/// Objects that are chosen at once.
const CHOOSE_KEYS: usize = 4096;
/// Objects that are deleted at once.
const DELETE_KEYS: usize = 256;
/// After so many failures in a row a listing is said not to work, and begins anew.
const LIST_TRIES: u32 = 3;
/// The longest pause before a listing that fails is tried again: what it does not tell is never evicted.
const LONGEST_LIST_PAUSE: Duration = Duration::from_secs(300);

/// Makes room in one backend.
pub(super) struct EvictThread {
    attached: Arc<Attached>,
    reports: Arc<Reports>,
    quotas: Arc<Quotas>,
    counters: Arc<EvictCounters>,
    inventory: Inventory,
    listing: Listing,
    cursors: Cursors,
    /// Where an eviction that has begun ends, in bytes.
    target: Option<u64>,
    /// Objects that were locked when they were to go.
    locked: HashSet<EntryId>,
    /// When those are tried again.
    unlocked: Timer,
    /// When the backend may be able to delete again.
    works: Timer,
    /// When to look at a usage again that is still being counted.
    counted: Timer,
    /// When to list again, and how often that has failed in a row.
    lists: Timer,
    list_failures: u32,
    /// Whether the usage was known when it was last listed what is there.
    listed_whole: bool,
}

/// How far it is known what was stored before.
#[derive(Debug)]
enum Listing {
    /// The next page begins here.
    Next(Option<String>),
    /// All is known.
    Done,
}

/// The cursors of a listing, of which none may come twice: it would never end.
///
/// One of them is remembered, and another one after twice as many pages each time, so that a circle of any length is found.
#[derive(Debug)]
struct Cursors {
    remembered: Option<String>,
    pages: u32,
    pages_until_next: u32,
}

impl Cursors {
    fn new() -> Self {
        Self {
            remembered: None,
            pages: 0,
            pages_until_next: 1,
        }
    }

    /// Whether the listing goes round in a circle.
    fn repeat(&mut self, next: &str) -> bool {
        if self.remembered.as_deref() == Some(next) {
            return true;
        }
        self.pages += 1;
        if self.pages == self.pages_until_next {
            self.remembered = Some(next.to_owned());
            self.pages = 0;
            self.pages_until_next = self.pages_until_next.saturating_mul(2);
        }
        false
    }
}

/// When something is tried again; the pause doubles each time.
#[derive(Debug)]
struct Timer {
    at: Option<Instant>,
    pause: Duration,
    longest: Duration,
}

impl Timer {
    const FIRST_PAUSE: Duration = Duration::from_millis(200);
    const LONGEST_PAUSE: Duration = Duration::from_secs(10);

    fn new() -> Self {
        Self::up_to(Self::LONGEST_PAUSE)
    }

    /// A timer whose pauses become so long.
    fn up_to(longest: Duration) -> Self {
        Self {
            at: None,
            pause: Self::FIRST_PAUSE,
            longest,
        }
    }

    fn is_first(&self) -> bool {
        self.pause == Self::FIRST_PAUSE
    }

    fn set(&mut self, now: Instant) {
        if self.at.is_none() {
            self.at = Some(now + self.pause);
            self.pause = (self.pause * 2).min(self.longest);
        }
    }

    /// Whether its time has come, once.
    fn rings(&mut self, now: Instant) -> bool {
        self.at.take_if(|at| *at <= now).is_some()
    }
}

/// That a backend does not delete.
struct CannotDelete;

impl EvictThread {
    pub(super) fn new(
        attached: Arc<Attached>,
        reports: Arc<Reports>,
        quotas: Arc<Quotas>,
        counters: Arc<EvictCounters>,
    ) -> Self {
        let context = PolicyContext {
            capacity_bytes: attached.backend.usage().capacity_bytes,
            quotas: Some(Arc::clone(&quotas) as _),
        };
        Self {
            inventory: Inventory::new((reports.policy.build)(&context)),
            attached,
            reports,
            quotas,
            counters,
            listing: Listing::Next(None),
            cursors: Cursors::new(),
            target: None,
            locked: HashSet::new(),
            unlocked: Timer::new(),
            works: Timer::new(),
            counted: Timer::new(),
            lists: Timer::up_to(LONGEST_LIST_PAUSE),
            list_failures: 0,
            listed_whole: false,
        }
    }

    pub(super) fn run(mut self) {
        loop {
            let lists = matches!(self.listing, Listing::Next(_)) && self.lists.at.is_none();
            let heard = if lists && !self.reports.is_filling() {
                // What is new is heard when all that is older is known, so that it counts as younger.
                Heard::default()
            } else {
                let timers = [&self.unlocked, &self.works, &self.counted, &self.lists];
                let wake = timers.into_iter().filter_map(|timer| timer.at).min();
                self.reports
                    .next(if lists { Some(Instant::now()) } else { wake })
            };
            if heard.stop {
                break;
            }
            self.hear(heard);
            if lists {
                self.list_page();
            }
            let now = Instant::now();
            if self.unlocked.rings(now) {
                self.locked.clear();
            }
            for timer in [&mut self.works, &mut self.counted, &mut self.lists] {
                timer.rings(now);
            }
            if self.works.at.is_none() && self.make_room().is_err() {
                self.reports.stop();
                break;
            }
        }
    }

    fn hear(&mut self, heard: Heard) {
        if heard.lost {
            self.listing = Listing::Next(None);
        }
        for report in heard.reports {
            match report {
                Report::Stored(key, bytes) => self.inventory.insert(key, bytes),
                Report::Loaded(key) => self.inventory.accessed(&key),
                Report::Deleted(key) => self.inventory.remove(&key),
            }
        }
    }

    /// Learns a page of what is there.
    fn list_page(&mut self) {
        let Listing::Next(cursor) = std::mem::replace(&mut self.listing, Listing::Done) else {
            return;
        };
        let backend = &self.attached.backend;
        if cursor.is_none() {
            self.listed_whole = backend.usage().is_complete;
            self.cursors = Cursors::new();
        }
        let request = ListRequest {
            model_name: None,
            page_size: PAGE_KEYS,
            cursor,
        };
        match backend.list_keys(&request) {
            Ok(page) => {
                for entry in page.entries {
                    self.inventory.insert(entry.key, entry.size_bytes);
                }
                match page.next_cursor {
                    Some(next) if self.cursors.repeat(&next) => {
                        let reason = format!("the cursor {next:?} comes again and again");
                        self.list_failures = self.list_failures.max(LIST_TRIES - 1);
                        self.listing_failed(None, &reason);
                    }
                    Some(next) => self.listing = Listing::Next(Some(next)),
                    // A circle is found late: only an end shows that there was none.
                    None => {
                        self.list_failures = 0;
                        self.lists = Timer::up_to(LONGEST_LIST_PAUSE);
                    }
                }
            }
            Err(error) => self.listing_failed(request.cursor, &error.to_string()),
        }
    }

    /// It is tried again after a pause. A cursor that failed too often may be of no use any more.
    fn listing_failed(&mut self, cursor: Option<String>, reason: &str) {
        self.list_failures = self.list_failures.saturating_add(1);
        if self.list_failures == LIST_TRIES {
            let backend = self.attached.backend.name();
            tracing::info!(
                backend,
                reason,
                "the backend does not list what it has: until it does, only what is stored from now on can be evicted"
            );
        }
        let restarts = self.list_failures >= LIST_TRIES;
        self.listing = Listing::Next(cursor.filter(|_| !restarts));
        self.lists.set(Instant::now());
    }

    /// Deletes what is too much.
    fn make_room(&mut self) -> Result<(), CannotDelete> {
        let mut usage = self.usage();
        loop {
            let plan = self.plan(&usage);
            if plan.is_empty() {
                self.unlocked = Timer::new();
                self.locked.clear();
                break;
            }
            let victims = self
                .inventory
                .choose(plan, CHOOSE_KEYS, |id| self.locked.contains(&id));
            failpoint!("l2evict.chosen");
            if victims.is_empty() {
                if !self.locked.is_empty() {
                    self.unlocked.set(Instant::now());
                }
                break;
            }
            let mut gone = 0;
            for victims in victims.chunks(DELETE_KEYS) {
                gone += self.delete(victims)?;
                if self.works.at.is_some() || self.reports.is_filling() {
                    break;
                }
            }
            let before = usage.used_bytes;
            usage = self.usage();
            // A backend whose usage does not follow what is deleted must not lose everything.
            let lags = gone > 0 && usage.used_bytes >= before;
            if lags || self.works.at.is_some() || self.reports.is_filling() {
                break;
            }
        }
        let any_quota = self.quotas.has_any();
        let headroom = plan::headroom(&usage, &self.reports.spec);
        self.reports.wake_after(headroom, any_quota);
        Ok(())
    }

    fn plan(&mut self, usage: &Usage) -> Plan {
        Plan::new(usage, &self.reports.spec, &self.quotas, &mut self.target)
    }

    /// What is used. While it is still being counted it is asked for again.
    fn usage(&mut self) -> Usage {
        let usage = self.attached.backend.usage();
        if !usage.is_complete {
            self.counted.set(Instant::now());
        } else if !self.listed_whole && matches!(self.listing, Listing::Done) {
            // The listing may have begun before everything was found.
            self.listing = Listing::Next(None);
        }
        usage
    }

    /// Deletes objects that are not locked; how many are gone.
    fn delete(&mut self, victims: &[Victim]) -> Result<usize, CannotDelete> {
        let keys: Vec<_> = victims.iter().map(|victim| victim.key.clone()).collect();
        let name = self.attached.backend.name();
        let result = match self.attached.backend.delete(&keys) {
            Ok(result) => result,
            Err(error) => {
                self.counters.delete_failures.increment();
                if self.works.is_first() {
                    tracing::warn!(backend = name, %error, "nothing can be evicted from the backend now");
                }
                self.works.set(Instant::now());
                return Ok(0);
            }
        };
        failpoint!("l2evict.deleted");
        self.works = Timer::new();
        let mut bytes = 0;
        for (at, victim) in victims.iter().enumerate() {
            if result.gone.test(at) {
                bytes = victim.bytes.saturating_add(bytes);
                self.inventory.remove(&victim.key);
            } else {
                self.locked.insert(victim.id);
            }
        }
        let gone = result.gone.count_ones();
        self.counters.evicted.add(gone as u64);
        self.counters.evicted_bytes.add(bytes);
        self.counters.locked.add(result.locked.count_ones() as u64);
        if gone == 0 && result.locked.count_ones() == 0 {
            tracing::warn!(
                backend = name,
                "the backend does not delete: it is left alone; remove `eviction` from its configuration"
            );
            return Err(CannotDelete);
        }
        Ok(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::Cursors;

    #[test]
    fn a_listing_that_goes_round_in_a_circle_is_found_out_and_no_other() {
        for (before, circle) in [(0, 1), (0, 2), (3, 1), (5, 7), (100, 33)] {
            let mut cursors = Cursors::new();
            let number = |page: u32| {
                if page < before {
                    page
                } else {
                    before + (page - before) % circle
                }
            };
            let found = (0..1000).find(|page| cursors.repeat(&number(*page).to_string()));
            let found = found.expect("it is found out");
            assert!(found >= before + circle, "no cursor had come twice");
        }
        let mut cursors = Cursors::new();
        assert!((0..10_000).all(|page| !cursors.repeat(&page.to_string())));
    }
}
