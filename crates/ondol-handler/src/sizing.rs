use ondol_protocol::fitted_page_bytes;

/// How the length of an allocation leads to a page size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PageSizes {
    /// The smallest step of a ladder that holds it: 4 KiB and, from there, four steps for each doubling, so that at
    /// most a fifth of a page is left over.
    #[default]
    Fitted,
    /// The smallest of these that holds it, exactly as given.
    Fixed(Vec<u64>),
}

impl PageSizes {
    /// The page size for `len` bytes; `None` if no page is long enough.
    pub(crate) fn stride(&self, len: u64) -> Option<u64> {
        match self {
            Self::Fixed(sizes) => sizes.iter().copied().filter(|size| *size >= len).min(),
            Self::Fitted => fitted_page_bytes(len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_sizes_are_taken_as_they_are() {
        let sizes = PageSizes::Fixed(vec![100_001, 500]);
        assert_eq!(sizes.stride(500), Some(500));
        assert_eq!(sizes.stride(501), Some(100_001));
        assert_eq!(sizes.stride(100_002), None);
    }
}
