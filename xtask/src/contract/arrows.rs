//! Which crate may depend on which, and the other rules that stand in manifests.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use cargo_metadata::DependencyKind;
use toml::Value;

use crate::workspace::Workspace;

/// The rooms that each room may use, as `ARCHITECTURE.md` draws them. Anyone may use the catalogue.
const ROOMS: &[(&str, &[&str])] = &[
    ("ondol-plugin", &[]),
    ("ondol-catalog", &[]),
    ("ondol-testkit", &["ondol-plugin"]),
    ("ondol-connector", &["ondol-plugin"]),
    ("ondol-host", &["ondol-connector", "ondol-plugin"]),
    ("ondol-shm", &["ondol-plugin"]),
    ("ondol-protocol", &["ondol-shm", "ondol-plugin"]),
    ("ondol-memory", &["ondol-shm", "ondol-plugin"]),
    (
        "ondol-directory",
        &[
            "ondol-memory",
            "ondol-protocol",
            "ondol-shm",
            "ondol-plugin",
        ],
    ),
    (
        "ondol-tiering",
        &[
            "ondol-host",
            "ondol-directory",
            "ondol-memory",
            "ondol-protocol",
            "ondol-shm",
            "ondol-plugin",
        ],
    ),
    (
        "ondol-engine",
        &[
            "ondol-tiering",
            "ondol-host",
            "ondol-protocol",
            "ondol-directory",
            "ondol-memory",
            "ondol-shm",
            "ondol-plugin",
        ],
    ),
    (
        "ondol-server",
        &[
            "ondol-engine",
            "ondol-protocol",
            "ondol-directory",
            "ondol-memory",
            "ondol-shm",
            "ondol-plugin",
        ],
    ),
    (
        "ondol-handler",
        &["ondol-host", "ondol-protocol", "ondol-shm", "ondol-plugin"],
    ),
    (
        "ondol-cli",
        &[
            "ondol-server",
            "ondol-handler",
            "ondol-engine",
            "ondol-tiering",
            "ondol-host",
            "ondol-directory",
            "ondol-protocol",
            "ondol-memory",
            "ondol-shm",
            "ondol-plugin",
        ],
    ),
    ("ondol-bin", &["ondol-cli"]),
    (
        "ondol",
        &[
            "ondol-server",
            "ondol-handler",
            "ondol-engine",
            "ondol-tiering",
            "ondol-host",
            "ondol-memory",
            "ondol-protocol",
            "ondol-shm",
            "ondol-plugin",
        ],
    ),
];

const BINARY: &str = "ondol-bin";
const CONTRACT: &str = "ondol-plugin";
const CATALOGUE: &str = "ondol-catalog";
const TESTKIT: &str = "ondol-testkit";
/// Opens connectors that are written in C, as their tests must.
const CONNECTOR: &str = "ondol-connector";

/// Crates that only some rooms may name: the crate, who may, and why the others may not.
const RESERVED: &[(&str, &[&str], &str)] = &[
    (
        "inventory",
        &["ondol-plugin", "ondol-host"],
        "plugins use the re-export of ondol-plugin, so that there is one registry",
    ),
    (
        "linkme",
        &["ondol-catalog"],
        "tables are declared in ondol-catalog, which re-exports it",
    ),
];

/// Async runtimes, and the one room that may depend on them.
const RUNTIMES: &[&str] = &[
    "async-std",
    "compio",
    "glommio",
    "mio",
    "monoio",
    "smol",
    "tokio",
];
const RUNTIME_ROOM: &str = "ondol-server";

/// The workspace as far as the rules concern it.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// The members.
    pub packages: Vec<Package>,
    /// The versions of the contract crate that the members and their dependencies use.
    pub contract_versions: Vec<String>,
    /// Profiles that abort on a panic.
    pub aborting_profiles: Vec<String>,
}

