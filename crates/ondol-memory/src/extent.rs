//! Which bytes of the pool's files lie in no region.

use std::collections::BTreeMap;
use std::ops::Range;

use ondol_shm::BackingId;

/// Regions start at multiples of this many bytes and are multiples of it long.
pub const REGION_ALIGNMENT: u64 = 2 << 20;

/// A run of bytes of one backing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Extent {
    /// The file or device.
    pub backing: BackingId,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// What the allocator knows of one backing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arena {
    /// The bytes that may be given out.
    pub usable: Range<u64>,
    /// Alignment of the device; extents are aligned to this or to [`REGION_ALIGNMENT`], whichever is larger, unless an
    /// extent is the whole arena.
    pub alignment: u64,
    /// Whether an extent must be the whole arena.
    pub whole: bool,
}

/// Extents were freed that are not allocated: a fault of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}+{} of backing {} is not allocated, or not all of it", .0.offset, .0.len, .0.backing.0)]
pub struct NotAllocated(pub Extent);

/// First-fit allocation of aligned extents; neighbours that are free are always one.
#[derive(Debug, PartialEq, Eq)]
pub struct ExtentAllocator {
    arenas: Vec<Arena>,
    /// Start of each free run to its length.
    free: BTreeMap<(BackingId, u64), u64>,
}

impl ExtentAllocator {
    /// An allocator of these backings, all of them free; a backing's id is its place in the list.
    pub fn new(arenas: impl IntoIterator<Item = Arena>) -> Self {
        let arenas: Vec<_> = arenas
            .into_iter()
            .map(|arena| {
                // A region that is a whole file starts where the file does.
                let alignment = if arena.whole {
                    1
                } else {
                    arena.alignment.max(REGION_ALIGNMENT)
                };
                let start = arena.usable.start.next_multiple_of(alignment);
                let end = arena.usable.end - arena.usable.end % alignment;
                Arena {
                    usable: start..end.max(start),
                    alignment,
                    ..arena
                }
            })
            .collect();
        Self::all_free(arenas)
    }

    /// An allocator of the same backings, all of them free.
    pub(crate) fn emptied(&self) -> Self {
        Self::all_free(self.arenas.clone())
    }

    fn all_free(arenas: Vec<Arena>) -> Self {
        let free = arenas
            .iter()
            .zip(0..)
            .filter(|(arena, _)| !arena.usable.is_empty());
        let free = free.map(|(arena, id)| {
            (
                (BackingId(id), arena.usable.start),
                arena.usable.end - arena.usable.start,
            )
        });
        let free = free.collect();
        Self { arenas, free }
    }

    /// The first free run that holds `len` bytes, cut to them; a whole arena where the arena cannot be cut.
    /// Nothing is taken until [`take`](Self::take).
    pub fn find(&self, len: u64) -> Option<Extent> {
        self.free.iter().find_map(|(&(backing, offset), &run)| {
            let arena = self.arena(backing);
            let wanted = if arena.whole {
                run
            } else {
                len.checked_next_multiple_of(arena.alignment)?
            };
            (len <= run && wanted <= run).then_some(Extent {
                backing,
                offset,
                len: wanted,
            })
        })
    }

    /// The largest extent that [`find`](Self::find) could give.
    pub fn find_largest(&self) -> Option<Extent> {
        let largest = self.free.iter().max_by_key(|&(_, &run)| run);
        largest.map(|(&(backing, offset), &len)| Extent {
            backing,
            offset,
            len,
        })
    }

    /// Takes an extent out of the free runs.
    ///
    /// # Errors
    /// Gives the extent back if it is not wholly free.
    pub fn take(&mut self, extent: Extent) -> Result<(), Extent> {
        let end = extent.offset.checked_add(extent.len).ok_or(extent)?;
        let before = self
            .free
            .range(..=(extent.backing, extent.offset))
            .next_back();
        let (&(backing, start), &run) = before.ok_or(extent)?;
        if extent.len == 0 || backing != extent.backing || start + run < end {
            return Err(extent);
        }
        self.free.remove(&(backing, start));
        if start < extent.offset {
            self.free.insert((backing, start), extent.offset - start);
        }
        if end < start + run {
            self.free.insert((backing, end), start + run - end);
        }
        Ok(())
    }

