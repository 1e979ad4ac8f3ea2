//! Regions as a client sees them: pages to read under a lease, pages to write under a claim.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use ondol_plugin::RegionSpan;

use crate::claims::Claims;
use crate::{Lease, Location, PageId, ReadMapping, SlotLease, WriteMapping};

/// Why bytes of a region cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The region does not lie inside its mapping.
    #[error(
        "region {} lies at {}+{} of a mapping of {mapped} bytes; the server's answer does not fit the pool",
        span.region_id, span.offset, span.length
    )]
    OutsideMapping {
        /// The region.
        span: RegionSpan,
        /// Length of the mapping.
        mapped: usize,
    },
    /// A page, or what is asked of it, does not lie inside the region.
    #[error(
        "page {page} with {len} bytes does not fit region of {region_len} bytes with pages of {stride} bytes"
    )]
    OutsideRegion {
        /// The page.
        page: PageId,
        /// Bytes asked for.
        len: u64,
        /// Length of the region.
        region_len: u64,
        /// Page stride of the region.
        stride: u64,
    },
    /// This process already writes the page.
    #[error("page {page} is already being written in this process; a page is granted once")]
    AlreadyClaimed {
        /// The page.
        page: PageId,
    },
}

/// Where a region's pages lie in a mapping; every byte range goes through [`Geometry::range`].
#[derive(Clone, Copy, Debug)]
struct Geometry {
    span: RegionSpan,
    stride: u64,
    pages: u64,
}

impl Geometry {
    fn new(span: RegionSpan, stride: u64, mapped: usize) -> Result<Self, RegionError> {
        let inside = span
            .offset
            .checked_add(span.length)
            .is_some_and(|end| end <= mapped as u64);
        if !inside || stride == 0 || stride > span.length {
            return Err(RegionError::OutsideMapping { span, mapped });
        }
        Ok(Self {
            span,
            stride,
            pages: span.length / stride,
        })
    }

    /// Start in the mapping and length of the first `len` bytes of `page`.
    #[inline]
    fn range(&self, page: PageId, len: u64) -> Result<(usize, usize), RegionError> {
        if page.region != self.span.region_id
            || u64::from(page.index) >= self.pages
            || len > self.stride
        {
            return Err(RegionError::OutsideRegion {
                page,
                len,
                region_len: self.span.length,
                stride: self.stride,
            });
        }
        // Below the mapping's length by construction, so neither sum nor conversion can overflow.
        Ok((
            (self.span.offset + u64::from(page.index) * self.stride) as usize,
            len as usize,
        ))
    }
}

/// A region mapped for reading.
#[derive(Clone, Debug)]
pub struct ReadRegion(Arc<MappedRegion>);

#[derive(Debug)]
struct MappedRegion {
    mapping: Arc<ReadMapping>,
    geometry: Geometry,
}

impl ReadRegion {
    /// The region `span` of a mapped file, cut into pages of `stride` bytes.
    ///
    /// # Errors
    /// [`RegionError::OutsideMapping`] if it does not fit.
    pub fn new(
        mapping: Arc<ReadMapping>,
        span: RegionSpan,
        stride: u64,
    ) -> Result<Self, RegionError> {
        let geometry = Geometry::new(span, stride, mapping.len())?;
        Ok(Self(Arc::new(MappedRegion { mapping, geometry })))
    }

    /// The region's extent.
    pub fn span(&self) -> RegionSpan {
        self.0.geometry.span
    }

    /// The bytes at `location`, kept from reuse by `hold`.
    ///
    /// # Errors
    /// [`RegionError::OutsideRegion`] if the location does not fit.
    pub fn view(
        &self,
        location: Location,
        hold: impl Into<Hold>,
    ) -> Result<LeasedBytes, RegionError> {
        let hold = hold.into();
        if let Hold::Slot(lease) = &hold {
            debug_assert_eq!(lease.page(), location.page, "a hold on another page");
        }
        let (start, len) = self.0.geometry.range(location.page, location.len)?;
        Ok(LeasedBytes {
            region: self.clone(),
            start,
            len,
            hold,
        })
    }
}

/// What keeps a page from reuse while it is read; ends when its last clone is dropped.
#[derive(Clone, Debug)]
pub enum Hold {
    /// A lease that the server granted.
    Booked(Arc<Lease>),
    /// A lease that its reader took.
    Slot(SlotLease),
}

