//! Clients that are killed with SIGKILL in the middle of whatever they do.

use std::thread;
use std::time::Duration;

use ondol_handler::{ControlError, DeleteOutcome, Handler, HandlerError};
use ondol_tests::{
    Actor, Random, Server, ServerProcess, check, eventually, fill, key, plain, watchdog,
};

const ACTOR: &str = env!("CARGO_BIN_EXE_actor");
const PAGE: u64 = 65_536;

fn put(handler: &Handler, text: &str, writer: u64) {
    let mut page = handler.alloc(PAGE as usize).unwrap();
    fill(&mut page, text, writer);
    handler.store(&key(text), page).unwrap();
}

/// Every object that is visible is whole.
fn check_all(handler: &Handler) {
    let mut after = None;
    loop {
        let listing = handler.list(after.as_ref(), 1000).unwrap();
        for object in &listing.objects {
            let text = object.key.as_text().unwrap().to_owned();
            // It may have gone since.
            if let Some(object) = handler.retrieve(&object.key).unwrap() {
                check(&object, &text).unwrap_or_else(|error| panic!("half-written: {error}"));
            }
        }
        if !listing.more {
            return;
        }
        after = listing.objects.last().map(|object| object.key.clone());
    }
}

/// Takes every page of the pool at once, so that one which is lost would be missed.
fn take_all(handler: &Handler, pages: usize) {
    let mut taken = Vec::new();
    let full = loop {
        match handler.alloc(PAGE as usize) {
            Ok(mut page) => {
                page.fill(0xdd);
                taken.push(page);
            }
            Err(error) => break error,
        }
    };
    assert!(
        matches!(full, HandlerError::Control(ControlError::PoolFull(_))),
        "{full}"
    );
    assert_eq!(taken.len(), pages, "pages are lost: {full}");
}

/// A client that holds a little of everything, by name.
fn hold(victim: &mut Actor, random: &mut Random) {
    for index in 0..random.below(6) {
        victim.ok(&format!("get shared{} object{index}", random.below(8)));
        victim.ok(&format!("pin shared{}", random.below(8)));
    }
    for index in 0..random.below(6) {
        victim.ok(&format!("alloc page{index} {PAGE}"));
        victim.ok(&format!("half page{index} half{index} 9"));
    }
}

#[test]
fn what_a_killed_client_held_is_neither_lost_nor_seen_half_written() {
    const ROUNDS: u64 = 50;
    const MIB: u64 = 8;
    let _watchdog = watchdog("crash", Duration::from_secs(300));
    let mut random = Random::seeded("crash");
    let dir = tempfile::tempdir().unwrap();
    let server = ServerProcess::start(ACTOR, dir.path(), MIB);
    let handler = Handler::connect(server.socket(), plain(&[PAGE])).unwrap();
    let mut before = None;
    for round in 0..ROUNDS {
        for index in 0..8 {
            if !handler.exists(&key(&format!("shared{index}"))).unwrap() {
                put(&handler, &format!("shared{index}"), round);
            }
        }
        let mut victims: Vec<_> = (0..=random.below(2))
            .map(|_| Actor::client(ACTOR, server.socket()))
            .collect();
        for victim in &mut victims {
            hold(victim, &mut random);
            if !random.once_in(4) {
                let threads = 1 + random.below(3);
                victim.ok(&format!("storm {} {threads}", random.draw() >> 1));
            }
        }
        thread::sleep(Duration::from_micros(random.below(20_000)));
        check_all(&handler);
        let pids: Vec<_> = victims.iter().map(Actor::pid).collect();
        victims.into_iter().for_each(Actor::kill);

        eventually("the dead clients' holds are reclaimed", || {
            let stats = handler.stats().unwrap().engine;
            let own = stats.clients.len() == 1;
            own && stats.retired == 0
                && stats
                    .clients
                    .iter()
                    .all(|client| !pids.contains(&client.pid))
        });
        check_all(&handler);
        let stats = handler.stats().unwrap().engine;
        let [own] = &stats.clients[..] else {
            panic!("{:?}", stats.clients)
        };
        assert_eq!((own.leases, own.pins), (0, 0), "round {round}");
        for class in &stats.classes {
            assert_eq!(class.granted, own.granted_pages, "round {round}: {class:?}");
        }
        for object in handler.list(None, 1000).unwrap().objects {
            assert_eq!(
                (object.leases, object.pins),
                (0, 0),
                "round {round}: {object:?}"
            );
        }
        take_all(&handler, (MIB << 20) as usize / PAGE as usize);
        // The first round has opened what stays open.
        let now = || server.descriptors_and_threads();
        match before {
            None => before = Some(now()),
            Some(before) => eventually("descriptors and threads are as many as before", || {
                now() == before
            }),
        }
    }
}

#[test]
fn a_client_that_dies_between_alloc_and_store_leaves_no_key_behind() {
    let _watchdog = watchdog("crash", Duration::from_secs(120));
    let server = Server::start(4);
    let mut victim = Actor::client(ACTOR, server.socket());
    victim.ok("alloc page 65536");
    victim.ok("half page torn 1");
    let pid = victim.pid();
    assert_eq!(server.clients_of(pid)[0].granted_pages, 1);
    victim.kill();
    eventually("the dead client is forgotten", || {
        server.clients_of(pid).is_empty()
    });
    let handler = server.handler(plain(&[PAGE]));
    assert!(!handler.exists(&key("torn")).unwrap());
    assert_eq!(server.counter("ondol_reclaimed_grants_total"), 1);
    take_all(&handler, 64);
}

#[test]
fn pins_of_a_killed_client_do_not_outlive_it() {
    // LMCache/LMCache#4980: a killed engine left its buffers pinned.
    let _watchdog = watchdog("crash", Duration::from_secs(120));
    let server = Server::start(8);
    let handler = server.handler(plain(&[PAGE]));
    (0..100).for_each(|index| put(&handler, &format!("k{index}"), 1));
    let mut victim = Actor::client(ACTOR, server.socket());
    for index in 0..100 {
        assert_eq!(victim.ok(&format!("pin k{index}")), "true");
    }
    let pid = victim.pid();
    assert_eq!(server.clients_of(pid)[0].pins, 100);
    victim.kill();
    eventually("the pins of the dead are gone", || {
        server.clients_of(pid).is_empty()
    });
    for index in 0..100 {
        let name = key(&format!("k{index}"));
        assert!(!handler.unpin(&name).unwrap());
        assert_eq!(handler.delete(&name).unwrap(), DeleteOutcome::Deleted);
    }
}
