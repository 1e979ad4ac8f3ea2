use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use ondol_plugin::inventory;
use ondol_plugin::l2::{
    AdapterConfig, ConfigClass, NativeConnector, NativeConnectorFactory, OpenContext,
};
use serde_json::Value;

use super::Capabilities;

/// How long a request may take before it counts as one that never completes; no check measures speed.
const PATIENCE: Duration = Duration::from_secs(30);

type Open = dyn Fn(&Path) -> anyhow::Result<Box<dyn NativeConnector>> + Send + Sync;

/// A connector under check: how it is opened, and what it can.
#[derive(Clone)]
pub struct Subject {
    pub(super) open: Arc<Open>,
    pub(super) capabilities: Capabilities,
    pub(super) patience: Duration,
}

impl Subject {
    /// A connector that this opens. The directory is empty at first; opening it there again means the same storage.
    pub fn opened_by(
        open: impl Fn(&Path) -> anyhow::Result<Box<dyn NativeConnector>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            open: Arc::new(open),
            capabilities: Capabilities::default(),
            patience: PATIENCE,
        }
    }

    /// The connector `class_name` that a package registered in this process, opened with the parameters that `config` makes for
    /// a directory. It must be written in Rust.
    pub fn linked(
        package: &str,
        class_name: &str,
        config: impl Fn(&Path) -> Value + Send + Sync + 'static,
    ) -> Self {
        let (package, class_name) = (package.to_owned(), class_name.to_owned());
        Self::opened_by(move |dir| {
            let mut linked = inventory::iter::<NativeConnectorFactory>.into_iter();
            let factory = linked.find(|factory| {
                factory.package().name == package && factory.class_name() == class_name
            });
            let factory = factory.with_context(|| {
                format!(
                    "no connector {class_name:?} of package {package} is registered; submit one with \
                     inventory::submit! and package!(), and name the library in the test so that it is linked"
                )
            })?;
            let Value::Object(parameters) = config(dir) else {
                anyhow::bail!("the parameters are no JSON object");
            };
            let config = match factory.own_config() {
                None => AdapterConfig::raw(parameters),
                Some(class) => ConfigClass::read(&class, parameters)?,
            };
            factory.open(config, &OpenContext::new("conformance"))
        })
    }

    /// The same with these capabilities.
    #[must_use]
    pub fn with_capabilities(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = capabilities;
        self
    }

    /// The same with another time after which a request counts as one that never completes; half a minute by default.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("capabilities", &self.capabilities)
            .finish_non_exhaustive()
    }
}
