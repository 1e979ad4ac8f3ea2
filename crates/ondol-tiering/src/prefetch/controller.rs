//! What plans and starts loads and admits what they bring.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use ondol_catalog::failpoint;
use ondol_host::l2::TaskError;
use ondol_plugin::Key;
use ondol_plugin::l2::{LoadResult, LookupResult, ObjectKey, WorkerPool};

use super::batch::{Batch, BatchCell, Failure, Outcomes};
use super::held::Held;
use super::inbox::{Hear, Inbox};
use super::janitor::Janitor;
use super::metrics::PrefetchCounters;
use super::reads::Read;
use super::request::{Request, Todo};
use super::room::Room;
use super::speed::Speed;
use crate::attached::{Attached, AttachedBackends};
use crate::{Memory, Page, TieringConfig};

/// Bytes of a load that are checked on whichever thread it ends; to check more takes longer than to wake another thread.
const EXAMINED_ANYWHERE: u64 = 256 << 10;

/// What the controller, callers' threads and tasks share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) memory: Arc<Memory>,
    pub(super) backends: Arc<AttachedBackends>,
    pub(super) config: Arc<TieringConfig>,
    pub(super) counters: PrefetchCounters,
    pub(super) inbox: Inbox,
    /// Bytes of memory.
    pub(super) capacity: u64,
    /// Requests that have not ended.
    pub(super) under_way: AtomicU64,
    /// Bytes that loads may be filling.
    pub(super) loading_bytes: AtomicU64,
    /// How often loaded objects were admitted.
    pub(super) admissions: AtomicU64,
    numbers: AtomicU64,
}

/// What the controller hears.
#[derive(Debug)]
pub(super) enum Event {
    /// A request; its lookups follow.
    Begin(Box<Request>),
    /// A backend has answered the lookup of a request.
    LookedUp {
        request: u64,
        /// Which of its backends.
        at: usize,
        /// What was found, and how long that is; `None` if the lookup failed.
        answer: Option<(Held, Vec<u64>)>,
    },
    /// A load has finished.
    Loaded {
        batch: Batch,
        result: Result<LoadResult, TaskError>,
    },
    /// What a load brought was checked.
    Examined { batch: Batch, outcomes: Outcomes },
    /// Nothing will be heard of a load any more.
    Lost { backend: u64, keys: Vec<Key> },
    /// Nobody wants this request any more.
    Abort(u64),
    /// These keys are being deleted; `done` is dropped once nothing of them is admitted any more.
    Bar { keys: Arc<[Key]>, done: Sender<()> },
    /// They have been deleted.
    Unbar(Arc<[Key]>),
    /// The end: all that the controller holds ends with it. Requests are answered, and events that nobody hears any more
    /// unlock what they tell of.
    Close,
}

#[derive(Debug)]
pub(super) struct Controller {
    shared: Arc<Shared>,
    janitor: Janitor,
    /// Decodes what is encoded; made when it is needed first.
    decoders: Option<WorkerPool>,
    requests: HashMap<u64, Box<Request>, foldhash::fast::RandomState>,
    deadlines: BTreeSet<(Instant, u64)>,
    /// Requests that want to load, in the order in which they came.
    queue: VecDeque<u64>,
    /// The keys that are being loaded.
    loading: HashMap<Key, Load, foldhash::fast::RandomState>,
    /// How many of them are doomed.
    doomed: usize,
    /// The keys that are being deleted, and how often.
    barred: HashMap<Key, usize>,
    /// How fast each backend is.
    speeds: HashMap<u64, Speed>,
}

/// A load of one key.
#[derive(Debug, Default)]
struct Load {
    /// A cell that waits for it, by its request; most often there is one, and none if it is doomed.
    waiter: Option<(u64, usize)>,
    /// More of them.
    others: Vec<(u64, usize)>,
    /// What it brings is not admitted: the object was deleted meanwhile.
    is_doomed: bool,
}

impl Load {
    /// One more cell waits for it; whether it is the only one.
    fn add(&mut self, waiter: (u64, usize)) -> bool {
        if self.waiter.is_none() {
            self.waiter = Some(waiter);
            return true;
        }
        self.others.push(waiter);
        false
    }

