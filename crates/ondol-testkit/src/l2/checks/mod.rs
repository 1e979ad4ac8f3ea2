mod buffers;
mod configuration;
mod inventory;
mod lifetime;
mod locks;
mod objects;
mod results;
mod threads;

use std::path::Path;

use ondol_plugin::l2::L2Adapter;
use tempfile::TempDir;

use super::driver::Driver;
use super::{Capabilities, Report, Subject, Violation};
use crate::apart::{Complaint, Outcome, Whereabouts, apart, complaint};

/// How many times the patience with one task a whole check may take.
const CHECK_PATIENCE: u32 = 10;

/// One thing that storage adapters must keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Check {
    /// What the configuration names is listed; a parameter that must be given and is not, or that is nonsense, is refused with its
    /// name, and nothing panics. Concerns adapters that are opened by a configuration.
    Configuration,
    /// Three descriptors, which differ from each other and from those of a second adapter, do not change, and are reset by a
    /// read of eight bytes.
    Descriptors,
    /// What was stored is found, with its size, and loaded unchanged; storing it again transfers nothing.
    RoundTrip,
    /// Each result is given once, to who asks for a task of its kind, and is there before the signal.
    OneShot,
    /// Bodies and trailers from nothing to a few MiB, mixed within a batch, and split anywhere by the parts of a page.
    Sizes,
    /// Batches of a thousand keys, a part of which is not there.
    LargeBatches,
    /// Batches without a key.
    EmptyBatches,
    /// One key several times in a batch.
    Duplicates,
    /// Keys that are not there.
    MissingKeys,
    /// Pages that are too small for what is stored.
    SmallPages,
    /// An object is visible whole or not at all while it is being stored.
    Atomicity,
    /// Buffers are let go when the result is there, and pages come back.
    Buffers,
    /// Locked objects are not deleted; locks are counted, and an unlock too many is ignored.
    Locks,
    /// Deleted objects are gone.
    Deletion,
    /// Usage is right after stores, duplicates and deletes, also of each salt.
    Usage,
    /// Listings are complete in pages of any size, repeat nothing and end.
    Listing,
    /// Tasks that are cancelled end, and so do others when a task is cancelled that is not there.
    Cancel,
    /// Many threads at once.
    Threads,
    /// Opened again on the same storage: what was stored is there with the right usage, and locks are not.
    Restart,
    /// Closed with tasks in flight: every task ends, and buffers are let go; closing again does nothing.
    Close,
    /// Nothing succeeds after a close, and nothing panics.
    AfterClose,
    /// What makes room by itself stays within its capacity and spares what is locked.
    Eviction,
    /// It is healthy.
    Status,
}

impl Check {
    /// Every check.
    pub const ALL: [Self; 23] = [
        Self::Configuration,
        Self::Descriptors,
        Self::RoundTrip,
        Self::OneShot,
        Self::Sizes,
        Self::LargeBatches,
        Self::EmptyBatches,
        Self::Duplicates,
        Self::MissingKeys,
        Self::SmallPages,
        Self::Atomicity,
        Self::Buffers,
        Self::Locks,
        Self::Deletion,
        Self::Usage,
        Self::Listing,
        Self::Cancel,
        Self::Threads,
        Self::Restart,
        Self::Close,
        Self::AfterClose,
        Self::Eviction,
        Self::Status,
    ];

    /// The check in a few words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Configuration => "configuration",
            Self::Descriptors => "descriptors",
            Self::RoundTrip => "round trip",
            Self::OneShot => "one-shot results",
            Self::Sizes => "sizes",
            Self::LargeBatches => "large batches",
            Self::EmptyBatches => "empty batches",
            Self::Duplicates => "duplicate keys",
            Self::MissingKeys => "missing keys",
            Self::SmallPages => "small pages",
            Self::Atomicity => "atomicity",
            Self::Buffers => "buffers",
            Self::Locks => "locks",
            Self::Deletion => "deletion",
            Self::Usage => "usage",
            Self::Listing => "listing",
            Self::Cancel => "cancel",
            Self::Threads => "many threads",
            Self::Restart => "restart",
            Self::Close => "close",
            Self::AfterClose => "after a close",
            Self::Eviction => "eviction",
            Self::Status => "status",
        }
    }

    /// Runs this check on an adapter of its own.
    pub fn run(self, subject: &Subject) -> Report {
        let check = match self {
            Self::Configuration => configuration::parameters,
            Self::Descriptors => results::descriptors,
            Self::RoundTrip => objects::round_trip,
            Self::OneShot => results::one_shot,
            Self::Sizes => objects::sizes,
            Self::LargeBatches => objects::large_batches,
            Self::EmptyBatches => objects::empty_batches,
            Self::Duplicates => objects::duplicates,
            Self::MissingKeys => objects::missing_keys,
            Self::SmallPages => buffers::small_pages,
            Self::Atomicity => threads::atomicity,
            Self::Buffers => buffers::are_let_go,
            Self::Locks => locks::locks,
            Self::Deletion => locks::deletion,
            Self::Usage => inventory::usage,
            Self::Listing => inventory::listing,
            Self::Cancel => results::cancel,
            Self::Threads => threads::threads,
            Self::Restart => lifetime::restart,
            Self::Close => lifetime::close,
            Self::AfterClose => lifetime::after_close,
            Self::Eviction => inventory::eviction,
            Self::Status => results::status,
        };
        let outcome = apart(subject.patience * CHECK_PATIENCE, "testkit", {
            let subject = subject.clone();
            move |at| check(&Bench::new(subject, at)?)
        });
        Report::of(outcome.err().map(|found| Violation::of(self.name(), found)))
    }
}

/// What a check works with: a directory of its own, and a way to open adapters there.
struct Bench<'a> {
    subject: Subject,
    dir: TempDir,
    at: &'a Whereabouts,
}

impl<'a> Bench<'a> {
    fn new(subject: Subject, at: &'a Whereabouts) -> Outcome<Self> {
        let dir = TempDir::new().or_else(|error| complaint("testkit", error.to_string()))?;
        Ok(Self { subject, dir, at })
    }

    fn can(&self) -> &Capabilities {
        &self.subject.capabilities
    }

    /// Opens the adapter on the storage of this bench.
    fn open(&self) -> Outcome<Driver> {
        Driver::new(
            self.open_at(self.dir.path())?,
            self.at,
            self.subject.patience,
            self.can().completes_usage,
        )
    }

    fn open_at(&self, dir: &Path) -> Outcome<Box<dyn L2Adapter>> {
        self.at.set("open");
        (self.subject.open)(dir).map_err(|error| Complaint {
            place: "open".to_owned(),
            what: format!("failed: {error:#}"),
        })
    }
}
