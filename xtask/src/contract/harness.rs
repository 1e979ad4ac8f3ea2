//! The check of a plugin crate that lies anywhere: a generated binary links it and tells what it registers.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use cargo_metadata::{DependencyKind, MetadataCommand};
use serde::Deserialize;

use super::registry::Build;
use crate::workspace::{self, Workspace};

const MAIN: &str = include_str!("harness.main.rs");

/// The crate under check.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Its package name.
    pub package: String,
    /// The name of its library in source.
    pub library: String,
    /// Its directory.
    pub dir: PathBuf,
    /// What its manifest names: the package, and whether only its tests use it.
    pub dependencies: Vec<(String, bool)>,
    /// Where its contract crate comes from: a directory, or cargo's name of another source.
    pub contract: Option<Origin>,
}

/// Where a dependency comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A directory.
    Path(PathBuf),
    /// A registry or a repository, as cargo writes it.
    Source(String),
}

/// What the harness tells about a registered plugin.
#[derive(Clone, Debug, Deserialize)]
pub struct Row {
    /// What it is.
    pub kind: Kind,
    /// Its name: of an adapter its type, of a connector its module and class.
    pub name: String,
    /// The crate that submitted it.
    pub package: String,
    /// What became of it under an empty environment; backends are only linked, as nobody configured them.
    pub state: String,
    /// Why.
    pub reason: Option<String>,
}

/// A kind of registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A handler plugin.
    Handler,
    /// A storage adapter.
    Adapter,
    /// A native connector.
    Connector,
}

/// Checks the plugin crate in the directory `path`.
///
/// # Errors
/// Every broken rule.
pub fn check(workspace: &Workspace, path: &Path) -> Result<()> {
    let subject = subject(path)?;
    let mut broken = dependencies(&subject);
    broken.extend(origin(&subject, &workspace.root)?);
    report(
        "arrows",
        &format!(
            "{} dependencies of {}",
            subject.dependencies.len(),
            subject.package
        ),
        &broken,
    )?;
    let rows = probe(workspace, &subject)?;
    let broken = judge(&subject.package, &rows);
    report(
        "registry",
        &format!("{} registered by {}", rows.len(), subject.package),
        &broken,
    )?;
    for row in &rows {
        let reason = row
            .reason
            .as_ref()
            .map(|reason| format!(": {reason}"))
            .unwrap_or_default();
        println!("         {} is {}{reason}", row.name, row.state);
    }
    Ok(())
}

fn report(step: &str, compared: &str, broken: &[String]) -> Result<()> {
    if broken.is_empty() {
        println!("ok    {step:<9} {compared}");
        return Ok(());
    }
    for sentence in broken {
        println!("FAIL  {step:<9} {sentence}");
    }
    bail!("the plugin breaks {} of the contract's rules", broken.len());
}

fn subject(path: &Path) -> Result<Subject> {
    let manifest = path.join("Cargo.toml");
    let manifest = manifest
        .canonicalize()
        .with_context(|| format!("there is no crate at {}", path.display()))?;
    let metadata = MetadataCommand::new()
        .manifest_path(&manifest)
        .no_deps()
        .exec()?;
    let package = metadata
        .packages
        .iter()
        .find(|package| package.manifest_path.as_std_path() == manifest);
    let package = package.with_context(|| format!("{} holds no package", manifest.display()))?;
    let library = package.targets.iter().find(|target| target.is_lib());
    let library =
        library.with_context(|| format!("{} has no library: a plugin is one", package.name))?;
    let contract = package
        .dependencies
        .iter()
        .find(|dependency| dependency.name == "ondol-plugin");
    let contract = contract.map(|dependency| match (&dependency.path, &dependency.source) {
        (Some(path), _) => Origin::Path(path.as_std_path().to_owned()),
        (None, source) => Origin::Source(
            source
                .as_ref()
                .map(|source| source.repr.clone())
                .unwrap_or_default(),
        ),
    });
    let named = package.dependencies.iter();
    let named = named.map(|dependency| {
        (
            dependency.name.clone(),
            dependency.kind == DependencyKind::Development,
        )
    });
    let dir = manifest
        .parent()
        .context("the manifest's directory")?
        .to_owned();
    Ok(Subject {
        package: package.name.to_string(),
        library: library.name.replace('-', "_"),
        dir,
        dependencies: named.collect(),
        contract,
    })
}

/// The arrows that the crate must not have.
pub fn dependencies(subject: &Subject) -> Vec<String> {
    let package = &subject.package;
    let ours = |name: &str| name == "ondol" || name.starts_with("ondol-");
    let mut broken: Vec<_> = subject
        .dependencies
        .iter()
        .filter(|(name, dev)| ours(name) && name != "ondol-plugin" && !(*dev && name == "ondol-testkit"))
        .map(|(name, _)| format!("{package} depends on {name}: a plugin uses ondol-plugin and, in its tests, ondol-testkit"))
        .collect();
    if !subject
        .dependencies
        .iter()
        .any(|(name, dev)| name == "ondol-plugin" && !dev)
    {
        broken.push(format!(
            "{package} does not depend on ondol-plugin, so it can register nothing"
        ));
    }
    if subject
        .dependencies
        .iter()
        .any(|(name, _)| name == "inventory")
    {
        broken.push(format!("{package} depends on inventory: use ondol_plugin::inventory, so that there is one registry"));
    }
    broken
}

