//! The contract check: code against the committed files of `docs/contract/`.

pub mod api;
pub mod arrows;
pub mod catalogue;
pub mod drift;
pub mod harness;
pub mod header;
pub mod promises;
pub mod registry;
pub mod version;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::workspace::{self, Workspace};
use catalogue::Catalogue;
use drift::{Drift, Level};
use registry::Build;
use version::Stamp;

/// The command that makes a change of the contract deliberate.
pub const BLESS: &str = "cargo xtask contract-check --bless";

const API: &str = "plugin-api.contract";
const LAYOUTS: &str = "layouts.x86_64.json";
const METRICS: &str = "metrics.txt";
const POLICIES: &str = "policies.txt";
const TRANSFORMS: &str = "transforms.txt";
const PARAMETERS: &str = "parameters.txt";
const HEADER: &str = "connector-abi.contract";
const VERSION: &str = "VERSION";

const BINARY: &str = "ondol-bin";

/// What to check.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Options {
    /// Write the contract files anew; refused unless the contract's version was raised as the change demands
    #[arg(long)]
    pub bless: bool,
    /// Check a plugin crate in this directory, instead of this checkout
    #[arg(long, value_name = "PATH", conflicts_with_all = ["bless", "only"])]
    pub plugin: Option<PathBuf>,
    /// Only this step; may be given several times
    #[arg(long, value_name = "STEP")]
    pub only: Vec<Step>,
    /// Leave out release builds
    #[arg(long)]
    pub quick: bool,
}

/// A step of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Step {
    /// Which crate depends on which
    Arrows,
    /// The public surface of ondol-plugin
    Api,
    /// Frozen layouts, as the linked binary lists them
    Layouts,
    /// Metrics, as the linked binary lists them
    Metrics,
    /// Eviction policies, as the linked binary lists them
    Policies,
    /// Transforms of what is stored, as the linked binary lists them
    Transforms,
    /// Parameters of the storage backends in the linked binary
    Parameters,
    /// The C header of native connectors
    Header,
    /// Golden vectors of the wire formats
    Wire,
    /// The plugins in the linked binary, for each feature
    Registry,
    /// The tests that pin the promises of CONTRACT.md
    Promises,
    /// The version and fingerprint of the contract files
    Version,
}

/// Checks the contract and prints what was compared.
///
/// # Errors
/// If anything drifted; the details are printed.
pub fn run(options: &Options) -> Result<()> {
    let workspace = Workspace::load()?;
    if let Some(plugin) = &options.plugin {
        return harness::check(&workspace, plugin);
    }
    let mut check = Check {
        base: base(&workspace)?,
        workspace: &workspace,
        options,
        drifts: Vec::new(),
        written: BTreeMap::new(),
        catalogue: None,
    };
    let mut failed = Vec::new();
    for &step in Step::value_variants() {
        let wanted = options.only.is_empty()
            || options.only.contains(&step)
            || (options.bless && step == Step::Version);
        if !wanted {
            continue;
        }
        let name = step
            .to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default();
        if step == Step::Version && options.bless && !failed.is_empty() {
            println!("FAIL  {name:<9} nothing is blessed while another step fails");
            continue;
        }
        match check.step(step) {
            Ok(compared) => println!("ok    {name:<9} {compared}"),
            Err(error) => {
                println!("FAIL  {name:<9} {error:#}");
                failed.push(name);
            }
        }
    }
    if !failed.is_empty() {
        bail!("contract-check failed: {}", failed.join(", "));
    }
    Ok(())
}

struct Check<'a> {
    workspace: &'a Workspace,
    options: &'a Options,
    /// The contract files last committed.
    base: BTreeMap<String, String>,
    /// How the files to be blessed differ from those.
    drifts: Vec<Drift>,
    /// The files to be blessed.
    written: BTreeMap<String, String>,
    catalogue: Option<Catalogue>,
}

