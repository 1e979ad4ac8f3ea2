//! The smallest plugin.

use ondol_plugin::{HandlerPluginFactory, inventory, package};

inventory::submit! {
    HandlerPluginFactory::new("fixture", package!(), |_| Ok(None))
}
