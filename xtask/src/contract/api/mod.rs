//! The public surface of the contract crate as normalised source, and the difference between two of them.

mod compare;
mod load;
mod surface;

use std::path::Path;

use anyhow::Result;
use syn::Attribute;

pub use compare::classify;

/// The surface of a crate that is written in one file; inline modules are followed.
///
/// The result is valid Rust: public items and what their layout reaches, in a fixed order, with the attributes
/// that a user of the crate can notice. A defaulted method ends in `{}`, a required one in `;`. Docs, bodies
/// and the names of arguments are gone.
///
/// # Errors
/// Source that does not parse, or that generates items through a macro, since these could not be read off it.
pub fn normalise(source: &str) -> Result<String> {
    surface::surface(&syn::parse_file(source)?)
}

/// The surface of the crate whose root is the file `lib`; see [`normalise`].
///
/// # Errors
/// As [`normalise`], and files that cannot be read.
pub fn normalise_crate(lib: &Path) -> Result<String> {
    surface::surface(&load::load(lib)?)
}

fn is_test_only(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attr| {
        attr.path().is_ident("cfg")
            && attr
                .parse_args::<syn::Path>()
                .is_ok_and(|path| path.is_ident("test"))
    })
}
