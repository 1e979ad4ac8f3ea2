//! Plots, as SVG that reads on light and dark pages.

use std::fmt::Write as _;

use super::markdown::figure;
use super::{Axis, Panel, Role, Row};

const WIDTH: f64 = 860.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 40.0;
const PLOT_WIDTH: f64 = 520.0;
const PLOT_HEIGHT: f64 = 300.0;
const BAR: f64 = 16.0;
const LABELS: f64 = 330.0;

/// Colours of contestants in the order of their first appearance; told apart by most who are colour-blind (Okabe and Ito).
const COLOURS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c8c8c", "#7a5195",
];

/// The plot of a panel.
pub(crate) fn plot(panel: &Panel) -> String {
    match panel.axis {
        Axis::Numbers(axis) => lines(panel, axis),
        Axis::Names(_) => bars(panel),
    }
}

/// One line for each contestant over logarithmic axes, with the spread as a thin line at each point.
fn lines(panel: &Panel, axis: &str) -> String {
    let rows = || panel.cases.iter().flat_map(|case| &case.rows);
    let mut names: Vec<&str> = Vec::new();
    for row in rows() {
        if !names.contains(&&*row.contestant) {
            names.push(&row.contestant);
        }
    }
    let numbers = panel.cases.iter().filter_map(|case| case.number);
    let x = Scale::over(numbers.collect(), LEFT, LEFT + PLOT_WIDTH);
    let values = rows().flat_map(|row| [row.least, row.most]);
    let y = Scale::over(values.collect(), TOP + PLOT_HEIGHT, TOP);
    let height = TOP + PLOT_HEIGHT + 60.0;
    let mut svg = open(
        height,
        &format!("{} ({})", panel.title, panel.measure.unit()),
    );
    for tick in y.ticks() {
        let at = y.at(tick);
        let _ = write!(
            svg,
            r#"<line class="grid" x1="{LEFT}" x2="{}" y1="{at:.1}" y2="{at:.1}"/><text x="{}" y="{:.1}" text-anchor="end">{}</text>"#,
            LEFT + PLOT_WIDTH,
            LEFT - 8.0,
            at + 4.0,
            short(tick)
        );
    }
    let bottom = TOP + PLOT_HEIGHT;
    for case in &panel.cases {
        let Some(number) = case.number else { continue };
        let at = x.at(number);
        let _ = write!(
            svg,
            r#"<line class="grid" x1="{at:.1}" x2="{at:.1}" y1="{TOP}" y2="{bottom}"/><text x="{at:.1}" y="{}" text-anchor="middle">{}</text>"#,
            bottom + 18.0,
            short(number)
        );
    }
    let _ = write!(
        svg,
        r#"<text x="{}" y="{}" text-anchor="middle">{}</text>"#,
        LEFT + PLOT_WIDTH / 2.0,
        bottom + 40.0,
        escaped(axis)
    );
    for (index, name) in names.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let mut path = String::new();
        for case in &panel.cases {
            let row = case.rows.iter().find(|row| row.contestant == *name);
            let (Some(number), Some(row)) = (case.number, row) else {
                continue;
            };
            let (across, up) = (x.at(number), y.at(row.median));
            let _ = write!(path, "{across:.1},{up:.1} ");
            let _ = write!(
                svg,
                r#"<line stroke="{colour}" x1="{across:.1}" x2="{across:.1}" y1="{:.1}" y2="{:.1}"/><circle fill="{colour}" cx="{across:.1}" cy="{up:.1}" r="3"/>"#,
                y.at(row.least),
                y.at(row.most)
            );
        }
        let at = TOP + 10.0 + index as f64 * 20.0;
        let legend = LEFT + PLOT_WIDTH + 20.0;
        let dashes = dashes(rows().find(|row| row.contestant == *name));
        let _ = write!(
            svg,
            r#"<polyline fill="none" stroke="{colour}" stroke-width="2"{dashes} points="{}"/><line stroke="{colour}" stroke-width="2"{dashes} x1="{legend}" x2="{}" y1="{at}" y2="{at}"/><text x="{}" y="{}">{}</text>"#,
            path.trim_end(),
            legend + 22.0,
            legend + 28.0,
            at + 4.0,
            escaped(name)
        );
        svg.push('\n');
    }
    svg + "</svg>\n"
}

