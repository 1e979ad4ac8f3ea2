use std::path::PathBuf;

use ondol_host::l2::AdapterSpec;
use ondol_memory::{DeviceUri, parse_size};

use super::content::HEADER_BYTES;
use crate::l2::read_adapter;

/// Replay a request trace from several processes that share one pool, and check every byte that it reads
///
/// For each request the longest cached prefix of its blocks is looked up and read in place, and the blocks behind it
/// are written and stored. What a block holds follows from its key and its writer; it is verified when it comes and
/// again just before it is dropped. Requests are dealt to the instances in turn and replayed as fast as they go,
/// whatever the trace's times are. Without --socket everything runs here: the pool is memory of this process, and
/// each instance is a process of its own.
///
/// Blocks are `block_hits`, `stored`, `already_present` (another instance was faster, or it is not known whose store
/// was lost with the server), `alloc_failures` (skipped, as the pool was full) or `duplicates` (named twice in one
/// request).
/// `read_gbps` are the verified bytes over the time that all instances together spent on verifying them, `write_gbps`
/// the written bytes over the time spent on writing and storing them: how fast one instance is while it does that.
/// `evictions` are those of the whole engine meanwhile.
///
/// With --l2-adapter there is storage behind the pool, and instances wait for what it has. `l2_hits` are the blocks that were
/// brought from there, for whichever instance, `l2_stored` those that were stored there and `l2_failures` the stores, lookups and
/// loads that failed; `l2_corrupt` blocks were not what was stored, which is a miss.
///
/// A server that ends is waited for: calls that failed are repeated once it is back (`repeated_calls`). `restarts` has
/// for each time how long it was away, the objects that it had when it was back, and the `warm_hits` from then on to
/// the next time: blocks that hit and were written before it. With --restarts the pool is that of a server which is a
/// process of its own, and which is killed so many times while the instances go on.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The trace: JSON lines with timestamp, input_length, output_length and hash_ids [default: a workload made from
    /// the seed, of chats that share system prompts]
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// How many requests to replay, at most
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(super) requests: u64,
    /// How many processes replay at once
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=512))]
    pub(super) instances: u32,
    /// Length of a block, such as 65536 or 2MiB
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = block_bytes)]
    pub(super) block_bytes: usize,
    /// Where the pool lies: a size, for memory that nobody else sees, or a device such as `shm:replay?size=2GiB`, whose
    /// files are replaced and removed at the end [default: 1GiB, or less if memory is short]
    #[arg(long, value_name = "SIZE|DEVICE", value_parser = pool)]
    pub(super) pool: Option<PoolArg>,
    #[arg(long, value_name = "NAME", help = crate::serve::policy_help())]
    pub(super) policy: Option<String>,
    /// Storage backend behind the pool, as for `ondol serve`, once for each; what is stored there stays
    #[arg(long, value_name = "JSON", value_parser = read_adapter, conflicts_with = "socket")]
    pub(super) l2_adapter: Vec<AdapterSpec>,
    /// How long an instance waits for storage at each lookup [default: 10 with --l2-adapter, else not at all]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub(super) l2_wait: Option<u64>,
    /// Makes the workload and chooses which blocks are held
    #[arg(long, value_name = "NUMBER", default_value_t = 42)]
    pub(super) seed: u64,
    /// Share of the blocks read that stay in use over the next requests
    #[arg(long, value_name = "FRACTION", default_value_t = 0.25, value_parser = fraction)]
    pub(super) hold: f64,
    /// Replay one request at a time, in the order of the trace, so that the same blocks hit each time
    #[arg(long)]
    pub(super) lockstep: bool,
    /// Use the server that listens here
    #[arg(long, value_name = "PATH", conflicts_with_all = ["pool", "policy"])]
    pub(super) socket: Option<PathBuf>,
    /// Kill the server with SIGKILL so many times, at evenly spread requests, and start it again; the pool is then a
    /// file in /dev/shm, unless --pool names another device that outlives a process
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        conflicts_with = "socket",
        value_parser = clap::value_parser!(u32).range(0..=1000)
    )]
    pub(super) restarts: u32,
    /// How many seconds to wait for a server that is away before giving up
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub(super) patience: u64,
    /// Print the figures as one JSON object
    #[arg(long)]
    pub(super) json: bool,
    /// Print nothing but the figures and what went wrong
    #[arg(long, short)]
    pub(super) quiet: bool,
    /// Be one of the instances; what to do comes through standard input.
    #[arg(long = super::AS_INSTANCE, hide = true)]
    pub(super) as_instance: bool,
    /// Be the server that is killed and started again, with its state in this directory.
    #[arg(long = super::AS_SERVER, value_name = "DIR", hide = true, requires = "pool")]
    pub(super) as_server: Option<PathBuf>,
}

impl Args {
    /// How many seconds instances wait for storage at each lookup.
    pub(super) fn seconds_for_storage(&self) -> Option<u64> {
        const DEFAULT: u64 = 10;
        let default = (!self.l2_adapter.is_empty()).then_some(DEFAULT);
        self.l2_wait.or(default).filter(|seconds| *seconds > 0)
    }
}

/// What `--pool` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PoolArg {
    /// Memory of this size, wherever.
    Size(u64),
    /// This device.
    Device(DeviceUri),
}

fn block_bytes(text: &str) -> Result<usize, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    usize::try_from(bytes)
        .ok()
        .filter(|bytes| *bytes >= HEADER_BYTES)
        .ok_or_else(|| {
            format!("it is {bytes} bytes; expected at least {HEADER_BYTES}, as a block names its key and writer")
        })
}

fn pool(text: &str) -> Result<PoolArg, String> {
    if text.contains(':') {
        let device: Result<DeviceUri, ondol_memory::UriError> = text.parse();
        return device
            .map(PoolArg::Device)
            .map_err(|error| error.to_string());
    }
    match parse_size(text) {
        Ok(0) => Err("it is 0 bytes; expected more".to_owned()),
        Ok(bytes) => Ok(PoolArg::Size(bytes)),
        Err(error) => Err(format!("{error}; or a device such as shm:replay?size=2GiB")),
    }
}

fn fraction(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|fraction| (0.0..=1.0).contains(fraction))
        .ok_or_else(|| "expected a number from 0 to 1".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_a_size_or_a_device() {
        assert_eq!(pool("64MiB"), Ok(PoolArg::Size(64 << 20)));
        assert_eq!(pool("65536"), Ok(PoolArg::Size(65_536)));
        let device = "shm:x?size=1GiB";
        assert_eq!(pool(device), Ok(PoolArg::Device(device.parse().unwrap())));
        for bad in ["0", "much", "floppy:a", "12 parsecs", "memfd:"] {
            assert!(pool(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        assert_eq!(block_bytes("64"), Ok(64));
        assert!(block_bytes("63").unwrap_err().contains("63 bytes"));
        assert_eq!(fraction("1"), Ok(1.0));
        for bad in ["-0.1", "1.1", "NaN", "inf", "half"] {
            assert!(fraction(bad).is_err(), "{bad}");
        }
    }
}
