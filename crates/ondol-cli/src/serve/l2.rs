//! What was asked for of the storage behind the pool.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use ondol_engine::L2Config;
use ondol_host::l2::AdapterSpec;
use ondol_memory::parse_size;
use ondol_tiering::{StoreOverflow, StorePolicy};

use super::Layers;
use crate::l2::{config_of, read_adapters};

/// The longest time that a setting may name, in seconds.
const LONGEST: f64 = 86_400.0;

/// Storage behind the pool.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Storage")]
#[group(skip)]
pub(super) struct Args {
    /// Storage backend behind the pool, as JSON such as {"type":"fs","base_path":"/mnt/kv"}, once for each; the first is
    /// asked first
    ///
    /// Objects are stored in every backend after they are committed, and come back from there when they have left the
    /// pool. `ondol plugins` lists the types that are linked in with their parameters, `ondol l2 check` tries one. With
    /// "required":false a backend that cannot be opened is left out. The variable holds one object or a list.
    #[arg(long, value_name = "JSON")]
    l2_adapter: Vec<String>,
    /// What becomes of an object in the pool once it is stored: `default` (it stays) or `skip_l1` (it goes, unless somebody
    /// reads it) [default: default]
    #[arg(long, value_name = "NAME")]
    l2_store_policy: Option<String>,
    /// What becomes of an object that was loaded once it was read: `default` (it goes first) or `retain` (it stays as
    /// any other) [default: default]
    #[arg(long, value_name = "NAME")]
    l2_prefetch_policy: Option<String>,
    /// Uses of an object before it is stored; with 2, what is used once does not wear the disk [default: 1]
    #[arg(long, value_name = "COUNT")]
    l2_admit_after: Option<String>,
    /// What happens when more objects wait to be stored than may: `wait` (they are found in the pool later) or
    /// `drop_oldest` [default: wait]
    #[arg(long, value_name = "HOW")]
    l2_store_overflow: Option<String>,
    /// Bytes of objects that are being stored at once, over all backends; an eighth of the pool at most [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    l2_store_in_flight: Option<String>,
    /// Bytes of pages that are being loaded at once, over all backends; an eighth of the pool at most [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    l2_load_in_flight: Option<String>,
    /// How long one store may take [default: 60]
    #[arg(long, value_name = "SECONDS")]
    l2_store_timeout: Option<String>,
    /// How long one lookup may take [default: 5]
    #[arg(long, value_name = "SECONDS")]
    l2_lookup_timeout: Option<String>,
    /// How long one load may take [default: 60]
    #[arg(long, value_name = "SECONDS")]
    l2_load_timeout: Option<String>,
    /// How long a stop waits for what is still to be stored, and for backends to end [default: 5]
    #[arg(long, value_name = "SECONDS")]
    l2_close_timeout: Option<String>,
}

/// The settings, read.
#[derive(Debug)]
pub(super) struct Settings {
    adapters: Vec<AdapterSpec>,
    store_policy: Option<StorePolicy>,
    retain_prefetched: Option<bool>,
    admit_after: Option<u32>,
    store_overflow: Option<StoreOverflow>,
    store_in_flight: Option<u64>,
    load_in_flight: Option<u64>,
    store_timeout: Option<Duration>,
    lookup_timeout: Option<Duration>,
    load_timeout: Option<Duration>,
    close_timeout: Option<Duration>,
}

impl Args {
    pub(super) fn add_to(&self, layers: Layers) -> Layers {
        layers
            .with_flag("l2_adapter", &self.l2_adapter)
            .with_flag("l2_store_policy", &self.l2_store_policy)
            .with_flag("l2_prefetch_policy", &self.l2_prefetch_policy)
            .with_flag("l2_admit_after", &self.l2_admit_after)
            .with_flag("l2_store_overflow", &self.l2_store_overflow)
            .with_flag("l2_store_in_flight", &self.l2_store_in_flight)
            .with_flag("l2_load_in_flight", &self.l2_load_in_flight)
            .with_flag("l2_store_timeout", &self.l2_store_timeout)
            .with_flag("l2_lookup_timeout", &self.l2_lookup_timeout)
            .with_flag("l2_load_timeout", &self.l2_load_timeout)
            .with_flag("l2_close_timeout", &self.l2_close_timeout)
    }
}

