use std::fmt;
use std::ops::{BitAnd, BitOr, Not, Range};

const WORD: usize = u64::BITS as usize;

/// A row of bits of a fixed length, one for each key of a batch.
///
/// The operations are those of LMCache's native `Bitmap`: what lies beyond the end is ignored when it is written and
/// `false` when it is read.
///
/// ```
/// use ondol_plugin::l2::Bitmap;
///
/// let mut found = Bitmap::with_prefix(5, 2);
/// found.set(3);
/// assert_eq!(found.to_string(), "11010");
/// assert_eq!((found.count_ones(), found.leading_ones()), (3, 2));
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Bitmap {
    words: Vec<u64>,
    len: usize,
}

impl Bitmap {
    /// `len` bits, none set.
    pub fn new(len: usize) -> Self {
        Self {
            words: vec![0; len.div_ceil(WORD)],
            len,
        }
    }

    /// `len` bits, the first `prefix` of them set.
    pub fn with_prefix(len: usize, prefix: usize) -> Self {
        let mut bits = Self::new(len);
        bits.set_range(0..prefix);
        bits
    }

    /// How many bits there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bits at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sets a bit.
    pub fn set(&mut self, index: usize) {
        if index < self.len {
            self.words[index / WORD] |= 1 << (index % WORD);
        }
    }

    /// Clears a bit.
    pub fn clear(&mut self, index: usize) {
        if index < self.len {
            self.words[index / WORD] &= !(1 << (index % WORD));
        }
    }

    /// Whether a bit is set.
    pub fn test(&self, index: usize) -> bool {
        index < self.len && self.words[index / WORD] >> (index % WORD) & 1 == 1
    }

    /// Sets many bits.
    pub fn set_all(&mut self, indices: impl IntoIterator<Item = usize>) {
        indices.into_iter().for_each(|index| self.set(index));
    }

    /// Sets the bits of a range.
    pub fn set_range(&mut self, range: Range<usize>) {
        self.set_all(range.start..range.end.min(self.len));
    }

    /// The elements of `items` at the places of set bits.
    pub fn gather<'a, T>(&self, items: &'a [T]) -> Vec<&'a T> {
        self.ones().filter_map(|index| items.get(index)).collect()
    }

    /// The places of set bits, from the first.
    pub fn ones(&self) -> impl Iterator<Item = usize> + '_ {
        self.words.iter().enumerate().flat_map(|(at, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
                left &= left - 1;
                Some(at * WORD + bit)
            })
        })
    }

    /// How many bits are set.
    pub fn count_ones(&self) -> usize {
        self.words
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum()
    }

    /// How many bits from the first on are clear.
    pub fn leading_zeros(&self) -> usize {
        self.ones().next().unwrap_or(self.len)
    }

    /// How many bits from the first on are set.
    pub fn leading_ones(&self) -> usize {
        (!self).leading_zeros()
    }

    /// The last set bit.
    pub fn highest_one(&self) -> Option<usize> {
        let at = self.words.iter().rposition(|word| *word != 0)?;
        Some(at * WORD + self.words[at].ilog2() as usize)
    }

    fn zip(&self, other: &Self, len: usize, combine: fn(u64, u64) -> u64) -> Self {
        let word = |bits: &Self, at: usize| bits.words.get(at).copied().unwrap_or(0);
        let mut bits = Self {
            words: (0..len.div_ceil(WORD))
                .map(|at| combine(word(self, at), word(other, at)))
                .collect(),
            len,
        };
        bits.trim();
        bits
    }

    /// Bits behind the end are always clear, so that equal rows are equal words.
    fn trim(&mut self) {
        let used = self.len % WORD;
        if used != 0
            && let Some(last) = self.words.last_mut()
        {
            *last &= (1 << used) - 1;
        }
    }
}

/// As long as the shorter one.
impl BitAnd for &Bitmap {
    type Output = Bitmap;
    fn bitand(self, other: Self) -> Bitmap {
        self.zip(other, self.len.min(other.len), |a, b| a & b)
    }
}

/// As long as the longer one.
impl BitOr for &Bitmap {
    type Output = Bitmap;
    fn bitor(self, other: Self) -> Bitmap {
        self.zip(other, self.len.max(other.len), |a, b| a | b)
    }
}

impl Not for &Bitmap {
    type Output = Bitmap;
    fn not(self) -> Bitmap {
        self.zip(self, self.len, |a, _| !a)
    }
}

/// Prints bit 0 first.
impl fmt::Display for Bitmap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (0..self.len).try_for_each(|index| f.write_str(if self.test(index) { "1" } else { "0" }))
    }
}

impl fmt::Debug for Bitmap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bitmap({self})")
    }
}

impl FromIterator<bool> for Bitmap {
    fn from_iter<I: IntoIterator<Item = bool>>(bits: I) -> Self {
        let bits: Vec<_> = bits.into_iter().collect();
        let mut row = Self::new(bits.len());
        row.set_all(
            bits.iter()
                .enumerate()
                .filter(|(_, bit)| **bit)
                .map(|(index, _)| index),
        );
        row
    }
}
