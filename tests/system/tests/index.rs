//! What clients find by themselves, without asking the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use ondol_handler::{
    ControlPlane, Expect, Handler, HandlerCounts, HandlerError, Key, LayoutFingerprint, Object,
    ObjectMeta, SocketOptions, SocketPlane,
};
use ondol_tests::{
    Actor, Lossy, Place, Random, Server, check, eventually, fill, key, keys, plain, watchdog,
};

const ACTOR: &str = env!("CARGO_BIN_EXE_actor");
const PAGE: u64 = 65_536;
const LIMIT: Duration = Duration::from_secs(120);

fn put(handler: &Handler, text: &str, len: usize, meta: ObjectMeta) {
    let mut page = handler.alloc(len).unwrap();
    fill(&mut page, text, 1);
    handler.store_with(&key(text), page, meta).unwrap();
}

fn get(handler: &Handler, text: &str) -> Object {
    handler.retrieve(&key(text)).unwrap().unwrap()
}

#[test]
fn finding_holding_and_letting_go_makes_no_system_call() {
    let _watchdog = watchdog("index", LIMIT);
    let server = Server::start(4);
    let handler = server.handler(plain(&[4096]));
    for index in 0..256 {
        put(&handler, &format!("k{index}"), 4096, ObjectMeta::default());
    }
    let socket = server.socket().to_str().unwrap();
    let end_of = |mut actor: Actor| {
        assert_eq!(actor.line(), "ready");
        actor.tell("go");
        actor.wait()
    };
    // The allocator keeps the memory that it has.
    let variables = [("MALLOC_TRIM_THRESHOLD_", "1073741824")];
    let found = Actor::spawn(ACTOR, ["unaided", socket, "found"], &variables);
    let end = end_of(found);
    assert!(end.success(), "{end}");
    // One that does ask is killed, so what was not killed made no call.
    let asked = Actor::spawn(ACTOR, ["unaided", socket, "asked"], &variables);
    let end = end_of(asked);
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&end),
        Some(libc::SIGSYS),
        "{end}"
    );
    // Where the server cannot see the client it is the same.
    if let Some(apart) = Actor::spawn_apart(ACTOR, ["unaided", socket, "found"]) {
        let end = end_of(apart);
        assert!(end.success(), "{end}");
    }
}

/// What a handler answers to the same questions, and what it counted meanwhile.
#[derive(Debug, PartialEq)]
struct Answers {
    retrieved: Vec<Option<(u64, u64, ObjectMeta)>>,
    grouped: usize,
    prefix: usize,
    group: Option<usize>,
    exist: Vec<bool>,
    prefetched: u64,
    counted: [u64; 4],
}

fn ask(handler: &Handler, names: &[Key], group: u32, expect: Expect) -> Answers {
    let counted = |counts: HandlerCounts| {
        [
            counts.hits,
            counts.misses,
            counts.layout_mismatches,
            counts.checksum_mismatches,
        ]
    };
    let before = counted(handler.counts());
    let place = |object: &Object| {
        (
            object.region().region_id.0,
            object.offset_in_region(),
            object.meta(),
        )
    };
    let retrieved = handler.batch_retrieve_with(names, expect).unwrap();
    let answers = Answers {
        retrieved: retrieved
            .iter()
            .map(|object| object.as_ref().map(place))
            .collect(),
        grouped: handler.match_prefix_groups(names, group).unwrap().len(),
        prefix: handler.match_prefix(names).unwrap().len(),
        group: handler
            .retrieve_group(names)
            .unwrap()
            .map(|objects| objects.len()),
        exist: handler.batch_exists(names).unwrap(),
        prefetched: handler.prefetch(names).unwrap().found,
        counted: [0; 4],
    };
    let after = counted(handler.counts());
    Answers {
        counted: std::array::from_fn(|at| after[at] - before[at]),
        ..answers
    }
}

