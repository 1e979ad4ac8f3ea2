//! The hot paths, one after the other, each inside [`collected`]: `cargo xtask instructions` runs this under callgrind, which
//! counts there and nowhere else. Printed is what was done, a line each: a name and how often.
//!
//! The counts are per key, page or object, and are nearly the same in every run: keys and orders are fixed, and the
//! random seeds of hash tables, which are not, change a probe or two.

#![forbid(unsafe_code)]

mod codec;
mod directory;
mod index;
mod policies;
mod reads;

mod wire;

use std::hint::black_box;

use ondol_plugin::{Key, KeyTag};
// Only for its feature.
use rustix as _;

/// A hot path, ready to be gone.
struct Path {
    name: String,
    /// How many keys, pages or objects go it at once.
    units: usize,
    work: Box<dyn FnMut()>,
}

impl Path {
    fn new(name: impl Into<String>, units: usize, work: impl FnMut() + 'static) -> Self {
        Self {
            name: name.into(),
            units,
            work: Box::new(work),
        }
    }
}

/// The only function in which instructions are counted; it is found by its name.
#[inline(never)]
fn collected(work: &mut dyn FnMut()) {
    black_box(&mut *work)();
}

/// Keys of 100 bytes, as long as names of blocks usually are.
fn keys(count: usize) -> Vec<Key> {
    let key = |number| {
        let name = format!("some-model/and-its-revision@00000001@0@{number:0>61}");
        Key::new(KeyTag::Raw, name.as_bytes()).expect("it is short enough")
    };
    (0..count).map(key).collect()
}

fn main() -> anyhow::Result<()> {
    let mut paths = index::paths()?;
    paths.extend(reads::paths()?);
    paths.extend(directory::paths()?);
    paths.extend(policies::paths());
    paths.extend(wire::paths()?);
    paths.extend(codec::paths()?);
    for path in &mut paths {
        // Buffers grow the first time.
        (path.work)();
        collected(&mut *path.work);
        println!("{} {}", path.name, path.units);
    }
    Ok(())
}
