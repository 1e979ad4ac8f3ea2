//! A process that does what a test tells it, line by line.
//!
//! * `actor client SOCKET [page=BYTES] [stock=BYTES] [idle=CONNECTIONS] [timeout=MS] [wait=MS]`: a client. Prints
//!   `ready`, then answers each line of its input with one that begins with `ok` or `err`; ends with its input.
//! * `actor fork SOCKET`: a client that forks. Prints what its child found wrong, or `ok`, and ends with its input.
//! * `actor fork-server DIR`: the same for a server with a client in its own process.
//! * `actor fault SOCKET KEY`: writes through an object that it may only read, and should not survive it.
//! * `actor unaided SOCKET WHAT`: looks objects up while the system kills it for any other call than that of its end.
//! * `actor …` with anything else: `ondol …`.

mod client;
mod hazard;
mod server;
mod unaided;

use std::env;
use std::path::Path;
use std::process::ExitCode;

// Named, so that their registrations are linked in.
use connector_example_cpp as _;
use l2_fault_inject as _;
use l2_fs as _;
use l2_memory as _;
use recording_plugin as _;
use rustix::process::{Resource, Rlimit, Signal, set_parent_process_death_signal, setrlimit};

/// The packages whose plugins a server of these tests has.
const EXPECTED: &[&str] = &[
    "connector-example-cpp",
    "l2-fault-inject",
    "l2-fs",
    "l2-memory",
    "recording-plugin",
];

fn main() -> ExitCode {
    // Whatever becomes of the test, its processes go with it, and those that are to crash leave no core behind.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _ = setrlimit(Resource::Core, none);
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["client", socket, ref options @ ..] => client::run(Path::new(socket), options),
        ["fork", socket] => hazard::fork(Path::new(socket)),
        ["fork-server", dir] => hazard::fork_server(Path::new(dir)),
        ["fault", socket, key] => hazard::fault(Path::new(socket), key),
        ["unaided", socket, what] => unaided::run(Path::new(socket), what),
        _ => return ondol_cli::main(EXPECTED),
    }
    ExitCode::SUCCESS
}
