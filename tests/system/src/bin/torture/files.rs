//! What lies about on the file systems.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

/// Where devices with a name lie.
pub(crate) const SHM: &str = "/dev/shm";

/// The names of all files below `dir`, each run of digits as `#`, so that the tenth segment of a log counts as the
/// first. What begins with a dot does not differ from the rest.
///
/// # Errors
/// What the file system says.
pub(crate) fn below(dir: &Path) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    walk(dir, "", &mut names)?;
    Ok(names)
}

fn walk(dir: &Path, prefix: &str, names: &mut BTreeSet<String>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            names.insert(format!("{}/", without_numbers(&name)));
            walk(&entry.path(), &format!("{name}/"), names)?;
        } else {
            names.insert(without_numbers(&name));
        }
    }
    Ok(())
}

/// The files in shared memory whose names have this part.
///
/// # Errors
/// What the file system says.
pub(crate) fn shared(part: &str) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(SHM)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.contains(part) {
            names.insert(name);
        }
    }
    Ok(names)
}

/// Bytes of all files below `dir`.
///
/// # Errors
/// What the file system says.
pub(crate) fn bytes(dir: &Path) -> io::Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let stat = entry.metadata()?;
        sum += if stat.is_dir() {
            bytes(&entry.path())?
        } else {
            stat.len()
        };
    }
    Ok(sum)
}

fn without_numbers(name: &str) -> String {
    let mut plain = String::new();
    for letter in name.chars() {
        // Numbers are written in either base.
        let letter = if letter.is_ascii_digit() { '#' } else { letter };
        if !(letter == '#' && plain.ends_with('#')) {
            plain.push(letter);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_do_not_matter_and_anything_else_does() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("log")).unwrap();
        fs::write(dir.path().join("log/17.wal"), "12345").unwrap();
        fs::write(dir.path().join("log/18.wal"), "").unwrap();
        fs::write(dir.path().join("lock"), "").unwrap();
        let names = below(dir.path()).unwrap();
        assert_eq!(
            names,
            ["lock", "log/", "log/#.wal"].map(String::from).into()
        );
        assert_eq!(bytes(dir.path()).unwrap(), 5);
    }
}