impl From<Lease> for Hold {
    fn from(lease: Lease) -> Self {
        Self::Booked(Arc::new(lease))
    }
}

impl From<SlotLease> for Hold {
    fn from(lease: SlotLease) -> Self {
        Self::Slot(lease)
    }
}

/// The bytes of an object in shared memory, readable for as long as this guard or a clone of it lives.
#[derive(Clone)]
pub struct LeasedBytes {
    region: ReadRegion,
    start: usize,
    len: usize,
    // Dropped with the guard, after which no slice of it is left.
    hold: Hold,
}

impl LeasedBytes {
    /// The region that holds the bytes.
    pub fn region(&self) -> RegionSpan {
        self.region.span()
    }

    /// First byte of the object within its region.
    pub fn offset_in_region(&self) -> u64 {
        self.start as u64 - self.region().offset
    }
}

impl Deref for LeasedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the range was checked against the mapping when the guard was made; the hold lives as long.
        unsafe { self.region.0.mapping.slice(self.start, self.len) }
    }
}

impl fmt::Debug for LeasedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeasedBytes")
            .field("region", &self.region().region_id)
            .field("offset", &self.offset_in_region())
            .field("len", &self.len)
            .field("hold", &self.hold)
            .finish()
    }
}

/// A region mapped for writing; it hands out each page at most once at a time.
#[derive(Debug)]
pub struct WriteRegion {
    mapping: Arc<WriteMapping>,
    geometry: Geometry,
    claims: Claims,
}

impl WriteRegion {
    /// The region `span` of a mapped file, cut into pages of `stride` bytes.
    ///
    /// # Errors
    /// [`RegionError::OutsideMapping`] if it does not fit.
    pub fn new(
        mapping: Arc<WriteMapping>,
        span: RegionSpan,
        stride: u64,
    ) -> Result<Self, RegionError> {
        let geometry = Geometry::new(span, stride, mapping.len())?;
        let claims = Claims::new(geometry.pages);
        Ok(Self {
            mapping,
            geometry,
            claims,
        })
    }

    /// The first `len` bytes of a granted page, to be written by the caller alone.
    ///
    /// # Errors
    /// [`RegionError::OutsideRegion`] if it does not fit, [`RegionError::AlreadyClaimed`] if this process has the
    /// page in use.
    pub fn claim(self: &Arc<Self>, page: PageId, len: u64) -> Result<PageBytes, RegionError> {
        let (start, len) = self.geometry.range(page, len)?;
        if !self.claims.take(page.index) {
            return Err(RegionError::AlreadyClaimed { page });
        }
        Ok(PageBytes {
            region: Arc::clone(self),
            page,
            start,
            len,
        })
    }
}

/// A granted page in shared memory, written by nobody else for as long as this guard lives.
pub struct PageBytes {
    region: Arc<WriteRegion>,
    page: PageId,
    start: usize,
    len: usize,
}

impl PageBytes {
    /// The page.
    pub fn page(&self) -> PageId {
        self.page
    }
}

impl Deref for PageBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the range was checked when the claim was made, and the claim is the only one.
        unsafe { self.region.mapping.slice(self.start, self.len) }
    }
}

impl DerefMut for PageBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the claim is borrowed mutably.
        unsafe { self.region.mapping.slice_mut(self.start, self.len) }
    }
}

impl Drop for PageBytes {
    fn drop(&mut self) {
        self.region.claims.give(self.page.index);
    }
}

