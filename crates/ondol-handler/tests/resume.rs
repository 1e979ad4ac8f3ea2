//! The socket plane when its server goes away and comes back, against servers that do as a test says.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ondol_handler::{ControlError, ControlPlane, SocketOptions, SocketPlane};
use ondol_protocol::wire::{Answer, FrameReader, Hello, Op, Request, encode_answer};
use ondol_protocol::{ClientId, ClientInfo};
use ondol_shm::{create_lease_table, recv_with_fds, send_with_fds};
use rustix::fs::fstat;

const WATCHDOG: Duration = Duration::from_secs(60);

/// What a server does with a hello.
type Greet = dyn Fn(&Hello) -> Result<ClientInfo, ControlError> + Send + Sync;
/// What it does with a ping.
type Pinged = dyn Fn(usize) -> Pong + Send + Sync;

#[derive(Clone, Copy, Debug)]
enum Pong {
    Answer,
    /// The connection is closed over the request.
    Close,
    /// The client is not known.
    Unknown,
}

/// A hello as it came.
#[derive(Debug)]
struct Heard {
    hello: Hello,
    descriptors: Vec<OwnedFd>,
}

/// A server in this process that can be stopped and started again at the same place.
struct Server {
    dir: Arc<tempfile::TempDir>,
    socket: PathBuf,
    running: Option<Running>,
    heard: Receiver<Heard>,
    hear: Sender<Heard>,
}

struct Running {
    stop: Arc<AtomicBool>,
    accepting: JoinHandle<()>,
    streams: Arc<Mutex<Vec<UnixStream>>>,
}

impl Server {
    fn new() -> Self {
        Self::new_in(Arc::new(tempfile::tempdir().unwrap()))
    }

    fn new_in(dir: Arc<tempfile::TempDir>) -> Self {
        let (hear, heard) = channel();
        Self {
            socket: dir.path().join("socket"),
            dir,
            running: None,
            heard,
            hear,
        }
    }

    /// Goes on with the connections that it has; another server can take its place.
    fn move_aside(&mut self) {
        let aside = self.dir.path().join("aside");
        std::fs::rename(&self.socket, &aside).unwrap();
        self.socket = aside;
    }

    /// Serves as this incarnation, one that knows every client.
    fn start(&mut self, incarnation: u64) {
        self.start_with(
            Arc::new(move |_| Ok(info(incarnation))),
            Arc::new(|_| Pong::Answer),
        );
    }

    fn start_with(&mut self, greet: Arc<Greet>, pinged: Arc<Pinged>) {
        let listener = UnixListener::bind(&self.socket).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let streams = Arc::new(Mutex::new(Vec::new()));
        let accepting = thread::spawn({
            let (stop, streams, hear) = (stop.clone(), streams.clone(), self.hear.clone());
            move || {
                for (number, stream) in listener.incoming().enumerate() {
                    if stop.load(Ordering::Acquire) {
                        return;
                    }
                    let stream = stream.unwrap();
                    streams.lock().unwrap().push(stream.try_clone().unwrap());
                    let (greet, pinged, hear) = (greet.clone(), pinged.clone(), hear.clone());
                    thread::spawn(move || serve(number, &stream, &*greet, &*pinged, &hear));
                }
            }
        });
        self.running = Some(Running {
            stop,
            accepting,
            streams,
        });
    }

    /// Ends as a killed server does: all connections break, nobody listens.
    fn stop(&mut self) {
        let running = self.running.take().unwrap();
        running.stop.store(true, Ordering::Release);
        drop(UnixStream::connect(&self.socket));
        running.accepting.join().unwrap();
        for stream in running.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        std::fs::remove_file(&self.socket).unwrap();
    }

    fn heard(&self) -> Heard {
        self.heard.recv_timeout(WATCHDOG).unwrap()
    }

    fn connect(&self) -> Arc<SocketPlane> {
        let mut options = SocketOptions::default();
        options.timeout = WATCHDOG;
        SocketPlane::connect(&self.socket, options).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.running.is_some() {
            self.stop();
        }
    }
}

