//! A handler whose server goes away, comes back, or does not know it any more.

use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ondol_plugin::Key;
use ondol_protocol::{ClientId, ControlError, DeleteOutcome};

use crate::fake::{FakeEngine, FakePlane, Fault, gone};
use crate::{Handler, HandlerConfig, HandlerError, Health, Object, PageMut, Plugins, Stored};

const LEN: usize = 100;

/// An engine, a handler, and how often that has connected.
struct Scene {
    engine: Arc<FakeEngine>,
    handler: Handler,
    connects: Arc<AtomicUsize>,
    /// Whether there is no server to connect to.
    away: Arc<AtomicBool>,
}

impl Scene {
    fn new() -> Self {
        Self::on(FakeEngine::new())
    }

    /// A further handler of an engine.
    fn on(engine: Arc<FakeEngine>) -> Self {
        let connects = Arc::new(AtomicUsize::new(0));
        let away = Arc::new(AtomicBool::new(false));
        let connect = {
            let (engine, connects, away) = (engine.clone(), connects.clone(), away.clone());
            move || -> Result<Arc<FakePlane>, ControlError> {
                connects.fetch_add(1, Ordering::Relaxed);
                if away.load(Ordering::Relaxed) || engine.lock().is_away {
                    return Err(gone());
                }
                Ok(engine.attach())
            }
        };
        let config = HandlerConfig {
            plugins: Plugins::None,
            ..HandlerConfig::default()
        };
        let handler = Handler::embedded(connect, config).unwrap();
        Self {
            engine,
            handler,
            connects,
            away,
        }
    }

    fn page(&self, byte: u8) -> PageMut {
        let mut page = self.handler.alloc(LEN).unwrap();
        page.fill(byte);
        page
    }

    fn put(&self, key: &Key, byte: u8) {
        let stored = self.handler.store(key, self.page(byte));
        assert_eq!(stored.unwrap(), Stored::New);
    }

    fn get(&self, key: &Key) -> Object {
        self.handler.retrieve(key).unwrap().unwrap()
    }

    fn granted(&self) -> usize {
        self.engine.lock().granted.len()
    }
}

#[test]
fn a_client_that_is_not_known_any_more_becomes_a_new_one_and_is_served() {
    type Ask = fn(&Handler, &Key) -> bool;
    let asks: [Ask; 14] = [
        |handler, key| handler.retrieve(key).unwrap().is_some(),
        |handler, key| {
            let keys = [key.clone(), key.clone()];
            handler
                .batch_retrieve(&keys)
                .unwrap()
                .iter()
                .all(Option::is_some)
        },
        |handler, key| handler.match_prefix(from_ref(key)).unwrap().len() == 1,
        |handler, key| handler.retrieve_group(from_ref(key)).unwrap().is_some(),
        |handler, key| handler.prefetch(from_ref(key)).unwrap().found == 1,
        |handler, key| {
            // That no plugin stages is no matter here; the objects were looked for.
            let staged = handler.stage(from_ref(key));
            staged.requested_keys == 1 && handler.counts().hits == 2
        },
        |handler, key| handler.exists(key).unwrap(),
        |handler, key| handler.pin(key).unwrap(),
        |handler, key| !handler.unpin(key).unwrap() && handler.exists(key).unwrap(),
        |handler, key| handler.delete(key).unwrap() == DeleteOutcome::Deleted,
        |handler, _| handler.list(None, 1).is_ok(),
        |handler, _| handler.stats().unwrap().engine.objects == 1,
        |handler, _| handler.alloc(LEN).is_ok(),
        |handler, _| handler.health().is_connected(),
    ];
    for (index, ask) in asks.into_iter().enumerate() {
        let scene = Scene::new();
        let key = Key::integer(1);
        scene.put(&key, 7);
        let object = scene.get(&key);
        if index == 8 {
            // So that there is a pin to take back.
            assert!(scene.handler.pin(&key).unwrap());
        }
        scene.engine.forget_clients();
        assert!(ask(&scene.handler, &key), "{index}");
        assert_eq!(scene.connects.load(Ordering::Relaxed), 2, "{index}");
        assert_eq!(scene.handler.counts().new_lines, 1, "{index}");
        assert_eq!(*object, [7; LEN]);
    }
}

