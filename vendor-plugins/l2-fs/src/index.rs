//! What is known of the objects that are there: their sizes, their order of use, who holds or changes them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, SystemTime};

use hashlink::LinkedHashMap;
use ondol_plugin::l2::{KeyEntry, ObjectKey, Usage};
use parking_lot::{Condvar, Mutex};

/// How exactly the time of last use is kept in the directory, for the order after a restart.
const TOUCH_EVERY: Duration = Duration::from_secs(60);

/// Objects that are there, as far as is known.
#[derive(Debug)]
pub(crate) struct Index {
    state: Mutex<State>,
    /// Some key is not busy any more.
    released: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Least recently used first.
    entries: LinkedHashMap<ObjectKey, Entry>,
    /// Keys by the number of their entry, for listings.
    numbers: BTreeMap<u64, ObjectKey>,
    next_number: u64,
    /// How often each key is locked. Locks outlive an entry that is lost.
    locks: HashMap<ObjectKey, u64>,
    /// Keys whose file somebody is looking at or changing.
    busy: HashMap<ObjectKey, Busy>,
    used: u64,
    used_by_salt: BTreeMap<String, u64>,
    /// Bytes promised to files that are being written.
    reserved: u64,
    /// Bytes of files that are being removed; they are in `used` still.
    leaving: u64,
    capacity: u64,
    is_complete: bool,
    /// Removed while what was there at the start was still being counted.
    gone: HashSet<ObjectKey>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    bytes: u64,
    number: u64,
    touched: SystemTime,
}

/// What somebody does with the file of a key; one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Busy {
    /// It is given its name, or looked for.
    Checking,
    /// It is removed; until that is done, nobody finds it.
    Removing,
}

/// A key of which nobody else looks at the file or changes it.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    index: &'a Index,
    key: ObjectKey,
    kind: Busy,
    /// What was taken for `leaving`.
    leaving: u64,
}

/// Room for a file that is being written.
#[derive(Debug)]
pub(crate) struct Room<'a> {
    index: &'a Index,
    bytes: u64,
}

/// What came of asking for room.
#[derive(Debug)]
pub(crate) enum Asked<'a> {
    Granted(Room<'a>),
    /// Remove these, then ask again.
    Evict(Vec<Claim<'a>>),
    /// There never will be as much.
    TooLarge {
        capacity: u64,
    },
    /// All there is is locked or being written.
    Held {
        capacity: u64,
    },
}

/// Whether an object may be removed.
#[derive(Debug)]
pub(crate) enum Removal<'a> {
    Locked,
    Allowed(Claim<'a>),
}

/// A file found at the start.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) key: ObjectKey,
    pub(crate) bytes: u64,
    pub(crate) used: SystemTime,
}

impl Index {
    pub(crate) fn new(capacity: u64) -> Self {
        Self {
            state: Mutex::new(State {
                capacity,
                ..State::default()
            }),
            released: Condvar::new(),
        }
    }