/// A member of the workspace.
#[derive(Clone, Debug)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// The directory it lies under.
    pub place: Place,
    /// What its manifest names.
    pub dependencies: Vec<Dependency>,
    /// Its `[lints]`.
    pub lints: Lints,
    /// Its features.
    pub features: BTreeMap<String, Vec<String>>,
}

/// Which rules a package follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A room of the house, in `crates/`.
    Room,
    /// A plugin, in `vendor-plugins/`.
    Vendor,
    /// Whole-system tests and tools, which may use anything.
    Other,
}

/// One dependency of a package.
#[derive(Clone, Debug)]
pub struct Dependency {
    /// The package depended on.
    pub name: String,
    /// Whether only tests, examples and benchmarks use it.
    pub dev: bool,
    /// Whether a feature switches it on.
    pub optional: bool,
}

/// The `[lints]` of a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lints {
    /// Those of the workspace.
    Workspace,
    /// A table of its own.
    Own {
        /// Whether a dependency that the source does not name is an error.
        deny_unused_dependencies: bool,
    },
    /// None.
    Missing,
}

/// Every broken rule, in one sentence each.
pub fn check(graph: &Graph) -> Vec<String> {
    let mut broken = Vec::new();
    let places: BTreeMap<_, _> = graph
        .packages
        .iter()
        .map(|package| (package.name.as_str(), package.place))
        .collect();
    for package in &graph.packages {
        for dependency in &package.dependencies {
            broken.extend(arrow(package, dependency, &places));
        }
        broken.extend(lints(package));
    }
    broken.extend(vendor_features(graph));
    let versions: BTreeSet<_> = graph.contract_versions.iter().collect();
    if versions.len() > 1 {
        broken.push(format!("{} versions of {CONTRACT} are in one graph: {versions:?}; plugins would register where nobody looks", versions.len()));
    }
    for profile in &graph.aborting_profiles {
        broken.push(format!(
            "profile `{profile}` has panic = \"abort\": a panic in a plugin would end the process"
        ));
    }
    broken
}

fn arrow(
    package: &Package,
    dependency: &Dependency,
    places: &BTreeMap<&str, Place>,
) -> Option<String> {
    let (from, to) = (package.name.as_str(), dependency.name.as_str());
    if let Some((_, rooms, why)) = RESERVED.iter().find(|(name, ..)| *name == to)
        && !rooms.contains(&from)
    {
        return Some(format!(
            "{from} depends on {to}, which only {} may name: {why}",
            rooms.join(" and ")
        ));
    }
    if RUNTIMES.contains(&to)
        && !dependency.dev
        && from != RUNTIME_ROOM
        && package.place != Place::Other
    {
        return Some(format!(
            "{from} depends on {to}: an async runtime lives only in {RUNTIME_ROOM}"
        ));
    }
    let target = places.get(to)?;
    match (package.place, target) {
        (Place::Other, _) => None,
        (Place::Vendor, _) => {
            let allowed =
                to == CONTRACT || ((to == TESTKIT || to == CONNECTOR) && dependency.dev);
            (!allowed).then(|| format!("plugin {from} depends on {to}: a plugin uses {CONTRACT} and, in its tests, {TESTKIT} and {CONNECTOR}, and no other crate of ours"))
        }
        (Place::Room, Place::Vendor) if from == BINARY => (!dependency.optional)
            .then(|| format!("{BINARY} depends on plugin {to} without a feature: make it optional, under a feature of that name")),
        (Place::Room, Place::Vendor) => Some(format!("{from} depends on plugin {to}: the core names no plugin, not even its own")),
        (Place::Room, Place::Other) => (!dependency.dev).then(|| format!("{from} depends on {to}, which is no room of the house")),
        (Place::Room, Place::Room) => {
            let Some((_, allowed)) = ROOMS.iter().find(|(room, _)| *room == from) else {
                return Some(format!("{from} is not in the table of rooms (xtask/src/contract/arrows.rs): say what it may use"));
            };
            // The contract and the catalogue stand alone, in their tests too. The tests of any other room may use
            // any room, as a client's need a server: nothing that is shipped contains them.
            let alone = from == CONTRACT || from == CATALOGUE;
            let fine = !alone && (to == CATALOGUE || dependency.dev || allowed.contains(&to));
            (!fine).then(|| {
                let allowed = if allowed.is_empty() { "nothing of ours".to_owned() } else { allowed.join(", ") };
                format!("{from} depends on {to}: arrows only go down; {from} may use {allowed}")
            })
        }
    }
}