    /// The cells that wait for it, which do so no longer.
    fn take_waiters(&mut self) -> impl Iterator<Item = (u64, usize)> + use<> {
        let others = std::mem::take(&mut self.others);
        self.waiter.take().into_iter().chain(others)
    }
}

impl Shared {
    pub(super) fn new(
        memory: Arc<Memory>,
        backends: Arc<AttachedBackends>,
        config: Arc<TieringConfig>,
    ) -> Self {
        Self {
            capacity: memory.capacity_bytes(),
            memory,
            backends,
            config,
            counters: PrefetchCounters::new(),
            inbox: Inbox::default(),
            under_way: AtomicU64::new(0),
            loading_bytes: AtomicU64::new(0),
            admissions: AtomicU64::new(0),
            numbers: AtomicU64::new(0),
        }
    }

    /// A number that was not given before.
    pub(super) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Passes on what a lookup found. What is locked is unlocked if the controller has ended, or the request has.
    pub(super) fn looked_up(
        &self,
        request: u64,
        at: usize,
        attached: Arc<Attached>,
        names: Arc<[ObjectKey]>,
        result: Result<LookupResult, TaskError>,
    ) {
        let hear = heard_by(&result);
        match &result {
            Ok(_) => {
                self.read_ended(&attached, Read::Lookup);
            }
            Err(TaskError::TimedOut { waited, .. }) => {
                self.read_timed_out(&attached, Read::Lookup, *waited);
            }
            Err(_) => {}
        }
        let failed = |attached: &Attached, reason: &dyn std::fmt::Display| {
            if let Some(unwritten) = attached.complaints.of("a lookup failed", Instant::now()) {
                let backend = attached.backend.name();
                tracing::warn!(backend, %reason, unwritten, "a lookup failed");
            }
        };
        let answer = match result {
            Ok(LookupResult {
                found,
                sizes,
                error: None,
            }) => Some((Held::new(attached, names, found), sizes)),
            Ok(LookupResult {
                error: Some(reason),
                ..
            }) => {
                failed(&attached, &reason);
                None
            }
            Err(error) => {
                failed(&attached, &error);
                None
            }
        };
        if answer.is_none() {
            self.counters.lookup_failed.increment();
        }
        let event = Event::LookedUp {
            request,
            at,
            answer,
        };
        // Without a controller what is locked is unlocked here.
        let _ = self.inbox.tell(event, hear);
    }

    /// A lookup or a load has ended in time; whether the backend was left out until now.
    fn read_ended(&self, attached: &Attached, read: Read) -> bool {
        let was_left_out = attached.reads.ended(read, &self.config);
        if was_left_out {
            let backend = attached.backend.name();
            tracing::info!(
                backend,
                "the backend answers in time again; prefetches ask it"
            );
        }
        was_left_out
    }

    /// A lookup or a load has not ended in time; whether the backend is left out from now on.
    fn read_timed_out(&self, attached: &Attached, read: Read, waited: Duration) -> bool {
        let is_left_out = attached.reads.timed_out(read, &self.config);
        if is_left_out {
            let backend = attached.backend.name();
            let pause = self.config.breaker_pause;
            tracing::warn!(
                backend,
                ?read,
                ?waited,
                ?pause,
                "the backend timed out too often in a row; prefetches leave it out, but for one after each pause"
            );
        }
        is_left_out
    }
}

impl Controller {
    pub(super) fn new(shared: Arc<Shared>) -> std::io::Result<Self> {
        Ok(Self {
            janitor: Janitor::start(&shared)?,
            shared,
            decoders: None,
            requests: HashMap::default(),
            deadlines: BTreeSet::new(),
            queue: VecDeque::new(),
            loading: HashMap::default(),
            doomed: 0,
            barred: HashMap::new(),
            speeds: HashMap::new(),
        })
    }

