//! A pool that is always full: every store evicts, while others read.

use std::cell::RefCell;

use anyhow::Result;
use ondol::HandlerConfig;

use super::Context;
use crate::harness::Contestant;
use crate::keys;
use crate::measure::Measure;
use crate::meter::{Meter, Sample};
use crate::report::{Axis, Case, Panel, Role, Row, Section};
use crate::server::{Server, fill};
use crate::worker::{Order, Worker};

const OBJECT: usize = 64 << 10;
const SPACE: &str = "churn";
const READS: Measure = Measure::Millions("reads");
const STORES: Measure = Measure::PerSecond("objects");

pub(super) fn run(context: &mut Context) -> Result<Section> {
    let pool: u64 = context.scaled(16 << 20, 256 << 20, 1 << 30);
    let server = context.serve(pool, &["--region-size=2MiB".into()])?;
    // Twice as many as there is room for.
    let objects = 2 * pool / OBJECT as u64;
    let handler = server.handler(HandlerConfig::default())?;
    fill(
        &handler,
        &keys::shuffled(SPACE, objects)?[..objects as usize / 2],
        OBJECT,
    )?;
    let readers = context.scaled(2, 4, 4);
    let case = || Case::named(format!("{readers} readers, 1 writer"));

    println!("Churn, readers");
    let (alone, beside) = (RefCell::default(), RefCell::default());
    let mut contestants = [
        Crew::start(&server, objects, readers, 0)?.reading("readers alone", &alone),
        Crew::start(&server, objects, readers, 1)?.reading("readers beside a writer", &beside),
    ];
    let reads = context.effort.contest(case(), READS, &mut contestants)?;
    let mut hits = case();
    for (contestant, shares) in [
        ("readers alone", &alone),
        ("readers beside a writer", &beside),
    ] {
        // The first turn was there to warm up.
        hits.rows.push(Row::of(
            contestant,
            Role::Ours,
            shares.borrow()[1..].to_vec(),
        ));
    }

    println!("Churn, the writer");
    let mut contestants = [
        Crew::start(&server, objects, 0, 1)?.writing("writer alone"),
        Crew::start(&server, objects, readers, 1)?.writing("writer beside the readers"),
    ];
    let stores = context.effort.contest(case(), STORES, &mut contestants)?;

    let panel = |name: &str, title: &str, measure, case| Panel {
        name: name.into(),
        title: title.into(),
        measure,
        axis: Axis::Names("who works"),
        cases: vec![case],
    };
    Ok(Section {
        name: "churn",
        title: "Eviction",
        about: vec![format!(
            "Objects of 64 KiB, twice as many as the pool of {} MiB has room for. Readers, each a process of its own, look into \
             objects at random in place; the writer stores those that are gone, one by one in a fixed order, and each store evicts.",
            pool >> 20
        )],
        panels: vec![
            panel("read", "Reads, all readers together", READS, reads),
            panel(
                "hit",
                "Reads that found their object",
                Measure::Percent,
                hits,
            ),
            panel("store", "Stores, each of which evicts", STORES, stores),
        ],
        absent: Vec::new(),
    })
}

/// Processes that work together.
struct Crew {
    readers: Vec<(Worker, Order)>,
    writers: Vec<(Worker, Order)>,
    server: u32,
}

impl Crew {
    fn start(server: &Server, objects: u64, readers: usize, writers: usize) -> Result<Self> {
        let space = || SPACE.to_owned();
        let many = |count, order: &dyn Fn() -> Order| {
            let workers = (0..count).map(|_| Ok((Worker::start(&server.socket())?, order())));
            workers.collect::<Result<Vec<_>>>()
        };
        Ok(Self {
            readers: many(readers, &|| Order::Read {
                space: space(),
                objects,
            })?,
            writers: many(writers, &|| Order::Churn {
                space: space(),
                objects,
                bytes: OBJECT,
            })?,
            server: server.pid(),
        })
    }

    /// Lets all work; what the readers did with their hits, and what the writers did.
    fn work(&mut self, meter: &mut Meter) -> Result<((Sample, u64), Sample)> {
        let window = meter.window();
        // Only the server's time is measured here: this process does nothing.
        let (readers, writers) = meter.measure(|_| {
            for (worker, order) in self.readers.iter_mut().chain(&mut self.writers) {
                worker.begin(order, window)?;
            }
            let finish = |crew: &mut Vec<(Worker, Order)>| {
                let done = crew.iter_mut().map(|(worker, _)| worker.finish());
                done.collect::<Result<Vec<_>>>()
            };
            Ok((finish(&mut self.readers)?, finish(&mut self.writers)?))
        })?;
        let sum = |done: Vec<(Sample, u64)>| {
            let mut all = (Sample::default(), 0);
            for (sample, hits) in done {
                all.0.join(&sample);
                all.1 += hits;
            }
            all
        };
        Ok((sum(readers), sum(writers).0))
    }

    fn reading<'a>(mut self, name: &str, shares: &'a RefCell<Vec<f64>>) -> Contestant<'a> {
        let server = self.server;
        let turn = move |meter: &mut Meter| {
            let ((sample, hits), _) = self.work(meter)?;
            shares
                .borrow_mut()
                .push(hits as f64 / sample.work as f64 * 100.0);
            meter.replace(sample);
            Ok(())
        };
        Contestant::new(name, Role::Ours, turn).with_server(Some(server))
    }

    fn writing(mut self, name: &str) -> Contestant<'static> {
        let server = self.server;
        let turn = move |meter: &mut Meter| {
            let (_, sample) = self.work(meter)?;
            meter.replace(sample);
            Ok(())
        };
        Contestant::new(name, Role::Ours, turn).with_server(Some(server))
    }
}
