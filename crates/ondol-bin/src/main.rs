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

#[cfg(feature = "handler-access-trace")]
use handler_access_trace as _;
#[cfg(feature = "handler-prefault")]
use handler_prefault as _;

/// The packages whose plugins must be registered; what differs ends the program before it does anything.
const EXPECTED: &[&str] = &[
    #[cfg(feature = "handler-access-trace")]
    "handler-access-trace",
    #[cfg(feature = "handler-prefault")]
    "handler-prefault",
];

fn main() -> ExitCode {
    ondol_cli::main(EXPECTED)
}