#[test]
fn who_reads_the_index_is_answered_as_one_who_asks() {
    let _watchdog = watchdog("index", LIMIT);
    let server = Server::start(2);
    let mut config = plain(&[PAGE]);
    config.checksum = true;
    let reader = server.handler(config.clone());
    let socket = server.socket().to_owned();
    let asking = move || {
        let plane: Arc<dyn ControlPlane> = SocketPlane::connect(&socket, SocketOptions::default())?;
        Ok(Lossy::new(plane))
    };
    let asking = Handler::embedded(asking, config).unwrap();
    let mut random = Random::seeded("index or not");
    let layouts = [
        None,
        Some(LayoutFingerprint([1; 16])),
        Some(LayoutFingerprint([2; 16])),
    ];
    // More than the pool holds, so that some are evicted.
    let names = keys("k", 50);
    for step in 0..600 {
        let at = random.below(50) as usize;
        match random.below(8) {
            0..4 => {
                let checksum = random.once_in(4).then(|| random.below(2));
                let layout = layouts[random.below(3) as usize];
                put(
                    &reader,
                    &format!("k{at}"),
                    100,
                    ObjectMeta { layout, checksum },
                );
            }
            4 => drop(reader.delete(&names[at]).unwrap()),
            5 => drop(asking.pin(&names[at]).unwrap()),
            6 => drop(asking.unpin(&names[at]).unwrap()),
            _ => {}
        }
        let first = random.below(40) as usize;
        let mut asked: Vec<Key> = names[first..][..1 + random.below(10) as usize].to_vec();
        if random.once_in(3) {
            asked.push(asked[0].clone());
            asked.push(key("never"));
        }
        let group = 1 + random.below(5) as u32;
        let expect = Expect {
            layout: layouts[random.below(3) as usize],
            verify: random.once_in(2),
            ..Expect::default()
        };
        let found = ask(&reader, &asked, group, expect);
        assert_eq!(
            found,
            ask(&asking, &asked, group, expect),
            "step {step}: {asked:?}"
        );
    }
    assert!(server.counter("ondol_evictions_total") > 0);
}

/// A client that finds the object although the server is stopped.
fn assert_unaided(server: &mut ondol_tests::ServerProcess, handler: &Handler, text: &str) {
    server.actor().freeze();
    assert_eq!(check(&get(handler, text), text), Ok(1));
    server.actor().thaw();
}

#[test]
fn after_each_end_of_a_server_readers_find_the_next_ones_index() {
    let _watchdog = watchdog("index", LIMIT);
    for place in [Place::shm(4), Place::files(4)] {
        let mut server = place.serve(ACTOR);
        let handler = place.handler(plain(&[PAGE]));
        for text in ["k0", "k1"] {
            put(&handler, text, 1000, ObjectMeta::default());
        }
        let mut held = vec![get(&handler, "k0")];
        for round in 1..6 {
            assert_unaided(&mut server, &handler, "k1");
            let ended = if round % 2 == 0 {
                server.end(rustix::process::Signal::TERM);
                "stopped"
            } else {
                server.kill();
                "killed"
            };
            // At once, not when somebody has noticed: nothing is found in what a dead server left.
            let name = key("k1");
            let missed = [
                handler.retrieve(&name).map(drop),
                handler.exists(&name).map(drop),
                handler.match_prefix(&[name]).map(drop),
            ];
            for result in missed {
                assert!(
                    matches!(&result, Err(error) if error.is_disconnected()),
                    "{ended}: {result:?}"
                );
            }
            server = place.serve(ACTOR);
            eventually("the next server is found", || {
                handler.exists(&key("k1")).is_ok()
            });
            let text = format!("k{round}");
            put(&handler, &text, 1000, ObjectMeta::default());
            held.push(get(&handler, &text));
            // Others take all pages that can be had.
            let mut rival = Actor::client(ACTOR, &place.socket());
            (0..80).for_each(|index| drop(rival.ok(&format!("put rival{round}-{index} {PAGE} 9"))));
            for (at, object) in held.iter().enumerate() {
                assert_eq!(check(object, &format!("k{at}")), Ok(1), "round {round}");
            }
            put(&handler, "k1", 1000, ObjectMeta::default());
        }
        let leases = || {
            let stats = handler.stats().unwrap().engine;
            let own = stats
                .clients
                .iter()
                .max_by_key(|client| client.leases)
                .unwrap();
            (own.leases, own.oldest_lease_ms.is_some())
        };
        assert_eq!(leases(), (held.len() as u64, true));
        drop(held);
        eventually("nothing is held", || leases() == (0, false));
    }
}

