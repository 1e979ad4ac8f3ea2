use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ondol_plugin::l2::{
    AdapterConfig, Completion, CompletionQueue, FutureId, NativeConnector, ObjectRef, OpenContext,
    PageMut, WorkerPool,
};

use crate::{{Type}}Config;

/// How long a close waits for requests that are being served.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);

/// Opens the connector: what the registration names.
pub(crate) fn open(
    config: AdapterConfig,
    context: &OpenContext<'_>,
) -> anyhow::Result<Box<dyn NativeConnector>> {
    let config: {{Type}}Config = config.read()?;
    Ok(Box::new({{Type}}Connector::new(context.name(), &config)?))
}

/// A connector to a map, which is the place for a client of the storage itself.
#[derive(Debug)]
pub struct {{Type}}Connector {
    objects: Arc<Objects>,
    completions: CompletionQueue<Completion>,
    workers: WorkerPool,
}

#[derive(Debug, Default)]
struct Objects(Mutex<HashMap<String, Vec<u8>>>);

impl Objects {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl {{Type}}Connector {
    /// An empty one, with threads called `name`.
    ///
    /// # Errors
    /// If the system has no thread or descriptor left.
    pub fn new(name: &str, config: &{{Type}}Config) -> std::io::Result<Self> {
        Ok(Self {
            objects: Arc::default(),
            completions: CompletionQueue::new()?,
            workers: WorkerPool::new(name, config.num_workers)?,
        })
    }

    /// Serves a request on one of the threads. A request that is dropped unserved completes as failed.
    fn serve(&self, request: impl FnOnce(&Objects) -> Completion + Send + 'static) -> FutureId {
        let unanswered = Completion {
            error: "the connector was closed".to_owned(),
            ..Completion::default()
        };
        let ticket = self.completions.ticket(unanswered);
        let future = FutureId(ticket.task().0);
        let objects = Arc::clone(&self.objects);
        self.workers.run(move || ticket.complete(request(&objects)));
        future
    }
}

impl NativeConnector for {{Type}}Connector {
    fn event_fd(&self) -> BorrowedFd<'_> {
        self.completions.as_fd()
    }

    fn submit_batch_get(&self, keys: &[String], pages: Vec<PageMut>) -> anyhow::Result<FutureId> {
        let keys = keys.to_vec();
        Ok(self.serve(move |objects| {
            let objects = objects.lock();
            let load = |(key, mut page): (String, PageMut)| {
                let stored = objects.get(&key);
                let length = stored.and_then(|stored| page.fill(stored).ok());
                (length, page)
            };
            let (lengths, pages): (Vec<_>, _) = keys.into_iter().zip(pages).map(load).unzip();
            Completion {
                ok: true,
                per_key: Some(lengths.iter().map(Option::is_some).collect()),
                lengths: Some(lengths.into_iter().map(Option::unwrap_or_default).collect()),
                pages,
                ..Completion::default()
            }
        }))
    }

    fn submit_batch_set(
        &self,
        keys: &[String],
        objects: Vec<ObjectRef>,
    ) -> anyhow::Result<FutureId> {
        let stored: Vec<_> = keys.iter().cloned().zip(objects).collect();
        Ok(self.serve(move |objects| {
            let mut kept = objects.lock();
            for (key, object) in stored {
                kept.entry(key).or_insert_with(|| object.to_vec());
            }
            Completion {
                ok: true,
                ..Completion::default()
            }
        }))
    }

    fn submit_batch_exists(&self, keys: &[String]) -> anyhow::Result<FutureId> {
        let keys = keys.to_vec();
        Ok(self.serve(move |objects| {
            let objects = objects.lock();
            let length = |key: &String| objects.get(key).map(|stored| stored.len() as u64);
            let lengths: Vec<_> = keys.iter().map(length).collect();
            Completion {
                ok: true,
                per_key: Some(lengths.iter().map(Option::is_some).collect()),
                lengths: Some(lengths.into_iter().map(Option::unwrap_or_default).collect()),
                ..Completion::default()
            }
        }))
    }

    fn submit_batch_delete(&self, keys: &[String]) -> anyhow::Result<Option<FutureId>> {
        let keys = keys.to_vec();
        Ok(Some(self.serve(move |objects| {
            let mut objects = objects.lock();
            let deleted = keys.iter().map(|key| objects.remove(key).is_some());
            Completion {
                ok: true,
                per_key: Some(deleted.collect()),
                ..Completion::default()
            }
        })))
    }

    fn drain_completions(&self) -> Vec<Completion> {
        self.completions.consume();
        let completions = self.completions.take_all().into_iter();
        completions
            .map(|(task, completion)| Completion {
                future: task.0,
                ..completion
            })
            .collect()
    }

    fn close(&self) {
        self.workers.close(CLOSE_WITHIN);
    }
}