#[test]
fn pages_of_a_line_that_is_over_cannot_be_stored_and_go_nowhere() {
    let scene = Scene::new();
    let key = Key::integer(1);
    let pages = [1, 2, 3].map(|byte| scene.page(byte));
    scene.engine.forget_clients();
    let [first, mut second, third] = pages;
    // The store that learns it fails, and the next line is there after it.
    let error = scene.handler.store(&key, first).unwrap_err();
    assert!(matches!(error, HandlerError::ForeignPage), "{error}");
    assert_eq!(scene.handler.counts().new_lines, 1);
    scene.put(&key, 4);
    // Memory that is still mapped, and nobody's business.
    second.fill(9);
    let error = scene.handler.store(&Key::integer(2), second).unwrap_err();
    assert!(matches!(error, HandlerError::ForeignPage), "{error}");
    let granted = scene.granted();
    let calls = scene.engine.lock().calls.len();
    drop(third);
    assert_eq!(scene.granted(), granted);
    assert_eq!(scene.engine.lock().calls.len(), calls);
    assert_eq!(scene.connects.load(Ordering::Relaxed), 2);
}

#[test]
fn many_threads_open_one_new_line() {
    let scene = Scene::new();
    let key = Key::integer(1);
    scene.put(&key, 7);
    for round in 1..=20 {
        scene.engine.forget_clients();
        thread::scope(|scope| {
            for thread in 0..8 {
                let (handler, key) = (&scene.handler, &key);
                scope.spawn(move || match thread % 3 {
                    0 => assert_eq!(*handler.retrieve(key).unwrap().unwrap(), [7; LEN]),
                    1 => drop(handler.alloc(LEN).unwrap()),
                    _ => assert!(handler.exists(key).unwrap()),
                });
            }
        });
        assert!(scene.handler.counts().new_lines <= round);
        let lines = scene.handler.counts().new_lines as usize;
        assert_eq!(scene.connects.load(Ordering::Relaxed), 1 + lines);
        assert_eq!(scene.engine.lock().clients.len(), 1);
    }
}

