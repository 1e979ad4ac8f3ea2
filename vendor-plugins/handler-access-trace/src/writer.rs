use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::Flush;
use crate::line::Call;

/// Calls that may wait.
const CAPACITY: usize = 4096;
/// Memory that waiting calls may keep.
const MAX_WEIGHT: usize = 16 << 20;
/// What is gathered before it is written.
const BUFFER: usize = 64 << 10;

/// A thread that writes lines, behind a bounded queue.
pub(crate) struct Writer {
    jobs: Option<Sender<Job>>,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) written: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) errors: AtomicU64,
    /// What the calls that wait weigh.
    weight: AtomicUsize,
    /// Set by whoever wants a flush; a flag, because there may be no room for a job.
    must_flush: AtomicBool,
}

enum Job {
    Line(Call),
    Wake,
}

struct Ink<W> {
    sink: W,
    state: Arc<State>,
    buffer: Vec<u8>,
    lines: u64,
    /// The sink ends in half a line.
    is_torn: bool,
}

impl Writer {
    pub(crate) fn start<W: Write + Send + 'static>(sink: W, flush: Flush) -> io::Result<Self> {
        let (jobs, queue) = bounded(CAPACITY);
        let state = Arc::new(State::default());
        let ink = Ink {
            sink,
            state: Arc::clone(&state),
            buffer: Vec::with_capacity(BUFFER),
            lines: 0,
            is_torn: false,
        };
        let thread = std::thread::Builder::new().name("access-trace".into());
        let thread = thread.spawn(move || ink.run(&queue, flush))?;
        Ok(Self {
            jobs: Some(jobs),
            state,
            thread: Some(thread),
        })
    }

    /// Queues a call, or counts it as dropped; never waits.
    pub(crate) fn offer(&self, call: Call) {
        let Some(jobs) = &self.jobs else { return };
        let weight = call.weight();
        let waiting = self.state.weight.fetch_add(weight, Ordering::Relaxed);
        if waiting + weight > MAX_WEIGHT || jobs.try_send(Job::Line(call)).is_err() {
            self.state.weight.fetch_sub(weight, Ordering::Relaxed);
            self.state.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Asks for a flush; does not wait for it.
    pub(crate) fn request_flush(&self) {
        self.state.must_flush.store(true, Ordering::Release);
        if let Some(jobs) = &self.jobs {
            // A full queue needs no waking.
            let _ = jobs.try_send(Job::Wake);
        }
    }

    pub(crate) fn state(&self) -> &State {
        &self.state
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // It panics if the sink does; the panic's message is out by now.
            let _ = thread.join();
        }
    }
}

impl<W: Write> Ink<W> {
    fn run(mut self, queue: &Receiver<Job>, flush: Flush) {
        let mut flushed = Instant::now();
        loop {
            let job = match flush {
                Flush::Interval(interval) if !self.buffer.is_empty() => {
                    queue.recv_deadline(flushed + interval)
                }
                _ => queue.recv().map_err(RecvTimeoutError::from),
            };
            // The first line after a pause waits a whole interval, not what is left of one long gone.
            if self.buffer.is_empty() {
                flushed = Instant::now();
            }
            let is_due = match job {
                Ok(Job::Line(call)) => {
                    self.add(&call);
                    flush == Flush::Line
                }
                Ok(Job::Wake) => false,
                Err(RecvTimeoutError::Timeout) => true,
                Err(RecvTimeoutError::Disconnected) => {
                    self.flush();
                    return;
                }
            };
            let is_due = is_due
                || matches!(flush, Flush::Interval(interval) if flushed.elapsed() >= interval);
            // What was queued before the wish is to be written with it: the wish waits for an empty queue.
            let is_wished = queue.is_empty() && self.state.must_flush.swap(false, Ordering::AcqRel);
            if is_due || is_wished {
                self.flush();
                flushed = Instant::now();
            }
        }
    }

    fn add(&mut self, call: &Call) {
        self.state
            .weight
            .fetch_sub(call.weight(), Ordering::Relaxed);
        let whole = self.buffer.len();
        if call.write(&mut self.buffer).is_err() {
            self.buffer.truncate(whole);
            self.state.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.lines += 1;
        if self.buffer.len() >= BUFFER {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        if self.is_torn {
            self.buffer.insert(0, b'\n');
        }
        let (done, result) = write_whole(&mut self.sink, &self.buffer);
        match result {
            Ok(()) => {
                self.is_torn = false;
                self.state.written.fetch_add(self.lines, Ordering::Relaxed);
            }
            Err(error) => {
                // Nothing new reached the sink: it is as torn as it was.
                if done > 0 {
                    self.is_torn = self.buffer[done - 1] != b'\n';
                }
                let whole = self.buffer[..done]
                    .iter()
                    .filter(|byte| **byte == b'\n')
                    .count() as u64;
                let whole = whole.min(self.lines);
                self.state.written.fetch_add(whole, Ordering::Relaxed);
                self.state
                    .dropped
                    .fetch_add(self.lines - whole, Ordering::Relaxed);
                if self.state.errors.fetch_add(1, Ordering::Relaxed) == 0 {
                    tracing::warn!(
                        %error,
                        lost = self.lines - whole,
                        "could not write the access trace; later failures are counted only"
                    );
                }
            }
        }
        self.buffer.clear();
        self.lines = 0;
    }
}

/// How much of `bytes` was written, and whether that is all.
fn write_whole(sink: &mut impl Write, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut done = 0;
    while done < bytes.len() {
        match sink.write(&bytes[done..]) {
            Ok(0) => return (done, Err(ErrorKind::WriteZero.into())),
            Ok(written) => done += written,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return (done, Err(error)),
        }
    }
    (done, sink.flush())
}