    /// Takes notice of something, and does what follows from it.
    pub(super) fn hear(&mut self, event: Event) {
        match event {
            Event::Begin(request) => {
                if let Some(deadline) = request.deadline {
                    self.deadlines.insert((deadline, request.id));
                }
                self.requests.insert(request.id, request);
            }
            Event::LookedUp {
                request: id,
                at,
                answer,
            } => {
                if let Some(request) = self.requests.get_mut(&id) {
                    request.answered(at, answer);
                    if !self.barred.is_empty() {
                        request.release_keys(|key| self.barred.contains_key(key));
                    }
                    if !request.is_looking_up() {
                        failpoint!("load.looked_up");
                        self.progress(&[id]);
                    }
                }
            }
            Event::Loaded { batch, result } => self.loaded(batch, result),
            Event::Examined { batch, outcomes } => self.settle(batch, outcomes),
            Event::Lost { backend, keys } => {
                tracing::error!(
                    backend,
                    objects = keys.len(),
                    "a load ended without a result"
                );
                let mut touched = Vec::new();
                for key in keys {
                    self.shared.counters.failed.increment();
                    self.tell(&key, &mut touched, |request, cell| {
                        request.failed(cell, backend);
                    });
                }
                self.progress(&touched);
            }
            Event::Abort(id) => {
                self.remove(id);
                self.run_queue();
            }
            Event::Bar { keys, done } => {
                self.bar(&keys);
                drop(done);
            }
            Event::Unbar(keys) => {
                for key in keys.iter() {
                    if let Entry::Occupied(mut entry) = self.barred.entry(key.clone()) {
                        *entry.get_mut() -= 1;
                        if *entry.get() == 0 {
                            entry.remove();
                        }
                    }
                }
            }
            Event::Close => {}
        }
    }

    /// Gives up everything about these keys, so that nothing of them comes into memory, and their locks do not keep them in
    /// backends. Loads that are under way are not admitted, and keep their locks until they have ended.
    fn bar(&mut self, keys: &[Key]) {
        let mut touched = Vec::new();
        for key in keys {
            *self.barred.entry(key.clone()).or_default() += 1;
            let Some(load) = self.loading.get_mut(key) else {
                continue;
            };
            if !std::mem::replace(&mut load.is_doomed, true) {
                self.doomed += 1;
            }
            for (id, cell) in load.take_waiters() {
                if let Some(request) = self.requests.get_mut(&id) {
                    request.give_up(cell);
                    touched.push(id);
                }
            }
        }
        for (id, request) in &mut self.requests {
            if request.release_keys(|key| self.barred.contains_key(key)) {
                touched.push(*id);
            }
        }
        self.progress(&touched);
    }

    fn remove(&mut self, id: u64) -> Option<Box<Request>> {
        let request = self.requests.remove(&id)?;
        if let Some(deadline) = request.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        Some(request)
    }

    /// When [`end_overdue`](Self::end_overdue) is to be called at the latest.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Answers the requests whose time is over.
    pub(super) fn end_overdue(&mut self) {
        let Some(now) = self.deadlines.first().map(|_| Instant::now()) else {
            return;
        };
        let mut any = false;
        while let Some((deadline, id)) = self.deadlines.first().copied()
            && deadline <= now
        {
            self.deadlines.pop_first();
            if let Some(request) = self.requests.remove(&id) {
                self.shared.counters.timed_out.increment();
                request.time_out();
                any = true;
            }
        }
        if any {
            self.run_queue();
        }
    }

    /// Something has changed for these requests: they are planned again, those that have come to their end are answered, and
    /// what may be loaded now is.
    fn progress(&mut self, ids: &[u64]) {
        for id in ids {
            if self.requests.get(id).is_some_and(|it| it.has_all()) {
                self.remove(*id);
                continue;
            }
            let is_next = self.queue.is_empty();
            let Some(request) = self.plan(*id) else {
                continue;
            };
            if !request.has_todo() {
                if !request.is_waiting() {
                    self.remove(*id);
                }
            } else {
                request.waits_for.clear();
                if !request.is_queued {
                    request.is_queued = true;
                    // Nothing changes before its turn.
                    request.is_planned = is_next;
                    self.queue.push_back(*id);
                }
            }
        }
        self.run_queue();
        for id in ids {
            if let Some(request) = self.requests.get_mut(id) {
                request.release_unwanted();
            }
        }
    }

