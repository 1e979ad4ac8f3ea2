use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::{AdapterConfig, ConfigClass, L2Adapter};
use crate::{Package, inventory};

type Open = fn(AdapterConfig, &OpenContext<'_>) -> anyhow::Result<Box<dyn L2Adapter>>;

/// Opens an adapter of another type, for one that wraps it.
pub type OpenInner<'a> = dyn Fn(&Map<String, Value>) -> anyhow::Result<Box<dyn L2Adapter>> + 'a;

/// How a storage backend is made. Const data: no code of a plugin runs before `main`.
///
/// It is found by its type (`{"type":"fs"}`), or as `{"type":"plugin","module_path":…,"class_name":…}`.
///
/// ```
/// use ondol_plugin::l2::{AdapterConfig, L2Adapter, L2AdapterFactory, OpenContext, Parameter};
/// use ondol_plugin::{inventory, package};
///
/// # struct NullAdapter;
/// # fn open(_: AdapterConfig, _: &OpenContext<'_>) -> anyhow::Result<Box<dyn L2Adapter>> { anyhow::bail!("…") }
/// #[derive(serde::Deserialize)]
/// struct NullConfig {
///     size: u64,
/// }
///
/// inventory::submit! {
///     L2AdapterFactory::new("null", module_path!(), "NullAdapter", package!(), open)
///         .config::<NullConfig>("NullConfig")
///         .parameters(&[Parameter::required("size", "how much it forgets, in bytes")])
/// }
/// ```
#[derive(Clone, Copy)]
pub struct L2AdapterFactory {
    type_name: &'static str,
    aliases: &'static [&'static str],
    module_path: &'static str,
    class_name: &'static str,
    package: Package,
    config: Option<ConfigClass>,
    more_configs: &'static [ConfigClass],
    parameters: &'static [Parameter],
    verifies: bool,
    open: Open,
}

/// A parameter of a backend, for those who configure it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// What stands for it if it is not given; `None` if it must be.
    pub default: Option<&'static str>,
    /// What it means, with its unit.
    pub summary: &'static str,
}

impl Parameter {
    /// A parameter that must be given.
    pub const fn required(name: &'static str, summary: &'static str) -> Self {
        Self {
            name,
            default: None,
            summary,
        }
    }

    /// A parameter with a default, in words.
    pub const fn optional(
        name: &'static str,
        default: &'static str,
        summary: &'static str,
    ) -> Self {
        Self {
            name,
            default: Some(default),
            summary,
        }
    }
}

impl L2AdapterFactory {
    /// A factory of adapters of the type `type_name`, whose Rust type is `class_name` in `module_path`.
    pub const fn new(
        type_name: &'static str,
        module_path: &'static str,
        class_name: &'static str,
        package: Package,
        open: Open,
    ) -> Self {
        Self {
            type_name,
            aliases: &[],
            module_path,
            class_name,
            package,
            config: None,
            more_configs: &[],
            parameters: &[],
            verifies: false,
            open,
        }
    }

    /// Further types that mean this adapter.
    pub const fn aliases(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    /// The configuration class that parameters are read into, if the configuration names no other.
    pub const fn config<C>(mut self, name: &'static str) -> Self
    where
        C: serde::de::DeserializeOwned + std::any::Any + Send + Sync,
    {
        self.config = Some(ConfigClass::new::<C>(name));
        self
    }

    /// Further configuration classes that a configuration may name.
    pub const fn more_configs(mut self, classes: &'static [ConfigClass]) -> Self {
        self.more_configs = classes;
        self
    }

    /// What may be configured.
    pub const fn parameters(mut self, parameters: &'static [Parameter]) -> Self {
        self.parameters = parameters;
        self
    }

    /// Says that the adapter checks by itself that what it gives back is what was stored, so that nobody else need.
    pub const fn verifies(mut self) -> Self {
        self.verifies = true;
        self
    }

    /// Its type.
    pub const fn type_name(&self) -> &'static str {
        self.type_name
    }

    /// Further types that mean it.
    pub const fn alias_names(&self) -> &'static [&'static str] {
        self.aliases
    }

