//! `ondol-bench`: Ondol, what a user would take instead, and the limit of the machine, side by side in one run.
//!
//! `cargo xtask bench` builds and runs it; `docs/benchmarks.md` says how it measures and how its tables are read.
//!
//! | module | what it does |
//! |---|---|
//! | [`scenario`] | what is measured, one file for each |
//! | [`baseline`] | what a user could take instead, each behind the same calls |
//! | [`memory`] | memory and ways to copy, for the limits |
//! | [`harness`] | contestants take turns |
//! | [`meter`], [`measure`], [`stats`] | what a turn took, the figure that is made of it, medians and percentiles |
//! | [`report`], [`machine`] | JSON, Markdown, plots; facts of the machine |
//! | [`server`], [`worker`], [`daemon`] | the other processes |

#![deny(unsafe_code)]

mod baseline;
mod daemon;
mod harness;
mod hit_rate;
mod keys;
mod machine;
mod measure;
mod memory;
mod meter;
mod report;
mod scenario;
mod server;
mod stats;
mod worker;

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::{Parser, Subcommand};
// Named, so that their registrations are linked in.
use l2_fs as _;
use l2_memory as _;

use baseline::{Peers, Places};
use harness::Effort;
use machine::Machine;
use report::Report;
use scenario::{Context, SCENARIOS, Scale, Scenario};

/// The packages whose plugins a server of this program has.
const EXPECTED: &[&str] = &["l2-fs", "l2-memory"];

/// Measures Ondol beside what a user would take instead, and beside the limits of this machine
#[derive(Debug, Parser)]
#[command(name = "ondol-bench", version, after_help = scenarios(), args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Finish within five minutes on two cores
    #[arg(long)]
    quick: bool,
    /// Run everything for an instant, to see that it runs; its figures mean nothing
    #[arg(long, conflicts_with = "quick")]
    smoke: bool,
    /// Run this scenario alone; may be given several times
    #[arg(long, value_name = "SCENARIO", value_parser = clap::builder::PossibleValuesParser::new(SCENARIOS.iter().map(|scenario| scenario.name)))]
    only: Vec<String>,
    /// Number of objects that are looked up and restarted with [default: as many as exceed the caches]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1024..))]
    objects: Option<u64>,
    /// Trace for the comparison of eviction policies, one JSON object with `hash_ids` a line; may be given several times
    /// [default: a synthetic one]
    #[arg(long, value_name = "PATH")]
    trace: Vec<PathBuf>,
    /// Rounds that are measured after the one that warms up [default: 5 in a quick run, 9 in a full one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: Option<u64>,
    /// Directory for results.json, README.md and the plots [default: nothing is written]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The executable `ondol` whose server is measured [default: this program, which holds the same code]
    #[arg(long, value_name = "PATH")]
    server: Option<PathBuf>,
    #[command(flatten)]
    places: Places,
}

#[derive(Debug, Subcommand)]
enum Command {
    HitRate(hit_rate::Args),
}

fn scenarios() -> String {
    let line = |scenario: &Scenario| format!("  {:<10} {}", scenario.name, scenario.summary);
    let lines: Vec<_> = SCENARIOS.iter().map(line).collect();
    format!("Scenarios:\n{}", lines.join("\n"))
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let result = match (
        &*arguments,
        arguments.first().and_then(|word| word.to_str()),
    ) {
        ([_, program, rest @ ..], Some(daemon::FOLLOW)) => Err(daemon::follow(program, rest)),
        ([_, socket], Some(worker::WORKER)) => worker::run(Path::new(socket)),
        ([_, socket], Some(daemon::ECHO)) => scenario::echo(Path::new(socket)),
        // The whole command line is that of `ondol`.
        (_, Some("serve")) => return ondol_cli::main(EXPECTED),
        _ => match Arguments::parse() {
            Arguments {
                command: Some(Command::HitRate(arguments)),
                ..
            } => hit_rate::run(&arguments),
            arguments => bench(arguments),
        },
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn bench(arguments: Arguments) -> Result<()> {
    let start = Instant::now();
    let scale = match (arguments.smoke, arguments.quick) {
        (true, _) => Scale::Smoke,
        (_, true) => Scale::Quick,
        _ => Scale::Full,
    };
    let (rounds, window) = match scale {
        Scale::Smoke => (1, 2),
        Scale::Quick => (5, 40),
        Scale::Full => (9, 200),
    };
    let effort = Effort {
        rounds: arguments.rounds.map_or(rounds, |rounds| rounds as usize),
        window: Duration::from_millis(window),
    };
    if let Some(server) = arguments.server.as_ref().filter(|server| !server.is_file()) {
        bail!(
            "there is no executable {}; build it with `cargo build --release -p ondol-bin`",
            server.display()
        );
    }
    let machine = Machine::look();
    for (name, value) in machine.facts() {
        println!("{name}: {value}");
    }
    let peers = Peers::open(&arguments.places);
    for (name, why) in &peers.absent {
        println!("{name} does not take part: {why}");
    }
    let mut context = Context {
        scale,
        effort,
        machine: machine.clone(),
        peers,
        places: arguments.places,
        server: arguments.server,
        traces: arguments.trace,
        objects: arguments.objects,
    };
    let mut sections = Vec::new();
    for scenario in SCENARIOS {
        if arguments.only.is_empty() || arguments.only.iter().any(|name| name == scenario.name) {
            let began = Instant::now();
            let section = (scenario.run)(&mut context);
            sections.push(section.with_context(|| format!("scenario {}", scenario.name))?);
            println!(
                "{} took {:.1} s\n",
                scenario.name,
                began.elapsed().as_secs_f64()
            );
        }
    }
    let report = Report {
        machine,
        command: command(),
        seconds: start.elapsed().as_secs_f64(),
        sections,
    };
    if let Some(out) = &arguments.out {
        report.write(out)?;
        println!("written to {}", out.display());
    }
    Ok(())
}

/// How the benchmark was called, without what differs from machine to machine.
fn command() -> String {
    let mut words = vec!["cargo xtask bench".to_owned()];
    let mut arguments = env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let takes_path = [
            "--out",
            "--server",
            "--redis",
            "--memcached",
            "--lmcache",
            "--trace",
        ];
        match takes_path.iter().find(|name| argument.starts_with(**name)) {
            Some(name) if argument == **name => drop(arguments.next()),
            Some(_) => {}
            None => words.push(argument),
        }
    }
    words.join(" ")
}
