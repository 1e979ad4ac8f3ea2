//! What a store asks of the heap once it has been done a few times: nothing. A read asks for its answer.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use ondol_engine::{Engine, EngineConfig};
use ondol_handler::{Handler, HandlerConfig, Key, Plugins, Stored};
use ondol_server::{DoorConfig, House, StateDir, UnixDoor};

/// The system's allocator, which counts what each thread asks of it.
struct Counting;

thread_local! {
    static ASKED: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    // A thread that ends has no count any more.
    let _ = ASKED.try_with(|asked| asked.set(asked.get() + 1));
}

// SAFETY: every call is passed on as it is to the system's allocator, which keeps the contract. Counting allocates nothing:
// the counter is initialised at compile time and has no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static HEAP: Counting = Counting;

/// How often `work` asks the heap, on this thread.
fn asked(work: impl FnOnce()) -> usize {
    let before = ASKED.get();
    work();
    ASKED.get() - before
}

const LEN: usize = 4000;

/// Calls `test` with a handler of a server behind a socket.
fn with_handler(test: impl FnOnce(&Handler)) {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::lock(&dir.path().join("state")).unwrap();
    let uri = "memfd:?size=16MiB".parse().unwrap();
    let house: Arc<dyn House> = Engine::open(EngineConfig::new([uri])).unwrap();
    let door = UnixDoor::open(house, &state, DoorConfig::new(state.socket_path())).unwrap();
    let mut config = HandlerConfig::default();
    config.plugins = Plugins::None;
    config.checksum = true;
    let handler = Handler::connect(door.socket(), config).unwrap();
    test(&handler);
    handler.close();
}

#[test]
fn a_store_of_a_page_in_stock_asks_nothing_of_the_heap() {
    with_handler(|handler| {
        let keys: Vec<_> = (0..600).map(Key::integer).collect();
        let bytes = [7; LEN];
        let mut measured = 0;
        for (number, key) in keys.iter().enumerate() {
            let is_in_stock = handler.counts().stock_pages > 0;
            let asked = asked(|| {
                let mut page = handler.alloc(LEN).unwrap();
                page.write_from(&bytes);
                assert_eq!(handler.store(key, page).unwrap(), Stored::New);
            });
            // The first ones make buffers that are kept.
            if number >= 200 && is_in_stock {
                assert_eq!(asked, 0, "store {number}");
                measured += 1;
            }
        }
        assert!(measured > 300, "{measured} stores of pages in stock");
        let object = handler.retrieve(&keys[599]).unwrap().expect("it is stored");
        assert_eq!(object[..], bytes);
    });
}

#[test]
fn a_store_of_a_key_that_is_there_and_a_page_that_is_dropped_ask_nothing_of_the_heap() {
    with_handler(|handler| {
        let key = Key::integer(1);
        for round in 0..20 {
            let asked = asked(|| {
                let page = handler.alloc(LEN).unwrap();
                let stored = handler.store(&key, page).unwrap();
                assert_eq!(stored == Stored::New, round == 0);
                drop(handler.alloc(LEN).unwrap());
            });
            assert!(round < 10 || asked == 0, "round {round}: {asked}");
        }
    });
}

#[test]
fn a_batch_asks_the_heap_no_more_often_the_longer_it_is() {
    with_handler(|handler| {
        let mut first = 0;
        let mut store = |count: u64| {
            let keys: Vec<_> = (first..first + count).map(Key::integer).collect();
            first += count;
            let pages: Vec<_> = keys.iter().map(|_| handler.alloc(LEN).unwrap()).collect();
            asked(|| {
                let stored = handler.batch_store(&keys, pages).unwrap();
                assert!(stored.iter().all(|it| matches!(it, Ok(Stored::New))));
            })
        };
        for _ in 0..3 {
            store(64);
        }
        let (short, long) = (store(4), store(64));
        assert!(long <= short, "{short} for 4 objects, {long} for 64");
        assert!(long <= 5, "{long}");
    });
}

#[test]
fn a_read_asks_the_heap_for_its_answer_alone() {
    with_handler(|handler| {
        let keys: Vec<_> = (0..300).map(Key::integer).collect();
        for key in &keys[..256] {
            let mut page = handler.alloc(LEN).unwrap();
            page.write_from(&[7; LEN]);
            handler.store(key, page).unwrap();
        }
        // The last ones are not there.
        let reads: [fn(&Handler, &[Key]); 6] = [
            |handler, keys| drop(handler.batch_retrieve(keys).unwrap()),
            |handler, keys| drop(handler.retrieve(&keys[0]).unwrap()),
            |handler, keys| drop(handler.retrieve(&keys[299]).unwrap()),
            |handler, keys| drop(handler.retrieve_group(&keys[..256]).unwrap().unwrap()),
            |handler, keys| drop(handler.match_prefix(keys).unwrap()),
            |handler, keys| drop(handler.batch_exists(keys).unwrap()),
        ];
        for (number, read) in reads.into_iter().enumerate() {
            // The first one finds the index and maps the memory.
            (0..10).for_each(|_| read(handler, &keys));
            assert_eq!(asked(|| read(handler, &keys)), 1, "read {number}");
        }
    });
}
