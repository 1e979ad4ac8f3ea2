//! What `ondol serve` was asked to do.

use std::net::SocketAddr;
use std::num::{IntErrorKind, NonZeroUsize};
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use ondol_engine::Verify;
use ondol_memory::{DeviceUri, Durability, REGION_ALIGNMENT, format_size, parse_size};
use ondol_server::StateDir;
use ondol_server::http::HttpError;

use super::{Layers, group, l2};
use crate::log::LogArgs;

/// Serve a pool of memory to the processes of this host
///
/// Everything has a default. Each setting can stand in the configuration file (TOML; its key is the flag with
/// underscores), in the environment (`ONDOL_` and the key in capitals; several values separated by commas) and on the
/// command line; the later one of these is heard.
///
/// The server stops on SIGTERM, SIGINT and SIGHUP. The files of its pool stay where they are, and the next server with
/// the same state directory and devices finds the objects again (not those of memfd:, which go with the server).
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Configuration file [env: ONDOL_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Memory to use, once for each device [default: shm:ondol, 1GiB of /dev/shm or half of what is free there]
    ///
    /// A size such as 2GiB (a file of that size in /dev/shm), or a device such as shm:NAME?size=2GiB,
    /// memfd:?size=2GiB, hugetlb:/PATH?size=2GiB, dir:/PATH?size=2GiB or dax:/dev/dax0.0.
    #[arg(long, value_name = "SIZE|DEVICE")]
    pool: Vec<String>,
    /// What a change survives before it is acknowledged: `none` (the end of the server) or `fsync` (that of the machine,
    /// on devices that survive it; the state directory must lie on a disk then) [default: none]
    #[arg(long, value_name = "HOW")]
    durability: Option<String>,
    /// Begin with an empty pool: what an earlier server left is given up
    #[arg(long)]
    fresh: bool,
    /// Whether objects found at a start are compared with their checksums before they are first served: checksum or
    /// never [default: checksum]
    #[arg(long, value_name = "HOW")]
    verify: Option<String>,
    /// Length of a file of the log [default: 64MiB]
    #[arg(long, value_name = "SIZE", hide = true)]
    log_segment: Option<String>,
    /// How much log there is before it is replaced by a checkpoint [default: 64MiB, or the last checkpoint's size]
    #[arg(long, value_name = "SIZE", hide = true)]
    log_compact: Option<String>,
    #[arg(long, value_name = "NAME", help = policy_help())]
    policy: Option<String>,
    /// Bytes that a page size takes from the pool at once, a multiple of 2MiB [default: a 64th of the pool]
    #[arg(long, value_name = "SIZE")]
    region_size: Option<String>,
    /// Bytes of unwritten pages that one client may hold; one page it may hold always [default: a quarter of the pool]
    #[arg(long, value_name = "SIZE")]
    share_limit: Option<String>,
    /// Mode of the pool's files, octal; whoever may write them may scribble [default: 0600, with --group 0660]
    #[arg(long, value_name = "MODE")]
    pool_mode: Option<String>,
    /// Directory of the lock, the secret, the socket, the log and the lease books; one server owns it
    ///
    /// With --durability fsync it belongs on a disk.
    /// By default $XDG_RUNTIME_DIR/ondol, else /run/ondol for root and /tmp/ondol-UID for others.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<String>,
    /// Unix socket to serve [default: ondol.sock in the state directory]
    #[arg(long, value_name = "PATH")]
    socket: Option<String>,
    /// Mode of the socket, octal; who may write it may connect [default: 0600, with --group 0660]
    #[arg(long, value_name = "MODE")]
    socket_mode: Option<String>,
    /// Group that the socket and the pool's files are given to, for clients of other users
    #[arg(long, value_name = "NAME|GID")]
    group: Option<String>,
    /// User to let in besides root and the server's own, once for each
    #[arg(long, value_name = "UID")]
    allow_uid: Vec<String>,
    /// Clients at once; each handler of a process is one [default: 1024]
    #[arg(long, value_name = "COUNT")]
    max_clients: Option<String>,
    /// Connections at once, over all clients [default: 1024]
    #[arg(long, value_name = "COUNT")]
    max_connections: Option<String>,
    /// Connections at once of one process [default: 256]
    #[arg(long, value_name = "COUNT")]
    max_connections_per_process: Option<String>,
    /// Bytes that messages of all connections may take together while they are being received [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    frame_budget: Option<String>,
    /// Where to serve /healthz and /metrics: an address of loopback with its port, or `off`
    /// [default: 127.0.0.1:9855, or nowhere if that is in use]
    #[arg(long, value_name = "ADDRESS|off")]
    http: Option<String>,
    #[command(flatten)]
    l2: l2::Args,
}

