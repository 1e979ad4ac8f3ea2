//! What one turn of a contestant took: time, processor time, instructions, latencies.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use nix::time::ClockId;
use nix::unistd::Pid;
use perf_event::events::Hardware;
use perf_event::{Builder, Counter};
use serde::{Deserialize, Serialize};

use crate::stats;

/// What was measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    /// Units of work: keys, bytes, objects, as the scenario says.
    pub(crate) work: u64,
    pub(crate) elapsed: Duration,
    /// Processor time of this process, all its threads and the kernel included, or of the workers that did the work.
    pub(crate) cpu: Duration,
    /// Processor time of the server; none if there is no server.
    pub(crate) server_cpu: Option<Duration>,
    /// Instructions in user mode of the thread that did the work; none where the machine does not count them.
    pub(crate) instructions: Option<u64>,
    /// Nanoseconds of each step, if steps were timed one by one.
    pub(crate) latencies: Option<Histogram<u64>>,
}

impl Sample {
    /// Adds what was measured at the same time by somebody else.
    pub(crate) fn join(&mut self, other: &Self) {
        self.elapsed = self.elapsed.max(other.elapsed);
        self.count(other);
    }

    /// Adds what was measured at another time.
    pub(crate) fn add(&mut self, other: &Self) {
        self.elapsed += other.elapsed;
        self.count(other);
    }

    fn count(&mut self, other: &Self) {
        self.work += other.work;
        self.cpu += other.cpu;
        if let Some(cpu) = other.server_cpu {
            *self.server_cpu.get_or_insert_default() += cpu;
        }
        if let Some(instructions) = other.instructions {
            *self.instructions.get_or_insert_default() += instructions;
        }
        if let Some(latencies) = &other.latencies {
            let all = self.latencies.get_or_insert_with(stats::latencies);
            all.add(latencies).expect("histograms have the same bounds");
        }
    }
}

/// A sample as worker processes report it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Reported {
    work: u64,
    elapsed_ns: u64,
    cpu_ns: u64,
    instructions: Option<u64>,
    latencies: Option<Vec<(u64, u64)>>,
}

impl From<&Sample> for Reported {
    fn from(sample: &Sample) -> Self {
        let pairs = |latencies: &Histogram<u64>| {
            let values = latencies.iter_recorded();
            values
                .map(|value| (value.value_iterated_to(), value.count_at_value()))
                .collect()
        };
        Self {
            work: sample.work,
            elapsed_ns: sample.elapsed.as_nanos() as u64,
            cpu_ns: sample.cpu.as_nanos() as u64,
            instructions: sample.instructions,
            latencies: sample.latencies.as_ref().map(pairs),
        }
    }
}

impl From<Reported> for Sample {
    fn from(reported: Reported) -> Self {
        let histogram = |pairs: Vec<(u64, u64)>| {
            let mut latencies = stats::latencies();
            for (value, count) in pairs {
                latencies.saturating_record_n(value, count);
            }
            latencies
        };
        Self {
            work: reported.work,
            elapsed: Duration::from_nanos(reported.elapsed_ns),
            cpu: Duration::from_nanos(reported.cpu_ns),
            server_cpu: None,
            instructions: reported.instructions,
            latencies: reported.latencies.map(histogram),
        }
    }
}

/// Measures one turn. What happens outside its methods is not counted.
pub(crate) struct Meter {
    window: Duration,
    server: Option<Pid>,
    counter: Option<Counter>,
    sample: Sample,
}

impl Meter {
    /// A meter for turns of about `window`, in which the process `server` works too.
    pub(crate) fn new(window: Duration, server: Option<u32>) -> Self {
        Self {
            window,
            server: server.map(|pid| Pid::from_raw(pid.cast_signed())),
            counter: instruction_counter().ok(),
            sample: Sample::default(),
        }
    }

    /// How long a turn lasts whose work has no end of its own.
    pub(crate) fn window(&self) -> Duration {
        self.window
    }

    /// Whether less was measured than a turn lasts.
    pub(crate) fn is_open(&self) -> bool {
        self.sample.work == 0 || self.sample.elapsed < self.window
    }

    /// What was measured.
    pub(crate) fn finish(self) -> Sample {
        self.sample
    }

    /// Takes what workers have measured instead of what was measured here, but for the server's processor time.
    pub(crate) fn replace(&mut self, sample: Sample) {
        let server_cpu = self.sample.server_cpu;
        self.sample = sample;
        self.sample.server_cpu = server_cpu;
    }

    /// Measures `work` units that `job` does.
    pub(crate) fn time<T>(&mut self, work: u64, job: impl FnOnce() -> Result<T>) -> Result<T> {
        self.measure(|sample| {
            sample.work = work;
            job()
        })
    }

    /// Repeats `step`, which says how many units it did, until the window is over.
    pub(crate) fn repeat(&mut self, mut step: impl FnMut() -> Result<u64>) -> Result<()> {
        let window = self.window;
        self.measure(|sample| {
            let start = Instant::now();
            while start.elapsed() < window {
                sample.work += step()?;
            }
            Ok(())
        })
    }