    /// Plans a request with what is there and on its way now; `None` if it has ended or is still looking up.
    fn plan(&mut self, id: u64) -> Option<&mut Request> {
        let Self {
            requests,
            loading,
            speeds,
            ..
        } = self;
        let request = requests.get_mut(&id)?;
        if request.is_looking_up() {
            return None;
        }
        request.look_again();
        if !loading.is_empty() {
            request.join_loads(|key, cell| match loading.get_mut(key) {
                Some(load) if !load.is_doomed => {
                    load.add((id, cell));
                    true
                }
                _ => false,
            });
        }
        request.plan(|backend| speeds.get(&backend).copied().unwrap_or_default());
        Some(request)
    }

    /// Starts loads of the requests that wait, as far as the bytes in flight allow. Nobody overtakes who waits for the same backend.
    fn run_queue(&mut self) {
        if self.queue.is_empty() {
            return;
        }
        let backends = self.shared.backends.len().max(1);
        let share = self.shared.config.load_in_flight_bytes / backends as u64;
        // Those that load as much as they may.
        let mut full = Vec::new();
        let mut at = 0;
        while let Some(id) = self.queue.get(at).copied() {
            if full.len() >= backends {
                return;
            }
            if self.load_next(id, share, &mut full) {
                self.queue.remove(at);
            } else {
                at += 1;
            }
        }
    }

    /// Starts the loads of a request from backends that are not `full`, each of which may load `share` bytes at a time; whether it
    /// has nothing more to load now.
    fn load_next(&mut self, id: u64, share: u64, full: &mut Vec<u64>) -> bool {
        if let Some(request) = self.requests.get(&id)
            && !request.waits_for.is_empty()
            && request.waits_for.iter().all(|it| full.contains(it))
        {
            return false;
        }
        loop {
            let is_planned = |request: &mut Box<Request>| std::mem::take(&mut request.is_planned);
            if !self.requests.get_mut(&id).is_some_and(is_planned) {
                self.plan(id);
            }
            let request = self.requests.get_mut(&id);
            let Some(request) = request.filter(|request| !request.is_looking_up()) else {
                return true;
            };
            let todo = request.todo();
            if todo.is_empty() {
                request.is_queued = false;
                request.release_unwanted();
                if !request.is_waiting() {
                    self.remove(id);
                }
                return true;
            }
            let stuck = stuck(request, &todo, share);
            if !stuck.is_empty() {
                for backend in stuck {
                    request.leave_out(backend);
                }
                continue;
            }
            let planned = todo.len();
            let part = next_part(request, todo, share, full);
            if part.is_empty() {
                return false;
            }
            let is_last = part.len() == planned;
            if self.load(id, part) && is_last {
                if let Some(request) = self.requests.get_mut(&id) {
                    request.is_queued = false;
                    request.release_unwanted();
                }
                return true;
            }
        }
    }

    /// Reserves pages for these cells and starts their loads; whether it has started all of them.
    fn load(&mut self, id: u64, part: Vec<Todo>) -> bool {
        let shared = Arc::clone(&self.shared);
        let lengths: Vec<_> = part.iter().filter_map(|todo| page_len(todo.room)).collect();
        let mut reserved = shared.memory.reserve(&lengths).into_iter();
        failpoint!("load.reserved");
        let Some(request) = self.requests.get_mut(&id) else {
            return false;
        };
        let mut ready = Vec::with_capacity(part.len());
        let mut is_short = false;
        for todo in part {
            let page = page_len(todo.room).map(|_| reserved.next().flatten());
            if page.as_ref().is_some_and(Option::is_none) {
                shared.counters.l1_oom.increment();
                request.give_up(todo.cell);
                is_short = true;
            } else {
                ready.push((todo, page.flatten()));
            }
        }
        if is_short {
            // Less is wanted now: pages that serve nothing any more are let go.
            let Some(request) = self.plan(id) else {
                return false;
            };
            ready.retain(|(todo, _)| request.wants(todo.cell));
        }
        self.submit(id, ready) && !is_short
    }