fn origin(subject: &Subject, root: &Path) -> Result<Option<String>> {
    let Some(Origin::Path(path)) = &subject.contract else {
        return Ok(None);
    };
    let ours = root.join("crates/ondol-plugin").canonicalize()?;
    let theirs = path
        .canonicalize()
        .with_context(|| format!("{} is not there", path.display()))?;
    Ok((ours != theirs).then(|| {
        format!(
            "{} is built against the contract in {}; check it with that checkout's xtask",
            subject.package,
            theirs.display()
        )
    }))
}

/// What the rows break.
pub fn judge(package: &str, rows: &[Row]) -> Vec<String> {
    let mut broken = Vec::new();
    if !rows.iter().any(|row| row.package == package) {
        broken.push(format!(
            "{package} registers no plugin of its own: submit a HandlerPluginFactory, an L2AdapterFactory or a NativeConnectorFactory with inventory::submit! and package!()"
        ));
    }
    let mut names = BTreeSet::new();
    for Row {
        kind,
        name,
        package: submitter,
        state,
        reason,
    } in rows
    {
        if submitter != package {
            broken.push(format!("plugin `{name}` says it is of package {submitter}: write package!() in the crate that submits it"));
        }
        match kind {
            Kind::Handler if !is_legal(name, '-') => broken.push(format!(
                "plugin `{name}` has a name of other characters than a-z, 0-9 and dashes between them"
            )),
            Kind::Adapter if !is_legal(name, '_') => broken.push(format!(
                "adapter `{name}` has a type of other characters than a-z, 0-9 and underscores between them"
            )),
            _ => {}
        }
        if !names.insert((kind, name)) {
            broken.push(format!(
                "two plugins are called `{name}`: the second would never be used"
            ));
        } else if *kind == Kind::Handler && !matches!(state.as_str(), "loaded" | "declined") {
            let reason = reason.as_deref().unwrap_or("no reason given");
            broken.push(format!(
                "plugin `{name}` is {state} where nothing is configured ({reason}): a factory builds, or declines with Ok(None)"
            ));
        }
    }
    broken
}

fn is_legal(name: &str, between: char) -> bool {
    let plain = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    name.split(between).all(plain)
}

fn probe(workspace: &Workspace, subject: &Subject) -> Result<Vec<Row>> {
    let dir = workspace
        .target()
        .join("contract-harness")
        .join(&subject.package);
    std::fs::create_dir_all(dir.join("src"))?;
    std::fs::write(dir.join("Cargo.toml"), manifest(workspace, subject)?)?;
    std::fs::write(
        dir.join("src/main.rs"),
        MAIN.replace("{crate}", &subject.library),
    )?;
    // The versions that this checkout is tested with, and no look at the registry for newer ones.
    std::fs::copy(workspace.root.join("Cargo.lock"), dir.join("Cargo.lock"))?;
    let build = Build {
        manifest: &dir.join("Cargo.toml"),
        package: &format!("contract-harness-{}", subject.package),
        target: workspace.target(),
        features: None,
        release: false,
    };
    let binary = build.run().context("the plugin does not build and link")?;
    let file = dir.join("report.json");
    workspace::read(Command::new(&binary).arg(&file))
        .context("the plugin ends the process that loads it")?;
    serde_json::from_str(&std::fs::read_to_string(&file)?).context("the harness's report")
}

