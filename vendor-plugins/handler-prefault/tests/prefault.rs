//! What becomes of memory, as the kernel tells it.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;

use handler_prefault::{Config, Prefault};
use memmap2::Mmap;
use ondol_plugin::{
    BatchEntry, BatchSource, FactoryContext, HandlerPlugin, HandlerPluginFactory, HandlerView, Key,
    RegionId, RegionSpan, RetrievedBatch, StageResult, inventory,
};

const PAGE: usize = 4096;
const PAGES: usize = 8;

/// One region: a file mapped shared, of which nothing is present yet.
struct Region {
    map: Mmap,
}

impl Region {
    fn new() -> Self {
        let file = tempfile::tempfile().unwrap();
        file.set_len((PAGES * PAGE) as u64).unwrap();
        // SAFETY: the file has no name and no other handle, so nobody changes it while it is mapped.
        let map = unsafe { Mmap::map(&file) }.unwrap();
        Self { map }
    }

    /// A figure of `/proc/self/smaps` in KiB, summed over the pieces that locking cuts the mapping into.
    fn kib(&self, figure: &str) -> usize {
        let range = self.map.as_ptr_range();
        let range = range.start.addr()..range.end.addr();
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_inside = false;
        let mut sum = 0;
        for line in maps.lines() {
            if let Some((start, _)) = line.split_once('-')
                && let Ok(start) = usize::from_str_radix(start, 16)
            {
                is_inside = range.contains(&start);
            } else if is_inside && line.starts_with(figure) {
                sum += line
                    .split_whitespace()
                    .nth(1)
                    .unwrap()
                    .parse::<usize>()
                    .unwrap();
            }
        }
        sum
    }
}

#[derive(Default)]
struct View {
    unmapped: Mutex<HashSet<RegionId>>,
}

impl HandlerView for View {
    fn is_region_mapped(&self, region: RegionId) -> bool {
        !self.unmapped.lock().unwrap().contains(&region)
    }
    fn get_region_dax_path(&self, _: RegionId) -> Option<PathBuf> {
        None
    }
}

enum Entry<'a> {
    Missed,
    Unmapped,
    Mapped(&'a [u8]),
}

struct Batch<'a> {
    entries: Vec<(Key, Entry<'a>)>,
    region: RegionId,
}

impl<'a> Batch<'a> {
    fn of(entries: impl IntoIterator<Item = Entry<'a>>) -> Self {
        let keys = (0..).map(Key::integer);
        Self {
            entries: keys.zip(entries).collect(),
            region: RegionId(1),
        }
    }

    fn stage(&self, plugin: &dyn HandlerPlugin) -> StageResult {
        plugin
            .on_stage(&View::default(), &RetrievedBatch::new(self))
            .unwrap()
            .unwrap()
    }
}

impl BatchSource for Batch<'_> {
    fn len(&self) -> usize {
        self.entries.len()
    }
    fn entry(&self, index: usize) -> BatchEntry<'_> {
        let (key, entry) = &self.entries[index];
        let region = RegionSpan {
            region_id: self.region,
            offset: 0,
            length: (PAGES * PAGE) as u64,
        };
        match entry {
            Entry::Missed => BatchEntry::missed(key),
            Entry::Unmapped => BatchEntry::located(key, region, 0, 1, None),
            Entry::Mapped(bytes) => {
                BatchEntry::located(key, region, 0, bytes.len() as u64, Some(bytes))
            }
        }
    }
}

fn plugin(pin_pages: usize) -> Prefault {
    Prefault::new(&Config {
        pin_bytes: (pin_pages * PAGE) as u64,
    })
}

fn stat(plugin: &Prefault, name: &str) -> u64 {
    plugin.contribute_stats().unwrap()[name].as_u64().unwrap()
}

#[test]
fn a_stage_makes_the_pages_present_and_says_so() {
    let region = Region::new();
    assert_eq!(region.kib("Rss:"), 0);
    let halves = region.map.split_at(PAGES / 2 * PAGE);
    let batch = Batch::of([Entry::Mapped(halves.0), Entry::Mapped(halves.1)]);
    let plugin = plugin(0);
    for _ in 0..2 {
        let result = batch.stage(&plugin);
        assert!(result.ready(), "{result:?}");
        let prepared = (
            result.requested_keys,
            result.issued_ranges,
            result.prepared_bytes,
        );
        assert_eq!(prepared, (2, 2, (PAGES * PAGE) as u64));
    }
    assert_eq!(region.kib("Rss:"), PAGES * PAGE / 1024);
    assert_eq!(region.kib("Locked:"), 0, "pinned without a budget");
    assert_eq!(stat(&plugin, "pinned_ranges"), 0);
}

#[test]
fn a_prefetch_makes_present_what_is_mapped_and_leaves_the_rest() {
    let region = Region::new();
    let batch = Batch::of([Entry::Missed, Entry::Unmapped, Entry::Mapped(&region.map)]);
    plugin(0)
        .on_prefetch(&View::default(), &RetrievedBatch::new(&batch))
        .unwrap();
    assert_eq!(region.kib("Rss:"), PAGES * PAGE / 1024);
}

#[test]
fn a_stage_with_a_key_missed_or_not_mapped_is_not_ready() {
    let region = Region::new();
    let plugin = plugin(0);
    let missed = Batch::of([Entry::Mapped(&region.map), Entry::Missed]).stage(&plugin);
    assert!(!missed.ready());
    let counts = |result: &StageResult| {
        (
            result.requested_keys,
            result.found_keys,
            result.eligible_keys,
            result.skipped_keys,
        )
    };
    assert_eq!(counts(&missed), (2, 1, 1, 0));
    let unmapped = Batch::of([Entry::Unmapped, Entry::Mapped(&region.map)]).stage(&plugin);
    assert!(!unmapped.ready());
    assert_eq!(counts(&unmapped), (2, 2, 1, 1));
    assert!(!Batch::of([]).stage(&plugin).ready());
}

