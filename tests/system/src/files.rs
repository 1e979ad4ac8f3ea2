use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

/// Where devices with a name lie.
pub const SHM: &str = "/dev/shm";

/// The names of all files below `dir`, with `#` for each number in them, so that the tenth segment of a log counts as
/// the first.
///
/// # Errors
/// What the file system says.
pub fn files_below(dir: &Path) -> io::Result<BTreeSet<String>> {
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
pub fn shared_files(part: &str) -> io::Result<BTreeSet<String>> {
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
pub fn bytes_below(dir: &Path) -> io::Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let stat = entry.metadata()?;
        sum += if stat.is_dir() {
            bytes_below(&entry.path())?
        } else {
            stat.len()
        };
    }
    Ok(sum)
}

fn without_numbers(name: &str) -> String {
    let is_number = |word: &str| {
        // In either base.
        word.chars().all(|letter| letter.is_ascii_hexdigit())
            && word.chars().any(|letter| letter.is_ascii_digit())
    };
    let parts = name.split_inclusive(|letter: char| !letter.is_ascii_alphanumeric());
    let plain = parts.map(|part| {
        let word = part.trim_end_matches(|letter: char| !letter.is_ascii_alphanumeric());
        if is_number(word) {
            part.replacen(word, "#", 1)
        } else {
            part.to_owned()
        }
    });
    plain.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_do_not_matter_and_anything_else_does() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("log")).unwrap();
        fs::write(dir.path().join("log/face-1f.wal"), "12345").unwrap();
        fs::write(dir.path().join("log/face-20.wal"), "").unwrap();
        fs::write(dir.path().join("lock"), "").unwrap();
        let names = files_below(dir.path()).unwrap();
        assert_eq!(
            names,
            ["lock", "log/", "log/face-#.wal"].map(String::from).into()
        );
        assert_eq!(bytes_below(dir.path()).unwrap(), 5);
    }
}
