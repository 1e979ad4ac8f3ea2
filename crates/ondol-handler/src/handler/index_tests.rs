//! What a handler finds by itself, and when it asks the engine after all.

use std::sync::Arc;
use std::time::Duration;

use ondol_plugin::Key;
use ondol_protocol::{ClientId, ControlError};
use ondol_shm::{HIT_PLACES, LEASE_SLOTS, SLOTS};

use crate::fake::{FakeEngine, Fault, PAGES, STRIDE};
use crate::{Expect, Handler, HandlerConfig, HandlerError, Object, Plugins};

/// An engine with an index and objects under the numbers 0 to 9, and a handler that has used it.
struct Scene {
    engine: Arc<FakeEngine>,
    handler: Handler,
}

const WAIT: Duration = Duration::from_millis(1);

fn key(number: u64) -> Key {
    Key::integer(number)
}

fn keys(numbers: impl IntoIterator<Item = u64>) -> Vec<Key> {
    numbers.into_iter().map(key).collect()
}

/// Which of the keys have an object, as a row of digits.
fn row(objects: &[Option<Object>]) -> String {
    let digit = |object: &Option<Object>| if object.is_some() { '1' } else { '0' };
    objects.iter().map(digit).collect()
}

impl Scene {
    fn new() -> Self {
        let scene = Self::without_index();
        scene.engine.lock().open_index();
        assert!(scene.handler.exists(&key(0)).unwrap());
        assert_eq!(row(&scene.retrieve(0..10)), "1111111111");
        scene.engine.lock().calls.clear();
        scene
    }

    fn without_index() -> Self {
        let engine = FakeEngine::new();
        let connect = {
            let engine = Arc::clone(&engine);
            move || Ok(engine.attach())
        };
        let config = HandlerConfig {
            plugins: Plugins::None,
            // Two pages at once.
            stock_bytes: 2 * STRIDE,
            ..HandlerConfig::default()
        };
        let handler = Handler::embedded(connect, config).unwrap();
        for number in 0..10_u64 {
            let mut page = handler.alloc(8).unwrap();
            page.copy_from_slice(&number.to_le_bytes());
            handler.store(&key(number), page).unwrap();
        }
        Self { engine, handler }
    }

    fn retrieve(&self, numbers: impl IntoIterator<Item = u64>) -> Vec<Option<Object>> {
        self.handler.batch_retrieve(&keys(numbers)).unwrap()
    }

    /// Groups of two keys that are found all or not at all, with a wait or without.
    fn groups(&self, numbers: impl IntoIterator<Item = u64>, wait: Duration) -> String {
        let expect = Expect {
            wait,
            ..Expect::default()
        };
        let keys = keys(numbers);
        row(&self.handler.batch(&keys, 2, false, expect).unwrap())
    }

    /// The calls that came since the last time.
    fn calls(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.engine.lock().calls)
    }

    /// The numbers of the keys that the engine was asked for since the last time.
    fn asked(&self) -> Vec<Vec<Key>> {
        std::mem::take(&mut self.engine.lock().asked)
    }

    fn held(&self) -> usize {
        self.engine.lock().held(ClientId(1))
    }
}

#[test]
fn what_the_index_tells_is_not_asked_for() {
    let scene = Scene::new();
    let handler = &scene.handler;
    let there = keys(0..10);
    let some = keys([3, 77, 4]);
    assert_eq!(
        &*handler.retrieve(&key(7)).unwrap().unwrap(),
        &7_u64.to_le_bytes()
    );
    assert!(handler.retrieve(&key(70)).unwrap().is_none());
    assert_eq!(row(&handler.batch_retrieve(&some).unwrap()), "101");
    assert_eq!(handler.match_prefix(&there).unwrap().len(), 10);
    assert_eq!(handler.match_prefix(&some).unwrap().len(), 1);
    assert_eq!(handler.retrieve_group(&there).unwrap().unwrap().len(), 10);
    assert!(handler.retrieve_group(&some).unwrap().is_none());
    assert!(handler.exists(&key(1)).unwrap() && !handler.exists(&key(11)).unwrap());
    assert_eq!(handler.batch_exists(&some).unwrap(), [true, false, true]);
    assert_eq!(handler.prefetch(&there).unwrap().found, 10);
    assert_eq!(handler.stage(&there).requested_keys, 10);
    assert_eq!(scene.calls(), [""; 0]);
    assert_eq!(scene.held(), 0);
}

