use std::fmt;

use crate::{Key, RegionSpan};

/// What a batch operation asked for and found, as a hook sees it.
///
/// The batch is a view: it is built without an allocation and lives for one call of a hook. For a deferred
/// hook the handler keeps the objects leased until the call has returned.
#[derive(Clone, Copy)]
pub struct RetrievedBatch<'a> {
    source: &'a dyn BatchSource,
}

/// What [`RetrievedBatch`] reads from; implemented by handlers, not by plugins.
pub trait BatchSource {
    /// Number of keys asked for.
    fn len(&self) -> usize;

    /// Whether no key was asked for.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entry of the key at `index`, which is below [`len`](Self::len).
    fn entry(&self, index: usize) -> BatchEntry<'_>;
}

/// One key of a [`RetrievedBatch`].
///
/// The payload of a found entry is at `handle().offset + kv_offset()` of the region's file, `kv_length()`
/// bytes long. Offset and length were checked against the region before any plugin sees them.
#[derive(Clone, Copy)]
pub struct BatchEntry<'a> {
    key: &'a Key,
    place: Option<Place<'a>>,
}

#[derive(Clone, Copy)]
struct Place<'a> {
    handle: RegionSpan,
    kv_offset: u64,
    kv_length: u64,
    bytes: Option<&'a [u8]>,
}

impl<'a> RetrievedBatch<'a> {
    /// A view of `source`.
    pub fn new(source: &'a dyn BatchSource) -> Self {
        Self { source }
    }

    /// Number of keys asked for.
    pub fn len(&self) -> usize {
        self.source.len()
    }

    /// Whether no key was asked for.
    pub fn is_empty(&self) -> bool {
        self.source.is_empty()
    }

    /// The entry of the key at `index`, in the order asked; `None` beyond the end.
    pub fn get(&self, index: usize) -> Option<BatchEntry<'a>> {
        (index < self.source.len()).then(|| self.source.entry(index))
    }

    /// All entries in the order asked.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = BatchEntry<'a>> + use<'a> {
        let source = self.source;
        (0..source.len()).map(move |index| source.entry(index))
    }
}

impl fmt::Debug for RetrievedBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.entries()).finish()
    }
}

impl<'a> BatchEntry<'a> {
    /// The entry of a key that was not found.
    pub fn missed(key: &'a Key) -> Self {
        Self { key, place: None }
    }

    /// The entry of a key found at `kv_offset..kv_offset + kv_length` of the region `handle`.
    ///
    /// `bytes` is this process's view of the payload while the region is mapped. An entry whose range leaves
    /// the region is reported as [`missed`](Self::missed): a plugin never sees an unchecked place.
    pub fn located(
        key: &'a Key,
        handle: RegionSpan,
        kv_offset: u64,
        kv_length: u64,
        bytes: Option<&'a [u8]>,
    ) -> Self {
        let inside = kv_offset
            .checked_add(kv_length)
            .is_some_and(|end| end <= handle.length);
        let place = inside.then_some(Place {
            handle,
            kv_offset,
            kv_length,
            bytes,
        });
        Self { key, place }
    }

    /// The key asked for.
    pub fn key(&self) -> &'a Key {
        self.key
    }

    /// Whether the object is there.
    pub fn found(&self) -> bool {
        self.place.is_some()
    }

    /// The region that holds the object; `None` if it was not found.
    pub fn handle(&self) -> Option<RegionSpan> {
        self.place.map(|place| place.handle)
    }

    /// First byte of the object within its region; 0 if it was not found.
    pub fn kv_offset(&self) -> u64 {
        self.place.map_or(0, |place| place.kv_offset)
    }

    /// Length of the object in bytes; 0 if it was not found.
    pub fn kv_length(&self) -> u64 {
        self.place.map_or(0, |place| place.kv_length)
    }

    /// This process's view of the object; `None` if it was not found or its region is not mapped here.
    pub fn bytes(&self) -> Option<&'a [u8]> {
        self.place.and_then(|place| place.bytes)
    }
}

impl fmt::Debug for BatchEntry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchEntry")
            .field("key", self.key)
            .field("found", &self.found())
            .field("handle", &self.handle())
            .field("kv_offset", &self.kv_offset())
            .field("kv_length", &self.kv_length())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RegionId;

    #[test]
    fn an_entry_that_leaves_its_region_is_not_found() {
        let key = Key::text("k").unwrap();
        let region = RegionSpan {
            region_id: RegionId(1),
            offset: 4096,
            length: 100,
        };
        assert!(BatchEntry::located(&key, region, 90, 10, None).found());
        for (offset, length) in [(91, 10), (101, 0), (u64::MAX, 2), (0, u64::MAX)] {
            let entry = BatchEntry::located(&key, region, offset, length, Some(b""));
            assert!(!entry.found(), "{offset}+{length}");
            assert_eq!(
                (entry.handle(), entry.bytes(), entry.kv_length()),
                (None, None, 0)
            );
        }
    }
}
