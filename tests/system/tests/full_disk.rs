//! A disk under the log that is full.

use std::time::Duration;

use ondol_handler::{DeleteOutcome, Handler, HandlerError, Stored};
use ondol_tests::{Actor, Place, SmallDisk, check, eventually, fill, key, plain, watchdog};
use rustix::process::Signal;

const ACTOR: &str = env!("CARGO_BIN_EXE_actor");
const PAGE: u64 = 65_536;
const LIMIT: Duration = Duration::from_secs(240);

/// A disk of a few MiB under the state directory; nothing, with the reason printed, where none can be mounted.
fn small_disk(place: &Place) -> Option<SmallDisk> {
    SmallDisk::mount(&place.state_dir(), 24)
        .inspect_err(|error| println!("SKIPPED: no file system can be mounted here: {error}"))
        .ok()
}

fn put(handler: &Handler, text: &str, writer: u64) -> Result<Stored, HandlerError> {
    let mut page = handler.alloc(PAGE as usize)?;
    fill(&mut page, text, writer);
    handler.store(&key(text), page)
}

/// Stores and deletes until the log has no room any more; what it said then.
fn until_refused(handler: &Handler) -> String {
    for round in 0..1_000_000 {
        let name = format!("log{}", round % 8);
        let done = put(handler, &name, round).map(drop);
        let done = done.and_then(|()| handler.delete(&key(&name)).map(drop));
        if let Err(error) = done {
            return error.to_string();
        }
    }
    panic!("a full disk holds everything")
}

#[test]
fn a_full_disk_refuses_changes_serves_reads_and_recovers_by_itself() {
    let _watchdog = watchdog("full_disk", LIMIT);
    let place = Place::shm(8);
    let Some(disk) = small_disk(&place) else {
        return;
    };
    let server = place.serve(ACTOR);
    let handler = place.handler(plain(&[PAGE]));
    for index in 0..8 {
        put(&handler, &format!("k{index}"), index).unwrap();
    }
    assert!(handler.pin(&key("k0")).unwrap());
    let held = handler.retrieve(&key("k1")).unwrap().unwrap();
    disk.fill().unwrap();
    let said = until_refused(&handler);
    assert!(said.contains("log") || said.contains("space"), "{said}");
    for _ in 0..3 {
        // Nothing changes, everything can be read.
        assert!(put(&handler, "refused", 1).is_err());
        for index in 0..8 {
            let name = format!("k{index}");
            let object = handler.retrieve(&key(&name)).unwrap().unwrap();
            assert_eq!(check(&object, &name), Ok(index));
        }
        assert!(!handler.exists(&key("refused")).unwrap());
        assert!(handler.health().is_connected());
        assert_eq!(check(&held, "k1"), Ok(1));
    }
    assert!(disk.free().unwrap());
    eventually("what is stored is accepted again", || {
        put(&handler, "accepted", 1).is_ok()
    });
    assert_eq!(handler.delete(&key("k0")).unwrap(), DeleteOutcome::Pinned);
    assert!(handler.unpin(&key("k0")).unwrap());
    assert_eq!(handler.delete(&key("k0")).unwrap(), DeleteOutcome::Deleted);
    // What was refused has left nothing behind, here or in the log.
    server.kill();
    let _server = place.serve(ACTOR);
    eventually("the handler has found the server again", || {
        handler.health().is_connected()
    });
    let accepted = handler.retrieve(&key("accepted")).unwrap().unwrap();
    assert_eq!(check(&accepted, "accepted"), Ok(1));
    assert!(!handler.exists(&key("refused")).unwrap());
    assert!(!handler.exists(&key("k0")).unwrap());
    drop((accepted, held));
    handler.close();
    handler.reconnect().unwrap();
    let mut pages = Vec::new();
    while let Ok(page) = handler.alloc(PAGE as usize) {
        pages.push(page);
    }
    assert_eq!(pages.len(), 128);
}