fn info(incarnation: u64) -> ClientInfo {
    ClientInfo {
        id: ClientId(5),
        share_limit: 1,
        max_page_bytes: 1,
        incarnation,
    }
}

fn serve(
    number: usize,
    mut stream: &UnixStream,
    greet: &Greet,
    pinged: &Pinged,
    hear: &Sender<Heard>,
) {
    let mut frames = FrameReader::new();
    let mut out = Vec::new();
    let mut descriptors = Vec::new();
    loop {
        while frames.frame().unwrap().is_none() {
            match recv_with_fds(stream, frames.space(), &mut descriptors) {
                Ok(len) if len > 0 => frames.filled(len),
                _ => return,
            }
        }
        let frame = frames.frame().unwrap().unwrap();
        let (op, sequence) = (frame.header.op, frame.header.sequence);
        let request = Request::decode(&frame.header, frame.payload).unwrap();
        frames.consume();
        if let Request::Hello(hello) = request {
            let greeting = greet(&hello);
            let descriptors = std::mem::take(&mut descriptors);
            hear.send(Heard { hello, descriptors }).unwrap();
            let answer = greeting.map(Answer::Hello);
            encode_answer(&mut out, op, sequence, answer.as_ref());
            let table = create_lease_table().unwrap();
            let table = answer.is_ok().then(|| table.as_fd());
            if send_with_fds(stream, &out, table.as_slice()).is_err() || answer.is_err() {
                return;
            }
            continue;
        }
        assert_eq!(op, Op::Ping as u8);
        let unknown = ControlError::UnknownClient("never seen".to_owned());
        match pinged(number) {
            Pong::Answer => encode_answer(&mut out, op, sequence, Ok(&Answer::Ping)),
            Pong::Unknown => encode_answer(&mut out, op, sequence, Err(&unknown)),
            Pong::Close => {
                let _ = stream.shutdown(std::net::Shutdown::Both);
                return;
            }
        }
        if stream.write_all(&out).is_err() {
            return;
        }
    }
}

/// Waits until `done`.
fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + WATCHDOG;
    while !done() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        thread::sleep(Duration::from_millis(1));
    }
}

fn absent(result: Result<(), ControlError>) -> String {
    match result {
        Err(ControlError::Disconnected {
            reason,
            sent: false,
        }) => reason,
        other => panic!("expected that the server is missed, got {other:?}"),
    }
}

#[test]
fn a_server_that_knows_the_client_takes_it_up_again() {
    let mut server = Server::new();
    server.start(11);
    let plane = server.connect();
    let first = server.heard();
    assert_eq!(first.hello.incarnation, 0);
    assert!(first.descriptors.is_empty());
    let table = plane.lease_table().unwrap();
    for incarnation in [12, 7] {
        let before = plane.client().incarnation;
        server.stop();
        absent(plane.ping());
        server.start(incarnation);
        wait("an answer", || match plane.ping() {
            Ok(()) => true,
            error => absent(error).is_empty(),
        });
        assert_eq!(plane.client(), info(incarnation));
        // It said who it was, and showed its lease table.
        let Heard { hello, descriptors } = server.heard();
        assert_eq!(
            (hello.instance, hello.start_time),
            (first.hello.instance, first.hello.start_time)
        );
        assert_eq!(hello.incarnation, before);
        let [shown] = &descriptors[..] else {
            panic!("{descriptors:?}");
        };
        let inode = |fd: &OwnedFd| fstat(fd).unwrap().st_ino;
        assert_eq!(inode(shown), inode(&table));
    }
}

#[test]
fn a_server_that_is_back_at_once_costs_no_call() {
    let mut server = Server::new();
    server.start(1);
    let plane = server.connect();
    for incarnation in 2..20 {
        server.stop();
        server.start(incarnation);
        // Nothing was on its way, so the call goes to the server that is there.
        assert_eq!(plane.ping(), Ok(()));
        assert_eq!(plane.client().incarnation, incarnation);
    }
}

