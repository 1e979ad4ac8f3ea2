//! What every handler plugin must withstand.

ondol_testkit::handler_conformance!(
    {{module}},
    environment: [("{{VARIABLE}}", "1")],
);
