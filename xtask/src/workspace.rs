//! This checkout: where it is, what it contains, and how cargo is called in it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};
use cargo_metadata::{Metadata, MetadataCommand};

/// This checkout.
#[derive(Debug)]
pub struct Workspace {
    /// The directory of the root manifest.
    pub root: PathBuf,
    /// Its packages and everything that they depend on.
    pub metadata: Metadata,
}

impl Workspace {
    /// The checkout that this program was built from.
    ///
    /// # Errors
    /// What cargo says about its manifests.
    pub fn load() -> Result<Self> {
        let root = root()?;
        let metadata = MetadataCommand::new()
            .manifest_path(root.join("Cargo.toml"))
            .exec()
            .context("read the workspace's manifests")?;
        Ok(Self { root, metadata })
    }

    /// Where cargo builds.
    pub fn target(&self) -> &Path {
        self.metadata.target_directory.as_std_path()
    }

    /// The member named `name`.
    pub fn member(&self, name: &str) -> Option<&cargo_metadata::Package> {
        self.metadata
            .workspace_packages()
            .into_iter()
            .find(|package| package.name.as_str() == name)
    }

    /// The directory of the contract files.
    pub fn contract_dir(&self) -> PathBuf {
        self.root.join("docs/contract")
    }

    /// `cargo`, to be run in the root.
    pub fn cargo(&self) -> Command {
        let mut cargo = cargo();
        cargo.current_dir(&self.root);
        cargo
    }
}

/// The root of this checkout.
///
/// # Errors
/// If this program is run without its sources.
pub fn root() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    match root {
        Some(root) if root.join("Cargo.toml").is_file() => Ok(root.to_owned()),
        _ => bail!("the checkout that this program was built from is gone"),
    }
}

/// The cargo that runs this program, or the one in the path.
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs a command with its output shown.
///
/// # Errors
/// If it does not start or does not succeed; the message holds the command.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("start {}", shown(command)))?;
    if !status.success() {
        bail!("{} failed: {status}", shown(command));
    }
    Ok(())
}

/// Runs a command and returns its standard output; what it says otherwise is in the error.
///
/// # Errors
/// As [`run`].
pub fn read(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("start {}", shown(command)))?;
    if !output.status.success() {
        bail!(
            "{} failed: {}\n{}",
            shown(command),
            output.status,
            said(&output)
        );
    }
    String::from_utf8(output.stdout).with_context(|| format!("{} printed no UTF-8", shown(command)))
}

/// All that a finished command printed, errors last.
pub fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    format!("{}\n{}", text(&output.stdout), text(&output.stderr))
        .trim()
        .to_owned()
}

/// A command as it would be typed.
pub fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut words = vec![
        program
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
    ];
    words.extend(
        command
            .get_args()
            .map(|arg| arg.to_string_lossy().into_owned()),
    );
    words.join(" ")
}