impl Settings {
    pub(super) fn read(layers: &Layers) -> anyhow::Result<Self> {
        let adapters = layers.get("l2_adapter");
        let adapters = adapters.map(|given| given.parse_all(read_adapters));
        let adapters = adapters.transpose()?.unwrap_or_default();
        Ok(Self {
            adapters: adapters.into_iter().flatten().collect(),
            store_policy: layers.parse("l2_store_policy", read_store_policy)?,
            retain_prefetched: layers.parse("l2_prefetch_policy", read_retain)?,
            admit_after: layers.parse("l2_admit_after", read_uses)?,
            store_overflow: layers.parse("l2_store_overflow", read_overflow)?,
            store_in_flight: layers.parse("l2_store_in_flight", parse_size)?,
            load_in_flight: layers.parse("l2_load_in_flight", parse_size)?,
            store_timeout: layers.parse("l2_store_timeout", read_seconds)?,
            lookup_timeout: layers.parse("l2_lookup_timeout", read_seconds)?,
            load_timeout: layers.parse("l2_load_timeout", read_seconds)?,
            close_timeout: layers.parse("l2_close_timeout", read_seconds)?,
        })
    }

    /// The storage that an engine is to open, if there is any.
    pub(super) fn config(self) -> Option<L2Config> {
        if self.adapters.is_empty() {
            return None;
        }
        let mut config = config_of(self.adapters);
        let tiering = &mut config.tiering;
        let set = |to: &mut Duration, given: Option<Duration>| *to = given.unwrap_or(*to);
        set(&mut tiering.store_timeout, self.store_timeout);
        set(&mut tiering.lookup_timeout, self.lookup_timeout);
        set(&mut tiering.load_timeout, self.load_timeout);
        set(&mut config.close_deadline, self.close_timeout);
        let tiering = &mut config.tiering;
        tiering.store_policy = self.store_policy.unwrap_or(tiering.store_policy);
        tiering.retain_prefetched = self.retain_prefetched.unwrap_or(tiering.retain_prefetched);
        tiering.admit_after_uses = self.admit_after.unwrap_or(tiering.admit_after_uses);
        tiering.store_overflow = self.store_overflow.unwrap_or(tiering.store_overflow);
        tiering.store_in_flight_bytes = self
            .store_in_flight
            .unwrap_or(tiering.store_in_flight_bytes);
        tiering.load_in_flight_bytes = self.load_in_flight.unwrap_or(tiering.load_in_flight_bytes);
        Some(config)
    }
}

fn read_store_policy(name: &str) -> anyhow::Result<StorePolicy> {
    match name {
        "default" => Ok(StorePolicy::Default),
        "skip_l1" => Ok(StorePolicy::SkipL1),
        _ => bail!("store policy is {name:?}; expected default or skip_l1"),
    }
}

fn read_retain(name: &str) -> anyhow::Result<bool> {
    match name {
        "default" => Ok(false),
        "retain" => Ok(true),
        _ => bail!("prefetch policy is {name:?}; expected default or retain"),
    }
}

fn read_overflow(name: &str) -> anyhow::Result<StoreOverflow> {
    match name {
        "wait" => Ok(StoreOverflow::Wait),
        "drop_oldest" => Ok(StoreOverflow::DropOldest),
        _ => bail!("overflow is {name:?}; expected wait or drop_oldest"),
    }
}

fn read_uses(text: &str) -> anyhow::Result<u32> {
    let uses = text.parse().ok().filter(|uses| *uses > 0);
    uses.with_context(|| format!("count of uses is {text:?}; expected a whole number from 1 on"))
}

