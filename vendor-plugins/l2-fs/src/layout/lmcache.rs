//! The layout of LMCache's `fs` and `fs_native` (0.5.6): a flat directory.

use std::borrow::Cow;

use ondol_plugin::l2::ObjectKey;

use super::{Meaning, Name};

pub(super) fn name(key: &ObjectKey) -> Name {
    Name {
        shard: None,
        file: key.file_name(),
    }
}

pub(super) fn meaning(file: &str) -> Meaning {
    ObjectKey::from_file_name(file).map_or(Meaning::Foreign, Meaning::Object)
}

/// Names have `-SEP-` for `/`, so a model with `-SEP-` in its own name shares its files with the one that has `/` there. The core
/// compares the whole key when it has loaded.
pub(super) fn canonical(key: &ObjectKey) -> Cow<'_, ObjectKey> {
    if key.model_name().contains("-SEP-")
        && let Some(read) = ObjectKey::from_file_name(&key.file_name())
    {
        return Cow::Owned(read);
    }
    Cow::Borrowed(key)
}

#[cfg(test)]
mod tests {
    use ondol_plugin::l2::KvRank;

    use super::*;
    use crate::config::LayoutKind;

    fn key(model: &str, salt: &str) -> ObjectKey {
        ObjectKey::new(model, KvRank(0x0100_0100), 0, [0xab; 4], salt).unwrap()
    }

    #[test]
    fn names_are_lmcaches() {
        let name = LayoutKind::Lmcache.name(&key("meta-llama/L", "t")).unwrap();
        assert_eq!(name.file, "meta-llama-SEP-L@0x01000100@0@abababab@t.data");
        let read = meaning(&name.file);
        assert_eq!(read, Meaning::Object(key("meta-llama/L", "t")));
        for foreign in [
            ".ondol-l2-fs.json",
            "x.tmp",
            "m@0x1@0@ab.data",
            "m@0x01000100@0@ab.tmp",
        ] {
            assert_eq!(meaning(foreign), Meaning::Foreign, "{foreign}");
        }
    }

    #[test]
    fn keys_that_share_a_file_are_one() {
        let canonical = canonical(&key("a-SEP-b", "")).into_owned();
        assert_eq!(canonical, key("a/b", ""));
    }

    #[test]
    fn a_name_that_is_too_long_is_refused_and_never_cut() {
        let most = key(&"m".repeat(255 - "@0x01000100@0@abababab.data".len()), "");
        assert_eq!(LayoutKind::Lmcache.name(&most).unwrap().file.len(), 255);
        let salt = "é".repeat(128);
        let error = LayoutKind::Lmcache.name(&key("model", &salt)).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("289 bytes") && text.contains("255") && text.contains("sharded"),
            "{text}"
        );
    }
}
