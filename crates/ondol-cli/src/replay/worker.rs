//! One instance: the process that replays its share of the requests.

use std::collections::{HashSet, VecDeque};
use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ondol_handler::{
    ControlError, Handler, HandlerConfig, HandlerError, Key, Object, PageMut, Stored,
};
use rustix::process::{Signal, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::content::{self, Block, Writer};
use super::messages::{Said, Task};
use super::patience::{Patience, Stopped};
use super::tally::Tally;
use crate::workload::mix;

/// For how many requests a held block is held.
const HOLD_FOR: u64 = 8;

/// What is stored with one message, at most.
const BATCH_BLOCKS: usize = 64;
const BATCH_BYTES: usize = 16 << 20;

/// How often progress is told.
const TELL_EVERY: Duration = Duration::from_millis(50);

/// Damaged blocks that are told; all are counted.
const TOLD_DAMAGES: u64 = 5;

/// Runs as an instance of the parent at the other end of standard input and output.
pub(super) fn serve() -> Result<ExitCode> {
    // A replay that is killed must not leave instances behind that nobody knows of.
    set_parent_process_death_signal(Some(Signal::KILL)).context("cannot follow the parent")?;
    // A terminal sends these to the parent too, which then ends its instances one request later.
    for signal in [SIGINT, SIGHUP, SIGTERM] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))
            .context("cannot catch signals")?;
    }
    let mut lines = io::stdin().lock().lines();
    let task = lines.next().context("no task came")??;
    drop(lines);
    let task: Task = serde_json::from_str(&task).context("the task is malformed")?;
    let turns = Turns::of_stdin();
    let outcome = connect(&task).and_then(|handler| {
        say(&Said::Ready)?;
        let mut worker = Worker::new(handler, &task, turns);
        worker.replay(&mut say)?;
        Ok(worker.tally)
    });
    match outcome {
        Ok(tally) => {
            say(&Said::Report(Box::new(tally)))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            say(&Said::Failed(format!("{error:#}")))?;
            Ok(ExitCode::FAILURE)
        }
    }
}

fn connect(task: &Task) -> Result<Handler> {
    let mut config = HandlerConfig::default();
    config.stock_bytes = task.stock_bytes;
    config.l2_wait = task.l2_wait.map(Duration::from_secs);
    config.object_bytes = u64::try_from(task.block_bytes).ok();
    Ok(Handler::connect(&task.socket, config)?)
}

fn say(said: &Said) -> Result<()> {
    let mut line = serde_json::to_vec(said)?;
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line)?;
    out.flush()?;
    Ok(())
}

/// What the parent lets this instance do.
#[derive(Debug)]
struct Turns {
    given: Receiver<()>,
    stop: Arc<AtomicBool>,
}

impl Turns {
    fn of_stdin() -> Self {
        let (turn, given) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let at_end = Arc::clone(&stop);
        thread::spawn(move || {
            let lines = io::stdin().lock().lines();
            let _ = lines.map_while(Result::ok).try_for_each(|_| turn.send(()));
            // With the pipe everything ends, turns that were given and not taken too.
            at_end.store(true, Ordering::Release);
        });
        Self { given, stop }
    }

    /// Waits for the next turn; whether it has come.
    fn wait(&self) -> bool {
        self.given.recv().is_ok() && !self.is_over()
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

/// A block that was found and is still leased.
#[derive(Debug)]
struct InUse {
    block: Block,
    object: Object,
    /// The request at whose start it is dropped.
    until: u64,
}

/// Blocks that are written and not yet stored.
#[derive(Debug, Default)]
struct Batch {
    blocks: Vec<Block>,
    pages: Vec<PageMut>,
}

#[derive(Debug)]
struct Worker<'a> {
    handler: Handler,
    first_incarnation: u64,
    task: &'a Task,
    writer: Writer,
    turns: Turns,
    patience: Patience,
    batch_blocks: usize,
    /// Oldest first.
    held: VecDeque<InUse>,
    tally: Tally,
    /// What to tell the parent about damaged blocks.
    damages: Vec<String>,
}

impl<'a> Worker<'a> {
    fn new(handler: Handler, task: &'a Task, turns: Turns) -> Self {
        let writer = Writer {
            instance: task.instance,
            pid: std::process::id(),
            nonce: task.nonce,
        };
        Self {
            first_incarnation: handler.incarnation().unwrap_or_default(),
            handler,
            task,
            writer,
            turns,
            patience: Patience::new(Duration::from_secs(task.patience)),
            batch_blocks: (BATCH_BYTES / task.block_bytes).clamp(1, BATCH_BLOCKS),
            held: VecDeque::new(),
            tally: Tally::default(),
            damages: Vec::new(),
        }
    }

