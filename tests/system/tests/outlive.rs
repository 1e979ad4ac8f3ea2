//! Clients that outlive their server, clients that die while there is none, and what each of them holds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ondol_handler::{ControlError, DeleteOutcome, Handler, HandlerError, Object, PageMut, Stored};
use ondol_protocol::{ClientStats, EngineStats};
use ondol_tests::{Actor, Place, ServerProcess, check, eventually, fill, key, plain, watchdog};
use rustix::process::Signal;

const ACTOR: &str = env!("CARGO_BIN_EXE_actor");
const PAGE: u64 = 65_536;
const LIMIT: Duration = Duration::from_secs(240);

fn page(handler: &Handler, text: &str, writer: u64) -> PageMut {
    let mut page = handler.alloc(PAGE as usize).unwrap();
    fill(&mut page, text, writer);
    page
}

fn put(handler: &Handler, text: &str, writer: u64) -> Stored {
    handler
        .store(&key(text), page(handler, text, writer))
        .unwrap()
}

fn get(handler: &Handler, text: &str) -> Object {
    let object = handler.retrieve(&key(text)).unwrap();
    object.unwrap_or_else(|| panic!("{text} is not there"))
}

fn back(handler: &Handler) {
    eventually("the handler has found the server again", || {
        handler.health().is_connected()
    });
}

fn stats(handler: &Handler) -> EngineStats {
    handler.stats().unwrap().engine
}

fn clients_of(handler: &Handler, pid: u32) -> Vec<ClientStats> {
    let mut clients = stats(handler).clients;
    clients.retain(|client| client.pid == pid);
    clients
}

