//! An `ondol` with a plugin set of its own.
#![cfg_attr(not(test), deny(unused_crate_dependencies))]

use example_plugin as _;

fn main() -> std::process::ExitCode {
    ondol_cli::main(&["example-plugin"])
}
