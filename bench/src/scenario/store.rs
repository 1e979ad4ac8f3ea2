//! Writing objects: the copy into shared memory, and all that comes with it.

use std::cell::RefCell;

use anyhow::{Result, ensure};
use ondol::{Handler, HandlerConfig, Key, PageMut, Stored};
use ondol_shm::CopyKernel;

use super::{Context, SIZES, verifying};
use crate::baseline::Peer;
use crate::harness::Contestant;
use crate::keys;
use crate::measure::Measure;
use crate::memory;
use crate::meter::Meter;
use crate::report::{Axis, Case, Panel, Role, Section};

/// Bytes of a batch, as the handler's stock of pages has.
const BATCH_BYTES: usize = 8 << 20;
const LARGEST_BATCH: usize = 64;

pub(super) fn run(context: &mut Context) -> Result<Section> {
    let measure = Measure::Bandwidth;
    let mut panel = Panel {
        name: "bandwidth".into(),
        title: "Copy objects into the pool and make them visible".into(),
        measure,
        axis: Axis::Names("object"),
        cases: Vec::new(),
    };
    for (bytes, name) in SIZES {
        println!("Store {name}");
        let count = context.objects_of(bytes);
        let keys = keys::shuffled(&format!("store-{bytes}"), count as u64)?;
        let source = memory::private(count * bytes)?;
        let work = Work {
            keys: &keys,
            source: &source,
            bytes,
        };
        // Room for the objects, and for the pages that limits are measured with.
        let server = context.serve(2 * source.len() as u64 + context.slack(), &[])?;
        let plain = server.handler(HandlerConfig::default())?;
        let summed = server.handler(verifying())?;
        let holder = server.handler(HandlerConfig::default())?;
        let pages = keys.iter().map(|_| holder.alloc(bytes));
        let pages = RefCell::new(pages.collect::<Result<Vec<_>, _>>()?);

        let batch = (BATCH_BYTES / bytes).clamp(1, LARGEST_BATCH);
        let pid = Some(server.pid());
        let mut contestants = vec![
            single("Ondol", &plain, work).with_server(pid),
            single("Ondol, checksum", &summed, work).with_server(pid),
            batched(format!("Ondol, {batch} at once"), &plain, work, batch).with_server(pid),
            batched(
                format!("Ondol, {batch} at once, checksum"),
                &summed,
                work,
                batch,
            )
            .with_server(pid),
        ];
        for (name, kernel) in memory::kernels() {
            contestants.push(limit(name, kernel, &pages, work));
        }
        contestants.push(small_pages(work)?);
        contestants.push(faults(work));
        for other in context.peers.keeping_bytes() {
            contestants.push(peer(other, work));
        }
        panel.cases.push(
            context
                .effort
                .contest(Case::named(name), measure, &mut contestants)?,
        );
        drop(contestants);
        context.clear_peers()?;
    }
    Ok(Section {
        name: "store",
        title: "Store",
        about: vec![
            "One client copies objects out of a buffer that is larger than the caches, where objects are large, into pages of the \
             pool, and stores them. Each turn stores the same number of objects; they are deleted before the next one, which is not \
             counted. Pages are there before: what a page costs that is touched first is the row of page faults."
                .to_owned(),
            "Limits are the same copies and nothing else, into pages of the pool that are there; the best of them is the reference. \
             A file of its own in `/dev/shm` has the pages that the system gives it."
                .to_owned(),
        ],
        panels: vec![panel],
        absent: context.peers.absent.clone(),
    })
}

/// What is stored: under each key the bytes at the same place of the source.
#[derive(Clone, Copy)]
struct Work<'a> {
    keys: &'a [Key],
    source: &'a [u8],
    bytes: usize,
}

fn single<'a>(name: &str, handler: &'a Handler, work: Work<'a>) -> Contestant<'a> {
    Contestant::new(name, Role::Ours, move |meter: &mut Meter| {
        meter.time(work.source.len() as u64, || {
            for (key, content) in work.keys.iter().zip(work.source.chunks_exact(work.bytes)) {
                let mut page = handler.alloc(work.bytes)?;
                page.write_from(content);
                ensure!(
                    handler.store(key, page)? == Stored::New,
                    "an object was there"
                );
            }
            Ok(())
        })?;
        handler.batch_delete(work.keys)?;
        Ok(())
    })
}

fn batched<'a>(name: String, handler: &'a Handler, work: Work<'a>, batch: usize) -> Contestant<'a> {
    Contestant::new(name, Role::Ours, move |meter: &mut Meter| {
        meter.time(work.source.len() as u64, || {
            let contents = work.source.chunks(work.bytes * batch);
            for (keys, contents) in work.keys.chunks(batch).zip(contents) {
                let mut pages = Vec::with_capacity(batch);
                for content in contents.chunks_exact(work.bytes) {
                    let mut page = handler.alloc(work.bytes)?;
                    page.write_from(content);
                    pages.push(page);
                }
                for outcome in handler.batch_store(keys, pages)? {
                    ensure!(outcome? == Stored::New, "an object was there");
                }
            }
            Ok(())
        })?;
        handler.batch_delete(work.keys)?;
        Ok(())
    })
}

fn limit<'a>(
    name: &str,
    kernel: CopyKernel,
    pages: &'a RefCell<Vec<PageMut>>,
    work: Work<'a>,
) -> Contestant<'a> {
    Contestant::new(name, Role::Limit, move |meter: &mut Meter| {
        let mut pages = pages.borrow_mut();
        meter.time(work.source.len() as u64, || {
            for (target, source) in pages.iter_mut().zip(work.source.chunks_exact(work.bytes)) {
                kernel.copy(target, source);
            }
            Ok(())
        })
    })
}

/// Beside the pages of the pool, which may be huge ones.
fn small_pages(work: Work<'_>) -> Result<Contestant<'_>> {
    let mut shared = memory::populated(work.source.len())?;
    Ok(Contestant::new(
        "memcpy to a file of its own",
        Role::Limit,
        move |meter: &mut Meter| {
            meter.time(work.source.len() as u64, || {
                let targets = shared.chunks_exact_mut(work.bytes);
                for (target, source) in targets.zip(work.source.chunks_exact(work.bytes)) {
                    target.copy_from_slice(source);
                }
                Ok(())
            })
        },
    ))
}

fn faults(work: Work<'_>) -> Contestant<'_> {
    Contestant::new(
        "memcpy to fresh pages (faults)",
        Role::Limit,
        move |meter: &mut Meter| {
            let mut shared = memory::shared(work.source.len())?;
            meter.time(work.source.len() as u64, || {
                shared.copy_from_slice(work.source);
                Ok(())
            })
        },
    )
}

fn peer<'a>(peer: &'a mut dyn Peer, work: Work<'a>) -> Contestant<'a> {
    let (name, server) = (peer.name().to_owned(), peer.server());
    Contestant::new(name, Role::Peer, move |meter: &mut Meter| {
        meter.time(work.source.len() as u64, || {
            for (key, content) in work.keys.iter().zip(work.source.chunks_exact(work.bytes)) {
                peer.put(std::slice::from_ref(key), content)?;
            }
            Ok(())
        })
    })
    .with_server(server)
}
