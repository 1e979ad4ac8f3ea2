//! What clients cannot make a server do: run out of memory, threads or descriptors, or wait.

mod fake;
mod raw;

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use std::{env, fs, thread};

use fake::{FakeEngine, Helper, Server, wait};
use ondol_plugin::{Key, KeyTag};
use ondol_protocol::ControlError;
use ondol_protocol::wire::{Answer, Op, RequestRef, encode_request};
use ondol_server::{DoorConfig, House, ServerError, StateDir, UnixDoor};
use ondol_shm::{MAX_FDS, send_with_fds};
use raw::{Raw, hello, refusal};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use rustix::process::{Resource, Rlimit, setrlimit};

const MIB: usize = 1 << 20;

/// What this binary does as another process.
#[test]
fn entry() {
    let Ok(role) = env::var(fake::ROLE) else {
        return;
    };
    let socket = env::var_os(fake::SOCKET).unwrap();
    let socket = Path::new(&socket);
    match role.as_str() {
        "say-hello" => {
            let mut raw = Raw::connect(socket);
            let mut out = Vec::new();
            encode_request(&mut out, 0, RequestRef::Hello(&hello(7))).unwrap();
            // The door may have turned us away before we speak.
            let _ = raw.stream.write_all(&out);
            println!("\nanswer {:?}", raw.receive().1);
        }
        "serve-with-few-files" => {
            let few = Rlimit {
                current: Some(48),
                maximum: Some(48),
            };
            setrlimit(Resource::Nofile, few).unwrap();
            let state = StateDir::lock(socket.parent().unwrap()).unwrap();
            let house: Arc<dyn House> = FakeEngine::new(1);
            let _door = UnixDoor::open(house, &state, DoorConfig::new(socket)).unwrap();
            println!("\nready");
            io::stdin().read_to_end(&mut Vec::new()).unwrap();
        }
        role => panic!("{role}"),
    }
}

/// A request with a payload of about this length.
fn long_request(sequence: u64, bytes: usize) -> Vec<u8> {
    let key = Key::new(KeyTag::Raw, &[7; 1000]).unwrap();
    let keys = vec![key; bytes / 1000];
    let mut out = Vec::new();
    encode_request(&mut out, sequence, RequestRef::Locate(&keys)).unwrap();
    out
}

/// Says hello as a client that may be turned away.
fn try_hello(socket: &Path, instance: u8) -> Option<Raw> {
    let mut raw = Raw::connect(socket);
    let mut out = Vec::new();
    encode_request(&mut out, 0, RequestRef::Hello(&hello(instance))).unwrap();
    let _ = raw.stream.write_all(&out);
    raw.sequence = 1;
    matches!(raw.receive().1, Ok(Answer::Hello(_))).then_some(raw)
}

#[test]
fn long_requests_that_together_take_too_much_are_refused_and_short_ones_are_not() {
    let server = Server::start_with(FakeEngine::new(1), |config| {
        config.frame_budget = MIB as u64;
    });
    let socket = server.door.socket();
    let (mut first, _) = Raw::greeted(socket, 1);
    let (mut short, _) = Raw::greeted(socket, 1);
    let request = long_request(1, 900 << 10);
    first.send(&request[..800 << 10]);
    // The first one's part is being collected once a second one is refused for it.
    let mut second = None;
    wait("a refusal", || {
        let (mut raw, _) = Raw::greeted(socket, 2);
        // The door may close before it has read all.
        let _ = raw.stream.write_all(&request);
        let (header, answer, _) = raw.receive();
        assert_eq!((header.op, header.sequence), (Op::Locate as u8, 1));
        let refused = answer.is_err();
        if refused {
            second = Some((raw, refusal(answer)));
        }
        refused
    });
    let (mut second, text) = second.unwrap();
    assert!(
        text.contains("busy") && text.contains(&MIB.to_string()),
        "{text}"
    );
    second.assert_closed();
    server.wait_for_count("ondol_door_connections_busy_total", 1);
    assert_eq!(short.ask(RequestRef::Ping).0, Ok(Answer::Ping));
    first.send(&request[800 << 10..]);
    assert!(matches!(first.receive().1, Ok(Answer::Locate(_))));
    // What the first one took is there for others.
    let (mut third, _) = Raw::greeted(socket, 2);
    third.send(&request);
    assert!(matches!(third.receive().1, Ok(Answer::Locate(_))));
}

