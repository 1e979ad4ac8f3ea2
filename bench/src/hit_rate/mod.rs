//! Which share of a trace's blocks a cache of so many blocks finds, by eviction policy.
//!
//! The policies are the real ones, driven as the directory drives them: a request looks its blocks up, the policy hears of
//! those that are there, and the others are stored, each in place of a victim once the cache is full. What is left out is
//! what has nothing to do with the choice of victims: leases, page sizes, transfers, time.

mod cache;
mod optimum;
mod report;

use std::collections::HashSet;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use ondol_catalog::Policy;
use ondol_cli::workload::Workload;
// Links its policies.
use ondol_directory as _;
use serde::Serialize;

use report::{Capacity, Report};
pub(crate) use report::{Rates, TraceReport};

/// In percent of the distinct blocks of a trace.
const CAPACITIES: [f64; 4] = [5.0, 10.0, 25.0, 50.0];

/// Simulate eviction policies with traces and compare their hit rates with the optimum.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Traces, one JSON object with `hash_ids` a line
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// Capacities in percent of the distinct blocks of a trace
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = CAPACITIES)]
    capacity: Vec<f64>,
    /// Policies by name [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    policy: Vec<String>,
    /// In which order the policy hears of the blocks of a request that were found
    #[arg(long, value_enum, default_value_t = Order::Prompt)]
    uses: Order,
    /// In which order the blocks of a request that were not found are stored
    #[arg(long, value_enum, default_value_t = Order::Prompt)]
    stores: Order,
    /// Also write the figures as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// An order of the blocks of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Order {
    /// The start of the prompt first
    Prompt,
    /// The end of the prompt first, so that it is older than the start
    Reverse,
}

impl Order {
    fn arrange<T>(self, blocks: &mut [T]) {
        if self == Self::Reverse {
            blocks.reverse();
        }
    }
}

/// What was asked for and found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    blocks: u64,
    /// Blocks that were there.
    hits: u64,
    /// Blocks that were there with all earlier ones of their request.
    prefix_hits: u64,
}

impl Tally {
    /// Counts a request by whether each of its blocks was there.
    fn count(&mut self, found: &[bool]) {
        self.blocks += found.len() as u64;
        self.hits += found.iter().filter(|found| **found).count() as u64;
        self.prefix_hits += found.iter().take_while(|found| **found).count() as u64;
    }
}

/// Simulates and prints.
///
/// # Errors
/// A trace that cannot be read, an unknown policy, a capacity that is no share, or a file that cannot be written.
pub(crate) fn run(args: &Args) -> Result<()> {
    let policies = choose(&args.policy)?;
    for percent in &args.capacity {
        ensure!(
            *percent > 0.0 && *percent <= 100.0,
            "--capacity is {percent}; expected more than 0 and at most 100 percent"
        );
    }
    let traces = args.traces.iter().map(|path| {
        let workload = Workload::read(path, usize::MAX)?;
        Ok(simulate(
            &workload,
            &policies,
            &args.capacity,
            args.uses,
            args.stores,
        ))
    });
    let report = Report {
        uses: args.uses,
        stores: args.stores,
        traces: traces.collect::<Result<_>>()?,
    };
    print!("{}", report.markdown());
    if let Some(path) = &args.json {
        let json = serde_json::to_string_pretty(&report)?;
        std::fs::write(path, json + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn choose(names: &[String]) -> Result<Vec<&'static Policy>> {
    let all = ondol_catalog::policies();
    if names.is_empty() {
        return Ok(all);
    }
    let find = |name: &String| {
        ondol_catalog::policy(name).with_context(|| {
            let known: Vec<_> = all.iter().map(|policy| policy.name).collect();
            format!(
                "--policy is {name:?}; expected one of: {}",
                known.join(", ")
            )
        })
    };
    names.iter().map(find).collect()
}

/// What all policies find at the usual capacities.
pub(crate) fn compare(workload: &Workload) -> TraceReport {
    let policies = ondol_catalog::policies();
    simulate(
        workload,
        &policies,
        &CAPACITIES,
        Order::Prompt,
        Order::Prompt,
    )
}

fn simulate(
    workload: &Workload,
    policies: &[&'static Policy],
    capacities: &[f64],
    uses: Order,
    stores: Order,
) -> TraceReport {
    let distinct: HashSet<u64> = workload.requests.iter().flatten().copied().collect();
    let distinct = distinct.len();
    let capacities = capacities.iter().map(|percent| {
        let blocks = ((distinct as f64 * percent / 100.0) as usize).max(1);
        let tallies = policies.iter().map(|policy| {
            let tally = cache::replay(policy, blocks, workload, uses, stores);
            (policy.name.to_owned(), tally)
        });
        let optimum = optimum::replay(blocks, workload);
        Capacity::new(*percent, blocks, tallies.collect(), optimum)
    });
    TraceReport {
        name: workload.name.clone(),
        requests: workload.requests.len(),
        distinct,
        unlimited: optimum::replay(distinct, workload).into(),
        capacities: capacities.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_behind_a_missing_one_is_no_hit_of_the_prefix() {
        let mut tally = Tally::default();
        tally.count(&[true, true, false, true]);
        tally.count(&[]);
        tally.count(&[false, true]);
        let expected = Tally {
            blocks: 6,
            hits: 4,
            prefix_hits: 2,
        };
        assert_eq!(tally, expected);
    }

    #[test]
    fn an_unknown_policy_is_answered_with_the_known_ones() {
        let error = choose(&["lru".into(), "mru".into()]).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("\"mru\"") && text.contains("arc, isolated-lru, lru"),
            "{text}"
        );
        assert_eq!(choose(&["sieve".into()]).unwrap()[0].name, "sieve");
    }
}
