//! An `ondol` that stores in journals.
#![deny(unused_crate_dependencies)]

use l2_journal_file as _;

fn main() -> std::process::ExitCode {
    ondol_cli::main(&["l2-journal-file"])
}