/// Every page of the pool can be had, so nobody holds one.
fn take_all(handler: &Handler, mib: u64) {
    let mut pages = Vec::new();
    let full = loop {
        match handler.alloc(PAGE as usize) {
            Ok(page) => pages.push(page),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(full, HandlerError::Control(ControlError::PoolFull(_))),
        "{full}"
    );
    assert_eq!(pages.len() as u64, (mib << 20) / PAGE, "{full}");
}

/// Another process rewrites every page of the pool that can be had, several times.
fn press(place: &Place, mib: u64, round: u64) {
    let mut other = Actor::client(ACTOR, &place.socket());
    for index in 0..mib * 16 * 2 {
        other.ok(&format!("put press{round}/{index} {PAGE} 99"));
    }
}

#[test]
fn a_stopped_client_sees_no_byte_change_across_a_restart_under_pressure() {
    let _watchdog = watchdog("outlive", LIMIT);
    for (place, signal) in [
        (Place::shm(8), Signal::KILL),
        (Place::files(8), Signal::KILL),
        (Place::shm(8), Signal::TERM),
    ] {
        let mut server = place.serve(ACTOR);
        let observer = place.handler(plain(&[PAGE]));
        let mut client = Actor::client(ACTOR, &place.socket());
        for index in 0..32 {
            client.ok(&format!("put k{index} {PAGE} {index}"));
            assert_eq!(client.ok(&format!("get k{index} o{index}")), "hit");
        }
        // Some are not even visible any more.
        for index in 0..8 {
            assert_eq!(client.ok(&format!("delete k{index}")), "Deleted");
        }
        client.freeze();
        for round in 0..3 {
            server.end(signal);
            server = place.serve(ACTOR);
            press(&place, 8, round);
            eventually("no other client is left", || {
                back(&observer);
                stats(&observer).clients.len() == 2
            });
            assert!(stats(&observer).counters["ondol_evictions_total"] > 0);
            let kept = clients_of(&observer, client.pid());
            assert_eq!(kept[0].leases, 32, "round {round}");
            assert_eq!(stats(&observer).retired, 8, "round {round}");
        }
        client.thaw();
        for index in 0..32 {
            assert_eq!(
                client.ok(&format!("check o{index} k{index}")),
                index.to_string()
            );
        }
        // It goes on by itself, as the client that it was.
        eventually("the client has found the server again", || {
            client.ask("exists k20") == "ok true"
        });
        let again = clients_of(&observer, client.pid());
        assert_eq!(again.len(), 1, "{again:?}");
        assert_eq!(again[0].leases, 32);
        client.ok("get k20 once-more");
        for index in 0..32 {
            client.ok(&format!("drop o{index}"));
        }
        client.ok("drop once-more");
        eventually("its leases have ended", || {
            let stats = stats(&observer);
            stats.retired == 0 && clients_of(&observer, client.pid())[0].leases == 0
        });
        client.kill();
        observer.reconnect().unwrap();
        take_all(&observer, 8);
    }
}

#[test]
fn what_a_client_holds_outlives_its_server() {
    let _watchdog = watchdog("outlive", LIMIT);
    let place = Place::shm(8);
    let mut server = place.serve(ACTOR);
    let handler = place.handler(plain(&[PAGE]));
    put(&handler, "held", 1);
    put(&handler, "pinned", 1);
    let held = get(&handler, "held");
    assert!(handler.pin(&key("pinned")).unwrap());
    let mut before = Some(page(&handler, "before", 1));
    for round in 0..4 {
        server.end([Signal::KILL, Signal::TERM][round % 2]);
        assert_eq!(check(&held, "held"), Ok(1));
        let late = before.as_mut().unwrap();
        assert_eq!(check(late, "before"), Ok(1));
        server = place.serve(ACTOR);
        press(&place, 8, round as u64);
        back(&handler);
        assert_eq!(check(&held, "held"), Ok(1));
        assert_eq!(check(before.as_ref().unwrap(), "before"), Ok(1));
        assert_eq!(check(&get(&handler, "pinned"), "pinned"), Ok(1));
        assert_eq!(
            handler.delete(&key("pinned")).unwrap(),
            DeleteOutcome::Pinned
        );
        let name = format!("before{round}");
        let mut page = before.take().unwrap();
        fill(&mut page, &name, 7);
        assert_eq!(handler.store(&key(&name), page).unwrap(), Stored::New);
        assert_eq!(check(&get(&handler, &name), &name), Ok(7));
        let mut page = handler.alloc(PAGE as usize).unwrap();
        fill(&mut page, "before", 1);
        before = Some(page);
    }
    assert!(handler.unpin(&key("pinned")).unwrap());
    assert!(!handler.unpin(&key("pinned")).unwrap());
    assert_eq!(
        handler.delete(&key("pinned")).unwrap(),
        DeleteOutcome::Deleted
    );
    drop((before, held));
    take_all(&handler, 8);
}

#[test]
fn a_server_that_is_away_is_an_error_and_never_a_miss() {
    // xcena-dev/maru: a call that could not be made was a miss.
    let _watchdog = watchdog("outlive", LIMIT);
    let place = Place::shm(8);
    let mut server = place.serve(ACTOR);
    let handler = place.handler(plain(&[PAGE]));
    put(&handler, "k", 1);
    assert!(handler.pin(&key("k")).unwrap());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|reader| {
                let (handler, done) = (&handler, &done);
                scope.spawn(move || {
                    let (mut hits, mut errors) = (0, 0);
                    while !done.load(Ordering::Relaxed) {
                        let found = match reader {
                            0 => handler.exists(&key("k")),
                            1 => handler.retrieve(&key("k")).map(|object| {
                                object.is_some_and(|object| check(&object, "k") == Ok(1))
                            }),
                            _ => handler
                                .match_prefix(&[key("k")])
                                .map(|found| found.len() == 1),
                        };
                        match found {
                            Ok(true) => hits += 1,
                            Ok(false) => panic!("a miss of what is there and pinned"),
                            Err(HandlerError::Control(
                                ControlError::Disconnected { .. } | ControlError::TimedOut { .. },
                            )) => errors += 1,
                            Err(error) => panic!("{error}"),
                        }
                    }
                    (hits, errors)
                })
            })
            .collect();
        for round in 0..5 {
            thread::sleep(Duration::from_millis(20));
            server.end([Signal::KILL, Signal::TERM][round % 2]);
            thread::sleep(Duration::from_millis(20));
            server = place.serve(ACTOR);
            back(&handler);
        }
        done.store(true, Ordering::Relaxed);
        for reader in readers {
            let (hits, errors) = reader.join().unwrap();
            assert!(hits > 0 && errors > 0, "{hits} hits, {errors} errors");
        }
    });
}

