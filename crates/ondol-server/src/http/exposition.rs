//! Figures as text: version 0.0.4 of Prometheus' exposition format.

use std::fmt::Write;

use ondol_catalog::{Metric, MetricKind};

/// One value of a metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// What is measured.
    pub metric: &'static Metric,
    /// What sets this value apart from others of the metric: a name and its value.
    pub label: Option<(&'static str, String)>,
    /// How much.
    pub value: Value,
}

/// How much of something there is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A number of things, exact whatever its size.
    Whole(u64),
    /// An amount.
    Real(f64),
}

impl Sample {
    /// A value that stands for itself.
    pub fn new(metric: &'static Metric, value: impl Into<Value>) -> Self {
        Self {
            metric,
            label: None,
            value: value.into(),
        }
    }

    /// The same with a label.
    #[must_use]
    pub fn labelled(mut self, name: &'static str, value: impl ToString) -> Self {
        self.label = Some((name, value.to_string()));
        self
    }
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Whole(value.into())
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

/// The page of all samples, by metric: the format wants the values of one metric together.
pub(super) fn render(mut samples: Vec<Sample>) -> String {
    samples.sort_by_key(|sample| sample.metric.name);
    let mut page = String::with_capacity(samples.len() * 160);
    let mut last = "";
    for Sample {
        metric,
        label,
        value,
    } in &samples
    {
        // Writing to a text cannot fail.
        if metric.name != last {
            let kind = match metric.kind {
                MetricKind::Counter => "counter",
                MetricKind::Gauge => "gauge",
                _ => "untyped",
            };
            let help = escaped(metric.help, false);
            let _ = write!(page, "# HELP {0} {help}\n# TYPE {0} {kind}\n", metric.name);
            last = metric.name;
        }
        page.push_str(metric.name);
        if let Some((name, value)) = label {
            let _ = write!(page, "{{{name}=\"{}\"}}", escaped(value, true));
        }
        let _ = match value {
            Value::Whole(value) => writeln!(page, " {value}"),
            Value::Real(value) => writeln!(page, " {value}"),
        };
    }
    page
}

fn escaped(text: &str, quoted: bool) -> String {
    let text = text.replace('\\', r"\\").replace('\n', r"\n");
    if quoted {
        text.replace('"', "\\\"")
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static PAGES: Metric = Metric::new("b_pages", MetricKind::Gauge, "Pages\nby size \\.");
    static READS: Metric = Metric::new("a_reads_total", MetricKind::Counter, "Reads.");

    #[test]
    fn values_of_one_metric_stand_together_under_its_help() {
        let page = render(vec![
            Sample::new(&PAGES, 1).labelled("stride", 64),
            Sample::new(&READS, u64::MAX),
            Sample::new(&PAGES, 0.25).labelled("stride", "a\"b\\c\n"),
        ]);
        assert_eq!(
            page,
            "# HELP a_reads_total Reads.\n\
             # TYPE a_reads_total counter\n\
             a_reads_total 18446744073709551615\n\
             # HELP b_pages Pages\\nby size \\\\.\n\
             # TYPE b_pages gauge\n\
             b_pages{stride=\"64\"} 1\n\
             b_pages{stride=\"a\\\"b\\\\c\\n\"} 0.25\n"
        );
    }
}
