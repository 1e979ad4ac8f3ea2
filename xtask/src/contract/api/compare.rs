use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use quote::ToTokens;
use syn::punctuated::Punctuated;
use syn::{Attribute, Fields, ImplItem, Item, TraitItem, Type, Visibility, parse_quote};

use crate::contract::drift::{Drift, Level};

/// What differs between two surfaces that [`normalise`](super::normalise) made.
///
/// Whatever is gone or different is major. Minor is what an existing plugin cannot notice: a new item, a new
/// derive, a defaulted trait method, and a variant or field at the end of a non-exhaustive type.
///
/// # Errors
/// A surface that does not parse.
pub fn classify(old: &str, new: &str) -> Result<Vec<Drift>> {
    if old == new {
        return Ok(Vec::new());
    }
    let old_shapes = shapes(old).context("the committed surface")?;
    let new_shapes = shapes(new).context("the surface of the code")?;
    let mut drifts = Vec::new();
    for (name, before) in &old_shapes {
        match new_shapes.get(name) {
            Some(after) => before.compare(after, name, &mut drifts),
            None => drifts.push(Drift::new(Level::Major, name, &before.text, "")),
        }
    }
    for (name, after) in &new_shapes {
        if !old_shapes.contains_key(name) {
            drifts.push(Drift::new(Level::Minor, name, "", &after.text));
        }
    }
    if drifts.is_empty() {
        // A printer of another version may break lines elsewhere; an item that reads differently is a change,
        // whether or not its shape shows which.
        for (name, before) in &old_shapes {
            let after = &new_shapes[name];
            if before.text != after.text {
                drifts.push(Drift::new(Level::Major, name, &before.text, &after.text));
            }
        }
    }
    Ok(drifts)
}

/// An item as far as a comparison needs it.
struct Shape {
    /// The item as it is printed.
    text: String,
    /// Everything but derives and members.
    head: String,
    derives: BTreeSet<String>,
    members: Vec<Member>,
    /// The order of the members is part of the contract.
    ordered: bool,
}

struct Member {
    name: String,
    text: String,
    /// The level of adding this member to an existing item.
    added: Level,
}

impl Shape {
    fn compare(&self, after: &Self, name: &str, drifts: &mut Vec<Drift>) {
        if self.head != after.head {
            drifts.push(Drift::new(Level::Major, name, &self.head, &after.head));
        }
        let joined = |derives: &BTreeSet<String>| {
            derives
                .iter()
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(", ")
        };
        if self.derives != after.derives {
            let level = if self.derives.is_subset(&after.derives) {
                Level::Minor
            } else {
                Level::Major
            };
            let line = |derives| format!("#[derive({})]", joined(derives));
            drifts.push(Drift::new(
                level,
                name,
                &line(&self.derives),
                &line(&after.derives),
            ));
        }
        for member in &self.members {
            match after.member(&member.name) {
                None => drifts.push(Drift::new(Level::Major, name, &member.text, "")),
                Some(now) if now.text != member.text => {
                    drifts.push(Drift::new(Level::Major, name, &member.text, &now.text));
                }
                Some(_) => {}
            }
        }
        for (index, member) in after.members.iter().enumerate() {
            if self.member(&member.name).is_none() {
                let at_end = after.members[index..]
                    .iter()
                    .all(|later| self.member(&later.name).is_none());
                let level = if self.ordered && !at_end {
                    Level::Major
                } else {
                    member.added
                };
                drifts.push(Drift::new(level, name, "", &member.text));
            }
        }
        let order = |of: &Self, other: &Self| {
            let names = of.members.iter().map(|member| member.name.clone());
            names
                .filter(|name| other.member(name).is_some())
                .collect::<Vec<_>>()
                .join(", ")
        };
        let (was, is) = (order(self, after), order(after, self));
        if self.ordered && was != is {
            drifts.push(Drift::new(
                Level::Major,
                format!("{name}: order"),
                &was,
                &is,
            ));
        }
    }

