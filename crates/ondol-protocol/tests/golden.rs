//! The golden vectors of `docs/contract/wire`: the bytes of every message, frozen.

mod common;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;
use std::{env, fs};

use common::examples;

/// Set to write the files anew instead of comparing them.
const WRITE: &str = "ONDOL_WRITE_VECTORS";

/// Not 0, and different in every byte, so that its order shows.
const SEQUENCE: u64 = 0x0807_0605_0403_0201;

fn dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/contract/wire")
}

fn to_hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for line in bytes.chunks(16) {
        let words: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(text, "{}", words.join(" ")).unwrap();
    }
    text
}

fn from_hex(text: &str) -> Vec<u8> {
    text.split_whitespace()
        .map(|word| u8::from_str_radix(word, 16).unwrap_or_else(|_| panic!("{word:?} is no byte")))
        .collect()
}

#[test]
fn every_message_has_its_golden_bytes() {
    let write = env::var_os(WRITE).is_some();
    if write {
        fs::create_dir_all(dir()).unwrap();
    }
    let mut expected = BTreeSet::new();
    for (name, message) in examples() {
        let file = format!("{name}.hex");
        let path = dir().join(&file);
        assert!(expected.insert(file), "two examples are called {name}");
        let bytes = message.encode(SEQUENCE);
        if write {
            fs::write(&path, to_hex(&bytes)).unwrap();
        }
        let golden = fs::read_to_string(&path).unwrap_or_else(|error| {
            panic!(
                "{}: {error}; a new message's vector is written by `{WRITE}=1 cargo test -p ondol-protocol --test golden`",
                path.display()
            )
        });
        assert_eq!(
            to_hex(&bytes),
            golden,
            "{name}: the bytes on the wire have changed, so that clients and servers of the last release can no longer \
             talk; if that is meant, raise PROTOCOL_VERSION and run \
             `{WRITE}=1 cargo test -p ondol-protocol --test golden`"
        );
        assert_eq!(
            message.decode(&from_hex(&golden)),
            Ok((SEQUENCE, message.clone())),
            "{name}"
        );
    }
    let found: BTreeSet<String> = fs::read_dir(dir())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(found, expected, "files and examples do not pair");
}

#[test]
fn the_documents_example_is_the_vector() {
    let document = fs::read_to_string(dir().join("../../protocol.md")).unwrap();
    let golden = fs::read_to_string(dir().join("01-hello.request.hex")).unwrap();
    assert!(document.contains(&golden));
}