impl Check<'_> {
    fn step(&mut self, step: Step) -> Result<String> {
        match step {
            Step::Arrows => self.arrows(),
            Step::Api => self.api(),
            Step::Layouts => {
                let (text, rows) = {
                    let catalogue = self.catalogue()?;
                    (catalogue.layouts_text()?, catalogue.layouts.len())
                };
                self.file(
                    LAYOUTS,
                    &text,
                    &format!("{rows} layouts"),
                    catalogue::compare_layouts,
                )
            }
            Step::Metrics => {
                let text = self.catalogue()?.metrics_text();
                self.file(
                    METRICS,
                    &text,
                    &format!("{} metrics", text.lines().count()),
                    |old, new| Ok(drift::lines("metrics", old, new)),
                )
            }
            Step::Policies => {
                let text = self.catalogue()?.policies_text();
                self.file(
                    POLICIES,
                    &text,
                    &format!("{} policies", text.lines().count()),
                    |old, new| Ok(drift::lines("policies", old, new)),
                )
            }
            Step::Transforms => {
                let text = self.catalogue()?.transforms_text();
                self.file(
                    TRANSFORMS,
                    &text,
                    &format!("{} transforms", text.lines().count()),
                    |old, new| Ok(drift::lines("transforms", old, new)),
                )
            }
            Step::Parameters => {
                let binary = self.build(None, false)?;
                let text = registry::Listing::of(&binary)?.parameters_text();
                self.file(
                    PARAMETERS,
                    &text,
                    &format!("{} parameters of backends", text.lines().count()),
                    |old, new| Ok(drift::lines("parameters", old, new)),
                )
            }
            Step::Header => self.header(),
            Step::Wire => self.wire(),
            Step::Registry => self.registry(),
            Step::Promises => self.promises(),
            Step::Version => self.version(),
        }
    }

    fn arrows(&self) -> Result<String> {
        let graph = arrows::read(self.workspace)?;
        let broken = arrows::check(&graph);
        if !broken.is_empty() {
            bail!("{}", broken.join("\n      "));
        }
        let dependencies: usize = graph
            .packages
            .iter()
            .map(|package| package.dependencies.len())
            .sum();
        Ok(format!(
            "{dependencies} dependencies of {} packages against the table of rooms",
            graph.packages.len()
        ))
    }

    fn api(&mut self) -> Result<String> {
        let text =
            api::normalise_crate(&self.workspace.root.join("crates/ondol-plugin/src/lib.rs"))?;
        let items = text.split("\n\n").count();
        self.file(
            API,
            &text,
            &format!("{items} items of ondol-plugin"),
            api::classify,
        )
    }

    fn header(&mut self) -> Result<String> {
        let path = self.workspace.root.join("include/ondol_connector.h");
        let header =
            std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let text = header::normalise(&header);
        let lines = text.lines().count();
        self.file(HEADER, &text, &format!("{lines} lines of C"), |old, new| {
            Ok(header::compare(old, new))
        })
    }

    /// Compares `text` with the committed file, or keeps it to be blessed.
    fn file(
        &mut self,
        name: &str,
        text: &str,
        items: &str,
        compare: impl Fn(&str, &str) -> Result<Vec<Drift>>,
    ) -> Result<String> {
        if self.options.bless {
            let drifts = match self.base.get(name) {
                Some(base) => compare(base, text)?,
                None => Vec::new(),
            };
            let changes = drifts.len();
            self.drifts.extend(drifts);
            self.written.insert(name.to_owned(), text.to_owned());
            return Ok(format!("{items}, {changes} changes since the last commit"));
        }
        let path = self.workspace.contract_dir().join(name);
        let committed = std::fs::read_to_string(&path)
            .with_context(|| format!("docs/contract/{name} is not there; `{BLESS}` writes it"))?;
        let drifts = compare(&committed, text)?;
        if let Some(level) = drift::level(&drifts) {
            let list: Vec<_> = drifts.iter().map(|drift| format!("  {drift}")).collect();
            bail!(
                "{items} differ from docs/contract/{name}, a {level} change\n{}\n  undo it, or raise the version of \
                 ondol-plugin and run `{BLESS}`",
                list.join("\n")
            );
        }
        Ok(format!("{items} against docs/contract/{name}"))
    }

    fn wire(&mut self) -> Result<String> {
        let files = contract_files(&self.workspace.contract_dir())?;
        let vectors: BTreeMap<_, _> = files.iter().filter(|(name, _)| is_vector(name)).collect();
        if self.options.bless {
            let names = self
                .base
                .keys()
                .filter(|name| is_vector(name))
                .chain(vectors.keys().copied());
            for name in names.collect::<std::collections::BTreeSet<_>>() {
                let drift = match (self.base.get(name), files.get(name)) {
                    (Some(old), Some(new)) if old != new => {
                        Drift::new(Level::Major, name, old, new)
                    }
                    (Some(old), None) => Drift::new(Level::Major, name, old, ""),
                    (None, Some(new)) => Drift::new(Level::Minor, name, "", new),
                    _ => continue,
                };
                self.drifts.push(drift);
            }
        }
        if !self
            .workspace
            .root
            .join("crates/ondol-protocol/tests/golden.rs")
            .is_file()
        {
            anyhow::ensure!(
                vectors.is_empty(),
                "{} golden vectors and no test that reads them",
                vectors.len()
            );
            return Ok("there are no golden vectors".to_owned());
        }
        let mut cargo = self.workspace.cargo();
        workspace::read(cargo.args([
            "test",
            "--quiet",
            "-p",
            "ondol-protocol",
            "--test",
            "golden",
        ]))?;
        Ok(format!(
            "{} golden vectors, read by the test `golden` of ondol-protocol",
            vectors.len()
        ))
    }

    fn registry(&self) -> Result<String> {
        let features = self.vendor_features()?;
        let mut builds: Vec<_> = features
            .iter()
            .map(|feature| (vec![feature.clone()], false))
            .collect();
        builds.push((Vec::new(), !self.options.quick));
        builds.push((features.clone(), !self.options.quick));
        let mut shown = Vec::new();
        for (promised, release) in &builds {
            let all = promised.len() == features.len() && self.default_is(&features);
            let binary = self.build((!all).then_some(promised), *release)?;
            let name = if promised.is_empty() {
                "none".to_owned()
            } else {
                promised.join(",")
            };
            let profile = if *release { "release" } else { "debug" };
            let plugins = registry::inspect(&binary, promised)
                .with_context(|| format!("features {name} in {profile}"))?;
            shown.push(format!("{name} in {profile}: {plugins}"));
        }
        Ok(format!(
            "plugins in {} linked binaries ({})",
            builds.len(),
            shown.join("; ")
        ))
    }

    fn promises(&self) -> Result<String> {
        let page = self.workspace.contract_dir().join("CONTRACT.md");
        let page = std::fs::read_to_string(&page).context("docs/contract/CONTRACT.md")?;
        let promises = promises::parse(&page)?;
        let missing = promises::missing(&promises, &self.workspace.root);
        if !missing.is_empty() {
            bail!("{}", missing.join("\n      "));
        }
        let tests: usize = promises.iter().map(|promise| promise.tests.len()).sum();
        let unpinned = promises.iter().filter(|promise| promise.tests.is_empty());
        let unpinned: Vec<_> = unpinned.map(|promise| promise.number.as_str()).collect();
        let note = match unpinned.len() {
            0 => String::new(),
            _ => format!("; no test yet pins {}", unpinned.join(", ")),
        };
        Ok(format!(
            "{tests} tests that pin {} promises{note}",
            promises.len()
        ))
    }

    fn version(&mut self) -> Result<String> {
        let package = self
            .workspace
            .member("ondol-plugin")
            .context("ondol-plugin is no member")?;
        let version = package.version.clone();
        let dir = self.workspace.contract_dir();
        if self.options.bless {
            return self.bless(&dir, version);
        }
        let text = std::fs::read_to_string(dir.join(VERSION)).with_context(|| {
            format!("docs/contract/{VERSION} is not there; `{BLESS}` writes it")
        })?;
        let stamp: Stamp = text.parse()?;
        let files = contract_files(&dir)?;
        anyhow::ensure!(
            stamp.contract == version,
            "docs/contract/{VERSION} says contract {} and crate ondol-plugin is {version}; run `{BLESS}`",
            stamp.contract
        );
        let found = version::fingerprint(&files);
        anyhow::ensure!(
            stamp.fingerprint == found,
            "the contract files are not those that were blessed as {version}\n    - {}\n    + {found}\n  a change of the \
             contract is made in the code and with a higher version of ondol-plugin; then run `{BLESS}`",
            stamp.fingerprint
        );
        Ok(format!(
            "contract {version}, fingerprint of {} files",
            files.len()
        ))
    }

    fn bless(&self, dir: &Path, version: semver::Version) -> Result<String> {
        for drift in &self.drifts {
            println!("      {drift}");
        }
        if let Some(stamp) = self.base.get(VERSION) {
            version::check_raise(
                &stamp.parse::<Stamp>()?.contract,
                &version,
                drift::level(&self.drifts),
            )?;
        }
        std::fs::create_dir_all(dir)?;
        for (name, text) in &self.written {
            std::fs::write(dir.join(name), text)?;
        }
        let files = contract_files(dir)?;
        let stamp = Stamp {
            contract: version.clone(),
            fingerprint: version::fingerprint(&files),
        };
        std::fs::write(dir.join(VERSION), stamp.to_string())?;
        Ok(format!(
            "blessed {} files as contract {version}",
            files.len()
        ))
    }

    fn catalogue(&mut self) -> Result<&Catalogue> {
        if self.catalogue.is_none() {
            let binary = self.build(None, false)?;
            self.catalogue = Some(Catalogue::of(&binary)?);
        }
        self.catalogue.as_ref().context("the catalogue")
    }

    fn build(&self, features: Option<&Vec<String>>, release: bool) -> Result<PathBuf> {
        let build = Build {
            manifest: &self.workspace.root.join("Cargo.toml"),
            package: BINARY,
            target: self.workspace.target(),
            features: features.map(Vec::as_slice),
            release,
        };
        build.run()
    }

    /// The features of the binary that stand for one plugin crate each.
    fn vendor_features(&self) -> Result<Vec<String>> {
        let binary = self
            .workspace
            .member(BINARY)
            .context("ondol-bin is no member")?;
        let of_plugin =
            |(name, parts): &(&String, &Vec<String>)| parts[..] == [format!("dep:{name}")];
        Ok(binary
            .features
            .iter()
            .filter(of_plugin)
            .map(|(name, _)| name.clone())
            .collect())
    }

    fn default_is(&self, features: &[String]) -> bool {
        let default = self
            .workspace
            .member(BINARY)
            .and_then(|binary| binary.features.get("default"));
        default.is_some_and(|default| features.iter().all(|feature| default.contains(feature)))
    }
}

