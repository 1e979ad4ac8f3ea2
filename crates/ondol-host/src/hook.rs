use ondol_plugin::Hooks;

/// One hook; its number is its bit's position in [`Hooks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    Init = 0,
    BatchRetrieve = 1,
    Prefetch = 2,
    Stage = 3,
    Close = 4,
    Stats = 5,
}

/// Hooks that can run on a lane.
pub(crate) const DEFERRABLE: u32 = Hooks::BATCH_RETRIEVE.bits() | Hooks::PREFETCH.bits();

/// Hooks that are called again and again while others wait; for these a watchdog is worth a thread.
pub(crate) const PER_CALL: u32 = DEFERRABLE | Hooks::STATS.bits();

impl Hook {
    pub(crate) const ALL: [Self; 6] = [
        Self::Init,
        Self::BatchRetrieve,
        Self::Prefetch,
        Self::Stage,
        Self::Close,
        Self::Stats,
    ];

    pub(crate) const fn index(self) -> usize {
        self as usize
    }

    pub(crate) const fn bit(self) -> u32 {
        1 << self as u32
    }

    pub(crate) fn from_index(index: usize) -> Option<Self> {
        Self::ALL.get(index).copied()
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Init => "on_init",
            Self::BatchRetrieve => "on_batch_retrieve",
            Self::Prefetch => "on_prefetch",
            Self::Stage => "on_stage",
            Self::Close => "on_close",
            Self::Stats => "contribute_stats",
        }
    }

    /// Whether calls are timed. `on_stage` may block by contract, and `on_init` runs once, before anybody waits.
    pub(crate) const fn is_watched(self) -> bool {
        !matches!(self, Self::Stage | Self::Init)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_those_of_the_contract() {
        let names: Vec<_> = Hooks::ALL.names().collect();
        for (index, hook) in Hook::ALL.into_iter().enumerate() {
            assert_eq!(hook.index(), index);
            assert_eq!(Hook::from_index(index), Some(hook));
            assert_eq!(hook.name(), names[index]);
            assert_ne!(hook.bit() & Hooks::ALL.bits(), 0);
        }
        assert_eq!(names.len(), Hook::ALL.len());
        assert_eq!(Hook::BatchRetrieve.bit(), Hooks::BATCH_RETRIEVE.bits());
        assert_eq!(Hook::Stats.bit(), Hooks::STATS.bits());
    }
}
