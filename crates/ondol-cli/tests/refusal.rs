//! A binary whose plugins are not those that it was built for does nothing.

use std::process::ExitCode;

#[test]
fn a_missing_plugin_ends_the_program_before_the_command_line_is_read() {
    // No plugin is linked into this test. Were the command line read, the test's own arguments would give 0 or 2.
    let code = ondol_cli::main(&["handler-lost"]);
    assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::from(78)));
}
