use std::fmt;

use super::Check;

/// One thing that a plugin does not withstand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The check that found it.
    pub check: Check,
    /// The plugin's name; empty if it concerns the package.
    pub plugin: String,
    /// Where: the name of a hook, `factory`, `destructor` or `registration`.
    pub place: String,
    /// What happened, what was expected, and what to do.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            check,
            plugin,
            place,
            what,
        } = self;
        write!(f, "{}: ", check.name())?;
        if !plugin.is_empty() {
            write!(f, "plugin `{plugin}`: ")?;
        }
        write!(f, "{place} {what}")
    }
}

/// What the checks found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Report {
    violations: Vec<Violation>,
}

impl Report {
    pub(super) fn of(violations: Vec<Violation>) -> Self {
        Self { violations }
    }

    /// Everything that was found.
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// Whether nothing was found.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }

    /// Fails the test that calls it unless the report is clean.
    ///
    /// # Panics
    /// With the report as the message, if something was found.
    pub fn assert(&self) {
        assert!(self.is_clean(), "{self}");
    }
}

impl FromIterator<Self> for Report {
    fn from_iter<T: IntoIterator<Item = Self>>(reports: T) -> Self {
        Self::of(
            reports
                .into_iter()
                .flat_map(|report| report.violations)
                .collect(),
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_clean() {
            return f.write_str("the plugins keep their side of the contract");
        }
        writeln!(f, "{} violations of the contract", self.violations.len())?;
        self.violations
            .iter()
            .try_for_each(|violation| writeln!(f, "  {violation}"))
    }
}
