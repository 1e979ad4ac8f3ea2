//! Requests made from a seed.

use super::mix;

/// A generator of our own, so that a seed means the same workload whatever becomes of others'.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `end`.
    fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }

    /// A number from 0 up to 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A length with many small values and a long tail, of this mean, up to eight times it.
    fn tokens(&mut self, mean: f64) -> usize {
        let drawn = -(1.0 - self.unit()).ln();
        (drawn.min(8.0) * mean) as usize
    }
}

/// Picks ranks by Zipf's law.
#[derive(Debug)]
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(ranks: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let sums = (1..=ranks).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Self(sums.collect())
    }

    fn pick(&self, random: &mut Random) -> usize {
        let total = self.0.last().copied().unwrap_or_default();
        let drawn = random.unit() * total;
        self.0
            .partition_point(|sum| *sum <= drawn)
            .min(self.0.len() - 1)
    }
}

/// One chat: what has been said so far.
#[derive(Debug)]
struct Conversation {
    tokens: usize,
    /// Ids of the blocks that are full; they start every later turn.
    full: Vec<u64>,
    /// The last request, with its last block, which may not be full.
    last: Vec<u64>,
}

const BLOCK_TOKENS: usize = 512;
const SYSTEM_PROMPTS: usize = 24;
const LONGEST_CONVERSATION: usize = 64 * 1024;
/// Conversations that may still go on.
const OPEN_CONVERSATIONS: usize = 400;

const CONTINUED: f64 = 0.45;
const REPEATED: f64 = 0.01;
const DOCUMENT_SHARE: f64 = 0.5;

/// The requests of [`super::Workload::generate`].
pub(super) fn requests(seed: u64, count: usize) -> Vec<Vec<u64>> {
    let mut random = Random(mix(seed));
    let prompt_popularity = Zipf::new(SYSTEM_PROMPTS, 1.1);
    let recency = Zipf::new(OPEN_CONVERSATIONS, 0.7);
    let mut next_id = 0;
    let mut fresh = |count: usize| {
        let first = next_id;
        next_id += count as u64;
        first..next_id
    };
    let prompts: Vec<Vec<u64>> = (0..SYSTEM_PROMPTS)
        .map(|_| fresh(1 + random.below(10)).collect())
        .collect();
    // The most recent one is the last.
    let mut open: Vec<Conversation> = Vec::new();
    let mut requests = Vec::with_capacity(count);
    while requests.len() < count {
        let picked = recency.pick(&mut random);
        let dice = random.unit();
        let known = picked < open.len() && dice < CONTINUED;
        let mut conversation = if known {
            open.remove(open.len() - 1 - picked)
        } else {
            let full = prompts[prompt_popularity.pick(&mut random)].clone();
            let document = if random.unit() < DOCUMENT_SHARE {
                random.tokens(14_000.0)
            } else {
                0
            };
            Conversation {
                tokens: full.len() * BLOCK_TOKENS + document,
                full,
                last: Vec::new(),
            }
        };
        if !(known && dice < REPEATED) {
            // The question, and what was answered to the one before.
            conversation.tokens += 1 + random.tokens(900.0);
            let full = conversation.tokens / BLOCK_TOKENS;
            let grown = fresh(full.saturating_sub(conversation.full.len()));
            conversation.full.extend(grown);
            conversation.last = conversation.full.clone();
            if !conversation.tokens.is_multiple_of(BLOCK_TOKENS) {
                conversation.last.extend(fresh(1));
            }
        }
        requests.push(conversation.last.clone());
        conversation.tokens += random.tokens(350.0);
        if conversation.tokens < LONGEST_CONVERSATION {
            open.push(conversation);
        }
        if open.len() > OPEN_CONVERSATIONS {
            open.remove(0);
        }
    }
    requests
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Share of blocks that hit in a pool without an end, and mean number of blocks.
    fn figures(requests: &[Vec<u64>]) -> (f64, f64) {
        let mut seen = HashSet::new();
        let mut hits = 0;
        for request in requests {
            hits += request.iter().take_while(|id| seen.contains(*id)).count();
            seen.extend(request.iter().copied());
        }
        let blocks = requests.iter().flatten().count() as f64;
        (hits as f64 / blocks, blocks / requests.len() as f64)
    }

    #[test]
    fn generated_workloads_resemble_real_ones() {
        for seed in (0..5).chain([42]) {
            for count in [300, 2_000] {
                let requests = requests(seed, count);
                assert_eq!(requests.len(), count);
                let (hit_rate, mean) = figures(&requests);
                println!("seed {seed}, {count} requests: hit rate {hit_rate:.3}, {mean:.1} blocks");
                assert!((0.30..=0.65).contains(&hit_rate), "{seed}: {hit_rate}");
                assert!((10.0..=40.0).contains(&mean), "{seed}: {mean}");
                for request in &requests {
                    let distinct: HashSet<_> = request.iter().collect();
                    assert_eq!(distinct.len(), request.len());
                    assert!(!request.is_empty());
                }
            }
        }
    }

    #[test]
    fn a_seed_names_a_workload() {
        assert_eq!(requests(1, 500), requests(1, 500));
        assert_ne!(requests(1, 500), requests(2, 500));
        // A longer workload begins like a shorter one.
        assert_eq!(requests(1, 500)[..100], requests(1, 100));
    }

    #[test]
    fn zipf_prefers_low_ranks_and_reaches_all() {
        let zipf = Zipf::new(10, 1.0);
        let mut random = Random(0);
        let mut counts = [0; 10];
        (0..10_000).for_each(|_| counts[zipf.pick(&mut random)] += 1);
        assert!(counts.is_sorted_by(|a, b| a + 200 > *b), "{counts:?}");
        assert!(counts[0] > 2_500 && counts[9] > 100, "{counts:?}");
    }
}
