//! Servers that end, hang, or come back as another one.

use std::thread;
use std::time::Duration;

use ondol_handler::{
    ControlError, Handler, HandlerError, Health, Object, SocketOptions, SocketPlane,
};
use ondol_tests::{
    Actor, Server, ServerProcess, check, eventually, fill, key, keys, plain, watchdog,
};

const ACTOR: &str = env!("CARGO_BIN_EXE_actor");
const PAGE: u64 = 65_536;
const LIMIT: Duration = Duration::from_secs(120);

fn put(handler: &Handler, text: &str, writer: u64) {
    let mut page = handler.alloc(PAGE as usize).unwrap();
    fill(&mut page, text, writer);
    handler.store(&key(text), page).unwrap();
}

fn get(handler: &Handler, text: &str) -> Object {
    handler.retrieve(&key(text)).unwrap().unwrap()
}

fn fails<T: std::fmt::Debug>(result: Result<T, HandlerError>) -> String {
    match result {
        Err(HandlerError::Control(error @ ControlError::Disconnected { .. })) => error.to_string(),
        other => panic!("expected that the server is missed, got {other:?}"),
    }
}

/// Every call says that the server is gone; none takes that for the absence of an object.
fn all_calls_fail(handler: &Handler) {
    let name = key("k");
    let names = keys("k", 3);
    let why = [
        fails(handler.retrieve(&name)),
        fails(handler.batch_retrieve(&names)),
        fails(handler.match_prefix(&names)),
        fails(handler.retrieve_group(&names)),
        fails(handler.prefetch(&names)),
        fails(handler.exists(&name)),
        fails(handler.batch_exists(&names)),
        fails(handler.pin(&name)),
        fails(handler.unpin(&name)),
        fails(handler.delete(&name)),
        fails(handler.list(None, 1)),
        fails(handler.stats()),
        fails(handler.alloc(PAGE as usize)),
    ];
    for text in why {
        assert!(text.contains("server"), "{text}");
    }
    let staged = handler.stage(&names);
    assert!(!staged.ready() && staged.error.is_some());
    assert!(matches!(handler.health(), Health::Unreachable(_)));
}

#[test]
fn no_call_hangs_or_lies_when_the_server_was_killed() {
    let _watchdog = watchdog("server_gone", LIMIT);
    let dir = tempfile::tempdir().unwrap();
    let server = ServerProcess::start(ACTOR, dir.path(), 4);
    let handler = Handler::connect(server.socket(), plain(&[PAGE])).unwrap();
    put(&handler, "k", 1);
    assert!(handler.pin(&key("k")).unwrap());
    let object = get(&handler, "k");
    let mut page = handler.alloc(PAGE as usize).unwrap();
    server.kill();
    all_calls_fail(&handler);
    fill(&mut page, "late", 2);
    fails(handler.store(&key("late"), page));
    assert_eq!(check(&object, "k"), Ok(1));
    handler.close();
    assert_eq!(handler.health(), Health::Closed);
    assert!(handler.reconnect().is_err());
    assert_eq!(check(&object, "k"), Ok(1));
}

#[test]
fn no_call_hangs_or_lies_when_the_door_was_closed() {
    let _watchdog = watchdog("server_gone", LIMIT);
    let server = Server::start(4);
    let handler = server.handler(plain(&[PAGE]));
    put(&handler, "k", 1);
    assert!(handler.pin(&key("k")).unwrap());
    let object = get(&handler, "k");
    server.stop();
    // With its door alone closed an engine goes on, and so does its index.
    assert_eq!(check(&get(&handler, "k"), "k"), Ok(1));
    server.engine.close().unwrap();
    all_calls_fail(&handler);
    assert_eq!(check(&object, "k"), Ok(1));
}

#[test]
fn many_threads_that_miss_the_server_are_all_told() {
    // novitalabs/pegaflow#225 and its like: calls that hang for ever.
    let _watchdog = watchdog("server_gone", LIMIT);
    let dir = tempfile::tempdir().unwrap();
    let server = ServerProcess::start(ACTOR, dir.path(), 4);
    let handler = Handler::connect(server.socket(), plain(&[PAGE])).unwrap();
    put(&handler, "k", 1);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut held = Vec::new();
                loop {
                    match handler.retrieve(&key("k")) {
                        Ok(object) => held.extend(object),
                        Err(error) => {
                            assert!(
                                matches!(
                                    error,
                                    HandlerError::Control(ControlError::Disconnected { .. })
                                ),
                                "{error}"
                            );
                            break;
                        }
                    }
                    if held.len() > 100 {
                        held.clear();
                    }
                }
                held.iter()
                    .for_each(|object| assert_eq!(check(object, "k"), Ok(1)));
            });
        }
        thread::sleep(Duration::from_millis(20));
        server.kill();
    });
}

