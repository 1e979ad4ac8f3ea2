use std::collections::BTreeSet;
use std::fmt;
use std::sync::OnceLock;

use ondol_plugin::{HandlerPluginFactory, inventory};

use crate::l2::L2Registry;

/// The factories of handler plugins that were linked into this process, in an order of their own.
#[derive(Clone, Debug)]
pub struct Registry {
    factories: Vec<&'static HandlerPluginFactory>,
    /// Packages that submitted something of another kind.
    other_packages: BTreeSet<&'static str>,
}

/// That the registry holds other packages than the build's features promise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct RegistryMismatch {
    /// The packages expected, sorted.
    pub expected: Vec<String>,
    /// The packages found, sorted.
    pub found: Vec<String>,
}

impl Registry {
    /// What was linked into this process; read once. Call it after `main` has started.
    pub fn global() -> &'static Self {
        static GLOBAL: OnceLock<Registry> = OnceLock::new();
        GLOBAL.get_or_init(|| {
            Self::of(inventory::iter::<HandlerPluginFactory>).with_backends(L2Registry::global())
        })
    }

    /// A registry of these factories only, whatever else is linked in.
    pub fn of(factories: impl IntoIterator<Item = &'static HandlerPluginFactory>) -> Self {
        let mut factories: Vec<_> = factories.into_iter().collect();
        factories.sort_by_key(|factory| (factory.name(), factory.package()));
        Self {
            factories,
            other_packages: BTreeSet::new(),
        }
    }

    /// This registry in a program that holds these storage backends as well, which
    /// [`verify_expected`](Self::verify_expected) counts.
    pub fn with_backends(mut self, backends: &L2Registry) -> Self {
        self.other_packages = backends.packages();
        self
    }

    /// The factories, ordered by name, package and version: never by the linker's whim.
    pub fn factories(&self) -> &[&'static HandlerPluginFactory] {
        &self.factories
    }

    /// Compares the packages that submitted something with those that the build was meant to hold.
    ///
    /// # Errors
    /// [`RegistryMismatch`], which prints both lists, if they differ as sets.
    pub fn verify_expected(&self, packages: &[&str]) -> Result<(), RegistryMismatch> {
        let expected: BTreeSet<_> = packages.iter().copied().collect();
        let mut found = self.other_packages.clone();
        found.extend(self.factories.iter().map(|factory| factory.package().name));
        if expected == found {
            return Ok(());
        }
        let owned = |names: BTreeSet<&str>| names.into_iter().map(str::to_owned).collect();
        Err(RegistryMismatch {
            expected: owned(expected),
            found: owned(found),
        })
    }
}

impl RegistryMismatch {
    /// Packages expected and not found.
    pub fn missing(&self) -> Vec<&str> {
        Self::difference(&self.expected, &self.found)
    }

    /// Packages found and not expected.
    pub fn unexpected(&self) -> Vec<&str> {
        Self::difference(&self.found, &self.expected)
    }

    fn difference<'a>(left: &'a [String], right: &[String]) -> Vec<&'a str> {
        left.iter()
            .filter(|name| !right.contains(name))
            .map(String::as_str)
            .collect()
    }
}

impl fmt::Display for RegistryMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |names: &[String]| names.join(", ");
        write!(
            f,
            "the plugins linked into this program are not those it was built for: expected packages [{}], found [{}]",
            list(&self.expected),
            list(&self.found)
        )?;
        let missing = self.missing();
        if !missing.is_empty() {
            write!(
                f,
                "; missing: {} (name the crate in the binary, `use {} as _;`, or switch its feature off)",
                missing.join(", "),
                missing[0].replace('-', "_")
            )?;
        }
        let unexpected = self.unexpected();
        if !unexpected.is_empty() {
            write!(
                f,
                "; unexpected: {} (add the package to the binary's expected list, or drop the dependency)",
                unexpected.join(", ")
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ondol_plugin::Package;

    static ROWS: [HandlerPluginFactory; 5] = [
        HandlerPluginFactory::new(
            "b",
            Package {
                name: "x",
                version: "1.0.0",
            },
            |_| Ok(None),
        ),
        HandlerPluginFactory::new(
            "a",
            Package {
                name: "y",
                version: "1.0.0",
            },
            |_| Ok(None),
        ),
        HandlerPluginFactory::new(
            "a",
            Package {
                name: "x",
                version: "1.1.0",
            },
            |_| Ok(None),
        ),
        HandlerPluginFactory::new(
            "c",
            Package {
                name: "z",
                version: "1.0.0",
            },
            |_| Ok(None),
        ),
        HandlerPluginFactory::new(
            "a",
            Package {
                name: "x",
                version: "1.0.0",
            },
            |_| Ok(None),
        ),
    ];

    #[test]
    fn order_is_by_name_package_and_version_whatever_the_linker_did() {
        let order = |registry: &Registry| -> Vec<_> {
            registry
                .factories()
                .iter()
                .map(|row| (row.name(), row.package()))
                .collect()
        };
        let forward = order(&Registry::of(&ROWS));
        assert_eq!(order(&Registry::of(ROWS.iter().rev())), forward);
        let brief: Vec<_> = forward
            .iter()
            .map(|(name, package)| (*name, package.name, package.version))
            .collect();
        assert_eq!(
            brief,
            [
                ("a", "x", "1.0.0"),
                ("a", "x", "1.1.0"),
                ("a", "y", "1.0.0"),
                ("b", "x", "1.0.0"),
                ("c", "z", "1.0.0")
            ]
        );
    }

    #[test]
    fn a_mismatch_prints_both_lists_and_the_difference() {
        let registry = Registry::of(&ROWS);
        assert_eq!(registry.verify_expected(&["z", "x", "y", "x"]), Ok(()));
        let mismatch = registry
            .verify_expected(&["x", "handler-lost", "z"])
            .unwrap_err();
        assert_eq!(mismatch.missing(), ["handler-lost"]);
        assert_eq!(mismatch.unexpected(), ["y"]);
        let text = mismatch.to_string();
        for part in [
            "expected packages [handler-lost, x, z]",
            "found [x, y, z]",
            "missing: handler-lost",
            "use handler_lost as _;",
            "unexpected: y",
        ] {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
    }
}
