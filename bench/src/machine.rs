//! Facts of the machine and of the programs, without which figures say nothing.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::thread::{CpuSet, sched_getaffinity};
use serde::Serialize;

use crate::meter;

/// What the figures depend on.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Machine {
    /// Date and time of the start, UTC.
    pub(crate) date: String,
    pub(crate) commit: String,
    pub(crate) build: String,
    pub(crate) rustc: String,
    pub(crate) processor: String,
    /// Processors that are there, and those on which this process may run; the benchmark pins nothing.
    pub(crate) cores: String,
    pub(crate) governor: String,
    pub(crate) caches: Vec<Cache>,
    pub(crate) memory: String,
    pub(crate) huge_pages: String,
    pub(crate) kernel: String,
    /// Load averages at the start: what else the machine does.
    pub(crate) load: String,
    /// Whether instructions are counted.
    pub(crate) instructions: String,
}

/// One cache of the first processor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Cache {
    pub(crate) level: u32,
    pub(crate) kind: String,
    pub(crate) bytes: u64,
}

impl Machine {
    /// This machine, now.
    pub(crate) fn look() -> Self {
        let cpuinfo = read("/proc/cpuinfo");
        let mut processor = field(&cpuinfo, "model name").unwrap_or(std::env::consts::ARCH.into());
        if field(&cpuinfo, "flags")
            .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor"))
        {
            processor += ", a virtual machine";
        }
        Self {
            date: date(),
            commit: commit(),
            build: if cfg!(debug_assertions) {
                "debug: figures mean nothing".into()
            } else {
                "release".into()
            },
            rustc: said("rustc", &["--version"]).unwrap_or_else(|| "unknown".into()),
            processor,
            cores: cores(),
            governor: or_unknown("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            caches: caches(Path::new("/sys/devices/system/cpu/cpu0/cache")),
            memory: memory(),
            huge_pages: huge_pages(),
            kernel: or_unknown("/proc/sys/kernel/osrelease"),
            load: or_unknown("/proc/loadavg"),
            instructions: match meter::instructions_available() {
                Ok(()) => "counted in user mode".into(),
                Err(error) => format!("not available ({error:#})"),
            },
        }
    }

    /// Bytes of the largest cache; nothing if the system does not say.
    pub(crate) fn largest_cache(&self) -> u64 {
        self.caches
            .iter()
            .map(|cache| cache.bytes)
            .max()
            .unwrap_or(0)
    }

    /// All facts, for a table.
    pub(crate) fn facts(&self) -> Vec<(&'static str, String)> {
        let caches: Vec<_> = self
            .caches
            .iter()
            .map(|cache| format!("L{} {} {}", cache.level, cache.kind, mib(cache.bytes)))
            .collect();
        vec![
            ("build", format!("{}, {}", self.build, self.rustc)),
            ("processor", self.processor.clone()),
            ("cores", self.cores.clone()),
            ("frequency governor", self.governor.clone()),
            ("caches", caches.join(", ")),
            ("memory", self.memory.clone()),
            ("huge pages", self.huge_pages.clone()),
            ("kernel", self.kernel.clone()),
            ("load at the start", self.load.clone()),
            ("instructions", self.instructions.clone()),
        ]
    }
}

/// Bytes for a reader.
pub(crate) fn mib(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 10 << 30 => format!("{} GiB", bytes >> 30),
        bytes if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        bytes if bytes >= 1 << 10 => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

fn or_unknown(path: &str) -> String {
    match read(path) {
        text if text.is_empty() => "unknown".into(),
        text => text,
    }
}

/// The value of `name: value` in a file of such lines.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        (found.trim() == name).then(|| value.trim().to_owned())
    })
}

fn cores() -> String {
    let all = read("/sys/devices/system/cpu/online");
    match sched_getaffinity(None) {
        Ok(set) => {
            let allowed: Vec<_> = (0..CpuSet::MAX_CPU)
                .filter(|cpu| set.is_set(*cpu))
                .map(|cpu| cpu.to_string())
                .collect();
            format!(
                "{} online ({all}); may run on {}, nothing is pinned",
                range_len(&all),
                allowed.join(",")
            )
        }
        Err(error) => format!("{all} online; affinity unknown: {error}"),
    }
}