#[test]
fn while_the_server_is_away_calls_fail_at_once_and_say_when_it_is_looked_for() {
    let mut server = Server::new();
    server.start(1);
    let plane = server.connect();
    server.stop();
    // The first call looks; later ones do only when it is time.
    let reason = absent(plane.ping());
    assert!(reason.contains("nobody listens"), "{reason}");
    wait("a call that comes too early", || {
        let reason = absent(plane.ping());
        assert!(reason.contains("nobody listens"), "{reason}");
        reason.contains("it is tried again in ")
    });
    assert_eq!(plane.client().incarnation, 1);
    server.start(2);
    wait("an answer", || plane.ping().is_ok());
    assert_eq!(plane.client().incarnation, 2);
}

#[test]
fn one_thread_looks_for_the_server_while_others_fail() {
    // Hellos of the new server are held back until told.
    let (release, held) = channel::<()>();
    let held = Mutex::new(held);
    let (held_back, released) = (Arc::new(AtomicUsize::new(0)), AtomicBool::new(false));
    let count = Arc::clone(&held_back);
    let mut server = Server::new();
    server.start(1);
    let plane = server.connect();
    server.heard();
    server.stop();
    absent(plane.ping());
    server.start_with(
        Arc::new(move |_| {
            if !released.load(Ordering::Acquire) {
                count.fetch_add(1, Ordering::AcqRel);
                let _ = held.lock().unwrap().recv_timeout(WATCHDOG);
                released.store(true, Ordering::Release);
            }
            Ok(info(2))
        }),
        Arc::new(|_| Pong::Answer),
    );
    thread::scope(|scope| {
        let (plane, release) = (&plane, &release);
        for _ in 0..2 {
            scope.spawn(move || {
                wait("an answer", || {
                    let answer = plane.ping();
                    if answer.is_ok() {
                        return true;
                    }
                    if absent(answer).contains("another thread is trying") {
                        let _ = release.send(());
                    }
                    false
                });
            });
        }
    });
    assert_eq!(held_back.load(Ordering::Acquire), 1);
}

#[test]
fn a_server_that_does_not_know_the_client_ends_the_plane() {
    let mut server = Server::new();
    server.start(1);
    let plane = server.connect();
    server.heard();
    server.stop();
    server.start_with(
        Arc::new(|hello| match hello.incarnation {
            0 => Ok(info(2)),
            _ => Err(ControlError::UnknownClient("never seen".to_owned())),
        }),
        Arc::new(|_| Pong::Answer),
    );
    for _ in 0..5 {
        let error = plane.ping().unwrap_err();
        assert_eq!(error, ControlError::UnknownClient("never seen".to_owned()));
    }
    // One question was enough to know.
    server.heard();
    assert!(server.heard.try_recv().is_err());
    assert_eq!(server.connect().ping(), Ok(()));
}

#[test]
fn a_server_that_forgets_the_client_over_a_request_ends_the_plane() {
    let mut server = Server::new();
    server.start_with(Arc::new(|_| Ok(info(1))), Arc::new(|_| Pong::Unknown));
    let plane = server.connect();
    for _ in 0..3 {
        let error = plane.ping().unwrap_err();
        assert_eq!(error, ControlError::UnknownClient("never seen".to_owned()));
    }
}

#[test]
fn a_server_that_takes_the_client_for_another_ends_the_plane() {
    let mut server = Server::new();
    server.start(1);
    let plane = server.connect();
    server.stop();
    let other = ClientInfo {
        id: ClientId(6),
        ..info(2)
    };
    server.start_with(Arc::new(move |_| Ok(other)), Arc::new(|_| Pong::Answer));
    match plane.ping() {
        Err(ControlError::UnknownClient(text)) => {
            assert!(
                text.contains("client 5") && text.contains("client 6"),
                "{text}"
            );
        }
        error => panic!("{error:?}"),
    }
}

#[test]
fn a_refusal_is_no_outage() {
    let mut server = Server::new();
    server.start(1);
    let plane = server.connect();
    server.stop();
    let refusal = ControlError::Refused("there are 3 connections already".to_owned());
    server.start_with(
        Arc::new({
            let (refusal, refused) = (refusal.clone(), AtomicBool::new(false));
            move |_| match refused.swap(true, Ordering::AcqRel) {
                false => Err(refusal.clone()),
                true => Ok(info(2)),
            }
        }),
        Arc::new(|_| Pong::Answer),
    );
    assert_eq!(plane.ping(), Err(refusal));
    assert_eq!(plane.ping(), Ok(()));
}