    /// Starts the loads of these cells, one for each backend; whether none was left out.
    fn submit(&mut self, id: u64, ready: Vec<(Todo, Option<Page>)>) -> bool {
        let Self {
            shared,
            requests,
            loading,
            ..
        } = self;
        let Some(request) = requests.get_mut(&id) else {
            return false;
        };
        let mut groups: Vec<Group> = Vec::new();
        let objects = ready.len();
        let mut started_all = true;
        for (todo, page) in ready {
            let cell = request.cell(todo.cell);
            let load = loading.entry(cell.key.clone()).or_default();
            if load.is_doomed {
                // A second load would take the mark from it.
                request.give_up(todo.cell);
                started_all = false;
                continue;
            }
            // The same key twice in one request is loaded once.
            if load.add((id, todo.cell)) {
                let object = BatchCell {
                    key: cell.key.clone(),
                    name: request.name(todo.cell).clone(),
                    room: todo.room,
                    expected_len: cell.expected_len,
                };
                let known = groups.iter().position(|group| group.answer == todo.answer);
                let at = known.unwrap_or_else(|| {
                    groups.push(Group {
                        answer: todo.answer,
                        cells: Vec::with_capacity(objects),
                        objects: Vec::with_capacity(objects),
                    });
                    groups.len() - 1
                });
                groups[at].cells.push(todo.cell);
                groups[at].objects.push((object, page));
            }
            request.is_loaded_now(todo.cell);
        }
        for group in groups {
            let held = request.split(group.answer, &group.cells);
            let attached = Arc::clone(held.attached());
            let (batch, items) = Batch::new(shared, held, group.objects);
            let teller = Arc::clone(shared);
            attached
                .backend
                .load(items, shared.config.load_timeout, move |result| {
                    let hear = match batch.bytes() {
                        ..=EXAMINED_ANYWHERE => heard_by(&result),
                        _ => Hear::Apart,
                    };
                    // Without a controller the batch ends here.
                    let _ = teller.inbox.tell(Event::Loaded { batch, result }, hear);
                });
        }
        failpoint!("load.submitted");
        started_all
    }

    /// A load has finished: what it brought is checked, elsewhere if that takes a while.
    fn loaded(&mut self, batch: Batch, result: Result<LoadResult, TaskError>) {
        failpoint!("load.loaded");
        let attached = Arc::clone(batch.attached());
        let result = match result {
            Ok(result) => {
                if self.shared.read_ended(&attached, Read::Load) {
                    // How slow it was says nothing of how fast it is now.
                    self.speeds.remove(&attached.id);
                }
                result
            }
            Err(error) => {
                if let TaskError::TimedOut { waited, .. } = error {
                    self.speeds
                        .entry(attached.id)
                        .or_default()
                        .loaded(0, waited);
                    if self.shared.read_timed_out(&attached, Read::Load, waited) {
                        self.leave_out(attached.id);
                    }
                }
                let complaints = &attached.complaints;
                if let Some(unwritten) = complaints.of("a load failed", Instant::now()) {
                    tracing::warn!(%error, unwritten, "a load failed");
                }
                let outcomes = batch.all_failed();
                return self.settle(batch, outcomes);
            }
        };
        self.measure(&batch, &result);
        if batch.attached().codec.is_plain() {
            let outcomes = batch.examine(result);
            return self.settle(batch, outcomes);
        }
        let teller = Arc::clone(&self.shared);
        let examine = move || {
            let outcomes = batch.examine(result);
            let event = Event::Examined { batch, outcomes };
            let _ = teller.inbox.tell(event, Hear::Anywhere);
        };
        if self.decoders.is_none() {
            self.decoders = WorkerPool::new("ondol-l2-decode", decoder_threads())
                .inspect_err(|error| tracing::warn!(%error, "no threads to decode with"))
                .ok();
        }
        match &self.decoders {
            Some(decoders) => {
                // The pool is open for as long as the controller lives.
                decoders.run(examine);
            }
            None => examine(),
        }
    }

    /// Lets go of what requests have found in a backend that loads nothing: they are served by others, or do without.
    fn leave_out(&mut self, backend: u64) {
        let requests = self.requests.iter_mut();
        let touched: Vec<_> = requests
            .filter_map(|(id, request)| request.leave_out(backend).then_some(*id))
            .collect();
        self.progress(&touched);
    }

