//! What is written down: results as JSON, as Markdown tables and as plots.

pub(crate) mod markdown;
pub(crate) mod svg;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::machine::Machine;
use crate::measure::Measure;
use crate::stats::{self, Spread};

/// A whole run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    /// How it was called.
    pub(crate) command: String,
    pub(crate) seconds: f64,
    pub(crate) sections: Vec<Section>,
}

/// What one scenario found.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Section {
    /// The scenario, as `--only` names it.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// What was done, for whom who reads the table; paragraphs.
    pub(crate) about: Vec<String>,
    pub(crate) panels: Vec<Panel>,
    /// Contestants that could not take part, and why.
    pub(crate) absent: Vec<(String, String)>,
}

/// Cases of one kind, all measured alike: one table and one plot.
#[derive(Debug, Serialize)]
pub(crate) struct Panel {
    /// Part of the plot's file name.
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) measure: Measure,
    /// What differs from case to case.
    pub(crate) axis: Axis,
    pub(crate) cases: Vec<Case>,
}

/// How cases are laid out in a plot.
#[derive(Clone, Debug, Serialize)]
pub(crate) enum Axis {
    /// Cases have numbers, and contestants are lines over them. Both axes are logarithmic.
    Numbers(&'static str),
    /// Cases have names, and contestants are bars.
    Names(&'static str),
}

/// One case: the same work for all contestants.
#[derive(Debug, Serialize)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// Its place on an axis of numbers.
    pub(crate) number: Option<f64>,
    pub(crate) rows: Vec<Row>,
}

/// What a contestant is to the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// Ondol.
    Ours,
    /// What the machine can do at best.
    Limit,
    /// What a user could take instead.
    Peer,
}

/// One contestant in one case.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) contestant: String,
    pub(crate) role: Role,
    /// One value for each round.
    pub(crate) rounds: Vec<f64>,
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
    /// The median over the rounds of this value over the reference's of the same round.
    pub(crate) ratio: Option<f64>,
    /// Whether the others are compared with this one.
    pub(crate) is_reference: bool,
    /// Latencies of single steps in nanoseconds: p50, p99, p99.9.
    pub(crate) latency_ns: Option<[f64; 3]>,
    /// Processor time in nanoseconds for each unit that the measure counts in, of the client.
    pub(crate) cpu_ns: Option<f64>,
    /// The same of the server.
    pub(crate) server_cpu_ns: Option<f64>,
    /// Instructions for each such unit.
    pub(crate) instructions: Option<f64>,
}

impl Row {
    /// A row of values alone, one for each round.
    ///
    /// # Panics
    /// If there is no value.
    pub(crate) fn of(contestant: impl Into<String>, role: Role, rounds: Vec<f64>) -> Self {
        let Spread {
            median,
            least,
            most,
        } = stats::spread(&rounds).expect("at least one round");
        Self {
            contestant: contestant.into(),
            role,
            rounds,
            median,
            least,
            most,
            ratio: None,
            is_reference: false,
            latency_ns: None,
            cpu_ns: None,
            server_cpu_ns: None,
            instructions: None,
        }
    }
}

impl Case {
    /// A case without rows.
    pub(crate) fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            number: None,
            rows: Vec::new(),
        }
    }

    /// A case without rows at this place of the axis.
    pub(crate) fn numbered(number: u64) -> Self {
        Self {
            name: thousands(number),
            number: Some(number as f64),
            rows: Vec::new(),
        }
    }

    /// Compares all rows with one of them: the limit that was reached best, or the first row if no limit was measured.
    pub(crate) fn compare(&mut self, measure: Measure) {
        let limits = self.rows.iter().filter(|row| row.role == Role::Limit);
        let best = limits.reduce(|best, row| {
            if measure.is_better(row.median, best.median) {
                row
            } else {
                best
            }
        });
        let Some(reference) = best.or(self.rows.first()) else {
            return;
        };
        let (name, values) = (reference.contestant.clone(), reference.rounds.clone());
        for row in &mut self.rows {
            row.is_reference = row.contestant == name;
            row.ratio = stats::paired_ratio(&row.rounds, &values);
        }
    }
}

