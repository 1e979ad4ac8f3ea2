use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use ondol_plugin::inventory;
use ondol_plugin::l2::{
    AdapterConfig, ConfigClass, L2Adapter, L2AdapterFactory, OpenContext, WorkerAdapter,
};
use serde_json::{Map, Value};

use super::MapBackend;

/// How long a task may take before it counts as one that never ends; no check measures speed.
const PATIENCE: Duration = Duration::from_secs(30);

type Open = dyn Fn(&Path) -> anyhow::Result<Box<dyn L2Adapter>> + Send + Sync;

/// What a backend can, so that the suite asks for no more. Everything but persistence and eviction is expected unless it is
/// taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// What was stored is there again when the backend is opened with the same directory.
    pub persists: bool,
    /// Lookups tell stored lengths, and loads take pages that are longer than what is stored.
    pub knows_sizes: bool,
    /// `list_keys` works.
    pub lists: bool,
    /// `delete` deletes.
    pub deletes: bool,
    /// What is there already is not transferred again, and counts 0 bytes.
    pub skips_duplicates: bool,
    /// Usage counts exactly the stored lengths; without it, at least them.
    pub exact_usage: bool,
    /// Usage is complete some time after the start; without it, it counts what was stored, found or loaded since.
    pub completes_usage: bool,
    /// A batch without a key may be refused with an error.
    pub refuses_empty_batches: bool,
    /// It makes room by itself: it is opened with a capacity of at most 64 MiB.
    pub evicts: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            persists: false,
            knows_sizes: true,
            lists: true,
            deletes: true,
            skips_duplicates: true,
            exact_usage: true,
            completes_usage: true,
            refuses_empty_batches: false,
            evicts: false,
        }
    }
}

impl Capabilities {
    /// With persistence.
    #[must_use]
    pub const fn persisting(mut self) -> Self {
        self.persists = true;
        self
    }

    /// With eviction.
    #[must_use]
    pub const fn evicting(mut self) -> Self {
        self.evicts = true;
        self
    }

    /// Without sizes.
    #[must_use]
    pub const fn without_sizes(mut self) -> Self {
        self.knows_sizes = false;
        self
    }

    /// Without `list_keys`.
    #[must_use]
    pub const fn without_lists(mut self) -> Self {
        self.lists = false;
        self
    }

    /// Without `delete`.
    #[must_use]
    pub const fn without_deletes(mut self) -> Self {
        self.deletes = false;
        self
    }

    /// With usage that is more than the stored lengths.
    #[must_use]
    pub const fn with_overhead(mut self) -> Self {
        self.exact_usage = false;
        self
    }

    /// With usage that counts only what was stored, found or loaded since the start.
    #[must_use]
    pub const fn learning_usage(mut self) -> Self {
        self.completes_usage = false;
        self
    }

    /// Storing again what is there.
    #[must_use]
    pub const fn storing_duplicates(mut self) -> Self {
        self.skips_duplicates = false;
        self
    }

    /// With batches that must not be empty.
    #[must_use]
    pub const fn refusing_empty_batches(mut self) -> Self {
        self.refuses_empty_batches = true;
        self
    }
}

type Config = dyn Fn(&Path) -> Value + Send + Sync;

/// An adapter that a package registered, and the JSON that opens it.
#[derive(Clone)]
pub(super) struct Registration {
    package: String,
    config: Arc<Config>,
}

/// An adapter under check: how it is opened, and what it can.
#[derive(Clone)]
pub struct Subject {
    pub(super) open: Arc<Open>,
    pub(super) registration: Option<Registration>,
    pub(super) capabilities: Capabilities,
    pub(super) patience: Duration,
}

impl Subject {
    /// An adapter that this opens. The directory is empty at first; opening it there again means the same storage.
    pub fn opened_by(
        open: impl Fn(&Path) -> anyhow::Result<Box<dyn L2Adapter>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            open: Arc::new(open),
            registration: None,
            capabilities: Capabilities::default(),
            patience: PATIENCE,
        }
    }

    /// An adapter that a package registered in this process, opened from the JSON that `config` makes for a directory: its
    /// `type`, and its parameters. An `inner` adapter may be any that is linked, or `{"type":"map"}`, which is a map.
    pub fn linked(package: &str, config: impl Fn(&Path) -> Value + Send + Sync + 'static) -> Self {
        let registration = Registration {
            package: package.to_owned(),
            config: Arc::new(config),
        };
        let subject = Self::opened_by({
            let registration = registration.clone();
            move |dir| {
                let config = registration.config(dir)?;
                open(registration.factory(&config)?, &config)
            }
        });
        Self {
            registration: Some(registration),
            ..subject
        }
    }

    /// The same with these capabilities.
    #[must_use]
    pub fn with_capabilities(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = capabilities;
        self
    }

    /// The same with another time after which a task counts as one that never ends; half a minute by default.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }
}

impl Registration {
    /// The JSON for a directory.
    pub(super) fn config(&self, dir: &Path) -> anyhow::Result<Map<String, Value>> {
        match (self.config)(dir) {
            Value::Object(config) => Ok(config),
            other => anyhow::bail!("the configuration is {other}; expected a JSON object"),
        }
    }

    /// The factory that a configuration means.
    pub(super) fn factory(
        &self,
        config: &Map<String, Value>,
    ) -> anyhow::Result<&'static L2AdapterFactory> {
        factory(config, |factory| factory.package().name == self.package)
    }
}

fn factory(
    config: &Map<String, Value>,
    is_wanted: impl Fn(&L2AdapterFactory) -> bool,
) -> anyhow::Result<&'static L2AdapterFactory> {
    let name = config.get("type").and_then(Value::as_str);
    let name = name.context("the configuration has no `type`")?;
    let mut linked = inventory::iter::<L2AdapterFactory>.into_iter();
    let found = linked.find(|factory| {
        is_wanted(factory) && (factory.type_name() == name || factory.alias_names().contains(&name))
    });
    found.with_context(|| {
        format!(
            "no factory of the type {name:?} is registered; submit one with inventory::submit! and package!(), and name \
             the library in the test so that it is linked"
        )
    })
}

pub(super) fn open(
    factory: &L2AdapterFactory,
    config: &Map<String, Value>,
) -> anyhow::Result<Box<dyn L2Adapter>> {
    let mut parameters = config.clone();
    parameters.remove("type");
    let config = match factory.own_config() {
        None => AdapterConfig::raw(parameters),
        Some(class) => ConfigClass::read(&class, parameters)?,
    };
    let context = OpenContext::new("conformance").with_inner(&open_inner);
    factory.open(config, &context)
}

fn open_inner(config: &Map<String, Value>) -> anyhow::Result<Box<dyn L2Adapter>> {
    if config.get("type").and_then(Value::as_str) == Some("map") {
        return Ok(Box::new(WorkerAdapter::new("map", 2, MapBackend::new())?));
    }
    open(factory(config, |_| true)?, config)
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("capabilities", &self.capabilities)
            .finish_non_exhaustive()
    }
}
