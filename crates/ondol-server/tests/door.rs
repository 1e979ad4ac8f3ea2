//! The door from the outside: what it says to well-behaved clients, to broken ones and to none at all.

mod fake;
mod raw;

use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{env, fs, io};

use fake::{FakeEngine, Helper, STRIDE, Server, assert_shared, wait};
use ondol_plugin::Key;
use ondol_protocol::wire::{
    Answer, HEADER_BYTES, Header, Hello, Op, PROTOCOL_VERSION, RequestRef, encode_request,
};
use ondol_protocol::{Access, ControlError, GrantRequest};
use ondol_server::{DoorConfig, House, ServerError, StateDir, UnixDoor};
use ondol_shm::LeaseSlots;
use raw::{Raw, hello, protocol_error, refusal};
use rustix::event::{PollFd, PollFlags, poll};

/// What this binary does as another process.
#[test]
fn entry() {
    let Ok(role) = env::var(fake::ROLE) else {
        return;
    };
    let socket = env::var_os(fake::SOCKET).unwrap();
    match role.as_str() {
        "hold" | "leave" => {
            let (mut raw, info) = Raw::greeted(Path::new(&socket), 7);
            let (answer, _) = raw.ask(RequestRef::Grant(GrantRequest {
                request: 1,
                stride: STRIDE,
                count: 3,
            }));
            assert!(matches!(answer, Ok(Answer::Grant(_))), "{answer:?}");
            if role == "leave" {
                assert_eq!(raw.ask(RequestRef::Leave).0, Ok(Answer::Leave));
                println!("\nleft");
            }
            println!("\nclient {}", info.id);
            // Until killed.
            io::stdin().read_to_end(&mut Vec::new()).unwrap();
        }
        "hold-with-heir" => {
            let (raw, info) = Raw::greeted(Path::new(&socket), 7);
            rustix::io::fcntl_setfd(&raw.stream, rustix::io::FdFlags::empty()).unwrap();
            // Ends with the pipe that the test holds.
            let mut heir = std::process::Command::new("cat").spawn().unwrap();
            println!("\nclient {} heir {}", info.id, heir.id());
            heir.wait().unwrap();
        }
        "say-hello" => {
            let mut raw = Raw::connect(Path::new(&socket));
            let (_, answer, _) = {
                let mut out = Vec::new();
                encode_request(&mut out, 0, RequestRef::Hello(&hello(7))).unwrap();
                // The door may have turned us away before we speak.
                let _ = raw.stream.write_all(&out);
                raw.receive()
            };
            println!("\nanswer {answer:?}");
        }
        "own-state" => {
            let state = StateDir::lock(Path::new(&socket).parent().unwrap());
            println!("\nstate {:?}", state.as_ref().map(StateDir::path));
            io::stdin().read_to_end(&mut Vec::new()).unwrap();
        }
        role => panic!("{role}"),
    }
}

#[test]
fn descriptors_travel_with_their_answers() {
    let server = Server::start();
    let mut raw = Raw::connect(server.door.socket());
    let (answer, mut fds) = raw.ask(RequestRef::Hello(&hello(1)));
    assert!(matches!(answer, Ok(Answer::Hello(_))), "{answer:?}");
    let table = fds.pop().unwrap();
    LeaseSlots::open(std::os::fd::AsFd::as_fd(&table)).expect("the lease table");

    let handle = server.engine.handle();
    let access = Access::Read;
    let (answer, mut fds) = raw.ask(RequestRef::OpenBacking {
        handle: &handle,
        access,
    });
    assert_eq!(answer, Ok(Answer::OpenBacking));
    assert_shared(&server.engine.pool, fds.pop().unwrap());

    let mut forged = handle;
    forged.token[0] ^= 1;
    let (answer, fds) = raw.ask(RequestRef::OpenBacking {
        handle: &forged,
        access,
    });
    assert_eq!(refusal(answer), "no such handle");
    assert!(fds.is_empty());

    let (answer, fds) = raw.ask(RequestRef::Index);
    assert_eq!(answer, Ok(Answer::NoIndex));
    assert!(fds.is_empty());
    let files = [tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap()];
    let ours = files.each_ref().map(|file| file.try_clone().unwrap());
    server.engine.change(|state| state.index = Some(files));
    let (answer, fds) = raw.ask(RequestRef::Index);
    assert_eq!(answer, Ok(Answer::Index));
    assert_eq!(fds.len(), 2);
    for (ours, received) in ours.iter().zip(fds) {
        assert_shared(ours, received);
    }
}

