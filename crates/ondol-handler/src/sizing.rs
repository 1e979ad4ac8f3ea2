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

const SMALLEST: u64 = 4096;
const STEPS_PER_DOUBLING: u64 = 4;

impl PageSizes {
    /// The page size for `len` bytes; `None` if no page is long enough.
    pub(crate) fn stride(&self, len: u64) -> Option<u64> {
        match self {
            Self::Fixed(sizes) => sizes.iter().copied().filter(|size| *size >= len).min(),
            Self::Fitted if len <= SMALLEST => Some(SMALLEST),
            Self::Fitted => {
                let doubling = 1_u64.checked_shl((len - 1).ilog2())?;
                len.checked_next_multiple_of((doubling / STEPS_PER_DOUBLING).max(SMALLEST))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fitted_page_holds_the_object_and_wastes_little() {
        for len in (0..60)
            .map(|bit| 1_u64 << bit)
            .flat_map(|len| [len - 1, len, len + 1])
        {
            let stride = PageSizes::Fitted.stride(len).unwrap();
            assert!(stride >= len, "{len}");
            assert!(
                len <= 4 * SMALLEST || stride - len <= stride / 5 + 1,
                "{len} in {stride}"
            );
        }
        assert_eq!(PageSizes::Fitted.stride(65_536), Some(65_536));
        assert_eq!(PageSizes::Fitted.stride(65_537), Some(81_920));
        assert_eq!(PageSizes::Fitted.stride(u64::MAX), None);
    }

    #[test]
    fn fixed_sizes_are_taken_as_they_are() {
        let sizes = PageSizes::Fixed(vec![100_001, 500]);
        assert_eq!(sizes.stride(500), Some(500));
        assert_eq!(sizes.stride(501), Some(100_001));
        assert_eq!(sizes.stride(100_002), None);
    }
}
