//! `ondol plugins`: what is linked in, and what would load.

use std::io::Write;
use std::process::ExitCode;

use ondol_host::{ALLOWLIST_VARIABLE, HandlerPlugins, LoadOptions, PluginReport, Registry};
use serde::Serialize;

use crate::output::{Table, print_json, stdout};

/// List the plugins that are linked into this program, and which would load
///
/// Plugins run in the process that embeds the handler: here, in `put`, `get` and `replay`, never in `serve`.
/// Makes an instance of each plugin that the allowlist MARU_PLUGINS admits, as those commands would, to say what
/// becomes of it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Listing<'a> {
    expected: &'a [&'a str],
    plugins: Vec<Row>,
    unmatched: &'a [String],
}

#[derive(Serialize)]
struct Row {
    kind: &'static str,
    #[serde(flatten)]
    report: PluginReport,
}

pub(crate) fn run(args: &Args, expected: &[&str]) -> anyhow::Result<ExitCode> {
    let plugins = HandlerPlugins::load(Registry::global(), LoadOptions::from_env());
    let reports = plugins.report();
    if args.json {
        let rows = reports.into_iter().map(|report| Row {
            kind: "handler",
            report,
        });
        print_json(&Listing {
            expected,
            plugins: rows.collect(),
            unmatched: plugins.unmatched(),
        })?;
        return Ok(ExitCode::SUCCESS);
    }

    let mut out = stdout();
    if reports.is_empty() {
        writeln!(out, "no plugins are linked into this program")?;
    } else {
        let mut table = Table::new([
            "NAME",
            "KIND",
            "PACKAGE",
            "VERSION",
            "STATE",
            "HOOKS OR WHY",
        ]);
        for report in &reports {
            table.row([
                report.name.to_owned(),
                "handler".to_owned(),
                report.package.to_owned(),
                report.version.to_owned(),
                report.state.to_string(),
                hooks_or_why(report),
            ]);
        }
        table.write(&mut out, "")?;
    }
    if !plugins.unmatched().is_empty() {
        writeln!(
            out,
            "\n{ALLOWLIST_VARIABLE} names plugins that are not linked into this program: {}",
            plugins.unmatched().join(", ")
        )?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn hooks_or_why(report: &PluginReport) -> String {
    if let Some(reason) = &report.reason {
        return reason.clone();
    }
    let hook = |hook: &&str| {
        let lane = if report.deferred.contains(hook) {
            " (deferred)"
        } else {
            ""
        };
        format!("{hook}{lane}")
    };
    report.hooks.iter().map(hook).collect::<Vec<_>>().join(", ")
}
