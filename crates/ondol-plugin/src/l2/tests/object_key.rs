use crate::l2::{KvRank, MAX_SALT_CHARS, ObjectKey, ObjectKeyError};

const RANK: KvRank = KvRank(0x0100_0100);

fn key(model: &str, salt: &str) -> Result<ObjectKey, ObjectKeyError> {
    ObjectKey::new(model, RANK, 0, [0xab; 32], salt)
}

#[test]
fn the_strings_of_the_reference() {
    let hash = "ab".repeat(32);
    let plain = key("meta-llama/Llama-3.1-8B", "").unwrap();
    assert_eq!(
        plain.to_string(),
        format!("meta-llama/Llama-3.1-8B@01000100@0@{hash}")
    );
    assert_eq!(
        plain.file_name(),
        format!("meta-llama-SEP-Llama-3.1-8B@0x01000100@0@{hash}.data")
    );
    let salted = ObjectKey::new("m", KvRank(0x0203_0203), 0x1f, [0, 255], "tenant-7").unwrap();
    assert_eq!(salted.to_string(), "m@02030203@1f@00ff@tenant-7");
    assert_eq!(salted.file_name(), "m@0x02030203@1f@00ff@tenant-7.data");
    assert_eq!(
        format!("{salted:?}"),
        "ObjectKey(m@02030203@1f@00ff@tenant-7)"
    );
}

#[test]
fn canonical_strings_and_file_names_read_back_as_the_same_key() {
    for (model, rank, group, hash, salt) in [
        ("m", 0, 0, vec![0], ""),
        ("org/name", u32::MAX, u32::MAX, vec![7; 64], "salt"),
        ("a/b/c d", 1, 16, vec![0xde, 0xad], "ü ~"),
        ("..", 0x0100_0100, 0, vec![1; 32], "..data"),
    ] {
        let key = ObjectKey::new(model, KvRank(rank), group, &hash, salt).unwrap();
        let read: ObjectKey = key.to_string().parse().unwrap();
        assert_eq!(read, key);
        assert_eq!(
            (read.model_name(), read.kv_rank(), read.object_group()),
            (model, KvRank(rank), group)
        );
        assert_eq!((read.chunk_hash(), read.cache_salt()), (&hash[..], salt));
        assert_eq!(ObjectKey::from_file_name(&key.file_name()), Some(key));
    }
}

#[test]
fn a_separator_in_a_models_own_name_is_read_as_a_slash() {
    let slash = key("a/b", "").unwrap();
    let spelt = key("a-SEP-b", "").unwrap();
    assert_ne!(slash, spelt);
    assert_ne!(slash.to_string(), spelt.to_string());
    assert_eq!(slash.file_name(), spelt.file_name());
    assert_eq!(ObjectKey::from_file_name(&spelt.file_name()), Some(slash));
}

#[test]
fn separators_and_nul_are_refused_in_names_and_salts() {
    for model in ["a@b", "@", "a\0b"] {
        let error = key(model, "").unwrap_err();
        assert!(
            matches!(
                error,
                ObjectKeyError::Forbidden {
                    field: "model_name",
                    ..
                }
            ),
            "{error}"
        );
    }
    for salt in ["a@b", "a/b", "a\\b", "a\0"] {
        let error = key("m", salt).unwrap_err();
        assert!(
            matches!(
                error,
                ObjectKeyError::Forbidden {
                    field: "cache_salt",
                    ..
                }
            ),
            "{error}"
        );
        assert!(error.to_string().contains("cache_salt"), "{error}");
    }
    // A model may have what a salt may not.
    key("a/b\\c", "").unwrap();
}

#[test]
fn a_salt_has_at_most_128_characters_however_many_bytes_that_is() {
    for letter in ["x", "ü", "字"] {
        key("m", &letter.repeat(MAX_SALT_CHARS)).unwrap();
        assert_eq!(
            key("m", &letter.repeat(MAX_SALT_CHARS + 1)),
            Err(ObjectKeyError::SaltTooLong { found: 129 })
        );
    }
}

#[test]
fn empty_parts_are_refused() {
    assert_eq!(
        key("", "").unwrap_err(),
        ObjectKeyError::Empty {
            field: "model_name"
        }
    );
    assert_eq!(
        ObjectKey::new("m", RANK, 0, [], "").unwrap_err(),
        ObjectKeyError::Empty {
            field: "chunk_hash"
        }
    );
}

#[test]
fn the_fields_of_a_rank_have_eight_bits_each() {
    assert_eq!(KvRank::of_worker(0, 1), Ok(RANK));
    assert_eq!(KvRank::new(1, 2, 3, 4), Ok(KvRank(0x0102_0304)));
    assert_eq!(KvRank::new(255, 255, 255, 255), Ok(KvRank(u32::MAX)));
    for (fields, field) in [
        ([256, 0, 0, 0], "world_size"),
        ([0, 256, 0, 0], "global_rank"),
        ([0, 0, 256, 0], "local_world_size"),
        ([0, 0, 0, 256], "local_rank"),
    ] {
        let [world, rank, local_world, local] = fields;
        assert_eq!(
            KvRank::new(world, rank, local_world, local),
            Err(ObjectKeyError::RankTooLarge { field, found: 256 })
        );
    }
    assert!(KvRank::of_worker(0, 256).is_err());
}

#[test]
fn other_spellings_are_refused() {
    "m@01000100@0@ab".parse::<ObjectKey>().unwrap();
    for text in [
        "",
        "m",
        "m@01000100@0",
        "m@01000100@0@",
        "@01000100@0@ab",
        "m@0x01000100@0@ab",
        "m@1000100@0@ab",
        "m@001000100@0@ab",
        "m@0100010A@0@ab",
        "m@01000100@00@ab",
        "m@01000100@01@ab",
        "m@01000100@F@ab",
        "m@01000100@@ab",
        "m@01000100@100000000@ab",
        "m@01000100@+1@ab",
        "m@01000100@0@abc",
        "m@01000100@0@AB",
        "m@01000100@0@zz",
        "m@01000100@0@ab@",
        "m@01000100@0@ab@salt@more",
        "m@01000100@0@ab@a/b",
        "m@01000100@0@ab ",
    ] {
        assert!(text.parse::<ObjectKey>().is_err(), "{text:?}");
    }
    let error = "m@1@0@ab".parse::<ObjectKey>().unwrap_err().to_string();
    assert!(
        error.contains("m@1@0@ab") && error.contains("rank"),
        "{error}"
    );
}

#[test]
fn names_of_other_files_are_no_keys() {
    ObjectKey::from_file_name("m@0x01000100@0@ab.data").unwrap();
    for name in [
        "",
        ".data",
        "m@0x01000100@0@ab",
        "m@0x01000100@0@ab.tmp",
        "m@01000100@0@ab.data",
        "m@0x01000100@0@ab.data.data",
        "README.data",
        "@0x01000100@0@ab.data",
    ] {
        // A salt that ends in `.data` is legal; without a salt the hash is not.
        assert_eq!(ObjectKey::from_file_name(name), None, "{name:?}");
    }
}
