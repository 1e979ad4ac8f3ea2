use std::fmt;

/// The name of a region: one extent of a memory device, cut into pages of one size.
///
/// Ids start at 1, are never reused, and stay the same for as long as the region exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId(pub u64);

impl fmt::Display for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where a region lies: `length` bytes from `offset` of the file or device that
/// [`HandlerView::get_region_dax_path`](crate::HandlerView::get_region_dax_path) names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionSpan {
    /// The region.
    pub region_id: RegionId,
    /// First byte of the region in its file or device.
    pub offset: u64,
    /// Length of the region in bytes.
    pub length: u64,
}
