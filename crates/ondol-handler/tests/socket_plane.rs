//! The socket plane against a real door with a small engine behind it, and against servers that misbehave.

#[path = "../../ondol-server/tests/fake/mod.rs"]
mod fake;

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;
use std::{env, fs, io};

use fake::{FakeEngine, Helper, PAGES, STRIDE, Server, assert_shared};
use ondol_engine::{Engine, EngineConfig};
use ondol_handler::{SocketOptions, SocketPlane};
use ondol_plugin::{Key, KeyTag};
use ondol_protocol::wire::{Answer, FrameReader, Op, encode_answer};
use ondol_protocol::{
    Access, ClientId, ClientInfo, Commit, CommitOutcome, ControlError, ControlPlane, DeleteOutcome,
    GrantRequest, ObjectMeta, Pin, PinOutcome, Retrieve, StaleReason,
};
use ondol_server::{DoorConfig, House, StateDir, UnixDoor};
use ondol_shm::{LeaseRef, LeaseSlots, Location, create_lease_table, send_with_fds};

fn connect(socket: &Path) -> Result<Arc<SocketPlane>, ControlError> {
    SocketPlane::connect(socket, options(fake::WATCHDOG))
}

fn options(timeout: Duration) -> SocketOptions {
    let mut options = SocketOptions::default();
    options.timeout = timeout;
    options
}

fn grant(count: u32) -> GrantRequest {
    GrantRequest {
        request: 1,
        stride: STRIDE,
        count,
    }
}

fn disconnected<T: std::fmt::Debug>(result: Result<T, ControlError>) -> (String, bool) {
    match result {
        Err(ControlError::Disconnected { reason, sent }) => (reason, sent),
        other => panic!("expected a lost connection, got {other:?}"),
    }
}

fn unknown<T: std::fmt::Debug>(result: Result<T, ControlError>) {
    match result {
        Err(ControlError::UnknownClient(_)) => {}
        other => panic!("expected that the client is not known, got {other:?}"),
    }
}

