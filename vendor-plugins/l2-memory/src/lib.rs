#![doc = include_str!("docs.md")]
#![forbid(unsafe_code)]

mod adapter;
mod config;
mod error;
mod link;
mod shelf;

pub use adapter::{MemoryAdapter, MemoryBackend};
pub use config::{MemoryConfig, MockConfig};
pub use error::Error;

use ondol_plugin::l2::{AdapterConfig, L2Adapter, L2AdapterFactory, OpenContext, Parameter};
use ondol_plugin::{inventory, package};

inventory::submit! {
    L2AdapterFactory::new("memory", module_path!(), "MemoryAdapter", package!(), open_memory)
        .config::<MemoryConfig>("MemoryConfig")
        .parameters(&[
            Parameter::optional("max_size_gb", "1", "capacity in GiB; may be a fraction"),
            Parameter::optional("max_size_bytes", "1 GiB", "capacity in bytes, in place of max_size_gb"),
            Parameter::optional("bandwidth_gb", "unlimited", "simulated bandwidth in GiB per second, of all transfers together"),
            Parameter::optional("latency_ms", "0", "simulated latency of each transfer in milliseconds"),
            Parameter::optional("num_workers", "4", "threads that carry out tasks"),
        ])
}

inventory::submit! {
    L2AdapterFactory::new("mock", module_path!(), "MockL2Adapter", package!(), open_mock)
        .config::<MockConfig>("MockL2AdapterConfig")
        .parameters(&[
            Parameter::required("max_size_gb", "capacity in GiB; may be a fraction"),
            Parameter::required("mock_bandwidth_gb", "simulated bandwidth in GiB per second, of all transfers together"),
        ])
}

fn open_memory(
    config: AdapterConfig,
    context: &OpenContext<'_>,
) -> anyhow::Result<Box<dyn L2Adapter>> {
    let config: MemoryConfig = config.read()?;
    Ok(Box::new(adapter::open(context.name(), &config)?))
}

fn open_mock(
    config: AdapterConfig,
    context: &OpenContext<'_>,
) -> anyhow::Result<Box<dyn L2Adapter>> {
    let config: MockConfig = config.read()?;
    Ok(Box::new(adapter::open(context.name(), &config.into())?))
}
