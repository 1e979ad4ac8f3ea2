//! What a reader holds stays as it is, for exactly as long as it is held.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ondol_handler::{
    ControlError, ControlPlane, DeleteOutcome, Handler, HandlerError, Key, Object, PageSizes,
    SocketOptions, SocketPlane,
};
use ondol_protocol::{Commit, CommitOutcome, GrantRequest, RefusedCommit, Retrieve, StaleReason};
use ondol_shm::{Generation, Grant, LEASE_SLOTS, LeaseSlots, Location, ObjectMeta, PageId, SLOTS};
use ondol_tests::{Actor, Server, check, eventually, fill, key, keys, plain, watchdog};
use rustix::process::Signal;

const ACTOR: &str = env!("CARGO_BIN_EXE_actor");
const PAGE: u64 = 65_536;
const LIMIT: Duration = Duration::from_secs(120);

fn put(handler: &Handler, text: &str, writer: u64) {
    let mut page = handler.alloc(PAGE as usize).unwrap();
    fill(&mut page, text, writer);
    handler.store(&key(text), page).unwrap();
}

fn get(handler: &Handler, text: &str) -> Object {
    let object = handler.retrieve(&key(text)).unwrap();
    object.unwrap_or_else(|| panic!("{text} is not there"))
}

/// Another process rewrites every page of the pool that can be had, several times.
fn press(server: &Server, mib: u64) {
    let mut other = Actor::client(ACTOR, server.socket());
    for index in 0..mib * 16 * 3 {
        let answer = other.ask(&format!("put pressure{index} {PAGE} 99"));
        assert_eq!(answer, "ok new");
    }
}

#[test]
fn bytes_of_a_held_object_never_change() {
    let _watchdog = watchdog("leases", LIMIT);
    let server = Server::start(4);
    let handler = server.handler(plain(&[PAGE]));
    let names = ["deleted", "evicted", "closed", "stopped"];
    names.iter().for_each(|name| put(&handler, name, 7));
    let held: Vec<_> = names.iter().map(|name| get(&handler, name)).collect();
    let whole = |when: &str| {
        for (name, object) in names.iter().zip(&held) {
            assert_eq!(check(object, name), Ok(7), "{when}");
        }
    };

    assert_eq!(
        handler.delete(&key("deleted")).unwrap(),
        DeleteOutcome::Deleted
    );
    assert!(!handler.exists(&key("deleted")).unwrap());
    press(&server, 4);
    whole("after a delete and under pressure");
    assert!(server.counter("ondol_evictions_total") > 0);

    handler.close();
    press(&server, 4);
    whole("after the handler was closed");

    handler.reconnect().unwrap();
    press(&server, 4);
    whole("after the handler came back");

    server.stop();
    let engine = Arc::clone(&server.engine);
    let inside = Handler::embedded(move || engine.attach(None, [0; 16]), plain(&[PAGE])).unwrap();
    (0..200).for_each(|index| put(&inside, &format!("inside{index}"), 8));
    whole("after the door was closed");
    drop(handler);
    (0..200).for_each(|index| put(&inside, &format!("again{index}"), 8));
    whole("after the handler was dropped");
}

#[test]
fn a_lease_ends_with_the_last_clone_and_not_before() {
    let _watchdog = watchdog("leases", LIMIT);
    let server = Server::start(4);
    let handler = server.handler(plain(&[PAGE]));
    put(&handler, "k", 1);
    let own = || server.clients_of(std::process::id())[0].leases;
    let object = get(&handler, "k");
    let clones = [object.clone(), object.clone()];
    let second = get(&handler, "k");
    assert_eq!(own(), 2);
    drop(object);
    assert_eq!(own(), 2);
    drop(clones);
    assert_eq!(own(), 1);
    drop(second);
    assert_eq!(own(), 0);
    assert_eq!(handler.counts().leases, 0);
}

#[test]
fn a_miss_holds_nothing() {
    let _watchdog = watchdog("leases", LIMIT);
    let server = Server::start(4);
    let handler = server.handler(plain(&[PAGE]));
    put(&handler, "a", 1);
    put(&handler, "b", 1);
    let asked = ["a", "missing", "b"].map(key);
    let objects = handler.match_prefix(&asked).unwrap();
    assert_eq!(objects.len(), 1);
    assert!(handler.retrieve_group(&asked).unwrap().is_none());
    assert_eq!(handler.counts().leases, 1);
    drop(objects);
    assert_eq!(handler.counts().leases, 0);
    assert_eq!(server.clients_of(std::process::id())[0].leases, 0);
}

