//! Several clients at once, each a process of its own.

use anyhow::Result;

use super::Context;
use crate::harness::Contestant;
use crate::keys;
use crate::measure::Measure;
use crate::meter::{Meter, Sample};
use crate::report::{Axis, Case, Panel, Role, Section};
use crate::server::{Server, fill, with_pages_of};
use crate::worker::{Order, Worker};

const LARGE: usize = 2 << 20;
const SMALL: usize = 64;
const BATCH: usize = 256;

pub(super) fn run(context: &mut Context) -> Result<Section> {
    let most = context.scaled(2, 4, 4);
    let small = context.scaled(1000, 100_000, 500_000);
    let large = context.scaled(4, 64, 256);
    // Objects, and what all processes together store in a turn.
    let stored = context.scaled(2, 32, 64);
    let pool =
        small * 2 * SMALL as u64 + (large + 2 * most as u64 * stored) * LARGE as u64 + (256 << 20);
    let server = context.serve(pool, &[])?;
    for (space, objects, bytes) in [("small", small, SMALL), ("large", large, LARGE)] {
        let handler = server.handler(with_pages_of(bytes))?;
        fill(&handler, &keys::shuffled(space, objects)?, bytes)?;
    }

    let of = |name: &str, title: &str, measure| Panel {
        name: name.into(),
        title: title.into(),
        measure,
        axis: Axis::Numbers("processes"),
        cases: Vec::new(),
    };
    let mut panels = Vec::new();
    for (mut panel, order) in [
        (
            of(
                "lookup",
                "Find and lease 256 objects at once",
                Measure::Millions("keys"),
            ),
            Box::new(move |_| Order::Lookup {
                space: "small".into(),
                objects: small,
                batch: BATCH,
            }) as Box<dyn Fn(usize) -> Order>,
        ),
        (
            of(
                "view",
                "Look into objects of 2 MiB in place",
                Measure::Millions("objects"),
            ),
            Box::new(move |_| Order::View {
                space: "large".into(),
                objects: large,
            }),
        ),
        (
            of(
                "copy",
                "Copy objects of 2 MiB out of the pool",
                Measure::Bandwidth,
            ),
            Box::new(move |_| Order::CopyOut {
                space: "large".into(),
                objects: large,
                bytes: LARGE,
            }),
        ),
        (
            of("store", "Store objects of 2 MiB", Measure::Bandwidth),
            Box::new(move |index| Order::Store {
                space: format!("stored-{index}"),
                objects: stored,
                bytes: LARGE,
            }),
        ),
    ] {
        println!("{}", panel.title);
        for count in 1..=most {
            let mut contestant = [contestant(&server, count, &*order)?];
            let case = Case::numbered(count as u64);
            panel.cases.push(
                context
                    .effort
                    .contest(case, panel.measure, &mut contestant)?,
            );
        }
        panels.push(panel);
    }
    Ok(Section {
        name: "processes",
        title: "Several processes",
        about: vec![
            "All processes begin at once and work for the same time; the figure is of all together, and the processor time theirs. What they store comes out of one buffer of an object's length, which stays in the caches. \
             Processes beyond the number of cores can only gain what others lose by waiting."
                .to_owned(),
        ],
        panels,
        absent: Vec::new(),
    })
}

fn contestant(
    server: &Server,
    count: usize,
    order: &dyn Fn(usize) -> Order,
) -> Result<Contestant<'static>> {
    let workers = (0..count).map(|index| Ok((Worker::start(&server.socket())?, order(index))));
    let mut workers = workers.collect::<Result<Vec<_>>>()?;
    let turn = move |meter: &mut Meter| {
        let window = meter.window();
        let done = meter.measure(|_| Worker::all(&mut workers, window))?;
        let mut all = Sample::default();
        done.iter().for_each(|(sample, _)| all.join(sample));
        meter.replace(all);
        Ok(())
    };
    Ok(Contestant::new("Ondol", Role::Ours, turn).with_server(Some(server.pid())))
}
