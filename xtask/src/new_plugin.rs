//! A skeleton of a plugin crate that compiles, passes its tests and the contract check.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, value};

use crate::workspace::{self, Workspace};

/// What to write.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The plugin's name: lower case, digits and dashes. `acme-disk` of kind l2 is the crate `l2-acme-disk`, its type
    /// `acme_disk` and its class `AcmeDiskAdapter`; a name that begins with its kind is taken without it
    pub name: String,
    /// What kind of plugin
    #[arg(long)]
    pub kind: Kind,
    /// Write the crate into this directory, outside this workspace, instead of vendor-plugins/
    #[arg(long, value_name = "DIR")]
    pub path: Option<PathBuf>,
}

/// A kind of plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Behaviour at the handler's seams
    Handler,
    /// A storage backend
    L2,
    /// A storage backend in the six-method form
    Connector,
}

/// What is written for a kind of plugin: the manifest within this workspace, the one for elsewhere, and the sources.
struct Template {
    in_tree: &'static str,
    out_of_tree: &'static str,
    files: &'static [(&'static str, &'static str)],
}

macro_rules! template {
    ($kind:literal, $($file:literal => $source:literal),*) => {
        Template {
            in_tree: include_str!(concat!("../templates/", $kind, "/in-tree.toml")),
            out_of_tree: include_str!(concat!("../templates/", $kind, "/out-of-tree.toml")),
            files: &[$(($file, include_str!(concat!("../templates/", $kind, "/", $source)))),*],
        }
    };
}

impl Kind {
    const ALL: [Self; 3] = [Self::Handler, Self::L2, Self::Connector];

    /// What the names of its crates begin with.
    const fn prefix(self) -> &'static str {
        match self {
            Self::Handler => "handler-",
            Self::L2 => "l2-",
            Self::Connector => "connector-",
        }
    }

    const fn template(self) -> Template {
        match self {
            Self::Handler => template!(
                "handler",
                "src/lib.rs" => "lib.rs",
                "src/config.rs" => "config.rs",
                "src/plugin.rs" => "plugin.rs",
                "src/docs.md" => "docs.md",
                "tests/conformance.rs" => "conformance.rs"
            ),
            Self::L2 => template!(
                "l2",
                "src/lib.rs" => "lib.rs",
                "src/config.rs" => "config.rs",
                "src/adapter.rs" => "adapter.rs",
                "src/docs.md" => "docs.md",
                "tests/conformance.rs" => "conformance.rs"
            ),
            Self::Connector => template!(
                "connector",
                "src/lib.rs" => "lib.rs",
                "src/config.rs" => "config.rs",
                "src/connector.rs" => "connector.rs",
                "src/docs.md" => "docs.md",
                "tests/conformance.rs" => "conformance.rs"
            ),
        }
    }
}

/// The names of a plugin in the places where it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Names {
    plugin: String,
    package: String,
    type_name: String,
    variable: String,
}

/// Writes the crate and, within this workspace, names it in the thin binary.
///
/// # Errors
/// A name that is no plugin's, a directory in use.
pub fn run(options: &Options) -> Result<()> {
    let names = Names::of(options.kind, &options.name)?;
    let workspace = Workspace::load()?;
    let inside = workspace.root.join("vendor-plugins").join(&names.package);
    let dir = options.path.clone().unwrap_or(inside);
    let used = dir
        .read_dir()
        .is_ok_and(|mut entries| entries.next().is_some());
    ensure!(
        !used,
        "{} is not empty; choose another name, or delete it if nothing needs it",
        dir.display()
    );
    let template = options.kind.template();
    let manifest = match &options.path {
        None => names.fill(template.in_tree),
        Some(_) => outside_manifest(&workspace, &names, template.out_of_tree)?,
    };
    if options.path.is_none() {
        // First, since it can fail where the binary is not as expected.
        edit_binary(&workspace, &names)?;
    }
    for folder in ["src", "tests"] {
        std::fs::create_dir_all(dir.join(folder))?;
    }
    write(&dir.join("Cargo.toml"), &manifest)?;
    for (name, text) in template.files {
        write(&dir.join(name), &names.fill(text))?;
    }
    // Names differ in length and in their place in the alphabet, so the formatter has the last word.
    // It is asked about files, not about a package, which may lie in a workspace that does not know it yet.
    let mut fmt = Command::new("rustfmt");
    fmt.args(["--edition", "2024"]);
    fmt.args(["src/lib.rs", "tests/conformance.rs"].map(|file| dir.join(file)));
    workspace::run(&mut fmt)?;
    if options.path.is_none() {
        workspace::run(workspace.cargo().args(["fmt", "--package", "ondol-bin"]))?;
    }
    println!("wrote {} ({})", names.package, dir.display());
    match &options.path {
        None => println!(
            "it is a feature of ondol-bin; see it with `cargo run -p ondol-bin --features {} -- plugins`",
            names.package
        ),
        Some(_) => println!(
            "check it with `cargo xtask contract-check --plugin {}`",
            dir.display()
        ),
    }
    Ok(())
}

