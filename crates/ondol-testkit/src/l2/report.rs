use std::fmt;

use crate::apart::Complaint;

/// One thing that a storage backend does not keep of its contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The name of the check that found it.
    pub check: &'static str,
    /// Where: the name of a method, or of what is wrong.
    pub place: String,
    /// What happened, what was expected, and what to do.
    pub what: String,
}

impl Violation {
    pub(crate) fn of(check: &'static str, Complaint { place, what }: Complaint) -> Self {
        Self { check, place, what }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.check, self.place, self.what)
    }
}

/// What the checks found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Report {
    violations: Vec<Violation>,
}

impl Report {
    pub(crate) fn of(violation: Option<Violation>) -> Self {
        Self {
            violations: violation.into_iter().collect(),
        }
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
        let violations = reports.into_iter().flat_map(|report| report.violations);
        Self {
            violations: violations.collect(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_clean() {
            return f.write_str("the backend keeps its side of the contract");
        }
        writeln!(f, "{} violations of the contract", self.violations.len())?;
        self.violations
            .iter()
            .try_for_each(|violation| writeln!(f, "  {violation}"))
    }
}
