//! Counts the instructions of the hot paths under callgrind and compares them with the committed counts.
//!
//! Counts, unlike times, are the same on a busy machine and on an idle one: what differs from run to run is a probe of a
//! hash table. They do depend on the toolchain, which is pinned, and a little on the C library and on what the
//! processor can do, which the tolerance covers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::workspace::{self, Workspace};

/// The program with the paths, and the function of it in which instructions are counted.
const PROGRAM: &str = "ondol-instructions";
const COLLECTED: &str = "ondol_instructions::collected";

/// What goes beyond the committed count by so much of it fails.
const TOLERANCE: f64 = 0.10;
/// Short paths may change by so many instructions whatever part of them that is.
const SLACK: f64 = 5.0;

/// What to do with the counts.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Options {
    /// Write the counts as they are now to the committed file
    #[arg(long)]
    pub bless: bool,
}

/// Instructions per key, page or object, by path.
type Counts = BTreeMap<String, f64>;

/// Counts, and compares or writes.
///
/// # Errors
/// If valgrind is missing, if a path became longer than the tolerance allows, or if there is a path without a count or a
/// count without a path.
pub fn run(options: Options) -> Result<()> {
    ensure!(
        is_possible(),
        "valgrind does not run here; install it (apt-get install valgrind) to count instructions"
    );
    let workspace = Workspace::load()?;
    let counts = count(&workspace)?;
    let file = file(&workspace);
    if options.bless {
        std::fs::write(&file, write(&counts))
            .with_context(|| format!("write {}", file.display()))?;
        println!("{} paths written to {}", counts.len(), file.display());
        return Ok(());
    }
    let text =
        std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    let committed = read(&text).with_context(|| file.display().to_string())?;
    let (table, broken) = compare(&committed, &counts);
    print!("{table}");
    if !broken.is_empty() {
        bail!(
            "{}\nif that is meant, `cargo xtask instructions --bless` writes the counts anew; say why in the commit",
            broken.join("\n")
        );
    }
    Ok(())
}

/// Whether valgrind is there and counts on this architecture as the committed counts were made.
pub fn is_possible() -> bool {
    let mut valgrind = Command::new("valgrind");
    valgrind
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    cfg!(target_arch = "x86_64") && valgrind.status().is_ok_and(|status| status.success())
}

fn file(workspace: &Workspace) -> PathBuf {
    workspace.root.join("bench/instructions/counts.toml")
}

fn count(workspace: &Workspace) -> Result<Counts> {
    let mut build = workspace.cargo();
    workspace::run(build.args(["build", "--quiet", "--release", "-p", PROGRAM]))?;
    let dir = workspace.target().join("instructions");
    if dir.exists() {
        std::fs::remove_dir_all(&dir).with_context(|| format!("empty {}", dir.display()))?;
    }
    std::fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args(["--tool=callgrind", "--collect-atstart=no"])
        .arg(format!("--toggle-collect={COLLECTED}"))
        .arg(format!("--dump-after={COLLECTED}"))
        .arg(format!(
            "--callgrind-out-file={}",
            dir.join("part").display()
        ))
        .arg(workspace.target().join("release").join(PROGRAM));
    let said = workspace::read(&mut valgrind)?;
    let paths = said.lines().enumerate();
    let counts = paths.map(|(index, line)| {
        let (name, units) = line
            .split_once(' ')
            .with_context(|| format!("{PROGRAM} printed {line:?}; expected a name and a number"))?;
        let units: f64 = units.parse().with_context(|| format!("units of {name}"))?;
        // The parts are numbered from 1, in the order of the paths.
        let part = dir.join(format!("part.{}", index + 1));
        Ok((name.to_owned(), summary(&part)? as f64 / units))
    });
    counts.collect()
}

/// The instructions of one part of callgrind's output.
fn summary(part: &Path) -> Result<u64> {
    let text = std::fs::read_to_string(part).with_context(|| format!("read {}", part.display()))?;
    let summary = text.lines().find_map(|line| line.strip_prefix("summary: "));
    let summary = summary.with_context(|| format!("{} has no summary", part.display()))?;
    let count = summary.trim().parse();
    count.with_context(|| format!("summary of {}", part.display()))
}

fn write(counts: &Counts) -> String {
    let mut text = String::from(
        "# Instructions per key, page or object on the hot paths, release build, x86_64.\n\
         # Written by `cargo xtask instructions --bless`.\n",
    );
    for (name, count) in counts {
        text += &format!("\"{name}\" = {count:.1}\n");
    }
    text
}

fn read(text: &str) -> Result<Counts> {
    toml::from_str(text).context("expected a number of instructions for each path")
}

/// A table of all paths, and what is wrong with it.
fn compare(committed: &Counts, counted: &Counts) -> (String, Vec<String>) {
    let mut table = format!(
        "{:<36} {:>9} {:>9} {:>8}\n",
        "path", "committed", "counted", "change"
    );
    let mut broken = Vec::new();
    for (name, now) in counted {
        let Some(before) = committed.get(name) else {
            table += &format!("{name:<36} {:>9} {now:>9.1}\n", "-");
            broken.push(format!("{name} has no committed count"));
            continue;
        };
        let change = 100.0 * (now / before - 1.0);
        table += &format!("{name:<36} {before:>9.1} {now:>9.1} {change:>+7.1}%\n");
        if *now > before * (1.0 + TOLERANCE) + SLACK {
            broken.push(format!(
                "{name} takes {now:.1} instructions; expected at most {:.0} % more than {before:.1}",
                100.0 * TOLERANCE
            ));
        }
    }
    for name in committed.keys().filter(|name| !counted.contains_key(*name)) {
        broken.push(format!(
            "{name} has a committed count and is no path any more"
        ));
    }
    (table, broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts<const N: usize>(counts: [(&str, f64); N]) -> Counts {
        counts.map(|(name, count)| (name.to_owned(), count)).into()
    }

    #[test]
    fn a_path_that_became_longer_is_named() {
        let committed = counts([("long", 1000.0), ("short", 10.0)]);
        let broken =
            |long, short| compare(&committed, &counts([("long", long), ("short", short)])).1;
        assert!(broken(1040.0, 14.0).is_empty());
        assert!(broken(100.0, 1.0).is_empty());
        let said = broken(1200.0, 10.0);
        assert_eq!(said.len(), 1);
        assert!(
            said[0].contains("long takes 1200.0") && said[0].contains("1000.0"),
            "{said:?}"
        );
        assert_eq!(broken(1000.0, 30.0).len(), 1);
    }

    #[test]
    fn paths_and_counts_must_be_the_same_ones() {
        let (_, broken) = compare(&counts([("gone", 1.0)]), &counts([("new", 1.0)]));
        assert_eq!(broken.len(), 2);
        assert!(
            broken[0].starts_with("new ") && broken[1].starts_with("gone "),
            "{broken:?}"
        );
    }

    #[test]
    fn what_is_written_is_read() {
        let counts = counts([("index.look.256", 12.5), ("policy.s3-fifo.use", 50.0)]);
        assert_eq!(read(&write(&counts)).unwrap(), counts);
    }

    #[test]
    fn a_part_without_a_summary_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let part = dir.path().join("part.1");
        std::fs::write(
            &part,
            "# callgrind format\nevents: Ir\nsummary: 4451223\n\n",
        )
        .unwrap();
        assert_eq!(summary(&part).unwrap(), 4_451_223);
        std::fs::write(&part, "# callgrind format\n").unwrap();
        let error = summary(&part).unwrap_err().to_string();
        assert!(error.contains("no summary"), "{error}");
    }
}
