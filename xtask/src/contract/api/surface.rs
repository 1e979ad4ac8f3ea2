use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use quote::ToTokens;
use syn::punctuated::Punctuated;
use syn::visit::Visit;
use syn::{
    Attribute, Block, Fields, FnArg, ImplItem, Item, ItemImpl, ItemMod, ItemUse, Pat, ReturnType,
    Signature, TraitItem, Type, UseTree, Visibility, parse_quote,
};

type ModulePath = Vec<String>;

/// Attributes that a user of the crate can notice; all others are dropped.
const KEPT: &[&str] = &[
    "cfg",
    "cfg_attr",
    "default",
    "derive",
    "export_name",
    "from",
    "macro_export",
    "no_mangle",
    "non_exhaustive",
    "repr",
    "serde",
    "target_feature",
    "unsafe",
];

/// Attributes that leave the item as it is written; any other might be a macro that writes items of its own.
const HARMLESS: &[&str] = &[
    "allow",
    "automatically_derived",
    "backtrace",
    "clippy",
    "cold",
    "deny",
    "deprecated",
    "diagnostic",
    "doc",
    "error",
    "expect",
    "forbid",
    "inline",
    "must_use",
    "rustfmt",
    "source",
    "track_caller",
    "warn",
];

struct Module {
    cfgs: Vec<Attribute>,
    items: Vec<Item>,
}

struct Sources {
    modules: BTreeMap<ModulePath, Module>,
}

/// An item of the surface: where it is written, and the path of public modules under which users find it.
struct Surfaced {
    origin: ModulePath,
    place: ModulePath,
    item: Item,
}

struct Import {
    path: Vec<String>,
    name: String,
    glob: bool,
}

pub(super) fn surface(file: &syn::File) -> Result<String> {
    let mut sources = Sources {
        modules: BTreeMap::new(),
    };
    sources.add(Vec::new(), Vec::new(), &file.items)?;

    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    sources.publish(&Vec::new(), &Vec::new(), &mut found, &mut seen)?;
    sources.publish_macros(&mut found)?;
    sources.reach(&mut found, &mut seen)?;
    sources.add_impls(&mut found, &mut seen)?;
    print(found)
}

impl Sources {
    fn add(&mut self, path: ModulePath, cfgs: Vec<Attribute>, items: &[Item]) -> Result<()> {
        let mut kept = Vec::new();
        for item in items {
            if super::is_test_only(attributes(item)) {
                continue;
            }
            reject_generated(item)?;
            if let Item::Mod(module) = item
                && let Some((_, items)) = &module.content
            {
                let mut inner = cfgs.clone();
                inner.extend(kept_attributes(&module.attrs));
                let path = joined(&path, &module.ident.to_string());
                self.add(path, inner, items)?;
            }
            kept.push(item.clone());
        }
        self.modules.insert(path, Module { cfgs, items: kept });
        Ok(())
    }

