//! Workloads: read from a trace, or made from a seed.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};

use super::content::mix;

/// The longest line of a trace, in bytes.
const LONGEST_LINE: u64 = 16 << 20;

/// So many blocks one client can hold at once, and ask for with one message.
const MOST_BLOCKS: usize = 65_536;

/// Requests in the order in which they came, each with the ids of its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Workload {
    /// Part of every key, so that the blocks of different workloads are different blocks.
    pub(super) name: String,
    pub(super) requests: Vec<Vec<u64>>,
}

impl Workload {
    /// Reads at most `limit` requests of the trace at `path`.
    pub(super) fn read(path: &Path, limit: usize) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let name = path.file_stem().map_or_else(
            || "trace".into(),
            |name| name.to_string_lossy().into_owned(),
        );
        let requests = parse(BufReader::new(file), limit)
            .with_context(|| format!("trace {}", path.display()))?;
        Ok(Self { name, requests })
    }
}

fn parse(mut input: impl BufRead, limit: usize) -> Result<Vec<Vec<u64>>> {
    let mut requests = Vec::new();
    let mut text = String::new();
    let mut line = 0_u64;
    while requests.len() < limit {
        text.clear();
        line += 1;
        let len = (&mut input)
            .take(LONGEST_LINE + 1)
            .read_line(&mut text)
            .with_context(|| format!("line {line} cannot be read"))?;
        if len == 0 {
            break;
        }
        ensure!(
            len as u64 <= LONGEST_LINE,
            "line {line} has more than {LONGEST_LINE} bytes; expected one request a line"
        );
        if !text.trim().is_empty() {
            requests.push(parse_line(&text).with_context(|| format!("line {line}"))?);
        }
    }
    ensure!(!requests.is_empty(), "there is no request in it");
    Ok(requests)
}

/// One request. Its times and lengths are checked, though only the blocks are replayed.
fn parse_line(text: &str) -> Result<Vec<u64>> {
    let fields: Map<String, Value> = serde_json::from_str(text)
        .map_err(|error| anyhow::anyhow!("{}; expected one JSON object", strip_line(&error)))?;
    number(
        &fields,
        "timestamp",
        "a number of milliseconds",
        Value::as_f64,
    )?;
    number(&fields, "input_length", "a number of tokens", Value::as_u64)?;
    number(
        &fields,
        "output_length",
        "a number of tokens",
        Value::as_u64,
    )?;
    let expected = "a list of block ids, whole numbers from 0";
    let ids = match fields.get("hash_ids") {
        Some(Value::Array(ids)) => ids,
        found => bail!("hash_ids is {}; expected {expected}", shown(found)),
    };
    ensure!(
        ids.len() <= MOST_BLOCKS,
        "hash_ids has {} ids; expected at most {MOST_BLOCKS}, as many blocks as one client can hold",
        ids.len()
    );
    ids.iter()
        .enumerate()
        .map(|(index, id)| {
            id.as_u64().with_context(|| {
                format!(
                    "hash_ids[{index}] is {}; expected {expected}",
                    shown(Some(id))
                )
            })
        })
        .collect()
}

