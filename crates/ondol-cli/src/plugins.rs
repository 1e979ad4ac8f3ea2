//! `ondol plugins`: what is linked in, and what would load.

use std::io::Write;
use std::process::ExitCode;

use ondol_host::l2::L2Registry;
use ondol_host::{ALLOWLIST_VARIABLE, HandlerPlugins, LoadOptions, PluginReport, Registry};
use ondol_plugin::Package;
use ondol_plugin::l2::{L2AdapterFactory, NativeConnectorFactory, Parameter};
use serde::Serialize;

use crate::output::{Table, print_json, stdout};

/// List the plugins that are linked into this program, and which would load
///
/// Handler plugins run in the process that embeds the handler: here, in `put`, `get` and `replay`, never in `serve`.
/// Makes an instance of each one that the allowlist MARU_PLUGINS admits, as those commands would, to say what
/// becomes of it. Storage adapters and native connectors run in `serve`, where --l2-adapter names them; they are listed
/// with their parameters, and not opened.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Listing<'a> {
    expected: &'a [&'a str],
    plugins: Vec<Row>,
    unmatched: &'a [String],
    adapters: Vec<Adapter>,
    connectors: Vec<Connector>,
}

/// A storage adapter.
#[derive(Serialize)]
struct Adapter {
    #[serde(rename = "type")]
    type_name: &'static str,
    aliases: &'static [&'static str],
    module_path: &'static str,
    class_name: &'static str,
    package: &'static str,
    version: &'static str,
    /// Another adapter of this type comes first.
    shadowed: bool,
    /// Checks by itself what it gives back.
    verifies: bool,
    config_classes: Vec<&'static str>,
    parameters: Vec<ParameterRow>,
}

/// A native connector.
#[derive(Serialize)]
struct Connector {
    module_path: &'static str,
    class_name: &'static str,
    package: &'static str,
    version: &'static str,
    parameters: Vec<ParameterRow>,
}

#[derive(Serialize)]
struct ParameterRow {
    name: &'static str,
    /// `None` if it must be given.
    default: Option<&'static str>,
    summary: &'static str,
}

impl From<&Parameter> for ParameterRow {
    fn from(parameter: &Parameter) -> Self {
        Self {
            name: parameter.name,
            default: parameter.default,
            summary: parameter.summary,
        }
    }
}

impl Adapter {
    fn of(registry: &L2Registry, factory: &L2AdapterFactory) -> Self {
        let Package { name, version } = factory.package();
        Self {
            type_name: factory.type_name(),
            aliases: factory.alias_names(),
            module_path: factory.module_path(),
            class_name: factory.class_name(),
            package: name,
            version,
            shadowed: registry.is_shadowed(factory),
            verifies: factory.does_verify(),
            config_classes: factory.configs().map(|class| class.name()).collect(),
            parameters: factory.parameter_list().iter().map(Into::into).collect(),
        }
    }
}

impl From<&NativeConnectorFactory> for Connector {
    fn from(factory: &NativeConnectorFactory) -> Self {
        let Package { name, version } = factory.package();
        Self {
            module_path: factory.module_path(),
            class_name: factory.class_name(),
            package: name,
            version,
            parameters: factory.parameter_list().iter().map(Into::into).collect(),
        }
    }
}

#[derive(Serialize)]
struct Row {
    kind: &'static str,
    #[serde(flatten)]
    report: PluginReport,
}

pub(crate) fn run(args: &Args, expected: &[&str]) -> anyhow::Result<ExitCode> {
    let plugins = HandlerPlugins::load(Registry::global(), LoadOptions::from_env());
    let reports = plugins.report();
    let registry = L2Registry::global();
    let adapters = registry.adapters().iter();
    let adapters: Vec<_> = adapters.map(|row| Adapter::of(registry, row)).collect();
    let connectors = registry.connectors().iter();
    let connectors: Vec<_> = connectors.map(|row| Connector::from(*row)).collect();
    if args.json {
        let rows = reports.into_iter().map(|report| Row {
            kind: "handler",
            report,
        });
        print_json(&Listing {
            expected,
            plugins: rows.collect(),
            unmatched: plugins.unmatched(),
            adapters,
            connectors,
        })?;
        return Ok(ExitCode::SUCCESS);
    }

    let mut out = stdout();
    if reports.is_empty() && adapters.is_empty() && connectors.is_empty() {
        writeln!(out, "no plugins are linked into this program")?;
    } else {
        let mut table = Table::new([
            "NAME",
            "KIND",
            "PACKAGE",
            "VERSION",
            "STATE",
            "HOOKS, NAMES OR WHY",
        ]);
        for report in &reports {
            table.row([
                report.name.to_owned(),
                "handler".to_owned(),
                report.package.to_owned(),
                report.version.to_owned(),
                report.state.to_string(),
                hooks_or_why(report),
            ]);
        }
        for adapter in &adapters {
            table.row([
                adapter.type_name.to_owned(),
                "l2 adapter".to_owned(),
                adapter.package.to_owned(),
                adapter.version.to_owned(),
                if adapter.shadowed {
                    "duplicate"
                } else {
                    "linked"
                }
                .to_owned(),
                names_of(adapter),
            ]);
        }
        for connector in &connectors {
            table.row([
                connector.class_name.to_owned(),
                "l2 connector".to_owned(),
                connector.package.to_owned(),
                connector.version.to_owned(),
                "linked".to_owned(),
                format!(
                    "native_plugin, {}::{}",
                    connector.module_path, connector.class_name
                ),
            ]);
        }
        table.write(&mut out, "")?;
    }
    for adapter in &adapters {
        let name = format!("\"type\":\"{}\"", adapter.type_name);
        write_parameters(&mut out, &name, &adapter.parameters)?;
    }
    for connector in &connectors {
        let name = format!("\"class_name\":\"{}\"", connector.class_name);
        write_parameters(&mut out, &name, &connector.parameters)?;
    }
    if !plugins.unmatched().is_empty() {
        writeln!(
            out,
            "\n{ALLOWLIST_VARIABLE} names plugins that are not linked into this program: {}",
            plugins.unmatched().join(", ")
        )?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// How else an adapter can be named.
fn names_of(adapter: &Adapter) -> String {
    let class = format!("{}::{}", adapter.module_path, adapter.class_name);
    if adapter.shadowed {
        return format!("another adapter of this type comes first; only as a plugin, {class}");
    }
    let mut names = adapter.aliases.to_vec();
    names.push(&class);
    names.join(", ")
}

fn write_parameters(
    out: &mut impl Write,
    name: &str,
    parameters: &[ParameterRow],
) -> std::io::Result<()> {
    if parameters.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nparameters of {{{name}}}")?;
    let mut table = Table::new(["NAME", "DEFAULT", "MEANING"]);
    for parameter in parameters {
        table.row([
            parameter.name.to_owned(),
            parameter.default.unwrap_or("(required)").to_owned(),
            parameter.summary.to_owned(),
        ]);
    }
    table.write(out, "  ")
}

fn hooks_or_why(report: &PluginReport) -> String {
    if let Some(reason) = &report.reason {
        return reason.clone();
    }
    let hook = |hook: &&str| {
        let lane = if report.deferred.contains(hook) {
            " (deferred)"
        } else {
            ""
        };
        format!("{hook}{lane}")
    };
    report.hooks.iter().map(hook).collect::<Vec<_>>().join(", ")
}
