//! Workloads: read from a trace, or made from a seed.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, Result};

mod generate;
mod trace;

/// Requests in the order in which they came, each with the ids of its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Where it comes from: the trace's file name without its extension, or the seed.
    pub name: String,
    /// The ids of the blocks of each request, the start of its prompt first. Equal ids are equal blocks.
    pub requests: Vec<Vec<u64>>,
}

impl Workload {
    /// Reads at most `limit` requests of the trace at `path`: one JSON object a line with `timestamp` (milliseconds),
    /// `input_length` and `output_length` (tokens) and `hash_ids`, as the FAST'25 traces of Mooncake have them.
    ///
    /// # Errors
    /// A file that cannot be read, has a line that is no request, named with its field, or has no request.
    pub fn read(path: &Path, limit: usize) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let name = path.file_stem().map_or_else(
            || "trace".into(),
            |name| name.to_string_lossy().into_owned(),
        );
        let requests = trace::parse(BufReader::new(file), limit)
            .with_context(|| format!("trace {}", path.display()))?;
        Ok(Self { name, requests })
    }

    /// Makes `count` requests: chats that begin with one of a few shared system prompts, most of them with a long
    /// document behind it, and that grow by an answer and a question at each turn. Few prompts and recent chats are much
    /// more popular than the others, as Zipf's law has it. The same seed makes the same requests, of which a longer
    /// workload has more.
    pub fn generate(seed: u64, count: usize) -> Self {
        Self {
            name: format!("seed-{seed}"),
            requests: generate::requests(seed, count),
        }
    }
}

/// The finalizer of SplitMix64, a bijection.
pub(crate) fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
