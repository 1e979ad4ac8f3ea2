use super::*;
use crate::fences::Real;
use crate::{Generation, Grant, PageId, hazard};
use ondol_plugin::RegionId;
use std::fs::{self, OpenOptions};
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;

fn page(number: u32) -> PageId {
    PageId {
        region: RegionId(u64::from(number % 7)),
        index: number,
    }
}

fn grant(number: u32) -> Grant {
    Grant {
        page: page(number),
        generation: Generation(u64::from(number) + 100),
    }
}

fn path() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("7");
    (dir, path)
}

fn pair() -> (SlotTableView, Arc<SlotTable>) {
    let view = SlotTableView::create_anonymous().unwrap();
    let table = SlotTable::open(view.open_for_client().unwrap().as_fd()).unwrap();
    (view, table)
}

fn hold(table: &Arc<SlotTable>, pages: impl IntoIterator<Item = u32>) -> Vec<SlotLease> {
    let mut publisher = table.publisher(usize::MAX, 5);
    let leases = pages
        .into_iter()
        .map_while(|number| publisher.publish(page(number)))
        .collect();
    hazard::published::<Real>();
    leases
}

fn held(view: &SlotTableView) -> Vec<PageId> {
    let mut pages = Vec::new();
    view.scan(|held| pages.push(held.page)).unwrap();
    pages.sort();
    pages
}

fn hits(view: &mut SlotTableView) -> Vec<PageId> {
    let mut pages = Vec::new();
    view.drain_hits(HIT_PLACES, |page| pages.push(page))
        .unwrap();
    pages
}

fn returns(view: &mut SlotTableView) -> Vec<Grant> {
    let mut grants = Vec::new();
    view.drain_returns(|grant| grants.push(grant)).unwrap();
    grants
}

#[test]
fn the_server_sees_what_a_client_holds_for_as_long_as_it_does() {
    let (view, table) = pair();
    assert_eq!(held(&view), []);
    let mut leases = hold(&table, [3, 0, 70_000]);
    assert_eq!(leases[2].page(), page(70_000));
    let mut expected = [3, 0, 70_000].map(page);
    expected.sort();
    assert_eq!(held(&view), expected);
    let mut since = Vec::new();
    view.scan(|held| since.push(held.since)).unwrap();
    assert_eq!(since, [5; 3]);
    leases.remove(1);
    assert_eq!(table.in_use(), 2);
    assert_eq!(held(&view), [page(70_000), page(3)]);
    drop(leases);
    assert_eq!((held(&view), table.in_use()), (vec![], 0));
}

#[test]
fn a_page_is_held_until_the_last_clone_of_its_lease_is_dropped() {
    let (view, table) = pair();
    let first = hold(&table, [3]).remove(0);
    let clones = [first.clone(), first.clone()];
    drop(first);
    assert_eq!(clones[1].page(), page(3));
    let last = clones[0].clone();
    drop(clones);
    assert_eq!((held(&view), table.in_use()), (vec![page(3)], 1));
    drop(last);
    assert_eq!((held(&view), table.in_use()), (vec![], 0));
    // Who takes the slot next starts from nothing.
    drop(hold(&table, [4]).remove(0).clone());
    assert_eq!((held(&view), table.in_use()), (vec![], 0));
}

#[test]
fn of_clones_that_end_at_once_one_ends_the_lease() {
    let (view, table) = pair();
    for round in 0..2000 {
        let lease = hold(&table, [round]).remove(0);
        let barrier = std::sync::Barrier::new(3);
        std::thread::scope(|scope| {
            for clone in [lease.clone(), lease.clone(), lease] {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    drop(clone.clone());
                    drop(clone);
                });
            }
        });
        assert_eq!((held(&view), table.in_use()), (vec![], 0), "round {round}");
    }
}

