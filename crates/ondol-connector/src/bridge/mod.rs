//! The bridge: an adapter made of a connector that nobody trusts.
//!
//! A connector has one descriptor and numbers of its own; an adapter has three descriptors, tasks, locks and usage. Between
//! them stands a table of pending requests ([`requests`]), one thread that drains the connector and one that watches the
//! clock ([`threads`]). What a connector answers is believed only as far as it is well-formed ([`outcome`]).

mod health;
mod inventory;
mod key_locks;
mod outcome;
mod requests;
mod threads;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use ondol_plugin::l2::{
    AdapterStatus, Bitmap, CloseReport, Completion, Completions, DeleteResult, EventFds,
    EventNotifier, FutureId, KeyPage, L2Adapter, ListRequest, LoadItem, LoadResult, LookupResult,
    NativeConnector, ObjectKey, StoreItem, StoreResult, TaskId, Usage,
};
use parking_lot::{Condvar, Mutex};
use serde_json::Value;

use health::Record;
use inventory::Inventory;
use key_locks::KeyLocks;
use requests::{DeleteAnswer, Load, Lookup, PageMark, Pending, Request, Requests, Store};

/// How long a bridge that is dropped waits for its connector to close.
const CLOSE_ON_DROP: Duration = Duration::from_secs(5);

/// How a [`Bridge`] treats its connector.
#[derive(Clone, Debug)]
pub struct BridgeOptions {
    /// Bytes that may be stored; `None` if nobody says. Only told, not enforced.
    pub max_capacity_bytes: Option<u64>,
    /// How long the connector may take for a request before its task fails.
    pub task_timeout: Duration,
    /// How long [`delete`](L2Adapter::delete) waits.
    pub delete_timeout: Duration,
    /// How many requests may be overdue before new ones are refused: their memory stays with the connector.
    pub max_overdue: usize,
}

impl Default for BridgeOptions {
    /// No capacity, 30 seconds for a task, 5 for a delete, 64 overdue requests.
    fn default() -> Self {
        Self {
            max_capacity_bytes: None,
            task_timeout: Duration::from_secs(30),
            delete_timeout: Duration::from_secs(5),
            max_overdue: 64,
        }
    }
}

/// An adapter made of a connector.
///
/// * **A connector that misbehaves** (completions that are lost, come twice or for nobody, lists of the wrong length, a dead
///   descriptor, panics, silence) makes the tasks concerned fail and shows in [`status`](L2Adapter::status). It never makes a
///   task hang or a hit of what was not loaded.
/// * **A failed completion counts for nothing.** With `ok` false no key was found or loaded, whatever its list says.
///   (LMCache 0.5.6 trusts the list of such a load.)
/// * **A page comes back only from the connector.** When a load fails because its time is over, the connector may still write; its
///   pages come in a late completion, or never.
/// * **Locks** are counted here, and deletes go round them. A key that is being deleted is not found.
/// * **Usage** is what this process has seen stored, found and loaded with a length. A connector cannot list
///   what it holds, so usage never claims to be complete, and [`list_keys`](L2Adapter::list_keys) fails.
#[derive(Debug)]
pub struct Bridge(Arc<Shared>);

struct Shared {
    name: String,
    options: BridgeOptions,
    connector: Box<dyn NativeConnector>,
    completions: Completions,
    /// Nothing of the connector's is called under this lock.
    requests: Mutex<Requests>,
    /// A request has ended, or a thread has.
    changed: Condvar,
    /// Wakes the watchdog when it is to end.
    closing: Condvar,
    /// Wakes the thread that drains.
    wake: EventNotifier,
    locks: KeyLocks,
    inventory: Mutex<Inventory>,
    record: Mutex<Record>,
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl Bridge {
    /// An adapter called `name`. Starts two threads.
    ///
    /// # Errors
    /// If the system has no thread or descriptor left; the connector is closed then.
    pub fn new(
        name: &str,
        connector: Box<dyn NativeConnector>,
        options: BridgeOptions,
    ) -> io::Result<Self> {
        let parts = Completions::new().and_then(|all| Ok((all, EventNotifier::new()?)));
        let (completions, wake) = match parts {
            Ok(parts) => parts,
            Err(error) => {
                connector.close();
                return Err(error);
            }
        };
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            options,
            connector,
            completions,
            requests: Mutex::default(),
            changed: Condvar::new(),
            closing: Condvar::new(),
            wake,
            locks: KeyLocks::default(),
            inventory: Mutex::default(),
            record: Mutex::default(),
            handles: Mutex::default(),
        });
        if let Err(error) = threads::start(&shared) {
            shared.stop_threads();
            shared.connector.close();
            return Err(error);
        }
        Ok(Self(shared))
    }
}

