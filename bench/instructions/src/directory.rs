//! Stores, as the directory sees them: pages are granted, and objects made visible.

use std::os::fd::AsFd;
use std::sync::Arc;

use anyhow::Context;
use ondol_directory::{Directory, Newcomer};
use ondol_memory::{Arena, NoJournal, Pool};
use ondol_plugin::Key;
use ondol_protocol::{Commit, CommitOutcome, Grant};
use ondol_shm::{ClientId, Location, ObjectMeta, create_lease_table};

use crate::{Path, keys};

const CLIENT: ClientId = ClientId(1);
const PAGE: u64 = 4096;
const PAGES: usize = 4096;
const BATCH: usize = 64;

pub(crate) fn paths() -> anyhow::Result<Vec<Path>> {
    let mut granting = Stores::new(Vec::new())?;
    let grant = move || {
        let pages: Vec<_> = (0..PAGES / BATCH).flat_map(|_| granting.grant()).collect();
        assert_eq!(pages.len(), PAGES);
        for pages in pages.chunks(BATCH) {
            assert!(granting.directory.return_pages(CLIENT, pages).is_ok());
        }
    };
    // A name for each object that is stored: to fill the pool, once more to grow what grows, and while it is counted.
    let mut storing = Stores::new(keys(3 * PAGES))?;
    storing.store(PAGES);
    let store = move || storing.store(PAGES);
    Ok(vec![
        Path::new("directory.grant-and-return.64", PAGES, grant),
        Path::new("directory.evict-grant-commit.64", PAGES, store),
    ])
}

struct Stores {
    directory: Directory,
    requests: u64,
    keys: Vec<Key>,
}

impl Stores {
    fn new(keys: Vec<Key>) -> anyhow::Result<Self> {
        let bytes = PAGES as u64 * PAGE;
        let arena = Arena {
            usable: 0..bytes,
            alignment: 4096,
            whole: false,
        };
        let pool = Pool::new([arena], Some(bytes));
        let policy = ondol_catalog::policy(ondol_engine::DEFAULT_POLICY);
        let policy = policy.context("the default policy is linked in")?;
        let directory = Directory::new(pool, Arc::new(NoJournal), policy);
        let table = create_lease_table()?;
        directory.attach(CLIENT, Newcomer::default(), table.as_fd(), None)?;
        directory.open_index();
        Ok(Self {
            directory,
            requests: 0,
            keys,
        })
    }

    fn grant(&mut self) -> Vec<Grant> {
        self.requests += 1;
        let wanted = BATCH as u32;
        let granted = self
            .directory
            .grant(CLIENT, self.requests, PAGE, wanted, u64::MAX);
        granted.expect("there is room")
    }

    /// Stores so many objects, each of a new name.
    fn store(&mut self, objects: usize) {
        let mut left = objects;
        while left > 0 {
            let commits: Vec<_> = self
                .grant()
                .into_iter()
                .map(|grant| self.commit(grant))
                .collect();
            left = left.saturating_sub(commits.len());
            let outcomes = self.directory.commit(CLIENT, &commits);
            let outcomes = outcomes.expect("the client is known");
            assert!(
                outcomes
                    .iter()
                    .all(|outcome| *outcome == CommitOutcome::Stored)
            );
        }
    }

    fn commit(&mut self, grant: Grant) -> Commit {
        let key = self.keys.pop().expect("there is a name for each object");
        Commit {
            key,
            location: Location {
                page: grant.page,
                generation: grant.generation,
                len: PAGE,
            },
            meta: ObjectMeta::default(),
        }
    }
}