/// Where health and figures are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Http {
    /// Nowhere.
    Off,
    /// There, or the server does not start.
    At(SocketAddr),
    /// At the default address if that is free.
    Default,
}

/// The settings, read.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) devices: Vec<DeviceUri>,
    pub(super) durability: Durability,
    pub(super) fresh: bool,
    pub(super) verify: Verify,
    pub(super) log_segment: Option<u64>,
    pub(super) log_compact: Option<u64>,
    pub(super) policy: Option<String>,
    pub(super) region_bytes: Option<u64>,
    pub(super) share_limit: Option<u64>,
    pub(super) pool_mode: Option<u32>,
    pub(super) state_dir: PathBuf,
    pub(super) socket: Option<PathBuf>,
    pub(super) socket_mode: Option<u32>,
    pub(super) group: Option<u32>,
    pub(super) allowed_uids: Vec<u32>,
    pub(super) max_clients: Option<usize>,
    pub(super) max_connections: Option<usize>,
    pub(super) max_connections_per_process: Option<usize>,
    pub(super) frame_budget: Option<u64>,
    pub(super) http: Http,
    pub(super) l2: l2::Settings,
}

impl Args {
    /// Everything that was set, by anybody.
    pub(super) fn layers(&self, log: &LogArgs) -> anyhow::Result<Layers> {
        let from_environment = || {
            let file = std::env::var_os("ONDOL_CONFIG").filter(|file| !file.is_empty());
            file.map(PathBuf::from)
        };
        let mut layers = Layers::default();
        if let Some(file) = self.config.clone().or_else(from_environment) {
            layers = layers.with_file(&file)?;
        }
        let layers = layers.with_environment()?;
        let layers = layers
            .with_flag("pool", &self.pool)
            .with_flag("durability", &self.durability)
            .with_flag("fresh", &self.fresh.then(|| "true".to_owned()))
            .with_flag("verify", &self.verify)
            .with_flag("log_segment", &self.log_segment)
            .with_flag("log_compact", &self.log_compact)
            .with_flag("policy", &self.policy)
            .with_flag("region_size", &self.region_size)
            .with_flag("share_limit", &self.share_limit)
            .with_flag("pool_mode", &self.pool_mode)
            .with_flag("state_dir", &self.state_dir)
            .with_flag("socket", &self.socket)
            .with_flag("socket_mode", &self.socket_mode)
            .with_flag("group", &self.group)
            .with_flag("allow_uid", &self.allow_uid)
            .with_flag("max_clients", &self.max_clients)
            .with_flag("max_connections", &self.max_connections)
            .with_flag(
                "max_connections_per_process",
                &self.max_connections_per_process,
            )
            .with_flag("frame_budget", &self.frame_budget)
            .with_flag("http", &self.http);
        Ok(self.l2.add_to(layers).with_log(log))
    }
}