/// What this binary does as another process.
#[test]
fn entry() {
    let Ok(role) = env::var(fake::ROLE) else {
        return;
    };
    if role == "listen" {
        let _listener = UnixListener::bind(env::var_os(fake::SOCKET).unwrap()).unwrap();
        println!("\nlistening");
        io::stdin().read_to_end(&mut Vec::new()).unwrap();
        return;
    }
    assert_eq!(role, "hold");
    let plane = connect(Path::new(&env::var_os(fake::SOCKET).unwrap())).unwrap();
    let grants = plane.grant(grant(3)).unwrap();
    println!("\nclient {} holds {}", plane.client().id, grants.len());
    io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn every_call_goes_through_the_door() {
    let server = Server::start();
    let plane = connect(server.door.socket()).unwrap();
    assert_eq!(
        plane.client(),
        ClientInfo {
            id: ClientId(1),
            share_limit: 1 << 20,
            max_page_bytes: STRIDE,
            incarnation: 1
        }
    );
    LeaseSlots::open(plane.lease_table().unwrap().as_fd()).unwrap();
    let regions = plane.regions().unwrap();
    assert_eq!(regions.len(), 1);
    let file = plane.open_backing(&regions[0].handle, Access::Read);
    assert_shared(&server.engine.pool, file.unwrap());
    assert!(plane.index().unwrap().is_none());
    let files = [tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap()];
    let [index, slots] = files.each_ref().map(|file| file.try_clone().unwrap());
    server.engine.change(|state| state.index = Some(files));
    let received = plane.index().unwrap().unwrap();
    assert_shared(&index, received.index);
    assert_shared(&slots, received.slots);

    let grants = plane.grant(grant(2)).unwrap();
    assert_eq!(grants.len(), 2);
    let keys = [Key::text("a").unwrap(), Key::text("b").unwrap()];
    let meta = ObjectMeta {
        layout: None,
        checksum: Some(7),
    };
    let commit = Commit {
        key: keys[0].clone(),
        location: Location {
            page: grants[0].page,
            generation: grants[0].generation,
            len: 100,
        },
        meta,
    };
    let commits = [commit.clone(), commit.clone()];
    assert_eq!(
        plane.commit(&commits),
        Ok(vec![CommitOutcome::Stored, CommitOutcome::AlreadyPresent].into())
    );
    let lease = LeaseRef {
        slot: 0,
        sequence: 1,
    };
    let retrieved = plane
        .retrieve(&Retrieve {
            keys: keys.to_vec(),
            leases: vec![lease; 2],
            group: 1,
            prefix: false,
            expect: None,
            wait_ms: 0,
            expected_len: 0,
        })
        .unwrap();
    let hit = retrieved.hits[0].unwrap();
    assert_eq!((hit.location, hit.meta), (commit.location, meta));
    assert_eq!(retrieved.hits[1], None);
    assert_eq!(plane.locate(&keys), Ok(retrieved.hits));
    let pins = keys.clone().map(|key| Pin { key, number: 1 });
    let one_of_two = Ok(vec![PinOutcome::Done, PinOutcome::Absent]);
    assert_eq!(plane.pin(&pins), one_of_two);
    assert_eq!(plane.unpin(&pins), one_of_two);
    let listing = plane.list(None, 10).unwrap();
    assert_eq!(listing.objects.len(), 1);
    assert!(!listing.more);
    assert_eq!(plane.list(Some(&keys[0]), 10).unwrap().objects.len(), 0);
    assert_eq!(plane.stats().unwrap().objects, 1);
    assert_eq!(
        plane.return_pages(&[grants[1], grants[1]]),
        Ok(vec![Ok(()), Err(StaleReason::NotGranted)])
    );
    assert_eq!(
        plane.delete(&keys),
        Ok(vec![DeleteOutcome::Deleted, DeleteOutcome::Absent])
    );
    assert_eq!(plane.ping(), Ok(()));
    // What is still granted can be returned after the client has left; then it is gone.
    assert_eq!(plane.leave(), Ok(()));
    assert_eq!(plane.ping(), Ok(()));
    assert_eq!(plane.return_pages(&grants[..1]), Ok(vec![Ok(())]));
    // The door may be about to close the connection that the next call takes.
    fake::wait("the end of the client", || match plane.ping() {
        Err(ControlError::UnknownClient(_)) => true,
        error => {
            disconnected(error);
            false
        }
    });
}

#[test]
fn errors_of_the_engine_arrive_with_their_fields() {
    let server = Server::start();
    let plane = connect(server.door.socket()).unwrap();
    plane.grant(grant(PAGES)).unwrap();
    match plane.grant(grant(1)) {
        Err(ControlError::PoolFull(breakdown)) => {
            assert_eq!(
                (breakdown.asked, breakdown.granted),
                (STRIDE, STRIDE * u64::from(PAGES))
            );
        }
        other => panic!("{other:?}"),
    }
    // The connection is as good as before.
    assert_eq!(plane.ping(), Ok(()));
    assert_eq!(server.count("ondol_door_connections_accepted_total"), 1);
}

#[test]
fn regions_beyond_one_frame_come_in_parts() {
    // A region of the small engine takes some 4 KiB.
    const REGIONS: u64 = 5_000;
    let server = Server::start_with(FakeEngine::with_regions(1, REGIONS), |_| {});
    let plane = connect(server.door.socket()).unwrap();
    let ids: Vec<u64> = plane
        .regions()
        .unwrap()
        .iter()
        .map(|region| region.handle.span.region_id.0)
        .collect();
    assert!(ids.iter().copied().eq(1..=REGIONS));
    assert!(server.count("ondol_door_requests_total") > 1);
}

#[test]
fn a_listing_beyond_one_frame_is_cut_and_says_so() {
    const OBJECTS: u64 = 16_000;
    let server = Server::start();
    let plane = connect(server.door.socket()).unwrap();
    let location = Location {
        page: plane.grant(grant(1)).unwrap()[0].page,
        generation: ondol_shm::Generation(1),
        len: 1,
    };
    let keys: Vec<Key> = (0..OBJECTS)
        .map(|number| {
            let mut bytes = [0; 1024];
            bytes[..8].copy_from_slice(&number.to_be_bytes());
            Key::new(KeyTag::Raw, &bytes).unwrap()
        })
        .collect();
    for part in keys.chunks(8_000) {
        let commits: Vec<Commit> = part
            .iter()
            .map(|key| Commit {
                key: key.clone(),
                location,
                meta: ObjectMeta::default(),
            })
            .collect();
        plane.commit(&commits).unwrap();
    }
    let mut seen = Vec::new();
    let mut questions = 0;
    loop {
        let listing = plane.list(seen.last(), u32::MAX).unwrap();
        seen.extend(listing.objects.into_iter().map(|object| object.key));
        questions += 1;
        if !listing.more {
            break;
        }
    }
    assert_eq!(seen, keys);
    assert!(questions > 1);
    // What cannot go out in one frame is refused, and nothing is sent.
    match plane.locate(&[keys.as_slice(), &keys[..1000]].concat()) {
        Err(ControlError::Refused(text)) => assert!(text.contains("in parts"), "{text}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(plane.ping(), Ok(()));
}

#[test]
fn many_threads_are_one_client() {
    let server = Server::start();
    let plane = connect(server.door.socket()).unwrap();
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..200 {
                    plane.ping().unwrap();
                }
            });
        }
    });
    assert_eq!(server.engine.lock().attaches, 1);
}