    /// Replays until the requests or the turns come to an end.
    fn replay(&mut self, say: &mut dyn FnMut(&Said) -> Result<()>) -> Result<()> {
        let task = self.task;
        let mut told = Instant::now();
        for (index, ids) in task.requests.iter().enumerate() {
            let may_go = if task.paced || index == 0 {
                self.turns.wait()
            } else {
                !self.turns.is_over()
            };
            if !may_go {
                break;
            }
            match self.request(ids) {
                Err(error) if error.is::<Stopped>() => break,
                done => done?,
            }
            if task.paced || told.elapsed() >= TELL_EVERY {
                say(&Said::Done(self.tally.requests))?;
                told = Instant::now();
            }
            self.tell_damages(say)?;
        }
        self.release_held();
        self.tell_damages(say)?;
        self.handler.close();
        Ok(())
    }

    /// Of the server that this instance was with last.
    fn incarnation(&self) -> u64 {
        self.handler.incarnation().unwrap_or_default()
    }

    /// Waits a little after a call that can be repeated.
    fn wait_out(&mut self, error: HandlerError) -> Result<()> {
        let turns = &self.turns;
        self.patience.wait(error, || turns.is_over())?;
        self.tally.repeated_calls += 1;
        Ok(())
    }

    fn tell_damages(&mut self, say: &mut dyn FnMut(&Said) -> Result<()>) -> Result<()> {
        self.damages
            .drain(..)
            .try_for_each(|damage| say(&Said::Damage(damage)))
    }

    fn request(&mut self, ids: &[u64]) -> Result<()> {
        let blocks = ids.iter().map(|id| self.block(*id));
        let blocks = blocks.collect::<Result<Vec<_>>>()?;
        let keys: Vec<Key> = blocks.iter().map(|block| block.key.clone()).collect();
        let now = self.tally.requests;
        while self.held.front().is_some_and(|held| held.until <= now) {
            let due = self.held.pop_front();
            due.into_iter().for_each(|due| self.release(due));
        }
        let objects = self.match_prefix(&keys)?;
        let hits = objects.len();
        self.tally.requests += 1;
        self.tally.blocks += blocks.len() as u64;
        self.tally.block_hits += hits as u64;
        self.tally.requests_fully_served += u64::from(hits == blocks.len());

        let incarnation = self.incarnation();
        if incarnation != self.first_incarnation {
            let is_warm =
                |object: &&Object| content::is_older(object, self.writer.nonce, incarnation);
            let warm = objects.iter().filter(is_warm).count() as u64;
            *self.tally.warm_hits.entry(incarnation).or_default() += warm;
        }
        let mut in_use = Vec::with_capacity(hits);
        for (block, object) in blocks.iter().zip(objects) {
            self.tally.bytes_read += object.len() as u64;
            if self.check(block, &object, "when it came") {
                in_use.push(InUse {
                    block: block.clone(),
                    object,
                    until: now + HOLD_FOR,
                });
            }
        }
        let stored = self.store(&blocks[hits..], &mut in_use);
        for (index, in_use) in in_use.into_iter().enumerate() {
            if self.is_held(now, index) {
                self.held.push_back(in_use);
            } else {
                self.release(in_use);
            }
        }
        stored
    }

    fn block(&self, id: u64) -> Result<Block> {
        let Task {
            workload,
            block_bytes,
            ..
        } = self.task;
        let key = Key::text(&format!("replay/{workload}/{block_bytes}/{id}"))?;
        Ok(Block { id, key })
    }

