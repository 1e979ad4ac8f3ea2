//! Reads a crate's sources into one syntax tree with every `mod name;` replaced by its file.

use std::path::Path;

use anyhow::{Context, Result, bail};
use syn::{Item, token};

/// The crate whose root is `lib`, as if it had been written in one file.
///
/// # Errors
/// A file that is missing or does not parse, or a module whose place is given by an attribute.
pub(super) fn load(lib: &Path) -> Result<syn::File> {
    let mut file = parse(lib)?;
    let dir = lib.parent().context("the crate root has no directory")?;
    inline(&mut file.items, dir)?;
    Ok(file)
}

fn inline(items: &mut [Item], dir: &Path) -> Result<()> {
    for item in items {
        let Item::Mod(module) = item else { continue };
        let name = module.ident.to_string();
        if super::is_test_only(&module.attrs) {
            continue;
        }
        let children = dir.join(&name);
        if let Some((_, items)) = &mut module.content {
            inline(items, &children)?;
            continue;
        }
        if module.attrs.iter().any(|attr| attr.path().is_ident("path")) {
            bail!(
                "module `{name}` has a #[path]; in the contract crate a module lies where its name says"
            );
        }
        let flat = dir.join(format!("{name}.rs"));
        let source = if flat.is_file() {
            flat
        } else {
            children.join("mod.rs")
        };
        let mut file = parse(&source)?;
        inline(&mut file.items, &children)?;
        module.semi = None;
        module.content = Some((token::Brace::default(), file.items));
    }
    Ok(())
}

fn parse(path: &Path) -> Result<syn::File> {
    let source =
        std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    syn::parse_file(&source).with_context(|| format!("parse {}", path.display()))
}