    /// As [`repeat`](Self::repeat) with steps of one unit, each timed by itself. One reading of the clock, about 25 ns, is in
    /// each time.
    pub(crate) fn each(&mut self, mut step: impl FnMut() -> Result<()>) -> Result<()> {
        let window = self.window;
        let mut latencies = stats::latencies();
        self.measure(|sample| {
            let start = Instant::now();
            let mut last = start;
            while last - start < window {
                step()?;
                let now = Instant::now();
                latencies.saturating_record((now - last).as_nanos() as u64);
                last = now;
                sample.work += 1;
            }
            Ok(())
        })?;
        let measured = Sample {
            latencies: Some(latencies),
            ..Sample::default()
        };
        self.sample.add(&measured);
        Ok(())
    }

    /// Measures `job` with the processor time of this process and of the server, and the instructions of this thread.
    pub(crate) fn measure<T>(&mut self, job: impl FnOnce(&mut Sample) -> Result<T>) -> Result<T> {
        let mut sample = Sample::default();
        let server_before = self.server.map(cpu_of).transpose()?;
        if let Some(counter) = &mut self.counter {
            counter.reset()?;
            counter.enable()?;
        }
        let (cpu, start) = (cpu_of_self()?, Instant::now());
        let result = job(&mut sample);
        sample.elapsed = start.elapsed();
        sample.cpu = cpu_of_self()? - cpu;
        if let Some(counter) = &mut self.counter {
            counter.disable()?;
            sample.instructions = Some(counter.read()?);
        }
        if let (Some(server), Some(before)) = (self.server, server_before) {
            sample.server_cpu = Some(cpu_of(server)? - before);
        }
        let result = result?;
        self.sample.add(&sample);
        Ok(result)
    }
}

/// Whether this machine counts instructions, and why not.
pub(crate) fn instructions_available() -> Result<()> {
    instruction_counter()
        .map(drop)
        .context("performance counters")
}

/// Counts what the calling thread does in user mode.
fn instruction_counter() -> std::io::Result<Counter> {
    Builder::new().kind(Hardware::INSTRUCTIONS).build()
}

/// Processor time of this process, all its threads and the kernel included.
pub(crate) fn cpu_of_self() -> Result<Duration> {
    Ok(ClockId::CLOCK_PROCESS_CPUTIME_ID.now()?.into())
}

fn cpu_of(process: Pid) -> Result<Duration> {
    let read = || -> nix::Result<_> { ClockId::pid_cpu_clock_id(process)?.now() };
    Ok(read()
        .with_context(|| {
            format!("read the processor time of process {process}, which may have ended")
        })?
        .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(work: u64, millis: u64, latency: u64) -> Sample {
        let mut latencies = stats::latencies();
        latencies.record(latency).unwrap();
        Sample {
            work,
            elapsed: Duration::from_millis(millis),
            cpu: Duration::from_millis(millis),
            server_cpu: Some(Duration::from_millis(1)),
            instructions: Some(10),
            latencies: Some(latencies),
        }
    }

    #[test]
    fn what_runs_at_the_same_time_lasts_as_long_as_the_longest() {
        let mut of = sample(3, 10, 100);
        of.join(&sample(4, 30, 200));
        assert_eq!((of.work, of.elapsed), (7, Duration::from_millis(30)));
        assert_eq!(of.cpu, Duration::from_millis(40));
        let mut of = sample(3, 10, 100);
        of.add(&sample(4, 30, 200));
        assert_eq!((of.work, of.elapsed), (7, Duration::from_millis(40)));
        assert_eq!(of.latencies.unwrap().len(), 2);
        assert_eq!(of.instructions, Some(20));
    }

    #[test]
    fn a_report_of_a_worker_says_what_was_measured() {
        let sent = sample(5, 7, 1234);
        let text = serde_json::to_string(&Reported::from(&sent)).unwrap();
        let found = Sample::from(serde_json::from_str::<Reported>(&text).unwrap());
        assert_eq!(
            (found.work, found.elapsed, found.cpu),
            (5, sent.elapsed, sent.cpu)
        );
        assert_eq!(
            stats::quantile(&found.latencies.unwrap(), 0.5),
            stats::quantile(&sent.latencies.unwrap(), 0.5)
        );
    }

    #[test]
    fn work_outside_the_meter_is_not_counted() {
        let outside = Duration::from_millis(20);
        let start = Instant::now();
        let mut meter = Meter::new(Duration::from_millis(1), Some(std::process::id()));
        meter.time(2, || Ok(())).unwrap();
        std::thread::sleep(outside);
        meter.each(|| Ok(())).unwrap();
        let found = meter.finish();
        assert!(start.elapsed() - found.elapsed >= outside);
        assert_eq!(found.work - 2, found.latencies.unwrap().len());
        assert!(found.server_cpu.unwrap() >= found.cpu);
    }
}