/// How many numbers a list such as `0-3,8` has.
fn range_len(list: &str) -> usize {
    let len = |part: &str| match part.split_once('-') {
        Some((from, to)) => {
            let (from, to): (usize, usize) = (from.parse().ok()?, to.parse().ok()?);
            Some(to.saturating_sub(from) + 1)
        }
        None => part.parse::<usize>().ok().map(|_| 1),
    };
    list.split(',').filter_map(len).sum()
}

fn caches(dir: &Path) -> Vec<Cache> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut caches: Vec<_> = entries
        .filter_map(|entry| {
            let of = |name| read(entry.path().join(name));
            Some(Cache {
                level: of("level").parse().ok()?,
                kind: of("type").to_lowercase(),
                bytes: kib(&of("size"))?,
            })
        })
        .collect();
    caches.sort_by(|one, other| (one.level, &one.kind).cmp(&(other.level, &other.kind)));
    caches
}

/// Bytes of a size such as `48K`.
fn kib(text: &str) -> Option<u64> {
    let number = text.strip_suffix('K')?.parse::<u64>().ok()?;
    Some(number << 10)
}

fn memory() -> String {
    let info = read("/proc/meminfo");
    let of = |name| {
        let value = field(&info, name)?;
        value
            .strip_suffix(" kB")?
            .parse::<u64>()
            .ok()
            .map(|kib| mib(kib << 10))
    };
    let or = |value: Option<String>| value.unwrap_or_else(|| "unknown".into());
    format!(
        "{}, {} available",
        or(of("MemTotal")),
        or(of("MemAvailable"))
    )
}

fn huge_pages() -> String {
    let transparent = |name: &str| {
        let text = read(format!("/sys/kernel/mm/transparent_hugepage/{name}"));
        let chosen = text
            .split('[')
            .nth(1)
            .and_then(|rest| rest.split(']').next());
        chosen.unwrap_or("unknown").to_owned()
    };
    format!(
        "transparent: {}, in shared memory: {}; reserved: {}",
        transparent("enabled"),
        transparent("shmem_enabled"),
        read("/proc/sys/vm/nr_hugepages")
    )
}

fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// The commit of the checkout in which the benchmark is run.
fn commit() -> String {
    let Some(commit) = said("git", &["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".into();
    };
    match said("git", &["status", "--porcelain", "--untracked-files=no"]) {
        Some(changes) if changes.is_empty() => commit,
        _ => commit + " with changes",
    }
}

fn date() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = since.map_or(0, |since| since.as_secs());
    let (year, month, day) = civil(seconds / 86_400);
    let minutes = seconds % 86_400 / 60;
    format!(
        "{year}-{month:02}-{day:02} {:02}:{:02} UTC",
        minutes / 60,
        minutes % 60
    )
}

/// Year, month and day of a number of days since 1970, by the `civil_from_days` of Howard Hinnant's "chrono-Compatible
/// Low-Level Date Algorithms".
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_dates() {
        for (days, date) in [
            (0, (1970, 1, 1)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (20_819, (2027, 1, 1)),
        ] {
            assert_eq!(civil(days), date);
        }
    }

    #[test]
    fn lists_of_processors_are_counted() {
        for (list, count) in [("0", 1), ("0-3", 4), ("0-1,4,8-11", 7), ("", 0)] {
            assert_eq!(range_len(list), count, "{list:?}");
        }
    }

    #[test]
    fn caches_are_read_from_smallest_to_largest() {
        let dir = tempfile::tempdir().unwrap();
        for (name, level, kind, size) in [
            ("index0", "3", "Unified", "32768K"),
            ("index1", "1", "Data", "48K"),
            ("index2", "1", "Instruction", "32K"),
            ("index3", "x", "Broken", "1K"),
        ] {
            let index = dir.path().join(name);
            fs::create_dir(&index).unwrap();
            for (file, text) in [("level", level), ("type", kind), ("size", size)] {
                fs::write(index.join(file), format!("{text}\n")).unwrap();
            }
        }
        let found = caches(dir.path());
        let sizes: Vec<_> = found.iter().map(|cache| cache.bytes).collect();
        assert_eq!(sizes, [48 << 10, 32 << 10, 32 << 20]);
        assert_eq!(found[0].kind, "data");
    }

    #[test]
    fn this_machine_is_described() {
        let machine = Machine::look();
        assert!(
            machine.facts().iter().all(|(_, value)| !value.is_empty()),
            "{machine:?}"
        );
    }
}
