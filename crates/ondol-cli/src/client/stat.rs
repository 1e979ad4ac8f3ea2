//! `ondol stat`.

use std::io::Write;
use std::process::ExitCode;

use ondol_handler::{HandlerStats, Plugins};
use ondol_memory::format_size;
use ondol_protocol::{BackendStats, L2Stats};
use serde_json::json;

use super::{Client, ServerArgs};
use crate::output::{Table, counted, print_json, stdout};

/// Show the figures of a server: pool, page sizes, storage, clients, counters
///
/// Counters that are still at zero are left out; --json has them all.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let client = args.server.connect(Plugins::None)?;
    let stats = client.handler.stats()?;
    if args.json {
        let mut all = serde_json::to_value(&stats.engine)?;
        all["socket"] = json!(client.socket);
        all["hit_rate"] = json!(hit_rate(&stats));
        print_json(&all)?;
    } else {
        print(&client, &stats)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Objects found of those asked for; `None` while nobody has asked.
fn hit_rate(stats: &HandlerStats) -> Option<f64> {
    let [hits, misses] = ["ondol_lookup_hits_total", "ondol_lookup_misses_total"]
        .map(|name| stats.engine.counters.get(name).copied().unwrap_or(0) as f64);
    (hits + misses > 0.0).then(|| hits / (hits + misses))
}

fn print(client: &Client, stats: &HandlerStats) -> anyhow::Result<()> {
    let engine = &stats.engine;
    let pool = &engine.pool;
    let mut out = stdout();
    writeln!(
        out,
        "server    {}, policy {}",
        client.socket.display(),
        engine.policy
    )?;
    writeln!(
        out,
        "pool      {} in {} and {} free (largest run {})",
        format_size(pool.total_bytes - pool.free_bytes.min(pool.total_bytes)),
        counted(pool.regions, "region"),
        format_size(pool.free_bytes),
        format_size(pool.largest_free_extent)
    )?;
    for device in &pool.devices {
        writeln!(out, "          {device}")?;
    }
    write!(
        out,
        "objects   {}, {}",
        engine.objects,
        format_size(engine.object_bytes)
    )?;
    match engine.retired {
        0 => writeln!(out)?,
        retired => writeln!(out, ", and {retired} removed that are still being read")?,
    }
    if let Some(index) = &engine.index {
        write!(
            out,
            "index     {}, {}",
            index.objects,
            format_size(index.bytes)
        )?;
        match index.unindexed {
            0 => writeln!(out)?,
            unindexed => writeln!(out, ", and {unindexed} objects that are not in it yet")?,
        }
    }
    match hit_rate(stats) {
        Some(rate) => writeln!(out, "hit rate  {:.1} %", rate * 100.0)?,
        None => writeln!(out, "hit rate  -")?,
    }

    if !engine.classes.is_empty() {
        let heading = [
            ">PAGE SIZE",
            ">REGIONS",
            ">PAGES",
            ">FREE",
            ">GRANTED",
            ">COMMITTED",
        ];
        let mut table = Table::new(heading);
        for class in &engine.classes {
            table.row([
                format_size(class.stride),
                class.regions.to_string(),
                class.pages.to_string(),
                class.free.to_string(),
                class.granted.to_string(),
                class.committed.to_string(),
            ]);
        }
        writeln!(out)?;
        table.write(&mut out, "")?;
    }

    let mut table = Table::new([
        ">CLIENT", ">PID", ">LEASES", ">OLDEST", ">PINS", ">GRANTED", ">BYTES", ">OBJECTS",
        ">BYTES",
    ]);
    // This command is a client too, but not one that anybody asks about.
    let mut others = engine
        .clients
        .iter()
        .filter(|other| other.id != client.id)
        .peekable();
    if others.peek().is_some() {
        for other in others {
            table.row([
                other.id.to_string(),
                other.pid.to_string(),
                other.leases.to_string(),
                other.oldest_lease_ms.map_or("-".to_owned(), age),
                other.pins.to_string(),
                other.granted_pages.to_string(),
                format_size(other.granted_bytes),
                other.objects.to_string(),
                format_size(other.object_bytes),
            ]);
        }
        writeln!(out)?;
        table.write(&mut out, "")?;
    }

    if let Some(l2) = &engine.l2 {
        print_storage(&mut out, l2)?;
    }
    let mut table = Table::new(["COUNTER", ">SINCE START"]);
    let storage = engine.l2.iter().flat_map(|l2| &l2.counters);
    let counters = engine.counters.iter().chain(storage);
    for (name, value) in counters.filter(|(_, value)| **value > 0) {
        table.row([name.clone(), value.to_string()]);
    }
    writeln!(out)?;
    table.write(&mut out, "")?;
    out.flush()?;
    Ok(())
}

fn print_storage(out: &mut impl Write, l2: &L2Stats) -> anyhow::Result<()> {
    let mut table = Table::new([
        "STORAGE",
        "HEALTH",
        ">OBJECTS",
        ">BYTES",
        ">CAPACITY",
        ">TASKS",
        ">CAPTIVE",
    ]);
    for backend in &l2.backends {
        table.row([
            backend.name.clone(),
            health(backend),
            counted_so_far(backend, backend.objects.to_string()),
            counted_so_far(backend, format_size(backend.used_bytes)),
            backend.capacity_bytes.map_or("-".to_owned(), format_size),
            backend.tasks.to_string(),
            backend.captive_tasks.to_string(),
        ]);
    }
    writeln!(out)?;
    table.write(out, "")?;
    for backend in &l2.backends {
        if let Some(reason) = &backend.reason {
            writeln!(out, "          {}: {reason}", backend.name)?;
        }
    }
    writeln!(
        out,
        "          {} of at most {} wait to be stored; {} under way",
        l2.store_queue,
        l2.store_queue_limit,
        match l2.prefetches {
            1 => "1 prefetch is".to_owned(),
            many => format!("{many} prefetches are"),
        },
    )?;
    if l2.captive_bytes > 0 {
        writeln!(
            out,
            "          {} may still be touched by tasks that nobody waits for any more",
            format_size(l2.captive_bytes)
        )?;
    }
    writeln!(out)?;
    Ok(())
}

/// A time that has passed, in the largest unit of which it has at least one.
fn age(ms: u64) -> String {
    const UNITS: [(u64, &str); 4] = [
        (86_400_000, "d"),
        (3_600_000, "h"),
        (60_000, "min"),
        (1000, "s"),
    ];
    match UNITS.iter().find(|(length, _)| ms >= *length) {
        Some((length, unit)) => format!("{:.1} {unit}", ms as f64 / *length as f64),
        None => format!("{ms} ms"),
    }
}

fn health(backend: &BackendStats) -> String {
    let mut words = vec![backend.health.as_str()];
    if backend.draining {
        words.push("draining");
    }
    if backend.breaker_open {
        words.push("breaker open");
    }
    words.join(", ")
}

/// Marks a figure that grows while what an earlier server stored is being counted.
fn counted_so_far(backend: &BackendStats, figure: String) -> String {
    if backend.is_complete {
        figure
    } else {
        format!("{figure}+")
    }
}

#[cfg(test)]
mod tests {
    use super::age;

    #[test]
    fn ages_are_told_in_their_unit() {
        let told = [0, 999, 1500, 59_940, 60_000, 5_400_000, 90_000_000].map(age);
        let expected = [
            "0 ms", "999 ms", "1.5 s", "59.9 s", "1.0 min", "1.5 h", "1.0 d",
        ];
        assert_eq!(told, expected);
    }
}
