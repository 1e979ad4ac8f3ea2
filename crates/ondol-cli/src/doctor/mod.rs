//! `ondol doctor`: what servers and replays have left, what is wrong with it, and what to do.

mod hold;
mod remove;
mod replays;
mod report;
mod state;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use ondol_memory::{DeviceEnv, Leftover, Standing, find_leftovers, format_size};
use ondol_server::StateDir;

use crate::output::print_json;
use crate::serve::Layers;
use hold::Hold;
use report::{Cure, LeftoverView, Report};

/// Show what a server has left, whether it is sound, and clean up
///
/// Looks at the state directory (its lock, socket, secret, log, clients and lease books), at the devices of the pool, at
/// pool files of any server in /dev/shm, and at directories of killed replays. Without --clean and --remove nothing is
/// changed. Ends with 0 if all is well and with 1 if something needs attention.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// State directory of the server [env: ONDOL_STATE_DIR] [default: as for `ondol serve`]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<String>,
    /// Remove what nobody will come back for: pool files of dead servers without a log, stale sockets, unfinished files,
    /// lease books without a client, directories of killed replays
    #[arg(long)]
    clean: bool,
    /// Give up the pool and the log of this state directory, whose server must have stopped
    #[arg(long, conflicts_with = "clean")]
    remove: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let layers = Layers::default()
        .with_environment()?
        .with_flag("state_dir", &args.state_dir);
    let state_dir = layers
        .parse("state_dir", crate::serve::read_path)?
        .unwrap_or_else(StateDir::default_path);
    let env = DeviceEnv::default();
    let removed = match args.remove {
        true => remove::remove(&state_dir, &env)?,
        false => Vec::new(),
    };
    let mut hold = hold(&state_dir)?;
    if !args.clean {
        // Who only looks keeps no server from starting.
        hold.let_go();
    }
    let mut report = examine(&state_dir, &hold, &env)?;
    if !args.clean && !hold.is_running() {
        let mut now = self::hold(&state_dir)?;
        now.let_go();
        if now.is_running() {
            // A server has started meanwhile, and what was seen of its directory is no longer so.
            report = examine(&state_dir, &now, &env)?;
        }
    }
    report.removed = removed;
    if args.clean {
        clean(&mut report);
        if !report.removed.is_empty() {
            // What went may have been all that something else was kept for.
            let removed = report.removed;
            report = examine(&state_dir, &hold, &env)?;
            report.removed = removed;
            clean(&mut report);
        }
    }
    // A mistyped name must not look like a healthy server.
    if args.state_dir.is_some() && !state_dir.exists() {
        report.attend(
            format!("there is no directory {}", state_dir.display()),
            "name the state directory of the server, or start it",
        );
    }
    match args.json {
        true => print_json(&report)?,
        false => report.print()?,
    }
    Ok(match report.needs_attention() {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

fn hold(state_dir: &Path) -> anyhow::Result<Hold> {
    Hold::of(state_dir).with_context(|| format!("cannot look at {}", state_dir.display()))
}

/// Looks at everything.
fn examine(state_dir: &Path, hold: &Hold, env: &DeviceEnv) -> anyhow::Result<Report> {
    let mut report = Report {
        state_dir: state_dir.to_owned(),
        ..Report::default()
    };
    let leftovers = find_leftovers(env)?;
    state::examine(&mut report, hold, &leftovers, env)?;
    for leftover in leftovers {
        report_leftover(&mut report, leftover);
    }
    let temp = std::env::temp_dir();
    let replays = replays::find(&temp)
        .with_context(|| format!("cannot look for replays in {}", temp.display()))?;
    for (path, held) in replays {
        let what = format!("{} is of a replay that was killed", path.display());
        let cure = Cure::Replay(path, held);
        report.find(what, "run `ondol doctor --clean`", true, Some(cure));
    }
    Ok(report)
}

fn report_leftover(report: &mut Report, leftover: Leftover) {
    let state = match leftover.standing {
        Standing::Living => "living",
        Standing::Warm => "warm",
        _ => "orphan",
    };
    report.leftovers.push(LeftoverView {
        device: format!("{}:{}", leftover.scheme(), leftover.device.display()),
        bytes: leftover.bytes,
        pid: leftover.pid,
        state_dir: leftover.state.clone(),
        state,
    });
    if state != "orphan" {
        return;
    }
    let log = match &leftover.state {
        Some(dir) => format!("{} has no log of it", dir.display()),
        None => "it had no state directory".to_owned(),
    };
    let what = format!(
        "{} ({}) is of a server that has ended, and {log}",
        leftover.device.display(),
        format_size(leftover.bytes),
    );
    let cure = Cure::Leftover(Box::new(leftover));
    report.find(
        what,
        "run `ondol doctor --clean`, or start a server over it",
        true,
        Some(cure),
    );
}

/// Does what can be done. What could not be is still found, with the reason.
fn clean(report: &mut Report) {
    for mut finding in std::mem::take(&mut report.findings) {
        let done = match finding.cure.take() {
            None => {
                report.findings.push(finding);
                continue;
            }
            Some(Cure::File(path)) => fs::remove_file(&path)
                .map(|()| path.display().to_string())
                .map_err(anyhow::Error::from),
            Some(Cure::Replay(path, _held)) => fs::remove_dir_all(&path)
                .map(|()| path.display().to_string())
                .map_err(anyhow::Error::from),
            Some(Cure::Leftover(leftover)) => leftover
                .remove()
                .map(|()| {
                    let (path, bytes) = (leftover.device.display(), leftover.bytes);
                    format!("{path} ({})", format_size(bytes))
                })
                .map_err(anyhow::Error::from),
        };
        match done {
            Ok(removed) => report.removed.push(removed),
            Err(error) => {
                finding.remedy = format!("it could not be removed: {error:#}");
                finding.needs_attention = true;
                report.findings.push(finding);
            }
        }
    }
}