#[test]
fn what_a_full_disk_refused_to_take_back_is_not_the_deads_for_ever() {
    let _watchdog = watchdog("full_disk", LIMIT);
    let place = Place::shm(8);
    let Some(disk) = small_disk(&place) else {
        return;
    };
    let _server = place.serve(ACTOR);
    let handler = place.handler(plain(&[PAGE]));
    put(&handler, "k", 1).unwrap();
    let mut client = Actor::client(ACTOR, &place.socket());
    client.ok("pin k");
    client.ok("get k object");
    for index in 0..5 {
        client.ok(&format!("alloc page{index} {PAGE}"));
    }
    let pid = client.pid();
    disk.fill().unwrap();
    until_refused(&handler);
    client.kill();
    assert!(put(&handler, "refused", 1).is_err());
    disk.free().unwrap();
    eventually("the dead client is forgotten", || {
        let stats = handler.stats().unwrap().engine;
        stats.clients.iter().all(|client| client.pid != pid)
    });
    assert_eq!(handler.delete(&key("k")).unwrap(), DeleteOutcome::Deleted);
    let mut pages = Vec::new();
    while let Ok(page) = handler.alloc(PAGE as usize) {
        pages.push(page);
    }
    assert_eq!(pages.len(), 128);
}

#[test]
fn a_server_starts_on_a_full_disk_though_a_client_has_died_that_held_something() {
    let _watchdog = watchdog("full_disk", LIMIT);
    for signal in [Signal::TERM, Signal::KILL] {
        let place = Place::shm(8);
        let Some(disk) = small_disk(&place) else {
            return;
        };
        let server = place.serve(ACTOR);
        let handler = place.handler(plain(&[PAGE]));
        put(&handler, "k", 1).unwrap();
        // Or else it would be a new client after the start, and there is no room for one.
        let held = handler.retrieve(&key("k")).unwrap();
        let mut client = Actor::client(ACTOR, &place.socket());
        client.ok("pin k");
        client.ok("get k object");
        for index in 0..5 {
            client.ok(&format!("alloc page{index} {PAGE}"));
        }
        let pid = client.pid();
        disk.fill().unwrap();
        until_refused(&handler);
        server.end(signal);
        client.kill();

        // Nobody new can be let in, so it is the old handler that is answered.
        let server = place.try_serve(ACTOR).unwrap();
        let reads = || {
            let object = handler.retrieve(&key("k")).ok().flatten();
            object.is_some_and(|object| check(&object, "k") == Ok(1))
        };
        eventually("what is there is served", reads);
        assert!(put(&handler, "refused", 1).is_err());
        // What could not be taken back is not forgotten by one more start.
        server.kill();
        let _server = place.try_serve(ACTOR).unwrap();
        eventually("what is there is served again", reads);
        disk.free().unwrap();
        eventually("the dead client is forgotten", || {
            let clients = handler.stats().map(|stats| stats.engine.clients);
            clients.is_ok_and(|clients| clients.len() == 1 && clients[0].pid != pid)
        });
        assert_eq!(handler.delete(&key("k")).unwrap(), DeleteOutcome::Deleted);
        drop(held);
        eventually("every page can be used", || {
            let mut pages = Vec::new();
            while let Ok(page) = handler.alloc(PAGE as usize) {
                pages.push(page);
            }
            pages.len() == 128
        });
    }
}

#[test]
fn a_start_on_a_full_disk_says_so_and_loses_nothing() {
    let _watchdog = watchdog("full_disk", LIMIT);
    let place = Place::shm(8);
    let Some(disk) = small_disk(&place) else {
        return;
    };
    let server = place.serve(ACTOR);
    let handler = place.handler(plain(&[PAGE]));
    put(&handler, "k", 1).unwrap();
    drop(handler);
    server.end(Signal::KILL);
    disk.fill().unwrap();
    // It starts and serves what it has, or it says what is wrong; in no case does it give up what is there.
    let started = place.try_serve(ACTOR);
    match started {
        Ok(server) => server.kill(),
        Err(said) => assert!(said.contains("space"), "{said}"),
    }
    disk.free().unwrap();
    let _server = place.serve(ACTOR);
    let handler = place.handler(plain(&[PAGE]));
    let object = handler.retrieve(&key("k")).unwrap().unwrap();
    assert_eq!(check(&object, "k"), Ok(1));
}