impl Names {
    fn of(kind: Kind, name: &str) -> Result<Self> {
        let plugin = name.strip_prefix(kind.prefix()).unwrap_or(name);
        let legal = |part: &str| {
            !part.is_empty()
                && part
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        };
        ensure!(
            plugin.split('-').all(legal)
                && plugin.starts_with(|first: char| first.is_ascii_lowercase()),
            "`{name}` is no plugin's name; expected lower-case letters and digits with dashes between them, a letter first"
        );
        let capital = |part: &str| part[..1].to_uppercase() + &part[1..];
        Ok(Self {
            plugin: plugin.to_owned(),
            package: format!("{}{plugin}", kind.prefix()),
            type_name: plugin.split('-').map(capital).collect(),
            variable: format!("ONDOL_{}", plugin.replace('-', "_").to_uppercase()),
        })
    }

    fn fill(&self, template: &str) -> String {
        template
            .replace("{{plugin}}", &self.plugin)
            .replace("{{type}}", &self.plugin.replace('-', "_"))
            .replace("{{crate}}", &self.package)
            .replace("{{module}}", &self.package.replace('-', "_"))
            .replace("{{Type}}", &self.type_name)
            .replace("{{VARIABLE}}", &self.variable)
    }
}

fn outside_manifest(workspace: &Workspace, names: &Names, template: &str) -> Result<String> {
    let path_to = |name: &str| {
        let path = workspace.root.join("crates").join(name);
        let path = path.to_str().context("the checkout's path is no UTF-8")?;
        Ok::<_, anyhow::Error>(toml::Value::from(path).to_string())
    };
    let version = |name: &str| {
        let package = workspace
            .metadata
            .packages
            .iter()
            .find(|package| package.name.as_str() == name);
        package
            .map(|package| package.version.to_string())
            .with_context(|| format!("{name} is not in the graph"))
    };
    Ok(names
        .fill(template)
        .replace("{{contract}}", &path_to("ondol-plugin")?)
        .replace("{{testkit}}", &path_to("ondol-testkit")?)
        .replace("{{anyhow}}", &version("anyhow")?)
        .replace("{{serde}}", &version("serde")?)
        .replace("{{serde_json}}", &version("serde_json")?))
}

fn edit_binary(workspace: &Workspace, names: &Names) -> Result<()> {
    let dir = workspace.root.join("crates/ondol-bin");
    let edit = |file: &str, edit: &dyn Fn(&str) -> Result<String>| -> Result<(PathBuf, String)> {
        let path = dir.join(file);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let edited =
            edit(&text).with_context(|| format!("name {} in {}", names.package, path.display()))?;
        Ok((path, edited))
    };
    let manifest = edit("Cargo.toml", &|text| with_feature(text, &names.package))?;
    let source = edit("src/main.rs", &|text| with_use(text, &names.package))?;
    for (path, text) in [manifest, source] {
        write(&path, &text)?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

/// The binary's manifest with a feature for the plugin crate `package`, and the optional dependency behind it.
fn with_feature(manifest: &str, package: &str) -> Result<String> {
    let mut document: DocumentMut = manifest.parse()?;
    let dependencies = table(&mut document, "dependencies")?;
    ensure!(
        !dependencies.contains_key(package),
        "there is a dependency {package} already"
    );
    let mut dependency = InlineTable::new();
    dependency.insert("path", format!("../../vendor-plugins/{package}").into());
    dependency.insert("optional", true.into());
    dependencies.insert(package, value(dependency));
    let features = table(&mut document, "features")?;
    ensure!(
        !features.contains_key(package),
        "there is a feature {package} already"
    );
    features.insert(package, value(Array::from_iter([format!("dep:{package}")])));
    Ok(document.to_string())
}

fn table<'a>(document: &'a mut DocumentMut, name: &str) -> Result<&'a mut Table> {
    let item = document
        .entry(name)
        .or_insert_with(|| Item::Table(Table::new()));
    item.as_table_mut()
        .with_context(|| format!("[{name}] is no table"))
}

