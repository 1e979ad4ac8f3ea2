use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use super::inbox::Waiting;

/// The longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Stores that failed and are tried again, the soonest first.
#[derive(Debug)]
pub(super) struct Retries {
    heap: BinaryHeap<Reverse<Due>>,
    first_pause: Duration,
    random: u64,
    numbers: u64,
}

#[derive(Debug)]
struct Due {
    at: Instant,
    number: u64,
    waiting: Waiting,
}

impl Retries {
    pub(super) fn new(first_pause: Duration, seed: u64) -> Self {
        Self {
            heap: BinaryHeap::new(),
            first_pause,
            random: seed,
            numbers: 0,
        }
    }

    /// A pause that doubles with each attempt, less up to half of it, so that what failed together does not come back together.
    pub(super) fn pause(&mut self, attempts: u32) -> Duration {
        let doubled = 1_u32.checked_shl(attempts.saturating_sub(1));
        let pause = self
            .first_pause
            .saturating_mul(doubled.unwrap_or(u32::MAX))
            .min(LONGEST_PAUSE);
        self.random = next_random(self.random);
        let part = (self.random >> 40) as f64 / (1_u64 << 24) as f64;
        pause.mul_f64(1.0 - part / 2.0)
    }

    pub(super) fn push(&mut self, at: Instant, waiting: Waiting) {
        self.numbers += 1;
        self.heap.push(Reverse(Due {
            at,
            number: self.numbers,
            waiting,
        }));
    }

    /// One whose time has come.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Waiting> {
        let Reverse(due) = self.heap.peek()?;
        if due.at > now {
            return None;
        }
        self.heap.pop().map(|Reverse(due)| due.waiting)
    }

    /// Takes out those that `goes` says.
    pub(super) fn take(&mut self, goes: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        let due = std::mem::take(&mut self.heap).into_vec();
        let (gone, kept): (Vec<_>, Vec<_>) =
            due.into_iter().partition(|Reverse(due)| goes(&due.waiting));
        self.heap = kept.into();
        gone.into_iter().map(|Reverse(due)| due.waiting).collect()
    }

    /// When the next one's time comes.
    pub(super) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse(due)| due.at)
    }

    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Due {}

/// The next number of the sequence SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014)
/// gives for a state, used as the state as well.
fn next_random(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ondol_plugin::Key;

    #[test]
    fn pauses_double_differ_and_have_an_end() {
        let first = Duration::from_millis(100);
        let mut retries = Retries::new(first, 7);
        let pauses: Vec<_> = (1..40).map(|attempt| retries.pause(attempt)).collect();
        for (at, pause) in pauses.iter().enumerate().take(8) {
            let whole = first * (1 << at);
            assert!((whole / 2..=whole).contains(pause), "{at}: {pause:?}");
        }
        assert!(pauses.iter().all(|pause| *pause <= LONGEST_PAUSE));
        assert_ne!(pauses[30], pauses[31], "jitter");
        let mut again = Retries::new(first, 7);
        assert_eq!(again.pause(1), pauses[0], "seeded");
    }

    #[test]
    fn what_failed_first_is_tried_first() {
        let now = Instant::now();
        let mut retries = Retries::new(Duration::ZERO, 0);
        let waiting = |n| Waiting::new(Key::integer(n), 1);
        retries.push(now + Duration::from_secs(2), waiting(3));
        retries.push(now, waiting(1));
        retries.push(now, waiting(2));
        let mut order = Vec::new();
        while let Some(next) = retries.pop(now) {
            order.push(next.key);
        }
        assert_eq!(order, [Key::integer(1), Key::integer(2)]);
        assert_eq!(retries.next(), Some(now + Duration::from_secs(2)));
    }
}
