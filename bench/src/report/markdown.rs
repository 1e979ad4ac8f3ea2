//! The page of a run, and the lines that are printed while it goes on.

use std::fmt::Write as _;

use super::{Axis, Case, Panel, Report, Role, Row, Section, plot_name, thousands};
use crate::measure::Measure;

/// The page.
pub(crate) fn page(report: &Report) -> String {
    let mut page = String::from("# Results\n\n");
    let machine = &report.machine;
    let _ = writeln!(
        page,
        "Measured on {} at commit `{}` by `{}`, which took {:.0} s. [How to read it](../benchmarks.md#the-one-command).\n",
        machine.date, machine.commit, report.command, report.seconds
    );
    page += "| | |\n|---|---|\n";
    for (name, value) in machine.facts() {
        let _ = writeln!(page, "| {name} | {} |", value.replace('|', "/"));
    }
    for section in &report.sections {
        page += &section_text(section);
    }
    page
}

fn section_text(section: &Section) -> String {
    let mut text = format!("\n## {}\n", section.title);
    for paragraph in &section.about {
        let _ = write!(text, "\n{paragraph}\n");
    }
    for (who, why) in &section.absent {
        let _ = write!(text, "\nNot measured: **{who}**: {why}.\n");
    }
    for panel in &section.panels {
        let _ = write!(
            text,
            "\n### {}\n\n![{}]({})\n\n{}",
            panel.title,
            panel.title,
            plot_name(section, panel),
            table(panel)
        );
    }
    text
}

/// All rows of a panel. Columns that no row has anything for are left out.
fn table(panel: &Panel) -> String {
    let measure = panel.measure;
    let (Axis::Numbers(axis) | Axis::Names(axis)) = &panel.axis;
    let rows = || panel.cases.iter().flat_map(|case| &case.rows);
    let (latency, cpu, server, instructions) = (
        rows().any(|row| row.latency_ns.is_some()),
        rows().any(|row| row.cpu_ns.is_some()),
        rows().any(|row| row.server_cpu_ns.is_some()),
        rows().any(|row| row.instructions.is_some()),
    );
    let mut heads = vec![
        (*axis).to_owned(),
        String::new(),
        measure.unit(),
        "least to most".into(),
        "ratio".into(),
    ];
    if latency {
        heads.extend(["p50", "p99", "p99.9"].map(str::to_owned));
    }
    let counted = measure.counted();
    if cpu {
        heads.push(format!("processor time/{counted}"));
    }
    if server {
        heads.push(format!("server's/{counted}"));
    }
    if instructions {
        heads.push(format!("instructions/{counted}"));
    }
    let mut table = line(&heads);
    table += &format!("|{}\n", "---|".repeat(heads.len()));
    for case in &panel.cases {
        for (index, row) in case.rows.iter().enumerate() {
            let name = if index == 0 { &*case.name } else { "" };
            let mut cells = vec![name.to_owned()];
            cells.extend(values(row));
            let optional = |value: Option<f64>| value.map(nanoseconds).unwrap_or_default();
            if latency {
                let latencies = row.latency_ns.map(|all| all.map(nanoseconds));
                cells.extend(latencies.unwrap_or_default());
            }
            if cpu {
                cells.push(optional(row.cpu_ns));
            }
            if server {
                cells.push(optional(row.server_cpu_ns));
            }
            if instructions {
                cells.push(row.instructions.map(figure).unwrap_or_default());
            }
            table += &line(&cells);
        }
    }
    table
}

/// Name, median, spread and ratio.
fn values(row: &Row) -> [String; 4] {
    let name = match row.role {
        Role::Ours => format!("**{}**", row.contestant),
        Role::Limit => format!("*{}*", row.contestant),
        Role::Peer => row.contestant.clone(),
    };
    let ratio = match row.ratio {
        _ if row.is_reference => "1".into(),
        Some(ratio) => figure(ratio),
        None => String::new(),
    };
    let spread = format!("{} to {}", figure(row.least), figure(row.most));
    [name, figure(row.median), spread, ratio]
}

fn line(cells: &[String]) -> String {
    let mut line = String::from("|");
    for cell in cells {
        let space = if cell.is_empty() { "" } else { " " };
        let _ = write!(line, "{space}{cell} |");
    }
    line + "\n"
}

/// What is printed of a case.
pub(crate) fn lines(case: &Case, measure: Measure) -> String {
    let mut text = String::new();
    for row in &case.rows {
        let [_, median, spread, ratio] = values(row);
        let latency = row
            .latency_ns
            .map(|[p50, p99, _]| format!("  p50 {} p99 {}", nanoseconds(p50), nanoseconds(p99)));
        let _ = writeln!(
            text,
            "  {:>14}  {:<44} {median:>9} {:<12} ({spread}) ×{ratio}{}",
            case.name,
            row.contestant,
            measure.unit(),
            latency.unwrap_or_default()
        );
    }
    text.truncate(text.trim_end().len());
    text
}

/// A number with three digits that count.
pub(crate) fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => thousands(size.round() as u64),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn nanoseconds(nanos: f64) -> String {
    match nanos {
        nanos if nanos >= 1e9 => format!("{} s", figure(nanos / 1e9)),
        nanos if nanos >= 1e6 => format!("{} ms", figure(nanos / 1e6)),
        nanos if nanos >= 1e3 => format!("{} µs", figure(nanos / 1e3)),
        nanos => format!("{} ns", figure(nanos)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::report::tests::panel;

    #[test]
    fn a_table_has_a_row_for_each_contestant_and_no_empty_column() {
        let table = table(&panel());
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(
            lines[0],
            "| bytes | | GB/s | least to most | ratio | p50 | p99 | p99.9 | processor time/MiB |"
        );
        assert_eq!(lines[1], "|---|---|---|---|---|---|---|---|---|");
        assert_eq!(
            lines[2],
            "| 1 | **Ondol** | 9.00 | 8.00 to 10.0 | 0.80 | 1.50 µs | 2.50 µs | 1.00 ms | 12.0 ns |"
        );
        assert_eq!(lines[4], "| | *copy b* | 10.0 | 10.0 to 20.0 | 1 | | | | |");
        assert_eq!(lines.len(), 2 + 6);
        let columns = |line: &str| line.matches('|').count();
        assert!(
            lines.iter().all(|line| columns(line) == columns(lines[0])),
            "{table}"
        );
    }

    #[test]
    fn a_page_says_what_was_not_measured_and_why() {
        let section = Section {
            name: "store",
            title: "Store",
            absent: vec![("Redis".into(), "no redis-server in the path".into())],
            panels: vec![panel()],
            ..Section::default()
        };
        let page = page(&Report {
            machine: Machine::default(),
            command: "cargo xtask bench".into(),
            seconds: 61.2,
            sections: vec![section],
        });
        assert!(
            page.contains("\nNot measured: **Redis**: no redis-server in the path.\n"),
            "{page}"
        );
        assert!(page.contains("![A copy](store-copy.svg)"), "{page}");
        assert!(
            page.contains("by `cargo xtask bench`, which took 61 s."),
            "{page}"
        );
    }

    #[test]
    fn figures_have_three_digits() {
        for (value, text) in [
            (0.0, "0.00"),
            (0.123, "0.12"),
            (12.34, "12.3"),
            (123.4, "123"),
            (12_345.6, "12,346"),
        ] {
            assert_eq!(figure(value), text);
        }
        assert_eq!(nanoseconds(999.0), "999 ns");
        assert_eq!(nanoseconds(2_500_000_000.0), "2.50 s");
    }
}
