use std::borrow::Cow;

use ondol_plugin::l2::PageMut;

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

    /// The first `len` bytes, if they lie in the first piece.
    pub(super) fn first(&self, len: u64) -> Option<&'a [u8]> {
        self.first.get(..usize::try_from(len).ok()?)
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
}