    /// The module of its Rust type.
    pub const fn module_path(&self) -> &'static str {
        self.module_path
    }

    /// The name of its Rust type.
    pub const fn class_name(&self) -> &'static str {
        self.class_name
    }

    /// The crate that submitted it.
    pub const fn package(&self) -> Package {
        self.package
    }

    /// The configuration class that it names itself.
    pub const fn own_config(&self) -> Option<ConfigClass> {
        self.config
    }

    /// Every configuration class that it has, its own first.
    pub fn configs(&self) -> impl Iterator<Item = ConfigClass> {
        self.config
            .into_iter()
            .chain(self.more_configs.iter().copied())
    }

    /// What may be configured.
    pub const fn parameter_list(&self) -> &'static [Parameter] {
        self.parameters
    }

    /// Whether it checks what it gives back.
    pub const fn does_verify(&self) -> bool {
        self.verifies
    }

    /// Opens an adapter.
    ///
    /// # Errors
    /// What the adapter's own code reports.
    pub fn open(
        &self,
        config: AdapterConfig,
        context: &OpenContext<'_>,
    ) -> anyhow::Result<Box<dyn L2Adapter>> {
        (self.open)(config, context)
    }
}

impl fmt::Debug for L2AdapterFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("L2AdapterFactory")
            .field("type_name", &self.type_name)
            .field("module_path", &self.module_path)
            .field("class_name", &self.class_name)
            .field("package", &self.package)
            .finish_non_exhaustive()
    }
}

/// A file of the pool as it is mapped in this process, for those who register memory with a device or a ring. It stays mapped at
/// this address until the adapter is closed; objects and pages lie in such mappings, or in memory of the core's own.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct L1Mapping {
    /// The address of its first byte.
    pub address: usize,
    /// Its length in bytes.
    pub length: usize,
    /// The file.
    pub file: Arc<OwnedFd>,
}

impl L1Mapping {
    /// A mapping of `length` bytes of `file` at `address`.
    pub fn new(address: usize, length: usize, file: Arc<OwnedFd>) -> Self {
        Self {
            address,
            length,
            file,
        }
    }
}

/// What an adapter or a connector may use when it is opened.
#[non_exhaustive]
#[derive(Clone, Copy)]
pub struct OpenContext<'a> {
    name: &'a str,
    mappings: &'a [L1Mapping],
    open_inner: Option<&'a OpenInner<'a>>,
}

impl<'a> OpenContext<'a> {
    /// The context of a backend called `name`.
    pub fn new(name: &'a str) -> Self {
        Self {
            name,
            mappings: &[],
            open_inner: None,
        }
    }

    /// With these mappings of the pool.
    pub fn with_mappings(mut self, mappings: &'a [L1Mapping]) -> Self {
        self.mappings = mappings;
        self
    }

    /// With a way to open other adapters.
    pub fn with_inner(mut self, open_inner: &'a OpenInner<'a>) -> Self {
        self.open_inner = Some(open_inner);
        self
    }

    /// The name of this backend in logs and figures, such as `fs#0`.
    pub fn name(&self) -> &str {
        self.name
    }

    /// How the pool is mapped; empty where there is none, as in a check.
    pub fn mappings(&self) -> &[L1Mapping] {
        self.mappings
    }

    /// Opens the adapter that this one wraps, from its own JSON.
    ///
    /// # Errors
    /// As for any adapter that is configured.
    pub fn open_inner(&self, config: &Map<String, Value>) -> anyhow::Result<Box<dyn L2Adapter>> {
        match self.open_inner {
            Some(open) => open(config),
            None => anyhow::bail!("no other adapter can be opened here"),
        }
    }
}

impl fmt::Debug for OpenContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenContext")
            .field("name", &self.name)
            .field("mappings", &self.mappings.len())
            .finish_non_exhaustive()
    }
}

inventory::collect!(L2AdapterFactory);
