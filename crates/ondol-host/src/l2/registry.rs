use std::collections::BTreeSet;
use std::fmt;
use std::sync::OnceLock;

use ondol_plugin::inventory;
use ondol_plugin::l2::{L2AdapterFactory, NativeConnectorFactory};

/// The storage adapters and native connectors that were linked into this process, in an order of their own.
#[derive(Clone, Debug)]
pub struct L2Registry {
    adapters: Vec<&'static L2AdapterFactory>,
    connectors: Vec<&'static NativeConnectorFactory>,
}

/// What a [registry](L2Registry) holds, in words for a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Linked(String);

impl L2Registry {
    /// What was linked into this process; read once. Call it after `main` has started.
    pub fn global() -> &'static Self {
        static GLOBAL: OnceLock<L2Registry> = OnceLock::new();
        GLOBAL.get_or_init(|| {
            Self::of(
                inventory::iter::<L2AdapterFactory>,
                inventory::iter::<NativeConnectorFactory>,
            )
        })
    }

    /// A registry of these factories only, whatever else is linked in.
    pub fn of(
        adapters: impl IntoIterator<Item = &'static L2AdapterFactory>,
        connectors: impl IntoIterator<Item = &'static NativeConnectorFactory>,
    ) -> Self {
        let mut adapters: Vec<_> = adapters.into_iter().collect();
        adapters.sort_by_key(|factory| (factory.type_name(), factory.package()));
        let mut connectors: Vec<_> = connectors.into_iter().collect();
        connectors.sort_by_key(|factory| {
            (
                factory.class_name(),
                factory.package(),
                factory.module_path(),
            )
        });
        Self {
            adapters,
            connectors,
        }
    }

    /// The adapters, ordered by type, package and version: never by the linker's whim.
    pub fn adapters(&self) -> &[&'static L2AdapterFactory] {
        &self.adapters
    }

    /// The native connectors, ordered by class, package and version.
    pub fn connectors(&self) -> &[&'static NativeConnectorFactory] {
        &self.connectors
    }

    /// The packages that submitted something.
    pub fn packages(&self) -> BTreeSet<&'static str> {
        let adapters = self.adapters.iter().map(|factory| factory.package().name);
        let connectors = self.connectors.iter().map(|factory| factory.package().name);
        adapters.chain(connectors).collect()
    }

    /// The adapter of a type: the first one that has this name, else the first one that has it as an alias.
    pub fn adapter_of_type(&self, name: &str) -> Option<&'static L2AdapterFactory> {
        let by_name = |factory: &&&L2AdapterFactory| factory.type_name() == name;
        let by_alias = |factory: &&&L2AdapterFactory| factory.alias_names().contains(&name);
        let mut named = self.adapters.iter().filter(by_name);
        let mut aliased = self.adapters.iter().filter(by_alias);
        let first = named.next().or_else(|| aliased.next())?;
        for other in named.chain(aliased) {
            let (used, unused) = (first.package(), other.package());
            tracing::warn!(
                type_name = name,
                used = format_args!("{} {}", used.name, used.version),
                unused = format_args!("{} {}", unused.name, unused.version),
                "several storage adapters go by this type; the first by type, package and version is used"
            );
        }
        Some(first)
    }

    /// Whether [`adapter_of_type`](Self::adapter_of_type) finds another adapter by the name of this one.
    pub fn is_shadowed(&self, factory: &L2AdapterFactory) -> bool {
        let mut adapters = self.adapters.iter();
        let first = adapters.find(|first| first.type_name() == factory.type_name());
        first.is_some_and(|first| !std::ptr::eq(*first, factory))
    }

    /// What is linked in, for a message.
    pub fn linked(&self) -> Linked {
        let adapters = self.adapters.iter().map(|factory| {
            let aliases = factory.alias_names();
            let also = if aliases.is_empty() {
                String::new()
            } else {
                format!(" (also {})", aliases.join(", "))
            };
            format!("{}{also}", factory.type_name())
        });
        let connectors = self
            .connectors
            .iter()
            .map(|factory| format!("{}::{}", factory.module_path(), factory.class_name()));
        let list = |mut names: Vec<String>| {
            names.dedup();
            if names.is_empty() {
                "none".to_owned()
            } else {
                names.join(", ")
            }
        };
        Linked(format!(
            "adapters linked into this program: {}; native connectors: {}",
            list(adapters.collect()),
            list(connectors.collect())
        ))
    }
}

impl fmt::Display for Linked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