#[test]
fn connections_of_one_process_and_instance_are_one_client() {
    let server = Server::start();
    let socket = server.door.socket();
    let (_first, one) = Raw::greeted(socket, 1);
    let (_second, two) = Raw::greeted(socket, 1);
    let (_other, three) = Raw::greeted(socket, 2);
    assert_eq!(one, two);
    assert_ne!(one.id, three.id);
    assert_eq!(server.engine.lock().attaches, 2);
}

#[test]
fn connections_that_say_hello_at_once_attach_one_client() {
    let server = Server::start();
    let socket = server.door.socket();
    let ids: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..16)
            .map(|_| scope.spawn(|| Raw::greeted(socket, 1).1.id))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(server.engine.lock().attaches, 1);
}

#[test]
fn a_closed_connection_is_not_a_dead_client() {
    let server = Server::start();
    let socket = server.door.socket();
    let (raw, before) = Raw::greeted(socket, 1);
    drop(raw);
    // A connection that came later has been served, so the closed one has been noticed or is about to be.
    let (_other, _) = Raw::greeted(socket, 2);
    let (_again, after) = Raw::greeted(socket, 1);
    assert_eq!(before, after);
    assert!(server.engine.lock().died.is_empty());
}

#[test]
fn a_killed_process_is_detached_with_all_its_grants() {
    let server = Server::start();
    let mut child = Helper::start("hold", server.door.socket());
    let id: u64 = child.line("client ").parse().unwrap();
    let pid = child.0.id();
    assert_eq!(server.engine.lock().sessions.values().next(), Some(&pid));
    child.kill();
    server
        .engine
        .wait_until("the detachment", |state| !state.died.is_empty());
    assert_eq!(server.engine.lock().died, [ondol_protocol::ClientId(id)]);
    assert_eq!(server.count("ondol_door_clients_died_total"), 1);
    // The dead client's pages are free for the next one.
    let (mut raw, _) = Raw::greeted(server.door.socket(), 1);
    let (answer, _) = raw.ask(RequestRef::Grant(GrantRequest {
        request: 1,
        stride: STRIDE,
        count: u32::MAX,
    }));
    let Ok(Answer::Grant(grants)) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(grants.len(), fake::PAGES as usize);
}

#[test]
fn many_killed_processes_are_all_detached() {
    let server = Server::start();
    for round in 1..=10 {
        let mut child = Helper::start("hold", server.door.socket());
        child.line("client ");
        child.kill();
        server.engine.wait_until("the detachment", |state| {
            state.died.len() == round && state.sessions.is_empty()
        });
    }
    server.wait_for_count("ondol_door_clients_died_total", 10);
    // No session ended, which is a leave, before its client was told of as dead.
    let state = server.engine.lock();
    assert!(state.left.is_empty(), "{state:?}");
}

#[test]
fn a_dead_clients_connection_is_closed_though_a_child_inherited_it() {
    let server = Server::start_with(FakeEngine::new(1), |config| config.max_connections = 1);
    let mut child = Helper::start("hold-with-heir", server.door.socket());
    let heir: u32 = child.line("heir ").parse().unwrap();
    let heir = ondol_shm::Process::of_pid(heir).unwrap();
    let _pipe = child.0.stdin.take();
    child.kill();
    server
        .engine
        .wait_until("the detachment", |state| !state.died.is_empty());
    wait("the free place", || {
        let mut raw = Raw::connect(server.door.socket());
        let mut out = Vec::new();
        encode_request(&mut out, 0, RequestRef::Hello(&hello(1))).unwrap();
        let _ = raw.stream.write_all(&out);
        matches!(raw.receive().1, Ok(Answer::Hello(_)))
    });
    assert!(heir.is_alive());
}