impl Config {
    /// Reads the settings, all of them before anything is touched.
    pub(super) fn read(layers: &Layers) -> anyhow::Result<Self> {
        let devices = match layers.get("pool") {
            Some(given) => given.parse_all(DeviceUri::parse_pool_arg)?,
            None => vec![DeviceUri::default_shm(None)],
        };
        let uids = |given: &super::Given| given.parse_all(read_uid);
        Ok(Self {
            devices,
            durability: layers
                .parse("durability", str::parse::<Durability>)?
                .unwrap_or(Durability::None),
            fresh: layers.parse("fresh", read_switch)?.unwrap_or(false),
            verify: layers
                .parse("verify", read_verify)?
                .unwrap_or(Verify::Checksum),
            log_segment: layers.parse("log_segment", parse_size)?,
            log_compact: layers.parse("log_compact", parse_size)?,
            policy: layers.parse("policy", read_policy)?,
            region_bytes: layers.parse("region_size", read_region_size)?,
            share_limit: layers.parse("share_limit", parse_size)?,
            pool_mode: layers.parse("pool_mode", read_mode)?,
            state_dir: layers
                .parse("state_dir", read_path)?
                .unwrap_or_else(StateDir::default_path),
            socket: layers.parse("socket", read_path)?,
            socket_mode: layers.parse("socket_mode", read_mode)?,
            group: layers.parse("group", group::find)?,
            allowed_uids: layers
                .get("allow_uid")
                .map(uids)
                .transpose()?
                .unwrap_or_default(),
            max_clients: layers.parse("max_clients", read_count)?,
            max_connections: layers.parse("max_connections", read_count)?,
            max_connections_per_process: layers.parse("max_connections_per_process", read_count)?,
            frame_budget: layers.parse("frame_budget", parse_size)?,
            http: layers.parse("http", read_http)?.unwrap_or(Http::Default),
            l2: l2::Settings::read(layers)?,
        })
    }
}

/// What `--policy` takes, as the catalogue has it.
pub(crate) fn policy_help() -> String {
    let names: Vec<_> = ondol_catalog::policies()
        .iter()
        .map(|policy| policy.name)
        .collect();
    format!(
        "Which objects leave a full pool first: {} [default: {}]",
        names.join(", "),
        ondol_engine::DEFAULT_POLICY
    )
}

fn read_policy(name: &str) -> anyhow::Result<String> {
    let policies = ondol_catalog::policies();
    if policies.iter().any(|policy| policy.name == name) {
        return Ok(name.to_owned());
    }
    let known: Vec<_> = policies
        .iter()
        .map(|policy| format!("{} ({})", policy.name, policy.summary.trim_end_matches('.')))
        .collect();
    bail!(
        "eviction policy is {name:?}; expected one of: {}",
        known.join(", ")
    )
}

fn read_region_size(text: &str) -> anyhow::Result<u64> {
    let size = parse_size(text)?;
    ensure!(
        size > 0 && size.is_multiple_of(REGION_ALIGNMENT),
        "region size is {text}; expected a multiple of {}",
        format_size(REGION_ALIGNMENT)
    );
    Ok(size)
}

pub(crate) fn read_path(text: &str) -> anyhow::Result<PathBuf> {
    ensure!(!text.is_empty(), "the path is empty");
    Ok(text.into())
}

fn read_mode(text: &str) -> anyhow::Result<u32> {
    let mode = u32::from_str_radix(text.trim_start_matches("0o"), 8).ok();
    mode.filter(|mode| mode & !0o777 == 0)
        .with_context(|| format!("mode is {text:?}; expected an octal number from 0600 to 0777"))
}

fn read_switch(text: &str) -> anyhow::Result<bool> {
    match text {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => bail!("the switch is {text:?}; expected true or false"),
    }
}

fn read_verify(text: &str) -> anyhow::Result<Verify> {
    match text {
        "checksum" => Ok(Verify::Checksum),
        "never" => Ok(Verify::Never),
        _ => bail!("verification is {text:?}; expected checksum or never"),
    }
}

fn read_http(text: &str) -> anyhow::Result<Http> {
    if text == "off" {
        return Ok(Http::Off);
    }
    let address: SocketAddr = text.parse().ok().with_context(|| {
        format!("address is {text:?}; expected a number and a port such as 127.0.0.1:9855, or off")
    })?;
    if !address.ip().is_loopback() {
        return Err(HttpError::NotLoopback(address).into());
    }
    Ok(Http::At(address))
}

