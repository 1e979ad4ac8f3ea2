use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use ondol_plugin::l2::{ObjectKey, ObjectRef, PageMut};
use ondol_plugin::{Key, KeyTag};
use ondol_shm::{LayoutFingerprint, ObjectMeta};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_64;

use super::trailer::{ObjectChecksum, Trailer};
use super::{Checked, Codec, Decoded, Refusal};
use crate::object_key;

const LMCACHE: &str = "m@01000100@0@abab@tenant";
/// As much as the memory that objects are decoded into.
const LIMIT: u64 = 1 << 24;
const LAYOUT: LayoutFingerprint = LayoutFingerprint([7; 16]);

fn list(serde: &Value) -> Vec<Map<String, Value>> {
    let list = serde.as_array().unwrap();
    list.iter()
        .map(|one| one.as_object().unwrap().clone())
        .collect()
}

fn codec(serde: &Value) -> Codec {
    Codec::new(&list(serde), false).unwrap()
}

fn refused(serde: &Value) -> String {
    Codec::new(&list(serde), false).unwrap_err().to_string()
}

fn plain() -> Codec {
    codec(&json!([]))
}

fn raw(bytes: &[u8]) -> Key {
    Key::new(KeyTag::Raw, bytes).unwrap()
}

fn lmcache(text: &str) -> Key {
    Key::new(KeyTag::LmCache, text.as_bytes()).unwrap()
}

fn meta_of(bytes: &[u8]) -> ObjectMeta {
    ObjectMeta {
        layout: Some(LAYOUT),
        checksum: Some(xxh3_64(bytes)),
    }
}

fn encode(codec: &Codec, key: &Key, bytes: &[u8], meta: ObjectMeta) -> Vec<u8> {
    let object = codec.encode_bytes(key, &object_key(key), bytes.to_vec(), meta);
    object.unwrap().to_vec()
}

fn decode(codec: &Codec, key: &Key, stored: &[u8]) -> Result<Decoded, Refusal> {
    codec.decode(key, &object_key(key), stored, LIMIT)
}

/// As it is loaded into a page with room for a body of `body` bytes.
fn check(codec: &Codec, key: &Key, stored: &[u8], body: usize) -> Result<Checked, Refusal> {
    let mut page = PageMut::new(vec![0xee; body], codec.trailer_len(key));
    let filled = page.fill(stored).unwrap();
    codec.check(key, &object_key(key), &page, filled)
}

/// As it is loaded into a page by the length that a lookup found.
fn check_found(codec: &Codec, key: &Key, stored: &[u8]) -> Result<Checked, Refusal> {
    check(
        codec,
        key,
        stored,
        stored.len().saturating_sub(codec.trailer_len(key)),
    )
}

/// A master key file; the directory goes with it.
struct KeyFile(TempDir);

impl KeyFile {
    fn new(bytes: &[u8], mode: u32) -> Self {
        let file = Self(TempDir::new().unwrap());
        std::fs::write(file.0.path().join("key"), bytes).unwrap();
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(file.0.path().join("key"), mode).unwrap();
        file
    }

    fn numbered(number: u8) -> Self {
        Self::new(&[number; 32], 0o600)
    }

    fn golden() -> Self {
        let bytes: Vec<_> = (0..32).collect();
        Self::new(&bytes, 0o400)
    }

    fn path(&self) -> String {
        self.0.path().join("key").to_str().unwrap().to_owned()
    }

    /// `aesgcm` with this file and more parameters.
    fn aesgcm(&self, more: Value) -> Value {
        let mut serde = json!({"type": "aesgcm", "master_key_path": self.path()});
        let more = more.as_object().unwrap().clone();
        serde.as_object_mut().unwrap().extend(more);
        serde
    }
}

fn from_hex(text: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

/// Bytes that compress a little.
fn sample(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * at / 7 % 23) as u8).collect()
}

// What is on disks. The values come from other implementations, of the drawing in `docs/l2-format.md`.

#[test]
fn a_trailer_is_what_it_was() {
    let golden = [
        (
            raw(b"key"),
            ObjectMeta::default(),
            "4f4e444f4c54524c036b65790d000000000000000d000000000000000000000000000000e0022cab6dbef9a3\
             0000000000000000000000000000000000000000000000005c00000004000001eaa5bd6ff30f98044f4e444f4c4f424a",
        ),
        (
            lmcache("m@01000100@0@ab@s"),
            ObjectMeta {
                layout: Some(LayoutFingerprint(std::array::from_fn(|at| at as u8))),
                checksum: Some(xxh3_64(b"hello, object")),
            },
            "4f4e444f4c54524c026d403031303030313030403040616240730d000000000000000d00000000000000\
             e0022cab6dbef9a3e0022cab6dbef9a3000102030405060708090a0b0c0d0e0f0000000000000000\
             6a00000007000001efb821b6c742cc194f4e444f4c4f424a",
        ),
    ];
    for (key, meta, trailer) in golden {
        let stored = encode(&plain(), &key, b"hello, object", meta);
        assert_eq!(stored, [b"hello, object", &from_hex(trailer)[..]].concat());
    }
}