#[test]
fn what_was_asked_when_the_server_was_killed_can_be_asked_again() {
    // xcena-dev/maru#35: a store whose answer was lost freed the page under the live key.
    let _watchdog = watchdog("outlive", LIMIT);
    let place = Place::shm(8);
    let mut server = Some(place.serve(ACTOR));
    let handler = place.handler(plain(&[PAGE]));
    let mut unknown = 0;
    for round in 0..12 {
        let stored = thread::scope(|scope| {
            let storing = scope.spawn(|| {
                let mut stored = Vec::new();
                for index in 0.. {
                    let name = format!("{round}/{index}");
                    let Ok(mut page) = handler.alloc(1000) else {
                        return (stored, None);
                    };
                    fill(&mut page, &name, 1);
                    match handler.store(&key(&name), page) {
                        Ok(_) => stored.push(name),
                        Err(error) => return (stored, Some((name, error))),
                    }
                }
                unreachable!("the server is killed")
            });
            thread::sleep(Duration::from_millis(5 + round));
            server.take().unwrap().kill();
            storing.join().unwrap()
        });
        let (stored, last) = stored;
        server = Some(place.serve(ACTOR));
        back(&handler);
        // What was acknowledged is there, in so far as it was not evicted since: the last of them is.
        if let Some(name) = stored.last() {
            assert_eq!(check(&get(&handler, name), name), Ok(1));
        }
        let Some((name, error)) = last else { continue };
        unknown += u32::from(error.is_outcome_unknown());
        let mut page = handler.alloc(1000).unwrap();
        fill(&mut page, &name, 2);
        let writer = match handler.store(&key(&name), page).unwrap() {
            Stored::New => 2,
            Stored::AlreadyPresent => 1,
        };
        for index in 0..100 {
            put(&handler, &format!("more{round}/{index}"), 3);
            if index % 10 == 0 {
                assert_eq!(check(&get(&handler, &name), &name), Ok(writer));
            }
        }
    }
    println!("{unknown} stores whose outcome was not known");
    handler.reconnect().unwrap();
    take_all(&handler, 8);
}

#[test]
fn what_the_dead_held_when_there_was_no_server_is_free_at_the_next_start() {
    // Pins and grants of the dead stayed for ever, and a restart forgot whose they were.
    let _watchdog = watchdog("outlive", LIMIT);
    for (place, signal) in [
        (Place::shm(8), Signal::KILL),
        (Place::files(8), Signal::TERM),
    ] {
        let server = place.serve(ACTOR);
        let mut dead = Actor::client(ACTOR, &place.socket());
        let mut living = Actor::client(ACTOR, &place.socket());
        for client in [&mut dead, &mut living] {
            let pid = client.pid();
            for index in 0..5 {
                client.ok(&format!("put {pid}/{index} {PAGE} 1"));
                client.ok(&format!("get {pid}/{index} o{index}"));
                client.ok(&format!("pin {pid}/{index}"));
                client.ok(&format!("alloc p{index} {PAGE}"));
            }
        }
        let (dead_pid, living_pid) = (dead.pid(), living.pid());
        server.end(signal);
        dead.kill();
        let _server = place.serve(ACTOR);
        let handler = place.handler(plain(&[PAGE]));
        assert!(clients_of(&handler, dead_pid).is_empty());
        let kept = clients_of(&handler, living_pid);
        assert_eq!(
            (kept[0].leases, kept[0].pins, kept[0].granted_pages),
            (5, 5, 5)
        );
        for index in 0..5 {
            let theirs = |pid: u32| key(&format!("{pid}/{index}"));
            assert_eq!(
                handler.delete(&theirs(dead_pid)).unwrap(),
                DeleteOutcome::Deleted
            );
            assert_eq!(
                handler.delete(&theirs(living_pid)).unwrap(),
                DeleteOutcome::Pinned
            );
        }
        assert_eq!(living.ok(&format!("check o0 {living_pid}/0")), "1");
        living.kill();
        eventually("the other one is missed as well", || {
            clients_of(&handler, living_pid).is_empty()
        });
        take_all(&handler, 8);
    }
}

#[test]
fn a_pin_of_a_client_that_died_after_a_restart_does_not_outlive_it() {
    let _watchdog = watchdog("outlive", LIMIT);
    let place = Place::shm(4);
    let server = place.serve(ACTOR);
    let mut client = Actor::client(ACTOR, &place.socket());
    client.ok(&format!("put k {PAGE} 1"));
    client.ok("pin k");
    server.kill();
    let _server = place.serve(ACTOR);
    let handler = place.handler(plain(&[PAGE]));
    assert_eq!(handler.delete(&key("k")).unwrap(), DeleteOutcome::Pinned);
    // It never said a word to the new server.
    client.kill();
    eventually("its pin is gone", || {
        handler.delete(&key("k")).unwrap() == DeleteOutcome::Deleted
    });
    take_all(&handler, 4);
}

#[test]
fn pages_dropped_while_the_server_is_away_come_home() {
    // A region that was freed while the server was away was stuck.
    let _watchdog = watchdog("outlive", LIMIT);
    let place = Place::shm(4);
    let server = place.serve(ACTOR);
    let handler = place.handler(plain(&[PAGE]));
    let pages: Vec<_> = (0..20).map(|_| page(&handler, "never", 1)).collect();
    server.kill();
    drop(pages);
    let _server = place.serve(ACTOR);
    back(&handler);
    take_all(&handler, 4);
    handler.close();
    let other = place.handler(plain(&[PAGE]));
    take_all(&other, 4);
}

