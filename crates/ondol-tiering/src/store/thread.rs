use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ondol_catalog::failpoint;
use ondol_host::l2::TaskError;
use ondol_plugin::Key;
use ondol_plugin::l2::{LookupResult, StoreItem, StoreResult};

use super::barred::{Bar, BarredKeys};
use super::batch::{Batch, Captive, InFlight, Submitted};
use super::breaker::{Breaker, Permit};
use super::inbox::{Ended, Finished, For, Inbox, Order, Waiting};
use super::retry::Retries;
use super::walk::{Asked, STEP_KEYS, Walk};
use super::{Shared, Shown};
use crate::attached::Attached;
use crate::object_key;

/// The most objects of one task.
const BATCH_KEYS: usize = 64;
/// The most bytes of one task with more than one object.
const BATCH_BYTES: u64 = 16 << 20;
/// The most tasks under way at a time.
const BATCHES_IN_FLIGHT: usize = 32;
/// How often it is looked whether an adapter has let go of what it was given in vain.
const CAPTIVE_POLL: Duration = Duration::from_millis(50);
/// Objects that were given up are looked for after so many pauses of the breaker, and later after up to so many times that.
const LOOK_PAUSES: u32 = 4;
const LONGEST_LOOK_PAUSE: u32 = 32;

/// Stores objects in one backend.
pub(super) struct StoreThread {
    shared: Arc<Shared>,
    attached: Arc<Attached>,
    inbox: Arc<Inbox>,
    shown: Arc<Shown>,
    breaker: Breaker,
    /// What is to be tried again now, and goes before what is new.
    ready: VecDeque<Waiting>,
    retries: Retries,
    in_flight: InFlight,
    captive: Vec<Captive>,
    /// Bytes of objects that are leased, captive ones included.
    leased_bytes: u64,
    /// Keys that are under way, captive or to be tried again: they are not stored a second time meanwhile.
    busy: HashSet<Key, foldhash::fast::RandomState>,
    /// Objects that are being deleted.
    barred: BarredKeys,
    walk: Walk,
    /// When to look for objects that were given up, and the pause before.
    look_again: Option<Instant>,
    look_pause: Duration,
}

impl StoreThread {
    pub(super) fn new(
        shared: Arc<Shared>,
        attached: Arc<Attached>,
        inbox: Arc<Inbox>,
        shown: Arc<Shown>,
    ) -> Self {
        let config = &shared.config;
        Self {
            breaker: Breaker::new(config.breaker_failures, config.breaker_pause),
            // Backends that fail together must not come back together.
            retries: Retries::new(config.store_backoff, config.seed ^ attached.id),
            shared,
            attached,
            inbox,
            shown,
            ready: VecDeque::new(),
            in_flight: InFlight::default(),
            captive: Vec::new(),
            leased_bytes: 0,
            busy: HashSet::default(),
            barred: BarredKeys::default(),
            walk: Walk::default(),
            look_again: None,
            look_pause: Duration::ZERO,
        }
    }

    pub(super) fn run(mut self) {
        let mut order = Order::Serve;
        loop {
            let now = Instant::now();
            self.free_captives();
            self.answer_bars();
            if self.look_again.take_if(|at| *at <= now).is_some() {
                self.inbox.want_walk();
            }
            while let Some(due) = self.retries.pop(now) {
                self.ready.push_back(due);
            }
            let room = self.room(now);
            let again = self.take_ready(room);
            let mut can = if again.is_empty() {
                room
            } else {
                For::default()
            };
            can.walk = order == Order::Serve && self.may_begin_walk(now);
            let until = if again.is_empty() {
                self.wake_at(order, now)
            } else {
                Some(now)
            };
            let elsewhere = self.ready.len() + self.retries.len();
            let work = self.inbox.next(can, order, elsewhere, until);
            order = work.order;
            for finished in work.finished {
                self.finished(finished);
            }
            for bar in work.bars {
                self.hear(bar);
            }
            match order {
                Order::Stop => break,
                Order::Leave => {
                    let rest = again.into_iter().chain(work.batch);
                    self.give_back(rest.chain(self.inbox.clear()).collect());
                    if self.is_idle() {
                        break;
                    }
                    continue;
                }
                Order::Finish => self.walk.end(),
                Order::Serve => {}
            }
            self.submit(if again.is_empty() { work.batch } else { again });
            if order == Order::Finish && self.is_finished() {
                break;
            }
            if order == Order::Serve {
                self.walk_on(Instant::now());
            }
        }
    }

