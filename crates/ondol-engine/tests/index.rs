//! Clients of an engine that find objects by themselves: who is given the index, and when it ends.

use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::Arc;

use ondol_engine::{Engine, EngineConfig, Session};
use ondol_plugin::Key;
use ondol_protocol::{
    Commit, CommitOutcome, ControlError, ControlPlane, DeleteOutcome, GrantRequest, IndexFiles,
};
use ondol_shm::{IndexReader, Location, Looked, ObjectMeta, Process, SlotLease, SlotTable};

const PAGE: u64 = 512 << 10;

fn engine() -> Arc<Engine> {
    let mut config = EngineConfig::new(["memfd:?size=2MiB".parse().unwrap()]);
    config.region_bytes = Some(2 << 20);
    config.share_limit = Some(u64::MAX);
    Engine::open(config).unwrap()
}

fn store(session: &Session, key: u64) -> Location {
    let request = GrantRequest {
        request: key + 1,
        stride: PAGE,
        count: 1,
    };
    let grant = session.grant(request).unwrap()[0];
    let location = Location {
        page: grant.page,
        generation: grant.generation,
        len: PAGE,
    };
    let commit = Commit {
        key: Key::integer(key),
        location,
        meta: ObjectMeta::default(),
    };
    let outcome = session.commit(&[commit]).unwrap();
    assert_eq!(outcome[..], [CommitOutcome::Stored]);
    location
}

/// What a client maps.
struct Reader {
    index: IndexReader,
    slots: Arc<SlotTable>,
}

impl Reader {
    fn of(session: &Session) -> Self {
        let IndexFiles { index, slots } = session.index().unwrap().unwrap();
        Self {
            index: IndexReader::open(index.as_fd()).unwrap(),
            slots: SlotTable::open(slots.as_fd()).unwrap(),
        }
    }

    fn find(&self, key: u64) -> Option<SlotLease> {
        let mut found = None;
        self.index
            .lease(&self.slots, &[Key::integer(key)], |_, looked| {
                if let Looked::Found((_, lease)) = looked {
                    found = Some(lease);
                }
            });
        found
    }
}

fn delete(session: &Session, key: u64) -> DeleteOutcome {
    session.delete(&[Key::integer(key)]).unwrap()[0]
}

#[test]
fn what_one_client_stores_another_finds_without_asking() {
    let engine = engine();
    let writer = engine.attach(None, [1; 16]).unwrap();
    let reader = engine.attach(None, [2; 16]).unwrap();
    let mapped = Reader::of(&reader);
    assert!(mapped.find(5).is_none());
    let location = store(&writer, 5);
    let lease = mapped.find(5).unwrap();
    assert_eq!(lease.page(), location.page);
    assert_eq!(delete(&writer, 5), DeleteOutcome::Deleted);
    assert!(mapped.find(5).is_none());
    assert_eq!(engine.stats().retired, 1);
    // The table is the same for as long as it is this client.
    let again = reader.index().unwrap().unwrap();
    let inode = |file: std::os::fd::OwnedFd| {
        use std::os::unix::fs::MetadataExt;
        std::fs::File::from(file).metadata().unwrap().ino()
    };
    let first = reader.index().unwrap().unwrap();
    assert_eq!(inode(again.slots), inode(first.slots));
    drop(lease);
    assert_eq!(engine.stats().retired, 0);
}

#[test]
fn a_client_that_is_killed_holds_nothing_any_more() {
    let engine = engine();
    let writer = engine.attach(None, [1; 16]).unwrap();
    let mut other = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let process = Process::of_pid(other.id()).unwrap();
    let reader = engine.attach(Some(&process), [2; 16]).unwrap();
    let mapped = Reader::of(&reader);
    store(&writer, 5);
    let lease = mapped.find(5).unwrap();
    assert_eq!(delete(&writer, 5), DeleteOutcome::Deleted);
    assert_eq!(engine.stats().retired, 1);
    other.kill().unwrap();
    other.wait().unwrap();
    // Whoever watches it says so.
    let reclaimed = engine.client_died(reader.client().id).unwrap();
    assert_eq!(reclaimed.leases, 1);
    assert_eq!(engine.stats().retired, 0);
    assert!(matches!(reader.index(), Err(ControlError::Refused(_))));
    drop(lease);
}

#[test]
fn a_session_that_ends_leaves_its_readers_what_they_hold() {
    let engine = engine();
    let writer = engine.attach(None, [1; 16]).unwrap();
    let reader = engine.attach(None, [2; 16]).unwrap();
    let mapped = Reader::of(&reader);
    store(&writer, 5);
    let lease = mapped.find(5).unwrap();
    drop(reader);
    assert!(mapped.find(5).is_none(), "it has left");
    assert_eq!(engine.stats().clients.len(), 2);
    assert_eq!(delete(&writer, 5), DeleteOutcome::Deleted);
    assert_eq!(engine.stats().retired, 1);
    drop(lease);
    let stats = engine.stats();
    assert_eq!((stats.retired, stats.clients.len()), (0, 1));
}

#[test]
fn a_closed_engine_gives_no_index_and_leaves_leases_alone() {
    let engine = engine();
    let writer = engine.attach(None, [1; 16]).unwrap();
    let mapped = Reader::of(&writer);
    store(&writer, 5);
    store(&writer, 6);
    let lease = mapped.find(5).unwrap();
    engine.close().unwrap();
    assert!(mapped.find(6).is_none());
    assert!(writer.index().unwrap().is_none());
    assert_eq!(mapped.slots.in_use(), 1);
    drop(lease);
}