/// The binary's source with the crate `package` named, so that it is linked, and expected, so that it is missed
/// if it is not.
fn with_use(source: &str, package: &str) -> Result<String> {
    let library = package.replace('-', "_");
    let cfg = format!("#[cfg(feature = \"{package}\")]");
    let mut lines: Vec<String> = source.lines().map(str::to_owned).collect();
    let named = |line: &String| {
        line.trim_start().starts_with("use ") && line.trim_end().ends_with(" as _;")
    };
    let uses = match lines.iter().rposition(named) {
        Some(last) => last + 1,
        None => lines
            .iter()
            .position(|line| !line.is_empty() && !line.starts_with("//") && !line.starts_with("#!"))
            .unwrap_or(lines.len()),
    };
    lines.splice(uses..uses, [cfg.clone(), format!("use {library} as _;")]);
    let entry = |line: &String| {
        let name = line
            .trim()
            .strip_prefix('"')
            .and_then(|line| line.strip_suffix("\","));
        let is_plugin = |name: &str| Kind::ALL.iter().any(|kind| name.starts_with(kind.prefix()));
        name.is_some_and(is_plugin)
    };
    let last = lines.iter().rposition(entry);
    let opening = || {
        lines
            .iter()
            .position(|line| line.trim_end().ends_with("&["))
    };
    let expected = last
        .or_else(opening)
        .context("it has no list of expected packages, one a line")?
        + 1;
    lines.splice(
        expected..expected,
        [format!("    {cfg}"), format!("    \"{package}\",")],
    );
    let text = lines.join("\n") + "\n";
    syn::parse_file(&text).context("the edited source does not parse")?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_from_the_plugins() {
        let names = Names::of(Kind::Handler, "acme-hint2").unwrap();
        assert_eq!(
            names,
            Names::of(Kind::Handler, "handler-acme-hint2").unwrap()
        );
        let Names {
            plugin,
            package,
            type_name,
            variable,
        } = names;
        assert_eq!(
            [plugin, package, type_name, variable],
            [
                "acme-hint2",
                "handler-acme-hint2",
                "AcmeHint2",
                "ONDOL_ACME_HINT2"
            ]
        );
        let backend = Names::of(Kind::L2, "acme-disk").unwrap();
        assert_eq!(backend.package, "l2-acme-disk");
        assert_eq!(backend.fill("{{type}} {{Type}}"), "acme_disk AcmeDisk");
        for bad in [
            "",
            "Acme",
            "acme_hint",
            "-acme",
            "acme--hint",
            "2fast",
            "handler-",
            "é",
        ] {
            assert!(
                Names::of(Kind::Handler, bad)
                    .unwrap_err()
                    .to_string()
                    .contains("lower-case"),
                "{bad}"
            );
        }
    }

    #[test]
    fn the_binarys_manifest_keeps_its_shape() {
        let manifest = "# Thin.\n[package]\nname = \"ondol-bin\"\n\n[features]\ndefault = [\"handler-a\"]\nhandler-a = [\"dep:handler-a\"] # ours\n\n[dependencies]\nhandler-a = { path = \"../../vendor-plugins/handler-a\", optional = true }\nondol-cli.workspace = true\n";
        let edited = with_feature(manifest, "handler-b").unwrap();
        for line in manifest.lines() {
            assert!(edited.contains(line), "lost: {line}");
        }
        let parsed: toml::Table = edited.parse().unwrap();
        assert_eq!(
            parsed["features"]["handler-b"][0].as_str(),
            Some("dep:handler-b")
        );
        assert_eq!(
            parsed["dependencies"]["handler-b"]["optional"].as_bool(),
            Some(true)
        );
        assert!(
            with_feature(&edited, "handler-b")
                .unwrap_err()
                .to_string()
                .contains("already")
        );
        with_feature("[package]\nname = \"ondol-bin\"\n", "handler-b").unwrap();
    }

    #[test]
    fn the_binary_names_and_expects_the_new_crate() {
        let source = "//! Thin.\n\n#[cfg(feature = \"handler-a\")]\nuse handler_a as _;\n\nconst EXPECTED: &[&str] = &[\n    #[cfg(feature = \"handler-a\")]\n    \"handler-a\",\n];\n\nfn main() {}\n";
        let edited = with_use(source, "handler-b").unwrap();
        let after =
            |first: &str, second: &str| edited.find(first).unwrap() < edited.find(second).unwrap();
        assert!(
            after(
                "use handler_a as _;",
                "#[cfg(feature = \"handler-b\")]\nuse handler_b as _;"
            ),
            "{edited}"
        );
        assert!(
            after(
                "\"handler-a\",",
                "    #[cfg(feature = \"handler-b\")]\n    \"handler-b\",\n]"
            ),
            "{edited}"
        );
        let empty = "//! Thin.\n#![forbid(unsafe_code)]\n\nfn main() {\n    run(&[\n    ]);\n}\n";
        let edited = with_use(empty, "handler-b").unwrap();
        assert!(
            edited.contains("use handler_b as _;\nfn main()") && edited.contains("\"handler-b\","),
            "{edited}"
        );
        with_use("fn main() {}\n", "handler-b").unwrap_err();
    }

    #[test]
    fn the_binary_as_it_stands_can_take_another_plugin() {
        let dir = workspace::root().unwrap().join("crates/ondol-bin");
        let read = |file: &str| std::fs::read_to_string(dir.join(file)).unwrap();
        let source = with_use(&read("src/main.rs"), "handler-zzz").unwrap();
        let list = source.find("EXPECTED").unwrap();
        let (uses, list) = source.split_at(list);
        assert!(uses.contains("use handler_zzz as _;"), "{source}");
        let list = &list[..list.find("];").unwrap()];
        assert!(
            list.contains("#[cfg(feature = \"handler-zzz\")]\n    \"handler-zzz\","),
            "{source}"
        );
        with_feature(&read("Cargo.toml"), "handler-zzz").unwrap();
    }
}