#[test]
fn all_slots_can_be_held_and_then_no_more() {
    let (view, table) = pair();
    let leases = hold(&table, 0..);
    assert_eq!(leases.len(), SLOTS as usize);
    assert_eq!(held(&view).len(), SLOTS as usize);
    assert!(table.publisher(1, 0).publish(page(1)).is_none());
    drop(leases);
    assert_eq!(hold(&table, [1]).len(), 1);
}

#[test]
fn a_page_that_no_slot_can_name_is_not_held() {
    let (view, table) = pair();
    let mut publisher = table.publisher(9, 0);
    for (region, index) in [(1 << 32, 0), (0, u32::MAX)] {
        let page = PageId {
            region: RegionId(region),
            index,
        };
        assert!(publisher.publish(page).is_none());
    }
    assert_eq!(held(&view), []);
    let last = PageId {
        region: RegionId(u64::from(u32::MAX)),
        index: u32::MAX - 1,
    };
    let lease = publisher.publish(last);
    assert_eq!(lease.map(|lease| lease.page()), Some(last));
}

#[test]
fn slots_that_a_batch_did_not_need_are_free_again() {
    let (view, table) = pair();
    let mut publisher = table.publisher(256, 0);
    let lease = publisher.publish(page(1));
    drop(publisher);
    assert_eq!((table.in_use(), held(&view).len()), (1, 1));
    drop(lease);
}

#[test]
fn hits_arrive_in_order_and_the_oldest_of_too_many_are_lost() {
    let (mut view, table) = pair();
    table.note_hits([1, 2, 3].map(page).into_iter());
    table.note_hit(page(9));
    assert_eq!(hits(&mut view), [1, 2, 3, 9].map(page));
    assert_eq!(hits(&mut view), []);
    (0..HIT_PLACES + 10).for_each(|number| table.note_hit(page(number)));
    let kept: Vec<_> = (10..HIT_PLACES + 10).map(page).collect();
    assert_eq!(hits(&mut view), kept);
}

#[test]
fn of_more_found_objects_than_are_wanted_the_last_ones_are_told() {
    let (mut view, table) = pair();
    table.note_hits((0..100).map(page).collect::<Vec<_>>().into_iter());
    let mut told = Vec::new();
    view.drain_hits(3, |page| told.push(page)).unwrap();
    assert_eq!(told, [97, 98, 99].map(page));
    assert_eq!(hits(&mut view), [], "the others are forgotten");
}

#[test]
fn returns_arrive_once_in_order_and_none_is_lost() {
    let (mut view, table) = pair();
    let mut next = 0;
    let mut give = |count: u32| {
        for _ in 0..count {
            assert!(table.give_back(grant(next)));
            next += 1;
        }
    };
    give(4000);
    let expected = |numbers: std::ops::Range<u32>| Vec::from_iter(numbers.map(grant));
    assert_eq!(returns(&mut view), expected(0..4000));
    give(96);
    assert!(!table.give_back(grant(0)), "nothing was taken yet");
    view.returns_done().unwrap();
    give(4000);
    assert!(!table.give_back(grant(0)));
    assert_eq!(returns(&mut view), expected(4000..8096));
    assert_eq!(returns(&mut view), []);
    view.returns_done().unwrap();
    view.returns_done().unwrap();
    give(1);
    assert_eq!(returns(&mut view), expected(8096..8097));
}

#[test]
fn counts_add_up() {
    let (view, table) = pair();
    table.count(3, 0);
    table.count(4, 5);
    assert_eq!(view.counts().unwrap(), (7, 5));
}

#[test]
fn a_table_in_a_file_outlives_its_server() {
    let (_dir, path) = path();
    let mut view = SlotTableView::create(&path).unwrap();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert!(metadata.blocks() * 512 >= metadata.len(), "there are holes");
    view.set_incarnation(77).unwrap();
    let table = SlotTable::open(view.open_for_client().unwrap().as_fd()).unwrap();
    assert_eq!(table.incarnation(), 77);
    let _leases = hold(&table, [1, 2]);
    (0..3).for_each(|number| assert!(table.give_back(grant(number))));
    assert_eq!(returns(&mut view).len(), 3);
    view.returns_done().unwrap();
    (3..5).for_each(|number| assert!(table.give_back(grant(number))));
    assert_eq!(returns(&mut view).len(), 2);
    table.note_hit(page(1));
    drop(view);
    let mut view = SlotTableView::adopt(&path).unwrap();
    assert_eq!(table.incarnation(), 0);
    assert_eq!(held(&view), [page(1), page(2)]);
    // Those were read but not written down.
    assert_eq!(returns(&mut view), [grant(3), grant(4)]);
    assert_eq!(hits(&mut view), []);
    view.set_incarnation(78).unwrap();
    assert_eq!(table.incarnation(), 78);
}

