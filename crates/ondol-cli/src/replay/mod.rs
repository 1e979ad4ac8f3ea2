//! `ondol replay`: the main job, on a real trace or one like it.
//!
//! The parent opens an engine and a door, or uses a running server, and deals the requests to instances. Those are
//! processes of the same executable, so the plugins that are linked into it run in them. They connect through the
//! socket and share the pool as inference engines would. A server that shall be killed on the way is a process of the
//! same executable too.

mod args;
mod content;
mod crew;
mod messages;
mod patience;
mod pool;
mod progress;
mod report;
mod server;
mod tally;
mod watch;
mod worker;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, ensure};

pub(crate) use args::Args;
use crew::{Crew, Interrupts, Outcome};
use messages::Task;
use pool::{Done, Pool};
use progress::Progress;
use report::{Figures, L2Figures};
use tally::Tally;
use watch::{Restarts, Watch};

use crate::workload::Workload;

/// The option that makes a process an instance.
const AS_INSTANCE: &str = "as-instance";

/// The option that makes a process the server.
const AS_SERVER: &str = "as-server";

/// What a shell reports of a command that was ended by ctrl-C.
const INTERRUPTED: u8 = 130;

/// So many requests each instance has between two restarts, at least, on the average.
const REQUESTS_BETWEEN_RESTARTS: u64 = 4;

/// Pages that lie in the stocks of all instances together take at most this part of the pool.
const STOCK_PART: u64 = 16;

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.as_instance {
        return worker::serve();
    }
    if let (Some(dir), Some(pool)) = (&args.as_server, &args.pool) {
        return Err(server::become_server(dir, pool, args));
    }
    let requests = usize::try_from(args.requests)?;
    let workload = match &args.trace {
        Some(path) => Workload::read(path, requests)?,
        None => Workload::generate(args.seed, requests),
    };
    let requests = workload.requests.len() as u64;
    let most_restarts = requests / (REQUESTS_BETWEEN_RESTARTS * u64::from(args.instances));
    ensure!(
        u64::from(args.restarts) <= most_restarts,
        "--restarts is {}; expected at most {most_restarts}, so that each instance does something between two",
        args.restarts
    );
    let interrupts = Interrupts::catch()?;
    let Some(mut pool) = Pool::open(args, &interrupts)? else {
        return Ok(ExitCode::from(INTERRUPTED));
    };
    if interrupts.take() {
        return Ok(ExitCode::from(INTERRUPTED));
    }
    ensure!(
        args.block_bytes as u64 <= pool.longest_page,
        "--block-bytes is {}; a page of this pool holds at most {}: give it a larger --pool",
        args.block_bytes,
        pool.longest_page
    );
    let name = workload.name.clone();
    let tasks = deal(args, workload, &pool)?;
    let progress = Progress::new(requests, args.quiet);
    let crew = Crew::start(&tasks, args.lockstep, &progress)?;
    drop(tasks);
    let mut watch = Watch::new(&mut pool, requests, args);
    let outcome = crew.run(&interrupts, &progress, &mut watch);
    let restarts = watch.finish(&interrupts);
    progress.clear();
    let done = pool.done();
    let known = done.as_ref().ok().copied().flatten();
    let figures = figures(args, name, &pool, &outcome, &restarts, known);
    // Nothing is left behind, even if nobody reads the figures.
    drop(pool);
    let printed = print(args, &figures);
    let mut errors = outcome.failures;
    errors.extend(restarts.failure);
    let restarted = restarts.list.len();
    if !outcome.interrupted && restarted < args.restarts as usize {
        errors.push(format!(
            "the server was started again {restarted} times; expected {}",
            args.restarts
        ));
    }
    if let Err(error) = done {
        errors.push(format!("the engine's figures are missing: {error:#}"));
    }
    if figures.verify_failures > 0 {
        errors.push(format!(
            "{} checks found a block that did not hold what was written into it",
            figures.verify_failures
        ));
    }
    for error in &errors {
        crate::complain(error);
    }
    if outcome.interrupted {
        crate::complain("interrupted; the figures are those of the requests that were done");
        return Ok(ExitCode::from(INTERRUPTED));
    }
    if !errors.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    printed?;
    Ok(ExitCode::SUCCESS)
}

fn print(args: &Args, figures: &Figures) -> Result<()> {
    if args.json {
        return crate::output::print_json(figures);
    }
    let mut out = crate::output::stdout();
    figures.write(&mut out)?;
    out.flush()?;
    Ok(())
}

/// Deals the requests to the instances in turn.
fn deal(args: &Args, workload: Workload, pool: &Pool) -> Result<Vec<Task>> {
    let Workload { name, requests } = workload;
    let mut nonce = [0; 8];
    getrandom::fill(&mut nonce)?;
    let nonce = u64::from_ne_bytes(nonce);
    let task = |instance| Task {
        socket: pool.socket().to_owned(),
        instance,
        workload: name.clone(),
        nonce,
        seed: args.seed,
        block_bytes: args.block_bytes,
        stock_bytes: (pool.bytes / STOCK_PART / u64::from(args.instances)).min(8 << 20),
        hold: args.hold,
        paced: args.lockstep || args.restarts > 0,
        patience: args.patience,
        l2_wait: args.seconds_for_storage(),
        requests: Vec::new(),
    };
    let mut tasks: Vec<Task> = (0..args.instances).map(task).collect();
    for (index, blocks) in requests.into_iter().enumerate() {
        let instance = index % tasks.len();
        tasks[instance].requests.push(blocks);
    }
    Ok(tasks)
}

fn figures(
    args: &Args,
    workload: String,
    pool: &Pool,
    outcome: &Outcome,
    restarts: &Restarts,
    done: Option<Done>,
) -> Figures {
    let mut sum = Tally::default();
    outcome.tallies.iter().for_each(|tally| sum.add(tally));
    Figures {
        workload,
        seed: args.seed,
        instances: args.instances,
        failed_instances: outcome.failures.len(),
        pool_bytes: pool.bytes,
        policy: pool.policy.clone(),
        block_bytes: args.block_bytes,
        seconds: outcome.seconds,
        requests: sum.requests,
        requests_fully_served: sum.requests_fully_served,
        blocks: sum.blocks,
        block_hits: sum.block_hits,
        hit_rate: report::share(sum.block_hits, sum.blocks),
        stored: sum.stored,
        already_present: sum.already_present,
        alloc_failures: sum.alloc_failures,
        duplicates: sum.duplicates,
        restarts: report::restarts(&restarts.list, &sum.warm_hits),
        repeated_calls: sum.repeated_calls,
        evictions: done.map(|done| done.evictions),
        l2: done.and_then(|done| done.l2).map(L2Figures::from),
        verify_failures: sum.verify_failures,
        bytes_read: sum.bytes_read,
        bytes_verified: sum.bytes_verified,
        bytes_written: sum.bytes_written,
        read_gbps: sum.read_gbps(),
        write_gbps: sum.write_gbps(),
        operations: (&sum).into(),
    }
}
