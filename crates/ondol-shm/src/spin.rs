//! When a thread that waits for another one looks again instead of going to sleep.
//!
//! To wake a thread that sleeps on an idle core costs about as much as the kernel needs to bring that core back: tens of
//! microseconds on many machines, more than most answers of a server take. So a wait begins with a short while in which
//! the thread looks again and again. That is not for long, happens only while the machine has cores to spare and on
//! half of them at most, ends as soon as others want the core, and is given up where it has not helped of late.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The longest that a wait looks before it sleeps: about what a wake costs, so that who waits in vain pays at most twice.
const LIMIT: Duration = Duration::from_micros(50);

/// A core that was offered and came back no earlier was wanted by others: an offer that nobody takes costs well below a
/// microsecond.
const TAKEN: Duration = Duration::from_micros(2);

/// The most waits in a row that sleep at once after looking has not helped.
const LONGEST_PAUSE: u32 = 64;

/// What one waiter has learned: whether what it waits for tends to come soon.
///
/// Whoever waits by it for nothing that comes, an idle connection for one, looks for 50 µs once and then sleeps.
#[derive(Debug)]
pub struct Spin {
    /// Waits that go to sleep at once before looking is tried again.
    pause: u32,
    /// How many there are after the next time that looking does not help.
    next_pause: u32,
}

impl Spin {
    /// A waiter that knows nothing yet.
    pub const fn new() -> Self {
        Self {
            pause: 0,
            next_pause: 1,
        }
    }

    /// Calls `look` again and again until it finds something, for a short while; not at all where that would not pay.
    /// With `None` it is time to sleep until it is there. The core is offered to others between two looks.
    pub fn until<T>(&mut self, look: impl FnMut() -> Option<T>) -> Option<T> {
        self.until_on(Machine::this(), look)
    }

    fn until_on<T>(&mut self, machine: &Machine, look: impl FnMut() -> Option<T>) -> Option<T> {
        if self.pause > 0 {
            self.pause -= 1;
            return None;
        }
        let place = machine.place()?;
        let (found, paid) = keep_looking(look);
        drop(place);
        if paid {
            self.next_pause = 1;
        } else {
            self.pause = self.next_pause;
            self.next_pause = (self.next_pause * 2).min(LONGEST_PAUSE);
        }
        found
    }
}

impl Default for Spin {
    fn default() -> Self {
        Self::new()
    }
}

/// What was found, and whether that was better than to sleep: it is not where others wanted the core meanwhile, since what
/// is waited for may have been among them.
fn keep_looking<T>(mut look: impl FnMut() -> Option<T>) -> (Option<T>, bool) {
    let begun = Instant::now();
    let mut now = begun;
    let mut is_core_wanted = false;
    loop {
        let found = look();
        if found.is_some() || is_core_wanted || now - begun >= LIMIT {
            let paid = found.is_some() && !is_core_wanted;
            return (found, paid);
        }
        let offered = Instant::now();
        thread::yield_now();
        now = Instant::now();
        is_core_wanted = now - offered > TAKEN;
    }
}

/// How much looking the machine bears.
struct Machine {
    cores: usize,
    /// Threads of this process that are looking now.
    looking: AtomicUsize,
    /// `/proc/loadavg`, which tells how many threads of the whole machine want a core.
    load: Option<File>,
    begun: Instant,
    /// When the load is read next, in milliseconds since `begun`.
    next_reading: AtomicU64,
    is_busy: AtomicBool,
}

/// The right to keep a core busy; given back when dropped.
struct Place<'a>(&'a AtomicUsize);

impl Machine {
    /// How often the load is read while there is room, in milliseconds.
    const READ_EVERY: u64 = 1;
    /// For how many milliseconds nobody looks after more threads wanted a core than there are cores: a thread that does not
    /// sleep is served no worse for it, and others that share its core are.
    const BUSY_FOR: u64 = 20;