impl Shared {
    /// Announces a submit, so that completions that come before its number is known are kept for it.
    fn announce(&self) -> anyhow::Result<Announced<'_>> {
        let mut requests = self.requests.lock();
        ensure!(!requests.is_closed, "{} is closed", self.name);
        if let Some(reason) = &requests.failed {
            bail!("{} has failed: {reason}", self.name);
        }
        let overdue = requests.overdue();
        ensure!(
            overdue < self.options.max_overdue,
            "{} does not answer: {overdue} requests are overdue, expected fewer than {}",
            self.name,
            self.options.max_overdue
        );
        requests.submitting += 1;
        Ok(Announced { shared: self })
    }

    /// Ends a request with what the connector said.
    fn finish(&self, pending: Pending, completion: Completion) {
        let mut record = self.record.lock();
        record.answered();
        record.late += u64::from(pending.is_overdue());
        drop(record);
        outcome::finish(self, pending.request, completion);
        self.changed.notify_all();
    }

    fn refused(&self, what: &str) -> String {
        self.record.lock().refused += 1;
        format!("{} did not take {what}", self.name)
    }
}

/// A submit that is under way.
struct Announced<'a> {
    shared: &'a Shared,
}

impl Announced<'_> {
    /// The connector has taken the request and given it this number. Its completion may be here already.
    fn register(
        self,
        future: FutureId,
        request: Request,
        timeout: Option<Duration>,
    ) -> anyhow::Result<()> {
        let shared = self.shared;
        let pending = Pending::new(request);
        let mut requests = shared.requests.lock();
        let registered = requests.register(future, pending, timeout, &shared.locks);
        drop(requests);
        match registered {
            Ok(None) => Ok(()),
            Ok(Some((pending, completion))) => {
                shared.finish(pending, completion);
                Ok(())
            }
            Err(mut request) => {
                request.expire(
                    &shared.locks,
                    "the connector gave its number to two requests",
                );
                let reason = format!("request number {} was given twice", future.0);
                let mut record = shared.record.lock();
                record.malformed += 1;
                record.fault(&shared.name, reason);
                bail!("{} gave a request the number of another one", shared.name)
            }
        }
    }
}

/// Also when the submit fails or panics.
impl Drop for Announced<'_> {
    fn drop(&mut self) {
        let unclaimed = self.shared.requests.lock().submitted();
        self.shared.nobody_waits_for(unclaimed);
    }
}

