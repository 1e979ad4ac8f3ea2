//! Native connectors: the C interface, shared libraries, and the bridge that makes an adapter of a connector.
//!
//! A connector is the smaller form of a storage backend: six methods over names and bytes, a seventh if it can delete. One that is
//! written in C is reached through a [`Table`], as `include/ondol_connector.h` draws it; one that is written in Rust
//! implements [`NativeConnector`](ondol_plugin::l2::NativeConnector) by itself. [`Bridge`] makes an
//! [`L2Adapter`](ondol_plugin::l2::L2Adapter) of either, and trusts neither.

mod abi;
mod bridge;
mod c_connector;
mod error;
mod table;
mod text;

pub use bridge::{Bridge, BridgeOptions};
pub use error::ConnectorError;
pub use table::{Class, ClassParameter, ENTRY_SYMBOL, Table};
