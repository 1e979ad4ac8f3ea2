use ondol_plugin::Key;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// A key, with all that follows from it within one index.
#[derive(Clone, Copy)]
pub(super) struct Query<'k> {
    pub(super) bytes: &'k [u8],
    /// Length and tag, as a record holds them.
    pub(super) length_and_tag: u64,
    pub(super) fingerprint: [u64; 2],
    /// Number of the first bucket that may hold it.
    pub(super) home: usize,
}

impl<'k> Query<'k> {
    /// In the place of a key in an array that is not full.
    pub(super) const NONE: Self = Self {
        bytes: &[],
        length_and_tag: 0,
        fingerprint: [0; 2],
        home: 0,
    };

    #[inline]
    pub(super) fn new(key: &'k Key, seed: u64, buckets: usize) -> Self {
        let bytes = key.bytes();
        let tag = key.tag() as u64;
        let hash = xxh3_128_with_seed(bytes, seed.wrapping_add(tag));
        let fingerprint = [hash as u64, (hash >> 64) as u64];
        Self {
            bytes,
            length_and_tag: bytes.len() as u64 | (tag << 16),
            fingerprint,
            home: home(fingerprint, buckets),
        }
    }

    /// The upper half of the slot of this key's object.
    #[inline]
    pub(super) fn tag(&self) -> u32 {
        tag(self.fingerprint)
    }

    /// Whether a slot with this word may be that of this key's object.
    #[inline]
    pub(super) fn has_tag(&self, word: u64) -> bool {
        (word >> 32) as u32 == self.tag() && word as u32 != 0
    }
}

/// The bucket for a fingerprint: its upper word, scaled to their number.
#[inline]
pub(super) fn home(fingerprint: [u64; 2], buckets: usize) -> usize {
    ((u128::from(fingerprint[1]) * buckets as u128) >> 64) as usize
}

#[inline]
pub(super) fn tag(fingerprint: [u64; 2]) -> u32 {
    fingerprint[0] as u32
}

/// A slot's word.
#[inline]
pub(super) fn slot_word(tag: u32, cell: u32) -> u64 {
    (u64::from(tag) << 32) | u64::from(cell)
}