#[test]
fn a_file_that_is_there_is_not_overwritten() {
    let (dir, path) = path();
    fs::write(&path, "mine").unwrap();
    let error = SlotTableView::create(&path).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&path).unwrap(), b"mine");
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(dir.path().join("elsewhere"), &link).unwrap();
    SlotTableView::create(&link).unwrap_err();
    assert!(!dir.path().join("elsewhere").exists());
}

#[test]
fn what_is_no_table_is_refused() {
    let (dir, path) = path();
    SlotTableView::adopt(&path).unwrap_err();
    drop(SlotTableView::create(&path).unwrap());
    let whole = fs::read(&path).unwrap();
    let refused = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        fs::write(&path, bytes).unwrap();
        SlotTableView::adopt(&path).unwrap_err();
        let file = OpenOptions::new().read(true).write(true).open(&path);
        SlotTable::open(file.unwrap().as_fd()).unwrap_err();
    };
    refused(&Vec::clear);
    refused(&|bytes| bytes.truncate(bytes.len() - 1));
    refused(&|bytes| bytes.push(0));
    for at in [0, 8, 12, 16, 20] {
        refused(&|bytes| bytes[at] ^= 1);
    }
    fs::write(&path, &whole).unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    SlotTableView::adopt(&link).unwrap_err();
    SlotTableView::adopt(dir.path()).unwrap_err();
    SlotTableView::adopt(&path).unwrap();
}

#[test]
fn a_client_that_cuts_its_table_short_is_an_error_and_no_more() {
    let (_dir, path) = path();
    let mut view = SlotTableView::create(&path).unwrap();
    let table = SlotTable::open(view.open_for_client().unwrap().as_fd()).unwrap();
    // Not dropped, as to write where there is no file any more ends the process.
    let _lease = ManuallyDrop::new(hold(&table, [1]));
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(300)
        .unwrap();
    view.scan(|_| {}).unwrap_err();
    view.drain_returns(|_| {}).unwrap_err();
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(0)
        .unwrap();
    view.drain_hits(HIT_PLACES, |_| {}).unwrap_err();
    view.counts().unwrap_err();
    assert!(
        view.scan(|_| {})
            .unwrap_err()
            .to_string()
            .contains("cut it short")
    );
}

#[test]
fn a_volatile_table_cannot_be_cut_short() {
    let (view, _table) = pair();
    let file = fs::File::from(view.open_for_client().unwrap());
    file.set_len(0).unwrap_err();
    file.set_len(1 << 30).unwrap_err();
    file.write_all_at(&[0], 600).unwrap();
}

#[test]
fn no_second_handle_of_a_table_writes_over_what_the_first_one_holds() {
    let (view, table) = pair();
    let again = || SlotTable::open(view.open_for_client().unwrap().as_fd());
    let second = again();
    let _first_holds = hold(&table, [1]);
    let _second_holds = second.as_ref().map(|second| hold(second, [2]));
    assert!(held(&view).contains(&page(1)), "{:?}", held(&view));
    second.unwrap_err();
    drop(table);
    again().unwrap_err();
}

#[test]
fn a_lease_outlives_its_table_and_may_end_on_another_thread() {
    let (view, table) = pair();
    let weak = Arc::downgrade(&table);
    let mut leases = hold(&table, 0..200);
    drop(table);
    assert_eq!(held(&view).len(), 200);
    let others = leases.split_off(100);
    let threads = [leases, others].map(|leases| std::thread::spawn(|| drop(leases)));
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    assert_eq!(held(&view), []);
    assert!(weak.upgrade().is_none(), "the table stays for ever");
}

