use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use ondol_plugin::RegionSpan;
use ondol_protocol::{Grant, ObjectMeta};
use ondol_shm::{LeasedBytes, Location, PageBytes, checksum};

use crate::line::Line;

/// A retrieved object: its bytes in shared memory, for as long as any clone lives.
///
/// Dropping the last clone ends the lease with one store to memory, whatever has become of handler and server.
#[derive(Clone, Debug)]
pub struct Object {
    bytes: LeasedBytes,
    meta: ObjectMeta,
}

/// The bytes of an object are not those that its checksum was made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the object's bytes have checksum {found:016x}; expected {expected:016x}")]
pub struct ChecksumMismatch {
    /// The checksum with which the object was stored.
    pub expected: u64,
    /// The checksum of the bytes that are there.
    pub found: u64,
}

impl Object {
    pub(crate) fn new(bytes: LeasedBytes, meta: ObjectMeta) -> Self {
        Self { bytes, meta }
    }

    /// What is known about the object.
    pub fn meta(&self) -> ObjectMeta {
        self.meta
    }

    /// The region that holds the object.
    pub fn region(&self) -> RegionSpan {
        self.bytes.region()
    }

    /// First byte of the object within its region.
    pub fn offset_in_region(&self) -> u64 {
        self.bytes.offset_in_region()
    }

    /// Compares the bytes with the checksum, if there is one.
    ///
    /// # Errors
    /// [`ChecksumMismatch`].
    pub fn verify(&self) -> Result<(), ChecksumMismatch> {
        match self.meta.checksum {
            Some(expected) => {
                let found = checksum(self);
                if found == expected {
                    Ok(())
                } else {
                    Err(ChecksumMismatch { expected, found })
                }
            }
            None => Ok(()),
        }
    }

    /// Copies the object into a buffer.
    ///
    /// # Panics
    /// If the buffer is not as long as the object.
    pub fn copy_to(&self, buffer: &mut [u8]) {
        ondol_shm::copy_out(buffer, self);
    }

    /// Copies the object into a buffer, and compares what arrives with the checksum in the same pass, if there is one.
    ///
    /// # Errors
    /// [`ChecksumMismatch`]; then what the buffer holds is not the object.
    ///
    /// # Panics
    /// If the buffer is not as long as the object.
    pub fn copy_to_verified(&self, buffer: &mut [u8]) -> Result<(), ChecksumMismatch> {
        match self.meta.checksum {
            Some(expected) => ondol_shm::copy_out_verified(buffer, self, expected)
                .map_err(|found| ChecksumMismatch { expected, found }),
            None => {
                self.copy_to(buffer);
                Ok(())
            }
        }
    }
}

impl Deref for Object {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsRef<[u8]> for Object {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// A page of shared memory to write an object into; nobody else sees it until it is stored.
///
/// Dropped without being stored, the page goes back to the handler's stock.
pub struct PageMut {
    // Taken only by `into_commit` and `drop`, after which nothing reads it.
    bytes: Option<PageBytes>,
    grant: Grant,
    stride: u64,
    line: Arc<Line>,
    /// Whether its object will need a checksum.
    is_summed: bool,
    /// The checksum of all bytes, where it is known; lost when anybody may write them.
    checksum: Option<u64>,
}

impl PageMut {
    pub(crate) fn new(
        line: Arc<Line>,
        bytes: PageBytes,
        grant: Grant,
        stride: u64,
        is_summed: bool,
    ) -> Self {
        Self {
            bytes: Some(bytes),
            grant,
            stride,
            line,
            is_summed,
            checksum: None,
        }
    }

    pub(crate) fn line(&self) -> &Arc<Line> {
        &self.line
    }

    pub(crate) fn stride(&self) -> u64 {
        self.stride
    }

    /// Ends the writing: where the object lies, and the page's grant, which is the caller's to settle.
    pub(crate) fn into_commit(mut self) -> (Location, Grant) {
        let len = self.len() as u64;
        self.bytes = None;
        (
            Location {
                page: self.grant.page,
                generation: self.grant.generation,
                len,
            },
            self.grant,
        )
    }

    /// The checksum of what the page holds; known without reading it after [`write_from`](Self::write_from).
    pub(crate) fn checksum(&self) -> u64 {
        self.checksum.unwrap_or_else(|| checksum(self))
    }

    /// Copies `source` into the page, the fastest way that this processor has: past the caches if it is long, as nobody is
    /// about to read it here. Where the handler stores checksums, the same pass makes it.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn write_from(&mut self, source: &[u8]) {
        if self.is_summed {
            self.checksum = Some(ondol_shm::copy_with_checksum(self, source));
        } else {
            ondol_shm::copy(self, source);
        }
    }
}

impl Deref for PageMut {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.bytes.as_deref().unwrap_or_default()
    }
}

impl DerefMut for PageMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.checksum = None;
        self.bytes.as_deref_mut().unwrap_or_default()
    }
}

impl Drop for PageMut {
    fn drop(&mut self) {
        if self.bytes.take().is_none() || !self.line.home.is_home() {
            return;
        }
        ondol_catalog::failpoint!("client.drop");
        let plane = &*self.line.plane;
        self.line.stock.put(plane, self.stride, self.grant);
        if self.line.is_over() {
            // Nobody takes from the stock of this line again, and the server that heard the handler leave may have been
            // followed by one that did not.
            self.line.farewell().say();
        }
    }
}

impl fmt::Debug for PageMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageMut")
            .field("grant", &self.grant)
            .field("stride", &self.stride)
            .finish_non_exhaustive()
    }
}
