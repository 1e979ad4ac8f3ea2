use std::time::Duration;

use ondol_host::LoadOptions;
use ondol_protocol::LayoutFingerprint;

use crate::PageSizes;

/// How a handler behaves.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HandlerConfig {
    /// How the length of an allocation leads to a page size.
    pub page_sizes: PageSizes,
    /// Bytes of pages that are fetched from the engine at once, at most; batches grow up to this on demand.
    pub stock_bytes: u64,
    /// The layout under which objects are stored and expected; `None` neither states nor expects one.
    pub layout: Option<LayoutFingerprint>,
    /// Whether objects are stored with a checksum, and verified when they are retrieved if they have one.
    pub checksum: bool,
    /// How long reads wait for objects that are not in memory and that storage may have; `None` for those in memory only.
    pub l2_wait: Option<Duration>,
    /// Length of each object in bytes, if all are equally long: for storage that does not know it.
    pub object_bytes: Option<u64>,
    /// Which plugins run in this handler.
    pub plugins: Plugins,
}

/// Which plugins run in a handler.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Plugins {
    /// Those linked into this process that the environment's allowlist admits.
    Linked,
    /// Those linked into this process, under these options.
    LinkedWith(Box<LoadOptions>),
    /// None.
    None,
}

impl Default for HandlerConfig {
    /// Page sizes that fit the allocation, batches of at most 8 MiB, no layout, no checksum, no waiting for storage, linked
    /// plugins.
    fn default() -> Self {
        Self {
            page_sizes: PageSizes::default(),
            stock_bytes: 8 << 20,
            layout: None,
            checksum: false,
            l2_wait: None,
            object_bytes: None,
            plugins: Plugins::Linked,
        }
    }
}

/// What a reader expects of an object; one that differs is not found, and counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expect {
    /// The layout under which it was stored.
    pub layout: Option<LayoutFingerprint>,
    /// Whether its bytes are compared with its checksum, if it has one.
    pub verify: bool,
    /// How long to wait for it if it is not in memory and storage may have it; zero for not at all. A server without
    /// storage answers at once.
    pub wait: Duration,
    /// Its length in bytes, for storage that does not know it.
    pub object_bytes: Option<u64>,
}
