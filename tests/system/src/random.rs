use std::env;

/// A small generator of pseudo-random numbers (xorshift64*) whose seed is printed and can be set.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Seeded from `ONDOL_TEST_SEED`, else by chance; prints the seed.
    ///
    /// # Panics
    /// If the variable is no number, or the system gives no random bytes.
    pub fn seeded(test: &str) -> Self {
        let seed = env::var("ONDOL_TEST_SEED").ok().map_or_else(
            || {
                let mut bytes = [0; 8];
                getrandom::fill(&mut bytes).expect("random bytes");
                u64::from_le_bytes(bytes)
            },
            |seed| seed.parse().expect("ONDOL_TEST_SEED is a number"),
        );
        println!("{test}: ONDOL_TEST_SEED={seed} repeats this run");
        Self::new(seed)
    }

    /// Seeded with this number.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        (self.draw() >> 11) % end
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}
