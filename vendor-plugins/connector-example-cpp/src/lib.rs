//! A native connector in C++: files or memory, with a pool of threads.
//!
//! It is the reference for connectors that are written in C or C++ against `include/ondol_connector.h`. As a part of a
//! program it is found as
//!
//! ```json
//! {"type": "native_plugin", "module_path": "connector_example_cpp", "class_name": "FsConnector",
//!  "adapter_params": {"base_path": "/var/cache/objects", "num_workers": 8}}
//! ```
//!
//! and the same sources make a shared library, whose path is then the `module_path`:
//!
//! ```sh
//! c++ -std=c++17 -O2 -shared -fPIC -pthread -I include vendor-plugins/connector-example-cpp/cpp/*.cpp -o libexample.so
//! ```
//!
//! `MemoryConnector` needs no `base_path`, and forgets everything when it is closed.

#![deny(unsafe_code)]

use ondol_plugin::l2::{NativeConnectorFactory, Parameter};
use ondol_plugin::{inventory, package};

#[expect(
    unsafe_code,
    reason = "the declaration of a function that is written in C++"
)]
mod entry {
    use std::ffi::c_void;

    unsafe extern "C" {
        /// The table of `cpp/table.cpp`.
        pub(super) fn connector_example_cpp_table() -> *const c_void;
    }
}

const NUM_WORKERS: Parameter = Parameter::optional("num_workers", "4", "threads, from 1 to 256");

inventory::submit! {
    NativeConnectorFactory::c(
        module_path!(),
        "FsConnector",
        package!(),
        entry::connector_example_cpp_table,
    )
    .parameters(&[
        Parameter::required("base_path", "the directory that objects are kept in, one file each"),
        NUM_WORKERS,
    ])
}

inventory::submit! {
    NativeConnectorFactory::c(
        module_path!(),
        "MemoryConnector",
        package!(),
        entry::connector_example_cpp_table,
    )
    .parameters(&[NUM_WORKERS])
}
