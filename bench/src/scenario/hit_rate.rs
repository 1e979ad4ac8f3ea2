//! Which share of its blocks a trace finds, by eviction policy. Simulated, so that a machine does not matter.

use anyhow::Result;
use ondol_cli::workload::Workload;

use super::Context;
use crate::hit_rate::{self, Rates, TraceReport};
use crate::measure::Measure;
use crate::report::{Axis, Case, Panel, Role, Row, Section, markdown, thousands};

const MEASURE: Measure = Measure::Percent;

pub(super) fn run(context: &mut Context) -> Result<Section> {
    let workloads = if context.traces.is_empty() {
        vec![Workload::generate(1, context.scaled(200, 5000, 20_000))]
    } else {
        let limit = context.scaled(200, usize::MAX, usize::MAX);
        let read = context
            .traces
            .iter()
            .map(|path| Workload::read(path, limit));
        read.collect::<Result<_>>()?
    };
    let mut about = vec![
        "The real policies, driven by traces as the directory drives them, at capacities that are parts of the distinct blocks. \
         The reference is the optimum, which knows what comes (Belady, 1966). A hit of a prefix is one with all blocks before it, \
         which is what an engine can use."
            .to_owned(),
    ];
    let mut panels = Vec::new();
    for workload in &workloads {
        println!("Hit rates of {}", workload.name);
        let found = hit_rate::compare(workload);
        about.push(format!(
            "`{}`: {} requests, {} distinct blocks; with room for all, {} % of the blocks hit.",
            found.name,
            thousands(found.requests as u64),
            thousands(found.distinct as u64),
            markdown::figure(found.unlimited.hit_rate * 100.0)
        ));
        panels.push(panel(&found, "blocks", "Hits among all blocks", |rates| {
            rates.hit_rate
        }));
        panels.push(panel(&found, "prefixes", "Hits of prefixes", |rates| {
            rates.prefix_hit_rate
        }));
    }
    Ok(Section {
        name: "hit-rate",
        title: "Hit rate by eviction policy",
        about,
        panels,
        absent: Vec::new(),
    })
}

fn panel(found: &TraceReport, name: &str, title: &str, rate: fn(&Rates) -> f64) -> Panel {
    let row = |name: &str, role, rates| Row::of(name, role, vec![rate(rates) * 100.0]);
    let cases = found.capacities.iter().map(|capacity| {
        let mut case = Case::named(format!("{} %", capacity.percent));
        let policies = capacity.policies.iter();
        case.rows = policies
            .map(|policy| row(&policy.policy, Role::Ours, &policy.rates))
            .collect();
        case.rows
            .push(row("the optimum", Role::Limit, &capacity.optimum));
        case.compare(MEASURE);
        case
    });
    let cases: Vec<_> = cases.collect();
    println!("{title}");
    for case in &cases {
        println!("{}", markdown::lines(case, MEASURE));
    }
    Panel {
        name: format!("{}-{name}", found.name),
        title: format!("{title}, {}", found.name),
        measure: MEASURE,
        axis: Axis::Names("capacity"),
        cases,
    }
}