    /// What may be submitted now.
    fn room(&self, now: Instant) -> For {
        let idle = self.in_flight.len() == 0 && self.captive.is_empty();
        let bytes = self
            .shared
            .in_flight_bytes()
            .saturating_sub(self.leased_bytes);
        let permitted = match self.breaker.permit(now) {
            Permit::Pass => self.in_flight.len() < BATCHES_IN_FLIGHT,
            Permit::Probe => true,
            Permit::Wait(_) => false,
        };
        if !permitted || (bytes == 0 && !idle) {
            return For::default();
        }
        // Who tries a backend that does not let go of what it has risks one object.
        let is_try = self.breaker.is_open() && !self.captive.is_empty();
        For {
            objects: if is_try { 1 } else { BATCH_KEYS },
            bytes: bytes.min(BATCH_BYTES),
            any_length: idle,
            walk: false,
        }
    }

    /// The next of those that are to be tried again.
    fn take_ready(&mut self, room: For) -> Vec<Waiting> {
        let mut batch: Vec<Waiting> = Vec::new();
        let mut bytes = 0;
        while let Some(next) = self.ready.front() {
            let first = batch.is_empty();
            let joins = first || !(next.alone || batch[0].alone);
            let fits = bytes + next.len <= room.bytes || (room.any_length && first);
            if batch.len() >= room.objects || !joins || !fits {
                break;
            }
            bytes += next.len;
            batch.extend(self.ready.pop_front());
        }
        batch
    }

    /// When there is something to do, if nothing happens before.
    fn wake_at(&self, order: Order, now: Instant) -> Option<Instant> {
        let permit = self.breaker.permit(now);
        let breaker = match permit {
            Permit::Wait(until) => until,
            Permit::Pass | Permit::Probe => None,
        };
        let retry = match permit {
            Permit::Wait(_) => None,
            Permit::Pass | Permit::Probe => self.retries.next(),
        };
        let captive = (!self.captive.is_empty()).then(|| now + CAPTIVE_POLL);
        let walk = (order == Order::Serve && self.may_walk(now))
            .then(|| self.walk.not_before.unwrap_or(now));
        [breaker, retry, captive, walk, self.look_again]
            .into_iter()
            .flatten()
            .min()
    }

    fn is_idle(&self) -> bool {
        self.in_flight.len() == 0 && self.walk.asked.is_none()
    }

    /// Whether nothing is left that could be stored.
    fn is_finished(&self) -> bool {
        let nothing_waits = self.ready.is_empty() && self.retries.len() == 0;
        // Behind an open breaker there is nothing to wait for.
        let hopeless = self.breaker.is_open();
        self.is_idle() && (hopeless || (nothing_waits && self.inbox.is_empty()))
    }

    /// Hears of a delete: what is to be tried again is let go.
    fn hear(&mut self, bar: Bar) {
        let closes = matches!(bar, Bar::Close { .. });
        self.barred.hear(bar);
        if !closes {
            return;
        }
        let is_barred = |waiting: &Waiting| self.barred.contains(&waiting.key);
        let ready = std::mem::take(&mut self.ready);
        let (gone, ready): (Vec<_>, Vec<_>) = ready.into_iter().partition(is_barred);
        self.ready = ready.into();
        let gone = gone.into_iter().chain(self.retries.take(is_barred));
        let gone: Vec<_> = gone.map(|waiting| waiting.key).collect();
        self.let_go(&gone);
    }

