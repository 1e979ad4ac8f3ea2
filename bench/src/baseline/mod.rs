//! What a user could take instead, each behind the same few calls.

#[cfg(feature = "foyer")]
mod foyer;
pub(crate) mod lmcache;
mod maru;
mod memcached;
mod redis;
mod socket;

use std::path::PathBuf;

use anyhow::{Context, Result};
use ondol::Key;

/// A system that keeps objects under keys, or places of objects.
pub(crate) trait Peer {
    /// Its name and version.
    fn name(&self) -> &str;

    /// The process that does its work, if it is another one.
    fn server(&self) -> Option<u32>;

    /// Whether it keeps the bytes of objects, and not only their places.
    fn keeps_bytes(&self) -> bool {
        true
    }

    /// The most keys that a lookup benchmark gives it; it would fill for too long otherwise.
    fn most_keys(&self) -> usize {
        usize::MAX
    }

    /// Stores the same bytes under each key, with as few round trips as it can.
    fn put(&mut self, keys: &[Key], value: &[u8]) -> Result<()>;

    /// Finds objects, with as few round trips as it can, and copies each one's bytes over `into`, the next over the last. Says
    /// how many there were.
    fn get(&mut self, keys: &[Key], into: &mut [u8]) -> Result<usize>;

    /// How many of these keys there are, with as few round trips as it can.
    fn exists(&mut self, keys: &[Key]) -> Result<usize>;

    /// A round trip that does nothing; `None` if there is no server.
    fn ping(&mut self) -> Option<Result<()>>;

    /// Forgets all objects.
    fn clear(&mut self) -> Result<()>;
}

/// Where baselines are; what is not said is looked for in the path.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Baselines")]
pub(crate) struct Places {
    /// The executable of Redis or Valkey [default: redis-server or valkey-server in the path]
    #[arg(long, value_name = "PATH")]
    redis: Option<PathBuf>,
    /// The executable of memcached [default: memcached in the path]
    #[arg(long, value_name = "PATH")]
    memcached: Option<PathBuf>,
    /// Address of a running Maru metadata server, such as 127.0.0.1:5555
    #[arg(long, value_name = "HOST:PORT")]
    maru: Option<String>,
    /// The executable of LMCache [default: lmcache in the path]
    #[arg(long, value_name = "PATH")]
    pub(crate) lmcache: Option<PathBuf>,
}

/// Those that take part, and those that cannot.
#[derive(Default)]
pub(crate) struct Peers {
    pub(crate) present: Vec<Box<dyn Peer>>,
    /// Names and reasons.
    pub(crate) absent: Vec<(String, String)>,
}

impl Peers {
    /// Starts or finds them.
    pub(crate) fn open(places: &Places) -> Self {
        let mut peers = Self::default();
        peers.admit(
            "Redis or Valkey",
            redis::Redis::start(places.redis.as_deref()),
        );
        peers.admit(
            "memcached",
            memcached::Memcached::start(places.memcached.as_deref()),
        );
        let maru = places
            .maru
            .as_deref()
            .context("no address of a metadata server was given (--maru HOST:PORT)");
        peers.admit("Maru", maru.and_then(maru::Maru::connect));
        #[cfg(feature = "foyer")]
        peers.admit("foyer", Ok(foyer::Foyer::new()));
        #[cfg(not(feature = "foyer"))]
        peers.admit::<redis::Redis>(
            "foyer",
            Err(anyhow::anyhow!("built without the feature `foyer`")),
        );
        peers
    }

    /// Those that keep the bytes of objects.
    pub(crate) fn keeping_bytes(&mut self) -> impl Iterator<Item = &mut dyn Peer> {
        let all = self
            .present
            .iter_mut()
            .map(|peer| &mut **peer as &mut dyn Peer);
        all.filter(|peer| peer.keeps_bytes())
    }

    fn admit<P: Peer + 'static>(&mut self, name: &str, peer: Result<P>) {
        match peer {
            Ok(peer) => self.present.push(Box::new(peer)),
            Err(error) => self.absent.push((name.to_owned(), format!("{error:#}"))),
        }
    }
}
