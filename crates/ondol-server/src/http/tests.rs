use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;

use ondol_catalog::{Metric, MetricKind};

use super::*;

const WATCHDOG: Duration = Duration::from_secs(60);

static READS: Metric = Metric::new("reads_total", MetricKind::Counter, "Reads.");

/// A server of which everything can be said.
#[derive(Debug)]
struct Fake {
    health: Mutex<Health>,
    /// Held by a test that keeps figures from being gathered.
    gate: Mutex<()>,
    broken: bool,
}

impl Fake {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            health: Mutex::new(Health::Good),
            gate: Mutex::new(()),
            broken: false,
        })
    }
}

impl Observed for Fake {
    fn health(&self) -> Health {
        self.health.lock().clone()
    }

    fn samples(&self) -> Vec<Sample> {
        let _gate = self.gate.lock();
        assert!(!self.broken, "as the test wants it");
        vec![Sample::new(&READS, 7)]
    }
}

fn door_with(fake: &Arc<Fake>, config: HttpConfig) -> HttpDoor {
    let socket = HttpSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let observed: Arc<dyn Observed> = Arc::<Fake>::clone(fake);
    HttpDoor::open(socket, observed, config).unwrap()
}

fn door(fake: &Arc<Fake>) -> HttpDoor {
    door_with(fake, HttpConfig::default())
}

fn connect(door: &HttpDoor) -> TcpStream {
    let stream = TcpStream::connect(door.address()).unwrap();
    stream.set_read_timeout(Some(WATCHDOG)).unwrap();
    stream
}

/// What came until the other side closed; nothing if it was closed hard.
fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => bytes.extend_from_slice(&buffer[..len]),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
            Err(error) => panic!("the door neither answers nor closes: {error}"),
        }
    }
    String::from_utf8(bytes).unwrap()
}

fn ask(door: &HttpDoor, head: &str) -> String {
    let mut stream = connect(door);
    write!(stream, "{head} HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    rest(&mut stream)
}

/// Status and body of an answer.
fn parts(answer: &str) -> (u16, &str) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
    let status = head
        .split(' ')
        .nth(1)
        .unwrap_or_else(|| panic!("{answer:?}"));
    (status.parse().unwrap(), body)
}

#[test]
fn health_is_told_in_a_status_and_a_line() {
    let fake = Fake::new();
    let door = door(&fake);
    for (health, status, body) in [
        (Health::Good, 200, "ok\n"),
        (
            Health::Busy("loading 3 of 5".into()),
            200,
            "ok, loading 3 of 5\n",
        ),
        (
            Health::Degraded("fs#0 is out\nof use".into()),
            200,
            "degraded: fs#0 is out of use\n",
        ),
        (
            Health::Bad("the log\ncannot be written".into()),
            503,
            "the log cannot be written\n",
        ),
    ] {
        *fake.health.lock() = health;
        assert_eq!(parts(&ask(&door, "GET /healthz")), (status, body));
    }
    *fake.health.lock() = Health::Good;
    door.announce_stop();
    assert_eq!(parts(&ask(&door, "GET /healthz")), (503, "stopping\n"));
}

