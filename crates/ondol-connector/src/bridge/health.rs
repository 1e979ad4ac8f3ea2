//! What is known of a connector's conduct.

use std::time::{Duration, Instant};

use ondol_plugin::l2::{AdapterStatus, Health};
use serde_json::{Map, Value};

use super::BridgeOptions;
use super::requests::View;

/// How long a fault shows in the health.
const FAULT_SHOWS: Duration = Duration::from_secs(60);

/// Counters, and the last fault.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// Completions that were matched with a request.
    completed: u64,
    /// Completions for requests that nobody has submitted, or that were completed before.
    pub(super) unknown: u64,
    /// Requests that were not completed in time.
    pub(super) timed_out: u64,
    /// Completions of requests that were overdue.
    pub(super) late: u64,
    /// Answers that cannot be: lists of the wrong length, lengths beyond a page, numbers given twice.
    pub(super) malformed: u64,
    /// Pages that did not come back in their completion.
    pub(super) lost_pages: u64,
    /// Submits that the connector refused.
    pub(super) refused: u64,
    /// Times that the descriptor was readable for nothing, over and over.
    pub(super) false_signals: u64,
    lacks_delete: bool,
    faults: u64,
    last_fault: Option<(Instant, String)>,
    last_answer: Option<Instant>,
}

impl Record {
    /// A request was completed.
    pub(super) fn answered(&mut self) {
        self.completed += 1;
        self.last_answer = Some(Instant::now());
    }

    /// The connector did what it must not.
    pub(super) fn fault(&mut self, name: &str, what: String) {
        self.faults += 1;
        // The log tells of the first ones, and then ever more rarely.
        if self.faults.is_power_of_two() {
            tracing::warn!(
                backend = name,
                faults = self.faults,
                "connector misbehaves: {what}"
            );
        }
        self.last_fault = Some((Instant::now(), what));
    }

    /// The connector cannot delete.
    pub(super) fn cannot_delete(&mut self, name: &str) {
        if !self.lacks_delete {
            tracing::warn!(
                backend = name,
                "the connector cannot delete: what it holds stays until somebody else removes it"
            );
        }
        self.lacks_delete = true;
    }

    pub(super) fn status(&self, view: &View, options: &BridgeOptions) -> AdapterStatus {
        let (health, reason) = self.health(view, options);
        AdapterStatus {
            health,
            reason,
            read_only: false,
            figures: self.figures(),
        }
    }

    fn health(&self, view: &View, options: &BridgeOptions) -> (Health, Option<String>) {
        let failed = |reason: String| (Health::Failed, Some(reason));
        if let Some(reason) = &view.failed {
            return failed(reason.clone());
        }
        if view.is_closed {
            return failed("closed".to_owned());
        }
        let drains_for = view.draining_since.map(|since| since.elapsed());
        if let Some(time) = drains_for.filter(|time| *time > options.task_timeout) {
            return failed(format!("drain_completions has not returned for {time:.1?}"));
        }
        if let Some(submitted) = view.oldest_overdue {
            let is_silent = self.last_answer.is_none_or(|answer| answer < submitted);
            let overdue = view.overdue;
            return match is_silent {
                true => failed(format!(
                    "the connector has not answered for {:.1?}; {overdue} requests are overdue",
                    submitted.elapsed()
                )),
                false => {
                    let reason = format!("{overdue} requests are overdue");
                    (Health::Degraded, Some(reason))
                }
            };
        }
        match &self.last_fault {
            Some((when, what)) if when.elapsed() < FAULT_SHOWS => {
                (Health::Degraded, Some(what.clone()))
            }
            _ => (Health::Healthy, None),
        }
    }

    fn figures(&self) -> Map<String, Value> {
        let counters = [
            ("completed_requests", self.completed),
            ("unknown_completions", self.unknown),
            ("timed_out_requests", self.timed_out),
            ("late_completions", self.late),
            ("malformed_answers", self.malformed),
            ("lost_pages", self.lost_pages),
            ("refused_requests", self.refused),
            ("false_signals", self.false_signals),
        ];
        let mut figures: Map<_, _> = counters
            .into_iter()
            .map(|(name, value)| (name.to_owned(), Value::from(value)))
            .collect();
        if self.lacks_delete {
            figures.insert("can_delete".to_owned(), Value::from(false));
        }
        figures
    }
}