impl fmt::Debug for PageBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageBytes")
            .field("page", &self.page)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Generation, LeaseSlots, SlotTable, SlotTableView, create_lease_table};
    use ondol_plugin::RegionId;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::os::fd::AsFd;

    const SPAN: RegionSpan = RegionSpan {
        region_id: RegionId(3),
        offset: 4096,
        length: 10_000,
    };

    fn page(index: u32) -> PageId {
        PageId {
            region: SPAN.region_id,
            index,
        }
    }

    fn location(index: u32, len: u64) -> Location {
        Location {
            page: page(index),
            generation: Generation(1),
            len,
        }
    }

    fn file() -> std::os::fd::OwnedFd {
        let file = memfd_create("ondol-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 16384).unwrap();
        file
    }

    #[test]
    fn what_is_written_through_a_claim_is_read_through_a_lease() {
        let file = file();
        let write = WriteRegion::new(
            Arc::new(WriteMapping::new(file.as_fd(), 16384).unwrap()),
            SPAN,
            3000,
        )
        .unwrap();
        let read = ReadRegion::new(
            Arc::new(ReadMapping::new(file.as_fd(), 16384).unwrap()),
            SPAN,
            3000,
        )
        .unwrap();
        Arc::new(write)
            .claim(page(2), 5)
            .unwrap()
            .copy_from_slice(b"ondol");
        let table = create_lease_table().unwrap();
        let slots = LeaseSlots::open(table.as_fd()).unwrap();
        let bytes = read.view(location(2, 5), slots.propose().unwrap()).unwrap();
        assert_eq!(&*bytes, b"ondol");
        assert_eq!(bytes.offset_in_region(), 6000);
    }

    #[test]
    fn what_is_read_stays_held_until_its_bytes_are_let_go() {
        let file = file();
        let mapping = Arc::new(ReadMapping::new(file.as_fd(), 16384).unwrap());
        let read = ReadRegion::new(mapping, SPAN, 3000).unwrap();
        let view = SlotTableView::create_anonymous().unwrap();
        let table = SlotTable::open(view.open_for_client().unwrap().as_fd()).unwrap();
        let lease = table.publisher(1, 0).publish(page(2)).unwrap();
        let bytes = read.view(location(2, 5), lease).unwrap();
        assert_eq!(&*bytes, [0; 5]);
        let held = || {
            let mut held = Vec::new();
            view.scan(|now| held.push(now.page)).unwrap();
            held
        };
        assert_eq!(held(), [page(2)]);
        drop((read, table));
        assert_eq!(held(), [page(2)]);
        drop(bytes);
        assert_eq!(held(), []);
    }

    #[test]
    fn an_object_is_small() {
        assert!(size_of::<LeasedBytes>() <= 56);
    }

    #[test]
    fn a_guard_is_small_enough_to_be_moved_by_thousands() {
        assert_eq!(size_of::<Option<LeasedBytes>>(), 48);
    }

    #[test]
    fn a_page_is_claimed_once_at_a_time() {
        let file = file();
        let region = WriteRegion::new(
            Arc::new(WriteMapping::new(file.as_fd(), 16384).unwrap()),
            SPAN,
            100,
        )
        .unwrap();
        let region = Arc::new(region);
        let first = region.claim(page(70), 100).unwrap();
        assert_eq!(
            region.claim(page(70), 1).unwrap_err(),
            RegionError::AlreadyClaimed { page: page(70) }
        );
        region.claim(page(71), 1).unwrap();
        drop(first);
        region.claim(page(70), 1).unwrap();
    }

    #[test]
    fn nothing_outside_the_region_can_be_had() {
        let file = file();
        let mapping = Arc::new(WriteMapping::new(file.as_fd(), 16384).unwrap());
        let region = Arc::new(WriteRegion::new(Arc::clone(&mapping), SPAN, 3000).unwrap());
        let foreign = PageId {
            region: RegionId(4),
            index: 0,
        };
        for (page, len) in [
            (page(3), 1),
            (page(0), 3001),
            (page(u32::MAX), 0),
            (foreign, 1),
        ] {
            assert!(
                matches!(
                    region.claim(page, len),
                    Err(RegionError::OutsideRegion { .. })
                ),
                "{page} {len}"
            );
        }
        for span in [
            RegionSpan {
                offset: 8192,
                ..SPAN
            },
            RegionSpan {
                offset: u64::MAX,
                ..SPAN
            },
            RegionSpan {
                length: u64::MAX,
                ..SPAN
            },
        ] {
            assert!(
                WriteRegion::new(Arc::clone(&mapping), span, 100).is_err(),
                "{span:?}"
            );
        }
        assert!(WriteRegion::new(mapping, SPAN, 0).is_err());
    }

    #[test]
    fn a_file_shorter_than_promised_is_refused_at_mapping() {
        let error = ReadMapping::new(file().as_fd(), 16385).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("16384 bytes; expected at least 16385"),
            "{error}"
        );
    }
}
