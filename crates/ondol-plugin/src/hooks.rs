use std::fmt;
use std::ops::{BitAnd, BitOr};

/// A set of hooks of a [`HandlerPlugin`](crate::HandlerPlugin).
///
/// ```
/// use ondol_plugin::Hooks;
///
/// let wanted = Hooks::BATCH_RETRIEVE | Hooks::CLOSE;
/// assert!(wanted.contains(Hooks::CLOSE));
/// assert!(!wanted.contains(Hooks::STAGE));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Hooks(u32);

impl Hooks {
    /// No hook.
    pub const NONE: Self = Self(0);
    /// `on_init`.
    pub const INIT: Self = Self(1);
    /// `on_batch_retrieve`.
    pub const BATCH_RETRIEVE: Self = Self(1 << 1);
    /// `on_prefetch`.
    pub const PREFETCH: Self = Self(1 << 2);
    /// `on_stage`.
    pub const STAGE: Self = Self(1 << 3);
    /// `on_close`.
    pub const CLOSE: Self = Self(1 << 4);
    /// `contribute_stats`.
    pub const STATS: Self = Self(1 << 5);
    /// Every hook.
    pub const ALL: Self = Self(0b11_1111);

    const NAMES: [(Self, &'static str); 6] = [
        (Self::INIT, "on_init"),
        (Self::BATCH_RETRIEVE, "on_batch_retrieve"),
        (Self::PREFETCH, "on_prefetch"),
        (Self::STAGE, "on_stage"),
        (Self::CLOSE, "on_close"),
        (Self::STATS, "contribute_stats"),
    ];

    /// Whether every hook of `other` is in this set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The set as a bit mask, bit 0 being `on_init`.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The names of the hooks in this set, in the order of the constants.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES
            .into_iter()
            .filter(move |(hook, _)| self.contains(*hook))
            .map(|(_, name)| name)
    }
}

impl BitOr for Hooks {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for Hooks {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}
