//! Finding objects: what every request of an engine pays for every block of its prompt.

use anyhow::{Result, ensure};
use ondol::{Handler, Key};

use super::Context;
use crate::baseline::Peer;
use crate::harness::Contestant;
use crate::keys::{self, Batches, KEY_BYTES};
use crate::machine::mib;
use crate::measure::Measure;
use crate::meter::Meter;
use crate::report::{Axis, Case, Panel, Role, Section, thousands};
use crate::server::{fill, with_pages_of};

const OBJECT_BYTES: usize = 64;
const MEASURE: Measure = Measure::Each("key");
/// Objects that are enough for an index of twice this size to exceed a cache, of which a record takes about 200 bytes.
const CACHE_OF_A_MILLION: u64 = 128 << 20;

/// What is asked of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Get,
    Exists,
}

pub(super) fn run(context: &mut Context) -> Result<Section> {
    let objects = objects(context);
    let keys = Keys {
        present: keys::shuffled("present", objects)?,
        absent: keys::shuffled("absent", objects.min(500_000))?,
    };
    let server = context.serve(objects * 2 * OBJECT_BYTES as u64 + (64 << 20), &[])?;
    let handler = server.handler(with_pages_of(OBJECT_BYTES))?;
    fill(&handler, &keys.present, OBJECT_BYTES)?;
    for peer in &mut context.peers.present {
        let mut keys = keys.present[..peer.most_keys().min(keys.present.len())].to_vec();
        keys.sort_unstable();
        for keys in keys.chunks(512) {
            peer.put(keys, &[0; OBJECT_BYTES])?;
        }
    }
    let mut section = Section {
        name: "lookup",
        title: "Lookup",
        about: about(context, objects, &handler)?,
        absent: context.peers.absent.clone(),
        ..Section::default()
    };
    let batches: &[usize] = context.scaled(
        &[1, 64],
        &[1, 4, 16, 64, 256, 1024],
        &[1, 4, 16, 64, 256, 1024],
    );
    for (name, title, question, is_present) in [
        (
            "hit",
            "Find and lease objects that are there, and release them",
            Question::Get,
            true,
        ),
        (
            "miss",
            "Look for objects that are not there",
            Question::Get,
            false,
        ),
        (
            "exists",
            "Ask whether objects are there that are",
            Question::Exists,
            true,
        ),
        (
            "exists-not",
            "Ask whether objects are there that are not",
            Question::Exists,
            false,
        ),
    ] {
        println!("{title}");
        let mut panel = Panel {
            name: name.into(),
            title: title.into(),
            measure: MEASURE,
            axis: Axis::Numbers("keys in a batch"),
            cases: Vec::new(),
        };
        for batch in batches {
            let mut contestants = vec![
                ondol(&handler, keys.of(is_present), question, is_present, *batch)
                    .with_server(Some(server.pid())),
            ];
            for other in &mut context.peers.present {
                contestants.push(peer(
                    &mut **other,
                    keys.of(is_present),
                    question,
                    is_present,
                    *batch,
                ));
            }
            let case = Case::numbered(*batch as u64);
            panel
                .cases
                .push(context.effort.contest(case, MEASURE, &mut contestants)?);
        }
        section.panels.push(panel);
    }
    context.clear_peers()?;
    Ok(section)
}

struct Keys {
    present: Vec<Key>,
    absent: Vec<Key>,
}

impl Keys {
    fn of(&self, is_present: bool) -> &[Key] {
        if is_present {
            &self.present
        } else {
            &self.absent
        }
    }
}

fn objects(context: &Context) -> u64 {
    let enough = if context.machine.largest_cache() > CACHE_OF_A_MILLION {
        2_000_000
    } else {
        1_000_000
    };
    context
        .objects
        .unwrap_or(context.scaled(2000, enough, enough))
}

fn about(context: &Context, objects: u64, handler: &Handler) -> Result<Vec<String>> {
    let cache = mib(context.machine.largest_cache());
    let index = match handler.stats()?.engine.index {
        Some(index) => format!(
            "The index takes {}; the largest cache of the machine has {cache}.",
            mib(index.bytes)
        ),
        None => "The server has no index that clients read; they ask it.".to_owned(),
    };
    Ok(vec![
        format!(
            "{} objects with keys of {KEY_BYTES} bytes, asked for in random order by another process than the server. {index} \
             A lookup of a batch finds and leases all its objects and releases them; single ones are timed one by one.",
            thousands(objects)
        ),
        "What others do that comes nearest: Redis and memcached `GET`s of 64 bytes, or `EXISTS`, in one pipeline; a Maru metadata \
         server one message for a batch, with at most a million keys registered; foyer lookups in the same process, which no other \
         process can do."
            .to_owned(),
    ])
}

fn ondol<'a>(
    handler: &'a Handler,
    keys: &'a [Key],
    question: Question,
    is_present: bool,
    batch: usize,
) -> Contestant<'a> {
    let mut batches = Batches::of(keys);
    let mut step = move || -> Result<u64> {
        let keys = batches.next(batch);
        let found = match (question, keys) {
            (Question::Get, [key]) => usize::from(handler.retrieve(key)?.is_some()),
            (Question::Get, keys) => handler.batch_retrieve(keys)?.iter().flatten().count(),
            (Question::Exists, [key]) => usize::from(handler.exists(key)?),
            (Question::Exists, keys) => handler
                .batch_exists(keys)?
                .into_iter()
                .filter(|is| *is)
                .count(),
        };
        check(found, keys.len(), is_present)
    };
    Contestant::new("Ondol", Role::Ours, move |meter: &mut Meter| {
        turn(meter, batch, &mut step)
    })
}

fn peer<'a>(
    peer: &'a mut dyn Peer,
    keys: &'a [Key],
    question: Question,
    is_present: bool,
    batch: usize,
) -> Contestant<'a> {
    let keys = &keys[..peer.most_keys().min(keys.len())];
    let mut batches = Batches::of(keys);
    let (name, server) = (peer.name().to_owned(), peer.server());
    let mut value = [0; OBJECT_BYTES];
    let mut step = move || -> Result<u64> {
        let keys = batches.next(batch);
        let found = match question {
            Question::Get => peer.get(keys, &mut value)?,
            Question::Exists => peer.exists(keys)?,
        };
        check(found, keys.len(), is_present)
    };
    Contestant::new(name, Role::Peer, move |meter: &mut Meter| {
        turn(meter, batch, &mut step)
    })
    .with_server(server)
}

fn turn(meter: &mut Meter, batch: usize, step: &mut impl FnMut() -> Result<u64>) -> Result<()> {
    if batch == 1 {
        meter.each(|| step().map(drop))
    } else {
        meter.repeat(step)
    }
}

/// A figure counts only if the answers were right.
fn check(found: usize, asked: usize, is_present: bool) -> Result<u64> {
    let expected = if is_present { asked } else { 0 };
    ensure!(
        found == expected,
        "{found} of {asked} keys were found; expected {expected}"
    );
    Ok(asked as u64)
}
