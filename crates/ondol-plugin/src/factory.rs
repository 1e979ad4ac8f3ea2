use std::fmt;

use crate::HandlerPlugin;

type Build = fn(&FactoryContext<'_>) -> anyhow::Result<Option<Box<dyn HandlerPlugin>>>;

/// How a handler plugin is made. Const data: no code of a plugin runs before `main`.
///
/// Submit it with [`inventory::submit!`](crate::inventory::submit).
#[derive(Clone, Copy)]
pub struct HandlerPluginFactory {
    name: &'static str,
    package: Package,
    build: Build,
}

/// The crate that submits a factory; make it with [`package!`](crate::package).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Package {
    /// The crate's name.
    pub name: &'static str,
    /// The crate's version.
    pub version: &'static str,
}

/// What a factory may use while it builds a plugin.
#[non_exhaustive]
#[derive(Clone, Copy)]
pub struct FactoryContext<'a> {
    env: &'a dyn Fn(&str) -> Option<String>,
}

impl HandlerPluginFactory {
    /// A factory of the plugin `name`, which must be unique among the plugins of a process; by custom in
    /// lower case with dashes. `build` returns `None` to decline, as a plugin does that is not configured.
    pub const fn new(name: &'static str, package: Package, build: Build) -> Self {
        Self {
            name,
            package,
            build,
        }
    }

    /// The plugin's name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The crate that submitted this factory.
    pub const fn package(&self) -> Package {
        self.package
    }

    /// Builds the plugin.
    ///
    /// # Errors
    /// What the plugin's own code reports.
    pub fn build(
        &self,
        context: &FactoryContext<'_>,
    ) -> anyhow::Result<Option<Box<dyn HandlerPlugin>>> {
        (self.build)(context)
    }
}

impl fmt::Debug for HandlerPluginFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerPluginFactory")
            .field("name", &self.name)
            .field("package", &self.package)
            .finish_non_exhaustive()
    }
}

impl<'a> FactoryContext<'a> {
    /// A context whose environment is `env`.
    pub fn new(env: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self { env }
    }

    /// The environment variable `name`; `None` if it is unset, empty or blank.
    pub fn var(&self, name: &str) -> Option<String> {
        (self.env)(name).filter(|value| !value.trim().is_empty())
    }
}

impl fmt::Debug for FactoryContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FactoryContext").finish_non_exhaustive()
    }
}

/// The [`Package`] of the crate that this is written in.
#[macro_export]
macro_rules! package {
    () => {
        $crate::Package {
            name: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
        }
    };
}

inventory::collect!(HandlerPluginFactory);
