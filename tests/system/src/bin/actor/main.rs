//! A process that does what a test tells it, line by line.
//!
//! * `actor client SOCKET [page=BYTES] [stock=BYTES] [idle=CONNECTIONS] [timeout=MS]`: a client. Prints `ready`, then
//!   answers each line of its input with one that begins with `ok` or `err`; ends with its input.
//! * `actor serve …`: `ondol serve …`.
//! * `actor fork SOCKET`: a client that forks. Prints what its child found wrong, or `ok`, and ends with its input.
//! * `actor fork-server DIR`: the same for a server with a client in its own process.
//! * `actor fault SOCKET KEY`: writes through an object that it may only read, and should not survive it.

mod client;
mod hazard;
mod server;

use std::env;
use std::path::Path;
use std::process::ExitCode;

// Named, so that its registration is linked in.
use recording_plugin as _;
use rustix::process::{Resource, Rlimit, Signal, set_parent_process_death_signal, setrlimit};

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
        ["serve", ..] => return ondol_cli::main(&["recording-plugin"]),
        ["client", socket, ref options @ ..] => client::run(Path::new(socket), options),
        ["fork", socket] => hazard::fork(Path::new(socket)),
        ["fork-server", dir] => hazard::fork_server(Path::new(dir)),
        ["fault", socket, key] => hazard::fault(Path::new(socket), key),
        _ => panic!("see the documentation of this program for its arguments; got {arguments:?}"),
    }
    ExitCode::SUCCESS
}