#[test]
fn a_handler_that_is_dropped_while_the_server_is_away_holds_nothing() {
    let _watchdog = watchdog("outlive", LIMIT);
    let place = Place::shm(4);
    let mut server = place.serve(ACTOR);
    for round in 0..4 {
        let mut config = plain(&[PAGE]);
        config.stock_bytes = 4 * PAGE;
        let handler = place.handler(config);
        for index in 0..4 {
            put(&handler, &format!("k{index}"), round);
        }
        let held = [get(&handler, "k0"), get(&handler, "k1")];
        assert!(handler.pin(&key("k2")).unwrap());
        let page = page(&handler, "never", 1);
        server.end([Signal::KILL, Signal::TERM][round as usize % 2]);
        match round {
            0 | 1 => drop((held, page, handler)),
            // The guards may go last, too.
            _ => {
                drop(handler);
                drop((held, page));
            }
        }
        server = place.serve(ACTOR);
        let handler = place.handler(plain(&[PAGE]));
        eventually("nobody else is a client", || {
            let stats = stats(&handler);
            stats.clients.len() == 1 && stats.retired == 0
        });
        take_all(&handler, 4);
    }
}

#[test]
fn a_client_in_another_pid_namespace_is_not_taken_for_dead() {
    // It was reaped while it was connected, as its process id "did not exist".
    let _watchdog = watchdog("outlive", LIMIT);
    let place = Place::shm(4);
    let server = place.serve(ACTOR);
    let handler = place.handler(plain(&[PAGE]));
    let socket = place.socket();
    let arguments = ["client", socket.to_str().unwrap()];
    let Some(mut client) = Actor::spawn_apart(ACTOR, arguments) else {
        return;
    };
    assert_eq!(client.line(), "ready");
    let _server = holds_as_long_as_it_lives(&place, &handler, server, &mut client);
    client.kill();
    eventually("the dead client is missed", || {
        stats(&handler).clients.len() == 1
    });
    assert_eq!(handler.delete(&key("k1")).unwrap(), DeleteOutcome::Deleted);
    take_all(&handler, 4);
}

#[test]
fn a_server_in_another_pid_namespace_takes_nobody_for_dead() {
    let _watchdog = watchdog("outlive", LIMIT);
    let place = Place::shm(4);
    let Some(server) = place.serve_apart(ACTOR) else {
        return;
    };
    let handler = place.handler(plain(&[PAGE]));
    let mut client = Actor::client(ACTOR, &place.socket());
    hold(&mut client);
    let seen = stats(&handler);
    let clients = |stats: &EngineStats| {
        let held = |client: &ClientStats| (client.leases, client.pins, client.granted_pages);
        stats.clients.iter().map(held).collect::<Vec<_>>()
    };
    assert_eq!(clients(&seen), [(0, 0, 0), (1, 1, 1)]);
    server.kill();
    // The next one does not see their processes, and so cannot know that they live.
    let server = place.serve_apart(ACTOR).unwrap();
    back(&handler);
    press(&place, 4, 0);
    assert_eq!(client.ok("check object k0"), "1");
    assert_eq!(handler.delete(&key("k1")).unwrap(), DeleteOutcome::Pinned);
    eventually("the client has found the server again", || {
        client.ask("exists k1") == "ok true"
    });
    assert_eq!(client.ok("store late page"), "new");
    client.kill();
    eventually("the dead client is missed", || {
        stats(&handler).clients.len() == 1
    });
    take_all(&handler, 4);
    server.kill();
}

fn hold(client: &mut Actor) {
    client.ok(&format!("put k0 {PAGE} 1"));
    client.ok(&format!("put k1 {PAGE} 1"));
    client.ok("get k0 object");
    client.ok("pin k1");
    client.ok(&format!("alloc page {PAGE}"));
    client.ok("fill page late 1");
}

fn holds_as_long_as_it_lives(
    place: &Place,
    handler: &Handler,
    server: ServerProcess,
    client: &mut Actor,
) -> ServerProcess {
    hold(client);
    press(place, 4, 0);
    eventually("the others have left", || stats(handler).clients.len() == 2);
    let other = stats(handler);
    let other = other.clients.iter().find(|other| other.pins == 1);
    let other = other.expect("the client in its namespace");
    assert_eq!((other.leases, other.granted_pages), (1, 1));
    server.kill();
    let server = place.serve(ACTOR);
    press(place, 4, 1);
    assert_eq!(client.ok("check object k0"), "1");
    eventually("the client has found the server again", || {
        client.ask("exists k1") == "ok true"
    });
    assert_eq!(client.ok("store late page"), "new");
    assert_eq!(client.ok("check object k0"), "1");
    back(handler);
    server
}
