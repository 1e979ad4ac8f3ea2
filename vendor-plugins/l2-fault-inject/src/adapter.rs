use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::ensure;
use ondol_plugin::l2::{
    AdapterStatus, CloseReport, DeleteResult, EventFds, KeyPage, L2Adapter, ListRequest, LoadItem,
    LoadOutcome, LoadResult, Loaded, LookupResult, ObjectKey, StoreItem, StoreResult, TaskId,
    Usage,
};
use parking_lot::Mutex;
use serde_json::Value;

use crate::FaultInjectConfig;
use crate::relay::{Answer, Fate, Kind, Pending, Relay, Stuck};

/// An adapter around another one, whose results it spoils.
///
/// A thread waits for the results of the wrapped adapter and hands them on.
pub struct FaultInjectAdapter {
    relay: Arc<Relay>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

const INJECTED: &str = "injected: the task failed";

impl FaultInjectAdapter {
    /// Wraps `inner`, under this name.
    ///
    /// # Errors
    /// If the system has no thread or descriptor left.
    pub fn new(
        name: &str,
        inner: Box<dyn L2Adapter>,
        config: FaultInjectConfig,
    ) -> io::Result<Self> {
        let relay = Arc::new(Relay::new(inner, config)?);
        let thread = thread::Builder::new().name(name.to_owned()).spawn({
            let relay = Arc::clone(&relay);
            move || relay.run()
        })?;
        Ok(Self {
            relay,
            thread: Mutex::new(Some(thread)),
        })
    }

    fn end_thread(&self) {
        self.relay.end();
        if let Some(thread) = self.thread.lock().take() {
            // It panics only if the wrapped adapter does, and has said so then.
            let _ = thread.join();
        }
    }
}

impl L2Adapter for FaultInjectAdapter {
    fn event_fds(&self) -> EventFds<'_> {
        self.relay.completions.event_fds()
    }

    fn submit_store(&self, batch: Vec<StoreItem>) -> anyhow::Result<TaskId> {
        let mut state = self.relay.state();
        ensure!(!state.is_closing, "the adapter is closed");
        let ticket = |result| self.relay.completions.stores.ticket(result);
        let unanswered = StoreResult::failed("the wrapped adapter lost the store");
        let fate = self.relay.fate(Kind::Store);
        match fate {
            Fate {
                fails: true, delay, ..
            } => {
                drop(batch);
                let ticket = ticket(unanswered);
                let task = ticket.task();
                let answer = Answer::Store(ticket, StoreResult::retryable(INJECTED));
                self.relay.answer(&mut state, answer, delay);
                Ok(task)
            }
            Fate { hangs: true, .. } => {
                let ticket = ticket(unanswered);
                let task = ticket.task();
                state.stuck.push(Stuck::Store(batch, ticket));
                Ok(task)
            }
            fate => {
                let inner = self.relay.inner.submit_store(batch)?;
                let ticket = ticket(unanswered);
                let task = ticket.task();
                state.stores.insert(inner, Pending { ticket, fate });
                Ok(task)
            }
        }
    }

    fn pop_completed_stores(&self) -> Vec<(TaskId, StoreResult)> {
        self.relay.completions.stores.take_all()
    }

    fn submit_lookup_and_lock(&self, keys: Vec<ObjectKey>) -> anyhow::Result<TaskId> {
        let mut state = self.relay.state();
        ensure!(!state.is_closing, "the adapter is closed");
        let ticket = |reason: &str| {
            let unanswered = LookupResult::failed(keys.len(), reason);
            self.relay.completions.lookups.ticket(unanswered)
        };
        match self.relay.fate(Kind::Lookup) {
            Fate {
                fails: true, delay, ..
            } => {
                let ticket = ticket(INJECTED);
                let task = ticket.task();
                let answer = Answer::Lookup(ticket, LookupResult::failed(keys.len(), INJECTED));
                self.relay.answer(&mut state, answer, delay);
                Ok(task)
            }
            Fate { hangs: true, .. } => {
                let ticket = ticket(INJECTED);
                let task = ticket.task();
                state.stuck.push(Stuck::Lookup(ticket));
                Ok(task)
            }
            fate => {
                let inner = self.relay.inner.submit_lookup_and_lock(keys.clone())?;
                let ticket = ticket("the wrapped adapter lost the lookup");
                let task = ticket.task();
                state
                    .lookups
                    .insert(inner, (Pending { ticket, fate }, keys));
                Ok(task)
            }
        }
    }

