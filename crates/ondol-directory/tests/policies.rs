//! What the directory tells its policies.

use std::os::fd::AsFd;
use std::sync::Arc;

use ondol_catalog::SaltLimits;
use ondol_directory::{Directory, Newcomer};
use ondol_memory::{Arena, NoJournal, Pool};
use ondol_plugin::{Key, KeyTag};
use ondol_protocol::{Commit, CommitOutcome};
use ondol_shm::{ClientId, Location, ObjectMeta, create_lease_table};

const PAGE: u64 = 512 << 10;
const PAGES: u64 = 4;
const CLIENT: ClientId = ClientId(1);

/// A directory with room for four objects.
struct Four {
    directory: Directory,
    requests: u64,
}

impl Four {
    fn new(policy: &str) -> Self {
        let arena = Arena {
            usable: 0..PAGES * PAGE,
            alignment: 4096,
            whole: false,
        };
        let pool = Pool::new([arena], Some(PAGES * PAGE));
        let policy = ondol_catalog::policy(policy).unwrap();
        let directory = Directory::new(pool, Arc::new(NoJournal), policy);
        let table = create_lease_table().unwrap();
        directory
            .attach(CLIENT, Newcomer::default(), table.as_fd(), None)
            .unwrap();
        Self {
            directory,
            requests: 0,
        }
    }

    fn store(&mut self, name: &str) {
        self.requests += 1;
        let grants = self
            .directory
            .grant(CLIENT, self.requests, PAGE, 1, u64::MAX);
        let grant = grants.unwrap()[0];
        let commit = Commit {
            key: key(name),
            location: Location {
                page: grant.page,
                generation: grant.generation,
                len: PAGE,
            },
            meta: ObjectMeta::default(),
        };
        let outcomes = self.directory.commit(CLIENT, &[commit]);
        assert_eq!(outcomes, Ok(vec![CommitOutcome::Stored].into()));
    }

    fn has(&self, name: &str) -> bool {
        self.directory.locate(&[key(name)])[0].is_some()
    }
}

/// `hash` or `hash@salt`, of one model.
fn key(name: &str) -> Key {
    Key::new(KeyTag::LmCache, format!("m@01000100@0@{name}").as_bytes()).unwrap()
}

#[derive(Debug)]
struct OnePageForA;

impl SaltLimits for OnePageForA {
    fn limit(&self, salt: &str) -> Option<u64> {
        (salt == "a").then_some(PAGE)
    }
}

#[test]
fn a_salt_gives_what_it_has_beyond_its_limit() {
    let mut four = Four::new("isolated-lru");
    four.directory.set_salt_limits(Arc::new(OnePageForA));
    for name in ["01@b", "02@b", "03@a", "04@a"] {
        four.store(name);
    }
    four.store("05@b");
    assert!(!four.has("03@a") && four.has("01@b"));
    // Within its limit, it is spared for the fullest.
    four.store("06@b");
    assert!(!four.has("01@b") && four.has("04@a"));
}

#[test]
fn without_limits_the_fullest_salt_gives() {
    let mut four = Four::new("isolated-lru");
    for name in ["01@b", "02@a", "03@a", "04"] {
        four.store(name);
    }
    four.store("05");
    assert!(!four.has("02@a") && four.has("01@b"));
}

#[test]
fn an_object_that_comes_back_is_known_again() {
    for (policy, stays) in [("lru", false), ("s3-fifo", true)] {
        let mut four = Four::new(policy);
        for name in ["01", "02", "03", "04", "05"] {
            four.store(name);
        }
        assert!(!four.has("01"), "{policy}");
        for name in ["01", "06", "07", "08", "09"] {
            four.store(name);
        }
        assert_eq!(four.has("01"), stays, "{policy}");
    }
}