    /// Adds what is public in the module `origin` to `found`, as items of the public path `place`.
    fn publish(
        &self,
        origin: &ModulePath,
        place: &ModulePath,
        found: &mut Vec<Surfaced>,
        seen: &mut BTreeSet<(ModulePath, String)>,
    ) -> Result<()> {
        let Some(module) = self.modules.get(origin) else {
            bail!("module `{}` has no source", origin.join("::"));
        };
        for item in &module.items {
            match item {
                Item::Mod(inner) if is_public(&inner.vis) => {
                    let name = inner.ident.to_string();
                    self.publish(&joined(origin, &name), &joined(place, &name), found, seen)?;
                }
                Item::Use(import) if is_public(&import.vis) => {
                    self.publish_import(origin, place, import, found, seen)?;
                }
                Item::Mod(_) | Item::Use(_) | Item::Impl(_) | Item::Macro(_) => {}
                item if visibility(item).is_some_and(is_public) => {
                    self.push(origin, place, item.clone(), found, seen);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn publish_import(
        &self,
        origin: &ModulePath,
        place: &ModulePath,
        import: &ItemUse,
        found: &mut Vec<Surfaced>,
        seen: &mut BTreeSet<(ModulePath, String)>,
    ) -> Result<()> {
        for entry in imports(&import.tree) {
            let target = if entry.glob {
                self.module(origin, &entry.path)
                    .map(|module| (module, None))
            } else if let Some(module) = self.module(origin, &entry.path) {
                let place = joined(place, &entry.name);
                self.publish(&module, &place, found, seen)?;
                continue;
            } else {
                self.resolve(origin, &entry.path, 0)
                    .map(|(module, name)| (module, Some(name)))
            };
            match target {
                None => {
                    let mut path = entry.path.join("::");
                    if entry.glob {
                        path.push_str("::*");
                    } else if entry.path.last() != Some(&entry.name) {
                        path.push_str(&format!(" as {}", entry.name));
                    }
                    let mut item: ItemUse = syn::parse_str(&format!("pub use {path};"))?;
                    item.attrs = kept_attributes(&import.attrs);
                    found.push(Surfaced {
                        origin: origin.clone(),
                        place: place.clone(),
                        item: Item::Use(item),
                    });
                }
                Some((module, None)) => self.publish(&module, place, found, seen)?,
                Some((module, Some(name))) => {
                    let Some(item) = self.item(&module, &name) else {
                        bail!("`{}` does not lead to an item", entry.path.join("::"));
                    };
                    let mut item = item.clone();
                    if let Some(attrs) = attributes_mut(&mut item) {
                        attrs.extend(kept_attributes(&import.attrs));
                    }
                    if entry.name != name
                        && let Some(ident) = ident_mut(&mut item)
                    {
                        *ident = syn::Ident::new(&entry.name, ident.span());
                    }
                    seen.insert((module.clone(), name));
                    self.push(&module, place, item, found, seen);
                }
            }
        }
        Ok(())
    }

    fn push(
        &self,
        origin: &ModulePath,
        place: &ModulePath,
        mut item: Item,
        found: &mut Vec<Surfaced>,
        seen: &mut BTreeSet<(ModulePath, String)>,
    ) {
        if let Some(ident) = ident(&item) {
            seen.insert((origin.clone(), ident));
        }
        strip(&mut item);
        if let (Some(module), Some(attrs)) = (self.modules.get(origin), attributes_mut(&mut item)) {
            attrs.extend(module.cfgs.iter().cloned());
        }
        found.push(Surfaced {
            origin: origin.clone(),
            place: place.clone(),
            item,
        });
    }

    /// Exported macros and registries, which belong to the crate's root wherever they are written.
    fn publish_macros(&self, found: &mut Vec<Surfaced>) -> Result<()> {
        for (origin, module) in &self.modules {
            for item in &module.items {
                let Item::Macro(mac) = item else { continue };
                let exported = mac
                    .attrs
                    .iter()
                    .any(|attr| attr.path().is_ident("macro_export"));
                if mac.ident.is_some() && !exported {
                    continue;
                }
                let mut mac = mac.clone();
                mac.attrs = kept_attributes(&mac.attrs);
                mac.attrs.extend(module.cfgs.iter().cloned());
                mac.mac.tokens = without_docs(mac.mac.tokens);
                found.push(Surfaced {
                    origin: origin.clone(),
                    place: Vec::new(),
                    item: Item::Macro(mac),
                });
            }
        }
        Ok(())
    }

    /// Adds private items that the layout or a signature of the surface depends on.
    fn reach(
        &self,
        found: &mut Vec<Surfaced>,
        seen: &mut BTreeSet<(ModulePath, String)>,
    ) -> Result<()> {
        let mut next = 0;
        while next < found.len() {
            let mut paths = Paths::default();
            paths.visit_item(&found[next].item);
            let origin = found[next].origin.clone();
            self.add_reached(&origin, &paths, found, seen)?;
            next += 1;
        }
        Ok(())
    }

    fn add_reached(
        &self,
        origin: &ModulePath,
        paths: &Paths,
        found: &mut Vec<Surfaced>,
        seen: &mut BTreeSet<(ModulePath, String)>,
    ) -> Result<()> {
        if let Some(name) = &paths.macro_in_type {
            bail!(
                "`{name}!` stands in a signature; in the contract crate every type is written out"
            );
        }
        for path in &paths.found {
            let Some((module, name)) = self.resolve(origin, path, 0) else {
                // The same name imported from elsewhere would be another type.
                if let Some(import) = self.external(origin, &path[0])
                    && seen.insert((Vec::new(), import.clone()))
                {
                    found.push(Surfaced {
                        origin: origin.clone(),
                        place: Vec::new(),
                        item: Item::Use(syn::parse_str(&import)?),
                    });
                }
                continue;
            };
            if seen.contains(&(module.clone(), name.clone())) {
                continue;
            }
            if let Some(item) = self.item(&module, &name) {
                let mut item = item.clone();
                if let Some(vis) = visibility_mut(&mut item) {
                    *vis = Visibility::Inherited;
                }
                self.push(&module, &Vec::new(), item, found, seen);
            }
        }
        Ok(())
    }

    /// Adds the implementations of everything found: inherent public members, and the headers of traits'.
    fn add_impls(
        &self,
        found: &mut Vec<Surfaced>,
        seen: &mut BTreeSet<(ModulePath, String)>,
    ) -> Result<()> {
        let first = found.len();
        let mut inherent: BTreeMap<String, (ModulePath, ItemImpl)> = BTreeMap::new();
        for (origin, module) in &self.modules {
            for item in &module.items {
                let Item::Impl(block) = item else { continue };
                if let Some(path) = type_path(&block.self_ty)
                    && let Some(target) = self.resolve(origin, &path, 0)
                    && !seen.contains(&target)
                {
                    continue;
                }
                let mut block = block.clone();
                strip_impl(&mut block);
                block.attrs.extend(module.cfgs.iter().cloned());
                if block.trait_.is_some() {
                    found.push(Surfaced {
                        origin: origin.clone(),
                        place: Vec::new(),
                        item: Item::Impl(block),
                    });
                    continue;
                }
                if block.items.is_empty() {
                    continue;
                }
                let mut head = block.clone();
                head.items.clear();
                inherent
                    .entry(head.to_token_stream().to_string())
                    .and_modify(|(_, merged)| merged.items.extend(block.items.iter().cloned()))
                    .or_insert_with(|| (origin.clone(), block));
            }
        }
        for (origin, mut block) in inherent.into_values() {
            block.items.sort_by_key(impl_item_key);
            found.push(Surfaced {
                origin,
                place: Vec::new(),
                item: Item::Impl(block),
            });
        }
        for index in first..found.len() {
            let mut paths = Paths::default();
            paths.visit_item(&found[index].item);
            let origin = found[index].origin.clone();
            self.add_reached(&origin, &paths, found, seen)?;
        }
        Ok(())
    }

    /// The import of another crate's item under `name`, as a statement.
    fn external(&self, module: &ModulePath, name: &str) -> Option<String> {
        let items = &self.modules.get(module)?.items;
        let uses = items.iter().filter_map(|item| match item {
            Item::Use(import) => Some(imports(&import.tree)),
            _ => None,
        });
        let entry = uses.flatten().find(|entry| {
            !entry.glob && entry.name == name && self.module(module, &entry.path).is_none()
        })?;
        let path = entry.path.join("::");
        let alias = if entry.path.last() == Some(&entry.name) {
            String::new()
        } else {
            format!(" as {}", entry.name)
        };
        Some(format!("use {path}{alias};"))
    }

    fn item(&self, module: &ModulePath, name: &str) -> Option<&Item> {
        self.modules.get(module)?.items.iter().find(|item| {
            !matches!(item, Item::Impl(_) | Item::Use(_)) && ident(item).as_deref() == Some(name)
        })
    }

    /// The module that `path` names when it is written in `from`.
    fn module(&self, from: &ModulePath, path: &[String]) -> Option<ModulePath> {
        let mut at = from.clone();
        for (index, segment) in path.iter().enumerate() {
            match segment.as_str() {
                "crate" if index == 0 => at.clear(),
                "self" if index == 0 => {}
                "super" => {
                    at.pop()?;
                }
                name => at.push(name.to_owned()),
            }
        }
        self.modules.contains_key(&at).then_some(at)
    }

    /// The item of this crate that `path` names when it is written in `from`; `None` if it is another's.
    fn resolve(
        &self,
        from: &ModulePath,
        path: &[String],
        depth: usize,
    ) -> Option<(ModulePath, String)> {
        // Imports may lead in a circle.
        if depth > 16 {
            return None;
        }
        for split in (0..path.len()).rev() {
            let Some(module) = self.module(from, &path[..split]) else {
                continue;
            };
            if split == 0 && matches!(path[0].as_str(), "crate" | "self" | "super") {
                continue;
            }
            let name = &path[split];
            if self.item(&module, name).is_some() {
                return Some((module, name.clone()));
            }
            for item in &self.modules[&module].items {
                let Item::Use(import) = item else { continue };
                for entry in imports(&import.tree) {
                    if !entry.glob && entry.name != *name {
                        continue;
                    }
                    let mut target = entry.path.clone();
                    target.extend_from_slice(&path[split + usize::from(!entry.glob)..]);
                    let circle = module == *from && target == path;
                    if !circle && let Some(found) = self.resolve(&module, &target, depth + 1) {
                        return Some(found);
                    }
                }
            }
        }
        None
    }
}

#[derive(Default)]
struct Paths {
    found: Vec<Vec<String>>,
    macro_in_type: Option<String>,
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string());
        self.found.push(names.collect());
        syn::visit::visit_path(self, path);
    }

    fn visit_type_macro(&mut self, mac: &'ast syn::TypeMacro) {
        self.macro_in_type = Some(mac.mac.path.to_token_stream().to_string());
    }
}

fn imports(tree: &UseTree) -> Vec<Import> {
    fn walk(tree: &UseTree, prefix: &[String], out: &mut Vec<Import>) {
        let with = |name: &syn::Ident| {
            let mut path = prefix.to_vec();
            if name != "self" || path.is_empty() {
                path.push(name.to_string());
            }
            path
        };
        match tree {
            UseTree::Path(path) => walk(&path.tree, &with(&path.ident), out),
            UseTree::Name(name) => {
                let path = with(&name.ident);
                let name = path.last().cloned().unwrap_or_default();
                out.push(Import {
                    path,
                    name,
                    glob: false,
                });
            }
            UseTree::Rename(rename) => out.push(Import {
                path: with(&rename.ident),
                name: rename.rename.to_string(),
                glob: false,
            }),
            UseTree::Glob(_) => out.push(Import {
                path: prefix.to_vec(),
                name: "*".to_owned(),
                glob: true,
            }),
            UseTree::Group(group) => group.items.iter().for_each(|tree| walk(tree, prefix, out)),
        }
    }
    let mut out = Vec::new();
    walk(tree, &[], &mut out);
    out
}

/// Refuses items that the source does not show.
fn reject_generated(item: &Item) -> Result<()> {
    let refuse = |what: String| -> Result<()> {
        bail!(
            "{what} may write items that the source does not show; in the contract crate every item is \
             written out"
        )
    };
    match item {
        Item::Macro(mac) if mac.ident.is_none() => {
            let path = mac.mac.path.to_token_stream().to_string().replace(' ', "");
            if !matches!(path.as_str(), "inventory::collect" | "::inventory::collect") {
                return refuse(format!("`{path}!`"));
            }
        }
        Item::Verbatim(tokens) => return refuse(format!("`{tokens}`")),
        Item::Trait(item) => {
            for member in &item.items {
                if matches!(member, TraitItem::Macro(_) | TraitItem::Verbatim(_)) {
                    return refuse(format!("a macro in trait `{}`", item.ident));
                }
            }
        }
        Item::Impl(item) => {
            for member in &item.items {
                if matches!(member, ImplItem::Macro(_) | ImplItem::Verbatim(_)) {
                    let target = item.self_ty.to_token_stream();
                    return refuse(format!("a macro in an impl of `{target}`"));
                }
            }
        }
        _ => {}
    }
    for attr in attributes(item) {
        let name = attr_name(attr);
        if !KEPT.contains(&name.as_str()) && !HARMLESS.contains(&name.as_str()) {
            return refuse(format!("attribute `{name}`"));
        }
    }
    Ok(())
}

fn strip(item: &mut Item) {
    if let Some(attrs) = attributes_mut(item) {
        *attrs = kept_attributes(attrs);
    }
    match item {
        Item::Enum(item) => {
            for variant in &mut item.variants {
                variant.attrs = kept_attributes(&variant.attrs);
                strip_fields(&mut variant.fields);
            }
        }
        Item::Struct(item) => strip_fields(&mut item.fields),
        Item::Union(item) => {
            for field in &mut item.fields.named {
                field.attrs = kept_attributes(&field.attrs);
            }
        }
        Item::Fn(item) => {
            strip_signature(&mut item.sig);
            *item.block = empty();
        }
        Item::Trait(item) => {
            for member in &mut item.items {
                match member {
                    TraitItem::Fn(method) => {
                        method.attrs = kept_attributes(&method.attrs);
                        strip_signature(&mut method.sig);
                        if let Some(block) = &mut method.default {
                            *block = empty();
                        }
                    }
                    TraitItem::Const(member) => member.attrs = kept_attributes(&member.attrs),
                    TraitItem::Type(member) => member.attrs = kept_attributes(&member.attrs),
                    _ => {}
                }
            }
            item.items.sort_by_key(trait_item_key);
        }
        Item::Static(item) => {
            // Its value is not part of its type, and users cannot name it in a const.
            *item.expr = parse_quote!(..);
        }
        _ => {}
    }
}

fn strip_fields(fields: &mut Fields) {
    for field in fields.iter_mut() {
        field.attrs = kept_attributes(&field.attrs);
    }
}

fn strip_impl(block: &mut ItemImpl) {
    block.attrs = kept_attributes(&block.attrs);
    let of_trait = block.trait_.is_some();
    block.items.retain_mut(|member| match member {
        ImplItem::Fn(method) => {
            method.attrs = kept_attributes(&method.attrs);
            strip_signature(&mut method.sig);
            method.block = empty();
            // The trait says what its methods look like.
            !of_trait && is_public(&method.vis)
        }
        ImplItem::Const(member) => {
            member.attrs = kept_attributes(&member.attrs);
            of_trait || is_public(&member.vis)
        }
        ImplItem::Type(member) => {
            member.attrs = kept_attributes(&member.attrs);
            of_trait || is_public(&member.vis)
        }
        _ => false,
    });
    block.items.sort_by_key(impl_item_key);
}

fn strip_signature(signature: &mut Signature) {
    for input in &mut signature.inputs {
        match input {
            FnArg::Receiver(receiver) => {
                receiver.attrs = kept_attributes(&receiver.attrs);
                // `mut self` concerns the body alone.
                receiver.mutability = None;
            }
            FnArg::Typed(input) => {
                input.attrs = kept_attributes(&input.attrs);
                *input.pat = Pat::Wild(syn::PatWild {
                    attrs: Vec::new(),
                    underscore_token: Default::default(),
                });
            }
        }
    }
    let unit = |ty: &Type| matches!(ty, Type::Tuple(tuple) if tuple.elems.is_empty());
    if matches!(&signature.output, ReturnType::Type(_, ty) if unit(ty)) {
        signature.output = ReturnType::Default;
    }
}

fn kept_attributes(attrs: &[Attribute]) -> Vec<Attribute> {
    let mut kept: Vec<_> = attrs
        .iter()
        .filter(|attr| KEPT.contains(&attr_name(attr).as_str()))
        .cloned()
        .collect();
    let mut derives: Vec<String> = Vec::new();
    kept.retain(|attr| {
        if !attr.path().is_ident("derive") {
            return true;
        }
        let parsed =
            attr.parse_args_with(Punctuated::<syn::Path, syn::Token![,]>::parse_terminated);
        let Ok(paths) = parsed else { return true };
        derives.extend(
            paths
                .iter()
                .map(|path| path.to_token_stream().to_string().replace(' ', "")),
        );
        false
    });
    kept.sort_by_key(|attr| attr.to_token_stream().to_string());
    derives.sort();
    if !derives.is_empty() {
        let paths = derives
            .iter()
            .filter_map(|path| syn::parse_str::<syn::Path>(path).ok());
        kept.insert(0, parse_quote!(#[derive(#(#paths),*)]));
    }
    kept
}

fn attr_name(attr: &Attribute) -> String {
    attr.path()
        .segments
        .first()
        .map(|segment| segment.ident.to_string())
        .unwrap_or_default()
}

/// The tokens without doc comments, which stand in a macro's body as `#[doc = "…"]`.
fn without_docs(tokens: TokenStream) -> TokenStream {
    let mut out: Vec<TokenTree> = Vec::new();
    for tree in tokens {
        let TokenTree::Group(group) = tree else {
            out.push(tree);
            continue;
        };
        let first = group.stream().into_iter().next();
        let is_doc = group.delimiter() == Delimiter::Bracket
            && matches!(first, Some(TokenTree::Ident(name)) if name == "doc");
        let after_hash =
            matches!(out.last(), Some(TokenTree::Punct(punct)) if punct.as_char() == '#');
        if is_doc && after_hash {
            out.pop();
            continue;
        }
        out.push(Group::new(group.delimiter(), without_docs(group.stream())).into());
    }
    out.into_iter().collect()
}

fn print(found: Vec<Surfaced>) -> Result<String> {
    let mut places: BTreeMap<ModulePath, Vec<Item>> = BTreeMap::new();
    for Surfaced { place, item, .. } in found {
        places.entry(place).or_default().push(item);
    }
    let mut text = String::new();
    let mut after_import = false;
    for (place, mut items) in places {
        items.sort_by_cached_key(order);
        for mut item in items {
            for name in place.iter().rev() {
                let name = syn::Ident::new(name, proc_macro2::Span::call_site());
                let module: ItemMod = parse_quote!(pub mod #name { #item });
                item = Item::Mod(module);
            }
            let file: syn::File = parse_quote!(#item);
            let import = matches!(item, Item::Use(_));
            let together = import && after_import;
            if !text.is_empty() && !together {
                text.push('\n');
            }
            after_import = import;
            text.push_str(&prettyplease::unparse(&file));
        }
    }
    Ok(text)
}

/// Items by name, each followed by its implementations.
fn order(item: &Item) -> (u8, String, u8, String) {
    let text = item.to_token_stream().to_string();
    match item {
        Item::Use(_) => (0, String::new(), 0, text),
        Item::Impl(block) => {
            let name = type_path(&block.self_ty).and_then(|path| path.last().cloned());
            let rank = if block.trait_.is_some() { 2 } else { 1 };
            (1, name.unwrap_or_default(), rank, text)
        }
        Item::Macro(mac) => match &mac.ident {
            Some(name) => (2, name.to_string(), 0, text),
            None => (3, String::new(), 0, text),
        },
        item => (1, ident(item).unwrap_or_default(), 0, text),
    }
}

fn trait_item_key(item: &TraitItem) -> (u8, String) {
    match item {
        TraitItem::Type(item) => (0, item.ident.to_string()),
        TraitItem::Const(item) => (1, item.ident.to_string()),
        TraitItem::Fn(item) => (2, item.sig.ident.to_string()),
        _ => (3, String::new()),
    }
}

fn impl_item_key(item: &ImplItem) -> (u8, String) {
    match item {
        ImplItem::Type(item) => (0, item.ident.to_string()),
        ImplItem::Const(item) => (1, item.ident.to_string()),
        ImplItem::Fn(item) => (2, item.sig.ident.to_string()),
        _ => (3, String::new()),
    }
}

fn type_path(ty: &Type) -> Option<Vec<String>> {
    let Type::Path(path) = ty else { return None };
    let names = path
        .path
        .segments
        .iter()
        .map(|segment| segment.ident.to_string());
    Some(names.collect())
}

fn empty() -> Block {
    parse_quote!({})
}

fn is_public(vis: &Visibility) -> bool {
    matches!(vis, Visibility::Public(_))
}

fn joined(path: &[String], name: &str) -> ModulePath {
    let mut path = path.to_vec();
    path.push(name.to_owned());
    path
}

macro_rules! parts {
    ($item:expr, $field:ident, $($kind:ident)+) => {
        match $item {
            $(Item::$kind(item) => Some(&mut item.$field),)+
            _ => None,
        }
    };
}

fn attributes_mut(item: &mut Item) -> Option<&mut Vec<Attribute>> {
    parts!(item, attrs, Const Enum ExternCrate Fn ForeignMod Impl Macro Mod Static Struct Trait TraitAlias Type Union Use)
}

fn visibility_mut(item: &mut Item) -> Option<&mut Visibility> {
    parts!(item, vis, Const Enum ExternCrate Fn Mod Static Struct Trait TraitAlias Type Union Use)
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn visibility(item: &Item) -> Option<&Visibility> {
    match item {
        Item::Const(item) => Some(&item.vis),
        Item::Enum(item) => Some(&item.vis),
        Item::ExternCrate(item) => Some(&item.vis),
        Item::Fn(item) => Some(&item.vis),
        Item::Mod(item) => Some(&item.vis),
        Item::Static(item) => Some(&item.vis),
        Item::Struct(item) => Some(&item.vis),
        Item::Trait(item) => Some(&item.vis),
        Item::TraitAlias(item) => Some(&item.vis),
        Item::Type(item) => Some(&item.vis),
        Item::Union(item) => Some(&item.vis),
        Item::Use(item) => Some(&item.vis),
        _ => None,
    }
}

fn ident_mut(item: &mut Item) -> Option<&mut syn::Ident> {
    match item {
        Item::Fn(item) => Some(&mut item.sig.ident),
        item => parts!(item, ident, Const Enum Static Struct Trait TraitAlias Type Union),
    }
}

fn ident(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}
