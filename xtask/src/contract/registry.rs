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
    /// The registered plugins.
    pub plugins: Vec<Row>,
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
    Ok(listing.plugins.len())
}

/// Compares a listing with the packages promised.
///
/// # Errors
/// A difference, with both lists, or two plugins of one name.
pub fn compare(listing: &Listing, promised: &[String]) -> Result<()> {
    let sorted = |names: &mut dyn Iterator<Item = &String>| names.cloned().collect::<BTreeSet<_>>();
    let promised = sorted(&mut promised.iter());
    let found = sorted(&mut listing.plugins.iter().map(|row| &row.package));
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
        }
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