    /// Puts an extent back and merges it with its free neighbours.
    ///
    /// # Errors
    /// [`NotAllocated`] if any byte of it is free already or was never there.
    pub fn free(&mut self, extent: Extent) -> Result<(), NotAllocated> {
        let Extent {
            backing,
            offset,
            len,
        } = extent;
        let end = offset.checked_add(len).ok_or(NotAllocated(extent))?;
        let usable = self
            .arenas
            .get(backing.0 as usize)
            .map(|arena| &arena.usable);
        if len == 0 || usable.is_none_or(|usable| offset < usable.start || usable.end < end) {
            return Err(NotAllocated(extent));
        }
        let mut merged = offset..end;
        if let Some((&(_, start), &run)) =
            self.free.range((backing, 0)..(backing, offset)).next_back()
        {
            if start + run > offset {
                return Err(NotAllocated(extent));
            }
            if start + run == offset {
                merged.start = start;
            }
        }
        if let Some((&(_, start), &run)) = self
            .free
            .range((backing, offset)..=(backing, u64::MAX))
            .next()
        {
            if start < end {
                return Err(NotAllocated(extent));
            }
            if start == end {
                merged.end = start + run;
                self.free.remove(&(backing, start));
            }
        }
        self.free
            .insert((backing, merged.start), merged.end - merged.start);
        Ok(())
    }

    /// Free runs in the order of their place.
    pub fn free_extents(&self) -> impl Iterator<Item = Extent> {
        self.free.iter().map(|(&(backing, offset), &len)| Extent {
            backing,
            offset,
            len,
        })
    }

    /// Bytes that may be given out, free or not.
    pub fn total_bytes(&self) -> u64 {
        self.arenas
            .iter()
            .map(|arena| arena.usable.end - arena.usable.start)
            .sum()
    }

    /// Free bytes.
    pub fn free_bytes(&self) -> u64 {
        self.free.values().sum()
    }

    /// The longest extent that could be given out if everything was free.
    pub fn largest_arena(&self) -> u64 {
        self.arenas
            .iter()
            .map(|arena| arena.usable.end - arena.usable.start)
            .max()
            .unwrap_or(0)
    }

