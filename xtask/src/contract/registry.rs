//! Which plugins are in a linked binary, against what its features promise.

use std::collections::BTreeSet;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use cargo_metadata::Message;
use serde::Deserialize;

use crate::workspace;

/// A binary to build.
#[derive(Clone, Debug)]
pub struct Build<'a> {
    /// The manifest of its package or workspace.
    pub manifest: &'a Path,
    /// The package.
    pub package: &'a str,
    /// Where to build.
    pub target: &'a Path,
    /// Its features, instead of the default ones; `None` leaves these.
    pub features: Option<&'a [String]>,
    /// Whether to optimise.
    pub release: bool,
}

impl Build<'_> {
    /// Builds it and returns the executable.
    ///
    /// # Errors
    /// What the compiler says.
    pub fn run(&self) -> Result<PathBuf> {
        let mut cargo = workspace::cargo();
        cargo.args([
            "build",
            "--quiet",
            "--message-format=json-render-diagnostics",
            "--bins",
        ]);
        cargo
            .arg("--manifest-path")
            .arg(self.manifest)
            .args(["--package", self.package]);
        cargo.arg("--target-dir").arg(self.target);
        if let Some(features) = self.features {
            // Other members switch on features of their own: only a build of one package with its features named
            // says what is in it.
            cargo.args(["--no-default-features", "--features", &features.join(",")]);
        }
        if self.release {
            cargo.arg("--release");
        }
        let shown = workspace::shown(&cargo);
        let mut child = cargo
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {shown}"))?;
        let output = child.stdout.take().context("cargo's output")?;
        let mut executable = None;
        for message in Message::parse_stream(BufReader::new(output)) {
            if let Message::CompilerArtifact(artifact) = message? {
                executable = artifact.executable.or(executable);
            }
        }
        let status = child.wait()?;
        if !status.success() {
            bail!("{shown} failed: {status}");
        }
        let executable = executable.with_context(|| format!("{shown} made no executable"))?;
        Ok(executable.into_std_path_buf())
    }
}

/// The output of `ondol plugins --json`, as far as the check needs it.
#[derive(Clone, Debug, Deserialize)]
pub struct Listing {
    /// The packages that the binary was built for.
    pub expected: Vec<String>,
    /// The registered handler plugins.
    pub plugins: Vec<Row>,
    /// The registered storage adapters; a binary of handler plugins alone may leave them out.
    #[serde(default)]
    pub adapters: Vec<Adapter>,
    /// The registered native connectors; likewise.
    #[serde(default)]
    pub connectors: Vec<Connector>,
}

/// A registered storage adapter.
#[derive(Clone, Debug, Deserialize)]
pub struct Adapter {
    /// Its type.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Further types that mean it.
    pub aliases: Vec<String>,
    /// The crate that submitted it.
    pub package: String,
    /// Whether another one is found by its name.
    pub shadowed: bool,
    /// What may be configured.
    pub parameters: Vec<Parameter>,
}

/// A registered native connector.
#[derive(Clone, Debug, Deserialize)]
pub struct Connector {
    /// The module of its type.
    pub module_path: String,
    /// The name of its type.
    pub class_name: String,
    /// The crate that submitted it.
    pub package: String,
    /// What may be configured.
    pub parameters: Vec<Parameter>,
}

/// A parameter of a storage backend.
#[derive(Clone, Debug, Deserialize)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Its default, in words; none if it must be given.
    pub default: Option<String>,
}

impl Listing {
    /// Asks the binary.
    ///
    /// # Errors
    /// A binary that fails or prints something else.
    pub fn of(binary: &Path) -> Result<Self> {
        let text = workspace::read(Command::new(binary).args(["plugins", "--json"]))?;
        serde_json::from_str(&text).context("the output of `ondol plugins --json`")
    }

    /// What may be configured of each backend, as it is committed: a backend, a parameter, and whether it must be given, a
    /// line.
    pub fn parameters_text(&self) -> String {
        let line = |backend: &str, parameter: &Parameter| {
            let how = match parameter.default {
                Some(_) => "optional",
                None => "required",
            };
            format!("{backend} {} {how}\n", parameter.name)
        };
        let adapters = self.adapters.iter().flat_map(|adapter| {
            let names = std::iter::once(&adapter.type_name).chain(&adapter.aliases);
            names.flat_map(|name| {
                let parameters = adapter.parameters.iter();
                parameters.map(move |parameter| line(name, parameter))
            })
        });
        let connectors = self.connectors.iter().flat_map(|connector| {
            let name = format!("{}::{}", connector.module_path, connector.class_name);
            let parameters = connector.parameters.iter();
            parameters.map(move |parameter| line(&name, parameter))
        });
        let mut lines: Vec<_> = adapters.chain(connectors).collect();
        lines.sort();
        lines.concat()
    }

    /// How many plugins there are of all kinds.
    pub fn count(&self) -> usize {
        self.plugins.len() + self.adapters.len() + self.connectors.len()
    }

    /// The packages that registered something.
    fn packages(&self) -> BTreeSet<String> {
        let plugins = self.plugins.iter().map(|row| &row.package);
        let adapters = self.adapters.iter().map(|adapter| &adapter.package);
        let connectors = self.connectors.iter().map(|connector| &connector.package);
        plugins.chain(adapters).chain(connectors).cloned().collect()
    }
}