#[test]
fn a_client_that_left_may_come_back_as_a_new_one() {
    let server = Server::start();
    let socket = server.door.socket();
    let (mut raw, before) = Raw::greeted(socket, 1);
    let (mut further, _) = Raw::greeted(socket, 1);
    assert_eq!(raw.ask(RequestRef::Leave).0, Ok(Answer::Leave));
    raw.assert_closed();
    further.assert_closed();
    server.wait_for_count("ondol_door_clients_left_total", 1);
    let (_new, after) = Raw::greeted(socket, 1);
    assert_ne!(before.id, after.id);
}

#[test]
fn a_client_that_left_may_still_return_what_it_holds() {
    let server = Server::start_with(FakeEngine::new(1), |config| config.max_clients = 1);
    let socket = server.door.socket();
    let (mut raw, before) = Raw::greeted(socket, 1);
    let request = GrantRequest {
        request: 1,
        stride: STRIDE,
        count: 1,
    };
    let Ok(Answer::Grant(grants)) = raw.ask(RequestRef::Grant(request)).0 else {
        panic!("no grant");
    };
    assert_eq!(raw.ask(RequestRef::Leave).0, Ok(Answer::Leave));
    refusal(raw.ask(RequestRef::Grant(request)).0);
    // It still counts, and is still found, for as long as it holds something.
    let (mut again, after) = Raw::greeted(socket, 1);
    assert_eq!(before, after);
    refusal(Raw::connect(socket).ask(RequestRef::Hello(&hello(2))).0);
    assert_eq!(
        again.ask(RequestRef::ReturnPages(&grants)).0,
        Ok(Answer::ReturnPages(vec![Ok(())]))
    );
    raw.assert_closed();
    again.assert_closed();
    Raw::greeted(socket, 2);
}

#[test]
fn a_killed_client_that_had_left_is_reclaimed() {
    let server = Server::start();
    let mut child = Helper::start("leave", server.door.socket());
    child.line("left");
    child.kill();
    server
        .engine
        .wait_until("the end", |state| !state.died.is_empty());
}

#[test]
fn a_client_that_is_not_known_is_told_so() {
    let server = Server::start();
    let ask = |incarnation| {
        let mut raw = Raw::connect(server.door.socket());
        let hello = Hello {
            incarnation,
            ..hello(1)
        };
        match raw.ask(RequestRef::Hello(&hello)).0 {
            Err(ControlError::UnknownClient(reason)) => reason,
            other => panic!("{other:?}"),
        }
    };
    let text = ask(77);
    assert!(text.contains("was started again"), "{text}");
    assert!(ask(1).contains("has left"));
    assert_eq!(server.engine.lock().attaches, 0);
    assert_eq!(server.count("ondol_door_clients_unknown_total"), 2);
}

#[test]
fn a_hello_of_another_process_is_refused() {
    let server = Server::start();
    let mut raw = Raw::connect(server.door.socket());
    let hello = Hello {
        start_time: 1,
        ..hello(1)
    };
    let text = refusal(raw.ask(RequestRef::Hello(&hello)).0);
    assert!(text.contains("forked child"), "{text}");
    raw.assert_closed();
    assert_eq!(server.engine.lock().attaches, 0);
    server.wait_for_count("ondol_door_connections_refused_total", 1);
}

#[test]
fn a_silent_connection_is_closed() {
    let server = Server::start_with(FakeEngine::new(1), |config| {
        config.hello_timeout = Duration::from_millis(50);
    });
    let mut silent = Raw::connect(server.door.socket());
    silent.assert_closed();
    let mut half = Raw::connect(server.door.socket());
    half.send(&[0; HEADER_BYTES - 1]);
    half.assert_closed();
    server.wait_for_count("ondol_door_connections_stalled_total", 2);
}