#[test]
fn while_no_new_line_can_be_had_calls_fail_and_nothing_is_reported_missing() {
    let scene = Scene::new();
    let key = Key::integer(1);
    scene.put(&key, 7);
    let object = scene.get(&key);
    scene.engine.forget_clients();
    scene.away.store(true, Ordering::Relaxed);
    let mut reasons = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut note = |error: HandlerError| {
        assert!(
            error.is_disconnected() && !error.is_outcome_unknown(),
            "{error}"
        );
        reasons.push(error.to_string());
        reasons
            .last()
            .is_some_and(|text| text.contains("tried again in"))
    };
    // The wait doubles: sooner or later a call comes within it.
    while !note(scene.handler.retrieve(&key).unwrap_err()) {
        assert!(Instant::now() < deadline, "no call was turned away early");
    }
    note(scene.handler.exists(&key).unwrap_err());
    note(scene.handler.match_prefix(from_ref(&key)).unwrap_err());
    note(scene.handler.alloc(LEN).unwrap_err());
    assert!(matches!(scene.handler.health(), Health::Unreachable(_)));
    assert_eq!(*object, [7; LEN]);

    scene.away.store(false, Ordering::Relaxed);
    while scene.handler.health() != Health::Connected {
        assert!(Instant::now() < deadline, "not connected again");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(*scene.get(&key), [7; LEN]);
    assert_eq!(scene.handler.counts().new_lines, 1);
}

#[test]
fn after_a_resume_what_was_not_answered_is_asked_again() {
    let scene = Scene::new();
    let (stored, lost) = (Key::integer(1), Key::integer(2));
    // A grant and two commits that the old server carries out, or not, and does not answer.
    scene.engine.fail_next("grant", Fault::AnswerLost);
    assert!(scene.handler.alloc(LEN).unwrap_err().is_outcome_unknown());
    assert_eq!(scene.granted(), 1);
    let pages = [scene.page(5), scene.page(6)];
    for ((key, fault), page) in [(&stored, Fault::AnswerLost), (&lost, Fault::RequestLost)]
        .into_iter()
        .zip(pages)
    {
        scene.engine.fail_next("commit", fault);
        let error = scene.handler.store(key, page).unwrap_err();
        assert!(error.is_outcome_unknown(), "{error}");
    }
    scene.engine.lock().incarnation = 2;
    assert_eq!(*scene.get(&stored), [5; LEN]);
    assert!(!scene.handler.exists(&lost).unwrap());
    let counts = scene.handler.counts();
    assert_eq!((counts.reconnects, counts.new_lines), (1, 0));
    assert_eq!(scene.handler.incarnation(), Some(2));
    // What is granted is what lies in stock.
    assert_eq!(scene.granted() as u64, counts.stock_pages);
    scene.handler.close();
    assert_eq!(scene.granted(), 0);
    assert_eq!(scene.handler.incarnation(), None);
}

#[test]
fn what_an_engine_failed_to_record_is_asked_again() {
    let scene = Scene::new();
    let key = Key::integer(1);
    let failed = || Fault::Error(ControlError::Failed("no room".into()));
    scene.engine.fail_next("grant", failed());
    assert!(scene.handler.alloc(LEN).unwrap_err().is_outcome_unknown());
    let page = scene.page(1);
    scene.engine.fail_next("commit", failed());
    let error = scene.handler.store(&key, page).unwrap_err();
    assert!(error.is_outcome_unknown(), "{error}");
    scene.put(&key, 1);
    scene.engine.fail_next("return_pages", failed());
    scene.handler.close();
    scene.handler.close();
    assert!(scene.handler.retrieve(&key).is_err());
}

#[test]
fn a_door_that_turns_a_repeated_request_away_does_not_cost_its_pages() {
    let scene = Scene::new();
    scene.engine.fail_next("grant", Fault::AnswerLost);
    assert!(scene.handler.alloc(LEN).is_err());
    let full = ControlError::Refused("too many connections".into());
    scene.engine.fail_next("grant", Fault::Error(full));
    drop(scene.page(1));
    scene.handler.close();
    assert_eq!(scene.granted(), 0);
}

#[test]
fn a_handler_without_a_server_can_be_closed_and_connected_anew() {
    let scene = Scene::new();
    let key = Key::integer(1);
    scene.put(&key, 7);
    let object = scene.get(&key);
    let page = scene.page(8);
    for call in ["return_pages", "leave"] {
        scene.engine.fail_next(call, Fault::Error(gone()));
    }
    scene.away.store(true, Ordering::Relaxed);
    scene.handler.close();
    assert_eq!(scene.handler.health(), Health::Closed);
    let error = scene.handler.reconnect().unwrap_err();
    assert!(error.is_disconnected(), "{error}");
    scene.away.store(false, Ordering::Relaxed);
    // A reconnect does not wait for what an earlier one saw.
    scene.handler.reconnect().unwrap();
    assert_eq!(*object, [7; LEN]);
    let error = scene.handler.store(&Key::integer(2), page).unwrap_err();
    assert!(matches!(error, HandlerError::ForeignPage), "{error}");
    scene.put(&Key::integer(2), 9);
    // A closed handler that the engine has forgotten stays closed.
    scene.handler.close();
    scene.engine.forget_clients();
    let error = scene.handler.exists(&key).unwrap_err();
    assert!(matches!(error, HandlerError::Closed), "{error}");
}

/// Lets the engine be away while the handler of a scene that holds stock, pages and pins is closed.
fn close_unheard(scene: &Scene, key: &Key) {
    drop((scene.page(1), scene.page(2)));
    assert!(scene.handler.pin(key).unwrap());
    scene.engine.lock().is_away = true;
    scene.handler.close();
}

#[test]
fn a_farewell_that_no_server_heard_is_said_when_a_handler_reaches_the_next() {
    let key = Key::integer(1);
    let first = Scene::new();
    first.put(&key, 7);
    let engine = Arc::clone(&first.engine);
    let others = [(); 2].map(|()| Scene::on(Arc::clone(&engine)));
    for scene in others.iter().chain([&first]) {
        engine.lock().is_away = false;
        close_unheard(scene, &key);
    }
    assert_eq!(first.engine.lock().pins_of(&key), 3);
    assert!(first.granted() > 0);
    engine.restart();
    // Nobody at another place is told.
    let elsewhere = Scene::new();
    assert_eq!(engine.lock().leaves, []);
    let scene = Scene::on(Arc::clone(&engine));
    assert_eq!((scene.granted(), engine.lock().pins_of(&key)), (0, 0));
    let mut leaves = engine.lock().leaves.clone();
    leaves.sort_unstable();
    assert_eq!(leaves, [1, 2, 3].map(ClientId));
    assert_eq!(elsewhere.engine.lock().leaves, []);
    // That was all.
    engine.restart();
    assert!(scene.handler.exists(&key).unwrap());
    assert_eq!(engine.lock().leaves.len(), 3);
}

#[test]
fn a_farewell_is_said_when_a_handler_that_lives_on_finds_the_next_server() {
    let key = Key::integer(1);
    let (scene, living) = {
        let scene = Scene::new();
        scene.put(&key, 7);
        let living = Scene::on(Arc::clone(&scene.engine));
        (scene, living)
    };
    close_unheard(&scene, &key);
    // A server that goes away again at once hears nothing; the farewell waits on.
    scene.engine.restart();
    scene.engine.fail_next("return_pages", Fault::Error(gone()));
    scene.engine.fail_next("leave", Fault::Error(gone()));
    assert!(living.handler.exists(&key).unwrap());
    assert_eq!(scene.engine.lock().leaves, []);
    scene.engine.restart();
    assert!(living.handler.exists(&key).unwrap());
    assert_eq!(scene.engine.lock().leaves, [ClientId(1)]);
    assert_eq!((scene.granted(), scene.engine.lock().pins.len()), (0, 0));
}

#[test]
fn a_reconnect_says_the_farewell_that_it_could_not_say() {
    let key = Key::integer(1);
    let scene = Scene::new();
    scene.put(&key, 7);
    close_unheard(&scene, &key);
    assert!(scene.handler.reconnect().unwrap_err().is_disconnected());
    scene.engine.restart();
    scene.handler.reconnect().unwrap();
    assert_eq!(scene.engine.lock().leaves, [ClientId(1)]);
    assert_eq!((scene.granted(), scene.engine.lock().pins.len()), (0, 0));
}

#[test]
fn while_objects_are_held_each_new_server_is_told() {
    let key = Key::integer(1);
    let scene = Scene::new();
    scene.put(&key, 7);
    let living = Scene::on(Arc::clone(&scene.engine));
    let object = scene.get(&key);
    let told = |times| {
        scene.engine.restart();
        assert!(living.handler.exists(&key).unwrap());
        assert_eq!(scene.engine.lock().leaves, vec![ClientId(1); times]);
    };
    scene.handler.close();
    told(2);
    told(3);
    assert_eq!(*object, [7; LEN]);
    drop(object);
    // The lease may stand in the server's book yet.
    told(4);
    told(4);
}

#[test]
fn a_page_that_outlives_its_handler_goes_back_to_a_server_that_comes_later() {
    let scene = Scene::new();
    let [heard, unheard] = [scene.page(1), scene.page(2)];
    let living = Scene::on(Arc::clone(&scene.engine));
    scene.handler.close();
    assert_eq!(scene.granted(), 2);
    // This one tells a server that does not know that the client has left.
    scene.engine.restart();
    drop(heard);
    assert_eq!(scene.granted(), 1);
    assert_eq!(scene.engine.lock().left.len(), 1);
    scene.engine.lock().is_away = true;
    drop(unheard);
    scene.engine.restart();
    assert!(living.handler.health().is_connected());
    assert_eq!(scene.granted(), 0);
    assert_eq!(scene.engine.lock().left.len(), 1);
}

#[test]
fn a_server_that_does_not_know_the_client_is_told_once() {
    let key = Key::integer(1);
    let scene = Scene::new();
    scene.put(&key, 7);
    close_unheard(&scene, &key);
    scene.engine.restart();
    scene.engine.forget_clients();
    let living = Scene::on(Arc::clone(&scene.engine));
    let calls = || {
        let state = scene.engine.lock();
        let told = |call: &&&str| ["leave", "return_pages"].contains(*call);
        state.calls.iter().filter(told).count()
    };
    let before = calls();
    scene.engine.restart();
    assert!(living.handler.exists(&key).unwrap());
    assert_eq!(calls(), before);
}

#[test]
fn a_client_does_not_leave_before_it_knows_its_pages() {
    let scene = Scene::new();
    scene.engine.fail_next("grant", Fault::AnswerLost);
    assert!(scene.handler.alloc(LEN).is_err());
    let full = ControlError::Refused("too many connections".into());
    scene.engine.fail_next("grant", Fault::Error(full));
    scene.handler.close();
    assert_eq!((scene.granted(), scene.engine.lock().leaves.len()), (1, 0));
    let _living = Scene::on(Arc::clone(&scene.engine));
    assert_eq!((scene.granted(), scene.engine.lock().leaves.len()), (0, 1));
}

#[test]
fn of_too_many_farewells_the_oldest_is_given_up() {
    let engine = FakeEngine::new();
    let scenes: Vec<_> = (0..70).map(|_| Scene::on(Arc::clone(&engine))).collect();
    engine.lock().is_away = true;
    drop(scenes);
    engine.restart();
    let _living = Scene::on(Arc::clone(&engine));
    let leaves = &engine.lock().leaves;
    assert!(
        leaves.iter().copied().eq((7..=70).map(ClientId)),
        "{leaves:?}"
    );
}

#[test]
fn a_reader_does_not_notice_a_reconnect_and_learns_of_a_close() {
    let scene = Scene::new();
    let key = Key::integer(1);
    scene.put(&key, 7);
    let closed = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    match scene.handler.retrieve(&key) {
                        Ok(object) => assert_eq!(*object.unwrap(), [7; LEN]),
                        Err(HandlerError::Closed) if closed.load(Ordering::Acquire) => return,
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        for _ in 0..500 {
            scene.handler.reconnect().unwrap();
        }
        closed.store(true, Ordering::Release);
        scene.handler.close();
    });
}