#[test]
fn objects_are_held_by_slots_until_they_are_dropped() {
    let scene = Scene::new();
    let held = scene.retrieve(0..3);
    let twice = held[1].clone();
    assert_eq!((scene.held(), scene.handler.counts().leases), (3, 3));
    drop(held);
    assert_eq!((scene.held(), scene.handler.counts().leases), (1, 1));
    drop(twice);
    assert_eq!((scene.held(), scene.handler.counts().leases), (0, 0));
    assert!(scene.asked().is_empty());
}

#[test]
fn only_what_the_index_cannot_tell_is_asked_for() {
    let scene = Scene::new();
    scene.engine.lock().doubt(&key(4));
    assert_eq!(row(&scene.retrieve([3, 4, 5, 66])), "1110");
    assert_eq!(scene.asked(), [keys([4])]);
    assert_eq!(
        scene.handler.batch_exists(&keys([4, 5])).unwrap(),
        [true, true]
    );
    assert_eq!(scene.calls(), ["retrieve", "locate"]);

    let mut state = scene.engine.lock();
    state.index.as_mut().unwrap().writer.set_unindexed(1);
    drop(state);
    assert_eq!(row(&scene.retrieve([66, 3, 77])), "010");
    assert_eq!(scene.asked(), [keys([66, 77])]);
}

#[test]
fn who_waits_for_storage_asks_for_what_is_missing_only() {
    let scene = Scene::new();
    let wait = |numbers: &[u64]| {
        let keys = keys(numbers.iter().copied());
        row(&scene.handler.batch_retrieve_within(&keys, WAIT).unwrap())
    };
    assert_eq!(wait(&[1, 2]), "11");
    assert_eq!(scene.calls(), [""; 0]);
    assert_eq!(wait(&[1, 20, 2, 30]), "1010");
    assert_eq!(scene.asked(), [keys([20, 30])]);

    // A prefix is asked for from the first group on that is not there whole.
    let run = keys([1, 2, 3, 40, 4, 5]);
    let prefix = scene.handler.match_prefix_within(&run, 2, WAIT).unwrap();
    assert_eq!(prefix.len(), 2);
    assert_eq!(scene.asked(), [keys([3, 40, 4, 5])]);

    let prefetched = scene.handler.prefetch(&keys([1, 50, 2])).unwrap();
    assert_eq!((prefetched.requested, prefetched.found), (3, 2));
}

#[test]
fn groups_are_found_all_or_not_at_all() {
    let scene = Scene::new();
    let none = Duration::ZERO;
    assert_eq!(
        scene.groups([0, 1, 2, 99, 99, 3, 4, 5, 6], none),
        "110000111"
    );
    assert_eq!(scene.groups([0, 1, 99], none), "110");
    assert!(scene.asked().is_empty());

    // The engine is asked for whole groups, and not for those that cannot become whole.
    scene.engine.lock().doubt(&key(3));
    let numbers = [0, 1, 2, 3, 99, 3, 4, 5, 3];
    assert_eq!(scene.groups(numbers, none), "111100111");
    assert_eq!(scene.asked(), [keys([2, 3, 3])]);
    assert_eq!(scene.held(), 0);
}

#[test]
fn a_prefix_ends_where_the_first_group_does_that_is_not_whole() {
    let scene = Scene::new();
    let prefix = |numbers: &[u64], group| {
        let keys = keys(numbers.iter().copied());
        let objects = scene.handler.match_prefix_groups(&keys, group).unwrap();
        let read = objects.iter().map(|object| u64::from(object[0]));
        read.collect::<Vec<_>>()
    };
    assert_eq!(prefix(&[5, 6, 7], 1), [5, 6, 7]);
    assert_eq!(prefix(&[5, 6, 77, 8], 1), [5, 6]);
    assert_eq!(prefix(&[5, 6, 7, 88, 8, 9], 2), [5, 6]);
    assert_eq!(prefix(&[55, 6], 2), [0; 0]);
    assert!(scene.asked().is_empty());
    scene.engine.lock().doubt(&key(7));
    assert_eq!(
        prefix(&[5, 6, 77, 7], 1),
        [5, 6],
        "nothing behind the end matters"
    );
    assert!(scene.asked().is_empty());
    assert_eq!(prefix(&[5, 6, 7, 8], 2), [5, 6, 7, 8]);
    assert_eq!(scene.asked(), [keys([7, 8])]);
}

