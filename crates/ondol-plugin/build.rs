//! Present because cargo wants a build script in a package with a `links` key.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