#[test]
fn an_lz4_frame_of_another_implementation_is_read() {
    let key = raw(b"k");
    let lz4 = codec(&json!([{"type": "lz4"}]));
    let stored = encode(&lz4, &key, &b"ab".repeat(20), ObjectMeta::default());
    // Two literals, a match of 33 bytes two bytes back, five literals.
    let frame = from_hex("280000002f616202000e506261626162");
    assert_eq!(stored[..4], frame[..4], "the length");
    let trailer = Trailer {
        object_len: 40,
        chain: [1, 0, 0, 0, 0, 0, 0, 0],
        ..of_body(&frame)
    };
    let decoded = decode(&plain(), &key, &forge(&key, &frame, &trailer));
    assert_eq!(decoded.unwrap().bytes, b"ab".repeat(20));
}

#[test]
fn a_zstd_frame_of_the_command_line_is_read() {
    let key = raw(b"k");
    let stored = encode(
        &codec(&json!([{"type": "zstd"}])),
        &key,
        &b"ab".repeat(20),
        ObjectMeta::default(),
    );
    let body = &stored[..stored.len() - plain().trailer_len(&key)];
    let frame = from_hex("28b52ffd202845000010616201007b1c16");
    assert_eq!(body[..6], frame[..6], "magic, descriptor and length");
    let stored = forge(
        &key,
        &frame,
        &Trailer {
            object_len: 40,
            chain: [2, 0, 0, 0, 0, 0, 0, 0],
            ..of_body(&frame)
        },
    );
    assert_eq!(
        decode(&plain(), &key, &stored).unwrap().bytes,
        b"ab".repeat(20)
    );
}

fn of_body(body: &[u8]) -> Trailer {
    Trailer {
        object_len: body.len() as u64,
        body_len: body.len() as u64,
        layout: None,
        object_checksum: ObjectChecksum::None,
        body_checksum: Some(xxh3_64(body)),
        chain: [0; 8],
    }
}

/// Stored bytes of somebody who knows the format.
fn forge(key: &Key, body: &[u8], trailer: &Trailer) -> Vec<u8> {
    [body, &trailer.to_bytes(key)].concat()
}

#[test]
fn an_encrypted_frame_is_read() {
    let file = KeyFile::golden();
    let key = lmcache("m@01000100@0@ab@tenant");
    let codec = codec(&json!([file.aesgcm(json!({"aes_bits": 256}))]));
    let frame = from_hex(
        "026465666768696a6b6c6d6e6feffde86e722a1d7984eb7c2b80527909a8126d916cd802782c51b4dcdc",
    );
    let layout = LayoutFingerprint(std::array::from_fn(|at| at as u8));
    let trailer = Trailer {
        object_len: 13,
        layout: Some(layout),
        chain: [3, 0, 0, 0, 0, 0, 0, 0],
        ..of_body(&frame)
    };
    let decoded = decode(&codec, &key, &forge(&key, &frame, &trailer)).unwrap();
    assert_eq!(decoded.bytes, b"hello, object");
    assert_eq!(decoded.meta.layout, Some(layout));
}

#[test]
fn an_encrypted_frame_of_lmcaches_is_read_only_if_asked_for() {
    let file = KeyFile::golden();
    let key = lmcache("m@01000100@0@ab@tenant");
    let frame = from_hex(
        "016465666768696a6b6c6d6e6fc6295cc3d20d353b791415d65d78a4e6faabf5011394c4ce8092d0ad8a",
    );
    let strict = codec(&json!([file.aesgcm(json!({}))]));
    let error = decode(&strict, &key, &frame).unwrap_err().to_string();
    assert!(error.contains("accept_unbound"), "{error}");
    let lenient = codec(&json!([file.aesgcm(json!({"accept_unbound": true}))]));
    let decoded = decode(&lenient, &key, &frame).unwrap();
    assert_eq!(
        (&decoded.bytes[..], decoded.verified),
        (&b"hello, object"[..], false)
    );
    let other = lmcache("m@01000100@0@ab@other");
    assert!(
        decode(&lenient, &other, &frame).is_err(),
        "another tenant's key"
    );
}

// Plain objects.