    /// Locks those of `keys` that are known, and says the bytes of their files; `None` where one would have to look.
    pub(crate) fn lock_known<'k>(
        &self,
        keys: impl IntoIterator<Item = &'k ObjectKey>,
    ) -> Vec<Option<u64>> {
        let mut state = self.state.lock();
        let lock = |key| state.lock(key);
        keys.into_iter().map(lock).collect()
    }

    /// Takes a lock from each of these keys, if it has one.
    pub(crate) fn unlock_all<'k>(&self, keys: impl IntoIterator<Item = &'k ObjectKey>) {
        let mut state = self.state.lock();
        keys.into_iter().for_each(|key| state.unlock(key));
    }

    /// Waits until nobody else has to do with the file of a key.
    pub(crate) fn claim(&self, key: &ObjectKey) -> Claim<'_> {
        let mut state = self.state.lock();
        while state.busy.contains_key(key) {
            self.released.wait(&mut state);
        }
        state.busy.insert(key.clone(), Busy::Checking);
        self.claimed(key.clone(), Busy::Checking, 0)
    }

    /// As [`claim`](Self::claim); `None`, without waiting, if the object is being removed.
    pub(crate) fn claim_unless_leaving(&self, key: &ObjectKey) -> Option<Claim<'_>> {
        let mut state = self.state.lock();
        while let Some(busy) = state.busy.get(key) {
            if *busy == Busy::Removing {
                return None;
            }
            self.released.wait(&mut state);
        }
        state.busy.insert(key.clone(), Busy::Checking);
        Some(self.claimed(key.clone(), Busy::Checking, 0))
    }

    /// Waits for a key as [`claim`](Self::claim) does, in order to remove it.
    pub(crate) fn claim_removal(&self, key: &ObjectKey) -> Removal<'_> {
        let mut state = self.state.lock();
        loop {
            if state.locks.contains_key(key) {
                return Removal::Locked;
            }
            if !state.busy.contains_key(key) {
                break;
            }
            self.released.wait(&mut state);
        }
        let leaving = state.begin_removal(key);
        Removal::Allowed(self.claimed(key.clone(), Busy::Removing, leaving))
    }

    /// As [`claim_removal`](Self::claim_removal) for what cannot be read: locks do not save it.
    pub(crate) fn claim_damaged(&self, key: &ObjectKey) -> Claim<'_> {
        let mut state = self.state.lock();
        while state.busy.contains_key(key) {
            self.released.wait(&mut state);
        }
        let leaving = state.begin_removal(key);
        self.claimed(key.clone(), Busy::Removing, leaving)
    }

    /// Asks for room for a file of so many bytes.
    pub(crate) fn ask(&self, bytes: u64) -> Asked<'_> {
        let mut state = self.state.lock();
        // Until everything is counted, nobody knows what is least recently used, nor whether anything must go.
        let capacity = state.capacity;
        if state.is_complete {
            if bytes > capacity {
                return Asked::TooLarge { capacity };
            }
            let stays = state.used - state.leaving + state.reserved + bytes;
            if let Some(excess) = stays.checked_sub(capacity).filter(|excess| *excess > 0) {
                let victims = self.victims(&mut state, excess);
                return if victims.is_empty() {
                    Asked::Held { capacity }
                } else {
                    Asked::Evict(victims)
                };
            }
        }
        state.reserved += bytes;
        Asked::Granted(Room { index: self, bytes })
    }

    /// Least recently used objects of so many bytes together, or fewer if there are not as many that nobody holds.
    pub(crate) fn least_used(&self, bytes: u64) -> Vec<Claim<'_>> {
        self.victims(&mut self.state.lock(), bytes)
    }

    /// Bytes above the capacity.
    pub(crate) fn excess(&self) -> u64 {
        let state = self.state.lock();
        let kept = state.used - state.leaving + state.reserved;
        kept.saturating_sub(state.capacity)
    }

    fn victims(&self, state: &mut State, bytes: u64) -> Vec<Claim<'_>> {
        let mut chosen = Vec::new();
        let mut sum = 0;
        for (key, entry) in &state.entries {
            if sum >= bytes {
                break;
            }
            if !state.locks.contains_key(key) && !state.busy.contains_key(key) {
                sum += entry.bytes;
                chosen.push(key.clone());
            }
        }
        let claim = |key: ObjectKey| {
            let leaving = state.begin_removal(&key);
            self.claimed(key, Busy::Removing, leaving)
        };
        chosen.into_iter().map(claim).collect()
    }

    fn claimed(&self, key: ObjectKey, kind: Busy, leaving: u64) -> Claim<'_> {
        Claim {
            index: self,
            key,
            kind,
            leaving,
        }
    }

    /// Bytes of an object's file, if it is known.
    pub(crate) fn bytes(&self, key: &ObjectKey) -> Option<u64> {
        let state = self.state.lock();
        state.entries.get(key).map(|entry| entry.bytes)
    }

    /// Notes that an object was read; whether the time of it is to be written down.
    pub(crate) fn used(&self, key: &ObjectKey) -> bool {
        let now = SystemTime::now();
        let mut state = self.state.lock();
        let Some(entry) = state.entries.to_back(key) else {
            return false;
        };
        let is_due = now
            .duration_since(entry.touched)
            .is_ok_and(|since| since >= TOUCH_EVERY);
        if is_due {
            entry.touched = now;
        }
        is_due
    }

    /// Adds files that were there at the start, in order: the one used last first.
    pub(crate) fn merge(&self, found: Vec<Found>) {
        let mut state = self.state.lock();
        for Found { key, bytes, used } in found {
            if state.gone.contains(&key) || state.entries.contains_key(&key) {
                continue;
            }
            state.insert(&key, bytes, used);
            state.entries.to_front(&key);
        }
    }

    /// Says that all that was there at the start is known, and what may be used from now on.
    pub(crate) fn complete(&self, capacity: u64) {
        let mut state = self.state.lock();
        state.capacity = capacity;
        state.is_complete = true;
        state.gone = HashSet::new();
    }

    pub(crate) fn usage(&self) -> Usage {
        let state = self.state.lock();
        Usage {
            used_bytes: state.used,
            capacity_bytes: Some(state.capacity),
            objects: state.entries.len() as u64,
            bytes_by_salt: state.used_by_salt.clone(),
            is_complete: state.is_complete,
        }
    }

    /// Objects whose number is above `after`, as many as `most`, and the number of the last one if there may be more.
    pub(crate) fn list(
        &self,
        after: Option<u64>,
        most: usize,
        accept: impl Fn(&ObjectKey) -> bool,
    ) -> (Vec<KeyEntry>, Option<u64>) {
        let state = self.state.lock();
        let first = after.map_or(0, |after| after.saturating_add(1));
        let mut entries = Vec::new();
        let mut last = None;
        for (number, key) in state.numbers.range(first..) {
            if !accept(key) {
                continue;
            }
            if entries.len() == most {
                return (entries, last);
            }
            last = Some(*number);
            let size_bytes = state.entries.get(key).map_or(0, |entry| entry.bytes);
            let key = key.clone();
            entries.push(KeyEntry { key, size_bytes });
        }
        (entries, None)
    }

    /// Locks that are held.
    pub(crate) fn locked(&self) -> usize {
        self.state.lock().locks.len()
    }
}

