//! Handlers that are left while their server is away, against real engines that follow one another at one place.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ondol_engine::{Engine, EngineConfig, Persistence};
use ondol_handler::{
    ControlPlane, Handler, HandlerConfig, Key, Plugins, SocketOptions, SocketPlane,
};
use ondol_protocol::{ClientStats, EngineStats, GrantRequest};
use ondol_server::{DoorConfig, House, StateDir, UnixDoor};

const WATCHDOG: Duration = Duration::from_secs(60);
const LEN: usize = 4096;

/// A place at which servers follow one another.
struct Place(tempfile::TempDir);

struct Server {
    engine: Arc<Engine>,
    door: UnixDoor,
    _state: StateDir,
}

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(place.pool()).unwrap();
        place
    }

    fn pool(&self) -> PathBuf {
        self.0.path().join("pool")
    }

    fn serve(&self) -> Server {
        let state = StateDir::lock(&self.0.path().join("state")).unwrap();
        let device = format!("dir:{}?size=4MiB", self.pool().display());
        let mut config = EngineConfig::new([device.parse().unwrap()]);
        config.persistence = Some(Persistence::new(self.0.path().join("state")));
        let engine = Engine::open(config).unwrap();
        let house: Arc<dyn House> = Arc::<Engine>::clone(&engine);
        let door = UnixDoor::open(house, &state, DoorConfig::new(state.socket_path())).unwrap();
        Server {
            engine,
            door,
            _state: state,
        }
    }
}

impl Server {
    /// Ends as a server does that keeps what its clients hold.
    fn end(self) {
        self.engine.close().unwrap();
    }

    fn stats(&self) -> EngineStats {
        self.engine.stats()
    }

    fn pages_granted(&self) -> u64 {
        let clients = self.stats().clients;
        clients.iter().map(|client| client.granted_pages).sum()
    }

    fn connect(&self) -> Handler {
        connect(self.door.socket())
    }
}

fn connect(socket: &Path) -> Handler {
    let mut config = HandlerConfig::default();
    config.plugins = Plugins::None;
    Handler::connect(socket, config).unwrap()
}

fn put(handler: &Handler, key: &Key) {
    let mut page = handler.alloc(LEN).unwrap();
    page.fill(7);
    handler.store(key, page).unwrap();
}

/// A handler with pages in stock and, on an object, a pin.
fn holder(server: &Server, key: &Key) -> Handler {
    let handler = server.connect();
    put(&handler, key);
    drop((handler.alloc(LEN).unwrap(), handler.alloc(LEN).unwrap()));
    assert!(handler.pin(key).unwrap());
    handler
}

fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + WATCHDOG;
    while !done() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Asks until the server is not looked for again before a new one is there.
fn wait_for_long_wait(ask: impl Fn() -> String) {
    wait("a long wait", || {
        let reason = ask();
        let wait = reason.split_once("tried again in ");
        let wait = wait.and_then(|(_, wait)| wait.split_once(" ms"));
        wait.is_some_and(|(wait, _)| wait.parse::<u64>().unwrap() > 700)
    });
}

#[test]
fn handlers_that_are_dropped_while_the_server_is_away_hold_nothing_of_the_next_one() {
    let place = Place::new();
    let server = place.serve();
    let holders: Vec<_> = (0..2)
        .map(|key| holder(&server, &Key::integer(key)))
        .collect();
    server.end();
    for handler in &holders {
        wait_for_long_wait(|| handler.exists(&Key::integer(0)).unwrap_err().to_string());
    }
    drop(holders);
    let server = place.serve();
    assert_eq!(server.stats().clients.len(), 2);
    assert!(server.pages_granted() >= 4);
    let handler = server.connect();
    let clients = server.stats().clients;
    assert_eq!(clients.len(), 1, "{clients:?}");
    assert_eq!((server.pages_granted(), clients[0].pins), (0, 0));
    assert!(handler.exists(&Key::integer(1)).unwrap());
}

#[test]
fn an_object_held_beyond_a_restart_is_kept_until_it_is_dropped() {
    let place = Place::new();
    let key = Key::integer(1);
    let server = place.serve();
    let (handler, living) = (holder(&server, &key), server.connect());
    let object = handler.retrieve(&key).unwrap().unwrap();
    // Heard, but not by the next server.
    drop(handler);
    server.end();
    let server = place.serve();
    assert!(living.exists(&key).unwrap());
    let clients = server.stats().clients;
    assert_eq!(clients.len(), 2, "{clients:?}");
    assert_eq!(*object, [7; LEN]);
    drop(object);
    assert_eq!(server.stats().clients.len(), 1);
}

#[test]
fn a_forked_child_says_no_farewell_of_its_parents() {
    let place = Place::new();
    let key = Key::integer(1);
    let server = place.serve();
    let handler = holder(&server, &key);
    server.end();
    drop(handler);
    let server = place.serve();
    let socket = server.door.socket().to_owned();
    let ran = forked(|| {
        let handler = connect(&socket);
        // The child keeps and says farewells of its own.
        handler.exists(&Key::integer(1)).is_ok_and(|found| found)
    });
    assert!(ran, "the child could not use a handler of its own");
    let holding = |clients: &[ClientStats]| {
        let held = clients.iter().filter(|client| client.granted_pages > 0);
        held.count()
    };
    assert_eq!(holding(&server.stats().clients), 1);
    let _handler = server.connect();
    assert_eq!(holding(&server.stats().clients), 0);
}

/// Whether `work` says so in a forked child.
fn forked(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child uses memory of its own and what takes no lock of its parent's, and leaves through `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // A child that waits for a lock of its parent's ends with a signal.
        // SAFETY: sets a timer of this process.
        unsafe { libc::alarm(30) };
        let status = i32::from(!work());
        // SAFETY: ends the process.
        unsafe { libc::_exit(status) }
    }
    let mut status = 0;
    // SAFETY: `status` is a valid place and `child` our own.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status == 0
}

#[test]
fn a_line_looks_again_at_once_when_it_is_told_that_there_is_a_server() {
    let place = Place::new();
    let server = place.serve();
    let plane = SocketPlane::connect(server.door.socket(), SocketOptions::default()).unwrap();
    plane.ping().unwrap();
    plane
        .grant(GrantRequest {
            request: 1,
            stride: 4096,
            count: 1,
        })
        .unwrap();
    server.end();
    wait_for_long_wait(|| plane.ping().unwrap_err().to_string());
    let server = place.serve();
    assert_eq!(plane.place(), Some(server.door.socket()));
    plane.look_again();
    assert_eq!(plane.ping(), Ok(()));
}
