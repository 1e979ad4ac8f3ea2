//! How much memory the messages of all connections take together.

use std::sync::atomic::{AtomicU64, Ordering};

/// What each connection may take without asking, so that a server that is busy with long messages still answers short
/// ones.
const FREE: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Budget {
    limit: u64,
    used: AtomicU64,
}

/// One connection's part; given back when dropped.
#[derive(Debug)]
pub(super) struct Share<'a> {
    budget: &'a Budget,
    held: u64,
}

impl Budget {
    pub(super) fn new(limit: u64) -> Self {
        Self {
            limit,
            used: AtomicU64::new(0),
        }
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    pub(super) fn share(&self) -> Share<'_> {
        Share {
            budget: self,
            held: 0,
        }
    }
}

impl Share<'_> {
    /// From now on the connection's messages take this many bytes. False if there is no room for that; then nothing
    /// has changed.
    #[must_use]
    pub(super) fn hold(&mut self, bytes: usize) -> bool {
        let wanted = bytes.saturating_sub(FREE) as u64;
        let Budget { limit, used } = self.budget;
        if wanted <= self.held {
            used.fetch_sub(self.held - wanted, Ordering::Relaxed);
        } else {
            let more = wanted - self.held;
            let grow = |used: u64| used.checked_add(more).filter(|used| used <= limit);
            if used
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow)
                .is_err()
            {
                return false;
            }
        }
        self.held = wanted;
        true
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.held, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_holds_another_cannot_have_until_it_is_given_back() {
        let budget = Budget::new(100);
        let (mut one, mut two) = (budget.share(), budget.share());
        assert!(one.hold(FREE + 70));
        assert!(!two.hold(FREE + 31));
        assert!(two.hold(FREE), "little is always there");
        assert!(two.hold(FREE + 30));
        assert!(!one.hold(FREE + 71));
        assert!(one.hold(FREE + 10));
        assert!(two.hold(FREE + 90));
        drop(two);
        assert!(one.hold(FREE + 100));
        assert!(!one.hold(usize::MAX));
        drop(one);
        assert_eq!(budget.used.load(Ordering::Relaxed), 0);
    }
}