#[test]
fn a_plain_object_is_stored_without_a_copy() {
    struct Shared(Arc<Vec<u8>>);
    impl AsRef<[u8]> for Shared {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    let bytes = Arc::new(sample(5000));
    let key = raw(b"k");
    for meta in [ObjectMeta::default(), meta_of(&bytes)] {
        let object =
            plain().encode_bytes(&key, &object_key(&key), Shared(Arc::clone(&bytes)), meta);
        assert_eq!(object.unwrap().body().as_ptr(), bytes.as_ptr());
    }
}

#[test]
fn a_checksum_that_is_known_is_not_computed_again() {
    // A checksum that does not fit shows that it was taken over; and the object is never served.
    let key = raw(b"k");
    let meta = ObjectMeta {
        checksum: Some(1),
        ..ObjectMeta::default()
    };
    let stored = encode(&plain(), &key, b"bytes", meta);
    let error = check_found(&plain(), &key, &stored)
        .unwrap_err()
        .to_string();
    assert!(error.ends_with("expected 0000000000000001"), "{error}");
}

#[test]
fn an_object_lies_in_place_whatever_the_room() {
    let bytes = sample(300);
    for key in [raw(b"k"), lmcache(LMCACHE)] {
        for meta in [ObjectMeta::default(), meta_of(&bytes)] {
            let stored = encode(&plain(), &key, &bytes, meta);
            for body in [300, 301, 350, 400, 1000] {
                let checked = check(&plain(), &key, &stored, body).unwrap();
                assert_eq!((checked.len, checked.meta), (300, meta));
                assert!(checked.verified && checked.in_place);
            }
            let decoded = decode(&plain(), &key, &stored).unwrap();
            assert_eq!(
                (decoded.bytes, decoded.len, decoded.meta, decoded.verified),
                (bytes.clone(), 300, meta, true)
            );
        }
    }
}

#[test]
fn an_empty_object_comes_back() {
    let file = KeyFile::numbered(1);
    for serde in [
        json!([]),
        json!([{"type": "lz4"}]),
        json!([{"type": "zstd"}, file.aesgcm(json!({}))]),
    ] {
        let codec = codec(&serde);
        for key in [raw(b""), lmcache(LMCACHE)] {
            let stored = encode(&codec, &key, b"", meta_of(b""));
            let decoded = decode(&codec, &key, &stored).unwrap();
            assert_eq!((decoded.bytes, decoded.meta), (Vec::new(), meta_of(b"")));
            assert_eq!(check_found(&codec, &key, &stored).unwrap().len, 0);
        }
    }
}

#[test]
fn a_file_of_lmcaches_is_served_unverified() {
    let key = lmcache(LMCACHE);
    let file = sample(3000);
    let checked = check(&plain(), &key, &file, 3000).unwrap();
    assert_eq!((checked.len, checked.meta), (3000, ObjectMeta::default()));
    assert!(!checked.verified && checked.in_place);
    let checked = check_found(&plain(), &key, &file).unwrap();
    assert!(!checked.in_place, "it goes on in the trailer's room");
    let decoded = decode(&plain(), &key, &file).unwrap();
    assert_eq!((decoded.bytes, decoded.verified), (file, false));
}

#[test]
fn a_file_without_a_trailer_is_refused_where_lmcache_cannot_have_written_it() {
    let file = sample(3000);
    for key in [raw(b"k"), Key::text("k").unwrap(), lmcache("m@1@0@ab")] {
        assert!(check_found(&plain(), &key, &file).is_err());
        assert!(decode(&plain(), &key, &file).is_err());
    }
    let key = lmcache(LMCACHE);
    let strict = codec(&json!([{"type": "checksum", "require": true}]));
    assert!(strict.is_plain());
    assert!(check_found(&strict, &key, &file).is_err());
    assert!(decode(&strict, &key, &file).is_err());
    for serde in [
        json!([{"type": "lz4"}]),
        json!([{"type": "lz4"}, {"type": "zstd"}]),
    ] {
        assert!(
            decode(&codec(&serde), &key, &file).is_err(),
            "nobody knows what was done to it"
        );
    }
    assert!(
        decode(&plain(), &key, b"").is_err(),
        "LMCache's objects are not empty"
    );
    let torn = [sample(3000), vec![0; 200]].concat();
    assert!(
        decode(&plain(), &key, &torn).is_err(),
        "its end was never written"
    );
}

/// What is corrupt is deleted: a file of LMCache's that is only not served here must not be.
#[test]
fn only_what_is_ondols_and_spoilt_is_corrupt() {
    let foreign = |codec: &Codec, key: &Key, file: &[u8]| {
        matches!(decode(codec, key, file), Err(Refusal::Foreign(_)))
    };
    let lmcaches = lmcache(LMCACHE);
    let zeros = [sample(3000), vec![0; 200]].concat();
    let strict = codec(&json!([{"type": "checksum", "require": true}]));
    for (codec, file) in [
        (&plain(), &zeros),
        (&strict, &sample(3000)),
        (&codec(&json!([{"type": "lz4"}])), &sample(3000)),
    ] {
        assert!(foreign(codec, &lmcaches, file));
        assert!(!foreign(codec, &raw(b"k"), file), "LMCache has no such key");
    }
    let found = check_found(&plain(), &lmcaches, &zeros);
    assert!(matches!(found, Err(Refusal::Foreign(_))));
    let mut spoilt = encode(&plain(), &lmcaches, &sample(3000), ObjectMeta::default());
    spoilt[0] ^= 1;
    assert!(!foreign(&plain(), &lmcaches, &spoilt));
    let cut = &spoilt[..spoilt.len() - 9];
    assert!(
        !foreign(&plain(), &lmcaches, cut),
        "a part of its trailer is there"
    );
}

/// One start with a wrong key emptied the storage, as every object that was asked for was deleted.
#[test]
fn what_another_configuration_reads_is_not_corrupt() {
    let (file, other) = (KeyFile::numbered(1), KeyFile::numbered(2));
    let encrypts = |file: &KeyFile| codec(&json!([file.aesgcm(json!({}))]));
    let right = encrypts(&file);
    for key in [raw(b"k"), lmcache(LMCACHE)] {
        let encrypted = encrypt(&right, &key);
        let bare = encode(&plain(), &key, &sample(300), ObjectMeta::default());
        for (codec, stored) in [
            (&encrypts(&other), &encrypted),
            (&plain(), &encrypted),
            (&right, &bare),
        ] {
            let refused = decode(codec, &key, stored).unwrap_err();
            assert!(matches!(refused, Refusal::Foreign(_)), "{refused}");
        }
        // What is damaged is.
        let mut damaged = encrypted.clone();
        damaged[100] ^= 1;
        for codec in [&encrypts(&other), &plain(), &right] {
            let refused = decode(codec, &key, &damaged).unwrap_err();
            assert!(matches!(refused, Refusal::Corrupt(_)), "{refused}");
        }
    }
}

fn encrypt(codec: &Codec, key: &Key) -> Vec<u8> {
    encode(codec, key, &sample(300), ObjectMeta::default())
}

#[test]
fn what_an_adapter_cannot_have_filled_is_refused() {
    let key = raw(b"k");
    let page = PageMut::new(vec![0; 10], 5);
    for filled in [16, u64::MAX] {
        assert!(
            plain()
                .check(&key, &object_key(&key), &page, filled)
                .is_err()
        );
    }
}

#[test]
fn an_adapter_that_verifies_is_believed() {
    let key = raw(b"k");
    let verifying = Codec::new(&[], true).unwrap();
    let mut stored = encode(&verifying, &key, b"bytes", ObjectMeta::default());
    assert!(check_found(&verifying, &key, &stored).unwrap().verified);
    assert!(
        !check_found(&plain(), &key, &stored).unwrap().verified,
        "there is nothing to compare it with"
    );
    let strict = codec(&json!([{"type": "checksum", "require": true}]));
    assert!(check_found(&strict, &key, &stored).is_err());
    stored[0] ^= 1;
    assert!(check_found(&verifying, &key, &stored).is_ok());
    // Unless somebody wants it to be checked all the same.
    let both = Codec::new(&list(&json!([{"type": "checksum"}])), true).unwrap();
    let mut stored = encode(&both, &key, b"bytes", ObjectMeta::default());
    stored[0] ^= 1;
    assert!(check_found(&both, &key, &stored).is_err());
}

/// Also where nobody compares checksums here, what is served must lie within what was stored.
#[test]
fn an_object_that_lost_bytes_in_the_middle_is_refused() {
    let verifying = Codec::new(&[], true).unwrap();
    for key in [raw(b"k"), lmcache(LMCACHE)] {
        let stored = encode(&verifying, &key, &sample(300), ObjectMeta::default());
        for lost in [1, 8, 100, 300] {
            let short = [&stored[..300 - lost], &stored[300..]].concat();
            assert!(check(&verifying, &key, &short, 300).is_err());
            assert!(decode(&verifying, &key, &short).is_err());
        }
    }
}

// Faults that others have had.

/// LMCache 0.5.6 returns corrupted bytes as a hit (its weak point 7).
#[test]
fn corrupted_bytes_are_never_a_hit() {
    let file = KeyFile::numbered(1);
    let bytes = sample(100);
    for serde in [
        json!([]),
        json!([{"type": "lz4"}]),
        json!([{"type": "zstd"}]),
        json!([file.aesgcm(json!({}))]),
    ] {
        let codec = codec(&serde);
        for key in [raw(b"k"), lmcache(LMCACHE)] {
            let stored = encode(&codec, &key, &bytes, meta_of(&bytes));
            for bit in 0..stored.len() * 8 {
                let mut damaged = stored.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert!(
                    decode(&codec, &key, &damaged).is_err(),
                    "bit {bit} of {serde}"
                );
                if codec.is_plain() {
                    assert!(
                        check_found(&codec, &key, &damaged).is_err(),
                        "bit {bit} in place"
                    );
                }
            }
        }
    }
}

/// LMCache 0.5.6 encrypts without associated data, so that objects of one tenant can be swapped (its weak point 17).
#[test]
fn swapped_objects_of_one_tenant_are_detected() {
    let file = KeyFile::numbered(1);
    let codec =
        codec(&json!([file.aesgcm(
            json!({"accept_unbound": true, "accept_plain": true})
        )]));
    let first = lmcache("m@01000100@0@aaaa@tenant");
    let second = lmcache("m@01000100@0@bbbb@tenant");
    let bytes = sample(100);
    let of_first = encode(&codec, &first, &bytes, meta_of(&bytes));
    let of_second = encode(&codec, &second, &sample(100), meta_of(&bytes));
    assert!(decode(&codec, &second, &of_first).is_err(), "whole files");
    // Bodies alone, each with the trailer that the other one had: whoever can write files can mend trailers.
    let body = of_first.len() - codec.trailer_len(&first);
    let frame = &of_first[..body];
    let trailer = Trailer {
        object_len: 100,
        layout: Some(LAYOUT),
        chain: [3, 0, 0, 0, 0, 0, 0, 0],
        ..of_body(frame)
    };
    assert!(decode(&codec, &first, &forge(&first, frame, &trailer)).is_ok());
    let error = decode(&codec, &second, &forge(&second, frame, &trailer)).unwrap_err();
    assert!(error.to_string().contains("another object"), "{error}");
    assert!(decode(&codec, &second, &of_second).is_ok());
    // Nor can the frame pass for one of LMCache's.
    assert!(decode(&codec, &first, frame).is_err());
    let mut unbound = frame.to_vec();
    unbound[0] = 1;
    assert!(decode(&codec, &second, &unbound).is_err());
}

/// A cache that reuses bytes of one data type as another's, or of one checkpoint as another's of the same name (sglang#33268,
/// vllm#54338, sglang#24758). An object comes back with the layout that it was stored under, by which the directory refuses it.
#[test]
fn an_object_of_another_layout_or_checkpoint_does_not_pass_for_this_one() {
    let file = KeyFile::numbered(1);
    let key = lmcache(LMCACHE);
    let bytes = sample(100);
    for serde in [
        json!([]),
        json!([{"type": "zstd"}]),
        json!([file.aesgcm(json!({}))]),
    ] {
        let codec = codec(&serde);
        let stored = encode(&codec, &key, &bytes, meta_of(&bytes));
        let found = check_found(&codec, &key, &stored).unwrap();
        assert_eq!(found.meta.layout, Some(LAYOUT));
        assert_eq!(
            decode(&codec, &key, &stored).unwrap().meta.layout,
            Some(LAYOUT)
        );
    }
    // Who can mend trailers cannot change the layout of what is encrypted.
    let codec = codec(&json!([file.aesgcm(json!({}))]));
    let stored = encode(&codec, &key, &bytes, meta_of(&bytes));
    let frame = &stored[..stored.len() - codec.trailer_len(&key)];
    for layout in [None, Some(LayoutFingerprint([8; 16]))] {
        let trailer = Trailer {
            object_len: 100,
            layout,
            chain: [3, 0, 0, 0, 0, 0, 0, 0],
            ..of_body(frame)
        };
        assert!(decode(&codec, &key, &forge(&key, frame, &trailer)).is_err());
    }
}

/// Two keys whose hashes collide share a block (openvino.genai#3722, Mooncake#644, vllm#44701).
#[test]
fn keys_that_share_a_name_do_not_share_an_object() {
    let key = raw(b"k");
    let name = object_key(&key);
    // An LMCache key that spells out the other key's name.
    let twin = lmcache(&name.to_string());
    assert_eq!(object_key(&twin), name);
    let stored = encode(&plain(), &key, b"bytes", ObjectMeta::default());
    let error = decode(&plain(), &twin, &stored).unwrap_err().to_string();
    assert!(error.contains("another object"), "{error}");
    assert!(check_found(&plain(), &twin, &stored).is_err());
    // Keys of equal bytes under different tags too.
    let text = Key::new(KeyTag::MessagePack, b"k").unwrap();
    assert!(plain().decode(&text, &name, &stored, LIMIT).is_err());
}

// Transforms.

#[test]
fn transforms_compose_in_any_order() {
    let file = KeyFile::numbered(1);
    let steps = [
        json!({"type": "lz4"}),
        json!({"type": "zstd", "level": 1}),
        file.aesgcm(json!({})),
    ];
    let orders = [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ];
    let bytes = sample(10_000);
    for order in orders {
        let mut serde: Vec<_> = order.map(|at| steps[at].clone()).into();
        serde.insert(1, json!({"type": "checksum"}));
        let codec = codec(&Value::Array(serde));
        assert!(!codec.is_plain());
        for (key, meta) in [
            (raw(b"k"), ObjectMeta::default()),
            (lmcache(LMCACHE), meta_of(&bytes)),
        ] {
            let stored = encode(&codec, &key, &bytes, meta);
            assert!(stored.len() as u64 <= codec.stored_bound(&key, 10_000));
            let decoded = decode(&codec, &key, &stored).unwrap();
            assert_eq!(
                (decoded.bytes, decoded.meta, decoded.verified),
                (bytes.clone(), meta, true)
            );
        }
    }
}

#[test]
fn what_was_stored_with_other_transforms_is_read_if_it_needs_no_secret() {
    let file = KeyFile::numbered(1);
    let key = lmcache(LMCACHE);
    let bytes = sample(1000);
    let open = [
        json!([]),
        json!([{"type": "lz4"}]),
        json!([{"type": "zstd"}]),
        json!([{"type": "zstd"}, {"type": "lz4"}]),
    ];
    for stored_by in &open {
        let stored = encode(&codec(stored_by), &key, &bytes, meta_of(&bytes));
        for read_by in &open {
            let reader = codec(read_by);
            assert_eq!(decode(&reader, &key, &stored).unwrap().bytes, bytes);
            let checked = check_found(&reader, &key, &stored).unwrap();
            assert_eq!(
                checked.in_place,
                stored_by == &open[0] && read_by == &open[0]
            );
        }
    }
    let secret = json!([{"type": "lz4"}, file.aesgcm(json!({}))]);
    let stored = encode(&codec(&secret), &key, &bytes, meta_of(&bytes));
    for reader in open {
        let error = decode(&codec(&reader), &key, &stored)
            .unwrap_err()
            .to_string();
        assert!(error.contains("not configured here"), "{error}");
    }
    let alone = codec(&json!([file.aesgcm(json!({}))]));
    assert_eq!(decode(&alone, &key, &stored).unwrap().bytes, bytes);
}

/// Else whoever can write files could put in what nobody encrypted.
#[test]
fn what_is_not_encrypted_is_refused_where_encryption_is_configured() {
    let file = KeyFile::numbered(1);
    let key = lmcache(LMCACHE);
    let strict = codec(&json!([file.aesgcm(json!({}))]));
    let lenient = codec(&json!([file.aesgcm(json!({"accept_plain": true}))]));
    for serde in [json!([]), json!([{"type": "zstd"}])] {
        let stored = encode(&codec(&serde), &key, b"bytes", ObjectMeta::default());
        let error = decode(&strict, &key, &stored).unwrap_err().to_string();
        assert!(error.contains("accept_plain"), "{error}");
        assert_eq!(decode(&lenient, &key, &stored).unwrap().bytes, b"bytes");
        let checked = check_found(&strict, &key, &stored).unwrap();
        assert!(
            !checked.in_place && !checked.verified,
            "it is not served from its page"
        );
    }
    assert!(decode(&strict, &key, &sample(100)).is_err());
}

#[test]
fn another_salt_or_master_key_decrypts_nothing() {
    let (file, other) = (KeyFile::numbered(1), KeyFile::numbered(2));
    let key = lmcache("m@01000100@0@abab@a");
    let codec_of =
        |file: &KeyFile, bits: i32| codec(&json!([file.aesgcm(json!({"aes_bits": bits}))]));
    let stored = encode(&codec_of(&file, 128), &key, b"bytes", ObjectMeta::default());
    assert!(decode(&codec_of(&file, 128), &key, &stored).is_ok());
    assert!(decode(&codec_of(&other, 128), &key, &stored).is_err());
    assert!(decode(&codec_of(&file, 256), &key, &stored).is_err());
    let salted: ObjectKey = "m@01000100@0@abab@b".parse().unwrap();
    assert!(
        codec_of(&file, 128)
            .decode(&key, &salted, &stored, LIMIT)
            .is_err()
    );
}

#[test]
fn what_is_encrypted_shows_nothing_of_the_bytes_nor_twice_the_same() {
    let file = KeyFile::numbered(1);
    let codec = codec(&json!([file.aesgcm(json!({}))]));
    let (key, bytes) = (lmcache(LMCACHE), sample(1000));
    let stored = encode(&codec, &key, &bytes, meta_of(&bytes));
    assert!(!stored.windows(8).any(|window| window == &bytes[..8]));
    assert!(
        !stored
            .windows(8)
            .any(|window| window == xxh3_64(&bytes).to_le_bytes())
    );
    assert_ne!(
        stored[..40],
        encode(&codec, &key, &bytes, meta_of(&bytes))[..40]
    );
    let debug = format!("{codec:?}");
    assert!(!debug.contains(&file.path()), "{debug}");
}

#[test]
fn an_object_that_does_not_fit_its_checksum_is_not_encrypted() {
    let file = KeyFile::numbered(1);
    let codec = codec(&json!([file.aesgcm(json!({}))]));
    let key = raw(b"k");
    let encoded = codec.encode_bytes(
        &key,
        &object_key(&key),
        b"bytes".to_vec(),
        meta_of(b"other"),
    );
    assert!(encoded.is_err());
}

#[test]
fn a_decompression_bomb_does_not_go_off() {
    let key = raw(b"k");
    let zeros = vec![0; 1 << 20];
    for (serde, id) in [
        (json!([{"type": "lz4"}]), 1),
        (json!([{"type": "zstd"}]), 2),
    ] {
        let codec = codec(&serde);
        let stored = encode(&codec, &key, &zeros, ObjectMeta::default());
        let frame = &stored[..stored.len() - codec.trailer_len(&key)];
        assert!(frame.len() < 10_000);
        for (object_len, said) in [
            (1000, "expected at most 1000"),
            (LIMIT + 1, "expected at most 16777216"),
        ] {
            let trailer = Trailer {
                object_len,
                chain: [id, 0, 0, 0, 0, 0, 0, 0],
                ..of_body(frame)
            };
            let error = decode(&codec, &key, &forge(&key, frame, &trailer))
                .unwrap_err()
                .to_string();
            assert!(error.contains(said), "{error}");
        }
    }
    // A block that says to be long and is short.
    let frame = from_hex("ffffff0050000000");
    let trailer = Trailer {
        object_len: 0x00ff_ffff,
        chain: [1, 0, 0, 0, 0, 0, 0, 0],
        ..of_body(&frame)
    };
    let error = decode(&plain(), &key, &forge(&key, &frame, &trailer)).unwrap_err();
    assert!(
        error.to_string().contains("expected at most 1020"),
        "{error}"
    );
    // As many layers as fit, each within its bound.
    let frame = vec![0; 100];
    let trailer = Trailer {
        object_len: LIMIT,
        chain: [2; 8],
        ..of_body(&frame)
    };
    assert!(decode(&plain(), &key, &forge(&key, &frame, &trailer)).is_err());
}

#[test]
fn a_trailer_that_contradicts_itself_is_refused() {
    let key = raw(b"k");
    let body = sample(100);
    let right = of_body(&body);
    assert!(decode(&plain(), &key, &forge(&key, &body, &right)).is_ok());
    for wrong in [
        Trailer {
            object_len: 99,
            ..right
        },
        Trailer {
            body_len: 99,
            ..right
        },
        Trailer {
            body_len: u64::MAX,
            ..right
        },
        Trailer {
            chain: [99, 0, 0, 0, 0, 0, 0, 0],
            ..right
        },
        Trailer {
            body_checksum: Some(0),
            ..right
        },
    ] {
        assert!(
            decode(&plain(), &key, &forge(&key, &body, &wrong)).is_err(),
            "{wrong:?}"
        );
    }
}

// Configuration.

#[test]
fn what_is_configured_wrongly_is_named_with_what_was_expected() {
    let good = KeyFile::numbered(1);
    let open = KeyFile::new(&[1; 32], 0o640);
    let short = KeyFile::new(&[1; 15], 0o600);
    let odd = KeyFile::new(b"abc", 0o600);
    let all = "aesgcm, checksum, lz4, zstd";
    let cases = [
        (json!([{"level": 3}]), vec!["\"type\"", all]),
        (json!([{"type": "lz5"}]), vec!["\"lz5\"", all]),
        (json!([{"type": 5}]), vec!["5", all]),
        (json!([{"type": "fp8"}]), vec!["\"fp8\"", "LMCache", all]),
        (
            json!([{"type": "turboquant"}]),
            vec!["\"turboquant\"", "LMCache", all],
        ),
        (
            json!([{"type": "zstd", "level": 23}]),
            vec!["zstd", "level", "23", "1 to 22"],
        ),
        (
            json!([{"type": "zstd", "level": "fast"}]),
            vec!["level", "\"fast\"", "1 to 22"],
        ),
        (
            json!([{"type": "zstd", "levle": 3}]),
            vec!["\"levle\"", "level"],
        ),
        (
            json!([{"type": "lz4"}, {"type": "lz4"}]),
            vec!["\"lz4\" twice"],
        ),
        (
            json!([{"type": "checksum", "require": 1}]),
            vec!["require", "1", "true or false"],
        ),
        (
            json!([{"type": "aesgcm"}]),
            vec!["master_key_path", "missing"],
        ),
        (
            json!([{"type": "aesgcm", "master_key_path": 3}]),
            vec!["master_key_path", "3", "text"],
        ),
        (
            json!([{"type": "aesgcm", "master_key_path": "/nowhere/key"}]),
            vec!["master_key_path", "/nowhere/key"],
        ),
        (
            json!([{"type": "aesgcm", "master_key_path": "/"}]),
            vec!["no plain file"],
        ),
        (
            json!([good.aesgcm(json!({"aes_bits": 192}))]),
            vec!["aes_bits", "192", "128 or 256"],
        ),
        (
            json!([good.aesgcm(json!({"key_provider": "keyring"}))]),
            vec!["key_provider", "\"keyring\"", "hkdf"],
        ),
        (
            json!([good.aesgcm(json!({"master_key_format": "pem"}))]),
            vec!["master_key_format", "\"pem\"", "hex"],
        ),
        (
            json!([open.aesgcm(json!({}))]),
            vec!["mode is 640", "600", "chmod"],
        ),
        (
            json!([short.aesgcm(json!({}))]),
            vec!["15 bytes", "16 to 1024"],
        ),
        (
            json!([odd.aesgcm(json!({"master_key_format": "hex"}))]),
            vec!["hexadecimal"],
        ),
    ];
    for (serde, parts) in cases {
        let error = refused(&serde);
        for part in parts {
            assert!(error.contains(part), "{part:?} is not in {error:?}");
        }
    }
}

/// A pipe was waited for until somebody would write to it.
#[test]
fn a_master_key_that_is_a_pipe_is_refused_at_once() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("key");
    let mode = rustix::fs::Mode::from(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let serde = json!([{"type": "aesgcm", "master_key_path": path}]);
    let (sender, answer) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(refused(&serde)));
    let error = answer.recv_timeout(std::time::Duration::from_secs(60));
    assert!(error.unwrap().contains("no plain file"));
}

