/// Chance that comes out the same each time: a hash of the seed and of what is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dice {
    seed: u64,
}

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// A number for this question.
    pub(crate) fn number(self, what: &str, task: u64, key: &[u8]) -> u64 {
        let head = what.as_bytes().iter().chain(&[0]);
        let bytes = head
            .copied()
            .chain(task.to_le_bytes())
            .chain(key.iter().copied());
        // FNV-1a, and the mixer of splitmix64 since its high bits alone are weak.
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325 ^ mixed(self.seed), |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        mixed(hash)
    }

    /// A share of 1 for this question.
    pub(crate) fn share(self, what: &str, task: u64, key: &[u8]) -> f64 {
        // 53 bits, as many as a float holds.
        (self.number(what, task, key) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Whether what happens at this rate happens now.
    pub(crate) fn falls(self, rate: f64, what: &str, task: u64, key: &[u8]) -> bool {
        rate > 0.0 && self.share(what, task, key) < rate
    }
}

fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_and_nothing_and_everything_are_exact() {
        let dice = Dice::new(7);
        let falls = |rate| {
            (0..10_000)
                .filter(|task| dice.falls(rate, "load", *task, b"key"))
                .count()
        };
        assert_eq!((falls(0.0), falls(1.0)), (0, 10_000));
        let tenth = falls(0.1);
        assert!((800..1200).contains(&tenth), "{tenth}");
    }

    #[test]
    fn the_same_question_has_the_same_answer_and_others_have_others() {
        let number = |seed, what, task, key: &[u8]| Dice::new(seed).number(what, task, key);
        let one = number(1, "store", 5, b"k");
        assert_eq!(one, number(1, "store", 5, b"k"));
        for other in [
            number(2, "store", 5, b"k"),
            number(1, "load", 5, b"k"),
            number(1, "store", 6, b"k"),
            number(1, "store", 5, b"l"),
        ] {
            assert_ne!(one, other);
        }
        // It is the same on every machine and in every build.
        assert_eq!(number(0, "load", 1, b"key"), 0xa998_820e_d777_be1f);
    }
}
