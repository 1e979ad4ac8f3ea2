//! What every handler plugin must withstand.

ondol_testkit::handler_conformance!(example_plugin);
