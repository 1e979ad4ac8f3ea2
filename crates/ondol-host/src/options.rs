use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::Clock;

/// The environment variable that holds the allowlist.
pub const ALLOWLIST_VARIABLE: &str = "MARU_PLUGINS";

/// Which plugins may load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowlist(Option<BTreeSet<String>>);

/// Where plugins read their configuration from: the process's environment, or a test's.
#[derive(Clone)]
pub struct Environment(Arc<Lookup>);

type Lookup = dyn Fn(&str) -> Option<String> + Send + Sync;

/// How handler plugins are loaded and judged.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LoadOptions {
    /// Which plugins may load.
    pub allowlist: Allowlist,
    /// What factories read their configuration from.
    pub environment: Environment,
    /// How long an inline call may take; what takes longer is an overrun. `on_stage` has no budget.
    pub budget: Duration,
    /// So many overruns or errors of one hook in a row quarantine the plugin; 0 never does.
    pub quarantine_after: u32,
    /// An inline call that lasts longer hangs: its plugin is quarantined while the call is still in it.
    pub hang_after: Duration,
    /// The same for a deferred call, which nobody waits for.
    pub deferred_hang_after: Duration,
    /// How many batches wait in the lane of a deferred plugin before more are dropped.
    pub lane_capacity: usize,
    /// How long the end of [`HandlerPlugins`](crate::HandlerPlugins) waits for lanes, and then again for the
    /// destructors of plugins, before it leaves what hangs to itself.
    pub close_grace: Duration,
    /// What time is measured with.
    pub clock: Clock,
}

impl Allowlist {
    /// Every plugin may load.
    pub fn all() -> Self {
        Self(None)
    }

    /// Only these may load; with no name in the list none may.
    pub fn only<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Self {
        Self(Some(names.into_iter().map(Into::into).collect()))
    }

    /// Names separated by commas, trimmed. A list without a name admits all, as an unset variable does.
    pub fn parse(list: &str) -> Self {
        let names: BTreeSet<_> = list
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect();
        Self((!names.is_empty()).then_some(names))
    }

    /// Whether the plugin `name` may load.
    pub fn allows(&self, name: &str) -> bool {
        self.0.as_ref().is_none_or(|names| names.contains(name))
    }

    /// The names listed; none if all plugins may load.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flatten().map(String::as_str)
    }
}

impl Environment {
    /// The environment of this process.
    pub fn process() -> Self {
        Self(Arc::new(|name| {
            std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
        }))
    }

    /// These variables and no others.
    pub fn of<K: Into<String>, V: Into<String>>(
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let variables: HashMap<String, String> = variables
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        Self(Arc::new(move |name| variables.get(name).cloned()))
    }

    /// The value of the variable `name`.
    pub fn var(&self, name: &str) -> Option<String> {
        (self.0)(name)
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment").finish_non_exhaustive()
    }
}

impl LoadOptions {
    /// The defaults, with everything read from `environment`.
    pub fn new(environment: Environment) -> Self {
        Self {
            allowlist: Allowlist::parse(&environment.var(ALLOWLIST_VARIABLE).unwrap_or_default()),
            environment,
            budget: Duration::from_millis(50),
            quarantine_after: 3,
            hang_after: Duration::from_secs(1),
            deferred_hang_after: Duration::from_secs(10),
            lane_capacity: 1024,
            close_grace: Duration::from_secs(2),
            clock: Clock::system(),
        }
    }

    /// The defaults, with the allowlist and the plugins' configuration from the process's environment.
    pub fn from_env() -> Self {
        Self::new(Environment::process())
    }

    /// The same with another allowlist.
    #[must_use]
    pub fn with_allowlist(mut self, allowlist: Allowlist) -> Self {
        self.allowlist = allowlist;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blank_list_admits_all_and_names_are_trimmed() {
        for blank in ["", "   ", ",", " , ,"] {
            assert_eq!(Allowlist::parse(blank), Allowlist::all(), "{blank:?}");
        }
        assert_eq!(Allowlist::parse(" a ,b,, a"), Allowlist::only(["a", "b"]));
        assert!(!Allowlist::parse("a").allows("A"));
        assert!(!Allowlist::only(Vec::<String>::new()).allows("a"));
    }

    #[test]
    fn the_allowlist_comes_from_the_environment_given() {
        let options = LoadOptions::new(Environment::of([(ALLOWLIST_VARIABLE, "one, two")]));
        assert_eq!(
            options.allowlist.names().collect::<Vec<_>>(),
            ["one", "two"]
        );
        let none: [(&str, &str); 0] = [];
        assert_eq!(
            LoadOptions::new(Environment::of(none)).allowlist,
            Allowlist::all()
        );
    }
}
