//! Reading objects: in place, as engines on the same host can, and copied, as everybody else must.

use std::hint::black_box;

use anyhow::{Context as _, Result, ensure};
use ondol::{Handler, HandlerConfig, Key, Object};
use ondol_shm::CopyKernel;

use super::{Context, SIZES, verifying};
use crate::baseline::Peer;
use crate::harness::Contestant;
use crate::keys::{self, Batches};
use crate::measure::Measure;
use crate::memory;
use crate::meter::Meter;
use crate::report::{Axis, Case, Panel, Role, Section};

pub(super) fn run(context: &mut Context) -> Result<Section> {
    let panel = |name: &str, title: &str, measure| Panel {
        name: name.into(),
        title: title.into(),
        measure,
        axis: Axis::Names("object"),
        cases: Vec::new(),
    };
    let mut view = panel(
        "view",
        "Find, lease, look into and release one object",
        Measure::Each("object"),
    );
    let mut copy = panel(
        "copy",
        "Find an object and copy it into a buffer that is used again",
        Measure::Bandwidth,
    );
    for (bytes, name) in SIZES {
        println!("Retrieve {name}");
        let keys = keys::shuffled(
            &format!("retrieve-{bytes}"),
            context.objects_of(bytes) as u64,
        )?;
        let pool = (keys.len() * bytes) as u64 + context.slack();
        let server = context.serve(pool, &[])?;
        let plain = server.handler(HandlerConfig::default())?;
        let verified = server.handler(verifying())?;
        store_everywhere(context, &verified, &keys, bytes)?;

        let pid = Some(server.pid());
        let mut contestants = [
            looking("Ondol, in place", &plain, &keys, bytes).with_server(pid),
            looking("Ondol, in place, verified", &verified, &keys, bytes).with_server(pid),
        ];
        view.cases.push(context.effort.contest(
            Case::named(name),
            view.measure,
            &mut contestants,
        )?);

        let held = plain.batch_retrieve(&keys)?;
        let held: Vec<_> = held.into_iter().flatten().collect();
        ensure!(
            held.len() == keys.len(),
            "{} of {} objects are there",
            held.len(),
            keys.len()
        );
        let mut contestants = vec![
            copying("Ondol, copied", &plain, &keys, bytes, |object, target| {
                object.copy_to(target);
                Ok(())
            })?
            .with_server(pid),
            copying(
                "Ondol, copied and verified",
                &plain,
                &keys,
                bytes,
                |object, target| Ok(object.copy_to_verified(target)?),
            )?
            .with_server(pid),
        ];
        for (name, kernel) in memory::kernels() {
            contestants.push(limit(name, kernel, &held, bytes)?);
        }
        for other in context.peers.keeping_bytes() {
            contestants.push(peer(other, &keys, bytes));
        }
        copy.cases.push(context.effort.contest(
            Case::named(name),
            copy.measure,
            &mut contestants,
        )?);
        drop(contestants);
        context.clear_peers()?;
    }
    Ok(Section {
        name: "retrieve",
        title: "Retrieve",
        about: vec![
            "One client, one object at a time, in random order, over more memory than the caches hold where objects are large. An \
             object in place is a slice of shared memory: what is measured is finding it, leasing it, reading its first and last \
             byte, and the release. Objects have checksums; those that are verified are compared with them each time."
                .to_owned(),
            "Limits are the same copies without anything else: of the same objects, found before, into one buffer. The best of them \
             is the reference."
                .to_owned(),
        ],
        panels: vec![view, copy],
        absent: context.peers.absent.clone(),
    })
}

/// Stores the same objects in Ondol and in all peers. Where they lie has nothing to do with the order of the keys.
fn store_everywhere(
    context: &mut Context,
    handler: &Handler,
    keys: &[Key],
    bytes: usize,
) -> Result<()> {
    let content = memory::private(bytes)?;
    let mut sorted = keys.to_vec();
    sorted.sort_unstable();
    for key in &sorted {
        let mut page = handler.alloc(bytes)?;
        page.write_from(&content);
        handler.store(key, page)?;
    }
    for peer in context.peers.keeping_bytes() {
        for key in &sorted {
            peer.put(std::slice::from_ref(key), &content)?;
        }
    }
    Ok(())
}

fn looking<'a>(name: &str, handler: &'a Handler, keys: &'a [Key], bytes: usize) -> Contestant<'a> {
    let mut batches = Batches::of(keys);
    Contestant::new(name, Role::Ours, move |meter: &mut Meter| {
        meter.each(|| {
            let object = handler.retrieve(&batches.next(1)[0])?;
            let object = object.context("an object is not there")?;
            ensure!(
                object.len() == bytes,
                "an object has {} bytes; expected {bytes}",
                object.len()
            );
            black_box((object[0], object[bytes - 1]));
            Ok(())
        })
    })
}

fn copying<'a>(
    name: &str,
    handler: &'a Handler,
    keys: &'a [Key],
    bytes: usize,
    copy: impl Fn(&Object, &mut [u8]) -> Result<()> + 'a,
) -> Result<Contestant<'a>> {
    let mut target = memory::private(bytes)?;
    Ok(Contestant::new(
        name,
        Role::Ours,
        move |meter: &mut Meter| {
            meter.time((keys.len() * bytes) as u64, || {
                for key in keys {
                    let object = handler.retrieve(key)?.context("an object is not there")?;
                    copy(&object, &mut target)?;
                }
                Ok(())
            })
        },
    ))
}

fn limit<'a>(
    name: &str,
    kernel: CopyKernel,
    objects: &'a [Object],
    bytes: usize,
) -> Result<Contestant<'a>> {
    let mut target = memory::private(bytes)?;
    Ok(Contestant::new(
        name,
        Role::Limit,
        move |meter: &mut Meter| {
            meter.time((objects.len() * bytes) as u64, || {
                for object in objects {
                    kernel.copy(&mut target, object);
                }
                Ok(())
            })
        },
    ))
}

fn peer<'a>(peer: &'a mut dyn Peer, keys: &'a [Key], bytes: usize) -> Contestant<'a> {
    let (name, server) = (peer.name().to_owned(), peer.server());
    let mut target = vec![0; bytes];
    Contestant::new(name, Role::Peer, move |meter: &mut Meter| {
        meter.time((keys.len() * bytes) as u64, || {
            for key in keys {
                let found = peer.get(std::slice::from_ref(key), &mut target)?;
                ensure!(found == 1, "an object is not there");
            }
            Ok(())
        })
    })
    .with_server(server)
}
