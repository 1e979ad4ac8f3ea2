//! What it costs to store into a full pool, by the number of clients that find objects by themselves: their slots are read
//! before objects are chosen to go and before pages are reused.
//!
//! `cargo bench -p ondol-directory --bench eviction` prints a table: rounds of all cases in turn, the median of each. A store
//! is a page granted, whose last object is evicted for it, and an object committed. *Held* is how many objects each client holds;
//! *notes* is how many finds each one notes before each grant.

use std::error::Error;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use ondol_directory::{Directory, Newcomer};
use ondol_memory::{Arena, NoJournal, Pool};
use ondol_plugin::{Key, KeyTag};
use ondol_protocol::{Commit, CommitOutcome};
use ondol_shm::{
    ClientId, IndexReader, Location, Looked, ObjectMeta, SlotLease, SlotTable, SlotTableView,
    create_lease_table,
};

const PAGE: u64 = 64 << 10;
const OBJECTS: u64 = 65_536;
const WRITER: ClientId = ClientId(1);
const STORES: u64 = 4_096;
const ROUNDS: usize = 9;

#[derive(Clone, Copy)]
struct Case {
    /// Whether there is an index at all.
    indexed: bool,
    readers: u64,
    held: u64,
    notes: usize,
    /// Pages that are granted, and objects that are committed, at once.
    batch: u32,
}

struct Reader {
    slots: Arc<SlotTable>,
    held: Vec<SlotLease>,
}

struct World {
    directory: Directory,
    readers: Vec<Reader>,
    case: Case,
    stored: u64,
    requests: u64,
}

fn key(index: u64) -> Result<Key, Box<dyn Error>> {
    let mut name = [0x5a; 100];
    name[..8].copy_from_slice(&index.to_le_bytes());
    Ok(Key::new(KeyTag::Raw, &name)?)
}

impl World {
    fn new(case: Case) -> Result<Self, Box<dyn Error>> {
        let arena = Arena {
            usable: 0..OBJECTS * PAGE,
            alignment: 4096,
            whole: false,
        };
        let policy = ondol_catalog::policy("lru").ok_or("no policy lru")?;
        let pool = Pool::new([arena], Some(OBJECTS * PAGE));
        let directory = Directory::new(pool, Arc::new(NoJournal), policy);
        if case.indexed {
            directory.open_index();
        }
        let attach = |client| -> Result<(), Box<dyn Error>> {
            let table = create_lease_table()?;
            directory.attach(client, Newcomer::default(), table.as_fd(), None)?;
            directory.set_slots(client, SlotTableView::create_anonymous()?);
            Ok(())
        };
        attach(WRITER)?;
        (0..case.readers).try_for_each(|number| attach(ClientId(2 + number)))?;
        let mut world = Self {
            directory,
            readers: Vec::new(),
            case,
            stored: 0,
            requests: 0,
        };
        world.store(OBJECTS, 64)?;
        for number in 0..case.readers {
            let files = world.directory.index(ClientId(2 + number));
            let files = files.map_err(|error| format!("{error:?}"))?;
            let files = files.ok_or("no index")?;
            let index = IndexReader::open(files.index.as_fd())?;
            let slots = SlotTable::open(files.slots.as_fd())?;
            // Those that would go next.
            let first = number * case.held;
            let keys: Result<Vec<_>, _> = (first..first + case.held).map(key).collect();
            let mut held = Vec::new();
            index.lease(&slots, &keys?, |_, looked| {
                if let Looked::Found((_, lease)) = looked {
                    held.push(lease);
                }
            });
            if held.len() as u64 != case.held {
                return Err("not all objects were found".into());
            }
            world.readers.push(Reader { slots, held });
        }
        Ok(world)
    }

    fn store(&mut self, count: u64, batch: u32) -> Result<(), Box<dyn Error>> {
        let end = self.stored + count;
        while self.stored < end {
            for reader in &self.readers {
                let held = reader.held.iter();
                let pages: Vec<_> = held.take(self.case.notes).map(SlotLease::page).collect();
                reader.slots.note_hits(pages.into_iter());
            }
            self.requests += 1;
            let grants = self
                .directory
                .grant(WRITER, self.requests, PAGE, batch, u64::MAX);
            let grants = grants.map_err(|error| format!("{error:?}"))?;
            let mut commits = Vec::with_capacity(grants.len());
            for grant in grants {
                commits.push(Commit {
                    key: key(self.stored)?,
                    location: Location {
                        page: grant.page,
                        generation: grant.generation,
                        len: PAGE,
                    },
                    meta: ObjectMeta::default(),
                });
                self.stored += 1;
            }
            let outcomes = self.directory.commit(WRITER, &commits);
            let outcomes = outcomes.map_err(|error| format!("{error:?}"))?;
            if outcomes.iter().any(|it| *it != CommitOutcome::Stored) {
                return Err("an object was not stored".into());
            }
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut worlds = Vec::new();
    for batch in [1, 64] {
        for (indexed, readers, held, notes) in [
            (false, 0, 0, 0),
            (true, 0, 0, 0),
            (true, 1, 16, 0),
            (true, 1, 16, 16),
            (true, 16, 16, 0),
            (true, 16, 16, 16),
            (true, 1, 16_384, 0),
        ] {
            worlds.push(World::new(Case {
                indexed,
                readers,
                held,
                notes,
                batch,
            })?);
        }
    }
    let mut times = vec![Vec::new(); worlds.len()];
    for _ in 0..ROUNDS {
        for (world, times) in worlds.iter_mut().zip(&mut times) {
            let started = Instant::now();
            world.store(STORES, world.case.batch)?;
            times.push(started.elapsed().as_secs_f64() * 1e9 / STORES as f64);
        }
    }
    println!(
        "{:>6} {:>8} {:>8} {:>7} {:>6}  ns a store",
        "batch", "index", "readers", "held", "notes"
    );
    for (world, mut times) in worlds.iter().zip(times) {
        times.sort_by(f64::total_cmp);
        let Case {
            indexed,
            readers,
            held,
            notes,
            batch,
        } = world.case;
        let median = times[times.len() / 2];
        println!("{batch:>6} {indexed:>8} {readers:>8} {held:>7} {notes:>6}  {median:>10.0}");
    }
    Ok(())
}
