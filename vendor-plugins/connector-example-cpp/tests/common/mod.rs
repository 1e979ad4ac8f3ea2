//! Opening the connectors that are linked in.

use std::path::Path;

use connector_example_cpp as _;
use ondol_connector::{Bridge, BridgeOptions, Table};
use ondol_plugin::inventory;
use ondol_plugin::l2::{L2Adapter, NativeConnector, NativeConnectorFactory, OpenContext};
use serde_json::{Value, json};

pub(crate) fn factory(class: &str) -> &'static NativeConnectorFactory {
    inventory::iter::<NativeConnectorFactory>
        .into_iter()
        .find(|factory| factory.class_name() == class)
        .expect("the crate submits it")
}

pub(crate) fn table(class: &str) -> Table {
    let entry = factory(class).c_entry().expect("it is written in C++");
    Table::linked(entry).expect("its table can be read")
}

pub(crate) fn open(class: &str, parameters: &Value) -> anyhow::Result<Box<dyn NativeConnector>> {
    let parameters = parameters.as_object().expect("an object");
    let context = OpenContext::new("example");
    Ok(table(class).open(class, parameters, &context)?)
}

pub(crate) fn connector(class: &str, dir: &Path) -> anyhow::Result<Box<dyn NativeConnector>> {
    open(class, &json!({"base_path": dir, "num_workers": 3}))
}

pub(crate) fn adapter(class: &str, dir: &Path) -> anyhow::Result<Box<dyn L2Adapter>> {
    let bridge = Bridge::new("example", connector(class, dir)?, BridgeOptions::default())?;
    Ok(Box::new(bridge))
}