#[test]
fn a_table_ends_with_its_handle_if_nothing_is_held() {
    let (_view, table) = pair();
    let weak = Arc::downgrade(&table);
    for round in 0..300 {
        let mut publisher = table.publisher(100, 0);
        let leases: Vec<_> = (0..round % 100)
            .filter_map(|number| publisher.publish(page(number)))
            .collect();
        drop(leases);
    }
    assert_eq!(weak.strong_count(), 1);
    drop(table);
    assert!(weak.upgrade().is_none());
}

#[test]
fn a_forked_child_ends_and_publishes_nothing() {
    let (mut view, table) = pair();
    view.set_incarnation(5).unwrap();
    let leases = hold(&table, 0..100);
    // SAFETY: the child does nothing but what is tested and free memory, which the C library lets it, and leaves with
    // _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let does_nothing = table.incarnation() == 0
            && !table.is_for(5)
            && table.publisher(1, 0).publish(page(9)).is_none()
            && !table.give_back(grant(1));
        table.note_hit(page(1));
        table.count(1, 1);
        drop(leases);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!does_nothing)) };
    }
    let mut status = 0;
    // SAFETY: `status` is a valid place, `child` is our own child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(held(&view).len(), 100);
    assert_eq!(hits(&mut view), []);
    assert_eq!(returns(&mut view), []);
    assert_eq!(view.counts().unwrap(), (0, 0));
    drop(leases);
    assert_eq!((held(&view), table.in_use()), (vec![], 0));
}

#[test]
fn threads_give_back_and_find_at_the_same_time() {
    const THREADS: u32 = 4;
    const EACH: u32 = 5000;
    let (mut view, table) = pair();
    let mut all = Vec::new();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let table = &table;
            scope.spawn(move || {
                for number in (0..EACH).map(|number| thread * EACH + number) {
                    table.note_hit(page(number));
                    while !table.give_back(grant(number)) {
                        std::thread::yield_now();
                    }
                }
            });
        }
        let mut seen = 0;
        while all.len() < (THREADS * EACH) as usize {
            view.drain_returns(|grant| all.push(grant)).unwrap();
            view.returns_done().unwrap();
            view.drain_hits(HIT_PLACES, |hit| {
                assert!(hit.index < THREADS * EACH);
                seen += 1;
            })
            .unwrap();
        }
        assert!(seen > 0);
    });
    for thread in 0..THREADS {
        let expected: Vec<_> = (0..EACH).map(|n| grant(thread * EACH + n)).collect();
        let own = |grant: &&Grant| grant.page.index / EACH == thread;
        let found: Vec<_> = all.iter().filter(own).copied().collect();
        assert_eq!(found, expected, "thread {thread}");
    }
}

#[test]
fn a_full_file_system_makes_no_table_and_leaves_none() {
    let dir = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=256k ondol-test \"$1\" || exit 77; exec \"$2\" --exact --nocapture \"$3\"";
    let output = std::process::Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(dir.path())
        .arg(std::env::current_exe().unwrap())
        .arg("slot_table::tests::making_child")
        .env("ONDOL_TEST_TABLE", dir.path().join("7"))
        .output();
    match output {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(text.contains("refused"), "{text}");
        }
        Ok(output)
            if matches!(output.status.code(), Some(1 | 77))
                && !rustix::process::geteuid().is_root() =>
        {
            eprintln!("SKIPPED: a file system can be mounted by root only");
        }
        other => panic!("{other:?}"),
    }
}

/// What this binary does as a child of the test above.
#[test]
fn making_child() {
    let Some(path) = std::env::var_os("ONDOL_TEST_TABLE").map(PathBuf::from) else {
        return;
    };
    let error = SlotTableView::create(&path).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    assert!(!path.exists());
    println!("\nrefused");
}
