//! Who lives, who has died, and who comes back: clients of a server that was started again, and of other PID namespaces.

mod fake;
mod raw;

use std::env;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use fake::{FakeEngine, Helper, STRIDE, Server};
use ondol_protocol::wire::{Answer, Hello, RequestRef};
use ondol_protocol::{ClientId, ClientInfo, ControlError, GrantRequest};
use ondol_server::{Adopted, DoorConfig, House, StateDir, UnixDoor};
use ondol_shm::{Liveness, Process, ProcessIdentity, create_lease_table};
use raw::{Raw, hello, protocol_error, refusal};
use rustix::process::{Pid, Signal, kill_process};

/// The instance of every helper.
const INSTANCE: u8 = 7;

fn grant(raw: &mut Raw) {
    let request = GrantRequest {
        request: 1,
        stride: STRIDE,
        count: 1,
    };
    let (answer, _) = raw.ask(RequestRef::Grant(request));
    assert!(matches!(answer, Ok(Answer::Grant(_))), "{answer:?}");
}

fn info(answer: Result<Answer, ControlError>) -> ClientInfo {
    match answer {
        Ok(Answer::Hello(info)) => info,
        other => panic!("expected a welcome, got {other:?}"),
    }
}

fn inode(file: &OwnedFd) -> u64 {
    rustix::fs::fstat(file).unwrap().st_ino
}

/// What this binary does as another process.
#[test]
fn entry() {
    let Ok(role) = env::var(fake::ROLE) else {
        return;
    };
    let socket = env::var_os(fake::SOCKET).unwrap();
    let socket = Path::new(&socket);
    match role.as_str() {
        "hold" => {
            let (mut raw, info) = Raw::greeted(socket, INSTANCE);
            grant(&mut raw);
            println!("\nclient {}", info.id);
            io::stdin().read_to_end(&mut Vec::new()).unwrap();
        }
        "come-back" => {
            let mut raw = Raw::connect(socket);
            let (answer, fds) = raw.ask(RequestRef::Hello(&hello(INSTANCE)));
            let before = info(answer);
            let table = &fds[0];
            println!("\nclient {}", before.id);
            for line in io::stdin().lines() {
                assert_eq!(line.unwrap(), "again");
                let mut raw = Raw::connect(socket);
                let hello = Hello {
                    incarnation: before.incarnation,
                    ..hello(INSTANCE)
                };
                let (answer, fds) = raw.hello_with(&hello, &[table.as_fd()]);
                match answer {
                    Ok(Answer::Hello(info)) => println!(
                        "\nback as {} of {:#x} with its table {}",
                        info.id,
                        info.incarnation,
                        inode(&fds[0]) == inode(table)
                    ),
                    other => println!("\nback {other:?}"),
                }
            }
        }
        "serve" => serve(socket),
        role => panic!("{role}"),
    }
}