fn read_uid(text: &str) -> anyhow::Result<u32> {
    text.parse().with_context(|| {
        format!("user is {text:?}; expected a user's number, as `id -u NAME` prints it")
    })
}

pub(super) fn read_count(text: &str) -> anyhow::Result<usize> {
    match text.parse::<NonZeroUsize>() {
        Ok(count) => Ok(count.get()),
        Err(error) if *error.kind() == IntErrorKind::Zero => {
            bail!("count is 0, so that nobody could connect; expected at least 1")
        }
        Err(_) => bail!("count is {text:?}; expected a whole number"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(key: &'static str, value: &str) -> String {
        let layers = Layers::default().with_flag(key, [&value.to_owned()]);
        match Config::read(&layers) {
            Ok(config) => format!("{config:?}"),
            Err(error) => format!("{error:#}"),
        }
    }

    #[test]
    fn without_a_setting_there_is_a_default_pool() {
        let config = Config::read(&Layers::default()).unwrap();
        assert_eq!(config.devices, [DeviceUri::default_shm(None)]);
        assert_eq!(config.state_dir, StateDir::default_path());
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_reason() {
        for (key, value, said) in [
            (
                "pool",
                "disk:/x",
                "--pool: device \"disk:/x\" has kind \"disk\"",
            ),
            (
                "policy",
                "mru",
                "--policy: eviction policy is \"mru\"; expected one of: arc (",
            ),
            (
                "region_size",
                "1MiB",
                "--region-size: region size is 1MiB; expected a multiple of 2 MiB",
            ),
            ("share_limit", "5XB", "--share-limit: size \"5XB\" has unit"),
            (
                "socket_mode",
                "rw",
                "--socket-mode: mode is \"rw\"; expected an octal number",
            ),
            ("socket_mode", "4777", "--socket-mode: mode is \"4777\""),
            (
                "allow_uid",
                "root",
                "--allow-uid: user is \"root\"; expected a user's number",
            ),
            ("max_clients", "0", "--max-clients: count is 0"),
            (
                "durability",
                "always",
                "--durability: durability is \"always\"; expected",
            ),
            (
                "fresh",
                "maybe",
                "--fresh: the switch is \"maybe\"; expected true",
            ),
            (
                "verify",
                "always",
                "--verify: verification is \"always\"; expected checksum or never",
            ),
            ("pool_mode", "999", "--pool-mode: mode is \"999\""),
            (
                "group",
                "no such group",
                "--group: group is \"no such group\"; expected",
            ),
            ("http", "9855", "--http: address is \"9855\"; expected"),
            (
                "http",
                "0.0.0.0:9855",
                "--http: the address of health and figures is 0.0.0.0:9855; expected one of loopback",
            ),
            ("frame_budget", "much", "--frame-budget: size \"much\""),
            (
                "max_connections",
                "-1",
                "--max-connections: count is \"-1\"; expected a whole number",
            ),
            ("state_dir", "", "--state-dir: the path is empty"),
        ] {
            let found = read(key, value);
            assert!(found.starts_with(said), "{found}");
        }
        for (key, value, found) in [
            ("socket_mode", "0660", "socket_mode: Some(432)"),
            ("pool_mode", "640", "pool_mode: Some(416)"),
            ("durability", "fsync", "durability: Fsync"),
            ("fresh", "1", "fresh: true"),
            ("fresh", "off", "fresh: false"),
            ("verify", "never", "verify: Never"),
            ("group", "root", "group: Some(0)"),
            ("group", "4711", "group: Some(4711)"),
            ("http", "off", "http: Off"),
            ("http", "[::1]:0", "http: At([::1]:0)"),
            ("max_connections_per_process", "3", "per_process: Some(3)"),
            ("frame_budget", "1MiB", "frame_budget: Some(1048576)"),
        ] {
            let config = read(key, value);
            assert!(config.contains(found), "{found:?} in {config}");
        }
    }
}