    fn member(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.name == name)
    }
}

fn shapes(text: &str) -> Result<BTreeMap<String, Shape>> {
    let file = syn::parse_file(text)?;
    let mut shapes = BTreeMap::new();
    for item in &file.items {
        add(item, "", &mut shapes);
    }
    Ok(shapes)
}

fn add(item: &Item, place: &str, shapes: &mut BTreeMap<String, Shape>) {
    if let Item::Mod(module) = item {
        let place = format!("{place}{}::", module.ident);
        for item in module.content.iter().flat_map(|(_, items)| items) {
            add(item, &place, shapes);
        }
        return;
    }
    let mut head = item.clone();
    let mut members = Vec::new();
    let mut ordered = false;
    let mut attrs: Option<&mut Vec<Attribute>> = None;
    let name = match &mut head {
        Item::Trait(head) => {
            for member in std::mem::take(&mut head.items) {
                members.push(trait_member(&member));
            }
            attrs = Some(&mut head.attrs);
            format!("trait {}", head.ident)
        }
        Item::Impl(head) => {
            // What a trait's implementation chooses is part of it; members of one's own stand for themselves.
            let own = head.trait_.is_none();
            for member in own
                .then(|| std::mem::take(&mut head.items))
                .into_iter()
                .flatten()
            {
                members.push(impl_member(&member));
            }
            let name = plain(&head.to_token_stream().to_string());
            let end = name.find('{').unwrap_or(name.len());
            name[..end].trim().to_owned()
        }
        Item::Enum(head) => {
            ordered = true;
            let open = is_open(&head.attrs);
            for variant in std::mem::take(&mut head.variants) {
                let wrapped: Item = parse_quote!(enum X { #variant });
                members.push(Member {
                    name: variant.ident.to_string(),
                    text: inner(&wrapped),
                    added: if open { Level::Minor } else { Level::Major },
                });
            }
            attrs = Some(&mut head.attrs);
            format!("enum {}", head.ident)
        }
        Item::Struct(head) => {
            ordered = true;
            // A new field of a repr(C) type moves its end, which another language may know.
            let open =
                is_open(&head.attrs) && !head.attrs.iter().any(|attr| attr.path().is_ident("repr"));
            let added = if open { Level::Minor } else { Level::Major };
            members = fields(&head.fields, added);
            match &mut head.fields {
                Fields::Named(fields) => fields.named.clear(),
                Fields::Unnamed(fields) => fields.unnamed.clear(),
                Fields::Unit => {}
            }
            attrs = Some(&mut head.attrs);
            format!("struct {}", head.ident)
        }
        Item::Union(head) => format!("union {}", head.ident),
        Item::Const(head) => format!("const {}", head.ident),
        Item::Static(head) => format!("static {}", head.ident),
        Item::Type(head) => format!("type {}", head.ident),
        Item::Fn(head) => format!("fn {}", head.sig.ident),
        Item::Macro(head) => match &head.ident {
            Some(name) => format!("macro {name}"),
            None => plain(&head.to_token_stream().to_string()),
        },
        other => plain(&other.to_token_stream().to_string()),
    };
    let derives = attrs.map(take_derives).unwrap_or_default();
    let shape = Shape {
        text: pretty(item),
        head: pretty(&head),
        derives,
        members,
        ordered,
    };
    shapes.insert(format!("{place}{name}"), shape);
}

fn trait_member(member: &TraitItem) -> Member {
    let (name, added) = match member {
        TraitItem::Fn(item) => (item.sig.ident.to_string(), item.default.is_some()),
        TraitItem::Const(item) => (item.ident.to_string(), item.default.is_some()),
        TraitItem::Type(item) => (item.ident.to_string(), item.default.is_some()),
        other => (other.to_token_stream().to_string(), false),
    };
    let wrapped: Item = parse_quote!(trait X { #member });
    Member {
        name,
        text: inner(&wrapped),
        added: if added { Level::Minor } else { Level::Major },
    }
}

fn impl_member(member: &ImplItem) -> Member {
    let name = match member {
        ImplItem::Fn(item) => item.sig.ident.to_string(),
        ImplItem::Const(item) => item.ident.to_string(),
        ImplItem::Type(item) => item.ident.to_string(),
        other => other.to_token_stream().to_string(),
    };
    let wrapped: Item = parse_quote!(impl X { #member });
    Member {
        name,
        text: inner(&wrapped),
        added: Level::Minor,
    }
}

fn fields(fields: &Fields, added: Level) -> Vec<Member> {
    let member = |(index, field): (usize, &syn::Field)| {
        let name = field
            .ident
            .as_ref()
            .map_or_else(|| index.to_string(), ToString::to_string);
        let (attrs, vis, ty) = (&field.attrs, &field.vis, &field.ty);
        let text = match &field.ident {
            Some(_) => {
                let wrapped: Item = parse_quote!(struct X { #field });
                inner(&wrapped)
            }
            None => format!(
                "{}{}{}: {}",
                printed_attributes(attrs),
                printed_visibility(vis),
                name,
                printed_type(ty)
            ),
        };
        Member { name, text, added }
    };
    fields.iter().enumerate().map(member).collect()
}

fn printed_attributes(attrs: &[Attribute]) -> String {
    attrs
        .iter()
        .map(|attr| plain(&attr.to_token_stream().to_string()) + " ")
        .collect()
}

fn printed_visibility(vis: &Visibility) -> String {
    let vis = plain(&vis.to_token_stream().to_string());
    if vis.is_empty() { vis } else { vis + " " }
}

fn printed_type(ty: &Type) -> String {
    let text = pretty(&parse_quote!(type X = #ty;));
    text.trim_start_matches("type X = ")
        .trim_end()
        .trim_end_matches(';')
        .to_owned()
}

fn is_open(attrs: &[Attribute]) -> bool {
    attrs
        .iter()
        .any(|attr| attr.path().is_ident("non_exhaustive"))
}

fn take_derives(attrs: &mut Vec<Attribute>) -> BTreeSet<String> {
    let mut derives = BTreeSet::new();
    attrs.retain(|attr| {
        let parsed = attr.path().is_ident("derive").then(|| {
            attr.parse_args_with(Punctuated::<syn::Path, syn::Token![,]>::parse_terminated)
        });
        let Some(Ok(paths)) = parsed else { return true };
        derives.extend(
            paths
                .iter()
                .map(|path| plain(&path.to_token_stream().to_string())),
        );
        false
    });
    derives
}

fn pretty(item: &Item) -> String {
    let file: syn::File = parse_quote!(#item);
    prettyplease::unparse(&file)
}

/// What stands between the braces of an item, without the indentation.
fn inner(item: &Item) -> String {
    let text = pretty(item);
    let lines: Vec<_> = text.lines().collect();
    let Some(body) = lines.len().checked_sub(1).and_then(|end| lines.get(1..end)) else {
        return text;
    };
    let lines = body
        .iter()
        .map(|line| line.strip_prefix("    ").unwrap_or(line));
    lines
        .collect::<Vec<_>>()
        .join("\n")
        .trim_end_matches(',')
        .to_owned()
}

/// Tokens as text, without the spaces that only separate tokens.
fn plain(tokens: &str) -> String {
    let mut text = tokens.to_owned();
    for (from, to) in [
        (" :: ", "::"),
        (":: ", "::"),
        (" < ", "<"),
        (" > ", "> "),
        (" >", ">"),
        ("< ", "<"),
        ("& ", "&"),
        (" ,", ","),
        ("' ", "'"),
        (" !", "!"),
        ("! ", "!"),
        (" (", "("),
        ("( ", "("),
        (" )", ")"),
        (" ;", ";"),
        ("# [", "#["),
        ("[ ", "["),
        (" ]", "]"),
    ] {
        text = text.replace(from, to);
    }
    text.trim().to_owned()
}