    fn is_held(&self, request: u64, index: usize) -> bool {
        let place = [u64::from(self.task.instance), request, index as u64];
        let drawn = place
            .iter()
            .fold(self.task.seed, |drawn, place| mix(drawn ^ mix(*place)));
        ((drawn >> 11) as f64 / (1_u64 << 53) as f64) < self.task.hold
    }

    fn match_prefix(&mut self, keys: &[Key]) -> Result<Vec<Object>> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        loop {
            let Self { handler, tally, .. } = self;
            let (found, _) = tally
                .match_prefix
                .time_success(|| handler.match_prefix(keys));
            match found {
                Ok(found) => {
                    self.patience.restore();
                    return Ok(found);
                }
                Err(HandlerError::TooManyLeases { .. }) if !self.held.is_empty() => {
                    self.release_held();
                }
                Err(error) => self.wait_out(error)?,
            }
        }
    }

    /// Whether the block holds what was written into it.
    fn check(&mut self, block: &Block, object: &Object, when: &str) -> bool {
        let tally = &mut self.tally;
        let (checked, elapsed) = tally.verify.time(|| content::verify(object, block));
        tally.bytes_verified += object.len() as u64;
        tally.verifying += elapsed;
        let Err(damage) = checked else { return true };
        tally.verify_failures += 1;
        if tally.verify_failures <= TOLD_DAMAGES {
            let region = object.region().region_id;
            let offset = object.offset_in_region();
            self.damages.push(format!(
                "block {} at offset {offset} of region {region} was damaged {when}: {damage}",
                block.key
            ));
        }
        false
    }

    /// Verifies a block once more and drops it.
    fn release(&mut self, in_use: InUse) {
        let InUse { block, object, .. } = in_use;
        self.check(&block, &object, "before it was dropped");
    }

    fn release_held(&mut self) {
        while let Some(held) = self.held.pop_front() {
            self.release(held);
        }
    }

    /// Writes and stores blocks. If the pool is full, everything in use is dropped first. What a server that went away
    /// may not have stored is written and stored again.
    fn store(&mut self, blocks: &[Block], in_use: &mut Vec<InUse>) -> Result<()> {
        let mut named = HashSet::with_capacity(blocks.len());
        let mut todo: VecDeque<Block> = blocks.to_vec().into();
        todo.retain(|block| named.insert(block.id));
        self.tally.duplicates += (blocks.len() - todo.len()) as u64;
        let mut batch = Batch::default();
        let done = self.store_all(&mut todo, &mut batch, in_use);
        // Those that were left are no part of the figures.
        self.tally.blocks -= (todo.len() + batch.blocks.len()) as u64;
        done
    }

    fn store_all(
        &mut self,
        todo: &mut VecDeque<Block>,
        batch: &mut Batch,
        in_use: &mut Vec<InUse>,
    ) -> Result<()> {
        loop {
            let Some(block) = todo.pop_front() else {
                self.flush(batch, todo)?;
                if todo.is_empty() {
                    return Ok(());
                }
                continue;
            };
            let page = match self.make_room(batch, todo, in_use) {
                Ok(page) => page,
                Err(error) => {
                    todo.push_front(block);
                    return Err(error);
                }
            };
            let Some(mut page) = page else {
                self.tally.alloc_failures += 1;
                continue;
            };
            let start = Instant::now();
            let writer = self.writer.under(self.incarnation());
            content::fill(&mut page, &block, writer);
            self.tally.writing += start.elapsed();
            self.tally.bytes_written += page.len() as u64;
            batch.blocks.push(block);
            batch.pages.push(page);
            if batch.pages.len() >= self.batch_blocks {
                self.flush(batch, todo)?;
            }
        }
    }

    /// A page; none if the pool is full even after everything in use was dropped.
    fn make_room(
        &mut self,
        batch: &mut Batch,
        todo: &mut VecDeque<Block>,
        in_use: &mut Vec<InUse>,
    ) -> Result<Option<PageMut>> {
        let page = self.alloc()?;
        if page.is_some() {
            return Ok(page);
        }
        // What is written can be evicted once it is stored, what is read once it is dropped.
        self.flush(batch, todo)?;
        self.release_held();
        in_use.drain(..).for_each(|in_use| self.release(in_use));
        self.alloc()
    }