fn lints(package: &Package) -> Option<String> {
    let name = &package.name;
    match package.lints {
        Lints::Workspace if name == BINARY => Some(format!(
            "{BINARY} must have a [lints] table of its own that denies unused_crate_dependencies: without it a plugin that is not named is dropped in silence"
        )),
        Lints::Workspace => None,
        Lints::Own {
            deny_unused_dependencies: true,
        } if name == BINARY => None,
        Lints::Own { .. } if name == BINARY => Some(format!(
            "{BINARY} does not deny unused_crate_dependencies: a plugin that is not named would be dropped in silence"
        )),
        Lints::Own { .. } | Lints::Missing => {
            Some(format!("{name} lacks `[lints] workspace = true`"))
        }
    }
}

/// Each plugin must be one feature of the binary: what no feature names is never linked nor checked.
fn vendor_features(graph: &Graph) -> Vec<String> {
    let Some(binary) = graph.packages.iter().find(|package| package.name == BINARY) else {
        return Vec::new();
    };
    let vendors = graph
        .packages
        .iter()
        .filter(|package| package.place == Place::Vendor);
    vendors
        .filter(|vendor| {
            binary.features.get(&vendor.name) != Some(&vec![format!("dep:{}", vendor.name)])
        })
        .map(|vendor| {
            format!(
                "{BINARY} has no feature `{0} = [\"dep:{0}\"]`, so plugin {0} is never linked",
                vendor.name
            )
        })
        .collect()
}

/// Reads the workspace's manifests.
///
/// # Errors
/// A manifest that cannot be read.
pub fn read(workspace: &Workspace) -> Result<Graph> {
    let mut graph = Graph::default();
    for package in workspace.metadata.workspace_packages() {
        let path = package.manifest_path.as_std_path();
        let manifest: Value = manifest(path)?;
        let inside = path.strip_prefix(&workspace.root).unwrap_or(path);
        let place = match inside.iter().next().and_then(|part| part.to_str()) {
            Some("crates") => Place::Room,
            Some("vendor-plugins") => Place::Vendor,
            _ => Place::Other,
        };
        let dependencies = package.dependencies.iter().map(|dependency| Dependency {
            name: dependency.name.clone(),
            dev: dependency.kind == DependencyKind::Development,
            optional: dependency.optional,
        });
        graph.packages.push(Package {
            name: package.name.to_string(),
            place,
            dependencies: dependencies.collect(),
            lints: lints_of(&manifest),
            features: package.features.clone().into_iter().collect(),
        });
    }
    graph.packages.sort_by(|a, b| a.name.cmp(&b.name));
    let contracts = workspace
        .metadata
        .packages
        .iter()
        .filter(|package| package.name.as_str() == CONTRACT);
    graph.contract_versions = contracts.map(|package| package.id.repr.clone()).collect();
    for file in ["Cargo.toml", ".cargo/config.toml"] {
        let path = workspace.root.join(file);
        if path.is_file() {
            graph.aborting_profiles.extend(aborting(&manifest(&path)?));
        }
    }
    Ok(graph)
}

fn manifest(path: &std::path::Path) -> Result<Value> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let table: toml::Table = text
        .parse()
        .with_context(|| format!("parse {}", path.display()))?;
    Ok(Value::Table(table))
}