    fn query_lookup_and_lock(&self, task: TaskId) -> Option<LookupResult> {
        self.relay.completions.lookups.take(task)
    }

    fn submit_unlock(&self, keys: &[ObjectKey]) {
        self.relay.inner.submit_unlock(keys);
    }

    fn submit_load(&self, batch: Vec<LoadItem>) -> anyhow::Result<TaskId> {
        let mut state = self.relay.state();
        ensure!(!state.is_closing, "the adapter is closed");
        let unanswered = LoadResult::failed(batch.len(), "the wrapped adapter lost the load");
        let ticket = |result| self.relay.completions.loads.ticket(result);
        match self.relay.fate(Kind::Load) {
            Fate {
                fails: true, delay, ..
            } => {
                let failed = |item: LoadItem| Loaded {
                    page: Some(item.page),
                    outcome: LoadOutcome::Failed(INJECTED.to_owned()),
                };
                let failed = LoadResult(batch.into_iter().map(failed).collect());
                let ticket = ticket(unanswered);
                let task = ticket.task();
                self.relay
                    .answer(&mut state, Answer::Load(ticket, failed), delay);
                Ok(task)
            }
            Fate { hangs: true, .. } => {
                let ticket = ticket(unanswered);
                let task = ticket.task();
                state.stuck.push(Stuck::Load(batch, ticket));
                Ok(task)
            }
            fate => {
                let keys = batch.iter().map(|item| item.key.clone()).collect();
                let inner = self.relay.inner.submit_load(batch)?;
                let ticket = ticket(unanswered);
                let task = ticket.task();
                state.loads.insert(inner, (Pending { ticket, fate }, keys));
                Ok(task)
            }
        }
    }

    fn query_load(&self, task: TaskId) -> Option<LoadResult> {
        self.relay.completions.loads.take(task)
    }

    fn delete(&self, keys: &[ObjectKey]) -> anyhow::Result<DeleteResult> {
        let fate = self.relay.fate(Kind::Delete);
        thread::sleep(fate.delay);
        ensure!(!fate.fails, "injected: the delete failed");
        self.relay.inner.delete(keys)
    }

    fn usage(&self) -> Usage {
        self.relay.inner.usage()
    }

    fn list_keys(&self, request: &ListRequest) -> anyhow::Result<KeyPage> {
        self.relay.inner.list_keys(request)
    }

    fn status(&self) -> AdapterStatus {
        let mut status = self.relay.inner.status();
        let inner = std::mem::take(&mut status.figures);
        let injected = self.relay.figures.to_map();
        status
            .figures
            .insert("injected".to_owned(), Value::Object(injected));
        status
            .figures
            .insert("inner".to_owned(), Value::Object(inner));
        status
    }

    fn cancel(&self, task: TaskId) {
        let state = self.relay.state();
        let stores = state
            .stores
            .iter()
            .map(|(inner, pending)| (pending.ticket.task(), *inner));
        let lookups = state
            .lookups
            .iter()
            .map(|(inner, (pending, _))| (pending.ticket.task(), *inner));
        let loads = state
            .loads
            .iter()
            .map(|(inner, (pending, _))| (pending.ticket.task(), *inner));
        let found = stores
            .chain(lookups)
            .chain(loads)
            .find(|(outer, _)| *outer == task);
        drop(state);
        if let Some((_, inner)) = found {
            self.relay.inner.cancel(inner);
        }
    }

    fn close(&self, deadline: Duration) -> CloseReport {
        self.relay.state().is_closing = true;
        let inner = self.relay.inner.close(deadline);
        self.relay.flush();
        self.end_thread();
        CloseReport {
            abandoned: inner.abandoned + self.relay.state().stuck.len() as u64,
        }
    }
}

impl Drop for FaultInjectAdapter {
    fn drop(&mut self) {
        self.end_thread();
    }
}

impl fmt::Debug for FaultInjectAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultInjectAdapter")
            .field("config", &self.relay.config)
            .field("completions", &self.relay.completions)
            .finish_non_exhaustive()
    }
}