#[test]
fn pins_stay_within_the_budget_count_once_and_end_with_the_close() {
    let region = Region::new();
    let plugin = plugin(3);
    let objects = [
        &region.map[..PAGE * 2],
        &region.map[PAGE * 4..PAGE * 6],
        &region.map[PAGE * 6..PAGE * 7],
    ];
    let batch = Batch::of(objects.map(Entry::Mapped));
    assert!(batch.stage(&plugin).ready());
    assert!(batch.stage(&plugin).ready());

    // The first and the third fit; the second would be one page too many.
    assert_eq!(
        stat(&plugin, "pin_errors"),
        0,
        "this test needs a memlock limit of some pages"
    );
    assert_eq!(region.kib("Locked:"), 3 * PAGE / 1024);
    let pinned = [
        "pinned_ranges",
        "pinned_bytes",
        "pin_references",
        "over_budget",
    ];
    assert_eq!(
        pinned.map(|name| stat(&plugin, name)),
        [2, 3 * PAGE as u64, 4, 2]
    );

    plugin.on_close(&View::default()).unwrap();
    assert_eq!(region.kib("Locked:"), 0);
    assert_eq!(pinned.map(|name| stat(&plugin, name)), [0, 0, 0, 2]);
    plugin.on_close(&View::default()).unwrap();
}

#[test]
fn a_region_that_is_gone_is_not_unlocked() {
    let region = Region::new();
    let plugin = plugin(PAGES);
    assert!(
        Batch::of([Entry::Mapped(&region.map)])
            .stage(&plugin)
            .ready()
    );
    assert_eq!(region.kib("Locked:"), PAGES * PAGE / 1024);
    let view = View::default();
    view.unmapped.lock().unwrap().insert(RegionId(1));
    plugin.on_close(&view).unwrap();
    // Whoever has these addresses now keeps its lock; the plugin's books are clear.
    assert_eq!(region.kib("Locked:"), PAGES * PAGE / 1024);
    assert_eq!(stat(&plugin, "pinned_bytes"), 0);
}

#[test]
fn a_region_that_took_the_place_of_another_is_locked_anew() {
    let plugin = plugin(PAGES);
    let region = Region::new();
    assert!(
        Batch::of([Entry::Mapped(&region.map)])
            .stage(&plugin)
            .ready()
    );
    // SAFETY: the range is the whole mapping; unlocking changes no byte. It stands for an unmapping, which ends
    // locks too, and a mapping of another region in its place.
    unsafe { rustix::mm::munlock(region.map.as_ptr().cast_mut().cast(), region.map.len()) }
        .unwrap();
    let mut batch = Batch::of([Entry::Mapped(&region.map)]);
    batch.region = RegionId(2);
    assert!(batch.stage(&plugin).ready());
    assert_eq!(region.kib("Locked:"), PAGES * PAGE / 1024);
    assert_eq!(stat(&plugin, "pinned_bytes"), (PAGES * PAGE) as u64);
}

#[test]
fn hints_from_many_threads_at_once_pin_once() {
    let region = Region::new();
    let plugin = plugin(PAGES);
    let batches: Vec<_> = (0..8)
        .map(|_| Batch::of([Entry::Mapped(&region.map)]))
        .collect();
    std::thread::scope(|scope| {
        for batch in &batches {
            let plugin = &plugin;
            scope.spawn(move || (0..50).for_each(|_| assert!(batch.stage(plugin).ready())));
        }
    });
    assert_eq!(stat(&plugin, "pinned_ranges"), 1);
    assert_eq!(stat(&plugin, "pinned_bytes"), (PAGES * PAGE) as u64);
    assert_eq!(stat(&plugin, "pin_references"), 400);
    plugin.on_close(&View::default()).unwrap();
    assert_eq!(region.kib("Locked:"), 0);
}

#[test]
fn closing_while_hints_are_under_way_leaves_nothing_locked_for_good() {
    let region = Region::new();
    let plugin = plugin(PAGES);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let batch = Batch::of([Entry::Mapped(&region.map)]);
                (0..200).for_each(|_| assert!(batch.stage(&plugin).ready()));
            });
        }
        (0..200).for_each(|_| plugin.on_close(&View::default()).unwrap());
    });
    plugin.on_close(&View::default()).unwrap();
    assert_eq!(region.kib("Locked:"), 0);
    assert_eq!(stat(&plugin, "pinned_bytes"), 0);
}

#[test]
fn what_is_registered_declines_until_switched_on() {
    let mut factories = inventory::iter::<HandlerPluginFactory>.into_iter();
    let factory = factories
        .find(|factory| factory.name() == "prefault")
        .unwrap();
    let build = |value: Option<&str>| {
        let find = |name: &str| {
            value
                .filter(|_| name == "ONDOL_PREFAULT")
                .map(str::to_owned)
        };
        factory.build(&FactoryContext::new(&find))
    };
    assert!(build(None).unwrap().is_none());
    assert!(build(Some("on")).unwrap().is_some());
    let error = build(Some("maybe")).err().unwrap().to_string();
    assert!(error.contains("ONDOL_PREFAULT is \"maybe\""), "{error}");
}
