//! Keys as LLM caches have them, 100 bytes long, in random order.

use ondol::{Key, KeyTag};

use anyhow::Result;

/// Length of a key.
pub(crate) const KEY_BYTES: usize = 100;

/// A stream of random numbers that a seed repeats: SplitMix64 (Steele, Lea, Flood, 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number below `limit`, which is not 0.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }
}

/// The key of object `number` in a space of keys that no other space meets.
pub(crate) fn key(space: &str, number: u64) -> Result<Key> {
    use std::fmt::Write as _;
    let mut text = format!("meta-llama/Llama-3.1-8B-Instruct@{space}@{number:012x}@");
    let mut random = Random::new(number);
    while text.len() < KEY_BYTES {
        let _ = write!(text, "{:016x}", random.next());
    }
    text.truncate(KEY_BYTES);
    Ok(Key::new(KeyTag::Raw, text.as_bytes())?)
}

/// The keys of objects `0..count`, in random order, which is the order in which they lie in memory, too: a client has made its
/// keys just before it asks for them.
pub(crate) fn shuffled(space: &str, count: u64) -> Result<Vec<Key>> {
    let mut numbers: Vec<u64> = (0..count).collect();
    let mut random = Random::new(count);
    for index in (1..numbers.len()).rev() {
        numbers.swap(index, random.below(index as u64 + 1) as usize);
    }
    numbers
        .into_iter()
        .map(|number| key(space, number))
        .collect()
}

/// Gives out batches of keys, over and over.
#[derive(Debug)]
pub(crate) struct Batches<'a> {
    keys: &'a [Key],
    at: usize,
}

impl<'a> Batches<'a> {
    pub(crate) fn of(keys: &'a [Key]) -> Self {
        Self { keys, at: 0 }
    }

    /// The next so many keys, or all if there are not so many.
    pub(crate) fn next(&mut self, count: usize) -> &'a [Key] {
        let count = count.min(self.keys.len());
        if self.at + count > self.keys.len() {
            self.at = 0;
        }
        let batch = &self.keys[self.at..self.at + count];
        self.at += count;
        batch
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_have_their_length_and_are_distinct() {
        let keys = shuffled("a", 1000).unwrap();
        assert!(keys.iter().all(|key| key.bytes().len() == KEY_BYTES));
        assert!(keys.iter().all(|key| key.bytes().is_ascii()));
        let mut all: HashSet<_> = keys.iter().cloned().collect();
        all.extend(shuffled("b", 1000).unwrap());
        assert_eq!(all.len(), 2000);
        assert_ne!(keys[0], key("a", 0).unwrap(), "the order is random");
    }

    #[test]
    fn batches_go_round() {
        let keys = shuffled("a", 5).unwrap();
        let mut batches = Batches::of(&keys);
        assert_eq!(batches.next(2), &keys[..2]);
        assert_eq!(batches.next(2), &keys[2..4]);
        assert_eq!(batches.next(2), &keys[..2], "no batch is cut");
        assert_eq!(batches.next(9).len(), 5);
    }
}
