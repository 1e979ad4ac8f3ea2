//! Who works on a pool, and what each of them does.

use clap::ValueEnum;

use ondol_tests::Random;

/// Who works on a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Cast {
    /// Clients that do everything, and rest now and then.
    Mixed,
    /// Four that only read and one that writes, all without a rest, in a pool that holds a part of the objects: what is
    /// read is evicted under its readers all the time. Readers are killed again and again.
    Readers,
}

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    All,
    Reads,
    Writes,
}

/// One thing that a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Store,
    StoreBatch,
    TakeGrant,
    StoreGrant,
    Retrieve,
    RetrieveBatch,
    /// Hundreds of keys at once.
    RetrieveMany,
    Prefetch,
    VerifySome,
    Drop,
    Pin,
    Unpin,
    Delete,
    Exists,
    Reconnect,
}

/// How often each is done, out of a hundred times.
type Habits = &'static [(u64, Step)];

const ALL: Habits = &[
    (20, Step::Store),
    (7, Step::StoreBatch),
    (7, Step::TakeGrant),
    (8, Step::StoreGrant),
    (20, Step::Retrieve),
    (9, Step::RetrieveBatch),
    (1, Step::RetrieveMany),
    (2, Step::Prefetch),
    (4, Step::VerifySome),
    (5, Step::Drop),
    (5, Step::Pin),
    (4, Step::Unpin),
    (6, Step::Delete),
    (1, Step::Exists),
    (1, Step::Reconnect),
];

const READS: Habits = &[
    (40, Step::Retrieve),
    (18, Step::RetrieveBatch),
    (2, Step::RetrieveMany),
    (12, Step::VerifySome),
    (12, Step::Drop),
    (15, Step::Exists),
    (1, Step::Reconnect),
];

/// Who never reads is never told of the index, nor gives pages back without a message.
const WRITES: Habits = &[
    (38, Step::Store),
    (30, Step::StoreBatch),
    (6, Step::TakeGrant),
    (10, Step::StoreGrant),
    (2, Step::Retrieve),
    (5, Step::VerifySome),
    (8, Step::Delete),
    (1, Step::Reconnect),
];

/// Readers of a pool that has them.
const READERS: usize = 4;

impl Cast {
    /// Whoever is missing beside those that are there, of `mixed` clients that do everything.
    pub(crate) fn missing(self, there: &[Role], mixed: u64) -> Option<Role> {
        let count = |role| there.iter().filter(|there| **there == role).count();
        match self {
            Self::Mixed => ((there.len() as u64) < mixed).then_some(Role::All),
            Self::Readers if count(Role::Writes) == 0 => Some(Role::Writes),
            Self::Readers => (count(Role::Reads) < READERS).then_some(Role::Reads),
        }
    }

    /// What one more client does.
    pub(crate) fn another(self) -> Role {
        match self {
            Self::Mixed => Role::All,
            Self::Readers => Role::Reads,
        }
    }
}

impl Role {
    /// As the command line has it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Reads => "reads",
            Self::Writes => "writes",
        }
    }

    pub(crate) fn step(self, random: &mut Random) -> Step {
        let habits = match self {
            Self::All => ALL,
            Self::Reads => READS,
            Self::Writes => WRITES,
        };
        let mut drawn = random.below(100);
        for (share, step) in habits {
            if drawn < *share {
                return *step;
            }
            drawn -= share;
        }
        Step::VerifySome
    }

    /// Whether a client that does this may come to this failpoint.
    pub(crate) fn reaches(self, failpoint: &str) -> bool {
        let of_writers = [
            "client.alloc",
            "client.delete.",
            "client.return.",
            "client.settle",
            "client.store.",
            "client.write",
        ];
        let of_readers = ["client.retrieve."];
        let of_neither = ["client.pin.", "client.unpin."];
        let is_one_of = |names: &[&str]| names.iter().any(|name| failpoint.starts_with(name));
        match self {
            Self::All => true,
            Self::Reads => !is_one_of(&of_writers) && !is_one_of(&of_neither),
            Self::Writes => !is_one_of(&of_readers) && !is_one_of(&of_neither),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn habits_are_of_a_hundred_times() {
        for habits in [ALL, READS, WRITES] {
            assert_eq!(habits.iter().map(|(share, _)| share).sum::<u64>(), 100);
        }
    }

    #[test]
    fn whoever_died_is_replaced_by_one_that_does_the_same() {
        let mut there = Vec::new();
        while let Some(role) = Cast::Readers.missing(&there, 3) {
            there.push(role);
        }
        assert_eq!(there.len(), 5);
        there.retain(|role| *role == Role::Reads);
        assert_eq!(Cast::Readers.missing(&there, 3), Some(Role::Writes));
        assert_eq!(Cast::Mixed.missing(&[Role::All; 3], 3), None);
    }
}
