//! What a writer holds is its own until it is stored or dropped, and nobody's loss.

use std::collections::HashSet;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ondol_handler::{
    ControlError, Handler, HandlerError, PageMut, SocketOptions, SocketPlane, Stored,
};
use ondol_tests::{
    Actor, Call, Lossy, Server, check, eventually, fill, key, keys, plain, watchdog,
};

const ACTOR: &str = env!("CARGO_BIN_EXE_actor");
const PAGE: u64 = 65_536;
const LIMIT: Duration = Duration::from_secs(120);

fn take_all(handler: &Handler) -> Vec<PageMut> {
    let mut pages = Vec::new();
    loop {
        match handler.alloc(PAGE as usize) {
            Ok(page) => pages.push(page),
            Err(HandlerError::Control(ControlError::PoolFull(_))) => return pages,
            Err(error) => panic!("{error}"),
        }
    }
}

fn granted(server: &Server) -> u64 {
    server
        .stats()
        .clients
        .iter()
        .map(|client| client.granted_pages)
        .sum()
}

#[test]
fn a_page_dropped_unwritten_is_not_lost() {
    let _watchdog = watchdog("guards", LIMIT);
    let server = Server::start(2);
    let handler = server.handler(plain(&[PAGE]));
    for _ in 0..100 {
        let mut page = handler.alloc(PAGE as usize).unwrap();
        page.fill(1);
    }
    assert_eq!(granted(&server), 1);
    assert_eq!(handler.counts().stock_pages, 1);
    assert_eq!(take_all(&handler).len(), 32);
    assert_eq!(take_all(&handler).len(), 32);
}

#[test]
fn pages_dropped_unwritten_do_not_starve_others() {
    let _watchdog = watchdog("guards", LIMIT);
    let server = Server::start(2);
    let idle = server.handler(plain(&[PAGE]));
    let other = server.handler(plain(&[PAGE]));
    drop(take_all(&idle));
    assert!(idle.counts().stock_pages <= 2, "{:?}", idle.counts());
    assert!(take_all(&other).len() >= 30);
    idle.close();
    assert_eq!(take_all(&other).len(), 32);
}

#[test]
fn a_page_that_lost_the_race_for_its_key_is_not_lost() {
    let _watchdog = watchdog("guards", LIMIT);
    let server = Server::start(2);
    let handler = server.handler(plain(&[PAGE]));
    for round in 0..100 {
        let page = handler.alloc(PAGE as usize).unwrap();
        let stored = handler.store(&key("k"), page).unwrap();
        assert_eq!(stored == Stored::New, round == 0);
    }
    // Duplicate keys in a batch leaked pages.
    for _ in 0..20 {
        let names = ["a", "a", "k", "b", "a"].map(key);
        let pages: Vec<_> = (0..5)
            .map(|_| handler.alloc(PAGE as usize).unwrap())
            .collect();
        assert!(
            handler
                .batch_store(&names, pages)
                .unwrap()
                .iter()
                .all(Result::is_ok)
        );
    }
    let pages = vec![handler.alloc(1).unwrap()];
    let error = handler.batch_store(&keys("x", 2), pages).unwrap_err();
    assert!(matches!(
        error,
        HandlerError::LengthMismatch { keys: 2, pages: 1 }
    ));
    // Three objects can be evicted; everything is there.
    assert_eq!(take_all(&handler).len(), 32);
}

#[test]
fn a_page_held_across_close_is_nobody_elses_until_it_is_dropped() {
    let _watchdog = watchdog("guards", LIMIT);
    let server = Server::start(2);
    let handler = server.handler(plain(&[PAGE]));
    let mut page = handler.alloc(PAGE as usize).unwrap();
    let address = page.as_ptr();
    fill(&mut page, "mine", 1);
    handler.close();
    assert!(matches!(handler.alloc(1), Err(HandlerError::Closed)));

    let mut other = Actor::client(ACTOR, server.socket());
    (0..100).for_each(|index| drop(other.ok(&format!("put other{index} {PAGE} 2"))));
    assert_eq!(
        check(&page, "mine"),
        Ok(1),
        "somebody wrote into a page that is held"
    );
    handler.reconnect().unwrap();
    let others = take_all(&handler);
    assert_eq!(others.len(), 31);
    assert!(others.iter().all(|page| page.as_ptr() != address));
    drop(others);
    drop(page);
    eventually("the page is back", || take_all(&handler).len() == 32);
}

