use std::fmt;

use serde::Serialize;

/// What became of one linked plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PluginReport {
    /// The plugin's name.
    pub name: &'static str,
    /// The package that submitted it.
    pub package: &'static str,
    /// That package's version.
    pub version: &'static str,
    /// Where it stands.
    pub state: PluginState,
    /// Why it stands there, unless it is simply loaded.
    pub reason: Option<String>,
    /// The hooks it asked for.
    pub hooks: Vec<&'static str>,
    /// Those of its hooks that run on its lane.
    pub deferred: Vec<&'static str>,
    /// Errors that its hooks returned.
    pub errors: u64,
    /// Panics of its hooks.
    pub panics: u64,
    /// Calls that outlasted the budget.
    pub overruns: u64,
    /// Batches that did not reach it, its lane being full or closed.
    pub dropped: u64,
}

/// Where a plugin stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum PluginState {
    /// In use.
    Loaded,
    /// Not in the allowlist.
    Skipped,
    /// Its factory declined, as a plugin does that is not configured.
    Declined,
    /// Its factory, or its answer to which hooks it wants, erred or panicked.
    Failed,
    /// Another plugin of the same name came first.
    Duplicate,
    /// Its registration is unusable.
    Rejected,
    /// A hook panicked; it is never called again.
    Panicked,
    /// It overran, erred or hung too often; it is not called any more.
    Quarantined,
}

impl PluginState {
    /// The state's name, as it stands in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Loaded => "loaded",
            Self::Skipped => "skipped",
            Self::Declined => "declined",
            Self::Failed => "failed",
            Self::Duplicate => "duplicate",
            Self::Rejected => "rejected",
            Self::Panicked => "panicked",
            Self::Quarantined => "quarantined",
        }
    }
}

impl fmt::Display for PluginState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
