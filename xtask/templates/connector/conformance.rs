//! What every native connector must withstand.

use ondol_plugin::l2::OpenContext;
use {{module}}::{{{Type}}Config, {{Type}}Connector};

ondol_testkit::connector_conformance!(
    open: |_| {
        let name = OpenContext::new("{{type}}").name().to_owned();
        Ok(Box::new({{Type}}Connector::new(&name, &{{Type}}Config::default())?))
    },
);