#[test]
fn an_answer_that_takes_too_much_is_an_error_and_costs_its_connection() {
    let server = Server::start_with(FakeEngine::with_regions(1, 2000), |config| {
        config.frame_budget = MIB as u64;
    });
    let (mut raw, _) = Raw::greeted(server.door.socket(), 1);
    match raw.ask(RequestRef::Regions { after: 0 }).0 {
        Err(ControlError::Failed(text)) => assert!(text.contains("busy"), "{text}"),
        other => panic!("{other:?}"),
    }
    raw.assert_closed();
    let (mut raw, _) = Raw::greeted(server.door.socket(), 1);
    assert!(matches!(
        raw.ask(RequestRef::Regions { after: 1995 }).0,
        Ok(Answer::Regions { .. })
    ));
}

#[test]
fn a_client_that_takes_its_answer_a_little_at_a_time_does_not_hold_the_door_for_long() {
    let server = Server::start_with(FakeEngine::with_regions(1, 2000), |config| {
        config.write_timeout = Duration::from_secs(1);
    });
    let (mut raw, _) = Raw::greeted(server.door.socket(), 1);
    let mut out = Vec::new();
    encode_request(&mut out, 1, RequestRef::Regions { after: 0 }).unwrap();
    raw.send(&out);
    // Some room again long before the time is up, but eight megabytes to go.
    let mut some = [0; 16 << 10];
    let mut taken = 0;
    loop {
        thread::sleep(Duration::from_millis(5));
        match raw.stream.read(&mut some) {
            Ok(0) | Err(_) => break,
            Ok(len) => taken += len,
        }
    }
    assert!(taken < 7 * MIB, "{taken} bytes");
    server.wait_for_count("ondol_door_connections_stalled_total", 1);
}

#[test]
fn a_flood_of_descriptors_is_closed_as_it_comes() {
    let server = Server::start();
    let count = || fs::read_dir("/proc/self/fd").unwrap().count();
    let (mut raw, _) = Raw::greeted(server.door.socket(), 1);
    let before = count();
    let file = tempfile::tempfile().unwrap();
    let flood = [file.as_fd(); MAX_FDS];
    let mut out = Vec::new();
    for sequence in 1..=300 {
        encode_request(&mut out, sequence, RequestRef::Ping).unwrap();
        send_with_fds(&raw.stream, &out, &flood).unwrap();
        let (header, answer, fds) = raw.receive();
        assert_eq!((header.sequence, answer), (sequence, Ok(Answer::Ping)));
        assert!(fds.is_empty());
    }
    // Hellos that are refused for it, too; their connections close a moment later.
    for _ in 0..20 {
        let mut raw = Raw::connect(server.door.socket());
        raw.hello_with(&hello(1), &flood).0.unwrap_err();
    }
    drop(file);
    wait("the end of what came", || count() <= before);
}

#[test]
fn one_process_cannot_take_all_connections() {
    let server = Server::start_with(FakeEngine::new(1), |config| {
        config.max_connections_per_process = 2;
    });
    let socket = server.door.socket();
    let (first, _) = Raw::greeted(socket, 1);
    // One that says nothing counts as well.
    let silent = Raw::connect(socket);
    wait("a refusal", || try_hello(socket, 1).is_none());
    let mut third = Raw::connect(socket);
    let text = refusal(third.receive().1);
    assert!(
        text.contains(&format!("process {} has 2", std::process::id())),
        "{text}"
    );
    let mut other = Helper::start("say-hello", socket);
    let answer = other.line("answer ");
    assert!(answer.starts_with("Ok(Hello("), "{answer}");
    drop((first, silent));
    wait("a free place", || try_hello(socket, 1).is_some());
}

#[test]
fn a_server_without_descriptors_refuses_and_recovers() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("state").join("ondol.sock");
    let mut server = Helper::start("serve-with-few-files", &socket);
    server.line("ready");
    let (mut early, _) = Raw::greeted(&socket, 1);
    let crowd: Vec<_> = (0..100)
        .map(|_| {
            let mut raw = Raw::connect(&socket);
            let mut out = Vec::new();
            encode_request(&mut out, 0, RequestRef::Hello(&hello(1))).unwrap();
            let _ = raw.stream.write_all(&out);
            raw
        })
        .collect();
    // Those that are in are served meanwhile.
    for _ in 0..20 {
        assert_eq!(early.ask(RequestRef::Ping).0, Ok(Answer::Ping));
    }
    drop(crowd);
    wait("a welcome", || {
        let mut raw = Raw::connect(&socket);
        let mut out = Vec::new();
        encode_request(&mut out, 0, RequestRef::Hello(&hello(1))).unwrap();
        let _ = raw.stream.write_all(&out);
        let len = raw.stream.read(raw.frames.space()).unwrap_or(0);
        raw.frames.filled(len);
        len > 0 && matches!(raw.receive().1, Ok(Answer::Hello(_)))
    });
    assert_eq!(early.ask(RequestRef::Ping).0, Ok(Answer::Ping));
    assert!(server.0.try_wait().unwrap().is_none(), "the server ended");
}