#[test]
fn a_new_server_does_not_touch_what_is_held_from_the_old_one() {
    let _watchdog = watchdog("server_gone", LIMIT);
    let dir = tempfile::tempdir().unwrap();
    let server = ServerProcess::start(ACTOR, dir.path(), 4);
    let handler = Handler::connect(server.socket(), plain(&[PAGE])).unwrap();
    (0..64).for_each(|index| put(&handler, &format!("k{index}"), 1));
    let held: Vec<_> = (32..64)
        .map(|index| get(&handler, &format!("k{index}")))
        .collect();
    let mut page = handler.alloc(PAGE as usize).unwrap();
    fill(&mut page, "page", 1);
    server.kill();

    let server = ServerProcess::start_with(ACTOR, dir.path(), 4, &["--fresh"]);
    let mut other = Actor::client(ACTOR, server.socket());
    (0..200).for_each(|index| drop(other.ok(&format!("put new{index} {PAGE} 2"))));
    let whole = || {
        for (index, object) in (32..).zip(&held) {
            assert_eq!(check(object, &format!("k{index}")), Ok(1));
        }
        assert_eq!(check(&page, "page"), Ok(1));
    };
    whole();
    eventually("the handler has become a client of the new server", || {
        handler.health().is_connected()
    });
    assert!(!handler.exists(&key("k40")).unwrap());
    put(&handler, "k40", 3);
    assert_eq!(check(&get(&handler, "k40"), "k40"), Ok(3));
    (0..200).for_each(|index| put(&handler, &format!("again{index}"), 4));
    whole();
    let error = handler.store(&key("page"), page).unwrap_err();
    assert!(matches!(error, HandlerError::ForeignPage), "{error}");
    drop(held);
}

#[test]
fn a_server_started_anew_under_load_costs_errors_and_no_more() {
    // novitalabs/pegaflow#225: a restart forgot every registration. kvcache-ai/Mooncake#1914: the dead's objects were
    // still returned.
    let _watchdog = watchdog("server_gone", LIMIT);
    let dir = tempfile::tempdir().unwrap();
    let mut server = ServerProcess::start(ACTOR, dir.path(), 4);
    let handler = Handler::connect(server.socket(), plain(&[PAGE])).unwrap();
    for generation in 0..5 {
        put(&handler, "k", generation);
        let object = get(&handler, "k");
        assert_eq!(check(&object, "k"), Ok(generation));
        server.kill();
        fails(handler.retrieve(&key("k")));
        server = ServerProcess::start_with(ACTOR, dir.path(), 4, &["--fresh"]);
        eventually("the handler has become a client of the new server", || {
            handler.health().is_connected()
        });
        assert!(handler.retrieve(&key("k")).unwrap().is_none());
        assert_eq!(check(&object, "k"), Ok(generation));
    }
}

#[test]
fn a_server_that_hangs_is_not_waited_for_without_end() {
    let _watchdog = watchdog("server_gone", LIMIT);
    let dir = tempfile::tempdir().unwrap();
    let mut server = ServerProcess::start(ACTOR, dir.path(), 4);
    let socket = server.socket().to_owned();
    let connect = move || {
        let mut options = SocketOptions::default();
        options.timeout = Duration::from_millis(200);
        SocketPlane::connect(&socket, options)
    };
    let handler = Handler::embedded(connect, plain(&[PAGE])).unwrap();
    put(&handler, "k", 1);
    let object = get(&handler, "k");
    server.actor().freeze();
    for _ in 0..3 {
        // What the index tells needs no server.
        assert_eq!(check(&get(&handler, "k"), "k"), Ok(1));
        assert!(handler.retrieve(&key("absent")).unwrap().is_none());
        let wait = Duration::from_millis(50);
        let error = handler.retrieve_within(&key("absent"), wait).unwrap_err();
        assert!(
            matches!(
                error,
                HandlerError::Control(
                    ControlError::TimedOut { .. } | ControlError::Disconnected { .. }
                )
            ),
            "{error}"
        );
        assert_eq!(check(&object, "k"), Ok(1));
    }
    server.actor().thaw();
    eventually("the server answers again", || {
        handler.health().is_connected()
    });
    assert_eq!(check(&get(&handler, "k"), "k"), Ok(1));
    drop(object);
    // The answers that were lost hold nothing.
    let patient = Handler::connect(server.socket(), plain(&[PAGE])).unwrap();
    eventually("no lease is left", || {
        patient
            .stats()
            .unwrap()
            .engine
            .clients
            .iter()
            .all(|client| client.leases == 0)
    });
}