impl Report {
    /// Writes `results.json`, `README.md` and the plots into `dir`, and removes plots of an earlier run.
    pub(crate) fn write(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            if path.extension().is_some_and(|end| end == "svg") {
                fs::remove_file(path)?;
            }
        }
        let write = |name: &str, text: &str| {
            let path = dir.join(name);
            fs::write(&path, text).with_context(|| format!("write {}", path.display()))
        };
        write(
            "results.json",
            &(serde_json::to_string_pretty(self)? + "\n"),
        )?;
        write("README.md", &markdown::page(self))?;
        for section in &self.sections {
            for panel in &section.panels {
                write(&plot_name(section, panel), &svg::plot(panel))?;
            }
        }
        Ok(())
    }
}

/// The file name of a panel's plot.
pub(crate) fn plot_name(section: &Section, panel: &Panel) -> String {
    format!("{}-{}.svg", section.name, panel.name)
}

/// A whole number with a comma at each thousand.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Two cases, in which a limit is reached, a contestant is slower, and one has latencies.
    pub(crate) fn panel() -> Panel {
        let case = |number: u64, factor: f64| {
            let mut case = Case::numbered(number);
            let row = |name: &str, role, values: [f64; 3]| {
                Row::of(name, role, values.map(|value| value * factor).into())
            };
            case.rows = vec![
                row("Ondol", Role::Ours, [8.0, 9.0, 10.0]),
                row("copy a", Role::Limit, [4.0, 5.0, 6.0]),
                row("copy b", Role::Limit, [10.0, 10.0, 20.0]),
            ];
            case.rows[0].latency_ns = Some([1500.0, 2500.0, 1e6]);
            case.rows[0].cpu_ns = Some(12.0);
            case.compare(Measure::Bandwidth);
            case
        };
        Panel {
            name: "copy".into(),
            title: "A copy".into(),
            measure: Measure::Bandwidth,
            axis: Axis::Numbers("bytes"),
            cases: vec![case(1, 1.0), case(1024, 2.0)],
        }
    }

    #[test]
    fn all_are_compared_with_the_best_limit() {
        let panel = panel();
        let rows = &panel.cases[0].rows;
        let references: Vec<_> = rows.iter().map(|row| row.is_reference).collect();
        assert_eq!(references, [false, false, true]);
        assert_eq!(rows[0].ratio, Some(0.8));
        assert_eq!(rows[2].ratio, Some(1.0));
    }

    #[test]
    fn the_best_limit_of_a_time_is_the_shortest() {
        let mut case = Case::named("x");
        case.rows = vec![
            Row::of("Ondol", Role::Ours, vec![30.0]),
            Row::of("slow", Role::Limit, vec![20.0]),
            Row::of("fast", Role::Limit, vec![10.0]),
        ];
        case.compare(Measure::Each("key"));
        assert!(case.rows[2].is_reference);
        assert_eq!(case.rows[0].ratio, Some(3.0));
    }

    #[test]
    fn without_a_limit_the_first_is_the_reference() {
        let mut case = Case::named("x");
        case.rows = vec![
            Row::of("Ondol", Role::Ours, vec![2.0]),
            Row::of("peer", Role::Peer, vec![50.0]),
        ];
        case.compare(Measure::Each("key"));
        assert_eq!(case.rows[1].ratio, Some(25.0));
    }

    #[test]
    fn thousands_are_told_apart() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1000), "1,000");
        assert_eq!(thousands(12_345_678), "12,345,678");
    }

    #[test]
    fn a_run_replaces_the_plots_of_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("old.svg"), "").unwrap();
        let report = Report {
            machine: Machine::default(),
            command: "bench".into(),
            seconds: 1.0,
            sections: vec![Section {
                name: "store",
                panels: vec![panel()],
                ..Section::default()
            }],
        };
        report.write(dir.path()).unwrap();
        let mut names: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["README.md", "results.json", "store-copy.svg"]);
        let json = fs::read_to_string(dir.path().join("results.json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(
            json["sections"][0]["panels"][0]["cases"][0]["rows"][0]["median"],
            9.0
        );
    }
}
