use ondol_plugin::l2::{KvRank, ObjectKey};
use ondol_plugin::{Key, KeyTag};

/// The model under which objects are stored that have no name of LMCache's.
const MODEL: &str = "ondol";
/// Worker 0 of 1, as LMCache packs it.
const RANK: KvRank = KvRank(0x0100_0100);

/// The name of an object in storage backends: LMCache's own for its keys; for any other key, and for bytes under LMCache's
/// tag that are no canonical string, the blake3 of tag and bytes under the model `ondol`.
///
/// Two keys can have one name, if somebody gives an LMCache key that spells out the hash of another key; the trailer of
/// what is stored has the full key and tells them apart.
pub fn object_key(key: &Key) -> ObjectKey {
    named_by_lmcache(key).unwrap_or_else(|| {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&[key.tag() as u8]);
        hasher.update(key.bytes());
        let hash = hasher.finalize();
        match ObjectKey::new(MODEL, RANK, 0, hash.as_bytes(), "") {
            Ok(name) => name,
            Err(error) => unreachable!("a constant model and a hash are a name: {error}"),
        }
    })
}

/// The name that LMCache itself gives the object; `None` if LMCache cannot have stored it.
pub(crate) fn named_by_lmcache(key: &Key) -> Option<ObjectKey> {
    if key.tag() != KeyTag::LmCache {
        return None;
    }
    std::str::from_utf8(key.bytes()).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(tag: KeyTag, bytes: &[u8]) -> String {
        object_key(&Key::new(tag, bytes).unwrap()).to_string()
    }

    #[test]
    fn a_key_of_lmcaches_keeps_its_name() {
        for text in [
            "meta-llama/Llama-3.1-8B@01000100@0@abababab",
            "m@02010201@1f@00@tenant-a",
        ] {
            assert_eq!(named(KeyTag::LmCache, text.as_bytes()), text);
        }
    }

    /// Names are on disks: these do not change. The hashes come from another implementation of blake3.
    #[test]
    fn any_other_key_is_named_by_its_hash() {
        let golden: [(KeyTag, &[u8], &str); 6] = [
            (
                KeyTag::MessagePack,
                b"\xa3foo",
                "88dbe0fa636cb3cd67cacc048a672d6232e931b94f488a6882aa62177cd3ca8e",
            ),
            (
                KeyTag::MessagePack,
                b"\x05",
                "741e00871976560e0c6bd7d6857a302db4159edf5894b595bd41791351760b6a",
            ),
            (
                KeyTag::Raw,
                b"\xa3foo",
                "fcadb14c1c4d9a590d02a7181b5e9df323a6a00febe523419182e5fe9f352093",
            ),
            (
                KeyTag::Raw,
                b"",
                "e1e0e81d6ea39b0cf8b86ffd440921011f57400cbc3f76a8a171906a9b8d7505",
            ),
            (
                KeyTag::LmCache,
                b"m@1@0@ab",
                "3e11291b8c48b3a733822e3ce654ebc487896e2c282550dea546799e8b902ce3",
            ),
            (
                KeyTag::LmCache,
                b"m@01000100@0@AB",
                "2eefbe431d07a66e3a862d31d784f00f6ed779f0fb1918468416454fe9987a44",
            ),
        ];
        for (tag, bytes, hash) in golden {
            assert_eq!(named(tag, bytes), format!("ondol@01000100@0@{hash}"));
        }
    }

    #[test]
    fn other_spellings_of_one_lmcache_name_stay_different_objects() {
        let spellings: [&[u8]; 4] = [
            b"m@01000100@0@ab",
            b"m@01000100@00@ab",
            b"m@1000100@0@ab",
            b"m@01000100@0@ab@",
        ];
        let mut names: Vec<_> = spellings
            .iter()
            .map(|bytes| named(KeyTag::LmCache, bytes))
            .collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), spellings.len());
    }

    #[test]
    fn the_longest_key_has_a_name() {
        let key = Key::new(KeyTag::Raw, &[0xff; ondol_plugin::MAX_KEY_BYTES]).unwrap();
        assert_eq!(object_key(&key).chunk_hash().len(), 32);
    }
}
