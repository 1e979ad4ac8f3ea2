//! Processes that do a part of the work: clients of a server besides this one.

use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ondol::{Handler, HandlerConfig};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use crate::daemon::own_program;
use crate::keys::{self, Batches, Random};
use crate::meter::{Meter, Reported, Sample};
use crate::{memory, server};

/// The hidden command that makes this program a worker.
pub(crate) const WORKER: &str = "worker";

/// What a worker is to do for so many milliseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Find and lease objects in batches. Work is keys.
    Lookup {
        space: String,
        objects: u64,
        batch: usize,
    },
    /// Find, look into and release objects one by one, at random. Work is objects.
    View { space: String, objects: u64 },
    /// Copy objects out, at random. Work is bytes.
    CopyOut {
        space: String,
        objects: u64,
        bytes: usize,
    },
    /// Store objects under new keys and delete them again, a round at a time; the deleting does not count. Work is bytes.
    Store {
        space: String,
        objects: u64,
        bytes: usize,
    },
    /// Store objects under keys that go round, far more than the pool has room for, so that each store evicts. Work is objects.
    Churn {
        space: String,
        objects: u64,
        bytes: usize,
    },
    /// Read objects at random of which some have been evicted. Work is reads.
    Read { space: String, objects: u64 },
}

#[derive(Debug, Serialize, Deserialize)]
struct Request {
    order: Order,
    window_ms: u64,
}

/// What a turn of a worker found.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    sample: Reported,
    /// Reads that found an object.
    pub(crate) hits: u64,
}

/// A worker process.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts a worker as a client of the server at `socket`.
    pub(crate) fn start(socket: &Path) -> Result<Self> {
        let mut child = Command::new(own_program()?)
            .arg(WORKER)
            .arg(socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start a worker")?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        Ok(Self {
            child,
            input: input.context("a worker's input")?,
            output: BufReader::new(output.context("a worker's output")?),
        })
    }

    /// Lets it begin; [`finish`](Self::finish) waits for it.
    pub(crate) fn begin(&mut self, order: &Order, window: Duration) -> Result<()> {
        let request = Request {
            order: order.clone(),
            window_ms: window.as_millis().max(1) as u64,
        };
        let line = serde_json::to_string(&request)? + "\n";
        self.input
            .write_all(line.as_bytes())
            .context("a worker has gone")
    }

    /// What it did.
    pub(crate) fn finish(&mut self) -> Result<(Sample, u64)> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line.is_empty() {
            bail!("a worker has gone; what it said is above");
        }
        let outcome: Outcome = serde_json::from_str(&line)?;
        Ok((outcome.sample.into(), outcome.hits))
    }

    /// Lets all work on their orders at the same time.
    pub(crate) fn all(
        workers: &mut [(Self, Order)],
        window: Duration,
    ) -> Result<Vec<(Sample, u64)>> {
        for (worker, order) in &mut *workers {
            worker.begin(order, window)?;
        }
        workers
            .iter_mut()
            .map(|(worker, _)| worker.finish())
            .collect()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Works until the input ends.
pub(crate) fn run(socket: &Path) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let handler = server::connect(socket, HandlerConfig::default())?;
    let mut desk = Desk {
        handler,
        space: (String::new(), 0),
        keys: Vec::new(),
        source: Vec::new(),
        random: Random::new(u64::from(std::process::id())),
        next: 0,
    };
    for line in stdin().lock().lines() {
        let request: Request = serde_json::from_str(&line?)?;
        let mut meter = Meter::new(Duration::from_millis(request.window_ms), None);
        let hits = desk.work(&request.order, &mut meter)?;
        let outcome = Outcome {
            sample: Reported::from(&meter.finish()),
            hits,
        };
        let mut out = stdout().lock();
        serde_json::to_writer(&mut out, &outcome)?;
        out.write_all(b"\n")?;
        out.flush()?;
    }
    Ok(())
}

/// What a worker keeps from turn to turn.
struct Desk {
    handler: Handler,
    space: (String, u64),
    keys: Vec<ondol::Key>,
    source: Vec<u8>,
    random: Random,
    /// Number of the next store.
    next: usize,
}

impl Desk {
    fn prepare(&mut self, space: &str, objects: u64) -> Result<()> {
        if self.space != (space.to_owned(), objects) {
            self.keys = keys::shuffled(space, objects)?;
            self.space = (space.to_owned(), objects);
            self.next = 0;
        }
        Ok(())
    }

    fn any(&mut self) -> &ondol::Key {
        &self.keys[self.random.below(self.keys.len() as u64) as usize]
    }

    fn work(&mut self, order: &Order, meter: &mut Meter) -> Result<u64> {
        match order {
            Order::Lookup {
                space,
                objects,
                batch,
            } => {
                self.prepare(space, *objects)?;
                let mut batches = Batches::of(&self.keys);
                meter.repeat(|| {
                    let keys = batches.next(*batch);
                    let found = self.handler.batch_retrieve(keys)?;
                    Ok(found.iter().flatten().count() as u64)
                })?;
            }
            Order::View { space, objects } => {
                self.prepare(space, *objects)?;
                meter.each(|| {
                    let key = self.any().clone();
                    let object = self.handler.retrieve(&key)?.context("an object is gone")?;
                    std::hint::black_box(object.first());
                    Ok(())
                })?;
            }
            Order::CopyOut {
                space,
                objects,
                bytes,
            } => {
                self.prepare(space, *objects)?;
                let mut target = memory::private(*bytes)?;
                meter.repeat(|| {
                    let key = self.any().clone();
                    let object = self.handler.retrieve(&key)?.context("an object is gone")?;
                    object.copy_to(&mut target);
                    Ok(*bytes as u64)
                })?;
            }
            Order::Store {
                space,
                objects,
                bytes,
            } => {
                self.prepare(space, *objects)?;
                self.source.resize(*bytes, 7);
                let Self {
                    handler,
                    keys,
                    source,
                    ..
                } = self;
                while meter.is_open() {
                    meter.time((keys.len() * bytes) as u64, || {
                        for key in &*keys {
                            let mut page = handler.alloc(*bytes)?;
                            page.write_from(source);
                            handler.store(key, page)?;
                        }
                        Ok(())
                    })?;
                    handler.batch_delete(keys)?;
                }
            }
            Order::Churn {
                space,
                objects,
                bytes,
            } => {
                self.prepare(space, *objects)?;
                self.source.resize(*bytes, 7);
                meter.repeat(|| {
                    let mut page = self.handler.alloc(*bytes)?;
                    page.write_from(&self.source);
                    self.handler
                        .store(&self.keys[self.next % self.keys.len()], page)?;
                    self.next += 1;
                    Ok(1)
                })?;
            }
            Order::Read { space, objects } => {
                self.prepare(space, *objects)?;
                let mut hits = 0;
                meter.each(|| {
                    let key = self.any().clone();
                    if let Some(object) = self.handler.retrieve(&key)? {
                        std::hint::black_box(object.first());
                        hits += 1;
                    }
                    Ok(())
                })?;
                return Ok(hits);
            }
        }
        Ok(0)
    }
}
