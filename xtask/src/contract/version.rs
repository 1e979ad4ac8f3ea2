//! The version of the contract, and which change needs which.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Error, Result};
use semver::Version;
use sha2::{Digest, Sha256};

use super::drift::Level;

/// The contents of `docs/contract/VERSION`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The version of the contract, which is that of the crate `ondol-plugin`.
    pub contract: Version,
    /// The fingerprint of the contract files.
    pub fingerprint: String,
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "contract = \"{}\"", self.contract)?;
        writeln!(f, "fingerprint = \"{}\"", self.fingerprint)
    }
}

impl FromStr for Stamp {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let table: toml::Table = text.parse().context("VERSION")?;
        let value = |name: &str| {
            let value = table.get(name).and_then(toml::Value::as_str);
            value.with_context(|| format!("VERSION has no `{name}`"))
        };
        Ok(Self {
            contract: value("contract")?.parse()?,
            fingerprint: value("fingerprint")?.to_owned(),
        })
    }
}

/// A fingerprint of these files, by name.
pub fn fingerprint(files: &BTreeMap<String, String>) -> String {
    let mut hash = Sha256::new();
    for (name, text) in files {
        for part in [name, text] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    }
    let hex: String = hash
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("sha256:{hex}")
}

/// The lowest version that may follow `version` after a change of this level. Before 1.0 the second number
/// stands for the first, as cargo has it.
pub fn next(version: &Version, level: Level) -> Version {
    match (level, version.major) {
        (Level::Major, 0) => Version::new(0, version.minor + 1, 0),
        (Level::Major, major) => Version::new(major + 1, 0, 0),
        (Level::Minor, 0) => Version::new(0, version.minor, version.patch + 1),
        (Level::Minor, major) => Version::new(major, version.minor + 1, 0),
    }
}

/// Whether `new` may follow `old` after changes of this level, the greatest of all.
///
/// # Errors
/// Says which version the contract crate needs, and where that stands.
pub fn check_raise(old: &Version, new: &Version, level: Option<Level>) -> Result<()> {
    let Some(level) = level else { return Ok(()) };
    let needed = next(old, level);
    anyhow::ensure!(
        *new >= needed,
        "a {level} change of contract {old} needs version {needed} or higher, and crate ondol-plugin has {new}: set \
         `version = \"{needed}\"` in crates/ondol-plugin/Cargo.toml, then run `{}`",
        super::BLESS
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_needs_the_version_that_cargo_would_want() {
        for (old, level, needed) in [
            ("0.1.0", Level::Minor, "0.1.1"),
            ("0.1.4", Level::Major, "0.2.0"),
            ("1.2.3", Level::Minor, "1.3.0"),
            ("1.2.3", Level::Major, "2.0.0"),
        ] {
            let (old, needed): (Version, Version) = (old.parse().unwrap(), needed.parse().unwrap());
            assert_eq!(next(&old, level), needed);
            check_raise(&old, &needed, Some(level)).unwrap();
            check_raise(&old, &Version::new(9, 0, 0), Some(level)).unwrap();
            check_raise(&old, &old, None).unwrap();
            let error = check_raise(&old, &old, Some(level))
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(&format!("version = \"{needed}\"")),
                "{error}"
            );
        }
        let (old, patch) = (Version::new(1, 2, 3), Version::new(1, 2, 4));
        check_raise(&old, &patch, Some(Level::Minor)).unwrap_err();
    }

    #[test]
    fn a_stamp_survives_its_file() {
        let stamp = Stamp {
            contract: Version::new(0, 3, 1),
            fingerprint: "sha256:00".into(),
        };
        assert_eq!(stamp.to_string().parse::<Stamp>().unwrap(), stamp);
        assert!(
            "contract = \"0.1.0\""
                .parse::<Stamp>()
                .unwrap_err()
                .to_string()
                .contains("fingerprint")
        );
    }

    #[test]
    fn a_fingerprint_covers_names_and_contents() {
        let files = |rows: &[(&str, &str)]| -> BTreeMap<String, String> {
            rows.iter()
                .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
                .collect()
        };
        let prints = [
            fingerprint(&files(&[("a", "x"), ("b", "y")])),
            fingerprint(&files(&[("a", "x"), ("c", "y")])),
            fingerprint(&files(&[("a", "xb"), ("", "y")])),
            fingerprint(&files(&[("a", "x")])),
        ];
        for (index, print) in prints.iter().enumerate() {
            assert!(!prints[..index].contains(print));
        }
        assert_eq!(prints[0], fingerprint(&files(&[("b", "y"), ("a", "x")])));
    }
}
