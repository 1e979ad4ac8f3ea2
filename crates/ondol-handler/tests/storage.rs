//! Reads that wait for storage, through the door of a server.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ondol_engine::{Engine, EngineConfig, L2Config};
use ondol_handler::{Handler, HandlerConfig, Plugins, SocketOptions, SocketPlane, Stored};
use ondol_host::l2::{Backend, LaneOptions};
use ondol_plugin::Key;
use ondol_plugin::l2::{LoadOutcome, LookupResult, StoreResult};
use ondol_server::{DoorConfig, House, StateDir, UnixDoor};
use ondol_testkit::l2::ManualAdapter;

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(30);

struct Server {
    manual: ManualAdapter,
    engine: Arc<Engine>,
    door: UnixDoor,
    _dir: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        let manual = ManualAdapter::new().unwrap();
        let mut config = EngineConfig::new(["memfd:?size=4MiB".parse().unwrap()]);
        let adapter = manual.clone();
        let mut storage = L2Config::with(move |_| {
            let spec = r#"{"type":"manual"}"#.parse().unwrap();
            let adapter = Box::new(adapter.clone());
            let backend = Backend::start("manual#0", spec, true, adapter, LaneOptions::default());
            Ok(vec![backend.map_err(|error| error.to_string())?])
        });
        storage.close_deadline = Duration::from_millis(100);
        config.l2 = Some(storage);
        let engine = Engine::open(config).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::lock(&dir.path().join("state")).unwrap();
        let config = DoorConfig::new(state.socket_path());
        let house: Arc<dyn House> = Arc::<Engine>::clone(&engine);
        let door = UnixDoor::open(house, &state, config).unwrap();
        Self {
            manual,
            engine,
            door,
            _dir: dir,
        }
    }

    fn client(&self, timeout: Duration) -> Handler {
        let socket = self.door.socket().to_owned();
        let mut options = SocketOptions::default();
        options.timeout = timeout;
        let mut config = HandlerConfig::default();
        config.plugins = Plugins::None;
        Handler::embedded(
            move || SocketPlane::connect(Path::new(&socket), options.clone()),
            config,
        )
        .unwrap()
    }
}

fn key(number: u64) -> Key {
    Key::integer(number)
}

/// Puts an object, and hands out what storage was given of it.
fn store(server: &Server, handler: &Handler, number: u64, bytes: &[u8]) -> Vec<u8> {
    let mut page = handler.alloc(bytes.len()).unwrap();
    page.copy_from_slice(bytes);
    assert_eq!(handler.store(&key(number), page).unwrap(), Stored::New);
    let store = server.manual.next_store();
    let object = store.batch[0].object.to_vec();
    store.end(StoreResult::stored(object.len() as u64));
    object
}

#[test]
fn a_wait_longer_than_an_answer_may_take_is_made_of_several() {
    let server = Server::start();
    let handler = server.client(Duration::from_secs(1));
    let stored = store(&server, &handler, 1, b"ondol");
    assert!(handler.delete(&key(1)).is_ok());
    let len = stored.len() as u64;
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| handler.retrieve_within(&key(1), LONG));
        // What comes too late for the first question comes in time for one that follows.
        let lookup = server.manual.next_lookup();
        std::thread::sleep(Duration::from_millis(1500));
        lookup.end(LookupResult::new([Some(len)]));
        let mut answered = 0;
        while !reader.is_finished() {
            let (_, lookups, loads) = server.manual.waiting();
            if lookups > 0 {
                server.manual.next_lookup().find(|_| Some(len));
                answered += 1;
            }
            if loads > 0 {
                server.manual.next_load().fill(|_| Some(stored.clone()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let object = reader.join().unwrap().unwrap().unwrap();
        assert_eq!(object[..], *b"ondol");
        assert!(answered > 0, "the first question was the only one");
    });
    let stats = server.engine.stats();
    assert_eq!(stats.clients[0].l2_hits, 1);
}

#[test]
fn a_reader_whose_time_is_over_is_answered_and_what_comes_later_is_there_for_the_next() {
    let server = Server::start();
    let handler = server.client(LONG);
    let stored = store(&server, &handler, 1, b"ondol");
    assert!(handler.delete(&key(1)).is_ok());
    let wait = Duration::from_millis(300);
    let load = std::thread::scope(|scope| {
        let reader = scope.spawn(|| handler.retrieve_within(&key(1), wait));
        server
            .manual
            .next_lookup()
            .find(|_| Some(stored.len() as u64));
        let load = server.manual.next_load();
        assert!(reader.join().unwrap().unwrap().is_none());
        load
    });
    // The client is served meanwhile, by the same door.
    assert!(handler.retrieve(&key(2)).unwrap().is_none());
    load.fill(|_| Some(stored.clone()));
    let until = std::time::Instant::now() + LONG;
    while !handler.exists(&key(1)).unwrap() {
        assert!(std::time::Instant::now() < until, "it was not admitted");
    }
    assert_eq!(handler.retrieve(&key(1)).unwrap().unwrap()[..], *b"ondol");
}

#[test]
fn what_storage_says_is_damaged_or_gone_is_a_miss() {
    let server = Server::start();
    let handler = server.client(LONG);
    let stored = store(&server, &handler, 1, b"ondol");
    assert!(handler.delete(&key(1)).is_ok());
    for outcome in [
        LoadOutcome::Missing,
        LoadOutcome::Corrupt("a bit".to_owned()),
        LoadOutcome::Failed("EIO".to_owned()),
    ] {
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| handler.retrieve_within(&key(1), LONG));
            server
                .manual
                .next_lookup()
                .find(|_| Some(stored.len() as u64));
            server.manual.next_load().each(|_| outcome.clone());
            assert!(reader.join().unwrap().unwrap().is_none(), "{outcome:?}");
        });
    }
    assert_eq!(server.engine.stats().objects, 0);
}

#[test]
fn a_server_that_stops_answers_those_who_wait() {
    let server = Server::start();
    let handler = server.client(LONG);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| handler.retrieve_within(&key(1), LONG));
        let lookup = server.manual.next_lookup();
        let begun = std::time::Instant::now();
        server.engine.close().unwrap();
        assert!(matches!(reader.join().unwrap(), Ok(None) | Err(_)));
        assert!(begun.elapsed() < LONG / 2);
        drop(lookup);
    });
}
