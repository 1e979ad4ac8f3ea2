//! Which chunks a request wants of those that are there: pure functions.
//!
//! The rules are those of LMCache's hybrid-attention fold and unfold (`lmcache/v1/distributed/storage_controllers/utils.py`,
//! 0.5.6). A row with window `w` needs, for a prefix of `L` chunks, the last `min(w, L)` of them.

use ondol_plugin::l2::Bitmap;

use super::FetchPolicy;

/// What is asked for, without its keys.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) policy: FetchPolicy,
    /// The window of each row; `None` for full attention.
    pub(super) windows: Vec<Option<usize>>,
    /// Chunks of each row.
    pub(super) columns: usize,
}

impl Shape {
    /// The chunks of each row that are wanted if `present` is all that there is, and only columns before `end` count.
    pub(super) fn wanted(&self, present: &[Bitmap], end: usize) -> Vec<Bitmap> {
        match self.policy {
            FetchPolicy::Prefix => self.unfold(self.fold(present, end)),
            FetchPolicy::Full => {
                let mut whole = full(present);
                let beyond: Vec<_> = whole.ones().filter(|column| *column >= end).collect();
                beyond.into_iter().for_each(|column| whole.clear(column));
                vec![whole; self.windows.len()]
            }
        }
    }

    /// Whether `present` is all that can be wanted.
    pub(super) fn is_whole(&self, present: &[Bitmap]) -> bool {
        match self.policy {
            FetchPolicy::Prefix => self.fold(present, self.columns) == self.columns,
            FetchPolicy::Full => present.iter().all(|row| row.count_ones() == self.columns),
        }
    }

    /// The longest prefix, of at most `end` chunks, that every row can serve.
    pub(super) fn fold(&self, present: &[Bitmap], end: usize) -> usize {
        if present.is_empty() {
            return 0;
        }
        let end = end.min(self.columns);
        let mut runs = vec![0; present.len()];
        let mut longest = 0;
        for column in 0..end {
            let len = column + 1;
            let mut is_servable = true;
            for ((row, window), run) in present.iter().zip(&self.windows).zip(&mut runs) {
                *run = if row.test(column) { *run + 1 } else { 0 };
                let needed = window.map_or(len, |window| window.min(len));
                if *run < needed {
                    // A hole in full attention ends every longer prefix as well.
                    if window.is_none() {
                        return longest;
                    }
                    is_servable = false;
                }
            }
            if is_servable {
                longest = len;
            }
        }
        longest
    }

    /// The chunks of each row that a prefix of `len` needs.
    pub(super) fn unfold(&self, len: usize) -> Vec<Bitmap> {
        let row = |window: &Option<usize>| {
            let mut needed = Bitmap::new(self.columns);
            let first = window.map_or(0, |window| len.saturating_sub(window));
            needed.set_range(first..len);
            needed
        };
        self.windows.iter().map(row).collect()
    }
}

/// The columns that every row has.
fn full(present: &[Bitmap]) -> Bitmap {
    let mut rows = present.iter();
    let first = rows.next().cloned().unwrap_or_default();
    rows.fold(first, |whole, row| &whole & row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shape(policy: FetchPolicy, windows: &[Option<usize>], columns: usize) -> Shape {
        Shape {
            policy,
            windows: windows.to_vec(),
            columns,
        }
    }

    fn bits(text: &str) -> Bitmap {
        text.chars().map(|bit| bit == '1').collect()
    }

    /// Says what the reference says, word by word.
    fn can_serve(row: &Bitmap, window: Option<usize>, len: usize) -> bool {
        let needed = window.map_or(len, |window| window.min(len));
        (len - needed..len).all(|column| row.test(column))
    }

    #[test]
    fn a_window_needs_only_the_chunks_that_it_reaches_over() {
        let shape = shape(FetchPolicy::Prefix, &[None, Some(2)], 5);
        let present = [bits("11110"), bits("00110")];
        assert_eq!(shape.fold(&present, 5), 4);
        assert_eq!(shape.wanted(&present, 5), [bits("11110"), bits("00110")]);
    }

    #[test]
    fn a_longer_prefix_may_be_servable_where_a_shorter_is_not() {
        let shape = shape(FetchPolicy::Prefix, &[Some(2)], 6);
        assert_eq!(shape.fold(&[bits("100110")], 6), 5);
        assert_eq!(shape.fold(&[bits("100110")], 4), 1);
        assert_eq!(shape.fold(&[bits("000100")], 6), 0);
    }

    #[test]
    fn full_wants_the_columns_that_every_row_has() {
        let shape = shape(FetchPolicy::Full, &[None, None], 4);
        let present = [bits("1011"), bits("0011")];
        assert_eq!(shape.wanted(&present, 4), [bits("0011"), bits("0011")]);
        assert_eq!(shape.wanted(&present, 3), [bits("0010"), bits("0010")]);
    }

    #[test]
    fn nothing_is_wanted_of_no_rows() {
        for policy in [FetchPolicy::Prefix, FetchPolicy::Full] {
            let shape = shape(policy, &[], 0);
            assert!(shape.wanted(&[], 0).is_empty());
        }
    }

    prop_compose! {
        fn grid()(columns in 0_usize..12, rows in 1_usize..4)(
            columns in Just(columns),
            windows in prop::collection::vec(prop::option::of(1_usize..6), rows),
            present in prop::collection::vec(prop::collection::vec(prop::bool::weighted(0.8), columns), rows),
            end in 0_usize..14,
        ) -> (usize, Vec<Option<usize>>, Vec<Bitmap>, usize) {
            let present = present.into_iter().map(|row| row.into_iter().collect()).collect();
            (columns, windows, present, end)
        }
    }

    proptest! {
        #[test]
        fn fold_finds_the_longest_prefix_that_every_row_can_serve((columns, windows, present, end) in grid()) {
            let shape = shape(FetchPolicy::Prefix, &windows, columns);
            let expected = (0..=columns.min(end)).rev().find(|len| {
                present.iter().zip(&windows).all(|(row, window)| can_serve(row, *window, *len))
            });
            let found = shape.fold(&present, end);
            prop_assert_eq!(Some(found), expected);
            prop_assert_eq!(shape.is_whole(&present), shape.fold(&present, columns) == columns);

            // What is wanted is there, serves the prefix, and nothing of it can be left out.
            let wanted = shape.wanted(&present, end);
            for ((wanted, present), window) in wanted.iter().zip(&present).zip(&windows) {
                prop_assert!(wanted.ones().all(|column| present.test(column)));
                prop_assert!(can_serve(wanted, *window, found));
                prop_assert_eq!(wanted.count_ones(), window.unwrap_or(found).min(found));
            }
            prop_assert_eq!(shape.fold(&wanted, columns), found);
        }

        #[test]
        fn full_is_what_a_loop_over_all_cells_finds((columns, windows, present, end) in grid()) {
            let shape = shape(FetchPolicy::Full, &windows, columns);
            for wanted in shape.wanted(&present, end) {
                for column in 0..columns {
                    let expected = column < end && present.iter().all(|row| row.test(column));
                    prop_assert_eq!(wanted.test(column), expected);
                }
            }
        }
    }
}