#[test]
fn a_closed_socket_does_not_end_a_lease() {
    // One closed connection of a living process cost it its regions.
    let _watchdog = watchdog("leases", LIMIT);
    let server = Server::start(4);
    // A client that keeps no connection open: whatever it holds, it holds without a socket.
    let mut client = Actor::client_with(ACTOR, server.socket(), &["idle=0"], &[]);
    client.ok(&format!("put kept {PAGE} 5"));
    client.ok("get kept object");
    client.ok(&format!("alloc page {PAGE}"));
    client.ok("fill page later 6");
    client.ok(&format!("put pinned {PAGE} 7"));
    client.ok("pin pinned");
    press(&server, 4);
    assert_eq!(client.ok("check object kept"), "5");
    assert_eq!(client.ok("store later page"), "new");
    client.ok("get later later");
    assert_eq!(client.ok("check later later"), "6");
    assert_eq!(client.ok("unpin pinned"), "true");
    assert_eq!(server.clients_of(client.pid()).len(), 1);
}

#[test]
fn a_stopped_client_does_not_lose_what_it_holds() {
    let _watchdog = watchdog("leases", LIMIT);
    let server = Server::start(4);
    let mut client = Actor::client(ACTOR, server.socket());
    client.ok(&format!("put kept {PAGE} 5"));
    client.ok("get kept object");
    client.ok(&format!("alloc page {PAGE}"));
    client.freeze();
    press(&server, 4);
    let stats = server.clients_of(client.pid());
    assert_eq!((stats[0].leases, stats[0].granted_pages), (1, 1));
    client.thaw();
    assert_eq!(client.ok("check object kept"), "5");
    client.ok("fill page late 6");
    assert_eq!(client.ok("store late page"), "new");
}

