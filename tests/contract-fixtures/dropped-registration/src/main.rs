//! Answers `plugins --json` as `ondol` does.

use std::process::ExitCode;

use ondol_host::{HandlerPlugins, LoadOptions, Registry};

#[cfg(feature = "named")]
use fixture_plugin as _;

const EXPECTED: &[&str] = &["fixture-plugin"];

fn main() -> ExitCode {
    let registry = Registry::global();
    if cfg!(feature = "self-check")
        && let Err(mismatch) = registry.verify_expected(EXPECTED)
    {
        eprintln!("{mismatch}");
        return ExitCode::from(78);
    }
    let plugins = HandlerPlugins::load(registry, LoadOptions::from_env());
    let listing = serde_json::json!({ "expected": EXPECTED, "plugins": plugins.report() });
    println!("{listing}");
    ExitCode::SUCCESS
}