#[test]
fn figures_come_as_prometheus_reads_them() {
    let door = door(&Fake::new());
    let answer = ask(&door, "GET /metrics?x=1");
    let (status, body) = parts(&answer);
    assert_eq!(status, 200);
    assert!(answer.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"));
    for line in [
        "# HELP reads_total Reads.",
        "# TYPE reads_total counter",
        "reads_total 7",
        "ondol_http_requests_total 1",
    ] {
        assert!(
            body.lines().any(|found| found == line),
            "{line:?} in {body}"
        );
    }
    let head = ask(&door, "HEAD /metrics");
    assert_eq!(parts(&head), (200, ""));
}

#[test]
fn other_paths_and_methods_are_refused() {
    let door = door(&Fake::new());
    assert_eq!(parts(&ask(&door, "GET /")).0, 404);
    assert_eq!(parts(&ask(&door, "POST /elsewhere")).0, 404);
    for head in ["POST /metrics", "DELETE /healthz"] {
        let answer = ask(&door, head);
        assert_eq!(parts(&answer).0, 405);
        assert!(answer.contains("allow: GET, HEAD\r\n"), "{answer}");
    }
}

#[test]
fn what_is_no_http_or_too_long_is_refused_and_the_door_stays_open() {
    let door = door(&Fake::new());
    let mut stream = connect(&door);
    stream.write_all(b"\x00\xffOndol\r\n\r\n").unwrap();
    assert_eq!(parts(&rest(&mut stream)).0, 400);

    for head in [
        format!(
            "GET /healthz HTTP/1.1\r\nlong: {}\r\n\r\n",
            "x".repeat(100_000)
        ),
        format!(
            "GET /healthz HTTP/1.1\r\n{}\r\n",
            "a: b\r\n".repeat(HEADERS + 1)
        ),
    ] {
        let mut stream = connect(&door);
        // The door need not read to the end what it refuses.
        let _ = stream.write_all(head.as_bytes());
        let answer = rest(&mut stream);
        assert!(answer.is_empty() || parts(&answer).0 == 431, "{answer}");
    }
    assert_eq!(parts(&ask(&door, "GET /healthz")), (200, "ok\n"));
}

#[test]
fn whoever_is_slow_is_cut_off_and_holds_up_nobody() {
    let config = HttpConfig {
        header_timeout: Duration::from_millis(200),
        ..HttpConfig::default()
    };
    let door = door_with(&Fake::new(), config);
    let mut silent = connect(&door);
    let mut slow = connect(&door);
    slow.write_all(b"GET /healthz HTTP/1.1\r\nhost: lo")
        .unwrap();
    assert_eq!(parts(&ask(&door, "GET /healthz")), (200, "ok\n"));
    for stream in [&mut silent, &mut slow] {
        let said = rest(stream);
        assert!(said.is_empty() || parts(&said).0 == 408, "{said}");
    }
}

#[test]
fn too_many_connections_cost_the_oldest_ones() {
    let config = HttpConfig {
        max_connections: 4,
        header_timeout: WATCHDOG,
        timeout: WATCHDOG,
        ..HttpConfig::default()
    };
    let door = door_with(&Fake::new(), config);
    let mut silent: Vec<_> = (0..20).map(|_| connect(&door)).collect();
    assert_eq!(parts(&ask(&door, "GET /healthz")), (200, "ok\n"));
    for stream in &mut silent[..16] {
        assert_eq!(rest(stream), "");
    }
    let page = ask(&door, "GET /metrics");
    let cut = page
        .lines()
        .find_map(|line| line.strip_prefix("ondol_http_connections_cut_total "));
    assert!(cut.unwrap().parse::<u64>().unwrap() >= 16, "{page}");
}

#[test]
fn figures_that_do_not_come_keep_nobody_from_asking_for_health() {
    let fake = Fake::new();
    let door = door(&fake);
    let gate = fake.gate.lock();
    let mut waiting: Vec<_> = (0..8)
        .map(|_| {
            let mut stream = connect(&door);
            stream
                .write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n")
                .unwrap();
            stream
        })
        .collect();
    assert_eq!(parts(&ask(&door, "GET /healthz")), (200, "ok\n"));
    drop(gate);
    for stream in &mut waiting {
        assert_eq!(parts(&rest(stream)).0, 200);
    }
}

#[test]
fn figures_that_cannot_be_gathered_are_an_answer_too() {
    let fake = Arc::new(Fake {
        health: Mutex::new(Health::Good),
        gate: Mutex::new(()),
        broken: true,
    });
    let door = door(&fake);
    assert_eq!(parts(&ask(&door, "GET /metrics")).0, 500);
    assert_eq!(parts(&ask(&door, "GET /healthz")), (200, "ok\n"));
}

#[test]
fn a_stopped_door_has_given_its_address_back_whoever_still_waits() {
    let fake = Fake::new();
    let config = HttpConfig {
        stop_timeout: Duration::from_millis(100),
        ..HttpConfig::default()
    };
    let door = door_with(&fake, config);
    let mut silent = connect(&door);
    let mut waiting = connect(&door);
    let gate = fake.gate.lock();
    waiting
        .write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .unwrap();
    let address = door.address();
    let (stopped, is_stopped) = mpsc::channel();
    let stopping = thread::spawn(move || {
        door.stop();
        door.stop();
        stopped.send(()).unwrap();
    });
    is_stopped.recv_timeout(WATCHDOG).expect("stop returns");
    stopping.join().unwrap();
    assert_eq!(rest(&mut silent), "");
    assert_eq!(rest(&mut waiting), "");
    HttpSocket::bind(address).unwrap();
    drop(gate);
}

#[test]
fn only_an_address_of_loopback_that_is_free_is_taken() {
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:9855"] {
        let refused = HttpSocket::bind(address.parse().unwrap()).unwrap_err();
        assert!(matches!(refused, HttpError::NotLoopback(_)), "{refused}");
        assert!(refused.to_string().contains("proxy"), "{refused}");
    }
    let first = HttpSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let second = HttpSocket::bind(first.address()).unwrap_err();
    assert!(matches!(second, HttpError::InUse(address) if address == first.address()));
}