    /// Notes how long a load took.
    fn measure(&mut self, batch: &Batch, result: &LoadResult) {
        let id = batch.attached().id;
        if !self.speeds.contains_key(&id) {
            let active = self.shared.backends.active();
            self.speeds
                .retain(|known, _| active.iter().any(|attached| attached.id == *known));
        }
        let bytes = result.lengths().fold(0, u64::saturating_add);
        if bytes > 0 {
            let speed = self.speeds.entry(id).or_default();
            speed.loaded(bytes, batch.began().elapsed());
        }
    }

    /// Admits what a load brought, unlocks it, and tells who waits for it.
    fn settle(&mut self, batch: Batch, outcomes: Outcomes) {
        let shared = Arc::clone(&self.shared);
        let counters = &shared.counters;
        let attached = Arc::clone(batch.attached());
        let mut objects = Vec::with_capacity(outcomes.len());
        let mut results = Vec::with_capacity(outcomes.len());
        for (cell, outcome) in batch.cells().iter().zip(outcomes) {
            let outcome = match outcome {
                Ok(_) if self.is_doomed(&cell.key) => Err(Failure::Deleted),
                outcome => outcome,
            };
            results.push(outcome.map(|arrival| {
                if !arrival.verified {
                    counters.unverified.increment();
                }
                objects.push((cell.key.clone(), arrival.page, arrival.len, arrival.meta));
                arrival.len
            }));
        }
        failpoint!("admit.checked");
        let is_empty = objects.is_empty();
        let mut admitted = if is_empty {
            Vec::new().into_iter()
        } else {
            shared.memory.admit(objects).into_iter()
        };
        failpoint!("admit.recorded");
        if !is_empty {
            shared.admissions.fetch_add(1, Ordering::Release);
        }
        let cells = batch.end();
        failpoint!("load.unlocked");
        let mut touched = Vec::new();
        let mut corrupt = Vec::new();
        let (mut used, mut gone) = (Vec::new(), Vec::new());
        let (mut loaded, mut loaded_bytes, mut more) = (0, 0, 0);
        for (cell, result) in cells.into_iter().zip(results) {
            match result {
                Ok(len) => {
                    if let Some(lease) = admitted.next().flatten() {
                        loaded += 1;
                        loaded_bytes += len;
                        let told = self.tell(&cell.key, &mut touched, |request, at| {
                            request.receive(at, lease.clone());
                        });
                        more += told.saturating_sub(1);
                    } else {
                        counters.not_recorded.increment();
                        self.tell(&cell.key, &mut touched, Request::give_up);
                    }
                    if attached.evictions.is_some() {
                        used.push(cell.name);
                    }
                }
                Err(failure) => {
                    match failure {
                        Failure::Missing => gone.push(cell.name),
                        Failure::Corrupt => corrupt.push(cell.name),
                        _ => {}
                    }
                    self.conclude(&attached, &cell.key, failure, &mut touched);
                }
            }
        }
        counters.loaded.add(loaded);
        counters.loaded_bytes.add(loaded_bytes);
        counters.shared.add(more);
        attached.note_loaded(&used);
        if !gone.is_empty() {
            attached.note_deleted(&gone);
        }
        if !corrupt.is_empty() {
            // Nobody of ours holds a lock on these any more.
            let left = self.janitor.delete(attached, corrupt);
            counters.delete_failed.add(left as u64);
        }
        self.progress(&touched);
    }

    /// Whether what is loaded of this key is not to be admitted.
    fn is_doomed(&self, key: &Key) -> bool {
        self.doomed > 0 && self.loading.get(key).is_some_and(|load| load.is_doomed)
    }

    /// Tells who waits for an object that it has not come.
    fn conclude(
        &mut self,
        attached: &Attached,
        key: &Key,
        failure: Failure,
        touched: &mut Vec<u64>,
    ) {
        let counters = &self.shared.counters;
        match failure {
            Failure::Missing => counters.missing.increment(),
            Failure::Failed => counters.failed.increment(),
            Failure::Corrupt => counters.corrupt.increment(),
            Failure::Foreign => counters.foreign.increment(),
            Failure::OtherLength => counters.other_length.increment(),
            Failure::Deleted => counters.deleted.increment(),
            Failure::NoRoom => {
                counters.l1_oom.increment();
                self.tell(key, touched, Request::give_up);
                return;
            }
        }
        self.tell(key, touched, |request, at| request.failed(at, attached.id));
    }