#[test]
fn a_request_that_was_on_its_way_is_unknown_and_the_next_one_goes_to_the_new_server() {
    let mut server = Server::new();
    server.start_with(Arc::new(|_| Ok(info(1))), Arc::new(|_| Pong::Close));
    let plane = server.connect();
    let error = plane.ping().unwrap_err();
    assert!(error.is_outcome_unknown(), "{error:?}");
    server.stop();
    server.start(2);
    assert_eq!(plane.ping(), Ok(()));
    assert_eq!(plane.client().incarnation, 2);
}

#[test]
fn connections_of_two_incarnations_do_not_mix() {
    // The old server answers one more hello and one more ping after the new one is there.
    let mut old = Server::new();
    let (asked, wait_asked) = channel();
    let (answer, may_answer) = channel::<()>();
    let hold = Mutex::new(Some((asked, may_answer)));
    let hellos = AtomicBool::new(false);
    old.start_with(
        Arc::new(move |_| {
            if hellos.swap(true, Ordering::AcqRel)
                && let Some((asked, may_answer)) = hold.lock().unwrap().take()
            {
                asked.send(()).unwrap();
                let _ = may_answer.recv_timeout(WATCHDOG);
            }
            Ok(info(1))
        }),
        Arc::new(|number| {
            if number == 0 {
                Pong::Close
            } else {
                Pong::Answer
            }
        }),
    );
    let plane = old.connect();
    // Loses the first connection, so that the next call needs another one.
    assert!(plane.ping().unwrap_err().is_outcome_unknown());
    let _new = thread::scope(|scope| {
        let slow = scope.spawn(|| plane.ping());
        wait_asked.recv_timeout(WATCHDOG).unwrap();
        // While a hello is under way at the old server, another one takes its place.
        old.move_aside();
        let mut new = Server::new_in(Arc::clone(&old.dir));
        new.start(2);
        assert_eq!(plane.ping(), Ok(()));
        assert_eq!(plane.client().incarnation, 2);
        answer.send(()).unwrap();
        assert_eq!(slow.join().unwrap(), Ok(()));
        new
    });
    // The late answer of the old server has not led the client back.
    assert_eq!(plane.client().incarnation, 2);
}

#[test]
fn many_threads_find_each_new_server() {
    let mut server = Server::new();
    server.start(1);
    let plane = server.connect();
    let stop = AtomicBool::new(false);
    let begin = Barrier::new(9);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                begin.wait();
                while !stop.load(Ordering::Acquire) {
                    match plane.ping() {
                        Ok(()) | Err(ControlError::Disconnected { .. }) => {}
                        error => panic!("{error:?}"),
                    }
                }
            });
        }
        begin.wait();
        for incarnation in 2..12 {
            server.stop();
            server.start(incarnation);
            wait("the new incarnation", || {
                plane.client().incarnation == incarnation
            });
        }
        stop.store(true, Ordering::Release);
    });
    wait("an answer", || plane.ping().is_ok());
    assert_eq!(plane.client().incarnation, 11);
}

#[test]
fn a_server_that_says_nothing_is_an_outage() {
    let mut server = Server::new();
    server.start(1);
    let mut options = SocketOptions::default();
    options.timeout = Duration::from_millis(100);
    // A machine that is busy may not get the hello through in time.
    let mut plane = None;
    wait("a hello in time", || {
        plane = SocketPlane::connect(&server.socket, options.clone()).ok();
        plane.is_some()
    });
    let plane = plane.unwrap();
    server.stop();
    let listener = UnixListener::bind(&server.socket).unwrap();
    let silent = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // Until the client gives up.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let reason = absent(plane.ping());
    assert!(reason.contains("did not answer a hello"), "{reason}");
    silent.join().unwrap();
    std::fs::remove_file(&server.socket).unwrap();
    server.start(2);
    wait("an answer", || plane.ping().is_ok());
}
