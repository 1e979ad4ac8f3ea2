//! Many threads on one handler, under pressure; every byte that is read is verified.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use ondol_handler::{ControlError, DeleteOutcome, Handler, HandlerError, Object, Stored};
use ondol_tests::{Random, Server, check, fill, key, plain, watchdog};

const THREADS: u64 = 8;
const KEYS: u64 = 96;
const ROUNDS: u64 = 800;
const PAGES: [u64; 2] = [16_384, 65_536];

#[derive(Default)]
struct Tally {
    hits: AtomicU64,
    stores: AtomicU64,
    full: AtomicU64,
    stop: AtomicBool,
}

/// A key's objects are all of one length, so that its reader knows what to expect.
fn len_of(index: u64) -> usize {
    PAGES[(index % 2) as usize] as usize - index as usize
}

fn work(handler: &Handler, tally: &Tally, mut random: Random, thread: u64) {
    let mut held: Vec<(String, u64, Object)> = Vec::new();
    let mut pins: Vec<String> = Vec::new();
    for round in 0..ROUNDS {
        if tally.stop.load(Ordering::Relaxed) {
            return;
        }
        let index = random.below(KEYS);
        let text = format!("k{index}");
        let name = key(&text);
        match random.below(12) {
            0..=4 => match handler.alloc(len_of(index)) {
                Ok(mut page) => {
                    fill(&mut page, &text, thread << 32 | round);
                    if handler.store(&name, page).unwrap() == Stored::New {
                        tally.stores.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Err(HandlerError::Control(ControlError::PoolFull(_))) => {
                    tally.full.fetch_add(1, Ordering::Relaxed);
                    held.clear();
                    for text in pins.drain(..) {
                        assert!(
                            handler.unpin(&key(&text)).unwrap(),
                            "a pin of {text} is lost"
                        );
                    }
                }
                Err(error) => panic!("{error}"),
            },
            5..=8 => {
                let names: Vec<_> = (0..4)
                    .map(|step| key(&format!("k{}", (index + step) % KEYS)))
                    .collect();
                let found = handler.batch_retrieve(&names).unwrap();
                for (step, object) in (0..).zip(found) {
                    let Some(object) = object else { continue };
                    let index = (index + step) % KEYS;
                    let text = format!("k{index}");
                    assert_eq!(object.len(), len_of(index));
                    let writer = check(&object, &text).unwrap();
                    tally.hits.fetch_add(1, Ordering::Relaxed);
                    held.push((text, writer, object));
                }
            }
            9 => {
                if pins.len() < 4 && handler.pin(&name).unwrap() {
                    pins.push(text);
                }
            }
            10 => {
                if let Some(text) = pins.pop() {
                    assert!(
                        handler.unpin(&key(&text)).unwrap(),
                        "a pin of {text} is lost"
                    );
                }
            }
            _ => {
                let outcome = handler.delete(&name).unwrap();
                assert!(
                    !(outcome == DeleteOutcome::Deleted && pins.contains(&text)),
                    "{text} was deleted although it is pinned"
                );
            }
        }
        while held.len() > 8 {
            let (text, writer, object) = held.swap_remove(random.below(held.len() as u64) as usize);
            assert_eq!(
                check(&object, &text),
                Ok(writer),
                "the bytes changed while they were held"
            );
        }
    }
    for (text, writer, object) in held {
        assert_eq!(
            check(&object, &text),
            Ok(writer),
            "the bytes changed while they were held"
        );
    }
    for text in pins {
        assert!(
            handler.unpin(&key(&text)).unwrap(),
            "a pin of {text} is lost"
        );
    }
}

fn storm(handler: &Handler, server: &Server) {
    let mut random = Random::seeded("threads");
    let tally = Tally::default();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let random = Random::new(random.draw());
            let tally = &tally;
            scope.spawn(move || {
                // One that fails ends the others.
                struct Stop<'a>(&'a AtomicBool);
                impl Drop for Stop<'_> {
                    fn drop(&mut self) {
                        if thread::panicking() {
                            self.0.store(true, Ordering::Relaxed);
                        }
                    }
                }
                let _stop = Stop(&tally.stop);
                work(handler, tally, random, thread);
            });
        }
    });
    let stats = server.stats();
    println!(
        "hits {:?}, stores {:?}, full {:?}, evictions {}, drained {}",
        tally.hits,
        tally.stores,
        tally.full,
        stats.counters["ondol_evictions_total"],
        stats.counters["ondol_drained_objects_total"]
    );
    assert!(tally.hits.into_inner() > 0 && tally.stores.into_inner() > 0);
    assert!(
        stats.counters["ondol_evictions_total"] + stats.counters["ondol_drained_objects_total"] > 0
    );
    assert_eq!(stats.retired, 0);
    let [client] = &stats.clients[..] else {
        panic!("{:?}", stats.clients)
    };
    assert_eq!((client.leases, client.pins), (0, 0));
    assert_eq!(client.granted_pages, handler.counts().stock_pages);
    handler.close();
    let stats = server.stats();
    assert!(
        stats.classes.iter().all(|class| class.granted == 0),
        "{:?}",
        stats.classes
    );
    for class in stats.classes {
        assert_eq!(class.free + class.committed, class.pages);
    }
}

#[test]
fn threads_on_one_handler_never_see_wrong_bytes() {
    let _watchdog = watchdog("threads", Duration::from_secs(120));
    let server = Server::start(4);
    let mut config = plain(&PAGES);
    config.stock_bytes = 128 << 10;
    storm(&server.handler(config), &server);
}

#[test]
fn threads_on_an_embedded_handler_never_see_wrong_bytes() {
    let _watchdog = watchdog("threads", Duration::from_secs(120));
    let server = Server::start(4);
    let mut config = plain(&PAGES);
    config.stock_bytes = 128 << 10;
    config.checksum = true;
    storm(&server.embedded(config), &server);
}
