//! The server with clients that write whatever they like, and with clients that do what they should in any order.

use super::layout::{RETURN_PLACES, TABLE_BYTES, identity};
use super::*;
use crate::fences::Real;
use crate::{Generation, Grant, PageId, hazard};
use ondol_plugin::RegionId;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

fn page(number: u32) -> PageId {
    PageId {
        region: RegionId(u64::from(number % 3)),
        index: number,
    }
}

/// Everything that the server reads, which is to end and not to be more than a table holds.
fn read_all(view: &mut SlotTableView) {
    let count = |mut seen: u32, most: u32| {
        move || {
            seen += 1;
            assert!(seen <= most, "more than {most}");
        }
    };
    let mut step = count(0, SLOTS);
    view.scan(|_| step()).unwrap();
    let mut step = count(0, HIT_PLACES);
    view.drain_hits(HIT_PLACES, |_| step()).unwrap();
    let mut step = count(0, RETURN_PLACES);
    // A position that cannot be is an error.
    let _ = view.drain_returns(|_| step());
    view.returns_done().unwrap();
    view.counts().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_table_full_of_nonsense_is_read_and_no_harm_done(
        words in vec(any::<[u8; 8]>(), 1..64),
        noise in vec((0..TABLE_BYTES / 8, prop_oneof![Just([0; 8]), Just([0xff; 8]), any::<[u8; 8]>()]), 0..64),
        in_a_file in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("7");
        let mut view = if in_a_file {
            SlotTableView::create(&path).unwrap()
        } else {
            SlotTableView::create_anonymous().unwrap()
        };
        let file = File::from(view.open_for_client().unwrap());
        read_all(&mut view);
        let nonsense = words.as_flattened().repeat(TABLE_BYTES as usize / words.as_flattened().len() + 1);
        file.write_all_at(&nonsense[..TABLE_BYTES as usize], 0).unwrap();
        read_all(&mut view);
        for (at, word) in noise {
            file.write_all_at(&word, at * 8).unwrap();
            let _ = view.drain_returns(|_| {});
            view.drain_hits(HIT_PLACES, |_| {}).unwrap();
        }
        read_all(&mut view);
        // Only the head tells whether it is a table.
        if in_a_file {
            file.write_all_at(&identity(), 0).unwrap();
            if let Ok(mut view) = SlotTableView::adopt(&path) {
                read_all(&mut view);
            }
        }
    }
}

/// What a client or its server does.
#[derive(Clone, Debug)]
enum Step {
    Hold(Vec<u32>),
    End(prop::sample::Index),
    Hit(Vec<u32>),
    GiveBack(u32, u64),
    Count(u32, u32),
    Scan,
    DrainHits,
    DrainReturns,
    ReturnsDone,
    /// The server is killed and another one started.
    Restart,
    Use(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => vec(0..500_u32, 1..200).prop_map(Step::Hold),
        4 => any::<prop::sample::Index>().prop_map(Step::End),
        2 => vec(0..500_u32, 0..6000).prop_map(Step::Hit),
        // So many that the ring is full at times.
        4 => (0..3000_u32, any::<u64>()).prop_map(|(count, first)| Step::GiveBack(count, first)),
        1 => (any::<u32>(), any::<u32>()).prop_map(|(hits, misses)| Step::Count(hits, misses)),
        4 => Just(Step::Scan),
        2 => Just(Step::DrainHits),
        3 => Just(Step::DrainReturns),
        2 => Just(Step::ReturnsDone),
        1 => Just(Step::Restart),
        1 => any::<u64>().prop_map(Step::Use),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn client_and_server_agree_in_any_order(steps in vec(step(), 1..60)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("7");
        let mut view = SlotTableView::create(&path).unwrap();
        let table = SlotTable::open(view.open_for_client().unwrap().as_fd()).unwrap();
        let mut leases = Vec::new();
        let mut hits = VecDeque::new();
        // Given back and not yet dealt with; of these so many were read.
        let mut returns: VecDeque<Grant> = VecDeque::new();
        let mut read = 0;
        let mut counts = (0, 0);
        let mut incarnation = 0;
        for step in steps {
            match step {
                Step::Hold(pages) => {
                    let mut publisher = table.publisher(pages.len(), 0);
                    leases.extend(pages.iter().map(|number| publisher.publish(page(*number)).unwrap()));
                    hazard::published::<Real>();
                }
                Step::End(which) if !leases.is_empty() => {
                    leases.swap_remove(which.index(leases.len()));
                }
                Step::End(_) => {}
                Step::Hit(pages) => {
                    table.note_hits(pages.iter().map(|number| page(*number)));
                    hits.extend(pages.iter().map(|number| page(*number)));
                    hits.drain(..hits.len().saturating_sub(HIT_PLACES as usize));
                }
                Step::GiveBack(count, first) => {
                    for number in 0..count {
                        let generation = Generation(first.wrapping_add(u64::from(number)));
                        let grant = Grant { page: page(number), generation };
                        let has_room = returns.len() < RETURN_PLACES as usize;
                        prop_assert_eq!(table.give_back(grant), has_room);
                        if has_room {
                            returns.push_back(grant);
                        }
                    }
                }
                Step::Count(more_hits, more_misses) => {
                    table.count(more_hits.into(), more_misses.into());
                    counts.0 += u64::from(more_hits);
                    counts.1 += u64::from(more_misses);
                    prop_assert_eq!(view.counts().unwrap(), counts);
                }
                Step::Scan => {
                    let mut found = Vec::new();
                    view.scan(|held| found.push(held.page)).unwrap();
                    found.sort();
                    let mut expected: Vec<_> = leases.iter().map(SlotLease::page).collect();
                    expected.sort();
                    prop_assert_eq!(found, expected);
                    prop_assert_eq!(table.in_use(), leases.len());
                }
                Step::DrainHits => {
                    let mut found = Vec::new();
                    view.drain_hits(HIT_PLACES, |hit| found.push(hit)).unwrap();
                    prop_assert_eq!(found, Vec::from_iter(hits.drain(..)));
                }
                Step::DrainReturns => {
                    let mut found = Vec::new();
                    view.drain_returns(|grant| found.push(grant)).unwrap();
                    prop_assert_eq!(&found, &Vec::from_iter(returns.range(read..).copied()));
                    read = returns.len();
                }
                Step::ReturnsDone => {
                    view.returns_done().unwrap();
                    returns.drain(..read);
                    read = 0;
                }
                Step::Restart => {
                    view = SlotTableView::adopt(&path).unwrap();
                    incarnation = 0;
                    read = 0;
                    hits.clear();
                }
                Step::Use(index) => {
                    view.set_incarnation(index).unwrap();
                    incarnation = index;
                }
            }
            prop_assert_eq!(table.incarnation(), incarnation);
            prop_assert!(table.is_for(incarnation) && !table.is_for(!incarnation));
        }
    }
}