#[test]
fn a_call_does_not_wait_for_another_ones_answer() {
    let server = Server::start();
    let plane = connect(server.door.socket()).unwrap();
    server.engine.change(|state| state.stats_wait = true);
    thread::scope(|scope| {
        let slow = scope.spawn(|| plane.stats());
        server
            .engine
            .wait_until("the call", |state| state.waiting == 1);
        assert_eq!(plane.ping(), Ok(()));
        server.engine.change(|state| state.stats_wait = false);
        slow.join().unwrap().unwrap();
    });
    assert_eq!(server.engine.lock().attaches, 1);
}

#[test]
fn without_a_server_the_error_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("ondol.sock");
    let ask = || {
        let (reason, sent) = disconnected(connect(&socket));
        assert!(!sent);
        assert!(
            reason.contains(socket.to_str().unwrap()) && reason.contains("ondol serve"),
            "{reason}"
        );
    };
    ask();
    // A dead server's socket.
    drop(UnixListener::bind(&socket).unwrap());
    ask();
    let (reason, _) = disconnected(connect(&dir.path().join("s".repeat(200))));
    assert!(reason.contains("107 bytes"), "{reason}");
}

#[test]
fn a_stopped_server_is_a_lost_connection() {
    let server = Server::start();
    let plane = connect(server.door.socket()).unwrap();
    server.door.stop();
    let (reason, sent) = disconnected(plane.ping());
    assert!(!sent && reason.contains("ondol serve"), "{reason}");
}

#[test]
fn a_request_that_was_on_its_way_is_reported_as_unknown() {
    let server = Server::start_with(FakeEngine::new(1), |config| {
        config.stop_timeout = Duration::from_millis(50);
    });
    let plane = connect(server.door.socket()).unwrap();
    server.engine.change(|state| state.stats_wait = true);
    let error = thread::scope(|scope| {
        let call = scope.spawn(|| plane.stats());
        server
            .engine
            .wait_until("the call", |state| state.waiting == 1);
        server.door.stop();
        call.join().unwrap().unwrap_err()
    });
    assert!(error.is_outcome_unknown(), "{error:?}");
    assert!(disconnected::<()>(Err(error)).1);
    server.engine.change(|state| state.stats_wait = false);
}

