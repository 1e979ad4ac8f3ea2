//! What commands print on standard output.

use std::io::{self, BufWriter, StdoutLock, Write};

use serde::Serialize;

/// Standard output, buffered; flush it, as an error of the last bytes would be lost otherwise.
pub(crate) fn stdout() -> BufWriter<StdoutLock<'static>> {
    BufWriter::with_capacity(64 << 10, io::stdout().lock())
}

/// Prints a value as indented JSON.
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    let mut out = stdout();
    writeln!(out, "{text}")?;
    out.flush()?;
    Ok(())
}

/// A number of things by name.
pub(crate) fn counted(count: u64, name: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {name}{plural}")
}

/// Rows under a heading, in columns as wide as what they hold.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<bool>,
}

impl Table {
    /// A table with this heading; a column whose name begins with `>` is aligned to the right.
    pub(crate) fn new<const N: usize>(heading: [&str; N]) -> Self {
        let names = heading.map(|name| name.trim_start_matches('>').to_owned());
        Self {
            rows: vec![names.into()],
            right: heading.map(|name| name.starts_with('>')).into(),
        }
    }

    /// Adds a row.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    /// Writes it; each line after `indent`.
    pub(crate) fn write(&self, out: &mut impl Write, indent: &str) -> io::Result<()> {
        let widths: Vec<usize> = (0..self.right.len())
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column));
                cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, width), right) in row.iter().zip(&widths).zip(&self.right) {
                let width = *width;
                if *right {
                    line.push_str(&format!("{cell:>width$}  "));
                } else {
                    line.push_str(&format!("{cell:<width$}  "));
                }
            }
            writeln!(out, "{indent}{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_they_hold_and_lines_end_with_it() {
        let mut table = Table::new(["NAME", ">SIZE", "WHY"]);
        table.row(["long name".into(), "7".into(), String::new()]);
        table.row(["é".into(), "12345".into(), "x".into()]);
        let mut text = Vec::new();
        table.write(&mut text, "  ").unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "  NAME        SIZE  WHY\n  long name      7\n  é          12345  x\n"
        );
    }
}
