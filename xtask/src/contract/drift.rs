//! What differs between a committed contract file and the code, and how much it matters.

use std::fmt;

/// How much a difference matters to those who rely on the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What compiled and worked before still does.
    Minor,
    /// Something that was promised is gone or different.
    Major,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Minor => "minor",
            Self::Major => "major",
        })
    }
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    /// How much it matters.
    pub level: Level,
    /// What it is part of.
    pub item: String,
    /// The committed lines that are no longer so.
    pub removed: Vec<String>,
    /// The lines that stand in their place.
    pub added: Vec<String>,
}

impl Drift {
    /// A difference in `item`; empty text stands for nothing.
    pub fn new(level: Level, item: impl Into<String>, removed: &str, added: &str) -> Self {
        let lines = |text: &str| text.lines().map(str::to_owned).collect();
        Self {
            level,
            item: item.into(),
            removed: lines(removed),
            added: lines(added),
        }
    }
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.level, self.item)?;
        for line in &self.removed {
            write!(f, "\n    - {line}")?;
        }
        for line in &self.added {
            write!(f, "\n    + {line}")?;
        }
        Ok(())
    }
}

/// The greatest level of `drifts`; `None` if there is no drift.
pub fn level(drifts: &[Drift]) -> Option<Level> {
    drifts.iter().map(|drift| drift.level).max()
}

/// Compares two lists of lines, one promise each: a new line is minor, a line that is gone is major.
pub fn lines(item: &str, old: &str, new: &str) -> Vec<Drift> {
    let missing = |from: &str, other: &str| -> Vec<String> {
        let other: Vec<_> = other.lines().collect();
        let lines = from.lines().filter(|line| !other.contains(line));
        lines.map(str::to_owned).collect()
    };
    let removed = missing(old, new);
    let added = missing(new, old);
    if removed.is_empty() && added.is_empty() {
        return Vec::new();
    }
    let level = if removed.is_empty() {
        Level::Minor
    } else {
        Level::Major
    };
    vec![Drift {
        level,
        item: item.to_owned(),
        removed,
        added,
    }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_gone_is_major_and_a_new_one_minor() {
        let old = "counter a_total\ngauge b_bytes\n";
        assert!(lines("metrics", old, old).is_empty());
        let grown = lines(
            "metrics",
            old,
            "counter a_total\ncounter c_total\ngauge b_bytes\n",
        );
        assert_eq!(level(&grown), Some(Level::Minor));
        assert_eq!(grown[0].added, ["counter c_total"]);
        let changed = lines("metrics", old, "counter a_total\ncounter b_bytes\n");
        assert_eq!(level(&changed), Some(Level::Major));
        assert_eq!(
            (&changed[0].removed[..], &changed[0].added[..]),
            (
                &["gauge b_bytes".to_owned()][..],
                &["counter b_bytes".to_owned()][..]
            )
        );
    }
}