#[test]
fn half_a_frame_stalls_nobody_else() {
    let server = Server::start();
    let socket = server.door.socket();
    let (mut half, _) = Raw::greeted(socket, 1);
    let mut out = Vec::new();
    let keys = [Key::integer(1)];
    encode_request(&mut out, 1, RequestRef::Locate(&keys)).unwrap();
    half.send(&out[..out.len() - 1]);

    let (mut other, _) = Raw::greeted(socket, 2);
    for _ in 0..100 {
        assert_eq!(other.ask(RequestRef::Ping).0, Ok(Answer::Ping));
    }
    // It is merely slow, and answered when the rest comes.
    half.send(&out[out.len() - 1..]);
    assert_eq!(half.receive().1, Ok(Answer::Locate(vec![None])));
}

#[test]
fn half_a_frame_is_not_waited_for_without_end() {
    let server = Server::start_with(FakeEngine::new(1), |config| {
        config.frame_timeout = Duration::from_millis(50);
    });
    let (mut raw, _) = Raw::greeted(server.door.socket(), 1);
    raw.send(&[0, 0]);
    raw.assert_closed();
    assert_eq!(server.count("ondol_door_connections_stalled_total"), 1);
    // The client is still there, only its connection is not.
    assert!(server.engine.lock().died.is_empty());
}

#[test]
fn an_idle_connection_is_left_alone() {
    let server = Server::start_with(FakeEngine::new(1), |config| {
        config.hello_timeout = Duration::from_millis(50);
        config.frame_timeout = Duration::from_millis(1);
    });
    // A machine that is busy may not get the hello through in time.
    let mut greeted = None;
    wait("a hello in time", || {
        let mut raw = Raw::connect(server.door.socket());
        let mut out = Vec::new();
        encode_request(&mut out, 0, RequestRef::Hello(&hello(1))).unwrap();
        let _ = raw.stream.write_all(&out);
        let space = raw.frames.space();
        let len = raw.stream.read(space).unwrap_or(0);
        raw.frames.filled(len);
        greeted = (len > 0).then_some(raw);
        len > 0
    });
    let mut raw = greeted.unwrap();
    assert!(matches!(raw.receive().1, Ok(Answer::Hello(_))));
    raw.sequence = 1;
    // Another connection runs into the limit meanwhile.
    Raw::connect(server.door.socket()).assert_closed();
    assert_eq!(raw.ask(RequestRef::Ping).0, Ok(Answer::Ping));
}

#[test]
fn a_client_that_takes_no_answers_is_closed() {
    let server = Server::start_with(FakeEngine::with_regions(1, 2000), |config| {
        config.write_timeout = Duration::from_millis(50);
    });
    let (mut raw, _) = Raw::greeted(server.door.socket(), 1);
    let mut out = Vec::new();
    encode_request(&mut out, 1, RequestRef::Regions { after: 0 }).unwrap();
    for _ in 0..50 {
        if raw.stream.write_all(&out).is_err() {
            break;
        }
    }
    server.wait_for_count("ondol_door_connections_stalled_total", 1);
}

#[test]
fn garbage_is_answered_and_closed() {
    let server = Server::start();
    for garbage in [
        &b"GET / HTTP/1.1\r\nHost: ondol\r\n\r\n"[..],
        &[0xff; 64],
        &[0; 64],
    ] {
        let mut raw = Raw::connect(server.door.socket());
        raw.send(garbage);
        let text = protocol_error(raw.receive().1);
        assert!(text.contains("version"), "{text}");
        raw.assert_closed();
    }
    assert_eq!(server.count("ondol_door_bad_frames_total"), 3);
    assert_eq!(server.engine.lock().attaches, 0);
}

#[test]
fn a_first_message_that_is_no_hello_is_refused() {
    let server = Server::start();
    let mut raw = Raw::connect(server.door.socket());
    let text = protocol_error(raw.ask(RequestRef::Ping).0);
    assert!(text.contains("must be a hello"), "{text}");
    raw.assert_closed();

    let mut raw = Raw::connect(server.door.socket());
    let mut out = Vec::new();
    encode_request(&mut out, 0, RequestRef::Hello(&hello(1))).unwrap();
    out[HEADER_BYTES] = b'X';
    raw.send(&out);
    let text = protocol_error(raw.receive().1);
    assert!(text.contains("not an Ondol client"), "{text}");
    raw.assert_closed();
}

