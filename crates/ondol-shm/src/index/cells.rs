//! Which cells of an index are free: the writer's private state.

use ondol_plugin::MAX_KEY_BYTES;

use super::layout::{Segment, record_cells, word};
use crate::sync::{AtomicU64, Ordering};

const LARGEST: usize = record_cells(MAX_KEY_BYTES);

/// Free records by their number of cells. A cell that began a record once only ever begins records of the same number
/// of cells, so that its version is never overwritten with something else.
///
/// A free record holds the first cell of the next one in place of its fingerprint.
#[derive(Debug)]
pub(super) struct FreeCells {
    /// The first free record of each number of cells, from 1; 0 if there is none.
    free: [u32; LARGEST],
    /// The first cell that was never used.
    fresh: u32,
}

impl FreeCells {
    pub(super) fn new() -> Self {
        Self {
            free: [0; LARGEST],
            fresh: 1,
        }
    }

    /// So many cells that hold no record, and the number of the first.
    pub(super) fn take<'a>(
        &mut self,
        segment: Segment<'a>,
        cells: usize,
    ) -> Option<(u32, &'a [AtomicU64])> {
        let head = &mut self.free[cells - 1];
        if *head != 0 {
            let taken = *head;
            *head = link(segment, taken).load(Ordering::Relaxed) as u32;
            return Some((taken, segment.record(taken, cells)?));
        }
        let taken = self.fresh;
        let record = segment.record(taken, cells)?;
        self.fresh += cells as u32;
        Some((taken, record))
    }

    /// Gives a record back, whose version is odd.
    pub(super) fn give_back(&mut self, segment: Segment<'_>, first: u32, cells: usize) {
        let head = &mut self.free[cells - 1];
        link(segment, first).store((*head).into(), Ordering::Relaxed);
        *head = first;
    }
}

fn link(segment: Segment<'_>, first: u32) -> &AtomicU64 {
    &segment.cells[first as usize][word::FINGERPRINT]
}