#[test]
fn every_transform_has_a_name_and_a_number_of_its_own() {
    let rows = ondol_catalog::transforms();
    let numbers: Vec<_> = rows.iter().map(|row| (row.name, row.id)).collect();
    assert_eq!(
        numbers,
        [("aesgcm", 3), ("checksum", 0), ("lz4", 1), ("zstd", 2)]
    );
}

#[test]
fn lmcaches_parameters_are_taken() {
    let file = KeyFile::numbered(1);
    let codec = codec(&json!([file.aesgcm(
        json!({"key_provider": "hkdf", "aes_bits": 256, "max_workers": 4})
    )]));
    assert!(!codec.is_plain());
}

#[test]
fn a_master_key_may_be_written_in_hexadecimal() {
    let key = raw(b"k");
    let raw_file = KeyFile::golden();
    let digits: String = (0..32).map(|byte: u8| format!("{byte:02X}")).collect();
    let hex_file = KeyFile::new(format!("{digits}\n").as_bytes(), 0o600);
    let hex = codec(&json!([
        hex_file.aesgcm(json!({"master_key_format": "hex"}))
    ]));
    let stored = encode(&hex, &key, b"bytes", ObjectMeta::default());
    let raw = codec(&json!([raw_file.aesgcm(json!({}))]));
    assert_eq!(decode(&raw, &key, &stored).unwrap().bytes, b"bytes");
    let as_text = codec(&json!([hex_file.aesgcm(json!({}))]));
    assert!(
        decode(&as_text, &key, &stored).is_err(),
        "LMCache takes the digits for the key"
    );
}

