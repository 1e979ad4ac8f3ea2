//! Eviction policies; each is a row of the catalogue's table.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use ondol_catalog::Admitted;
use ondol_plugin::{Key, KeyTag};

use crate::entry::Entry;

mod arc;
mod isolated_lru;
mod lists;
mod lru;
mod s3_fifo;
mod sieve;
#[cfg(test)]
mod tests;

/// An entry as policies see it. What goes with it is its page.
pub(crate) fn admitted(entry: &Entry) -> Admitted<'_> {
    Admitted {
        id: entry.id,
        fingerprint: FixedState::default().hash_one(&entry.key),
        bytes: entry.stride,
        salt: salt(&entry.key),
    }
}

/// The cache salt in the name of an object of LMCache's: the fifth of its parts. Other objects have none.
fn salt(key: &Key) -> &str {
    if key.tag() != KeyTag::LmCache {
        return "";
    }
    let name = std::str::from_utf8(key.bytes()).unwrap_or_default();
    name.splitn(5, '@').nth(4).unwrap_or_default()
}