fn read_seconds(text: &str) -> anyhow::Result<Duration> {
    let seconds: f64 = text
        .parse()
        .ok()
        .with_context(|| format!("time is {text:?}; expected a number of seconds"))?;
    ensure!(
        seconds > 0.0 && seconds <= LONGEST,
        "time is {text} seconds; expected more than 0 and at most {LONGEST}"
    );
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(key: &'static str, values: &[&str]) -> anyhow::Result<Settings> {
        let values: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
        Settings::read(&Layers::default().with_flag(key, &values))
    }

    #[test]
    fn backends_keep_their_order_and_their_commas() {
        let first = r#"{"type":"fs","base_path":"/a,b"}"#;
        let more = r#"[{"type":"x"},{"type":"y"}]"#;
        let settings = read("l2_adapter", &[first, more]).unwrap();
        let types: Vec<_> = settings
            .adapters
            .iter()
            .map(|spec| &*spec.type_name)
            .collect();
        assert_eq!(types, ["fs", "x", "y"]);
        assert_eq!(settings.adapters[0].parameters["base_path"], "/a,b");
        assert!(settings.config().is_some());
    }

    #[test]
    fn without_a_backend_there_is_no_storage() {
        let settings = read("l2_store_policy", &["skip_l1"]).unwrap();
        assert!(settings.config().is_none());
    }

    #[test]
    fn settings_reach_the_controllers() {
        let flags = [
            ("l2_adapter", r#"{"type":"x"}"#),
            ("l2_store_policy", "skip_l1"),
            ("l2_prefetch_policy", "retain"),
            ("l2_admit_after", "2"),
            ("l2_store_overflow", "drop_oldest"),
            ("l2_store_in_flight", "1MiB"),
            ("l2_load_in_flight", "2MiB"),
            ("l2_store_timeout", "1"),
            ("l2_lookup_timeout", "0.5"),
            ("l2_load_timeout", "3"),
            ("l2_close_timeout", "4"),
        ];
        let mut layers = Layers::default();
        for (key, value) in flags {
            layers = layers.with_flag(key, [&value.to_owned()]);
        }
        let config = Settings::read(&layers).unwrap().config().unwrap();
        let tiering = &config.tiering;
        assert_eq!(tiering.store_policy, StorePolicy::SkipL1);
        assert!(tiering.retain_prefetched);
        assert_eq!(tiering.admit_after_uses, 2);
        assert_eq!(tiering.store_overflow, StoreOverflow::DropOldest);
        assert_eq!(tiering.store_in_flight_bytes, 1 << 20);
        assert_eq!(tiering.load_in_flight_bytes, 2 << 20);
        assert_eq!(tiering.store_timeout, Duration::from_secs(1));
        assert_eq!(tiering.lookup_timeout, Duration::from_millis(500));
        assert_eq!(tiering.load_timeout, Duration::from_secs(3));
        assert_eq!(config.close_deadline, Duration::from_secs(4));
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_reason() {
        for (key, value, said) in [
            (
                "l2_adapter",
                "fs",
                "--l2-adapter: the adapter is fs, which is no JSON",
            ),
            ("l2_adapter", "{}", "--l2-adapter: `type` is missing"),
            (
                "l2_adapter",
                r#"{"type":"x","eviction":{"eviction_policy":"MRU"}}"#,
                "--l2-adapter: `eviction.eviction_policy` is \"MRU\"; expected LRU, ARC",
            ),
            (
                "l2_store_policy",
                "write_back",
                "--l2-store-policy: store policy is",
            ),
            (
                "l2_prefetch_policy",
                "x",
                "--l2-prefetch-policy: prefetch policy is",
            ),
            (
                "l2_admit_after",
                "0",
                "--l2-admit-after: count of uses is \"0\"",
            ),
            ("l2_store_overflow", "x", "--l2-store-overflow: overflow is"),
            ("l2_load_in_flight", "x", "--l2-load-in-flight: size"),
            (
                "l2_load_timeout",
                "0",
                "--l2-load-timeout: time is 0 seconds",
            ),
            (
                "l2_load_timeout",
                "soon",
                "--l2-load-timeout: time is \"soon\"",
            ),
            ("l2_close_timeout", "NaN", "--l2-close-timeout: time is NaN"),
        ] {
            let found = format!("{:#}", read(key, &[value]).unwrap_err());
            assert!(found.starts_with(said), "{found}");
        }
    }
}