/// Limits are dashed.
fn dashes(row: Option<&Row>) -> &'static str {
    match row {
        Some(row) if row.role == Role::Limit => r#" stroke-dasharray="5 4""#,
        _ => "",
    }
}

/// Bars from nought, grouped by case, with the spread as a thin line. Colours tell ours, limits and others apart.
fn bars(panel: &Panel) -> String {
    let rows = panel.cases.iter().flat_map(|case| &case.rows);
    let longest = rows.map(|row| row.median).fold(0.0, f64::max);
    let room = WIDTH - LABELS - 90.0;
    // What spreads far beyond all medians is cut, so that the others can be told apart.
    let length = |value: f64| match longest {
        longest if longest > 0.0 => (value / longest * room * 0.85).min(room),
        _ => 0.0,
    };
    let mut body = String::new();
    let mut at = TOP;
    for case in &panel.cases {
        let _ = write!(
            body,
            r#"<text class="case" x="8" y="{:.1}">{}</text>"#,
            at + 12.0,
            escaped(&case.name)
        );
        at += 20.0;
        for row in &case.rows {
            let colour = match row.role {
                Role::Ours => "#0072b2",
                Role::Limit => "#a0a0a0",
                Role::Peer => "#d55e00",
            };
            let middle = at + BAR / 2.0;
            let [least, median, most] = [row.least, row.median, row.most].map(length);
            let _ = write!(
                body,
                r#"<text x="{}" y="{:.1}" text-anchor="end">{}</text><rect fill="{colour}" x="{LABELS}" y="{at:.1}" width="{median:.1}" height="{}"/><line class="spread" x1="{:.1}" x2="{:.1}" y1="{middle:.1}" y2="{middle:.1}"/><text x="{:.1}" y="{:.1}">{}</text>"#,
                LABELS - 8.0,
                middle + 4.0,
                escaped(&row.contestant),
                BAR - 3.0,
                LABELS + least,
                LABELS + most,
                LABELS + most + 6.0,
                middle + 4.0,
                figure(row.median)
            );
            body.push('\n');
            at += BAR;
        }
        at += 12.0;
    }
    let title = format!("{} ({})", panel.title, panel.measure.unit());
    open(at, &title) + &body + "</svg>\n"
}

fn open(height: f64, title: &str) -> String {
    let title = escaped(title);
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0}" font-family="sans-serif" font-size="12">
<title>{title}</title>
<style>text{{fill:#333}}.title,.case{{font-weight:bold}}.grid{{stroke:#999;stroke-opacity:.35}}.spread{{stroke:#333;stroke-width:1.5}}@media(prefers-color-scheme:dark){{text{{fill:#ddd}}.spread{{stroke:#ddd}}}}</style>
<text class="title" x="8" y="20" font-size="14">{title}</text>
"##
    )
}

/// A logarithmic axis.
struct Scale {
    least: f64,
    most: f64,
    from: f64,
    to: f64,
}

impl Scale {
    /// An axis that has room for all these values; those that are not positive have no place on it and are put at its end.
    fn over(values: Vec<f64>, from: f64, to: f64) -> Self {
        let positive = || values.iter().copied().filter(|value| *value > 0.0);
        let least = positive().fold(f64::INFINITY, f64::min);
        let most = positive().fold(0.0, f64::max);
        let (least, most) = if most > 0.0 {
            (least, most)
        } else {
            (1.0, 1.0)
        };
        // An axis of one value has it in the middle.
        let slack = if most / least < 1.01 { 2.0 } else { 1.0 };
        Self {
            least: least / slack,
            most: most * slack,
            from,
            to,
        }
    }

    fn at(&self, value: f64) -> f64 {
        let value = value.clamp(self.least, self.most);
        let share = (value / self.least).ln() / (self.most / self.least).ln();
        self.from + (self.to - self.from) * share
    }