#[test]
fn an_oversize_frame_is_answered_and_closed() {
    let server = Server::start();
    let mut header = Header {
        payload_len: 257,
        op: Op::Hello as u8,
        status: 0,
        version: PROTOCOL_VERSION,
        sequence: 3,
    };
    let mut raw = Raw::connect(server.door.socket());
    raw.send(&header.encode());
    let (found, answer, _) = raw.receive();
    assert_eq!((found.op, found.sequence), (1, 3));
    let text = protocol_error(answer);
    assert!(
        text.contains("257") && text.contains("at most 256"),
        "{text}"
    );
    raw.assert_closed();

    let (mut raw, _) = Raw::greeted(server.door.socket(), 1);
    header.payload_len = u32::MAX;
    raw.send(&header.encode());
    let text = protocol_error(raw.receive().1);
    assert!(text.contains("at most 16777216"), "{text}");
    raw.assert_closed();
}

#[test]
fn a_bad_message_in_a_good_frame_costs_only_itself() {
    let server = Server::start();
    let (mut raw, _) = Raw::greeted(server.door.socket(), 1);
    let mut header = Header {
        payload_len: 0,
        op: 0x77,
        status: 0,
        version: PROTOCOL_VERSION,
        sequence: 9,
    };
    raw.send(&header.encode());
    let (found, answer, _) = raw.receive();
    assert_eq!((found.op, found.sequence), (0x77, 9));
    assert!(protocol_error(answer).contains("operation 0x77 is unknown"));

    header.op = Op::Locate as u8;
    header.payload_len = 4;
    raw.send(&header.encode());
    raw.send(&u32::MAX.to_le_bytes());
    assert!(protocol_error(raw.receive().1).contains("at most 65536"));

    header.op = Op::Ping as u8;
    raw.send(&header.encode());
    raw.send(&[0; 4]);
    assert!(protocol_error(raw.receive().1).contains("left behind"));

    let text = protocol_error(raw.ask(RequestRef::Hello(&hello(1))).0);
    assert!(text.contains("said before"), "{text}");
    raw.sequence = 100;
    assert_eq!(raw.ask(RequestRef::Ping).0, Ok(Answer::Ping));
    assert_eq!(server.count("ondol_door_bad_frames_total"), 3);
}

#[test]
fn requests_sent_without_waiting_are_answered_in_order() {
    let server = Server::start();
    let (mut raw, _) = Raw::greeted(server.door.socket(), 1);
    let (mut stream, mut out) = (Vec::new(), Vec::new());
    for sequence in 1..=200 {
        encode_request(&mut out, sequence, RequestRef::Ping).unwrap();
        stream.extend_from_slice(&out);
    }
    raw.send(&stream);
    for sequence in 1..=200 {
        let (header, answer, _) = raw.receive();
        assert_eq!((header.sequence, answer), (sequence, Ok(Answer::Ping)));
    }
}

#[test]
fn too_many_connections_are_told_so() {
    let server = Server::start_with(FakeEngine::new(1), |config| config.max_connections = 2);
    let socket = server.door.socket();
    let (first, _) = Raw::greeted(socket, 1);
    let (mut second, _) = Raw::greeted(socket, 1);
    let mut third = Raw::connect(socket);
    let (header, answer, _) = third.receive();
    assert_eq!((header.op, header.sequence), (Op::Hello as u8, 0));
    let text = refusal(answer);
    assert!(text.contains("2 connections"), "{text}");
    third.assert_closed();
    assert_eq!(second.ask(RequestRef::Ping).0, Ok(Answer::Ping));
    assert_eq!(server.count("ondol_door_connections_refused_total"), 1);
    // A place that is given back can be taken.
    drop(first);
    wait("a free place", || {
        let mut raw = Raw::connect(socket);
        let mut out = Vec::new();
        encode_request(&mut out, 0, RequestRef::Hello(&hello(1))).unwrap();
        let _ = raw.stream.write_all(&out);
        matches!(raw.receive().1, Ok(Answer::Hello(_)))
    });
}