fn manifest(workspace: &Workspace, subject: &Subject) -> Result<String> {
    let quoted = |path: &Path| -> Result<String> {
        let path = path
            .to_str()
            .with_context(|| format!("{} is no UTF-8", path.display()))?;
        Ok(toml::Value::from(path).to_string())
    };
    let crates = workspace.root.join("crates");
    let contract = quoted(&crates.join("ondol-plugin"))?;
    let (package, dir, host) = (
        &subject.package,
        quoted(&subject.dir)?,
        quoted(&crates.join("ondol-host"))?,
    );
    let serde_json = workspace
        .metadata
        .packages
        .iter()
        .find(|package| package.name.as_str() == "serde_json");
    let serde_json = serde_json
        .context("serde_json is not in the graph")?
        .version
        .to_string();
    let mut text = format!(
        "[package]\nname = \"contract-harness-{package}\"\nversion = \"0.0.0\"\nedition = \"2024\"\npublish = false\n\n\
         [workspace]\n\n\
         [lints.rust]\nunused_crate_dependencies = \"deny\"\n\n\
         [dependencies]\n{package} = {{ path = {dir} }}\nondol-host = {{ path = {host} }}\nserde_json = \"{serde_json}\"\n"
    );
    if let Some(Origin::Source(source)) = &subject.contract {
        // Two contracts in one graph do not resolve: the plugin is checked against this checkout's.
        let table = match source.strip_prefix("git+") {
            Some(url) => toml::Value::from(url.split(['?', '#']).next().unwrap_or(url)).to_string(),
            None => "crates-io".to_owned(),
        };
        text.push_str(&format!(
            "\n[patch.{table}]\nondol-plugin = {{ path = {contract} }}\n"
        ));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, package: &str, state: &str) -> Row {
        Row {
            kind: Kind::Handler,
            name: name.to_owned(),
            package: package.to_owned(),
            state: state.to_owned(),
            reason: None,
        }
    }

    fn backend(kind: Kind, name: &str) -> Row {
        Row {
            kind,
            ..row(name, "acme", "linked")
        }
    }

    #[test]
    fn a_sound_registration_breaks_nothing() {
        let rows = [
            row("hint-2", "acme", "loaded"),
            row("hint", "acme", "declined"),
        ];
        assert_eq!(judge("acme", &rows), Vec::<String>::new());
        // A backend may be called as a handler plugin is.
        let rows = [
            row("disk", "acme", "declined"),
            backend(Kind::Adapter, "disk"),
            backend(Kind::Adapter, "disk_native"),
            backend(Kind::Connector, "acme::DiskConnector"),
        ];
        assert_eq!(judge("acme", &rows), Vec::<String>::new());
    }

    #[test]
    fn each_fault_of_a_backends_registration_is_named() {
        for (rows, fault) in [
            (vec![backend(Kind::Adapter, "Disk")], "adapter `Disk`"),
            (vec![backend(Kind::Adapter, "a-b")], "adapter `a-b`"),
            (
                vec![backend(Kind::Adapter, "a"), backend(Kind::Adapter, "a")],
                "two plugins",
            ),
            (
                vec![
                    backend(Kind::Connector, "a::B"),
                    backend(Kind::Connector, "a::B"),
                ],
                "two plugins",
            ),
        ] {
            let broken = judge("acme", &rows);
            assert_eq!(broken.len(), 1, "{rows:?}: {broken:?}");
            assert!(broken[0].contains(fault), "{broken:?}");
        }
    }

    #[test]
    fn each_fault_of_a_registration_is_named() {
        for (rows, fault) in [
            (vec![], "registers no plugin"),
            (
                vec![row("a", "acme", "loaded"), row("b", "other", "loaded")],
                "of package other",
            ),
            (
                vec![row("a", "acme", "loaded"), row("a", "acme", "duplicate")],
                "two plugins",
            ),
            (vec![row("a", "acme", "failed")], "`a` is failed"),
            (vec![row("Hint", "acme", "loaded")], "`Hint`"),
            (vec![row("a_b", "acme", "loaded")], "`a_b`"),
            (vec![row("", "acme", "loaded")], "``"),
            (vec![row("-a", "acme", "loaded")], "`-a`"),
            (vec![row("é", "acme", "loaded")], "`é`"),
        ] {
            let broken = judge("acme", &rows);
            assert_eq!(broken.len(), 1, "{rows:?}: {broken:?}");
            assert!(broken[0].contains(fault), "{broken:?}");
        }
    }

    fn subject(names: &[(&str, bool)]) -> Subject {
        Subject {
            package: "acme".into(),
            library: "acme".into(),
            dir: PathBuf::new(),
            dependencies: names
                .iter()
                .map(|(name, dev)| ((*name).to_owned(), *dev))
                .collect(),
            contract: None,
        }
    }

    #[test]
    fn another_crate_of_ours_is_found() {
        let contract = ("ondol-plugin", false);
        assert!(
            dependencies(&subject(&[
                contract,
                ("ondol-testkit", true),
                ("ondolish", false)
            ]))
            .is_empty()
        );
        for faulty in [
            [contract, ("ondol-host", false)],
            [contract, ("ondol", true)],
            [contract, ("ondol-testkit", false)],
            [contract, ("inventory", false)],
            [("ondol-plugin", true), ("anyhow", false)],
        ] {
            assert_eq!(dependencies(&subject(&faulty)).len(), 1, "{faulty:?}");
        }
    }

    #[test]
    fn a_contract_from_elsewhere_is_replaced_by_this_checkouts() {
        let workspace = Workspace::load().unwrap();
        let written = |contract: Origin| -> toml::Table {
            let mut subject = subject(&[]);
            subject.contract = Some(contract);
            manifest(&workspace, &subject).unwrap().parse().unwrap()
        };
        let ours = workspace.root.join("crates/ondol-plugin");
        let source = |text: &str| Origin::Source(text.to_owned());
        let git = written(source("git+ssh://a.example/ondol?branch=main#0123"));
        let patch = &git["patch"]["ssh://a.example/ondol"]["ondol-plugin"]["path"];
        assert_eq!(patch.as_str(), ours.to_str());
        assert!(written(source("registry+x"))["patch"]["crates-io"].is_table());
        assert!(!written(Origin::Path(ours)).contains_key("patch"));
    }
}