    /// Tells those who delete objects once none of them is read any more.
    fn answer_bars(&mut self) {
        let Self {
            barred,
            in_flight,
            captive,
            ..
        } = self;
        let captive = captive.iter().map(|captive| &captive.waiting.key);
        barred.answer(|| in_flight.keys().chain(captive));
    }

    /// Lets go of objects that are being deleted; gives the others.
    fn without_barred(&mut self, waiting: Vec<Waiting>) -> Vec<Waiting> {
        let is_barred = |waiting: &Waiting| self.barred.contains(&waiting.key);
        let (barred, waiting): (Vec<_>, _) = waiting.into_iter().partition(is_barred);
        let barred: Vec<_> = barred.into_iter().map(|waiting| waiting.key).collect();
        self.let_go(&barred);
        waiting
    }

    /// Leases objects, makes them ready and hands them to the backend.
    fn submit(&mut self, waiting: Vec<Waiting>) {
        let fresh = |waiting: &Waiting| waiting.attempts == 0;
        let (waiting, twice): (Vec<_>, Vec<_>) = waiting
            .into_iter()
            .partition(|it| !fresh(it) || self.busy.insert(it.key.clone()));
        self.shared.settle(twice.iter().map(|it| &it.key));
        let waiting = self.without_barred(waiting);
        if waiting.is_empty() {
            return;
        }
        let counters = &self.shown.counters;
        let keys: Vec<_> = waiting.iter().map(|it| it.key.clone()).collect();
        let leases = self.shared.memory.lease(&keys);
        failpoint!("store.leased");
        let mut batch = Batch::default();
        let mut items = Vec::with_capacity(keys.len());
        let mut out = Vec::new();
        let mut unleased = Vec::new();
        for ((waiting, key), lease) in waiting.into_iter().zip(keys).zip(leases) {
            let Some(lease) = lease else {
                unleased.push((key, waiting));
                continue;
            };
            let name = object_key(&key);
            let len = lease.as_ref().len() as u64;
            let object = match self.attached.codec.encode(&key, &name, lease) {
                Ok(object) => object,
                Err(error) => {
                    counters.encode_failures.increment();
                    let what = "an object is not stored: its transforms failed";
                    let complaints = &self.attached.complaints;
                    if let Some(unwritten) = complaints.of(what, Instant::now()) {
                        let backend = self.attached.backend.name();
                        tracing::warn!(backend, %key, %error, unwritten, "{what}");
                    }
                    out.push(key);
                    continue;
                }
            };
            batch.bytes += len;
            batch.keys.push(key);
            batch.objects.push(Submitted {
                name: name.clone(),
                len,
                stored_len: object.stored_len() as u64,
                attempts: waiting.attempts,
                alone: waiting.alone,
                watch: object.watch(),
            });
            items.push(StoreItem { key: name, object });
        }
        self.let_go(&out);
        self.not_leased(unleased);
        if items.is_empty() {
            return;
        }
        self.shown.counters.submitted.add(items.len() as u64);
        self.leased_bytes += batch.bytes;
        if matches!(self.breaker.permit(Instant::now()), Permit::Probe) {
            self.breaker.probing();
        }
        let number = self.in_flight.insert(batch);
        let inbox = Arc::clone(&self.inbox);
        let timeout = self.shared.config.store_timeout;
        let done = move |result| inbox.finished(Finished::Store(number, result));
        self.attached.backend.store(items, timeout, done);
        failpoint!("store.submitted");
    }

    /// Objects that were not leased: most likely they have left memory; if not, the tier has too many leases now.
    fn not_leased(&mut self, objects: Vec<(Key, Waiting)>) {
        if objects.is_empty() {
            return;
        }
        let (keys, objects): (Vec<_>, Vec<_>) = objects.into_iter().unzip();
        let there = self.shared.memory.contains(&keys);
        let mut gone = Vec::new();
        for (at, (key, mut waiting)) in keys.into_iter().zip(objects).enumerate() {
            if there.test(at) {
                waiting.attempts += 1;
                if waiting.attempts > self.shared.config.store_retries {
                    self.shown.counters.given_up.increment();
                    self.look_later();
                    self.let_go(&[key]);
                    continue;
                }
                let again_at = self.again_at(waiting.attempts);
                self.retries.push(again_at, waiting);
            } else {
                gone.push(key);
            }
        }
        self.shown.counters.gone.add(gone.len() as u64);
        self.let_go(&gone);
    }