fn lints_of(manifest: &Value) -> Lints {
    let Some(lints) = manifest.get("lints") else {
        return Lints::Missing;
    };
    if lints.get("workspace").and_then(Value::as_bool) == Some(true) {
        return Lints::Workspace;
    }
    let unused = lints
        .get("rust")
        .and_then(|rust| rust.get("unused_crate_dependencies"));
    let level = unused.and_then(|lint| lint.as_str().or_else(|| lint.get("level")?.as_str()));
    Lints::Own {
        deny_unused_dependencies: matches!(level, Some("deny" | "forbid")),
    }
}

fn aborting(manifest: &Value) -> Vec<String> {
    let profiles = manifest.get("profile").and_then(Value::as_table);
    let aborts = |profile: &Value| profile.get("panic").and_then(Value::as_str) == Some("abort");
    profiles
        .into_iter()
        .flatten()
        .filter(|(_, profile)| aborts(profile))
        .map(|(name, _)| name.clone())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, place: Place, uses: &[&str]) -> Package {
        let dependency = |text: &&str| {
            let (name, how) = text.split_once(' ').unwrap_or((text, ""));
            Dependency {
                name: name.to_owned(),
                dev: how == "dev",
                optional: how == "optional",
            }
        };
        Package {
            name: name.to_owned(),
            place,
            dependencies: uses.iter().map(dependency).collect(),
            lints: if name == BINARY {
                Lints::Own {
                    deny_unused_dependencies: true,
                }
            } else {
                Lints::Workspace
            },
            features: BTreeMap::new(),
        }
    }

    /// A house in order, to be put in disorder.
    fn house() -> Graph {
        let mut binary = package(BINARY, Place::Room, &["ondol-cli", "handler-acme optional"]);
        binary
            .features
            .insert("handler-acme".into(), vec!["dep:handler-acme".into()]);
        Graph {
            packages: vec![
                package("ondol-plugin", Place::Room, &["inventory", "anyhow"]),
                package("ondol-catalog", Place::Room, &["linkme"]),
                package("ondol-testkit", Place::Room, &["ondol-plugin"]),
                package(
                    "ondol-host",
                    Place::Room,
                    &["ondol-plugin", "inventory", "oddities dev"],
                ),
                package("ondol-shm", Place::Room, &["ondol-plugin", "ondol-catalog"]),
                package("ondol-memory", Place::Room, &["ondol-shm"]),
                package(
                    "ondol-directory",
                    Place::Room,
                    &["ondol-memory", "ondol-testkit dev"],
                ),
                package("ondol-engine", Place::Room, &["ondol-directory"]),
                package("ondol-server", Place::Room, &["ondol-engine", "tokio"]),
                package(
                    "ondol-handler",
                    Place::Room,
                    &["ondol-host", "ondol-engine dev"],
                ),
                package("ondol-cli", Place::Room, &["ondol-server", "ondol-handler"]),
                binary,
                package(
                    "handler-acme",
                    Place::Vendor,
                    &["ondol-plugin", "anyhow", "ondol-testkit dev"],
                ),
                package("oddities", Place::Other, &["ondol-plugin", "handler-acme"]),
            ],
            contract_versions: vec!["ondol-plugin@0.1.0".into()],
            aborting_profiles: Vec::new(),
        }
    }

    fn named<'a>(graph: &'a mut Graph, name: &str) -> &'a mut Package {
        graph
            .packages
            .iter_mut()
            .find(|package| package.name == name)
            .unwrap()
    }

    #[test]
    fn a_house_in_order_breaks_no_rule() {
        assert_eq!(check(&house()), Vec::<String>::new());
    }

    #[test]
    fn an_arrow_that_goes_up_or_aside_is_found() {
        for (from, to) in [
            ("ondol-memory", "ondol-directory"),
            ("ondol-engine", "ondol-handler"),
            ("ondol-handler", "ondol-engine"),
            ("ondol-plugin", "ondol-shm"),
            ("ondol-plugin", "ondol-catalog"),
            ("ondol-plugin", "ondol-testkit dev"),
            ("ondol-catalog", "ondol-shm dev"),
            ("ondol-catalog", "ondol-plugin"),
            ("ondol-shm", "ondol-testkit"),
            ("ondol-bin", "ondol-host"),
            ("ondol-host", "oddities"),
            ("ondol-host", "handler-acme dev"),
            ("ondol-cli", "handler-acme optional"),
            ("ondol-bin", "handler-acme"),
            ("handler-acme", "ondol-host"),
            ("handler-acme", "ondol-handler dev"),
            ("handler-acme", "ondol-testkit"),
            ("handler-acme", "inventory"),
            ("ondol-handler", "inventory"),
            ("ondol-shm", "linkme"),
            ("ondol-engine", "tokio"),
            ("handler-acme", "tokio"),
        ] {
            let mut graph = house();
            let extra = package("extra", Place::Other, &[to]).dependencies;
            named(&mut graph, from).dependencies.extend(extra);
            let broken = check(&graph);
            let name = to.split(' ').next().unwrap();
            assert_eq!(broken.len(), 1, "{from} -> {to}: {broken:?}");
            assert!(
                broken[0].contains(from) && broken[0].contains(name),
                "{broken:?}"
            );
        }
    }

    #[test]
    fn a_room_that_the_table_lacks_is_found() {
        let mut graph = house();
        graph
            .packages
            .push(package("ondol-attic", Place::Room, &["ondol-shm"]));
        assert!(check(&graph)[0].contains("table of rooms"));
    }

    #[test]
    fn lints_that_are_switched_off_are_found() {
        for (name, lints) in [
            ("ondol-shm", Lints::Missing),
            (
                "ondol-shm",
                Lints::Own {
                    deny_unused_dependencies: true,
                },
            ),
            (
                BINARY,
                Lints::Own {
                    deny_unused_dependencies: false,
                },
            ),
            (BINARY, Lints::Workspace),
        ] {
            let mut graph = house();
            named(&mut graph, name).lints = lints;
            assert_eq!(check(&graph).len(), 1, "{name} {lints:?}");
        }
    }

    #[test]
    fn a_plugin_that_no_feature_names_is_found() {
        let mut graph = house();
        named(&mut graph, BINARY).features.clear();
        assert!(check(&graph)[0].contains("never linked"));
    }

    #[test]
    fn two_contracts_and_an_aborting_profile_are_found() {
        let mut graph = house();
        graph.contract_versions.push("ondol-plugin@0.2.0".into());
        let config: toml::Table = "[profile.dist]\ninherits = 'release'\npanic = 'abort'\n[profile.dev]\npanic = 'unwind'".parse().unwrap();
        graph.aborting_profiles = aborting(&Value::Table(config));
        let broken = check(&graph);
        assert_eq!(broken.len(), 2, "{broken:?}");
        assert!(broken[1].contains("`dist`"), "{broken:?}");
    }

    #[test]
    fn the_lints_of_a_manifest_are_read_in_both_spellings() {
        let read = |text: &str| lints_of(&Value::Table(text.parse().unwrap()));
        assert_eq!(read("[lints]\nworkspace = true"), Lints::Workspace);
        assert_eq!(read("[package]\nname = 'x'"), Lints::Missing);
        for own in [
            "unused_crate_dependencies = 'deny'",
            "unused_crate_dependencies = { level = 'deny' }",
        ] {
            assert_eq!(
                read(&format!("[lints.rust]\n{own}")),
                Lints::Own {
                    deny_unused_dependencies: true
                }
            );
        }
        assert_eq!(
            read("[lints.rust]\nunused_crate_dependencies = 'warn'"),
            Lints::Own {
                deny_unused_dependencies: false
            }
        );
    }
}
