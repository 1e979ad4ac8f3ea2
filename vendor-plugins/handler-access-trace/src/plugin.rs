use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileTypeExt;
use std::sync::atomic::{AtomicU64, Ordering};

use ondol_plugin::{HandlerPlugin, HandlerView, Hooks, RetrievedBatch};
use serde_json::{Map, Value};

use crate::line::Call;
use crate::writer::Writer;
use crate::{Config, Error, Flush};

/// The plugin; see the crate's page.
pub struct AccessTrace {
    writer: Writer,
}

impl AccessTrace {
    /// Opens the file and starts the writer.
    ///
    /// # Errors
    /// [`Error`] if the file can not be opened for appending or is a pipe.
    pub fn open(config: &Config) -> Result<Self, Error> {
        let path = || config.path.clone();
        if fs::metadata(&config.path).is_ok_and(|file| file.file_type().is_fifo()) {
            return Err(Error::Pipe { path: path() });
        }
        let file = File::options().append(true).create(true).open(&config.path);
        let file = file.map_err(|source| Error::Open {
            path: path(),
            source,
        })?;
        Self::to(file, config.flush)
    }

    pub(crate) fn to<W: Write + Send + 'static>(sink: W, flush: Flush) -> Result<Self, Error> {
        let writer = Writer::start(sink, flush).map_err(|source| Error::Thread { source })?;
        Ok(Self { writer })
    }
}

impl HandlerPlugin for AccessTrace {
    fn hooks(&self) -> Hooks {
        Hooks::BATCH_RETRIEVE | Hooks::PREFETCH | Hooks::CLOSE | Hooks::STATS
    }

    fn on_batch_retrieve(
        &self,
        _: &dyn HandlerView,
        batch: &RetrievedBatch<'_>,
    ) -> anyhow::Result<()> {
        self.writer.offer(Call::new("batch_retrieve", batch));
        Ok(())
    }

    fn on_prefetch(&self, _: &dyn HandlerView, batch: &RetrievedBatch<'_>) -> anyhow::Result<()> {
        self.writer.offer(Call::new("prefetch", batch));
        Ok(())
    }

    fn on_close(&self, _: &dyn HandlerView) -> anyhow::Result<()> {
        self.writer.request_flush();
        Ok(())
    }

    fn contribute_stats(&self) -> Option<Map<String, Value>> {
        let state = self.writer.state();
        let figure = |name: &str, count: &AtomicU64| {
            (name.to_owned(), Value::from(count.load(Ordering::Relaxed)))
        };
        Some(Map::from_iter([
            figure("written", &state.written),
            figure("dropped", &state.dropped),
            figure("errors", &state.errors),
        ]))
    }
}

impl fmt::Debug for AccessTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessTrace").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