#[test]
fn a_late_answer_is_nobodys() {
    let server = Server::start();
    // A machine that is busy may not get the hello through in time.
    let mut connected = None;
    fake::wait("a hello in time", || {
        let plane = SocketPlane::connect(server.door.socket(), options(Duration::from_millis(50)));
        connected = plane.ok();
        connected.is_some()
    });
    let plane = connected.unwrap();
    let attached = server.engine.lock().attaches;
    server.engine.change(|state| state.stats_wait = true);
    let error = plane.stats().unwrap_err();
    assert!(
        matches!(error, ControlError::TimedOut { waited_ms: 50 }) && error.is_outcome_unknown(),
        "{error:?}"
    );
    server.engine.change(|state| state.stats_wait = false);
    server
        .engine
        .wait_until("the late answer", |state| state.waiting == 0);
    // Further time-outs are nothing to this test: what is looked for is a wrong answer.
    let keys = [Key::integer(1)];
    for _ in 0..20 {
        match plane.locate(&keys) {
            Ok(hits) => assert_eq!(hits, [None]),
            Err(ControlError::TimedOut { .. }) => {}
            Err(ControlError::Disconnected { sent: false, .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(server.engine.lock().attaches, attached);
}

#[test]
fn a_server_that_was_started_again_and_does_not_know_the_client_is_not_joined() {
    let first = Server::start();
    let plane = connect(first.door.socket()).unwrap();
    let Server {
        dir, door, state, ..
    } = first;
    drop((door, state));
    let second = Server::start_in(dir, FakeEngine::new(2), |_| {});
    for _ in 0..3 {
        unknown(plane.ping());
    }
    assert_eq!(second.engine.lock().attaches, 0);
    // One question was enough to know.
    assert_eq!(second.count("ondol_door_connections_accepted_total"), 1);
    let plane = connect(second.door.socket()).unwrap();
    assert_eq!(plane.client().incarnation, 2);
}

#[test]
fn a_door_that_opens_again_before_the_same_engine_is_not_joined_either() {
    // The engine lives on, but the door has forgotten who belongs to whom.
    let engine = FakeEngine::new(1);
    let first = Server::start_with(Arc::clone(&engine), |_| {});
    let plane = connect(first.door.socket()).unwrap();
    let Server {
        dir, door, state, ..
    } = first;
    drop((door, state));
    let _second = Server::start_in(dir, engine, |_| {});
    unknown(plane.ping());
}

#[test]
fn a_full_door_tells_the_plane_why() {
    let server = Server::start_with(FakeEngine::new(1), |config| config.max_connections = 1);
    let plane = connect(server.door.socket()).unwrap();
    match connect(server.door.socket()) {
        Err(ControlError::Refused(text)) => assert!(text.contains("1 connections"), "{text}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(plane.ping(), Ok(()));
}

#[test]
fn a_killed_client_is_detached() {
    let server = Server::start();
    let mut child = Helper::start("hold", server.door.socket());
    assert_eq!(child.line("client "), "1 holds 3");
    child.kill();
    server
        .engine
        .wait_until("the detachment", |state| !state.died.is_empty());
    assert_eq!(server.engine.lock().died, [ClientId(1)]);
}

#[test]
fn a_killed_client_of_the_real_engine_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let uri = "memfd:?size=4MiB".parse().unwrap();
    let engine = Engine::open(EngineConfig::new([uri])).unwrap();
    let state = StateDir::lock(&dir.path().join("state")).unwrap();
    let config = DoorConfig::new(state.socket_path());
    let house: Arc<dyn House> = Arc::<Engine>::clone(&engine);
    let door = UnixDoor::open(house, &state, config).unwrap();
    let plane = connect(door.socket()).unwrap();
    let mut child = Helper::start("hold", door.socket());
    child.line("holds 3");
    let held = |pid| {
        let clients = plane.stats().unwrap().clients;
        clients
            .iter()
            .find(|client| client.pid == pid)
            .map(|client| client.granted_pages)
    };
    let pid = child.0.id();
    assert_eq!(held(pid), Some(3));
    child.kill();
    fake::wait("the end of the client", || held(pid).is_none());
    fake::wait("the return of its pages", || {
        plane.stats().unwrap().classes[0].granted == 0
    });
}

/// A server that answers one connection after another as `serve` says.
fn impostor(
    serve: impl Fn(usize, UnixStream) + Send + 'static,
) -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            serve(number, stream.unwrap());
        }
    });
    (dir, socket)
}

fn read_request(stream: &mut UnixStream) -> Option<(u8, u64)> {
    let mut frames = FrameReader::new();
    while frames.frame().unwrap().is_none() {
        let len = stream.read(frames.space()).ok().filter(|len| *len > 0)?;
        frames.filled(len);
    }
    let header = frames.header()?;
    Some((header.op, header.sequence))
}

fn say_hello(stream: &mut UnixStream) {
    let (op, sequence) = read_request(stream).unwrap();
    assert_eq!((op, sequence), (Op::Hello as u8, 0));
    let info = ClientInfo {
        id: ClientId(1),
        share_limit: 0,
        max_page_bytes: 0,
        incarnation: 9,
    };
    let mut out = Vec::new();
    encode_answer(&mut out, op, sequence, Ok(&Answer::Hello(info)));
    let table = create_lease_table().unwrap();
    send_with_fds(stream, &out, &[table.as_fd()]).unwrap();
}

#[test]
fn an_idle_connection_found_dead_costs_no_call() {
    let (closed, wait_closed) = channel();
    let (_dir, socket) = impostor(move |number, mut stream| {
        say_hello(&mut stream);
        if number == 0 {
            drop(stream);
            closed.send(()).unwrap();
            return;
        }
        let (op, sequence) = read_request(&mut stream).unwrap();
        let mut out = Vec::new();
        encode_answer(&mut out, op, sequence, Ok(&Answer::Ping));
        stream.write_all(&out).unwrap();
    });
    let plane = connect(&socket).unwrap();
    wait_closed.recv_timeout(fake::WATCHDOG).unwrap();
    assert_eq!(plane.ping(), Ok(()));
}

#[test]
fn a_connection_that_closes_over_a_request_is_not_tried_again() {
    let (_dir, socket) = impostor(|number, mut stream| {
        assert_eq!(number, 0, "the request was sent twice");
        say_hello(&mut stream);
        read_request(&mut stream).unwrap();
    });
    let plane = connect(&socket).unwrap();
    let (reason, sent) = disconnected(plane.ping());
    assert!(sent, "{reason}");
}

#[test]
fn answers_to_other_questions_are_refused() {
    type Distort = fn(&mut u8, &mut u64, &mut Answer);
    let distortions: [(Distort, &str); 4] = [
        (|op, _, _| *op = Op::Leave as u8, "operation 0x0f"),
        (|_, sequence, _| *sequence += 1, "request 2"),
        (|op, _, _| *op = 0x70, "operation 0x70"),
        (
            |_, _, answer| *answer = Answer::Pin(vec![PinOutcome::Done]),
            "left behind",
        ),
    ];
    for (distort, expected) in distortions {
        let (_dir, socket) = impostor(move |_, mut stream| {
            say_hello(&mut stream);
            let (mut op, mut sequence) = read_request(&mut stream).unwrap();
            let mut answer = Answer::Ping;
            distort(&mut op, &mut sequence, &mut answer);
            let mut out = Vec::new();
            encode_answer(&mut out, op, sequence, Ok(&answer));
            stream.write_all(&out).unwrap();
        });
        let plane = connect(&socket).unwrap();
        match plane.ping() {
            Err(ControlError::Protocol(text)) => assert!(text.contains(expected), "{text}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_batch_answer_of_another_length_is_refused() {
    let (_dir, socket) = impostor(|_, mut stream| {
        say_hello(&mut stream);
        let (op, sequence) = read_request(&mut stream).unwrap();
        let mut out = Vec::new();
        encode_answer(
            &mut out,
            op,
            sequence,
            Ok(&Answer::Pin(vec![PinOutcome::Done])),
        );
        stream.write_all(&out).unwrap();
    });
    let plane = connect(&socket).unwrap();
    let pins = [1, 2].map(|number| Pin {
        key: Key::integer(1),
        number,
    });
    match plane.pin(&pins) {
        Err(ControlError::Protocol(text)) => assert!(text.contains("1 answers"), "{text}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn something_that_is_no_ondol_server_is_told_apart() {
    let (_dir, socket) = impostor(|_, mut stream| {
        let _ = stream.write_all(b"220 smtp ready at your service\r\n");
    });
    match connect(&socket) {
        Err(ControlError::Protocol(text)) => {
            assert!(
                text.contains("version") && text.contains(socket.to_str().unwrap()),
                "{text}"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_server_that_says_nothing_is_not_waited_for_without_end() {
    let (_dir, socket) = impostor(|_, stream| {
        thread::spawn(move || {
            thread::park();
            drop(stream);
        });
    });
    let result = SocketPlane::connect(&socket, options(Duration::from_millis(20)));
    let (reason, sent) = disconnected(result);
    assert!(!sent && reason.contains("within 20 ms"), "{reason}");
}

#[test]
fn a_server_of_another_user_is_not_trusted_unless_named() {
    const NOBODY: u32 = 65_534;
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can start a process of another user");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let exe = dir.path().join("helper");
    fs::copy(env::current_exe().unwrap(), &exe).unwrap();
    fs::set_permissions(&exe, fs::Permissions::from_mode(0o755)).unwrap();
    let socket = dir.path().join("socket");
    let mut child = Helper::start_as(&exe, "listen", &socket, |command| {
        command.uid(NOBODY).gid(NOBODY).current_dir("/");
    });
    child.line("listening");
    match SocketPlane::connect(&socket, options(fake::WATCHDOG)) {
        Err(ControlError::Refused(text)) => assert!(text.contains("runs as user 65534"), "{text}"),
        other => panic!("{other:?}"),
    }
    let mut trusting = options(Duration::from_millis(20));
    trusting.server_uids = vec![NOBODY];
    // It is let in now, and says nothing.
    assert!(!disconnected(SocketPlane::connect(&socket, trusting)).1);
}

#[test]
fn a_server_that_trickles_is_not_waited_for_without_end() {
    let (_dir, socket) = impostor(|_, mut stream| {
        thread::spawn(move || {
            // The head of an answer that never ends, a byte at a time; each comes well within the time allowed.
            let mut answer = Vec::new();
            let error = ControlError::Refused("x".repeat(1 << 20));
            encode_answer(&mut answer, Op::Hello as u8, 0, Err(&error));
            for byte in answer {
                if stream.write_all(&[byte]).is_err() {
                    return;
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
    });
    let result = SocketPlane::connect(&socket, options(Duration::from_millis(50)));
    assert!(!disconnected(result).1);
}

#[test]
fn a_server_that_accepts_nothing_is_not_waited_for_without_end() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    fs::metadata(&socket).unwrap();
    // Some connections fit into the queue and get no answer; those behind them are not even accepted.
    let result = SocketPlane::connect(&socket, options(Duration::from_millis(20)));
    assert!(!disconnected(result).1);
}
