use std::borrow::Cow;

use ondol_plugin::l2::PageMut;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

/// Stored bytes, in two pieces where they fill the body of a page and go on in its trailer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored<'a> {
    first: &'a [u8],
    second: &'a [u8],
}

impl<'a> Stored<'a> {
    pub(super) fn in_one_piece(bytes: &'a [u8]) -> Self {
        Self {
            first: bytes,
            second: &[],
        }
    }

    /// The first `filled` bytes of a page; `None` if it has not as many.
    pub(super) fn in_page(page: &'a PageMut, filled: u64) -> Option<Self> {
        let (body, trailer) = page.parts();
        let filled = usize::try_from(filled).ok()?;
        if filled <= body.len() {
            return Some(Self::in_one_piece(&body[..filled]));
        }
        Some(Self {
            first: body,
            second: trailer.get(..filled - body.len())?,
        })
    }

    pub(super) fn len(&self) -> u64 {
        self.first.len() as u64 + self.second.len() as u64
    }

    /// Whether the first `len` bytes lie in the first piece.
    pub(super) fn is_first(&self, len: u64) -> bool {
        len <= self.first.len() as u64
    }

    /// The last `len` bytes, or all if there are fewer.
    pub(super) fn tail(&self, len: usize) -> Cow<'a, [u8]> {
        let last = |bytes: &'a [u8], len| &bytes[bytes.len().saturating_sub(len)..];
        if len <= self.second.len() {
            return Cow::Borrowed(last(self.second, len));
        }
        let first = last(self.first, len - self.second.len());
        if self.second.is_empty() {
            return Cow::Borrowed(first);
        }
        Cow::Owned([first, self.second].concat())
    }

    /// xxh3-64 of the first `len` bytes, of which there are as many.
    pub(super) fn checksum(&self, len: u64) -> u64 {
        let len = len as usize;
        if len <= self.first.len() {
            return xxh3_64(&self.first[..len]);
        }
        let mut hasher = Xxh3Default::new();
        hasher.update(self.first);
        hasher.update(&self.second[..len - self.first.len()]);
        hasher.digest()
    }
}