fn number<T>(
    fields: &Map<String, Value>,
    name: &str,
    expected: &str,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<T> {
    let found = fields.get(name);
    found
        .and_then(read)
        .with_context(|| format!("{name} is {}; expected {expected}", shown(found)))
}

fn shown(value: Option<&Value>) -> String {
    const LONGEST: usize = 40;
    let Some(value) = value else {
        return "missing".to_owned();
    };
    let text = value.to_string();
    if text.chars().count() <= LONGEST {
        return text;
    }
    text.chars().take(LONGEST).chain("…".chars()).collect()
}

/// Without the line number, which is always 1 as lines are parsed one by one.
fn strip_line(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text
        .rsplit_once(" at line ")
        .map_or(text.as_str(), |(text, _)| text);
    format!("{text} at column {}", error.column())
}

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

/// Makes `count` requests: chats that begin with one of a few shared system prompts, most of them with a long
/// document behind it, and that grow by an answer and a question at each turn. Few prompts and recent chats are much
/// more popular than the others, as Zipf's law has it.
pub(super) fn generate(seed: u64, count: usize) -> Workload {
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
    Workload {
        name: format!("seed-{seed}"),
        requests,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn error(text: &str) -> String {
        format!("{:#}", parse(text.as_bytes(), usize::MAX).unwrap_err())
    }

    const GOOD: &str = r#"{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 18446744073709551615]}"#;

    #[test]
    fn a_trace_is_read_and_unknown_fields_and_empty_lines_are_passed_over() {
        let text = format!(
            "{GOOD}\n\n{{\"hash_ids\":[],\"timestamp\":1.5,\"output_length\":0,\"input_length\":0,\"chat\":{{}}}}\r\n{GOOD}"
        );
        let good = vec![0, u64::MAX];
        let requests = parse(text.as_bytes(), usize::MAX).unwrap();
        assert_eq!(requests, [good.clone(), vec![], good.clone()]);
        assert_eq!(parse(text.as_bytes(), 1).unwrap(), [good]);
    }

    #[test]
    fn what_is_wrong_in_a_trace_is_named_by_line_and_field() {
        for (bad, named) in [
            ("{\"timestamp\": 0", "expected one JSON object"),
            ("[1]", "expected one JSON object"),
            (r#"{"input_length":1}"#, "timestamp is missing"),
            (
                r#"{"timestamp":0,"input_length":-1,"output_length":1,"hash_ids":[]}"#,
                "input_length is -1; expected a number of tokens",
            ),
            (
                r#"{"timestamp":0,"input_length":1,"output_length":"x","hash_ids":[]}"#,
                "output_length is \"x\"",
            ),
            (
                r#"{"timestamp":0,"input_length":1,"output_length":1}"#,
                "hash_ids is missing",
            ),
            (
                r#"{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[4,5.5]}"#,
                "hash_ids[1] is 5.5",
            ),
        ] {
            let text = error(&format!("{GOOD}\n\n{bad}\n"));
            assert!(text.contains("line 3") && text.contains(named), "{text}");
            assert!(!text.contains("line 1"), "{text}");
        }
        let ids = "7,".repeat(MOST_BLOCKS) + "7";
        let many =
            format!(r#"{{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[{ids}]}}"#);
        let text = error(&format!("{GOOD}\n{many}"));
        assert!(
            text.contains("line 2") && text.contains("has 65537 ids"),
            "{text}"
        );
        let text = error(&format!(
            "{GOOD}\n{}",
            " ".repeat(LONGEST_LINE as usize + 1)
        ));
        assert!(
            text.contains("line 2 has more than 16777216 bytes"),
            "{text}"
        );
        assert!(error("\n").contains("no request"));
        assert!(error("\u{7f}").contains("line 1"));
    }

    /// Share of blocks that hit in a pool without an end, and mean number of blocks.
    fn figures(workload: &Workload) -> (f64, f64) {
        let mut seen = HashSet::new();
        let mut hits = 0;
        for request in &workload.requests {
            hits += request.iter().take_while(|id| seen.contains(*id)).count();
            seen.extend(request.iter().copied());
        }
        let blocks = workload.requests.iter().flatten().count() as f64;
        (
            hits as f64 / blocks,
            blocks / workload.requests.len() as f64,
        )
    }

    #[test]
    fn generated_workloads_resemble_real_ones() {
        for seed in (0..5).chain([42]) {
            for count in [300, 2_000] {
                let workload = generate(seed, count);
                assert_eq!(workload.requests.len(), count);
                let (hit_rate, mean) = figures(&workload);
                println!("seed {seed}, {count} requests: hit rate {hit_rate:.3}, {mean:.1} blocks");
                assert!((0.30..=0.65).contains(&hit_rate), "{seed}: {hit_rate}");
                assert!((10.0..=40.0).contains(&mean), "{seed}: {mean}");
                for request in &workload.requests {
                    let distinct: HashSet<_> = request.iter().collect();
                    assert_eq!(distinct.len(), request.len());
                    assert!(!request.is_empty());
                }
            }
        }
    }

    #[test]
    fn a_seed_names_a_workload() {
        assert_eq!(generate(1, 500), generate(1, 500));
        assert_ne!(generate(1, 500).requests, generate(2, 500).requests);
        // A longer workload begins like a shorter one.
        assert_eq!(generate(1, 500).requests[..100], generate(1, 100).requests);
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