/// A server that tells who dies.
fn serve(socket: &Path) {
    let state = StateDir::lock(socket.parent().unwrap()).unwrap();
    let engine = FakeEngine::new(1);
    let house: Arc<dyn House> = Arc::<FakeEngine>::clone(&engine);
    let _door = UnixDoor::open(house, &state, DoorConfig::new(socket)).unwrap();
    println!("\nready");
    engine.wait_until("two clients", |state| state.attaches == 2);
    let pids: Vec<u32> = engine.lock().sessions.values().copied().collect();
    println!("\npids {pids:?}");
    for count in 1..=2 {
        engine.wait_until("a death", |state| state.died.len() >= count);
        let died = engine.lock().died[count - 1];
        println!("\ndied {died}");
    }
    io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// A server whose house has adopted these clients.
fn server_with(incarnation: u64, adopted: Vec<Adopted>) -> Server {
    let engine = FakeEngine::new(incarnation);
    engine.lock().adopted = adopted;
    Server::start_with(engine, |_| {})
}

fn adopted(id: u64, instance: u8, process: Process) -> Adopted {
    Adopted {
        id: ClientId(id),
        instance: [instance; 16],
        identity: process.identity(),
        process: Some(process),
    }
}

/// A client of a namespace that could not be seen.
fn unseen(id: u64, instance: u8, identity: ProcessIdentity) -> Adopted {
    Adopted {
        id: ClientId(id),
        instance: [instance; 16],
        identity,
        process: None,
    }
}

/// The hello of this process as a client of an earlier server.
fn late_hello(instance: u8) -> Hello {
    Hello {
        incarnation: 1,
        ..hello(instance)
    }
}

fn come_back(server: &Server, instance: u8) -> Result<Answer, ControlError> {
    let table = create_lease_table().unwrap();
    let mut raw = Raw::connect(server.door.socket());
    raw.hello_with(&late_hello(instance), &[table.as_fd()]).0
}

fn assert_unknown(answer: Result<Answer, ControlError>) {
    assert!(
        matches!(answer, Err(ControlError::UnknownClient(_))),
        "{answer:?}"
    );
}

#[test]
fn a_client_that_outlived_its_server_is_the_same_client_of_the_next_one() {
    let first = Server::start();
    let mut child = Helper::start("come-back", first.door.socket());
    let id: u64 = child.line("client ").parse().unwrap();
    let process = Process::of_pid(child.0.id()).unwrap();
    let Server {
        dir, door, state, ..
    } = first;
    drop((door, state));

    let engine = FakeEngine::new(2);
    engine.lock().adopted.push(adopted(id, INSTANCE, process));
    let next = Server::start_in(dir, engine, |_| {});
    // The second time it is one that is there already, though it still names the first server.
    for _ in 0..2 {
        let stdin = child.0.stdin.as_mut().unwrap();
        stdin.write_all(b"again\n").unwrap();
        let back = child.line("back ");
        assert_eq!(back, format!("as {id} of 0x2 with its table true"));
    }
    assert_eq!(next.engine.lock().resumed, [ClientId(id)]);
    assert_eq!(next.engine.lock().attaches, 0);
    assert_eq!(next.count("ondol_door_clients_resumed_total"), 1);
    child.kill();
    next.engine
        .wait_until("the death", |state| state.died == [ClientId(id)]);
}

#[test]
fn a_client_of_a_server_before_that_is_killed_is_reclaimed_before_it_comes_back() {
    let first = Server::start();
    let mut child = Helper::start("hold", first.door.socket());
    child.line("client ");
    let process = Process::of_pid(child.0.id()).unwrap();
    let next = server_with(2, vec![adopted(40, INSTANCE, process)]);
    assert!(next.engine.lock().died.is_empty());
    child.kill();
    next.engine
        .wait_until("the death", |state| state.died == [ClientId(40)]);
    next.wait_for_count("ondol_door_clients_died_total", 1);
}

#[test]
fn a_client_that_died_while_no_server_ran_is_reclaimed_at_once() {
    let first = Server::start();
    let mut child = Helper::start("hold", first.door.socket());
    child.line("client ");
    let process = Process::of_pid(child.0.id()).unwrap();
    child.kill();
    let next = server_with(2, vec![adopted(40, INSTANCE, process)]);
    next.engine
        .wait_until("the death", |state| state.died == [ClientId(40)]);
}

#[test]
fn another_process_with_the_instance_of_a_client_is_not_taken_for_it() {
    let first = Server::start();
    let mut child = Helper::start("hold", first.door.socket());
    child.line("client ");
    let process = Process::of_pid(child.0.id()).unwrap();
    let next = server_with(2, vec![adopted(40, INSTANCE, process)]);
    assert_unknown(come_back(&next, INSTANCE));
    let state = next.engine.lock();
    assert!(
        state.resumed.is_empty() && state.died.is_empty(),
        "{state:?}"
    );
}

#[test]
fn a_client_whose_process_cannot_be_seen_is_known_by_its_instance() {
    let own = Process::current().unwrap().identity();
    let elsewhere = ProcessIdentity {
        namespace: own.namespace + 1,
        inode: 0,
        ..own
    };
    let server = server_with(
        2,
        vec![
            unseen(41, 1, elsewhere),
            unseen(42, 2, ProcessIdentity::default()),
        ],
    );
    for (instance, id) in [(1, 41), (2, 42), (1, 41)] {
        assert_eq!(info(come_back(&server, instance)).id, ClientId(id));
    }
    assert_unknown(come_back(&server, 3));
    let state = server.engine.lock();
    assert_eq!(state.resumed, [ClientId(41), ClientId(42)]);
    assert!(state.died.is_empty());
}

#[test]
fn what_contradicts_an_identity_counts_even_where_the_process_was_not_seen() {
    let own = Process::current().unwrap().identity();
    let mut others = vec![ProcessIdentity {
        start_time: own.start_time + 1,
        inode: 0,
        ..own
    }];
    if own.inode != 0 {
        others.push(ProcessIdentity {
            inode: own.inode + 1,
            namespace: 0,
            ..own
        });
    }
    for other in others {
        let server = server_with(2, vec![unseen(41, 1, other)]);
        assert_unknown(come_back(&server, 1));
    }
}

#[test]
fn a_client_comes_back_with_its_lease_table_or_not_at_all() {
    let server = server_with(2, vec![adopted(41, 1, Process::current().unwrap())]);
    let ask = |fds: &[OwnedFd]| {
        let mut raw = Raw::connect(server.door.socket());
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        raw.hello_with(&late_hello(1), &fds).0
    };
    let table = || create_lease_table().unwrap();
    let text = refusal(ask(&[]));
    assert!(text.contains("lease table"), "{text}");
    let text = refusal(ask(&[tempfile::tempfile().unwrap().into()]));
    assert!(text.contains("sealed"), "{text}");
    let text = protocol_error(ask(&[table(), table(), table()]));
    assert!(text.contains("3 descriptors"), "{text}");
    assert!(server.engine.lock().resumed.is_empty());
    // None of that cost it its place.
    assert_eq!(info(ask(&[table()])).id, ClientId(41));
}

#[test]
fn a_client_that_was_never_answered_begins_anew() {
    let server = server_with(2, vec![adopted(41, 1, Process::current().unwrap())]);
    let (_raw, info) = Raw::greeted(server.door.socket(), 1);
    assert_ne!(info.id, ClientId(41));
    let state = server.engine.lock();
    assert_eq!((state.attaches, &state.died[..]), (1, &[ClientId(41)][..]));
}

#[test]
fn clients_that_may_come_back_have_their_place_under_the_limit() {
    let engine = FakeEngine::new(2);
    let process = Process::current().unwrap();
    engine.lock().adopted.push(adopted(41, 1, process));
    let server = Server::start_with(engine, |config| config.max_clients = 1);
    let mut other = Raw::connect(server.door.socket());
    refusal(other.ask(RequestRef::Hello(&hello(2))).0);
    assert_eq!(info(come_back(&server, 1)).id, ClientId(41));
}

#[test]
fn a_stopped_client_is_not_dead() {
    let server = Server::start();
    let mut stopped = Helper::start("hold", server.door.socket());
    let id: u64 = stopped.line("client ").parse().unwrap();
    let pid = Pid::from_child(&stopped.0);
    kill_process(pid, Signal::STOP).unwrap();
    // The end of one that stopped later has been noticed, so that of the first would have been.
    let mut other = Helper::start("hold", server.door.socket());
    let other_id: u64 = other.line("client ").parse().unwrap();
    other.kill();
    server
        .engine
        .wait_until("a death", |state| !state.died.is_empty());
    assert_eq!(server.engine.lock().died, [ClientId(other_id)]);
    kill_process(pid, Signal::CONT).unwrap();
    stopped.kill();
    server.engine.wait_until("the other death", |state| {
        state.died == [ClientId(other_id), ClientId(id)]
    });
}

#[test]
fn one_of_several_connections_that_is_closed_ends_nothing() {
    let server = Server::start();
    let socket = server.door.socket();
    let (mut first, one) = Raw::greeted(socket, 1);
    let (second, two) = Raw::greeted(socket, 1);
    assert_eq!(one, two);
    grant(&mut first);
    drop(second);
    // Ten more come and go, so that the door has seen the first one go.
    for _ in 0..10 {
        drop(Raw::greeted(socket, 1));
    }
    grant(&mut first);
    let state = server.engine.lock();
    assert_eq!(state.attaches, 1);
    assert!(state.died.is_empty() && state.left.is_empty(), "{state:?}");
}

/// Whether this machine lets us make a namespace of this kind; says so if not.
fn can_unshare(options: &[&str]) -> bool {
    let probe = Command::new("unshare")
        .args(options)
        .arg("true")
        .stderr(Stdio::null())
        .status();
    let can = probe.is_ok_and(|status| status.success());
    if !can {
        eprintln!("SKIPPED: no namespace of {options:?} can be made here");
    }
    can
}

/// For `unshare`: a PID namespace of its own.
const PID: [&str; 3] = ["--pid", "--fork", "--kill-child"];
/// For `unshare`: a time namespace of its own, where the machine has run for longer.
const TIME: [&str; 5] = ["--time", "--boottime", "100000", "--fork", "--kill-child"];

/// A helper in a namespace of its own.
fn start_in_namespace(options: &[&str], role: &str, socket: &Path) -> Helper {
    let mut command = Command::new("unshare");
    command
        .args(options)
        .arg(env::current_exe().unwrap())
        .args(["--exact", "entry", "--nocapture", "--test-threads=1"])
        .env(fake::ROLE, role)
        .env(fake::SOCKET, socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    Helper(command.spawn().unwrap())
}

#[test]
fn a_client_of_an_inner_pid_namespace_is_one_like_any_other() {
    if !can_unshare(&PID) {
        return;
    }
    let server = Server::start();
    let mut inner = start_in_namespace(&PID, "hold", server.door.socket());
    let id: u64 = inner.line("client ").parse().unwrap();
    let mut other = Helper::start("hold", server.door.socket());
    let other_id: u64 = other.line("client ").parse().unwrap();
    other.kill();
    server
        .engine
        .wait_until("a death", |state| !state.died.is_empty());
    assert_eq!(server.engine.lock().died, [ClientId(other_id)]);
    inner.kill();
    server.engine.wait_until("the other death", |state| {
        state.died == [ClientId(other_id), ClientId(id)]
    });
}

#[test]
fn clients_that_the_server_cannot_see_live_until_they_die() {
    if !can_unshare(&PID) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("state").join("ondol.sock");
    let mut server = start_in_namespace(&PID, "serve", &socket);
    server.line("ready");
    let mut first = Helper::start("hold", &socket);
    let first_id = first.line("client ");
    let mut second = Helper::start("hold", &socket);
    let second_id = second.line("client ");
    assert_ne!(first_id, second_id);
    assert_eq!(server.line("pids "), "[0, 0]");
    second.kill();
    assert_eq!(server.line("died "), second_id);
    first.kill();
    assert_eq!(server.line("died "), first_id);
}

#[test]
fn clients_of_another_time_namespace_are_let_in_and_seen_to_die() {
    if !can_unshare(&TIME) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("state").join("ondol.sock");
    let mut server = start_in_namespace(&TIME, "serve", &socket);
    server.line("ready");
    let mut first = Helper::start("hold", &socket);
    let first_id = first.line("client ");
    let mut second = Helper::start("hold", &socket);
    second.line("client ");
    first.kill();
    assert_eq!(server.line("died "), first_id);
}

#[test]
fn a_client_is_the_same_though_the_next_server_counts_time_otherwise() {
    let process = Process::current().unwrap();
    let before = process.identity();
    if before.inode == 0 {
        eprintln!("SKIPPED: processes have no inode of their own here");
        return;
    }
    // As a server in another time namespace had written it down.
    let elsewhere = ProcessIdentity {
        start_time: before.start_time + 10_000_000,
        ..before
    };
    let Liveness::Alive(found) = Process::find(&elsewhere).unwrap() else {
        panic!("this process lives");
    };
    assert_eq!(found.identity(), elsewhere);
    let server = server_with(2, vec![adopted(41, 1, found), unseen(42, 2, elsewhere)]);
    for id in [41, 42] {
        let instance = u8::try_from(id - 40).unwrap();
        assert_eq!(info(come_back(&server, instance)).id, ClientId(id));
    }
}
