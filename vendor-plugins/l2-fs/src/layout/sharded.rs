//! Our own layout: 4096 directories.
//!
//! A file is `objects/SHARD/NAME.kv`. SHARD are the low 12 bits, as three hexadecimal digits, of the xxh3-64 of the key's canonical
//! string. NAME is that string, in which every byte but ASCII letters, digits, `.`, `_`, `-` and the `@` that part it is written as
//! `%XX`. A name that would be longer than a file system allows is `long-` and the xxh3-128 of the string, as 32 hexadecimal
//! digits; the key then stands in the file, as it does in every file.

use ondol_plugin::l2::ObjectKey;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::{MAX_NAME, Meaning, Name};

pub(super) const DIRECTORY: &str = "objects";
const SUFFIX: &str = ".kv";
const LONG: &str = "long-";
const SHARD_BITS: u64 = 0xfff;

pub(super) fn name(key: &ObjectKey) -> Name {
    let text = key.to_string();
    let mut file = String::with_capacity(text.len() + SUFFIX.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b'@' => {
                file.push(byte.into())
            }
            other => file.push_str(&format!("%{other:02X}")),
        }
    }
    if file.len() + SUFFIX.len() > MAX_NAME {
        file = format!("{LONG}{:032x}", xxh3_128(text.as_bytes()));
    }
    file.push_str(SUFFIX);
    Name {
        shard: Some(format!("{:03x}", xxh3_64(text.as_bytes()) & SHARD_BITS)),
        file,
    }
}

pub(super) fn meaning(shard: Option<&str>, file: &str) -> Meaning {
    let Some(stem) = file.strip_suffix(SUFFIX) else {
        return Meaning::Foreign;
    };
    if stem.starts_with(LONG) && !stem.contains('@') {
        return Meaning::Recorded;
    }
    let key = decode(stem).and_then(|text| text.parse::<ObjectKey>().ok());
    match key {
        // Another spelling of a name, or a name in the wrong place, would never be found again.
        Some(key) if is_at(&key, shard, file) => Meaning::Object(key),
        _ => Meaning::Foreign,
    }
}

fn is_at(key: &ObjectKey, shard: Option<&str>, file: &str) -> bool {
    let name = name(key);
    name.file == file && name.shard.as_deref() == shard
}

fn decode(stem: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(stem.len());
    let mut rest = stem.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let high = char::from(rest.next()?).to_digit(16)?;
            let low = char::from(rest.next()?).to_digit(16)?;
            bytes.push((high * 16 + low) as u8);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use ondol_plugin::l2::KvRank;

    use super::*;

    fn key(model: &str, salt: &str) -> ObjectKey {
        ObjectKey::new(model, KvRank(0x0100_0100), 3, [0xab; 4], salt).unwrap()
    }

    #[test]
    fn every_key_has_a_name_of_its_own_that_is_read_back() {
        let mut seen = std::collections::HashSet::new();
        for (model, salt) in [
            ("a/b", ""),
            ("a-SEP-b", ""),
            ("a%2Fb", ""),
            (".", ""),
            ("..", ""),
            ("\n", "ü"),
            ("long-", ""),
            ("m", "long-00"),
        ] {
            let key = key(model, salt);
            let name = name(&key);
            assert!(!name.file.contains('/') && name.file.is_ascii(), "{name:?}");
            let read = meaning(name.shard.as_deref(), &name.file);
            assert_eq!(read, Meaning::Object(key));
            assert!(seen.insert(name.file));
        }
    }

    #[test]
    fn a_long_key_has_a_short_name() {
        let name = name(&key(&"ü".repeat(500), ""));
        assert_eq!(name.file.len(), LONG.len() + 32 + SUFFIX.len());
        let read = meaning(name.shard.as_deref(), &name.file);
        assert_eq!(read, Meaning::Recorded);
    }

    #[test]
    fn a_file_in_the_wrong_directory_is_nobodys() {
        let name = name(&key("m", ""));
        assert_eq!(meaning(Some("zzz"), &name.file), Meaning::Foreign);
        assert_eq!(meaning(name.shard.as_deref(), "x.kv"), Meaning::Foreign);
    }
}