fn is_vector(name: &str) -> bool {
    name.starts_with("wire/")
}

/// The contract files under `dir`, those that the fingerprint covers, by name.
fn contract_files(dir: &Path) -> Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    for name in [API, LAYOUTS, METRICS, POLICIES] {
        if let Ok(text) = std::fs::read_to_string(dir.join(name)) {
            files.insert(name.to_owned(), text);
        }
    }
    let wire = dir.join("wire");
    if wire.is_dir() {
        for entry in std::fs::read_dir(&wire)? {
            let path = entry?.path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("read {}", path.display()))?;
            files.insert(format!("wire/{name}"), text);
        }
    }
    Ok(files)
}

/// The contract files last committed, with their stamp, or those in the working tree where no history is.
///
/// Committed ones count, so that a change may be blessed as often as it takes to get it right under one version.
fn base(workspace: &Workspace) -> Result<BTreeMap<String, String>> {
    let git = |args: &[&str]| {
        workspace::read(Command::new("git").current_dir(&workspace.root).args(args))
    };
    let listed =
        git(&["ls-tree", "-r", "--name-only", "HEAD", "docs/contract/"]).unwrap_or_default();
    let committed: Vec<_> = listed
        .lines()
        .filter_map(|path| path.strip_prefix("docs/contract/"))
        .collect();
    if committed.contains(&VERSION) {
        let known = [API, LAYOUTS, METRICS, POLICIES, VERSION];
        let names = committed
            .into_iter()
            .filter(|name| known.contains(name) || is_vector(name));
        let text = |name: &str| git(&["show", &format!("HEAD:docs/contract/{name}")]);
        return names
            .map(|name| Ok((name.to_owned(), text(name)?)))
            .collect();
    }
    let dir = workspace.contract_dir();
    let Ok(stamp) = std::fs::read_to_string(dir.join(VERSION)) else {
        return Ok(BTreeMap::new());
    };
    let mut files = contract_files(&dir)?;
    files.insert(VERSION.to_owned(), stamp);
    Ok(files)
}
