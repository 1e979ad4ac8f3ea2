//! The objects: a key has always the same length, and its bytes name the store that wrote them.

use ondol_tests::{check, fill};

/// The page sizes, so that regions are always being carved anew from one size into another.
pub(crate) const PAGES: [u64; 3] = [4096, 16_384, 65_536];

/// The name of an object.
pub(crate) fn name(index: u64) -> String {
    format!("k{index}")
}

/// Length of the object of this name; never so short that its bytes do not name their store.
pub(crate) fn len(name: &str) -> usize {
    let index: u64 = name[1..].parse().unwrap_or(0);
    // Few large ones, as many bytes in each size.
    let size = match index % 21 {
        0 => PAGES[2],
        1..=4 => PAGES[1],
        _ => PAGES[0],
    };
    (size - index % 1000) as usize
}

/// Writes the object of this name, by this store.
pub(crate) fn write(bytes: &mut [u8], name: &str, writer: u64) {
    fill(bytes, name, writer);
}

/// The store that wrote these bytes.
///
/// # Errors
/// What is wrong with them.
pub(crate) fn read(bytes: &[u8], name: &str) -> Result<u64, String> {
    let expected = len(name);
    if bytes.len() != expected {
        let found = bytes.len();
        return Err(format!("{name} has {found} bytes; expected {expected}"));
    }
    check(bytes, name)
}