    /// A page, or none if the pool is full.
    fn alloc(&mut self) -> Result<Option<PageMut>> {
        loop {
            let Self {
                handler,
                tally,
                task,
                ..
            } = self;
            let (page, _) = tally.alloc.time_success(|| handler.alloc(task.block_bytes));
            match page {
                Ok(page) => {
                    self.patience.restore();
                    return Ok(Some(page));
                }
                Err(HandlerError::Control(
                    ControlError::PoolFull(_) | ControlError::ShareExceeded { .. },
                )) => return Ok(None),
                Err(error) => self.wait_out(error).context("no page for a block")?,
            }
        }
    }

    /// Stores what is written. If it is not known whether it is stored, or a new start of the server does not know
    /// the pages, its blocks are to be written again.
    fn flush(&mut self, batch: &mut Batch, todo: &mut VecDeque<Block>) -> Result<()> {
        let Batch { blocks, pages } = std::mem::take(batch);
        if blocks.is_empty() {
            return Ok(());
        }
        let keys: Vec<Key> = blocks.iter().map(|block| block.key.clone()).collect();
        let Self { handler, tally, .. } = self;
        let (stored, elapsed) = tally
            .store
            .time_success(|| handler.batch_store(&keys, pages));
        tally.writing += elapsed;
        let stored = match stored {
            Ok(stored) => stored,
            Err(error) => {
                blocks
                    .into_iter()
                    .rev()
                    .for_each(|block| todo.push_front(block));
                if matches!(error, HandlerError::ForeignPage) {
                    self.tally.repeated_calls += 1;
                    return Ok(());
                }
                return self.wait_out(error).context("blocks were not stored");
            }
        };
        self.patience.restore();
        for (stored, key) in stored.into_iter().zip(&keys) {
            match stored.with_context(|| format!("block {key}"))? {
                Stored::New => self.tally.stored += 1,
                Stored::AlreadyPresent => self.tally.already_present += 1,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ondol_engine::{Engine, EngineConfig};
    use ondol_handler::Plugins;

    use super::*;

    const BLOCK_BYTES: usize = 4096;

    fn engine(pool: &str) -> Arc<Engine> {
        let uri = format!("memfd:?size={pool}").parse().unwrap();
        Engine::open(EngineConfig::new([uri])).unwrap()
    }

    fn handler(engine: &Arc<Engine>) -> Handler {
        let engine = Arc::clone(engine);
        let mut config = HandlerConfig::default();
        config.plugins = Plugins::None;
        config.stock_bytes = 1;
        Handler::embedded(move || engine.attach(None, [0; 16]), config).unwrap()
    }

    fn task(requests: Vec<Vec<u64>>) -> Task {
        Task {
            socket: "/".into(),
            instance: 0,
            workload: "test".to_owned(),
            nonce: 1,
            seed: 1,
            block_bytes: BLOCK_BYTES,
            stock_bytes: 0,
            hold: 0.5,
            paced: false,
            patience: 60,
            l2_wait: None,
            requests,
        }
    }

    fn replay(engine: &Arc<Engine>, task: &Task) -> (Tally, Vec<Said>) {
        let (turn, given) = channel();
        turn.send(()).unwrap();
        let turns = Turns {
            given,
            stop: Arc::default(),
        };
        // What ends after the first turn; kept, one turn is enough for all requests.
        let _turn = (!task.paced).then_some(turn);
        let mut worker = Worker::new(handler(engine), task, turns);
        let mut said = Vec::new();
        let mut say = |saying: &Said| {
            let saying = serde_json::to_vec(saying)?;
            said.push(serde_json::from_slice(&saying)?);
            Ok(())
        };
        worker.replay(&mut say).unwrap();
        (worker.tally, said)
    }

    fn assert_adds_up(tally: &Tally) {
        let Tally {
            block_hits,
            stored,
            already_present,
            alloc_failures,
            ..
        } = *tally;
        assert_eq!(
            tally.blocks,
            block_hits + stored + already_present + alloc_failures
        );
        let bytes = BLOCK_BYTES as u64;
        assert_eq!(tally.bytes_read, block_hits * bytes);
        assert_eq!(tally.bytes_written, (stored + already_present) * bytes);
        assert_eq!(tally.bytes_verified, 2 * tally.bytes_read);
    }

    #[test]
    fn the_second_time_all_blocks_are_there() {
        let requests: Vec<Vec<u64>> = (0..40).map(|first| (first..first + 20).collect()).collect();
        let task = task([requests.clone(), requests].concat());
        let (tally, _) = replay(&engine("16MiB"), &task);
        assert_adds_up(&tally);
        assert_eq!((tally.requests, tally.blocks), (80, 1600));
        // The first block of each of the first 40 requests but one is there, and so are all that follow but one.
        assert_eq!(tally.stored, 59);
        assert_eq!(tally.requests_fully_served, 40);
        assert_eq!((tally.verify_failures, tally.alloc_failures), (0, 0));
        assert_eq!(tally.match_prefix.count(), 80);
        assert_eq!(tally.verify.count(), 2 * tally.block_hits);
        assert_eq!(tally.alloc.count(), 59);
    }

    #[test]
    fn held_blocks_give_way_when_the_pool_is_full() {
        // Each request alone fills the pool: nothing that is held can stay.
        let engine = engine("2MiB");
        let pages = (2 << 20) / BLOCK_BYTES as u64;
        let requests = (0..20).map(|turn| {
            let shared = turn % 2;
            let own = 1_000 * (turn + 1);
            (shared..shared + 8).chain(own..own + pages - 8).collect()
        });
        let mut task = task(requests.collect());
        task.hold = 1.0;
        let (tally, _) = replay(&engine, &task);
        assert_adds_up(&tally);
        assert_eq!(tally.verify_failures, 0);
        assert_eq!(tally.alloc_failures, 0, "{tally:?}");
        assert!(tally.block_hits > 0);
        assert!(engine.stats().counters["ondol_evictions_total"] > 0);
    }

    #[test]
    fn what_cannot_be_stored_is_skipped_and_counted() {
        let engine = engine("2MiB");
        // Others hold every page, each as much as its share.
        let mut others = Vec::new();
        let mut pages = Vec::new();
        loop {
            let other = handler(&engine);
            let before = pages.len();
            while let Ok(page) = other.alloc(BLOCK_BYTES) {
                pages.push(page);
            }
            if pages.len() == before {
                break;
            }
            others.push(other);
        }
        let task = task(vec![vec![1, 2]]);
        let (tally, _) = replay(&engine, &task);
        assert_adds_up(&tally);
        assert_eq!((tally.requests, tally.alloc_failures), (1, 2));
        drop((pages, others));
        assert_eq!(replay(&engine, &task).0.stored, 2);
    }

    #[test]
    fn damaged_blocks_are_counted_and_told() {
        let engine = engine("4MiB");
        let task = task(vec![(0..10).collect()]);
        let handler = handler(&engine);
        let worker = Worker::new(self::handler(&engine), &task, Turns::of_stdin());
        for id in 0..8 {
            let block = worker.block(id).unwrap();
            let mut page = handler.alloc(BLOCK_BYTES).unwrap();
            content::fill(&mut page, &block, worker.writer);
            if id > 0 {
                page[500 * id as usize] ^= 1;
            }
            handler.store(&block.key, page).unwrap();
        }
        let (tally, said) = replay(&engine, &task);
        assert_eq!((tally.block_hits, tally.verify_failures), (8, 7));
        let told: Vec<_> = said
            .into_iter()
            .filter_map(|said| match said {
                Said::Damage(text) => Some(text),
                _ => None,
            })
            .collect();
        assert_eq!(told.len() as u64, TOLD_DAMAGES);
        assert!(
            told[0].contains("replay/test/4096/1") && told[0].contains("byte 500 "),
            "{told:?}"
        );
    }

    #[test]
    fn without_a_turn_nothing_more_is_done() {
        let mut task = task(vec![vec![1]; 10]);
        task.paced = true;
        let (tally, said) = replay(&engine("4MiB"), &task);
        assert_eq!(tally.requests, 1);
        assert!(matches!(said[..], [Said::Done(1)]), "{said:?}");
    }
}
