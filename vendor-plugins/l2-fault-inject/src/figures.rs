use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value};

/// Faults that were injected, each kind counted.
#[derive(Debug, Default)]
pub(crate) struct Figures([AtomicU64; Fault::ALL.len()]);

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    StoreError,
    StoreHang,
    StoreLost,
    LookupError,
    LookupHang,
    LookupLost,
    LoadError,
    LoadHang,
    LoadLost,
    DeleteError,
    Delay,
    DroppedLoad,
    Corruption,
    ShortRead,
}

impl Fault {
    const ALL: [Self; 14] = [
        Self::StoreError,
        Self::StoreHang,
        Self::StoreLost,
        Self::LookupError,
        Self::LookupHang,
        Self::LookupLost,
        Self::LoadError,
        Self::LoadHang,
        Self::LoadLost,
        Self::DeleteError,
        Self::Delay,
        Self::DroppedLoad,
        Self::Corruption,
        Self::ShortRead,
    ];

    /// Its name in figures, and in the choice of what fails.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::StoreError => "store_errors",
            Self::StoreHang => "store_hangs",
            Self::StoreLost => "store_lost",
            Self::LookupError => "lookup_errors",
            Self::LookupHang => "lookup_hangs",
            Self::LookupLost => "lookup_lost",
            Self::LoadError => "load_errors",
            Self::LoadHang => "load_hangs",
            Self::LoadLost => "load_lost",
            Self::DeleteError => "delete_errors",
            Self::Delay => "delays",
            Self::DroppedLoad => "dropped_loads",
            Self::Corruption => "corrupted_loads",
            Self::ShortRead => "short_reads",
        }
    }
}

impl Figures {
    pub(crate) fn count(&self, fault: Fault) {
        self.0[fault as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn to_map(&self) -> Map<String, Value> {
        let figure = |fault: Fault| {
            let count = self.0[fault as usize].load(Ordering::Relaxed);
            (fault.name().to_owned(), count.into())
        };
        Fault::ALL.into_iter().map(figure).collect()
    }
}