    fn finished(&mut self, finished: Finished) {
        match finished {
            Finished::Store(number, result) => {
                let Some(batch) = self.in_flight.remove(number) else {
                    return;
                };
                match result {
                    Ok(StoreResult(Ok(bytes))) => self.stored(batch, bytes),
                    Ok(StoreResult(Err(error))) => {
                        self.failed(batch, error.retryable, &error.reason);
                    }
                    Err(error) => {
                        if matches!(error, TaskError::TimedOut { .. }) {
                            self.shown.counters.timed_out.increment();
                        }
                        self.failed(batch, true, &error.to_string());
                    }
                }
            }
            Finished::Lookup(result) => self.looked_up(result),
        }
    }

    fn stored(&mut self, batch: Batch, bytes: u64) {
        failpoint!("store.completed");
        let counters = &self.shown.counters;
        counters.stored.add(batch.keys.len() as u64);
        counters.stored_bytes.add(bytes);
        self.leased_bytes -= batch.bytes;
        self.works();
        if let Some(evictions) = &self.attached.evictions {
            let objects = batch.objects.iter();
            evictions.stored(objects.map(|object| (&object.name, object.stored_len)));
        }
        self.mark_stored(&batch.keys);
        self.let_go(&batch.keys);
    }

    fn mark_stored(&self, keys: &[Key]) {
        if self.shared.backends.is_safe_in(&self.attached) {
            self.shared.memory.mark_stored(keys);
            failpoint!("store.marked");
        }
    }

    /// The backend did something right.
    fn works(&mut self) {
        if self.breaker.succeeded() {
            self.shown.breaker_open.store(false, Ordering::Relaxed);
            let backend = self.attached.backend.name();
            tracing::info!(backend, "the backend works again; stores go on");
            // What was given up or deferred meanwhile is to be found.
            self.inbox.want_walk();
        }
    }

    /// Nothing of a batch counts as stored, whatever of it is there.
    fn failed(&mut self, batch: Batch, retryable: bool, reason: &str) {
        let backend = self.attached.backend.name();
        let objects = batch.keys.len();
        self.shown.counters.failed.increment();
        tracing::debug!(backend, objects, reason, "a batch was not stored");
        // An object that this backend will never take says nothing of how the backend fares.
        let is_of_one_object = !retryable && objects == 1;
        if !is_of_one_object && self.breaker.failed(Instant::now()) {
            self.shown.breaker_open.store(true, Ordering::Relaxed);
            self.shown.counters.breaker_opened.increment();
            let pause = self.shared.config.breaker_pause;
            tracing::warn!(
                backend,
                reason,
                ?pause,
                "the backend failed too often in a row; its stores wait"
            );
        }
        let was_alone = objects == 1;
        // They come back as a batch.
        let again_at = self.again_at(batch.objects.first().map_or(1, |it| it.attempts + 1));
        for (key, object) in batch.keys.into_iter().zip(batch.objects) {
            let captive = Captive {
                waiting: Waiting {
                    key,
                    len: object.len,
                    attempts: object.attempts + 1,
                    alone: object.alone,
                },
                watch: object.watch,
                retryable,
                was_alone,
            };
            if captive.watch.is_held() {
                self.captive.push(captive);
            } else {
                self.released(captive, again_at);
            }
        }
    }

    /// When something is tried again that was tried so often.
    fn again_at(&mut self, attempts: u32) -> Instant {
        Instant::now() + self.retries.pause(attempts)
    }

