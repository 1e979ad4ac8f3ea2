//! The executable `ondol`. Which plugins it holds is a matter of Cargo features; each is named here, as a crate that
//! nobody names is not linked.

#![cfg_attr(
    test,
    allow(
        unused_crate_dependencies,
        reason = "a test build sees what tests/ depends on too"
    )
)]

use std::process::ExitCode;

#[cfg(feature = "connector-example-cpp")]
use connector_example_cpp as _;
#[cfg(feature = "handler-access-trace")]
use handler_access_trace as _;
#[cfg(feature = "handler-prefault")]
use handler_prefault as _;
#[cfg(feature = "l2-fault-inject")]
use l2_fault_inject as _;
#[cfg(feature = "l2-fs")]
use l2_fs as _;
#[cfg(feature = "l2-memory")]
use l2_memory as _;

/// The packages whose plugins must be registered; what differs ends the program before it does anything.
const EXPECTED: &[&str] = &[
    #[cfg(feature = "connector-example-cpp")]
    "connector-example-cpp",
    #[cfg(feature = "handler-access-trace")]
    "handler-access-trace",
    #[cfg(feature = "handler-prefault")]
    "handler-prefault",
    #[cfg(feature = "l2-fault-inject")]
    "l2-fault-inject",
    #[cfg(feature = "l2-fs")]
    "l2-fs",
    #[cfg(feature = "l2-memory")]
    "l2-memory",
];

fn main() -> ExitCode {
    ondol_cli::main(EXPECTED)
}
