#![doc = include_str!("docs.md")]
#![forbid(unsafe_code)]

mod adapter;
mod config;
mod dice;
mod error;
mod figures;
mod relay;

pub use adapter::FaultInjectAdapter;
pub use config::{FaultInjectConfig, Operation};
pub use error::Error;

use ondol_plugin::l2::{AdapterConfig, L2Adapter, L2AdapterFactory, OpenContext, Parameter};
use ondol_plugin::{inventory, package};

inventory::submit! {
    L2AdapterFactory::new("fault_inject", module_path!(), "FaultInjectAdapter", package!(), open)
        .config::<FaultInjectConfig>("FaultInjectConfig")
        .parameters(&[
            Parameter::required("inner", "the whole configuration of the backend that is wrapped"),
            Parameter::optional("seed", "0", "chooses other tasks and keys for the same rates"),
            Parameter::optional("rate", "0", "share of keys whose loads always fail"),
            Parameter::optional("gap_indices", "[]", "places of a load batch that always fail, from its head"),
            Parameter::optional("gap_tail_ratios", "[]", "the same as shares of the batch, from its tail"),
            Parameter::optional("store_error_rate", "0", "share of stores that fail"),
            Parameter::optional("store_delay_ms", "0", "longest delay of stores in milliseconds"),
            Parameter::optional("store_hang_rate", "0", "share of stores that never end and keep their buffers"),
            Parameter::optional("store_lost_rate", "0", "share of stores of whose end nobody is told"),
            Parameter::optional("lookup_error_rate", "0", "share of lookups that fail"),
            Parameter::optional("lookup_delay_ms", "0", "longest delay of lookups in milliseconds"),
            Parameter::optional("lookup_hang_rate", "0", "share of lookups that never end and keep their buffers"),
            Parameter::optional("lookup_lost_rate", "0", "share of lookups of whose end nobody is told"),
            Parameter::optional("load_error_rate", "0", "share of loads that fail"),
            Parameter::optional("load_delay_ms", "0", "longest delay of loads in milliseconds"),
            Parameter::optional("load_hang_rate", "0", "share of loads that never end and keep their buffers"),
            Parameter::optional("load_lost_rate", "0", "share of loads of whose end nobody is told"),
            Parameter::optional("delete_error_rate", "0", "share of deletes that fail"),
            Parameter::optional("delete_delay_ms", "0", "longest delay of deletes in milliseconds"),
            Parameter::optional("corrupt_rate", "0", "share of loaded objects of which a bit is flipped"),
            Parameter::optional("short_read_rate", "0", "share of loaded objects of which only a half comes"),
        ])
}

fn open(config: AdapterConfig, context: &OpenContext<'_>) -> anyhow::Result<Box<dyn L2Adapter>> {
    let config: FaultInjectConfig = config.read()?;
    let inner = context.open_inner(&config.inner)?;
    Ok(Box::new(FaultInjectAdapter::new(
        context.name(),
        inner,
        config,
    )?))
}