    /// What the allocator knows of a backing.
    ///
    /// # Panics
    /// If there is no such backing.
    pub fn arena(&self, backing: BackingId) -> &Arena {
        &self.arenas[backing.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UNIT: u64 = REGION_ALIGNMENT;

    fn arena(units: u64) -> Arena {
        Arena {
            usable: 0..units * UNIT,
            alignment: 4096,
            whole: false,
        }
    }

    fn take(allocator: &mut ExtentAllocator, len: u64) -> Option<Extent> {
        let extent = allocator.find(len)?;
        allocator.take(extent).unwrap();
        Some(extent)
    }

    #[test]
    fn neighbours_merge_whatever_the_order_of_release() {
        for order in [[0, 1, 2], [2, 1, 0], [0, 2, 1], [1, 0, 2]] {
            let mut allocator = ExtentAllocator::new([arena(3)]);
            let taken: Vec<_> = (0..3).map(|_| take(&mut allocator, 1).unwrap()).collect();
            assert_eq!(allocator.free_bytes(), 0);
            order
                .into_iter()
                .for_each(|index: usize| allocator.free(taken[index]).unwrap());
            assert_eq!(
                allocator.find_largest().unwrap().len,
                3 * UNIT,
                "order {order:?}"
            );
            assert_eq!(allocator.free_extents().count(), 1);
        }
    }

    #[test]
    fn freeing_twice_or_what_was_never_there_is_an_error() {
        let mut allocator = ExtentAllocator::new([arena(4)]);
        let extent = take(&mut allocator, 2 * UNIT).unwrap();
        allocator.free(extent).unwrap();
        assert_eq!(allocator.free(extent), Err(NotAllocated(extent)));
        for (offset, len) in [
            (3 * UNIT, 2 * UNIT),
            (0, 0),
            (u64::MAX, 2),
            (5 * UNIT, UNIT),
        ] {
            assert!(
                allocator
                    .free(Extent {
                        backing: BackingId(0),
                        offset,
                        len
                    })
                    .is_err()
            );
        }
        assert!(
            allocator
                .free(Extent {
                    backing: BackingId(7),
                    ..extent
                })
                .is_err()
        );
        assert_eq!(allocator.free_bytes(), 4 * UNIT);
    }

    #[test]
    fn an_arena_that_cannot_be_cut_is_given_whole() {
        let whole = Arena {
            usable: 0..5 * UNIT,
            alignment: 4096,
            whole: true,
        };
        let mut allocator = ExtentAllocator::new([whole.clone(), whole]);
        assert_eq!(take(&mut allocator, 1).unwrap().len, 5 * UNIT);
        assert_eq!(take(&mut allocator, 5 * UNIT + 1), None);
        assert_eq!(
            take(&mut allocator, 5 * UNIT).unwrap().backing,
            BackingId(1)
        );
    }

    #[test]
    fn a_whole_arena_of_any_length_is_used_to_its_end() {
        let odd = Arena {
            usable: 0..UNIT + UNIT / 2,
            alignment: UNIT,
            whole: true,
        };
        let mut allocator = ExtentAllocator::new([odd]);
        assert_eq!(allocator.total_bytes(), UNIT + UNIT / 2);
        assert_eq!(take(&mut allocator, 1).unwrap().len, UNIT + UNIT / 2);
    }

    #[test]
    fn a_header_before_the_usable_bytes_is_left_alone() {
        let device = Arena {
            usable: 4096..4 * UNIT,
            alignment: 4096,
            whole: false,
        };
        let mut allocator = ExtentAllocator::new([device]);
        assert_eq!(take(&mut allocator, 1).unwrap().offset, UNIT);
        assert_eq!(allocator.total_bytes(), 3 * UNIT);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Take(u64),
        Free(usize),
    }

    proptest! {
        /// A bitmap of units is the model: first fit finds what the bitmap's first fit finds.
        #[test]
        fn the_allocator_agrees_with_a_bitmap(
            steps in proptest::collection::vec(
                prop_oneof![(1..6_u64).prop_map(Step::Take), any::<usize>().prop_map(Step::Free)], 1..200)
        ) {
            const UNITS: [usize; 2] = [13, 7];
            let mut allocator = ExtentAllocator::new(UNITS.map(|units| arena(units as u64)));
            let mut model = UNITS.map(|units| vec![false; units]);
            let mut live: Vec<Extent> = Vec::new();
            for step in steps {
                match step {
                    Step::Take(units) => {
                        let units = units as usize;
                        let expected = model.iter().enumerate().find_map(|(backing, used)| {
                            let start = used.windows(units).position(|window| window.iter().all(|used| !used))?;
                            Some((backing, start))
                        });
                        let extent = take(&mut allocator, units as u64 * UNIT);
                        prop_assert_eq!(
                            extent.map(|e| (e.backing.0 as usize, (e.offset / UNIT) as usize)), expected);
                        if let Some(((backing, start), extent)) = expected.zip(extent) {
                            model[backing][start..start + units].fill(true);
                            live.push(extent);
                        }
                    }
                    Step::Free(index) if !live.is_empty() => {
                        let extent = live.swap_remove(index % live.len());
                        allocator.free(extent).unwrap();
                        let start = (extent.offset / UNIT) as usize;
                        let units = (extent.len / UNIT) as usize;
                        model[extent.backing.0 as usize][start..start + units].fill(false);
                    }
                    Step::Free(_) => {}
                }
                let free: usize = model.iter().flatten().filter(|used| !**used).count();
                prop_assert_eq!(allocator.free_bytes(), free as u64 * UNIT);
                let largest = model.iter().flat_map(|used| used.split(|used| *used)).map(<[bool]>::len).max();
                prop_assert_eq!(
                    allocator.find_largest().map_or(0, |e| e.len), largest.unwrap_or(0) as u64 * UNIT);
            }
        }
    }
}
