use std::io::Write;
use std::process::Stdio;

use crate::support::{Place, Server};

#[test]
fn the_file_is_heard_after_the_environment_and_that_after_the_flags() {
    let place = Place::new();
    let file = place.file("ondol.toml", b"policy = \"file\"\npool = 4096\n");
    let file = file.to_str().unwrap();
    place.run(&["serve", "--config", file]).refused(
        1,
        &["ondol.toml, key `policy`: eviction policy is \"file\"; expected one of: arc"],
    );
    let with_variable = |args: &[&str]| {
        let mut command = place.ondol(args);
        let output = command
            .env("ONDOL_CONFIG", file)
            .env("ONDOL_POLICY", "variable")
            .output()
            .unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    let said = with_variable(&["serve"]);
    assert!(
        said.contains("ONDOL_POLICY: eviction policy is \"variable\""),
        "{said}"
    );
    let said = with_variable(&["serve", "--policy", "flag"]);
    assert!(
        said.contains("--policy: eviction policy is \"flag\""),
        "{said}"
    );
}

#[test]
fn a_server_can_be_configured_by_a_file_alone() {
    let place = Place::new();
    let socket = place.path().join("s.sock");
    let text = format!(
        "pool = [\"memfd:?size=4MiB\", 'memfd:second?size=6MiB']\nsocket = {socket:?}\nstate_dir = \"state\"\n\
         policy = \"lru\"\nregion_size = \"2MiB\"\nshare_limit = 1048576\nmax_clients = 1\nlog_format = \"json\"\n"
    );
    let file = place.file("ondol.toml", text.as_bytes());
    let mut command = place.ondol(&["serve", "--log", "info"]);
    let mut server = Server::start(
        command
            .env("ONDOL_CONFIG", file)
            .env("ONDOL_LOG_FORMAT", "text"),
    );
    assert!(server.ready_line().contains("pool=\"10 MiB\""));
    assert!(place.path().join("state/secret").exists());

    let socket = socket.to_str().unwrap();
    let stat = place.json(&["stat", "--json", "--socket", socket]);
    assert_eq!(stat["pool"]["total_bytes"], 10 << 20);
    let output = place
        .ondol(&["ls"])
        .env("ONDOL_SOCKET", socket)
        .output()
        .unwrap();
    assert!(output.status.success());
    let output = place
        .ondol(&["ls"])
        .env("ONDOL_STATE_DIR", "/nowhere")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("/nowhere/ondol.sock"), "{said}");

    // The file allows one client at a time. More than a pipe holds goes through only once the first one has come.
    let mut first = place
        .ondol(&["put", "k", "--socket", socket])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = first.stdin.take().unwrap();
    stdin.write_all(&vec![0; 1 << 20]).unwrap();
    let second = place.run(&["ls", "--socket", socket]);
    second.refused(1, &["1 clients", "as many as it allows"]);
    drop(stdin);
    assert!(first.wait().unwrap().success());
    server.end(rustix::process::Signal::TERM);
}

#[test]
fn what_the_file_should_not_hold_is_refused_with_its_place() {
    let place = Place::new();
    for (text, parts) in [
        (
            "polici = \"lru\"",
            ["line 1", "unknown field `polici`", "`policy`"],
        ),
        ("policy = ", ["ondol.toml", "line 1", "not as expected"]),
        (
            "\npool = 1.5",
            ["line 2", "pool", "a value or a list of values"],
        ),
        (
            "region_size = '3 MiB'",
            [
                "ondol.toml, key `region_size`",
                "3 MiB",
                "a multiple of 2 MiB",
            ],
        ),
        (
            "log = 'a=b=c'",
            ["ondol.toml, key `log`", "a=b=c", "no filter"],
        ),
    ] {
        place.file("ondol.toml", text.as_bytes());
        place
            .run(&["serve", "--config", "ondol.toml"])
            .refused(1, &parts);
    }
    let said = place.run(&["serve", "--config", "missing.toml"]);
    said.refused(1, &["configuration file missing.toml", "No such file"]);
    assert!(!place.state_dir().exists(), "nothing was touched");
}

#[test]
fn what_the_server_cannot_do_it_refuses_with_the_reason() {
    let place = Place::new();
    place
        .run(&["serve", "--pool", "shm:x?size=900TiB"])
        .refused(1, &["(--pool)", "900 TiB", "/dev/shm"]);
    place
        .run(&["serve", "--pool", "disk"])
        .refused(1, &["--pool", "neither a size nor a device"]);
    place
        .run(&["serve", "--pool", "memfd:?size=1MiB"])
        .refused(1, &["--pool", "1048576"]);
    let long = "s".repeat(120);
    let said = place.run(&["serve", "--pool", "memfd:?size=4MiB", "--socket", &long]);
    said.refused(1, &["120 bytes", "at most 107"]);
    place.run(&["serve", "--pool"]).refused(2, &["--pool"]);
    place.run(&["surf"]).refused(2, &["surf"]);
}