    /// Tries objects again that an adapter has let go of at last.
    fn free_captives(&mut self) {
        if self.captive.is_empty() {
            return;
        }
        let (held, free): (Vec<_>, Vec<_>) = std::mem::take(&mut self.captive)
            .into_iter()
            .partition(|captive| captive.watch.is_held());
        self.captive = held;
        for captive in free {
            let again_at = self.again_at(captive.waiting.attempts);
            self.released(captive, again_at);
        }
    }

    /// An object that was not stored and that nobody reads any more: it is tried again, or given up.
    fn released(&mut self, captive: Captive, again_at: Instant) {
        let Captive {
            mut waiting,
            retryable,
            was_alone,
            ..
        } = captive;
        self.leased_bytes -= waiting.len;
        if self.barred.contains(&waiting.key) {
            return self.let_go(&[waiting.key]);
        }
        let tries = self.shared.config.store_retries;
        // One object that cannot be stored must not condemn the others of its batch.
        let again = if retryable {
            waiting.alone |= waiting.attempts >= tries;
            waiting.attempts <= tries
        } else {
            waiting.alone = true;
            !was_alone
        };
        if again {
            self.shown.counters.retried.increment();
            self.retries.push(again_at, waiting);
        } else {
            self.shown.counters.given_up.increment();
            if retryable {
                self.look_later();
            }
            self.let_go(&[waiting.key]);
        }
    }

    /// An object was given up that may be stored one day. It is looked for once the breaker closes, and in any case after a pause
    /// that grows for as long as such objects are found.
    fn look_later(&mut self) {
        if self.look_again.is_none() {
            let first = self.shared.config.breaker_pause * LOOK_PAUSES;
            self.look_pause = (self.look_pause * 2).clamp(first, first * LONGEST_LOOK_PAUSE);
            self.look_again = Some(Instant::now() + self.look_pause);
        }
    }

    /// These objects are not under way any more.
    fn let_go(&mut self, keys: &[Key]) {
        for key in keys {
            self.busy.remove(key);
        }
        self.shared.settle(keys.iter());
    }

    /// The backend gets nothing more: what waits for it is left.
    fn give_back(&mut self, waiting: Vec<Waiting>) {
        let far = Instant::now() + Duration::from_secs(1 << 20);
        let retries = std::iter::from_fn(|| self.retries.pop(far));
        let waiting: Vec<_> = waiting
            .into_iter()
            .chain(self.ready.drain(..))
            .chain(retries)
            .map(|waiting| waiting.key)
            .collect();
        self.let_go(&waiting);
    }

    /// Whether the walk may take a step when it is due.
    fn may_walk(&self, now: Instant) -> bool {
        self.walk.is_running
            && self.walk.asked.is_none()
            && self.is_permitted(now)
            && self.ready.is_empty()
            && self.inbox.has_room_for_walk()
    }

    fn may_begin_walk(&self, now: Instant) -> bool {
        !self.walk.is_running && self.is_permitted(now)
    }

    fn is_permitted(&self, now: Instant) -> bool {
        !matches!(self.breaker.permit(now), Permit::Wait(_))
    }

    /// Takes a step of the walk, if there is one to take.
    fn walk_on(&mut self, now: Instant) {
        if self.may_begin_walk(now) && self.inbox.take_walk() {
            self.walk.begin();
            self.shown.walking.store(true, Ordering::Relaxed);
        }
        if !self.may_walk(now) || !self.walk.is_due(now) {
            return;
        }
        self.walk.not_before = None;
        if self.walk.rest.is_empty() {
            let Some(part) = self.part(self.walk.next_part) else {
                if !self.walk.found_lacking {
                    self.look_pause = Duration::ZERO;
                }
                self.walk.end();
                self.shown.walking.store(false, Ordering::Relaxed);
                self.shown.counters.walks.increment();
                return;
            };
            self.walk.next_part += 1;
            self.walk.rest = part.into();
        }
        let step = self.walk.rest.len().min(STEP_KEYS);
        let mut objects: Vec<_> = self.walk.rest.drain(..step).collect();
        let admission = self.shared.admission.as_ref();
        objects.retain(|(key, _)| {
            !self.busy.contains(key) && admission.is_none_or(|it| it.is_admitted(key))
        });
        if objects.is_empty() {
            return;
        }
        let names: Vec<_> = objects.iter().map(|(key, _)| object_key(key)).collect();
        self.walk.asked = Some(Asked {
            objects,
            names: names.clone(),
        });
        let inbox = Arc::clone(&self.inbox);
        let timeout = self.shared.config.lookup_timeout;
        let done = move |result| inbox.finished(Finished::Lookup(result));
        self.attached.backend.lookup(names, timeout, done);
    }