#[test]
fn members_of_the_servers_group_are_let_in() {
    const GROUP: u32 = 54_321;
    const NOBODY: &str = "65534";
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can become another user");
        return;
    }
    let server = Server::start_with(FakeEngine::new(1), |config| {
        config.group = Some(GROUP);
        config.mode = 0o660;
    });
    server.state.open_to_group(GROUP).unwrap();
    let found = fs::metadata(server.door.socket()).unwrap();
    assert_eq!((found.gid(), found.mode() & 0o777), (GROUP, 0o660));
    let found = fs::metadata(server.state.path()).unwrap();
    assert_eq!((found.gid(), found.mode() & 0o777), (GROUP, 0o750));
    let world = |path: &Path| {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    world(server.dir.path());
    let exe = server.dir.path().join("helper");
    fs::copy(env::current_exe().unwrap(), &exe).unwrap();
    world(&exe);

    let ask = |groups: &[&str]| {
        let mut helper = Helper::start_as(
            Path::new("setpriv"),
            "say-hello",
            server.door.socket(),
            |command| {
                let mut arguments: Vec<_> = vec!["--reuid", NOBODY];
                arguments.extend(groups);
                let mut wrapped = Command::new("setpriv");
                wrapped.args(arguments).arg(&exe).args(command.get_args());
                for (name, value) in command.get_envs() {
                    wrapped.env(name, value.unwrap());
                }
                wrapped
                    .current_dir("/")
                    .stdin(std::process::Stdio::piped())
                    .stdout(std::process::Stdio::piped());
                *command = wrapped;
            },
        );
        helper.line("answer ")
    };
    let group = GROUP.to_string();
    for groups in [
        ["--regid", group.as_str(), "--clear-groups", "--"],
        ["--regid", NOBODY, "--groups", group.as_str()],
    ] {
        let answer = ask(&groups);
        assert!(answer.starts_with("Ok(Hello("), "{groups:?}: {answer}");
    }
    // Whoever is no member is turned away by the door, even where the file would let it in.
    world(server.state.path());
    fs::set_permissions(server.door.socket(), fs::Permissions::from_mode(0o666)).unwrap();
    let answer = ask(&["--regid", NOBODY, "--clear-groups", "--"]);
    assert!(
        answer.starts_with("Err(Refused(") && answer.contains("a member of group 54321"),
        "{answer}"
    );
}

#[test]
fn servers_of_different_state_directories_do_not_take_each_others_socket() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    // What a dead server left, for all to find.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let doors: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|number: u32| {
                let (dir, socket) = (dir.path(), &socket);
                scope.spawn(move || {
                    let state = StateDir::lock(&dir.join(number.to_string())).unwrap();
                    let house: Arc<dyn House> = FakeEngine::new(1);
                    UnixDoor::open(house, &state, DoorConfig::new(socket)).ok()
                })
            })
            .collect();
        threads
            .into_iter()
            .filter_map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(doors.len(), 1);
    Raw::greeted(&socket, 1);
}

#[test]
fn a_socket_that_is_about_to_listen_is_not_one_that_is_left_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    // What another server does when it opens its door: lock, bind, and after a while listen.
    let lock = fs::File::open(dir.path()).unwrap();
    lock.lock().unwrap();
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    let address = SocketAddrUnix::new(&path).unwrap();
    rustix::net::bind(&socket, &address).unwrap();
    thread::scope(|scope| {
        let door = scope.spawn(|| {
            let state = StateDir::lock(&dir.path().join("state")).unwrap();
            let house: Arc<dyn House> = FakeEngine::new(1);
            UnixDoor::open(house, &state, DoorConfig::new(&path)).map(drop)
        });
        thread::sleep(Duration::from_millis(100));
        rustix::net::listen(&socket, 1).unwrap();
        drop(lock);
        let error = door.join().unwrap().unwrap_err();
        assert!(
            matches!(error, ServerError::SocketInUse { .. }),
            "{error:?}"
        );
    });
    std::os::unix::net::UnixStream::connect(&path).unwrap();
}
