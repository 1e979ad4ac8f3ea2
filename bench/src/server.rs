//! `ondol serve` in a process of its own, with a pool and a state directory that go when it does.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use ondol::{Handler, HandlerConfig, Key, PageSizes, Plugins, SocketOptions, SocketPlane};
use tempfile::TempDir;

use crate::daemon::{Daemon, own_program};

const SHM: &str = "/dev/shm";
/// Objects that are stored at once to fill a pool.
const BATCH: usize = 512;

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    // Before the directory, so that the process ends first.
    daemon: Daemon,
    dir: TempDir,
    pool: String,
}

impl Server {
    /// A server whose pool has so many bytes, as soon as it answers. `program` is the executable `ondol`; without it this
    /// program serves itself, which is the same code.
    pub(crate) fn start(program: Option<&Path>, pool_bytes: u64, more: &[String]) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("ondol-bench-").tempdir()?;
        let pool = dir.path().file_name().context("a name")?;
        let pool = pool.to_string_lossy().into_owned();
        let program = match program {
            Some(program) => program.to_owned(),
            None => own_program()?,
        };
        // Whole regions for each page size that a scenario uses.
        let mebibytes = pool_bytes.div_ceil(1 << 20).next_multiple_of(2);
        let mut arguments = vec![
            "serve".to_owned(),
            "--log=warn".into(),
            "--http=off".into(),
            format!("--pool=shm:{pool}?size={mebibytes}MiB"),
            // One client fills the pool.
            format!("--share-limit={mebibytes}MiB"),
            format!("--state-dir={}", dir.path().join("state").display()),
        ];
        arguments.extend_from_slice(more);
        let mut server = Self {
            daemon: Daemon::start(&program, &arguments, dir.path().join("said"))?,
            dir,
            pool,
        };
        let socket = server.socket();
        server.daemon.wait_for(&socket).context("ondol serve")?;
        Ok(server)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("state").join("ondol.sock")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// A client of this server's.
    pub(crate) fn handler(&self, config: HandlerConfig) -> Result<Handler> {
        connect(&self.socket(), config)
    }

    /// The socket alone, below a handler.
    pub(crate) fn plane(&self) -> Result<std::sync::Arc<SocketPlane>> {
        Ok(SocketPlane::connect(
            &self.socket(),
            SocketOptions::default(),
        )?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The pool outlives its server by design; the process is killed below, and mappings keep what they have.
        for entry in fs::read_dir(SHM).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&self.pool) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// A client without plugins of the server at `socket`.
pub(crate) fn connect(socket: &Path, mut config: HandlerConfig) -> Result<Handler> {
    config.plugins = Plugins::None;
    Handler::connect(socket, config).context("connect to the server")
}

/// A client whose pages are exactly so long; the shortest that are fitted have 4 KiB.
pub(crate) fn with_pages_of(bytes: usize) -> HandlerConfig {
    let mut config = HandlerConfig::default();
    config.page_sizes = PageSizes::Fixed(vec![bytes as u64]);
    config
}

/// Stores an object of `bytes` zeroes under each key, in batches, and in the order of the keys: where objects lie then has nothing
/// to do with the order in which random ones are asked for.
pub(crate) fn fill(handler: &Handler, keys: &[Key], bytes: usize) -> Result<()> {
    let mut keys = keys.to_vec();
    keys.sort_unstable();
    for keys in keys.chunks(BATCH) {
        let pages = keys.iter().map(|_| handler.alloc(bytes));
        let pages = pages.collect::<Result<Vec<_>, _>>()?;
        for outcome in handler.batch_store(keys, pages)? {
            outcome?;
        }
    }
    for keys in keys.chunks(BATCH) {
        let found = handler.batch_exists(keys)?;
        ensure!(
            found.into_iter().all(|is_there| is_there),
            "the pool has no room for all objects of {bytes} bytes"
        );
    }
    Ok(())
}
