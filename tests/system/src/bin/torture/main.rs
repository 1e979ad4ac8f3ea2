//! The torture harness: a server and clients that are killed, stopped and starved at every step, and an account of all
//! that was acknowledged.
//!
//! `cargo xtask torture` builds this program with its failpoints and runs it. It is orchestrator, server and client in
//! one: `torture serve …` is `ondol serve …` with failpoints, `torture client …` one client, and `torture observe …`
//! looks at everything once, as a client that lives no longer than that.
//!
//! A run is a row of epochs; each has a pool and a state directory of its own, and many rounds. In a round the clients
//! work, something happens to them and to the server, the server ends, another one takes its place, and everything is
//! checked against what the clients wrote down. At the end of an epoch nothing may be left that nobody holds.
//!
//! Most pools have storage behind them, of another kind from pool to pool. Objects leave memory for it and come back, faults are
//! injected, and after each end of a server the directory is compared with what the server says and with what was
//! acknowledged: what was deleted never comes back, also not under a server with an empty pool; what is there can be had.
//!
//! On some pools four clients only read and one only writes, as fast as they can, while objects are evicted all the time
//! and readers are killed again and again. Readers check every byte of what they find.
//!
//! The seed settles what is done to whom, when, and what the clients ask for. How far each process has come by then is
//! a matter of timing, so a seed repeats a run's plan, not its every step.

mod cast;
mod check;
mod client;
mod content;
mod epoch;
mod journal;
mod oracle;
mod points;
mod process;
mod report;
mod storage;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
// Named, so that their registrations are linked in.
use l2_fault_inject as _;
use l2_fs as _;
use l2_memory as _;
use rustix::process::{Resource, Rlimit, Signal, set_parent_process_death_signal, setrlimit};

use cast::Cast;
use epoch::Run;

/// The variable that says what happens at which failpoint.
pub(crate) const FAILPOINTS: &str = "ONDOL_FAILPOINTS";

/// The packages with storage backends that servers use.
const EXPECTED: &[&str] = &["l2-fault-inject", "l2-fs", "l2-memory"];

/// Kill servers and clients at every step, and check that nothing acknowledged is lost and nothing else is there
#[derive(Clone, Debug, Parser)]
#[command(name = "torture")]
pub(crate) struct Options {
    /// How many processes are killed
    #[arg(long, default_value_t = 100)]
    pub(crate) kills: u64,
    /// Stop after so long, whatever the number of kills is
    #[arg(long)]
    pub(crate) seconds: Option<u64>,
    /// Repeats the plan of a run [default: by chance]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// mixed: clients that do everything; readers: four that read and one that writes, without a rest [default: each in turn]
    #[arg(long)]
    pub(crate) cast: Option<Cast>,
    /// Clients at once, where they do everything
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub(crate) clients: u64,
    /// none or fsync [default: each in turn]
    #[arg(long)]
    pub(crate) durability: Option<Durability>,
    /// Where the pool lies: shm or dir [default: each in turn]
    #[arg(long)]
    pub(crate) device: Option<Device>,
    /// Storage behind the pool: none, fs or memory [default: each in turn; fs in several kinds]
    #[arg(long)]
    pub(crate) l2: Option<L2>,
    /// How often each failpoint must have killed a process, if there are kills enough [default: a hundredth of the
    /// kills]
    #[arg(long)]
    pub(crate) each: Option<u64>,
    /// Where to work; what is left there after a failure is the evidence [default: a new directory under the one for
    /// temporary files]
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Durability {
    None,
    Fsync,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Device {
    Shm,
    Dir,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum L2 {
    None,
    Fs,
    Memory,
}

#[derive(Debug, Parser)]
struct ClientOptions {
    #[command(flatten)]
    args: client::Args,
}

#[derive(Debug, Parser)]
struct ObserverOptions {
    #[command(flatten)]
    args: check::Args,
}

fn main() -> ExitCode {
    let result = match std::env::args().nth(1).as_deref() {
        Some("serve") => {
            go_with_parent();
            match points::arm() {
                Ok(()) => return ondol_cli::main(EXPECTED),
                Err(error) => Err(error),
            }
        }
        Some("client") => {
            go_with_parent();
            let words = std::env::args().skip(1);
            points::arm().and_then(|()| client::run(&ClientOptions::parse_from(words).args))
        }
        Some("observe") => {
            go_with_parent();
            let words = std::env::args().skip(1);
            match check::observe(&ObserverOptions::parse_from(words).args) {
                Ok(code) => return code,
                Err(error) => Err(error),
            }
        }
        _ => {
            return match Run::start(Options::parse()) {
                Ok(true) => ExitCode::SUCCESS,
                Ok(false) => ExitCode::FAILURE,
                Err(error) => {
                    eprintln!("error: {error:#}");
                    ExitCode::FAILURE
                }
            };
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whatever becomes of the orchestrator, its processes go with it, and none leaves a core behind.
fn go_with_parent() {
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _ = setrlimit(Resource::Core, none);
}