#[test]
fn too_many_clients_are_told_so() {
    let server = Server::start_with(FakeEngine::new(1), |config| config.max_clients = 1);
    let socket = server.door.socket();
    let (mut first, _) = Raw::greeted(socket, 1);
    let (_further, _) = Raw::greeted(socket, 1);
    let mut other = Raw::connect(socket);
    let text = refusal(other.ask(RequestRef::Hello(&hello(2))).0);
    assert!(text.contains("1 clients"), "{text}");
    assert_eq!(first.ask(RequestRef::Leave).0, Ok(Answer::Leave));
    Raw::greeted(socket, 2);
}

#[test]
fn another_user_is_refused_unless_allowed() {
    const NOBODY: u32 = 65_534;
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can become another user");
        return;
    }
    let open = |allowed: Vec<u32>| {
        let server = Server::start_with(FakeEngine::new(1), |config| {
            config.mode = 0o666;
            config.allowed_uids = allowed;
        });
        // The other user must reach the socket and this binary for the door's own check to be what stops it.
        for dir in [server.dir.path(), server.state.path()] {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let exe = server.dir.path().join("helper");
        fs::copy(env::current_exe().unwrap(), &exe).unwrap();
        fs::set_permissions(&exe, fs::Permissions::from_mode(0o755)).unwrap();
        let mut child = Helper::start_as(&exe, "say-hello", server.door.socket(), |command| {
            command.uid(NOBODY).gid(NOBODY).current_dir("/");
        });
        let answer = child.line("answer ");
        (server, answer)
    };
    let (server, answer) = open(Vec::new());
    assert!(
        answer.starts_with("Err(Refused(") && answer.contains("user 65534 may not connect"),
        "{answer}"
    );
    assert_eq!(server.engine.lock().attaches, 0);
    assert_eq!(server.count("ondol_door_connections_refused_total"), 1);
    let (_server, answer) = open(vec![NOBODY]);
    assert!(answer.starts_with("Ok(Hello("), "{answer}");
}

#[test]
fn a_stopped_door_lets_go_of_everything() {
    let server = Server::start();
    let socket = server.door.socket().to_owned();
    let (mut raw, _) = Raw::greeted(&socket, 1);
    server.door.stop();
    raw.assert_closed();
    assert!(!socket.exists());
    assert!(server.engine.lock().died.is_empty());
    server.door.stop();
    let Server {
        dir, door, state, ..
    } = server;
    drop((door, state));
    let next = Server::start_in(dir, FakeEngine::new(2), |_| {});
    Raw::greeted(next.door.socket(), 1);
}

#[test]
fn a_call_that_hangs_does_not_hold_up_the_stop() {
    let server = Server::start_with(FakeEngine::new(1), |config| {
        config.stop_timeout = Duration::from_millis(50);
    });
    let (mut raw, _) = Raw::greeted(server.door.socket(), 1);
    server.engine.change(|state| state.stats_wait = true);
    let mut out = Vec::new();
    encode_request(&mut out, 1, RequestRef::Stats).unwrap();
    raw.send(&out);
    server
        .engine
        .wait_until("the call", |state| state.waiting == 1);
    server.door.stop();
    raw.assert_closed();
    server.engine.change(|state| state.stats_wait = false);
}

#[test]
fn a_call_that_hangs_holds_only_its_own_connection() {
    let server = Server::start();
    let (mut raw, _) = Raw::greeted(server.door.socket(), 1);
    let (mut other, _) = Raw::greeted(server.door.socket(), 1);
    server.engine.change(|state| state.stats_wait = true);
    let mut out = Vec::new();
    encode_request(&mut out, 1, RequestRef::Stats).unwrap();
    raw.send(&out);
    server
        .engine
        .wait_until("the call", |state| state.waiting == 1);
    assert_eq!(other.ask(RequestRef::Ping).0, Ok(Answer::Ping));
    server.engine.change(|state| state.stats_wait = false);
    assert!(matches!(raw.receive().1, Ok(Answer::Stats(_))));
}