impl State {
    fn lock(&mut self, key: &ObjectKey) -> Option<u64> {
        let bytes = self.entries.get(key)?.bytes;
        if self.busy.get(key) == Some(&Busy::Removing) {
            return None;
        }
        match self.locks.get_mut(key) {
            Some(count) => *count += 1,
            None => {
                self.locks.insert(key.clone(), 1);
            }
        }
        Some(bytes)
    }

    fn unlock(&mut self, key: &ObjectKey) {
        if let Some(count) = self.locks.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                self.locks.remove(key);
            }
        }
    }

    fn begin_removal(&mut self, key: &ObjectKey) -> u64 {
        self.busy.insert(key.clone(), Busy::Removing);
        let leaving = self.entries.get(key).map_or(0, |entry| entry.bytes);
        self.leaving += leaving;
        leaving
    }

    fn note(&mut self, key: &ObjectKey, bytes: u64) {
        let known = self.entries.get(key).map(|entry| entry.bytes);
        if known != Some(bytes) {
            self.insert(key, bytes, SystemTime::now());
        }
    }

    fn insert(&mut self, key: &ObjectKey, bytes: u64, touched: SystemTime) {
        self.remove(key);
        let number = self.next_number;
        self.next_number += 1;
        self.numbers.insert(number, key.clone());
        let entry = Entry {
            bytes,
            number,
            touched,
        };
        self.entries.insert(key.clone(), entry);
        self.used += bytes;
        match self.used_by_salt.get_mut(key.cache_salt()) {
            Some(used) => *used += bytes,
            None => {
                self.used_by_salt.insert(key.cache_salt().to_owned(), bytes);
            }
        }
        self.gone.remove(key);
    }

    fn remove(&mut self, key: &ObjectKey) {
        let Some(entry) = self.entries.remove(key) else {
            return;
        };
        self.numbers.remove(&entry.number);
        self.used -= entry.bytes;
        if let Some(used) = self.used_by_salt.get_mut(key.cache_salt()) {
            *used -= entry.bytes;
            if *used == 0 {
                self.used_by_salt.remove(key.cache_salt());
            }
        }
    }
}

