use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use ondol_plugin::Key;
use parking_lot::Mutex;

/// Counters in each row; a power of two.
const WIDTH: usize = 1 << 16;
/// Rows, each with a place of its own for a key.
const ROWS: usize = 4;
/// Uses after which every count is halved, so that what was used long ago is forgotten.
const AGE_AFTER: u32 = 8 * WIDTH as u32;

/// Lets objects through to storage once they were used often enough.
///
/// Uses are estimated by a count-min sketch of fixed size (Cormode and Muthukrishnan, 2005) that ages as TinyLFU's does
/// (Einziger, Friedman, Manes, 2017): it may take a key for more used than it is, never for less until it ages.
#[derive(Debug)]
pub(super) struct Admission {
    uses: u8,
    sketch: Mutex<Sketch>,
}

/// What one more use of an object means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// It was not used often enough yet.
    TooFew,
    /// This was the use that admits it.
    Admits,
    /// It was admitted before.
    Admitted,
}

#[derive(Debug)]
struct Sketch {
    hasher: FixedState,
    counts: Box<[u8]>,
    until_ageing: u32,
}

impl Admission {
    /// Admission after so many uses; `None` if the first one is enough.
    pub(super) fn after(uses: u32, seed: u64) -> Option<Self> {
        (uses > 1).then(|| Self {
            uses: u8::try_from(uses).unwrap_or(u8::MAX),
            sketch: Mutex::new(Sketch {
                hasher: FixedState::with_seed(seed),
                counts: vec![0; ROWS * WIDTH].into(),
                until_ageing: AGE_AFTER,
            }),
        })
    }

    /// Counts a use of each key.
    pub(super) fn used<'a>(&self, keys: impl Iterator<Item = &'a Key>) -> Vec<Use> {
        let mut sketch = self.sketch.lock();
        keys.map(|key| {
            let before = sketch.count(key, self.uses);
            if before >= self.uses {
                Use::Admitted
            } else if before + 1 == self.uses {
                Use::Admits
            } else {
                Use::TooFew
            }
        })
        .collect()
    }

    /// Whether a key was used often enough.
    pub(super) fn is_admitted(&self, key: &Key) -> bool {
        let sketch = self.sketch.lock();
        let places = sketch.places(key);
        places.iter().all(|at| sketch.counts[*at] >= self.uses)
    }
}

impl Sketch {
    fn places(&self, key: &Key) -> [usize; ROWS] {
        let hash = self.hasher.hash_one(key);
        // Sixteen bits of the hash for each row.
        std::array::from_fn(|row| row * WIDTH + (hash >> (16 * row)) as usize % WIDTH)
    }

    /// Counts a use up to `limit`; the uses before.
    fn count(&mut self, key: &Key, limit: u8) -> u8 {
        let places = self.places(key);
        let before = places.map(|at| self.counts[at]).into_iter().min();
        let before = before.unwrap_or_default();
        if before >= limit {
            return before;
        }
        for at in places {
            // Only the smallest counts grow: the others are of other keys.
            if self.counts[at] == before {
                self.counts[at] += 1;
            }
        }
        self.until_ageing -= 1;
        if self.until_ageing == 0 {
            self.until_ageing = AGE_AFTER;
            self.counts.iter_mut().for_each(|count| *count /= 2);
        }
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(admission: &Admission, number: u64) -> Use {
        admission.used([Key::integer(number)].iter())[0]
    }

    #[test]
    fn the_first_use_needs_no_sketch() {
        assert!(Admission::after(1, 0).is_none() && Admission::after(0, 0).is_none());
    }

    #[test]
    fn an_object_is_admitted_by_its_last_missing_use_once() {
        let Some(admission) = Admission::after(3, 1) else {
            panic!("3 uses are counted");
        };
        let uses: Vec<_> = (0..5).map(|_| used(&admission, 7)).collect();
        let expected = [
            Use::TooFew,
            Use::TooFew,
            Use::Admits,
            Use::Admitted,
            Use::Admitted,
        ];
        assert_eq!(uses, expected);
        assert!(admission.is_admitted(&Key::integer(7)));
        assert!(!admission.is_admitted(&Key::integer(8)));
    }

    #[test]
    fn what_is_used_once_is_not_admitted_by_others() {
        let Some(admission) = Admission::after(2, 1) else {
            panic!("2 uses are counted");
        };
        let wrong = (0..10_000)
            .filter(|number| used(&admission, *number) != Use::TooFew)
            .count();
        assert!(wrong < 10, "{wrong} of 10000 taken for others");
    }

    #[test]
    fn uses_of_long_ago_are_forgotten() {
        let Some(admission) = Admission::after(4, 1) else {
            panic!("4 uses are counted");
        };
        for _ in 0..3 {
            used(&admission, 7);
        }
        admission.sketch.lock().until_ageing = 1;
        used(&admission, 8);
        assert_eq!(used(&admission, 7), Use::TooFew, "3 became 1");
    }
}