#[test]
fn many_threads_of_one_handler_are_not_many_clients() {
    let _watchdog = watchdog("leases", LIMIT);
    let server = Server::start(4);
    let handler = server.handler(plain(&[PAGE]));
    (0..8).for_each(|index| put(&handler, &format!("k{index}"), 1));
    let held: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|index| {
                let handler = &handler;
                scope.spawn(move || {
                    let name = format!("k{index}");
                    (0..50).for_each(|_| drop(get(handler, &name)));
                    get(handler, &name)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let clients = server.clients_of(std::process::id());
    assert_eq!(clients.len(), 1, "{clients:?}");
    assert_eq!(clients[0].leases, 8);
    drop(held);
}

#[test]
fn a_forked_child_cannot_use_or_end_what_its_parent_holds() {
    let _watchdog = watchdog("leases", LIMIT);
    let server = Server::start(8);
    let socket = server.socket().to_str().unwrap().to_owned();
    let record = server.dir().join("record");
    let variables = [(recording_plugin::FILE_VARIABLE, record.to_str().unwrap())];
    let actor = Actor::spawn(ACTOR, ["fork", socket.as_str()], &variables);
    assert_eq!(actor.line(), "ok");
    let clients = server.clients_of(actor.pid());
    assert_eq!(clients.len(), 1, "{clients:?}");
    assert_eq!((clients[0].leases, clients[0].pins), (1, 1));
    let handler = server.handler(plain(&[PAGE]));
    assert_eq!(
        handler.delete(&key("forked")).unwrap(),
        DeleteOutcome::Pinned
    );
    assert!(!handler.exists(&key("child")).unwrap());
    assert!(actor.finish().success());
    // The plugin was closed and ended once, by the parent.
    let record = std::fs::read_to_string(record).unwrap();
    let hooks: Vec<_> = record.lines().map(|line| line.contains("drop")).collect();
    assert_eq!(hooks, [false, false, true], "{record}");
}

#[test]
fn a_forked_child_cannot_end_its_parents_server() {
    let _watchdog = watchdog("leases", LIMIT);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let actor = Actor::spawn(ACTOR, ["fork-server", path], &[]);
    assert_eq!(actor.line(), "ok");
    assert!(actor.finish().success());
}

#[test]
fn a_write_through_a_held_object_does_not_go_through() {
    let _watchdog = watchdog("leases", LIMIT);
    let server = Server::start(4);
    let handler = server.handler(plain(&[PAGE]));
    put(&handler, "k", 3);
    let socket = server.socket().to_str().unwrap().to_owned();
    let mut actor = Actor::spawn(ACTOR, ["fault", socket.as_str(), "k"], &[]);
    assert_eq!(actor.line(), "ready");
    actor.tell("write");
    let status = actor.wait();
    assert_eq!(status.signal(), Some(Signal::SEGV.as_raw()), "{status}");
    assert_eq!(check(&get(&handler, "k"), "k"), Ok(3));
    eventually("the lease of the dead reader is gone", || {
        server.stats().clients.len() == 1
    });
}

fn commit(grant: Grant, len: u64, text: &str) -> Commit {
    Commit {
        key: key(text),
        location: Location {
            page: grant.page,
            generation: grant.generation,
            len,
        },
        meta: ObjectMeta::default(),
    }
}

#[test]
fn a_page_is_not_freed_twice_nor_used_after() {
    // LMCache/LMCache#993, ai-dynamo/nixl#1792: double free; LMCache/LMCache#1858: overlapping allocations.
    let _watchdog = watchdog("leases", LIMIT);
    let server = Server::start(2);
    let plane = SocketPlane::connect(server.socket(), SocketOptions::default()).unwrap();
    let request = |request, count| {
        plane.grant(GrantRequest {
            request,
            stride: PAGE,
            count,
        })
    };
    let grant = request(1, 1).unwrap()[0];
    let twice = plane.return_pages(&[grant, grant]).unwrap();
    assert_eq!(twice, [Ok(()), Err(StaleReason::NotGranted)]);
    assert_eq!(
        plane.return_pages(&[grant]).unwrap(),
        [Err(StaleReason::NotGranted)]
    );
    let refused = CommitOutcome::Refused(RefusedCommit::Stale(StaleReason::NotGranted));
    assert_eq!(
        plane.commit(&[commit(grant, 1, "freed")]).unwrap()[..],
        [refused]
    );

    let mut all: Vec<Grant> = Vec::new();
    while let Ok(more) = request(2 + all.len() as u64, 8) {
        all.extend(more);
    }
    assert_eq!(all.len(), 32);
    assert_eq!(
        all.iter()
            .map(|grant| grant.page)
            .collect::<HashSet<_>>()
            .len(),
        32
    );
    let stale = plane.return_pages(&[grant]).unwrap();
    assert_eq!(stale, [Err(StaleReason::OldGeneration)]);
    let refused = CommitOutcome::Refused(RefusedCommit::Stale(StaleReason::OldGeneration));
    assert_eq!(
        plane.commit(&[commit(grant, 1, "stale")]).unwrap()[..],
        [refused]
    );
    let nowhere = Grant {
        page: PageId {
            index: 9999,
            ..grant.page
        },
        generation: Generation(1),
    };
    assert_eq!(
        plane.return_pages(&[nowhere]).unwrap(),
        [Err(StaleReason::UnknownPage)]
    );

    // One page under two keys: the second is refused, and the page stays the first's.
    let outcomes = plane
        .commit(&[commit(all[0], 1, "one"), commit(all[0], 1, "two")])
        .unwrap();
    let refused = CommitOutcome::Refused(RefusedCommit::Stale(StaleReason::NotGranted));
    assert_eq!(outcomes[..], [CommitOutcome::Stored, refused]);
    assert_eq!(
        plane.return_pages(&[all[0]]).unwrap(),
        [Err(StaleReason::NotGranted)]
    );
    // Nor is a page somebody else's to free.
    let other = SocketPlane::connect(server.socket(), SocketOptions::default()).unwrap();
    assert_eq!(
        other.return_pages(&[all[1]]).unwrap(),
        [Err(StaleReason::NotGranted)]
    );
    assert!(
        plane
            .locate(&["one", "two", "freed", "stale"].map(key))
            .unwrap()[1..]
            .iter()
            .all(Option::is_none)
    );
}

#[test]
fn a_client_that_proposes_one_lease_twice_leaves_nothing_held() {
    let _watchdog = watchdog("leases", LIMIT);
    let server = Server::start(2);
    let handler = server.handler(plain(&[PAGE]));
    let names = keys("k", 4);
    (0..4).for_each(|index| put(&handler, &format!("k{index}"), 1));
    let plane = SocketPlane::connect(server.socket(), SocketOptions::default()).unwrap();
    let slots = LeaseSlots::open(plane.lease_table().unwrap().as_fd()).unwrap();
    let lease = slots.propose().unwrap();
    for group in [1, 2, 4] {
        let answer = plane.retrieve(&Retrieve {
            keys: names.clone(),
            leases: vec![lease.reference(); 4],
            group,
            prefix: false,
            expect: None,
            wait_ms: 0,
            expected_len: 0,
        });
        assert!(
            matches!(answer, Err(ControlError::Refused(_))),
            "{answer:?}"
        );
    }
    drop(lease);
    // Settles what has ended.
    assert!(server.stats().clients.iter().all(|it| it.leases == 0));
    let objects = plane.list(None, 8).unwrap().objects;
    assert_eq!(objects.len(), 4);
    for object in objects {
        assert_eq!(object.leases, 0, "{}", object.key);
    }
}

#[test]
fn no_byte_is_lost_or_added_around_the_length_of_a_page() {
    let _watchdog = watchdog("leases", LIMIT);
    let server = Server::start(4);
    for stride in [64, 4096, 100_001, PAGE] {
        let handler = server.handler(plain(&[stride]));
        for len in [0, 1, stride - 1, stride] {
            let text = format!("{stride}/{len}");
            let mut page = handler.alloc(len as usize).unwrap();
            assert_eq!(page.len() as u64, len);
            fill(&mut page, &text, stride);
            handler.store(&key(&text), page).unwrap();
        }
        for len in [0, 1, stride - 1, stride] {
            let text = format!("{stride}/{len}");
            let object = get(&handler, &text);
            assert_eq!(object.len() as u64, len);
            check(&object, &text).unwrap();
        }
        let error = handler.alloc(stride as usize + 1).unwrap_err();
        assert!(
            matches!(error, HandlerError::TooLong { asked, longest } if (asked, longest) == (stride + 1, stride)),
            "{error}"
        );
        let error = handler.alloc_in(stride, stride as usize + 1).unwrap_err();
        assert!(matches!(error, HandlerError::TooLong { .. }), "{error}");
    }
}

#[test]
fn an_object_without_bytes_is_not_a_miss() {
    let _watchdog = watchdog("leases", LIMIT);
    let server = Server::start(2);
    let mut config = plain(&[]);
    config.page_sizes = PageSizes::Fitted;
    config.checksum = true;
    let handler = server.handler(config);
    let page = handler.alloc(0).unwrap();
    handler.store(&key("empty"), page).unwrap();
    let object = get(&handler, "empty");
    assert_eq!(&*object, b"");
    assert_eq!(handler.match_prefix(&[key("empty")]).unwrap().len(), 1);
    assert_eq!(handler.prefetch(&[key("empty")]).unwrap().found, 1);
    assert_eq!(
        handler.delete(&key("empty")).unwrap(),
        DeleteOutcome::Deleted
    );
    assert_eq!(&*object, b"");
}

#[test]
fn a_reader_that_holds_all_it_can_is_told_so_and_can_go_on() {
    let _watchdog = watchdog("leases", LIMIT);
    let server = Server::start(2);
    let handler = server.embedded(plain(&[PAGE]));
    put(&handler, "k", 1);
    // Those that it takes by itself, and those that the server grants.
    let most = u64::from(SLOTS) + u64::from(LEASE_SLOTS);
    let many: Vec<Key> = vec![key("k"); most as usize / 8];
    let mut held: Vec<Option<Object>> = Vec::new();
    for _ in 0..8 {
        held.extend(handler.batch_retrieve(&many).unwrap());
    }
    assert_eq!(held.iter().flatten().count() as u64, most);
    let full = |result: Result<(), HandlerError>, asked: u64| match result {
        Err(HandlerError::TooManyLeases {
            held,
            asked: told,
            limit,
        }) => assert_eq!((held, told, limit), (most, asked, most)),
        other => panic!("{other:?}"),
    };
    full(handler.retrieve(&key("k")).map(drop), 1);
    full(handler.prefetch(&[key("k")]).map(drop), 1);
    // Nothing else needs a lease.
    assert!(handler.exists(&key("k")).unwrap());
    put(&handler, "l", 1);
    held.pop();
    let last = get(&handler, "k");
    full(handler.retrieve(&key("l")).map(drop), 1);
    drop((held, last));
    assert_eq!(handler.counts().leases, 0);
    assert_eq!(check(&get(&handler, "l"), "l"), Ok(1));
    assert_eq!(handler.delete(&key("k")).unwrap(), DeleteOutcome::Deleted);
    assert_eq!(server.stats().retired, 0);
}