    /// Tells every request that waits for the load of this key; how many there were.
    fn tell(
        &mut self,
        key: &Key,
        touched: &mut Vec<u64>,
        mut what: impl FnMut(&mut Request, usize),
    ) -> u64 {
        let mut told = 0;
        let mut load = self.loading.remove(key).unwrap_or_default();
        if load.is_doomed {
            self.doomed -= 1;
        }
        for (id, cell) in load.take_waiters() {
            if let Some(request) = self.requests.get_mut(&id) {
                what(request, cell);
                told += 1;
                if !touched.contains(&id) {
                    touched.push(id);
                }
            }
        }
        told
    }
}

/// Where the controller hears of a result. One that there is none comes from whoever found out, who may be about to answer
/// others.
fn heard_by<R>(result: &Result<R, TaskError>) -> Hear {
    match result {
        Ok(_) => Hear::Anywhere,
        Err(_) => Hear::Apart,
    }
}

/// What one backend loads of a request.
struct Group {
    /// Which backend's answer it is.
    answer: usize,
    cells: Vec<usize>,
    objects: Vec<(BatchCell, Option<Page>)>,
}

/// The backends that have not let go of so much in time that what is to be loaded from them next finds no room in their share. Nobody
/// knows whether it ever will, so it is not waited for.
fn stuck(request: &Request, todo: &[Todo], share: u64) -> Vec<u64> {
    let mut seen = Vec::with_capacity(1);
    let mut stuck = Vec::new();
    for next in todo {
        if seen.contains(&next.answer) {
            continue;
        }
        seen.push(next.answer);
        if let Some(attached) = request.backend(next.answer) {
            let captive = attached.backend.captive_load_bytes();
            if captive > 0 && captive.saturating_add(next.room.bytes()) > share {
                stuck.push(attached.id);
            }
        }
    }
    stuck
}

/// What of a request can be loaded now: from each backend that is not full as much as its share allows. Notes for which ones the
/// request waits if that is nothing.
fn next_part(request: &mut Request, todo: Vec<Todo>, share: u64, full: &mut Vec<u64>) -> Vec<Todo> {
    // How much is wanted by each answer, and later how much is taken; and how much may be, beside what is captive.
    let mut wanted: Vec<(usize, u64, u64)> = Vec::with_capacity(1);
    for next in &todo {
        let bytes = next.room.bytes();
        match wanted
            .iter_mut()
            .find(|(answer, ..)| *answer == next.answer)
        {
            Some((_, sum, _)) => *sum = sum.saturating_add(bytes),
            None => wanted.push((next.answer, bytes, share)),
        }
    }
    let mut waits_for = Vec::new();
    let mut all = true;
    wanted.retain_mut(|(answer, bytes, room)| {
        let Some(attached) = request.backend(*answer) else {
            return false;
        };
        *room = share.saturating_sub(attached.backend.captive_load_bytes());
        let in_flight = attached.loading_bytes.load(Ordering::Relaxed);
        // What is larger than the share waits until it is alone, and goes in parts.
        let exceeds = in_flight > 0 && in_flight.saturating_add(*bytes) > *room;
        let is_full = full.contains(&attached.id);
        if exceeds && !is_full {
            full.push(attached.id);
        }
        if exceeds || is_full {
            waits_for.push(attached.id);
        }
        all &= *bytes <= *room;
        *bytes = 0;
        !(exceeds || is_full)
    });
    if all && waits_for.is_empty() {
        return todo;
    }
    let mut part = Vec::with_capacity(todo.len());
    for next in todo {
        let Some((_, bytes, room)) = wanted
            .iter_mut()
            .find(|(answer, ..)| *answer == next.answer)
        else {
            continue;
        };
        let is_first = *bytes == 0;
        *bytes = bytes.saturating_add(next.room.bytes());
        if is_first || *bytes <= *room {
            part.push(next);
        }
    }
    if part.is_empty() {
        request.waits_for = waits_for;
    }
    part
}

fn page_len(room: Room) -> Option<u64> {
    match room {
        Room::Page { len, .. } => Some(len),
        Room::Buffer { .. } => None,
    }
}

/// Half of the machine decodes at most; the other half has clients to serve.
fn decoder_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).clamp(1, 8))
}
