//! Hashing of entries' ids.

use std::hash::{BuildHasherDefault, Hasher};

/// Builds [`IdHasher`]s.
pub(crate) type Ids = BuildHasherDefault<IdHasher>;

/// Keeps neighbours neighbours: ids are given one after the other, and tables of many entries are filled and emptied
/// in about that order, so that they are walked through and not jumped about in.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 << 8 | u64::from(byte));
        }
    }

    fn write_u64(&mut self, id: u64) {
        // Tables choose a place by the low bits and compare the top seven before they look closer.
        let mixed = id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = (id << 7 >> 7) | (mixed & 0x7f << 57);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::BuildHasher;

    #[test]
    fn neighbours_have_neighbouring_places_and_different_tops() {
        let hashes: Vec<_> = (1000..1016_u64)
            .map(|id| Ids::default().hash_one(id))
            .collect();
        assert!(
            hashes
                .windows(2)
                .all(|pair| pair[1] << 7 == (pair[0] << 7) + (1 << 7))
        );
        let mut tops: Vec<_> = hashes.iter().map(|hash| hash >> 57).collect();
        tops.sort_unstable();
        tops.dedup();
        assert!(tops.len() > 8, "{tops:?}");
    }
}