#[test]
fn many_readers_go_on_while_their_server_is_killed_again_and_again() {
    let _watchdog = watchdog("index", LIMIT);
    let place = Place::shm(4);
    let mut server = place.serve(ACTOR);
    let handler = place.handler(plain(&[PAGE]));
    let names = keys("k", 40);
    let texts: Vec<_> = (0..names.len()).map(|at| format!("k{at}")).collect();
    let (ended, found) = (AtomicBool::new(false), AtomicU64::new(0));
    let _server = thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (handler, names, texts, ended, found) = (&handler, &names, &texts, &ended, &found);
            scope.spawn(move || {
                let mut random = Random::new(thread);
                let mut held: Vec<(usize, Object)> = Vec::new();
                while !ended.load(Ordering::Relaxed) {
                    let first = random.below(30) as usize;
                    let answer = handler.batch_retrieve(&names[first..first + 8]);
                    for (at, object) in answer.into_iter().flatten().enumerate() {
                        held.extend(object.map(|object| (first + at, object)));
                    }
                    for (at, object) in &held {
                        assert_eq!(check(object, &texts[*at]), Ok(1));
                    }
                    found.fetch_add(held.len() as u64, Ordering::Relaxed);
                    if held.len() > 10 {
                        held.clear();
                    }
                    if random.once_in(4) {
                        // Missing what was evicted; what cannot be stored now is stored later.
                        let text = &texts[random.below(40) as usize];
                        if let Ok(mut page) = handler.alloc(1000) {
                            fill(&mut page, text, 1);
                            let _ = handler.store(&key(text), page);
                        }
                    }
                }
            });
        }
        for _ in 0..6 {
            let before = found.load(Ordering::Relaxed);
            eventually("readers find something", || {
                found.load(Ordering::Relaxed) > before + 100
            });
            server.kill();
            server = place.serve(ACTOR);
        }
        ended.store(true, Ordering::Relaxed);
        server
    });
    eventually("nothing is held", || {
        let Ok(stats) = handler.stats() else {
            return false;
        };
        stats.engine.clients.iter().all(|client| client.leases == 0)
    });
    assert_eq!(handler.counts().leases, 0);
}

#[test]
fn what_a_killed_client_held_by_itself_is_free_at_once() {
    let _watchdog = watchdog("index", LIMIT);
    let server = Server::start(2);
    let handler = server.handler(plain(&[PAGE]));
    put(&handler, "k", 1000, ObjectMeta::default());
    let mut other = Actor::client(ACTOR, server.socket());
    assert_eq!(other.ok("get k one"), "hit");
    assert_eq!(other.ok("get k two"), "hit");
    let leases = |pid: u32| -> u64 {
        let clients = server.clients_of(pid);
        clients.iter().map(|client| client.leases).sum()
    };
    let pid = other.pid();
    assert_eq!(leases(pid), 2);
    other.kill();
    eventually("its holds are gone", || server.clients_of(pid).is_empty());
    handler.delete(&key("k")).unwrap();
    assert_eq!(server.stats().retired, 0);
}

#[test]
fn a_call_that_needs_the_server_says_that_it_is_gone_after_any_number_of_hits() {
    let _watchdog = watchdog("index", LIMIT);
    let place = Place::shm(4);
    let server = place.serve(ACTOR);
    let handler = place.handler(plain(&[PAGE]));
    put(&handler, "k", 1000, ObjectMeta::default());
    (0..100).for_each(|_| drop(get(&handler, "k")));
    server.kill();
    let error = handler.pin(&key("k")).unwrap_err();
    assert!(
        matches!(&error, HandlerError::Control(_)) && error.is_disconnected(),
        "{error}"
    );
    assert_eq!(handler.counts().hits, 100);
}
