//! Compiles the connector.

use std::path::Path;

const SOURCES: [&str; 5] = [
    "connector.cpp",
    "file_store.cpp",
    "memory_store.cpp",
    "parameters.cpp",
    "table.cpp",
];

fn main() {
    let include = Path::new("../../include");
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .warnings(true)
        .flag("-pthread")
        .include(include)
        .files(SOURCES.iter().map(|file| Path::new("cpp").join(file)));

    // The tests make a shared library of the same sources.
    let compiler = build.get_compiler();
    println!(
        "cargo::rustc-env=CXX_FOR_TESTS={}",
        compiler.path().display()
    );

    // A name of its own, so that several libraries of connectors can be linked into one program.
    build
        .define("ONDOL_CONNECTOR_ENTRY", "connector_example_cpp_table")
        .compile("connector_example_cpp");
    println!("cargo::rerun-if-changed=cpp");
    println!("cargo::rerun-if-changed={}", include.display());
}