#[test]
fn a_prefix_is_searched_beyond_one_batch() {
    let scene = Scene::new();
    let long = keys((0..1000).map(|at| if at == 777 { 99 } else { at % 10 }));
    assert_eq!(scene.handler.match_prefix(&long).unwrap().len(), 777);
    assert_eq!(
        scene.handler.match_prefix_groups(&long, 300).unwrap().len(),
        600
    );
    assert_eq!(scene.held(), 0);
    assert!(scene.asked().is_empty());
}

#[test]
fn an_index_that_was_replaced_is_asked_for_again() {
    let scene = Scene::new();
    let before = scene.retrieve([1]);
    scene.engine.lock().open_index();
    assert_eq!(row(&scene.retrieve([1, 2])), "11");
    assert_eq!(scene.calls(), ["index"]);
    assert!(scene.handler.exists(&key(1)).unwrap());
    assert_eq!(scene.calls(), [""; 0]);
    assert_eq!(scene.held(), 1, "held through the same table");
    drop(before);
    assert_eq!(scene.held(), 0);
}

#[test]
fn a_table_that_is_not_of_the_index_finds_nothing() {
    let scene = Scene::new();
    for table in scene.engine.lock().tables.values() {
        table.set_incarnation(0).unwrap();
    }
    // As after a new server has taken the client over: the engine is asked for its index.
    assert_eq!(row(&scene.retrieve([1])), "1");
    assert!(scene.handler.exists(&key(1)).unwrap());
    assert_eq!(scene.calls(), ["index"]);
}

#[test]
fn without_an_index_everything_is_asked_for() {
    let scene = Scene::without_index();
    assert_eq!(row(&scene.retrieve([1, 99])), "10");
    assert_eq!(scene.asked(), [keys([1, 99])]);
    assert_eq!(
        scene.handler.batch_exists(&keys([1, 99])).unwrap(),
        [true, false]
    );

    let scene = Scene::new();
    scene.engine.lock().close_index();
    assert_eq!(row(&scene.retrieve([1, 99])), "10");
    assert_eq!(scene.calls(), ["index", "retrieve"]);

    // An engine that cannot say what an index is.
    let scene = Scene::without_index();
    let error = ControlError::Protocol("what is 17?".to_owned());
    scene.engine.fail_next("index", Fault::Error(error));
    assert_eq!(row(&scene.retrieve([1, 99])), "10");
}

#[test]
fn who_finds_no_server_when_it_wants_an_index_is_told_so() {
    let scene = Scene::new();
    let mut state = scene.engine.lock();
    state.close_index();
    state.is_away = true;
    drop(state);
    for _ in 0..2 {
        let error = scene.handler.retrieve(&key(1)).unwrap_err();
        assert!(error.is_disconnected(), "{error}");
        let error = scene.handler.exists(&key(1)).unwrap_err();
        assert!(error.is_disconnected(), "{error}");
    }
    let mut state = scene.engine.lock();
    state.is_away = false;
    state.incarnation += 1;
    state.open_index();
    drop(state);
    // The first call finds the new server, and the next one its index.
    scene.handler.stats().unwrap();
    scene.calls();
    assert_eq!(row(&scene.retrieve([1])), "1");
    assert_eq!(scene.calls(), ["index"]);
    assert_eq!(scene.handler.counts().reconnects, 1);
}

#[test]
fn a_new_client_uses_a_new_table() {
    let scene = Scene::new();
    let held = scene.retrieve([1, 2]);
    scene.engine.forget_clients();
    scene.engine.lock().open_index();
    assert_eq!(row(&scene.retrieve([3])), "1");
    assert_eq!(scene.handler.counts().new_lines, 1);
    assert_eq!(scene.held(), 2, "what is held through the old one");
    let new = scene.retrieve([3, 4, 5]);
    assert_eq!(scene.engine.lock().held(ClientId(2)), 3);
    assert_eq!(&**held[1].as_ref().unwrap(), &2_u64.to_le_bytes());
    drop((held, new));
    assert_eq!(scene.held(), 0);
}

#[test]
fn when_the_slots_are_used_up_the_engine_books_leases() {
    let scene = Scene::new();
    let many = vec![key(1); SLOTS as usize];
    let held = scene.handler.batch_retrieve(&many).unwrap();
    assert_eq!(held.iter().flatten().count(), many.len());
    assert!(scene.asked().is_empty());
    let more = scene.retrieve([2, 3]);
    assert_eq!(row(&more), "11");
    assert_eq!(scene.asked(), [keys([2, 3])]);

    let rest = vec![key(1); LEASE_SLOTS as usize - 2];
    let rest = scene.handler.batch_retrieve(&rest).unwrap();
    let error = scene.handler.retrieve(&key(4)).unwrap_err();
    let limit = u64::from(SLOTS) + u64::from(LEASE_SLOTS);
    assert!(
        matches!(error, HandlerError::TooManyLeases { held, asked: 1, limit: most } if held == limit && most == limit),
        "{error:?}"
    );
    drop(held);
    scene.calls();
    assert_eq!(row(&scene.retrieve([4])), "1");
    assert_eq!(scene.calls(), [""; 0]);
    drop((more, rest));
    assert_eq!(scene.handler.counts().leases, 0);
}