    fn this() -> &'static Self {
        static THIS: OnceLock<Machine> = OnceLock::new();
        THIS.get_or_init(|| {
            let cores = thread::available_parallelism().map_or(1, usize::from);
            Self::new(cores, File::open("/proc/loadavg").ok())
        })
    }

    fn new(cores: usize, load: Option<File>) -> Self {
        Self {
            cores,
            looking: AtomicUsize::new(0),
            load,
            begun: Instant::now(),
            next_reading: AtomicU64::new(0),
            is_busy: AtomicBool::new(true),
        }
    }

    /// Half of the cores are for those that are waited for; on a single one nothing can come while somebody looks.
    fn place(&self) -> Option<Place<'_>> {
        if self.cores < 2 || self.is_busy() {
            return None;
        }
        let one_more = |looking| (looking < self.cores / 2).then_some(looking + 1);
        self.looking
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .ok()
            .map(|_| Place(&self.looking))
    }

    fn is_busy(&self) -> bool {
        let now = self.begun.elapsed().as_millis() as u64;
        let due = self.next_reading.load(Ordering::Relaxed);
        let is_ours = now >= due
            && self
                .next_reading
                .compare_exchange(
                    due,
                    now + Self::READ_EVERY,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                )
                .is_ok();
        if is_ours {
            // Where it is not told, others may want every core.
            let is_busy = self.wanting().is_none_or(|wanting| wanting > self.cores);
            self.is_busy.store(is_busy, Ordering::Relaxed);
            if is_busy {
                self.next_reading
                    .store(now + Self::BUSY_FOR, Ordering::Relaxed);
            }
        }
        self.is_busy.load(Ordering::Relaxed)
    }

    /// How many threads of the machine want a core, the one that asks included.
    fn wanting(&self) -> Option<usize> {
        let mut text = [0; 128];
        let len = self.load.as_ref()?.read_at(&mut text, 0).ok()?;
        wanting(std::str::from_utf8(&text[..len]).ok()?)
    }
}

/// The first number of the fourth field of `/proc/loadavg` (proc_loadavg(5)): `0.20 0.18 0.12 1/80 11206`.
fn wanting(load: &str) -> Option<usize> {
    let (wanting, _) = load.split(' ').nth(3)?.split_once('/')?;
    wanting.parse().ok()
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// A machine on which so many threads want a core.
    fn machine(cores: usize, wanting: usize) -> Machine {
        let mut load = tempfile::tempfile().unwrap();
        writeln!(load, "0.20 0.18 0.12 {wanting}/80 11206").unwrap();
        Machine::new(cores, Some(load))
    }

    #[test]
    fn who_waits_in_vain_looks_less_and_less_often_until_it_helps_again() {
        let machine = machine(2, 1);
        let mut spin = Spin::new();
        let mut looked = 0;
        for _ in 0..1000 {
            let mut is_first = true;
            let found: Option<()> = spin.until_on(&machine, || {
                looked += u32::from(std::mem::take(&mut is_first));
                None
            });
            assert!(found.is_none());
        }
        assert!(
            (7..=25).contains(&looked),
            "looked in {looked} of 1000 waits"
        );
        let helped = (0..=LONGEST_PAUSE).any(|_| spin.until_on(&machine, || Some(())).is_some());
        assert!(helped, "it never tried again");
        let again = spin.until_on(&machine, || Some(()));
        assert!(again.is_some(), "it has not learned that it helps");
    }

    #[test]
    fn no_more_threads_look_than_half_of_the_cores() {
        let machine = machine(4, 1);
        let first = machine.place().unwrap();
        let second = machine.place().unwrap();
        assert!(machine.place().is_none());
        drop(first);
        let third = machine.place().unwrap();
        drop((second, third));
        assert_eq!(machine.looking.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn nobody_looks_on_a_machine_that_is_busy_or_has_one_core_or_does_not_tell() {
        assert!(machine(2, 2).place().is_some());
        assert!(machine(2, 3).place().is_none());
        assert!(machine(1, 1).place().is_none());
        assert!(Machine::new(64, None).place().is_none());
    }

    #[test]
    fn the_load_of_this_machine_can_be_read() {
        let wanting = Machine::this().wanting();
        assert!(wanting.is_some_and(|wanting| wanting >= 1), "{wanting:?}");
    }

    #[test]
    fn what_comes_while_it_looks_is_found() {
        let mut looks = 0;
        let (found, _) = keep_looking(|| {
            looks += 1;
            (looks == 2).then_some(looks)
        });
        assert_eq!(found, Some(2));
    }
}
