//! What every handler plugin must withstand.

ondol_testkit::handler_conformance!(
    handler_prefault,
    environment: [("ONDOL_PREFAULT", "on"), ("ONDOL_PREFAULT_PIN_BYTES", "1MiB")],
);