#[test]
fn the_engine_learns_what_was_found() {
    let scene = Scene::new();
    let mut state = scene.engine.lock();
    let table = state.tables.get_mut(&ClientId(1)).unwrap();
    table.drain_hits(HIT_PLACES, drop).unwrap();
    let before = table.counts().unwrap();
    drop(state);
    let held = scene.retrieve((0..100).map(|number| number % 10));
    scene.retrieve([70, 71]);
    scene.handler.exists(&key(1)).unwrap();
    let mut state = scene.engine.lock();
    let table = state.tables.get_mut(&ClientId(1)).unwrap();
    let mut pages = Vec::new();
    table
        .drain_hits(HIT_PLACES, |page| pages.push(page))
        .unwrap();
    let after = table.counts().unwrap();
    assert_eq!((after.0 - before.0, after.1 - before.1), (100, 2));
    let offset = |object: &Option<Object>| object.as_ref().unwrap().offset_in_region();
    let found: Vec<_> = held.iter().map(offset).collect();
    let pages = pages.iter().map(|page| u64::from(page.index) * STRIDE);
    assert_eq!(pages.collect::<Vec<_>>(), found);
}

#[test]
fn a_handler_that_was_closed_is_remembered_as_long_as_it_holds_slots() {
    let scene = Scene::new();
    let held = scene.retrieve([1]);
    scene.handler.close();
    assert_eq!(scene.engine.lock().leaves, [ClientId(1)]);
    scene.engine.restart();
    scene.handler.reconnect().unwrap();
    assert_eq!(scene.engine.lock().leaves, [ClientId(1), ClientId(1)]);
    drop(held);
    scene.engine.restart();
    scene.handler.stats().unwrap();
    assert_eq!(scene.engine.lock().leaves.len(), 3);
    scene.engine.restart();
    scene.handler.stats().unwrap();
    assert_eq!(
        scene.engine.lock().leaves.len(),
        3,
        "nothing is held, and the server has heard it"
    );
}

#[test]
fn pages_of_which_there_are_too_many_go_back_without_a_message() {
    let scene = Scene::new();
    let alloc = || scene.handler.alloc(8).unwrap();
    let pages: Vec<_> = (0..20).map(|_| alloc()).collect();
    let idle = scene.handler.counts().stock_pages as usize;
    scene.calls();
    drop(pages);
    assert_eq!(scene.calls(), [""; 0]);
    let kept = scene.handler.counts().stock_pages;
    let mut state = scene.engine.lock();
    assert_eq!(state.granted.len(), 20 + idle);
    state.take_returns(ClientId(1));
    assert_eq!(state.granted.len() as u64, kept);
    drop(state);

    // What lies idle here is returned before the pool is called full.
    let most = u64::from(PAGES) - 10;
    let pages: Vec<_> = (0..most).map(|_| alloc()).collect();
    let error = scene.handler.alloc(8).unwrap_err();
    assert!(
        matches!(error, HandlerError::Control(ControlError::PoolFull(_))),
        "{error}"
    );
    drop(pages);
    (0..most).map(|_| alloc()).for_each(drop);
    scene.handler.close();
    assert!(scene.engine.lock().granted.is_empty());
}

#[test]
fn a_table_that_another_handler_uses_is_asked_for_once() {
    let scene = Scene::new();
    let plane = scene.engine.attach();
    let connect = move || Ok(Arc::clone(&plane));
    let config = HandlerConfig {
        plugins: Plugins::None,
        ..HandlerConfig::default()
    };
    let first = Handler::embedded(connect.clone(), config.clone()).unwrap();
    let second = Handler::embedded(connect, config).unwrap();
    assert!(first.exists(&key(1)).unwrap());
    scene.calls();
    for _ in 0..3 {
        assert!(second.exists(&key(1)).unwrap());
    }
    assert_eq!(scene.calls(), ["index", "locate", "locate", "locate"]);
    assert!(first.exists(&key(1)).unwrap());
    assert_eq!(scene.calls(), [""; 0]);
}
