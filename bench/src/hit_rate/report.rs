//! Hit rates as a table and as JSON.

use std::fmt::{self, Write};

use serde::Serialize;

use super::{Order, Tally};

/// The figures of a run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) uses: Order,
    pub(super) stores: Order,
    pub(super) traces: Vec<TraceReport>,
}

/// The figures of a trace.
#[derive(Debug, Serialize)]
pub(crate) struct TraceReport {
    pub(crate) name: String,
    pub(crate) requests: usize,
    /// Blocks that differ.
    pub(crate) distinct: usize,
    /// With room for all of them.
    pub(crate) unlimited: Rates,
    pub(crate) capacities: Vec<Capacity>,
}

/// The figures of a capacity.
#[derive(Debug, Serialize)]
pub(crate) struct Capacity {
    /// Of the distinct blocks.
    pub(crate) percent: f64,
    blocks: usize,
    pub(crate) optimum: Rates,
    pub(crate) policies: Vec<PolicyRates>,
}

/// Shares of the blocks that were asked for.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Rates {
    asked: u64,
    pub(crate) hit_rate: f64,
    pub(crate) prefix_hit_rate: f64,
}

impl From<Tally> for Rates {
    fn from(tally: Tally) -> Self {
        let share = |hits: u64| hits as f64 / tally.blocks.max(1) as f64;
        Self {
            asked: tally.blocks,
            hit_rate: share(tally.hits),
            prefix_hit_rate: share(tally.prefix_hits),
        }
    }
}

impl fmt::Display for Rates {
    /// In percent: blocks / prefixes.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hits, prefixes) = (100.0 * self.hit_rate, 100.0 * self.prefix_hit_rate);
        write!(out, "{hits:.1} / {prefixes:.1}")
    }
}

/// The figures of a policy.
#[derive(Debug, Serialize)]
pub(crate) struct PolicyRates {
    pub(crate) policy: String,
    #[serde(flatten)]
    pub(crate) rates: Rates,
    /// Its part of the blocks that the optimum finds.
    of_optimum: f64,
    /// Its part of them that it finds as prefixes.
    prefix_of_optimum: f64,
}

impl Capacity {
    pub(super) fn new(
        percent: f64,
        blocks: usize,
        policies: Vec<(String, Tally)>,
        optimum: Tally,
    ) -> Self {
        let part = |hits: u64| hits as f64 / optimum.hits.max(1) as f64;
        let policies = policies.into_iter().map(|(policy, tally)| PolicyRates {
            policy,
            rates: tally.into(),
            of_optimum: part(tally.hits),
            prefix_of_optimum: part(tally.prefix_hits),
        });
        Self {
            percent,
            blocks,
            optimum: optimum.into(),
            policies: policies.collect(),
        }
    }
}

impl Report {
    /// A table for each trace: policies by capacities. A cell has the percentage of blocks that hit, that of blocks that hit
    /// as part of a prefix, and the latter as a part of the optimum.
    pub(super) fn markdown(&self) -> String {
        let mut text = String::new();
        for trace in &self.traces {
            let _ = write!(text, "{}", Table(trace));
        }
        text
    }
}

struct Table<'a>(&'a TraceReport);

impl fmt::Display for Table<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(trace) = self;
        writeln!(
            out,
            "### {}\n{} requests for {} blocks, {} of them distinct. With room for all: {}.\n",
            trace.name, trace.requests, trace.unlimited.asked, trace.distinct, trace.unlimited,
        )?;
        write!(out, "| policy |")?;
        for capacity in &trace.capacities {
            write!(
                out,
                " {} % ({} blocks) |",
                capacity.percent, capacity.blocks
            )?;
        }
        writeln!(out, "\n|---|{}", "---|".repeat(trace.capacities.len()))?;
        let rows = trace
            .capacities
            .first()
            .map_or(0, |first| first.policies.len());
        for row in 0..rows {
            write!(out, "| `{}` |", trace.capacities[0].policies[row].policy)?;
            for capacity in &trace.capacities {
                let figures = &capacity.policies[row];
                let part = figures.prefix_of_optimum;
                write!(out, " {} ({part:.3}) |", figures.rates)?;
            }
            writeln!(out)?;
        }
        write!(out, "| optimum |")?;
        for capacity in &trace.capacities {
            write!(out, " {} |", capacity.optimum)?;
        }
        writeln!(out, "\n")
    }
}