/// A registered plugin.
#[derive(Clone, Debug, Deserialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// The crate that submitted it.
    pub package: String,
    /// What became of it.
    pub state: String,
}

/// Runs the binary and compares the packages registered in it with those promised; returns how many plugins it
/// holds.
///
/// # Errors
/// A difference, with both lists; or a binary that fails, with what it said.
pub fn inspect(binary: &Path, promised: &[String]) -> Result<usize> {
    // An allowlist in the environment would hide plugins.
    let mut command = Command::new(binary);
    let output = command
        .args(["plugins", "--json"])
        .env_remove("MARU_PLUGINS")
        .output();
    let output = output.with_context(|| format!("start {}", binary.display()))?;
    if !output.status.success() {
        let promised = promised.join(", ");
        bail!(
            "the binary promises packages [{promised}] and refuses to run: {}\n{}",
            output.status,
            workspace::said(&output)
        );
    }
    let listing: Listing =
        serde_json::from_slice(&output.stdout).context("the output of `ondol plugins --json`")?;
    compare(&listing, promised)?;
    Ok(listing.count())
}

/// Compares a listing with the packages promised.
///
/// # Errors
/// A difference, with both lists, or two plugins of one name.
pub fn compare(listing: &Listing, promised: &[String]) -> Result<()> {
    let sorted = |names: &mut dyn Iterator<Item = &String>| names.cloned().collect::<BTreeSet<_>>();
    let promised = sorted(&mut promised.iter());
    let found = listing.packages();
    let expected = sorted(&mut listing.expected.iter());
    let list = |names: &BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>().join(", ");
    if found != promised {
        bail!(
            "the features promise packages [{}] and the linked binary registers [{}]",
            list(&promised),
            list(&found)
        );
    }
    if expected != promised {
        bail!(
            "the features promise packages [{}] and the binary expects [{}]",
            list(&promised),
            list(&expected)
        );
    }
    let mut names = BTreeSet::new();
    for row in &listing.plugins {
        if !names.insert(&row.name) {
            bail!(
                "two plugins are called `{}`, one of them in package {}: the second is never used",
                row.name,
                row.package
            );
        }
    }
    if let Some(adapter) = listing.adapters.iter().find(|adapter| adapter.shadowed) {
        bail!(
            "two storage adapters go by the type `{}`, one of them in package {}: that one is never used",
            adapter.type_name,
            adapter.package
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(expected: &[&str], plugins: &[(&str, &str)]) -> Listing {
        let row = |(name, package): &(&str, &str)| Row {
            name: (*name).to_owned(),
            package: (*package).to_owned(),
            state: "loaded".to_owned(),
        };
        Listing {
            expected: expected.iter().map(|name| (*name).to_owned()).collect(),
            plugins: plugins.iter().map(row).collect(),
            adapters: Vec::new(),
            connectors: Vec::new(),
        }
    }

    fn adapter(package: &str, shadowed: bool) -> Adapter {
        let parameter = |name: &str, default: Option<&str>| Parameter {
            name: name.to_owned(),
            default: default.map(str::to_owned),
        };
        Adapter {
            type_name: "disk".to_owned(),
            aliases: vec!["disk_native".to_owned()],
            package: package.to_owned(),
            shadowed,
            parameters: vec![parameter("path", None), parameter("fsync", Some("none"))],
        }
    }

    #[test]
    fn a_storage_backend_is_a_plugin_that_must_not_be_lost_either() {
        let promised = ["l2-disk".to_owned()];
        let mut listing = listing(&["l2-disk"], &[]);
        compare(&listing, &promised).unwrap_err();
        listing.adapters.push(adapter("l2-disk", false));
        compare(&listing, &promised).unwrap();
        assert_eq!(listing.count(), 1);
        listing.adapters.push(adapter("l2-disk", true));
        let error = compare(&listing, &promised).unwrap_err().to_string();
        assert!(error.contains("`disk`"), "{error}");
    }

    #[test]
    fn each_name_of_a_backend_has_its_parameters() {
        let mut listing = listing(&[], &[]);
        listing.adapters.push(adapter("l2-disk", false));
        assert_eq!(
            listing.parameters_text(),
            "disk fsync optional\ndisk path required\ndisk_native fsync optional\ndisk_native path required\n"
        );
    }

    #[test]
    fn a_plugin_too_few_or_too_many_is_an_error_with_both_lists() {
        let promised = ["handler-a".to_owned(), "handler-b".to_owned()];
        let both = [("b", "handler-b"), ("a", "handler-a"), ("a2", "handler-a")];
        compare(&listing(&["handler-b", "handler-a"], &both), &promised).unwrap();
        let few = compare(&listing(&["handler-a", "handler-b"], &both[..1]), &promised)
            .unwrap_err()
            .to_string();
        assert!(
            few.contains("[handler-a, handler-b]") && few.contains("[handler-b]"),
            "{few}"
        );
        compare(&listing(&["handler-a"], &both[1..]), &promised[1..]).unwrap_err();
        compare(&listing(&["handler-a"], &both), &promised).unwrap_err();
    }

    #[test]
    fn two_plugins_of_one_name_are_an_error() {
        let promised = ["handler-a".to_owned(), "handler-b".to_owned()];
        let rows = [("same", "handler-a"), ("same", "handler-b")];
        let error = compare(&listing(&["handler-a", "handler-b"], &rows), &promised).unwrap_err();
        assert!(error.to_string().contains("`same`"), "{error}");
    }
}
