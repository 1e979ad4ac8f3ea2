//! The figures, for people and for programs.

use std::collections::BTreeMap;
use std::io::{self, Write};

use ondol_memory::format_size;
use serde::Serialize;

use super::pool::StorageWork;
use super::tally::{Tally, Timings};
use super::watch::Restart;
use crate::output::Table;

/// What `--json` prints.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figures {
    pub(super) workload: String,
    pub(super) seed: u64,
    pub(super) instances: u32,
    /// Of which the figures are missing.
    pub(super) failed_instances: usize,
    pub(super) pool_bytes: u64,
    pub(super) policy: String,
    pub(super) block_bytes: usize,
    pub(super) seconds: f64,
    pub(super) requests: u64,
    pub(super) requests_fully_served: u64,
    pub(super) blocks: u64,
    pub(super) block_hits: u64,
    pub(super) hit_rate: f64,
    pub(super) stored: u64,
    pub(super) already_present: u64,
    pub(super) alloc_failures: u64,
    pub(super) duplicates: u64,
    pub(super) restarts: Vec<RestartFigures>,
    pub(super) repeated_calls: u64,
    /// Unknown if the server is gone, or was when nobody here knew of it.
    pub(super) evictions: Option<u64>,
    /// Of the storage behind the pool, if there is any.
    #[serde(flatten)]
    pub(super) l2: Option<L2Figures>,
    pub(super) verify_failures: u64,
    pub(super) bytes_read: u64,
    pub(super) bytes_verified: u64,
    pub(super) bytes_written: u64,
    pub(super) read_gbps: f64,
    pub(super) write_gbps: f64,
    pub(super) operations: Operations,
}

/// What storage did for all instances together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct L2Figures {
    l2_hits: u64,
    l2_stored: u64,
    l2_failures: u64,
    l2_corrupt: u64,
}

impl From<StorageWork> for L2Figures {
    fn from(work: StorageWork) -> Self {
        Self {
            l2_hits: work.loaded,
            l2_stored: work.stored,
            l2_failures: work.failures,
            l2_corrupt: work.corrupt,
        }
    }
}

/// What a restart of the server cost and what it left.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct RestartFigures {
    seconds_away: f64,
    objects: Option<u64>,
    warm_hits: u64,
}

/// The restarts that were seen, with the hits that the instances counted after each.
pub(super) fn restarts(seen: &[Restart], warm_hits: &BTreeMap<u64, u64>) -> Vec<RestartFigures> {
    let figures = seen.iter().map(|restart| RestartFigures {
        seconds_away: restart.seconds_away,
        objects: restart.objects,
        warm_hits: warm_hits.get(&restart.incarnation).copied().unwrap_or(0),
    });
    figures.collect()
}

/// How long a call took, or for `verify` the check of one block.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Operations {
    match_prefix: Operation,
    verify: Operation,
    alloc: Operation,
    store: Operation,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Operation {
    count: u64,
    p50_us: f64,
    p99_us: f64,
}

impl From<&Timings> for Operation {
    fn from(timings: &Timings) -> Self {
        Self {
            count: timings.count(),
            p50_us: timings.percentile(50.0),
            p99_us: timings.percentile(99.0),
        }
    }
}

impl From<&Tally> for Operations {
    fn from(tally: &Tally) -> Self {
        Self {
            match_prefix: (&tally.match_prefix).into(),
            verify: (&tally.verify).into(),
            alloc: (&tally.alloc).into(),
            store: (&tally.store).into(),
        }
    }
}

/// A part of a whole, which may be nothing.
pub(super) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    part as f64 / whole as f64
}

impl Figures {
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let plural = if self.instances == 1 { "" } else { "s" };
        writeln!(
            out,
            "{}: {} requests in {:.2} s ({:.0} a second) from {} instance{plural}; blocks of {}, pool of {} ({})\n",
            self.workload,
            self.requests,
            self.seconds,
            self.requests as f64 / self.seconds.max(1e-9),
            self.instances,
            format_size(self.block_bytes as u64),
            format_size(self.pool_bytes),
            self.policy,
        )?;
        let percent = |part| format!("{:.1} %", 100.0 * share(part, self.blocks));
        let mut blocks = Table::new(["BLOCKS", ">NUMBER", ">SHARE"]);
        for (name, number, show_always) in [
            ("hit", self.block_hits, true),
            ("stored", self.stored, true),
            ("there already", self.already_present, true),
            ("skipped, pool full", self.alloc_failures, false),
            ("named twice in a request", self.duplicates, false),
        ] {
            if show_always || number > 0 {
                blocks.row([name.to_owned(), number.to_string(), percent(number)]);
            }
        }
        blocks.row(["in all".into(), self.blocks.to_string(), String::new()]);
        blocks.write(out, "")?;
        writeln!(out)?;
        let mut bytes = Table::new(["BYTES", ">AMOUNT", ">GB/s"]);
        for (name, amount, rate) in [
            (
                "read in place and verified",
                self.bytes_verified,
                self.read_gbps,
            ),
            ("written and stored", self.bytes_written, self.write_gbps),
        ] {
            bytes.row([name.to_owned(), format_size(amount), format!("{rate:.2}")]);
        }
        bytes.write(out, "")?;
        writeln!(out)?;
        let mut operations = Table::new(["OPERATION", ">COUNT", ">P50 us", ">P99 us"]);
        for (name, operation) in [
            ("match prefix", self.operations.match_prefix),
            ("verify a block", self.operations.verify),
            ("allocate a page", self.operations.alloc),
            ("store a batch", self.operations.store),
        ] {
            operations.row([
                name.to_owned(),
                operation.count.to_string(),
                format!("{:.1}", operation.p50_us),
                format!("{:.1}", operation.p99_us),
            ]);
        }
        operations.write(out, "")?;
        writeln!(out)?;
        if !self.restarts.is_empty() {
            let heading = ["RESTART", ">SECONDS AWAY", ">OBJECTS FOUND", ">WARM HITS"];
            let mut restarts = Table::new(heading);
            for (number, restart) in (1..).zip(&self.restarts) {
                restarts.row([
                    u64::to_string(&number),
                    format!("{:.3}", restart.seconds_away),
                    or_unknown(restart.objects),
                    restart.warm_hits.to_string(),
                ]);
            }
            restarts.write(out, "")?;
            writeln!(out)?;
        }
        let mut rest = Table::new(["ALSO", ">NUMBER"]);
        if !self.restarts.is_empty() || self.repeated_calls > 0 {
            rest.row(["calls repeated".into(), self.repeated_calls.to_string()]);
        }
        for (name, number) in [
            (
                "requests fully served",
                self.requests_fully_served.to_string(),
            ),
            ("evictions", or_unknown(self.evictions)),
        ] {
            rest.row([name.to_owned(), number]);
        }
        for (name, number) in self.l2.iter().flat_map(|l2| {
            [
                ("blocks brought from storage", l2.l2_hits),
                ("blocks stored in storage", l2.l2_stored),
                ("storage tasks that failed", l2.l2_failures),
                ("blocks corrupt in storage", l2.l2_corrupt),
            ]
        }) {
            rest.row([name.to_owned(), number.to_string()]);
        }
        rest.row(["verify failures".into(), self.verify_failures.to_string()]);
        rest.write(out, "")
    }
}

fn or_unknown(number: Option<u64>) -> String {
    number.map_or_else(|| "unknown".to_owned(), |number| number.to_string())
}