    /// Objects of a part of the memory that the backend may lack.
    fn part(&self, part: usize) -> Option<Vec<(Key, u64)>> {
        // If there was never another backend, it is known what is stored here.
        if self.shared.added.load(Ordering::Relaxed) == 1 {
            self.shared.memory.unstored_part(part)
        } else {
            self.shared.memory.part(part)
        }
    }

    /// The backend has answered a step of the walk.
    fn looked_up(&mut self, result: Result<LookupResult, TaskError>) {
        let Some(Asked { objects, names }) = self.walk.asked.take() else {
            return;
        };
        let error = match result {
            Ok(LookupResult {
                error: None,
                found,
                sizes,
            }) => {
                let found_names: Vec<_> = found.gather(&names).into_iter().cloned().collect();
                if let Some(evictions) = &self.attached.evictions {
                    let sizes = found.ones().map(|at| sizes.get(at).copied().unwrap_or(0));
                    evictions.stored(found_names.iter().zip(sizes));
                }
                let (found, lacking): (Vec<_>, Vec<_>) = objects
                    .into_iter()
                    .enumerate()
                    .partition(|(at, _)| found.test(*at));
                let found: Vec<_> = found.into_iter().map(|(_, (key, _))| key).collect();
                if !found.is_empty() {
                    // Before it can be deleted there, which the lock forbids.
                    self.mark_stored(&found);
                    self.attached.backend.unlock(found_names);
                    self.shown.counters.walk_found.add(found.len() as u64);
                    self.shared.settle(found.iter());
                }
                let lacking = lacking.into_iter().map(|(_, object)| object);
                self.queue_lacking(lacking.collect());
                return;
            }
            Ok(LookupResult {
                error: Some(error), ..
            }) => error,
            Err(error) => error.to_string(),
        };
        let backend = self.attached.backend.name();
        tracing::debug!(backend, error, "a walk waits: its lookup failed");
        self.walk.put_back(objects);
        self.walk.not_before = Some(Instant::now() + self.shared.config.breaker_pause);
    }

    /// Queues what a step of the walk has found to lack. What finds the queue full comes back later.
    fn queue_lacking(&mut self, mut lacking: Vec<(Key, u64)>) {
        // Some may have been committed, or used, since the backend was asked.
        lacking.retain(|(key, _)| !self.busy.contains(key));
        let lacking = self.inbox.not_waiting(lacking);
        if let Some(outstanding) = &self.shared.outstanding {
            outstanding.add(lacking.iter().map(|(key, _)| key), 1);
        }
        let left = self.inbox.found(&lacking);
        let queued = lacking.len() - left;
        self.shown.counters.walk_queued.add(queued as u64);
        self.walk.found_lacking |= queued > 0;
        let left = &lacking[queued..];
        if let Some(outstanding) = &self.shared.outstanding {
            outstanding.done(left.iter().map(|(key, _)| key));
        }
        self.walk.put_back(left.to_vec());
    }
}

/// Who waits for its stores learns what is known of them; nobody hears of those that have not ended.
impl Drop for StoreThread {
    fn drop(&mut self) {
        self.answer_bars();
        let ended = if self.in_flight.len() == 0 && self.captive.is_empty() {
            Ended::Settled
        } else {
            Ended::Unsettled
        };
        self.inbox.end(ended);
    }
}