#[test]
fn a_second_server_is_refused_with_the_first_ones_pid() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let mut first = Helper::start("own-state", &path.join("ondol.sock"));
    assert!(first.line("state ").starts_with("Ok("));
    let error = StateDir::lock(&path).unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, ServerError::AlreadyRunning { .. }),
        "{error:?}"
    );
    assert!(
        text.contains(&format!("process {}", first.0.id())),
        "{text}"
    );
    // Also by another name of the directory.
    let other = dir.path().join("other");
    std::os::unix::fs::symlink(&path, &other).unwrap();
    StateDir::lock(&other.join(".")).unwrap_err();
    // A killed server holds nothing.
    first.kill();
    StateDir::lock(&path).unwrap();
}

#[test]
fn a_stale_socket_is_replaced_and_a_living_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::lock(&dir.path().join("state")).unwrap();
    let open = |socket: &Path| {
        let house: Arc<dyn House> = FakeEngine::new(1);
        UnixDoor::open(house, &state, DoorConfig::new(socket))
    };
    let socket = dir.path().join("socket");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert!(socket.exists());
    let door = open(&socket).unwrap();
    Raw::greeted(&socket, 1);

    let error = open(&socket).unwrap_err();
    assert!(
        matches!(error, ServerError::SocketInUse { .. }),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(
        text.contains(&format!("process {}", std::process::id())),
        "{text}"
    );
    Raw::greeted(&socket, 1);

    // A socket that somebody put in our place is theirs.
    fs::remove_file(&socket).unwrap();
    let theirs = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    door.stop();
    assert!(socket.exists());
    drop(theirs);

    let file = dir.path().join("file");
    fs::write(&file, "precious").unwrap();
    let text = open(&file).unwrap_err().to_string();
    assert!(text.contains("no socket"), "{text}");
    assert_eq!(fs::read(&file).unwrap(), b"precious");

    let long = dir.path().join("s".repeat(100));
    let text = open(&long).unwrap_err().to_string();
    assert!(text.contains("at most 107"), "{text}");
}

#[test]
fn the_sockets_file_has_the_mode_asked_for() {
    for mode in [0o600, 0o660, 0o666] {
        let server = Server::start_with(FakeEngine::new(1), |config| config.mode = mode);
        let found = fs::metadata(server.door.socket()).unwrap().mode() & 0o777;
        assert_eq!(found, mode, "{found:o}");
    }
}

#[test]
fn the_state_directory_is_private() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep").join("state");
    let state = StateDir::lock(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
    assert_eq!(
        fs::metadata(path.join("lock")).unwrap().mode() & 0o777,
        0o600
    );
    drop(state);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    let text = StateDir::lock(&path).unwrap_err().to_string();
    assert!(
        text.contains("mode 0777") && text.contains("chmod 700"),
        "{text}"
    );
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let text = StateDir::lock(&link).unwrap_err().to_string();
    assert!(text.contains("a symbolic link"), "{text}");
}

#[test]
fn the_secret_is_made_once_and_kept_private() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let state = StateDir::lock(&path).unwrap();
    let secret = *state.secret().unwrap().as_bytes();
    assert_ne!(secret, [0; 32]);
    assert_eq!(state.secret().unwrap().as_bytes(), &secret);
    let file = path.join("secret");
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    assert_eq!(fs::read(&file).unwrap(), secret);

    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let text = state.secret().unwrap_err().to_string();
    assert!(
        text.contains("mode 0640") && text.contains("chmod 600"),
        "{text}"
    );
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&file, "short").unwrap();
    let text = state.secret().unwrap_err().to_string();
    assert!(
        text.contains("5 bytes") && text.contains("32 bytes"),
        "{text}"
    );

    // A draft that a killed server left is no obstacle.
    fs::remove_file(&file).unwrap();
    fs::write(path.join("secret.new"), "half").unwrap();
    assert_ne!(state.secret().unwrap().as_bytes(), &secret);
    assert!(!path.join("secret.new").exists());
    // Nor does one stay that is not needed again.
    fs::write(path.join("secret.new"), "half").unwrap();
    drop(state);
    StateDir::lock(&path).unwrap();
    assert!(!path.join("secret.new").exists());
}