#[test]
fn a_page_of_an_old_connection_cannot_be_stored() {
    let _watchdog = watchdog("guards", LIMIT);
    let server = Server::start(2);
    let handler = server.handler(plain(&[PAGE]));
    let old = handler.alloc(PAGE as usize).unwrap();
    let batch = handler.alloc(PAGE as usize).unwrap();
    handler.reconnect().unwrap();
    let error = handler.store(&key("old"), old).unwrap_err();
    assert!(matches!(error, HandlerError::ForeignPage), "{error}");
    let new = handler.alloc(PAGE as usize).unwrap();
    let error = handler
        .batch_store(&keys("k", 2), vec![new, batch])
        .unwrap_err();
    assert!(matches!(error, HandlerError::ForeignPage), "{error}");
    assert_eq!(
        handler.batch_exists(&["old", "k0", "k1"].map(key)).unwrap(),
        [false; 3]
    );
    let elsewhere = server.handler(plain(&[PAGE]));
    let foreign = elsewhere.alloc(PAGE as usize).unwrap();
    assert!(matches!(
        handler.store(&key("foreign"), foreign),
        Err(HandlerError::ForeignPage)
    ));
    elsewhere.close();
    assert_eq!(take_all(&handler).len(), 32);
}

#[test]
fn pages_granted_in_an_answer_that_was_lost_are_not_lost() {
    let _watchdog = watchdog("guards", LIMIT);
    let server = Server::start(2);
    let engine = Arc::clone(&server.engine);
    let lossy = Lossy::new(engine.attach(None, [0; 16]).unwrap());
    let plane = Arc::clone(&lossy);
    let mut config = plain(&[PAGE]);
    config.stock_bytes = 4 * PAGE;
    let handler = Handler::embedded(move || Ok(Arc::clone(&plane)), config).unwrap();
    for round in 0..40 {
        lossy.lose_next(Call::Grant);
        let held: Vec<_> = (0..round % 8)
            .filter_map(|_| handler.alloc(1).ok())
            .collect();
        drop(held);
        lossy.lose_next(Call::ReturnPages);
        drop(take_some(&handler, 12));
    }
    while !lossy.is_done() {
        drop(take_some(&handler, 12));
    }
    assert_eq!(take_all(&handler).len(), 32);
}

fn take_some(handler: &Handler, count: usize) -> Vec<PageMut> {
    (0..count).filter_map(|_| handler.alloc(1).ok()).collect()
}

#[test]
fn pages_asked_of_a_server_that_hung_are_not_lost() {
    let _watchdog = watchdog("guards", LIMIT);
    let dir = tempfile::tempdir().unwrap();
    let mut server = ondol_tests::ServerProcess::start(ACTOR, dir.path(), 2);
    let socket = server.socket().to_owned();
    let connect = move || {
        let mut options = SocketOptions::default();
        options.timeout = Duration::from_millis(100);
        SocketPlane::connect(&socket, options)
    };
    let handler = Handler::embedded(connect, plain(&[PAGE])).unwrap();
    drop(handler.alloc(1).unwrap());
    let first = handler.alloc(1).unwrap();
    server.actor().freeze();
    for _ in 0..3 {
        let error = handler.alloc(1).unwrap_err();
        assert!(
            matches!(
                error,
                HandlerError::Control(
                    ControlError::TimedOut { .. } | ControlError::Disconnected { .. }
                )
            ),
            "{error}"
        );
    }
    server.actor().thaw();
    let patient = Handler::connect(server.socket(), plain(&[PAGE])).unwrap();
    let granted = || {
        let stats = patient.stats().unwrap().engine;
        stats
            .clients
            .iter()
            .map(|client| client.granted_pages)
            .sum::<u64>()
    };
    eventually("the hung server has carried out what it was asked", || {
        patient.health().is_connected() && handler.alloc(1).is_ok()
    });
    drop(first);
    eventually("all that was asked for has come home", || {
        drop(take_some(&handler, 4));
        granted() <= 2
    });
}

#[test]
fn two_writers_never_get_one_page() {
    let _watchdog = watchdog("guards", LIMIT);
    let server = Server::start(4);
    let mut config = plain(&[PAGE]);
    config.stock_bytes = 8 * PAGE;
    let handler = server.handler(config.clone());
    let other = server.handler(config);
    for _ in 0..20 {
        let pages: Vec<PageMut> = thread::scope(|scope| {
            let threads: Vec<_> = [&handler, &other, &handler, &other]
                .into_iter()
                .map(|handler| scope.spawn(move || take_some(handler, 14)))
                .collect();
            threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap())
                .collect()
        });
        // The same page lies at one place in each handler's mapping, so places are compared by their content.
        let mut pages = pages;
        for (index, page) in (0_u64..).zip(&mut pages) {
            page[..1].copy_from_slice(&[index as u8]);
        }
        let marks: HashSet<_> = pages.iter().map(|page| page[0]).collect();
        assert_eq!(marks.len(), pages.len(), "a page was given out twice");
    }
}
