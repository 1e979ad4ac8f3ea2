//! The licences and sources of everything we depend on, against `deny.toml`.
//!
//! cargo-deny does this and more, and `cargo xtask ci` runs it. Building it takes minutes and a look at the
//! registry, so the part that no test run may skip is here.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};

use crate::workspace::Workspace;

/// Checks every package that is not ours; returns how many there are.
///
/// # Errors
/// Each package whose licence is not allowed or that comes from elsewhere than crates.io.
pub fn check(workspace: &Workspace) -> Result<usize> {
    let text =
        std::fs::read_to_string(workspace.root.join("deny.toml")).context("read deny.toml")?;
    let allowed = allowed(&text)?;
    let ours: BTreeSet<_> = workspace.metadata.workspace_members.iter().collect();
    let mut refused = Vec::new();
    let mut count = 0;
    for package in &workspace.metadata.packages {
        if ours.contains(&package.id) {
            continue;
        }
        count += 1;
        let name = format!("{} {}", package.name, package.version);
        if !package
            .source
            .as_ref()
            .is_some_and(|source| source.is_crates_io())
        {
            refused.push(format!("{name} does not come from crates.io"));
        }
        match &package.license {
            Some(licence) if is_allowed(licence, &allowed)? => {}
            Some(licence) => refused.push(format!(
                "{name} is under {licence}, which deny.toml does not allow"
            )),
            None => refused.push(format!("{name} names no licence")),
        }
    }
    if !refused.is_empty() {
        bail!("{}", refused.join("\n"));
    }
    Ok(count)
}

fn allowed(deny: &str) -> Result<BTreeSet<String>> {
    let table: toml::Table = deny.parse().context("deny.toml")?;
    let list = table
        .get("licenses")
        .and_then(|licences| licences.get("allow")?.as_array());
    let list = list.context("deny.toml has no licenses.allow")?;
    Ok(list
        .iter()
        .filter_map(|name| name.as_str().map(str::to_owned))
        .collect())
}

/// Whether a licence expression can be met with the licences allowed. `WITH` binds a name to its exception, `AND`
/// binds tighter than `OR`, and the slash of old manifests means `OR`.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> Result<bool> {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let words: Vec<_> = spaced.split_whitespace().collect();
    let mut rest = &words[..];
    let met =
        any(&mut rest, allowed).with_context(|| format!("licence expression {expression:?}"))?;
    if !rest.is_empty() {
        bail!(
            "licence expression {expression:?} has `{}` left over",
            rest.join(" ")
        );
    }
    Ok(met)
}

fn any(words: &mut &[&str], allowed: &BTreeSet<String>) -> Result<bool> {
    let mut met = all(words, allowed)?;
    while take(words, "OR") {
        met |= all(words, allowed)?;
    }
    Ok(met)
}

fn all(words: &mut &[&str], allowed: &BTreeSet<String>) -> Result<bool> {
    let mut met = one(words, allowed)?;
    while take(words, "AND") {
        met &= one(words, allowed)?;
    }
    Ok(met)
}

fn one(words: &mut &[&str], allowed: &BTreeSet<String>) -> Result<bool> {
    if take(words, "(") {
        let met = any(words, allowed)?;
        anyhow::ensure!(take(words, ")"), "a parenthesis stays open");
        return Ok(met);
    }
    let (name, rest) = words.split_first().context("a name is missing")?;
    anyhow::ensure!(
        !matches!(*name, "OR" | "AND" | "WITH" | ")"),
        "`{name}` stands where a name is due"
    );
    *words = rest;
    let mut name = (*name).to_owned();
    if take(words, "WITH") {
        let (exception, rest) = words.split_first().context("an exception is missing")?;
        name = format!("{name} WITH {exception}");
        *words = rest;
    }
    Ok(allowed.contains(&name))
}

fn take(words: &mut &[&str], word: &str) -> bool {
    match words.split_first() {
        Some((first, rest)) if *first == word => {
            *words = rest;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_met_as_they_are_meant() {
        let allowed: BTreeSet<_> = ["MIT", "BSD-3-Clause", "Apache-2.0 WITH LLVM-exception"]
            .map(str::to_owned)
            .into();
        for (expression, met) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("MIT OR GPL-3.0", true),
            ("GPL-3.0/MIT", true),
            ("MIT AND GPL-3.0", false),
            ("MIT AND BSD-3-Clause", true),
            ("GPL-3.0 OR MIT AND BSD-3-Clause", true),
            ("(GPL-3.0 OR MIT) AND ISC", false),
            ("(MIT OR Apache-2.0) AND BSD-3-Clause", true),
            ("Apache-2.0", false),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("Apache-2.0 WITH LLVM-exception OR Apache-2.0", true),
        ] {
            assert_eq!(
                is_allowed(expression, &allowed).unwrap(),
                met,
                "{expression}"
            );
        }
        for bad in [
            "",
            "MIT OR",
            "(MIT",
            "MIT)",
            "MIT MIT",
            "AND",
            "Apache-2.0 WITH",
        ] {
            is_allowed(bad, &allowed).expect_err(bad);
        }
    }
}
