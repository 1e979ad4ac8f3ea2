use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ondol_plugin::{HandlerPluginFactory, inventory};

/// How long a call may take before it counts as one that never returns; no check measures speed.
const DEADLINE: Duration = Duration::from_secs(60);

/// The plugins under check, and what switches them on.
#[derive(Clone, Debug)]
pub struct Subject {
    pub(super) package: String,
    pub(super) factories: Vec<&'static HandlerPluginFactory>,
    pub(super) environment: Arc<HashMap<String, String>>,
    pub(super) deadline: Duration,
}

impl Subject {
    /// What the package registered in this process.
    pub fn linked(package: &str) -> Self {
        let own = inventory::iter::<HandlerPluginFactory>
            .into_iter()
            .filter(|factory| factory.package().name == package);
        Self::of(package, own)
    }

    /// These factories, of a package of this name.
    pub fn of(
        package: &str,
        factories: impl IntoIterator<Item = &'static HandlerPluginFactory>,
    ) -> Self {
        let mut factories: Vec<_> = factories.into_iter().collect();
        factories.sort_by_key(|factory| factory.name());
        Self {
            package: package.to_owned(),
            factories,
            environment: Arc::default(),
            deadline: DEADLINE,
        }
    }

    /// The same under these variables.
    #[must_use]
    pub fn with_environment<K: Into<String>, V: Into<String>>(
        mut self,
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let variables = variables
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()));
        self.environment = Arc::new(variables.collect());
        self
    }

    /// The same with another time after which a call counts as one that never returns; a minute by default.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }
}