impl L2Adapter for Bridge {
    fn event_fds(&self) -> EventFds<'_> {
        self.0.completions.event_fds()
    }

    fn submit_store(&self, batch: Vec<StoreItem>) -> anyhow::Result<TaskId> {
        let shared = &*self.0;
        let stores = &shared.completions.stores;
        if batch.is_empty() {
            let ticket = stores.ticket(StoreResult::stored(0));
            return Ok(ticket.task());
        }
        let announced = shared.announce()?;
        let names = names(batch.iter().map(|item| &item.key));
        let (items, objects): (Vec<_>, Vec<_>) = batch
            .into_iter()
            .map(|item| ((item.key, item.object.stored_len() as u64), item.object))
            .unzip();
        let submitted = shared.connector.submit_batch_set(&names, objects);
        let future = submitted.with_context(|| shared.refused("a store"))?;
        let ticket = stores.ticket(StoreResult::retryable("the store ended unfinished"));
        let task = ticket.task();
        let request = Request::Store(Store {
            ticket: Some(ticket),
            items,
        });
        announced.register(future, request, Some(shared.options.task_timeout))?;
        Ok(task)
    }

    fn pop_completed_stores(&self) -> Vec<(TaskId, StoreResult)> {
        self.0.completions.stores.take_all()
    }

    fn submit_lookup_and_lock(&self, keys: Vec<ObjectKey>) -> anyhow::Result<TaskId> {
        let shared = &*self.0;
        let lookups = &shared.completions.lookups;
        if keys.is_empty() {
            let ticket = lookups.ticket(LookupResult::new([]));
            return Ok(ticket.task());
        }
        let announced = shared.announce()?;
        // Locked first, so that what is found cannot be deleted before it is locked.
        let locked = shared.locks.lock_all(keys);
        let names = names(locked.keys());
        let mark = shared.inventory.lock().mark();
        let submitted = shared.connector.submit_batch_exists(&names);
        let future = submitted.with_context(|| shared.refused("a lookup"))?;
        let unanswered = LookupResult::failed(names.len(), "the lookup ended unfinished");
        let ticket = lookups.ticket(unanswered);
        let task = ticket.task();
        let keys = locked.into_parts();
        let request = Request::Lookup(Lookup {
            ticket: Some(ticket),
            keys,
            mark,
        });
        announced.register(future, request, Some(shared.options.task_timeout))?;
        Ok(task)
    }

    fn query_lookup_and_lock(&self, task: TaskId) -> Option<LookupResult> {
        self.0.completions.lookups.take(task)
    }

    fn submit_unlock(&self, keys: &[ObjectKey]) {
        self.0.locks.unlock_all(keys);
    }

    fn submit_load(&self, batch: Vec<LoadItem>) -> anyhow::Result<TaskId> {
        let shared = &*self.0;
        let loads = &shared.completions.loads;
        if batch.is_empty() {
            let ticket = loads.ticket(LoadResult::default());
            return Ok(ticket.task());
        }
        let announced = shared.announce()?;
        let names = names(batch.iter().map(|item| &item.key));
        let marks: Vec<_> = batch.iter().map(|item| PageMark::of(&item.page)).collect();
        let (keys, pages) = batch.into_iter().map(|item| (item.key, item.page)).unzip();
        let submitted = shared.connector.submit_batch_get(&names, pages);
        let future = submitted.with_context(|| shared.refused("a load"))?;
        let unanswered = LoadResult::failed(names.len(), "the load ended unfinished");
        let ticket = loads.ticket(unanswered);
        let task = ticket.task();
        let request = Request::Load(Load {
            ticket: Some(ticket),
            keys,
            marks,
        });
        announced.register(future, request, Some(shared.options.task_timeout))?;
        Ok(task)
    }

    fn query_load(&self, task: TaskId) -> Option<LoadResult> {
        self.0.completions.loads.take(task)
    }

    /// Waits for the connector, at most for [`BridgeOptions::delete_timeout`]. While a delete is overdue, further ones fail at once.
    fn delete(&self, keys: &[ObjectKey]) -> anyhow::Result<DeleteResult> {
        let shared = &*self.0;
        let mut result = DeleteResult {
            gone: Bitmap::new(keys.len()),
            locked: Bitmap::new(keys.len()),
        };
        let announced = shared.announce()?;
        ensure!(
            !shared.requests.lock().is_delete_overdue(),
            "{} has not finished an earlier delete",
            shared.name
        );
        let deleting = shared.locks.begin_delete(keys, &mut result.locked);
        if deleting.is_empty() {
            return Ok(result);
        }
        let names = names(deleting.keys());
        let mark = shared.inventory.lock().mark();
        let submitted = shared.connector.submit_batch_delete(&names);
        let submitted = submitted.with_context(|| shared.refused("a delete"))?;
        let Some(future) = submitted else {
            shared.record.lock().cannot_delete(&shared.name);
            return Ok(result);
        };
        let (request, answer) = DeleteAnswer::new(deleting.into_parts(), mark);
        announced.register(future, Request::Delete(request), None)?;
        let Some(gone) = answer.wait(shared.options.delete_timeout) else {
            shared.delete_is_overdue(future);
            bail!(
                "{} did not answer a delete of {} keys within {:?}",
                shared.name,
                names.len(),
                shared.options.delete_timeout
            );
        };
        for index in gone? {
            result.gone.set(index);
        }
        Ok(result)
    }

    fn usage(&self) -> Usage {
        let usage = self.0.inventory.lock().usage();
        Usage {
            capacity_bytes: self.0.options.max_capacity_bytes,
            ..usage
        }
    }

    fn list_keys(&self, _: &ListRequest) -> anyhow::Result<KeyPage> {
        bail!(
            "{}: a native connector cannot list what it holds",
            self.0.name
        )
    }

    fn status(&self) -> AdapterStatus {
        let shared = &*self.0;
        let view = shared.requests.lock().view();
        let mut status = shared.record.lock().status(&view, &shared.options);
        let figures = &mut status.figures;
        figures.insert("pending".into(), Value::from(view.pending));
        figures.insert("overdue".into(), Value::from(view.overdue));
        figures.insert("locked_keys".into(), Value::from(shared.locks.len()));
        status
    }

    /// A connector cannot be told; the task ends with its completion or its time.
    fn cancel(&self, _: TaskId) {}

    fn close(&self, deadline: Duration) -> CloseReport {
        self.0.close(Instant::now() + deadline)
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.0.close(Instant::now() + CLOSE_ON_DROP);
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bridge")
            .field("name", &self.name)
            .field("completions", &self.completions)
            .finish_non_exhaustive()
    }
}

fn names<'a>(keys: impl IntoIterator<Item = &'a ObjectKey>) -> Vec<String> {
    keys.into_iter().map(ObjectKey::to_string).collect()
}
