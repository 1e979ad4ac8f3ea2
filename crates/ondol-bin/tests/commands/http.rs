//! Health and figures of real servers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use rustix::process::Signal;

use crate::support::{Place, Server, WATCHDOG};

fn ask(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(WATCHDOG)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_server_tells_its_health_and_its_figures() {
    let place = Place::new();
    let server = place.serve_with(&["--pool", "memfd:?size=16MiB", "--http", "127.0.0.1:0"]);
    let address = server.ready_with("http").parse().unwrap();
    let health = ask(address, "/healthz");
    assert!(
        health.starts_with("HTTP/1.1 200 ") && health.ends_with("\r\n\r\nok\n"),
        "{health}"
    );

    place.run_with(&["put", "k"], b"12345").text();
    let page = ask(address, "/metrics");
    for line in [
        "ondol_pool_bytes 16777216",
        "ondol_objects 1",
        "ondol_object_bytes 5",
        "ondol_commits_total 1",
        "ondol_door_connections_accepted_total 1",
        "ondol_class_committed_pages{stride=\"4096\"} 1",
        "ondol_healthy 1",
        "ondol_loaded 1",
        "ondol_restart_warm 0",
        "ondol_log_failed_flushes_total 0",
    ] {
        assert!(
            page.lines().any(|found| found == line),
            "{line:?} in {page}"
        );
    }
    // Every row of the server is in the catalogue, and every one that it has a value for is described.
    let tables = place.json(&["contract", "--json"]);
    let rows = tables["metrics"].as_array().unwrap();
    let described = |name: &str| rows.iter().any(|row| row["name"] == name);
    let values = page.split("\r\n\r\n").nth(1).unwrap().lines();
    let mut count = 0;
    for line in values.filter(|line| !line.starts_with('#')) {
        let name = line.split([' ', '{']).next().unwrap();
        assert!(described(name), "{line}");
        assert!(page.contains(&format!("# TYPE {name} ")), "{line}");
        count += 1;
    }
    assert!(count > 50, "{page}");
}

#[test]
fn an_address_that_is_asked_for_and_in_use_or_not_loopback_is_refused() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let serve = ["serve", "--pool", "memfd:?size=16MiB", "--http"];
    let said = place.run(&[&serve[..], &[&address]].concat());
    said.refused(1, &[&address, "in use", "off"]);
    let said = place.run(&[&serve[..], &["0.0.0.0:0"]].concat());
    said.refused(1, &["--http", "loopback", "proxy"]);
}

#[test]
fn a_default_address_that_is_in_use_keeps_nobody_from_serving() {
    let place = Place::new();
    // Whoever has it, somebody has it now.
    let taken = TcpListener::bind("127.0.0.1:9855");
    let mut command = place.ondol(&["serve", "--pool", "memfd:?size=16MiB"]);
    let mut server = Server::start(command.env_remove("ONDOL_HTTP"));
    assert_eq!(server.ready_with("http"), "off");
    drop(taken);
    assert!(server.end(Signal::TERM).success());
}