#[test]
fn every_counter_is_a_row_of_the_catalogue() {
    let server = Server::start();
    for counter in server.door.counters() {
        assert!(
            ondol_catalog::metrics().contains(&counter.metric()),
            "{counter:?}"
        );
    }
}

/// A connection that has said hello and waits for the answer.
fn waiting_for_welcome(server: &Server, instance: u8) -> Raw {
    let mut raw = Raw::connect(server.door.socket());
    let mut out = Vec::new();
    encode_request(&mut out, 0, RequestRef::Hello(&hello(instance))).unwrap();
    raw.send(&out);
    raw
}

fn has_left(server: &Server, id: u64) {
    server.engine.wait_until("the leave", |state| {
        state.left.contains(&ondol_protocol::ClientId(id))
    });
}

#[test]
fn a_request_whose_client_gave_up_on_it_is_not_carried_out() {
    let server = Server::start();
    let (mut raw, _) = Raw::greeted(server.door.socket(), 1);
    let (mut other, _) = Raw::greeted(server.door.socket(), 1);
    server.engine.change(|state| state.stats_wait = true);
    let (mut stream, mut out) = (Vec::new(), Vec::new());
    let grant = GrantRequest {
        request: 1,
        stride: STRIDE,
        count: 1,
    };
    for (sequence, request) in [(1, RequestRef::Stats), (2, RequestRef::Grant(grant))] {
        encode_request(&mut out, sequence, request).unwrap();
        stream.extend_from_slice(&out);
    }
    raw.send(&stream);
    server
        .engine
        .wait_until("the call", |state| state.waiting == 1);
    drop(raw);
    server.engine.change(|state| state.stats_wait = false);
    wait("the end of the connection", || {
        server.engine.lock().waiting == 0
    });
    for _ in 0..50 {
        assert_eq!(other.ask(RequestRef::Ping).0, Ok(Answer::Ping));
        assert!(server.engine.lock().granted.is_empty());
    }
}

#[test]
fn a_client_that_gives_up_before_its_hello_is_answered_takes_no_place() {
    let server = Server::start_with(FakeEngine::new(1), |config| config.max_clients = 1);
    for id in 1..=3 {
        server.engine.change(|state| state.attach_waits = true);
        let raw = waiting_for_welcome(&server, 1);
        server.engine.wait_until("the attach", |state| {
            state.attaches == usize::try_from(id).unwrap()
        });
        drop(raw);
        server.engine.change(|state| state.attach_waits = false);
        has_left(&server, id);
    }
    let (_raw, info) = Raw::greeted(server.door.socket(), 1);
    assert_eq!(info.id.0, 4);
}

#[test]
fn a_client_that_closes_with_its_welcome_unread_takes_no_place() {
    let server = Server::start_with(FakeEngine::new(1), |config| config.max_clients = 1);
    let raw = waiting_for_welcome(&server, 1);
    // The answer is there, and stays there.
    let mut ready = [PollFd::new(&raw.stream, PollFlags::IN)];
    assert_eq!(poll(&mut ready, None).unwrap(), 1);
    drop(raw);
    has_left(&server, 1);
    let (_raw, info) = Raw::greeted(server.door.socket(), 2);
    assert_eq!(info.id.0, 2);
}

#[test]
fn a_connection_that_gives_up_takes_nothing_from_another_one_of_its_client() {
    let server = Server::start();
    let unread = waiting_for_welcome(&server, 1);
    server
        .engine
        .wait_until("the attach", |state| state.attaches == 1);
    let (mut other, info) = Raw::greeted(server.door.socket(), 1);
    assert_eq!(info.id.0, 1);
    drop(unread);
    // Ten more come and go, so that the door has seen the first one go.
    for _ in 0..10 {
        assert_eq!(Raw::greeted(server.door.socket(), 1).1, info);
    }
    assert_eq!(other.ask(RequestRef::Ping).0, Ok(Answer::Ping));
    drop(other);
    assert_eq!(Raw::greeted(server.door.socket(), 1).1, info);
    let state = server.engine.lock();
    assert_eq!(state.attaches, 1);
    assert!(state.left.is_empty(), "{state:?}");
}
