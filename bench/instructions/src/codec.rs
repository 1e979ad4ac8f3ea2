//! Objects on their way to storage and back: trailer and checksum.

use std::hint::black_box;

use ondol_tiering::Trial;

use crate::{Path, keys};

const OBJECTS: usize = 16;
const BYTES: usize = 4096;

pub(crate) fn paths() -> anyhow::Result<Vec<Path>> {
    let trial = || Trial::new(&r#"{"type":"none"}"#.parse()?, true).map_err(anyhow::Error::from);
    let (encoding, decoding) = (trial()?, trial()?);
    let all = keys(OBJECTS);
    let stored = all.iter().map(|key| {
        let stored = decoding.encode(key, vec![1; BYTES])?.to_vec();
        anyhow::Ok((key.clone(), stored))
    });
    let stored = stored.collect::<Result<Vec<_>, _>>()?;
    let encode = move || {
        for key in &all {
            assert!(black_box(encoding.encode(key, vec![1; BYTES])).is_ok());
        }
    };
    let decode = move || {
        for (key, stored) in &stored {
            assert!(black_box(decoding.decode(key, stored, BYTES as u64)).is_ok());
        }
    };
    Ok(vec![
        Path::new("codec.encode.4KiB", OBJECTS, encode),
        Path::new("codec.decode.4KiB", OBJECTS, decode),
    ])
}