    /// Round numbers within the axis: 1, 2 and 5 of each power of ten, or the powers alone if those would be many.
    fn ticks(&self) -> Vec<f64> {
        let decades = (self.most / self.least).log10();
        let steps: &[f64] = if decades > 3.0 {
            &[1.0]
        } else {
            &[1.0, 2.0, 5.0]
        };
        let first = self.least.log10().floor() as i32;
        let last = self.most.log10().ceil() as i32;
        let all =
            (first..=last).flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
        all.filter(|tick| (self.least..=self.most).contains(tick))
            .collect()
    }
}

/// A number as it stands at an axis.
fn short(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{}M", trimmed(value / 1e6)),
        value if value >= 1e4 => format!("{}k", trimmed(value / 1e3)),
        value => trimmed(value),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// The elements of an SVG text, in order, if each that is opened is closed: what a reader of XML insists on.
#[cfg(test)]
fn elements(svg: &str) -> std::collections::BTreeSet<String> {
    let mut open = Vec::new();
    let mut all = std::collections::BTreeSet::new();
    for part in svg.split('<').skip(1) {
        let (tag, text) = part.split_once('>').expect("the end of a tag");
        assert!(!text.contains('>'), "an unescaped sign in {text:?}");
        let name = tag.split([' ', '/']).find(|word| !word.is_empty());
        let name = name.expect("a name").to_owned();
        assert!(
            tag.matches('"').count().is_multiple_of(2),
            "quotes in {tag}"
        );
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "closed in order");
        } else {
            all.insert(name.clone());
            if !tag.ends_with('/') {
                open.push(name);
            }
        }
    }
    assert!(open.is_empty(), "left open: {open:?}");
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::panel;

    #[test]
    fn a_plot_of_numbers_has_a_line_for_each_contestant() {
        let mut panel = panel();
        panel.title = "A <copy> & \"more\"".into();
        let svg = plot(&panel);
        assert!(elements(&svg).contains("polyline"), "{svg}");
        assert_eq!(svg.matches("<polyline").count(), 3);
        assert_eq!(
            svg.matches("stroke-dasharray").count(),
            2 * 2,
            "limits are dashed"
        );
        assert!(svg.contains("A &lt;copy&gt; &amp; &quot;more&quot; (GB/s)"));
    }

    #[test]
    fn a_plot_of_names_has_a_bar_for_each_row() {
        let mut panel = panel();
        panel.axis = Axis::Names("way");
        let svg = plot(&panel);
        assert!(elements(&svg).contains("rect"));
        assert_eq!(svg.matches("<rect").count(), 6);
    }

    #[test]
    fn plots_hold_with_nothing_or_nought_to_show() {
        let mut panel = panel();
        for row in panel.cases.iter_mut().flat_map(|case| &mut case.rows) {
            (row.least, row.median, row.most) = (0.0, 0.0, 0.0);
        }
        assert!(!plot(&panel).contains("NaN"));
        panel.axis = Axis::Names("way");
        assert!(!plot(&panel).contains("NaN"));
        panel.cases.clear();
        elements(&plot(&panel));
        panel.axis = Axis::Numbers("bytes");
        assert!(!plot(&panel).contains("NaN"));
    }

    #[test]
    fn an_axis_has_its_ends_at_its_ends_and_round_ticks() {
        let axis = Scale::over(vec![10.0, 1000.0], 0.0, 100.0);
        assert_eq!(
            [10.0, 100.0, 1000.0].map(|value| axis.at(value)),
            [0.0, 50.0, 100.0]
        );
        assert_eq!(
            axis.ticks(),
            [10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0]
        );
        assert_eq!(Scale::over(vec![5.0], 0.0, 100.0).at(5.0).round(), 50.0);
        assert_eq!(
            [12_345_678.0, 20_000.0, 1024.0, 0.05].map(short),
            ["12.346M", "20k", "1024", "0.05"]
        );
    }
}