// Whatever comes.

fn codecs(file: &KeyFile) -> Vec<Codec> {
    let serdes = [
        json!([]),
        json!([{"type": "checksum", "require": true}]),
        json!([{"type": "lz4"}]),
        json!([{"type": "zstd"}]),
        json!([file.aesgcm(json!({"accept_unbound": true, "accept_plain": true}))]),
        json!([{"type": "zstd"}, file.aesgcm(json!({}))]),
    ];
    serdes.iter().map(codec).collect()
}

fn any_key() -> impl Strategy<Value = Key> {
    prop_oneof![
        Just(lmcache(LMCACHE)),
        proptest::collection::vec(any::<u8>(), 0..1024).prop_map(|bytes| raw(&bytes)),
    ]
}

fn any_object() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..2000),
        (any::<u8>(), 0..200_000_usize).prop_map(|(byte, len)| vec![byte; len]),
        (0..200_000_usize).prop_map(sample),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_object_comes_back_and_within_its_bound(key in any_key(), bytes in any_object(), has_meta in any::<bool>()) {
        let file = KeyFile::numbered(1);
        let meta = if has_meta { meta_of(&bytes) } else { ObjectMeta::default() };
        for codec in codecs(&file) {
            let stored = encode(&codec, &key, &bytes, meta);
            prop_assert!(stored.len() as u64 <= codec.stored_bound(&key, bytes.len() as u64));
            let decoded = decode(&codec, &key, &stored).unwrap();
            prop_assert_eq!(&decoded.bytes, &bytes);
            prop_assert_eq!(decoded.meta, meta);
            prop_assert!(decoded.verified);
        }
    }

    #[test]
    fn a_flipped_bit_is_an_error(key in any_key(), bytes in any_object(), at in any::<prop::sample::Index>()) {
        let file = KeyFile::numbered(1);
        for codec in codecs(&file) {
            let mut stored = encode(&codec, &key, &bytes, meta_of(&bytes));
            let bit = at.index(stored.len() * 8);
            stored[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(decode(&codec, &key, &stored).is_err());
            if codec.is_plain() {
                prop_assert!(check_found(&codec, &key, &stored).is_err());
            }
        }
    }

    /// For a key of Ondol's own always; of an LMCache object so much that nothing of its trailer is left may be missing.
    #[test]
    fn what_is_cut_off_or_goes_on_is_never_verified(key in any_key(), bytes in any_object(), at in any::<prop::sample::Index>(), more in 1..4096_usize) {
        let file = KeyFile::numbered(1);
        for codec in codecs(&file) {
            let stored = encode(&codec, &key, &bytes, meta_of(&bytes));
            let kept = at.index(stored.len());
            let cut = &stored[..kept];
            let is_found = kept >= stored.len() - codec.trailer_len(&key) + 8;
            match decode(&codec, &key, cut) {
                Err(_) => {}
                Ok(decoded) => {
                    prop_assert!(key.tag() == KeyTag::LmCache && !is_found && !decoded.verified);
                    prop_assert!(decoded.len < stored.len() as u64);
                }
            }
            let longer = [&stored[..], &vec![0x55; more]].concat();
            prop_assert!(decode(&codec, &key, &longer).is_err());
        }
    }

    #[test]
    fn no_bytes_make_it_panic(key in any_key(), body in proptest::collection::vec(any::<u8>(), 0..200), chain in any::<[u8; 8]>(), object_len in any::<u64>(), room in 0..300_usize) {
        let file = KeyFile::numbered(1);
        let trailer = Trailer { object_len, chain: chain.map(|id| id % 5), ..of_body(&body) };
        let forged = forge(&key, &body, &trailer);
        for codec in codecs(&file) {
            for stored in [&body, &forged] {
                let _ = decode(&codec, &key, stored);
                if stored.len() <= room {
                    let _ = check(&codec, &key, stored, room);
                }
                let cut = &stored[stored.len().saturating_sub(20)..];
                let _ = decode(&codec, &key, cut);
            }
        }
    }
}

#[test]
fn the_longest_trailer_fits() {
    let key = raw(&[9; ondol_plugin::MAX_KEY_BYTES]);
    let len = plain().trailer_len(&key);
    assert!(len <= ondol_plugin::l2::MAX_TRAILER_BYTES);
    let object: ObjectRef = plain()
        .encode_bytes(&key, &object_key(&key), Vec::new(), ObjectMeta::default())
        .unwrap();
    assert_eq!(object.trailer().len(), len);
}
