//! Lines of the log that would come once for each object: the first of a kind is written, then one in a while that says how many
//! were not.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long is kept still about what was written last.
const PAUSE: Duration = Duration::from_secs(10);

/// What is complained of in one place; what goes wrong is counted elsewhere.
#[derive(Debug, Default)]
pub(crate) struct Complaints(Mutex<HashMap<&'static str, Last>>);

#[derive(Debug)]
struct Last {
    written: Instant,
    unwritten: u64,
}

impl Complaints {
    /// Whether a line of this kind is to be written now; if so, how many of its kind were not written since the last one.
    pub(crate) fn of(&self, kind: &'static str, now: Instant) -> Option<u64> {
        let mut kinds = self.0.lock();
        let first = Last {
            written: now,
            unwritten: 0,
        };
        let Some(last) = kinds.get_mut(kind) else {
            kinds.insert(kind, first);
            return Some(0);
        };
        if now.saturating_duration_since(last.written) < PAUSE {
            last.unwritten += 1;
            return None;
        }
        Some(std::mem::replace(last, first).unwritten)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_one_line_in_a_while_and_none_of_it_is_forgotten() {
        let complaints = Complaints::default();
        let start = Instant::now();
        assert_eq!(complaints.of("corrupt", start), Some(0));
        for _ in 0..1000 {
            assert_eq!(complaints.of("corrupt", start + PAUSE / 2), None);
        }
        assert_eq!(complaints.of("unreadable", start + PAUSE / 2), Some(0));
        assert_eq!(complaints.of("corrupt", start + PAUSE), Some(1000));
        assert_eq!(complaints.of("corrupt", start + PAUSE), None);
        assert_eq!(complaints.of("corrupt", start + PAUSE * 5), Some(1));
    }
}