impl Claim<'_> {
    pub(crate) fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// Bytes that the object's removal gives back, as far as is known.
    pub(crate) fn bytes(&self) -> u64 {
        self.leaving
    }

    /// Whether the object is known.
    pub(crate) fn is_known(&self) -> bool {
        self.index.state.lock().entries.contains_key(&self.key)
    }

    /// The object is there, in a file of so many bytes.
    pub(crate) fn set_present(&self, bytes: u64) {
        self.index.state.lock().note(&self.key, bytes);
    }

    /// As [`set_present`](Self::set_present) for a file that room was asked for, which does not count twice for a moment.
    pub(crate) fn set_present_in(&self, mut room: Room<'_>, bytes: u64) {
        let mut state = self.index.state.lock();
        state.reserved -= std::mem::take(&mut room.bytes);
        state.note(&self.key, bytes);
        // The room's own end asks for the lock.
        drop(state);
    }

    /// As [`set_present`](Self::set_present), and locks it.
    pub(crate) fn set_present_and_lock(&self, bytes: u64) {
        self.set_present(bytes);
        self.index.state.lock().lock(&self.key);
    }

    /// The object is not there, or not any more.
    pub(crate) fn set_absent(mut self) {
        let mut state = self.index.state.lock();
        // An entry cannot have changed while the key was claimed.
        state.leaving -= std::mem::take(&mut self.leaving);
        state.remove(&self.key);
        if !state.is_complete {
            state.gone.insert(self.key.clone());
        }
        drop(state);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut state = self.index.state.lock();
        state.leaving -= self.leaving;
        state.busy.remove(&self.key);
        if self.kind == Busy::Removing {
            // One that would not go is not tried again at once.
            state.entries.to_back(&self.key);
        }
        drop(state);
        self.index.released.notify_all();
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.index.state.lock().reserved -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use ondol_plugin::l2::KvRank;

    use super::*;

    fn key(n: u8) -> ObjectKey {
        ObjectKey::new("m", KvRank(1), 0, [n], if n < 10 { "a" } else { "b" }).unwrap()
    }

    fn with(capacity: u64, objects: &[(u8, u64)]) -> Index {
        let index = Index::new(capacity);
        index.complete(capacity);
        for (n, bytes) in objects {
            index.claim(&key(*n)).set_present(*bytes);
        }
        index
    }

    fn evict(asked: Asked<'_>) -> Vec<ObjectKey> {
        let Asked::Evict(victims) = asked else {
            panic!("nothing is to be evicted: {asked:?}")
        };
        let gone = |claim: Claim<'_>| {
            let key = claim.key().clone();
            claim.set_absent();
            key
        };
        victims.into_iter().map(gone).collect()
    }

    #[test]
    fn room_is_made_of_what_was_used_longest_ago_and_nobody_holds() {
        let index = with(100, &[(1, 40), (2, 40), (11, 20)]);
        index.used(&key(1));
        assert_eq!(index.lock_known([&key(2)]), [Some(40)]);
        assert_eq!(evict(index.ask(30)), [key(11), key(1)]);
        let Asked::Granted(room) = index.ask(30) else {
            panic!("there is room")
        };
        assert_eq!(
            index.usage().bytes_by_salt,
            BTreeMap::from([("a".into(), 40)])
        );
        assert!(matches!(index.ask(31), Asked::Held { capacity: 100 }));
        assert!(matches!(index.ask(101), Asked::TooLarge { capacity: 100 }));
        drop(room);
        index.unlock_all([&key(2)]);
        assert_eq!(evict(index.ask(61)), [key(2)]);
        assert_eq!(index.usage().used_bytes, 0);
    }

    // It counted with its room until its name was on the disk, and others found no room for theirs.
    #[test]
    fn what_is_stored_does_not_count_beside_the_room_it_was_given() {
        let index = with(100, &[]);
        let Asked::Granted(room) = index.ask(60) else {
            panic!("there is room")
        };
        let claim = index.claim(&key(1));
        claim.set_present_in(room, 60);
        let Asked::Granted(_room) = index.ask(40) else {
            panic!("there is room")
        };
        assert_eq!(index.usage().used_bytes, 60);
        drop(claim);
        assert_eq!(index.excess(), 0);
    }

    #[test]
    fn what_is_being_removed_is_found_by_nobody_and_stays_if_it_cannot_go() {
        let index = with(100, &[(1, 40)]);
        let Removal::Allowed(claim) = index.claim_removal(&key(1)) else {
            panic!("nobody locked it")
        };
        assert_eq!(index.lock_known([&key(1)]), [None]);
        assert!(index.claim_unless_leaving(&key(1)).is_none());
        drop(claim);
        assert_eq!(index.lock_known([&key(1)]), [Some(40)]);
        assert!(matches!(index.claim_removal(&key(1)), Removal::Locked));
        assert_eq!(index.excess(), 0);
    }

    #[test]
    fn a_store_waits_for_the_removal_of_its_key() {
        let index = with(100, &[(1, 40)]);
        let Removal::Allowed(removal) = index.claim_removal(&key(1)) else {
            panic!("nobody locked it")
        };
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                let claim = index.claim(&key(1));
                tell.send("stored").unwrap();
                claim.set_present(50);
            });
            assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
            removal.set_absent();
        });
        assert_eq!(index.usage().used_bytes, 50);
    }

    #[test]
    fn what_is_counted_at_the_start_does_not_overwrite_what_happened_since() {
        let index = Index::new(1000);
        index.claim(&key(1)).set_present(10);
        let Removal::Allowed(removal) = index.claim_removal(&key(2)) else {
            panic!("nobody locked it")
        };
        removal.set_absent();
        let found = |n, bytes| Found {
            key: key(n),
            bytes,
            used: SystemTime::UNIX_EPOCH,
        };
        index.merge(vec![found(1, 10), found(2, 20), found(3, 30), found(4, 40)]);
        assert!(!index.usage().is_complete);
        index.complete(81);
        let usage = index.usage();
        assert_eq!(
            (usage.used_bytes, usage.objects, usage.capacity_bytes),
            (80, 3, Some(81))
        );
        let order: Vec<_> = index
            .least_used(u64::MAX)
            .iter()
            .map(|claim| claim.key().clone())
            .collect();
        assert_eq!(order, [key(4), key(3), key(1)]);
    }

    #[test]
    fn a_listing_goes_on_where_it_ended() {
        let index = with(u64::MAX, &[(1, 1), (2, 2), (11, 3), (3, 4)]);
        let salted = |key: &ObjectKey| key.cache_salt() == "a";
        let (page, after) = index.list(None, 2, salted);
        assert_eq!(
            page.iter()
                .map(|entry| entry.size_bytes)
                .collect::<Vec<_>>(),
            [1, 2]
        );
        let (page, after) = index.list(after, 2, salted);
        assert_eq!(
            page.iter()
                .map(|entry| entry.size_bytes)
                .collect::<Vec<_>>(),
            [4]
        );
        assert_eq!(after, None);
    }
}
