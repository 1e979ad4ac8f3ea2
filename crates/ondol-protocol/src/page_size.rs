const SMALLEST: u64 = 4096;
const STEPS_PER_DOUBLING: u64 = 4;

/// The page size for an object of `len` bytes that nobody chose one for: the smallest step of a ladder that holds it, 4 KiB
/// and, from there, four steps for each doubling, so that at most a fifth of a page is left over. `None` if no page is
/// long enough.
pub fn fitted_page_bytes(len: u64) -> Option<u64> {
    if len <= SMALLEST {
        return Some(SMALLEST);
    }
    let doubling = 1_u64.checked_shl((len - 1).ilog2())?;
    len.checked_next_multiple_of((doubling / STEPS_PER_DOUBLING).max(SMALLEST))
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
            let page = fitted_page_bytes(len).unwrap();
            assert!(page >= len, "{len}");
            assert!(
                len <= 4 * SMALLEST || page - len <= page / 5 + 1,
                "{len} in {page}"
            );
        }
        assert_eq!(fitted_page_bytes(65_536), Some(65_536));
        assert_eq!(fitted_page_bytes(65_537), Some(81_920));
        assert_eq!(fitted_page_bytes(u64::MAX), None);
    }
}
