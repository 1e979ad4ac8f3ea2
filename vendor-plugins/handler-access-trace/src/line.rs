use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use ondol_plugin::{Key, RetrievedBatch};
use serde::Serialize;

/// Keys listed in one line.
pub(crate) const MAX_KEYS: usize = 256;

/// One call, as it waits to be written.
#[derive(Debug)]
pub(crate) struct Call {
    at: SystemTime,
    op: &'static str,
    asked: usize,
    hit: usize,
    read: u64,
    keys: Vec<(Key, bool, u64)>,
}

#[derive(Serialize)]
struct Line<'a> {
    op: &'static str,
    asked: usize,
    hit: usize,
    read: u64,
    keys: &'a [String],
    found: &'a [bool],
    bytes: &'a [u64],
    #[serde(skip_serializing_if = "is_zero")]
    omitted: usize,
}

impl Call {
    pub(crate) fn new(op: &'static str, batch: &RetrievedBatch<'_>) -> Self {
        let mut call = Self {
            at: SystemTime::now(),
            op,
            asked: batch.len(),
            hit: 0,
            read: 0,
            keys: Vec::with_capacity(batch.len().min(MAX_KEYS)),
        };
        for entry in batch.entries() {
            call.hit += usize::from(entry.found());
            call.read = call.read.saturating_add(entry.kv_length());
            if call.keys.len() < MAX_KEYS {
                call.keys
                    .push((entry.key().clone(), entry.found(), entry.kv_length()));
            }
        }
        call
    }

    /// About how much memory the call keeps while it waits.
    pub(crate) fn weight(&self) -> usize {
        let keys = self
            .keys
            .iter()
            .map(|(key, ..)| size_of_val(&self.keys[0]) + key.bytes().len());
        size_of::<Self>() + keys.sum::<usize>()
    }

    /// Appends the call's line to `out`.
    pub(crate) fn write(&self, out: &mut Vec<u8>) -> std::io::Result<()> {
        // A clock before 1970 is no reason to lose a line.
        let since = self.at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let keys: Vec<_> = self.keys.iter().map(|(key, ..)| key.to_string()).collect();
        let found: Vec<_> = self.keys.iter().map(|(_, found, _)| *found).collect();
        let bytes: Vec<_> = self.keys.iter().map(|(.., bytes)| *bytes).collect();
        let line = Line {
            op: self.op,
            asked: self.asked,
            hit: self.hit,
            read: self.read,
            keys: &keys,
            found: &found,
            bytes: &bytes,
            omitted: self.asked - keys.len(),
        };
        // By hand, since a floating-point number would not keep the microseconds' digits.
        write!(
            out,
            "{{\"ts\":{}.{:06},",
            since.as_secs(),
            since.subsec_micros()
        )?;
        let start = out.len();
        serde_json::to_writer(&mut *out, &line)?;
        // The line's own opening brace.
        out.remove(start);
        out.push(b'\n');
        Ok(())
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde calls"
)]
fn is_zero(number: &usize) -> bool {
    *number == 0
}
