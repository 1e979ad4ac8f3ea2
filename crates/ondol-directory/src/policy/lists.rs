//! What the policies are made of: objects in lists, with their bytes counted.

use std::collections::HashMap;

use hashlink::LinkedHashMap;
use ondol_catalog::{Admitted, EntryId};

use crate::ids::Ids;

/// An object that is there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resident {
    pub(super) fingerprint: u64,
    pub(super) bytes: u64,
    /// Uses that a policy counted.
    pub(super) uses: u8,
    /// Whether it was shown as a victim, so that its removal is an eviction.
    pub(super) offered: bool,
}

impl From<&Admitted<'_>> for Resident {
    fn from(object: &Admitted<'_>) -> Self {
        Self {
            fingerprint: object.fingerprint,
            // Without bytes there would be no end to how many may be remembered.
            bytes: object.bytes.max(1),
            uses: 0,
            offered: false,
        }
    }
}

/// Where an object stands; until it is removed it is its place, whatever list it is in.
pub(super) type Place = u32;

const NOWHERE: Place = Place::MAX;

/// Objects in `N` lists, each of them in one.
///
/// One table finds them all, and moving one from list to list does not touch it. A table for each list would be asked in vain
/// for what is in another, and where neighbours were taken out in no order such a search passes over all of them.
#[derive(Debug)]
pub(super) struct Lists<const N: usize> {
    places: HashMap<EntryId, Place, Ids>,
    nodes: Vec<Node>,
    /// The places that nobody has, each with the next one in `next`.
    free: Place,
    lists: [List; N],
}

#[derive(Clone, Copy, Debug)]
struct List {
    first: Place,
    last: Place,
    bytes: u64,
}

#[derive(Debug)]
struct Node {
    entry: EntryId,
    resident: Resident,
    list: u8,
    previous: Place,
    next: Place,
}

impl<const N: usize> Default for Lists<N> {
    fn default() -> Self {
        let empty = List {
            first: NOWHERE,
            last: NOWHERE,
            bytes: 0,
        };
        Self {
            places: HashMap::default(),
            nodes: Vec::new(),
            free: NOWHERE,
            lists: [empty; N],
        }
    }
}

fn known(place: Place) -> Option<Place> {
    (place != NOWHERE).then_some(place)
}

impl<const N: usize> Lists<N> {
    /// How many objects there are in all lists.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// The bytes in all lists.
    pub(super) fn bytes(&self) -> u64 {
        self.lists.iter().map(|list| list.bytes).sum()
    }

    pub(super) fn bytes_of(&self, list: usize) -> u64 {
        self.lists[list].bytes
    }

    pub(super) fn find(&self, entry: EntryId) -> Option<Place> {
        self.places.get(&entry).copied()
    }

    pub(super) fn first(&self, list: usize) -> Option<Place> {
        known(self.lists[list].first)
    }

    /// The one behind it in its list.
    pub(super) fn next(&self, place: Place) -> Option<Place> {
        known(self.nodes[place as usize].next)
    }

    pub(super) fn entry(&self, place: Place) -> EntryId {
        self.nodes[place as usize].entry
    }

    #[cfg(test)]
    pub(super) fn list(&self, place: Place) -> usize {
        self.nodes[place as usize].list.into()
    }

    pub(super) fn get(&self, place: Place) -> &Resident {
        &self.nodes[place as usize].resident
    }

    /// Its bytes are not to be changed.
    pub(super) fn get_mut(&mut self, place: Place) -> &mut Resident {
        &mut self.nodes[place as usize].resident
    }

    /// Adds one as the last of a list; one of its name goes.
    pub(super) fn push(&mut self, list: usize, entry: EntryId, resident: Resident) {
        let node = Node {
            entry,
            resident,
            list: 0,
            previous: NOWHERE,
            next: NOWHERE,
        };
        let place = match known(self.free) {
            Some(place) => {
                self.free = self.nodes[place as usize].next;
                self.nodes[place as usize] = node;
                place
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as Place
            }
        };
        if let Some(replaced) = self.places.insert(entry, place) {
            self.leave(replaced);
        }
        self.link(list, place);
    }

    /// Makes it the last of a list.
    pub(super) fn move_to(&mut self, list: usize, place: Place) {
        self.unlink(place);
        self.link(list, place);
    }

    /// Takes it out; which list it was in.
    pub(super) fn remove(&mut self, entry: EntryId) -> Option<(usize, Resident)> {
        let place = self.places.remove(&entry)?;
        self.leave(place);
        let node = &self.nodes[place as usize];
        Some((node.list.into(), node.resident))
    }

    fn leave(&mut self, place: Place) {
        self.unlink(place);
        self.nodes[place as usize].next = std::mem::replace(&mut self.free, place);
    }

    fn link(&mut self, list: usize, place: Place) {
        let node = &mut self.nodes[place as usize];
        node.list = list as u8;
        node.next = NOWHERE;
        let into = &mut self.lists[list];
        into.bytes += node.resident.bytes;
        node.previous = std::mem::replace(&mut into.last, place);
        match known(node.previous) {
            Some(previous) => self.nodes[previous as usize].next = place,
            None => into.first = place,
        }
    }

    fn unlink(&mut self, place: Place) {
        let Node {
            previous,
            next,
            list,
            resident,
            ..
        } = self.nodes[place as usize];
        let from = &mut self.lists[usize::from(list)];
        from.bytes -= resident.bytes;
        match known(previous) {
            Some(previous) => self.nodes[previous as usize].next = next,
            None => from.first = next,
        }
        match known(next) {
            Some(next) => self.nodes[next as usize].previous = previous,
            None => from.last = previous,
        }
    }
}

/// Objects that were evicted, the one that has been gone longest first.
#[derive(Debug, Default)]
pub(super) struct Ghosts {
    fingerprints: LinkedHashMap<u64, u64, Ids>,
    bytes: u64,
}

impl Ghosts {
    pub(super) fn push_back(&mut self, resident: &Resident) {
        self.bytes += resident.bytes;
        let replaced = self
            .fingerprints
            .insert(resident.fingerprint, resident.bytes);
        self.bytes -= replaced.unwrap_or(0);
    }

    pub(super) fn contains(&self, fingerprint: u64) -> bool {
        self.fingerprints.contains_key(&fingerprint)
    }

    /// Whether it was there.
    pub(super) fn remove(&mut self, fingerprint: u64) -> bool {
        let bytes = self.fingerprints.remove(&fingerprint);
        self.bytes -= bytes.unwrap_or(0);
        bytes.is_some()
    }

    /// Forgets those that have been gone longest until no more than so many bytes and objects are left.
    pub(super) fn trim(&mut self, bytes: u64, count: usize) {
        while self.bytes > bytes || self.fingerprints.len() > count {
            let Some((_, gone)) = self.fingerprints.pop_front() else {
                break;
            };
            self.bytes -= gone;
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.fingerprints.len()
    }
}

/// How much there is room for, as far as a policy knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    given: Option<u64>,
    most_bytes: u64,
    most_objects: usize,
}

impl Room {
    pub(super) fn new(given: Option<u64>) -> Self {
        Self {
            given,
            most_bytes: 0,
            most_objects: 0,
        }
    }

    /// Notes how much is there now.
    pub(super) fn note(&mut self, bytes: u64, objects: usize) {
        self.most_bytes = self.most_bytes.max(bytes);
        self.most_objects = self.most_objects.max(objects);
    }

    /// Bytes: those that were given, else the most that were there at once.
    pub(super) fn bytes(&self) -> u64 {
        self.given.unwrap_or(self.most_bytes)
    }

    /// The most objects that were there at once.
    pub(super) fn objects(&self) -> usize {
        self.most_objects
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;

    fn resident(bytes: u64) -> Resident {
        Resident {
            fingerprint: 0,
            bytes,
            uses: 0,
            offered: false,
        }
    }

    #[derive(Clone, Debug)]
    enum Event {
        Push(usize, u64),
        Move(usize, Index),
        Remove(Index),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            (0..2_usize, 1..9_u64).prop_map(|(list, bytes)| Event::Push(list, bytes)),
            (0..2_usize, any::<Index>()).prop_map(|(list, at)| Event::Move(list, at)),
            any::<Index>().prop_map(Event::Remove),
        ]
    }

    proptest! {
        #[test]
        fn each_object_is_in_one_list_in_its_order(events in proptest::collection::vec(event(), 0..200)) {
            let mut lists = Lists::<2>::default();
            let mut model: [Vec<(EntryId, u64)>; 2] = [Vec::new(), Vec::new()];
            let mut next = 1;
            for event in events {
                let there: Vec<_> = model.iter().flatten().copied().collect();
                match event {
                    Event::Push(list, bytes) => {
                        lists.push(list, next, resident(bytes));
                        model[list].push((next, bytes));
                        next += 1;
                    }
                    Event::Move(list, at) if !there.is_empty() => {
                        let moved = *at.get(&there);
                        lists.move_to(list, lists.find(moved.0).unwrap());
                        model.iter_mut().for_each(|list| list.retain(|there| *there != moved));
                        model[list].push(moved);
                    }
                    Event::Remove(at) if !there.is_empty() => {
                        let gone = *at.get(&there);
                        let from = usize::from(model[1].contains(&gone));
                        let removed = lists.remove(gone.0).map(|(list, resident)| (list, resident.bytes));
                        prop_assert_eq!(removed, Some((from, gone.1)));
                        model[from].retain(|there| *there != gone);
                        prop_assert!(lists.find(gone.0).is_none() && lists.remove(gone.0).is_none());
                    }
                    _ => {}
                }
                for (list, expected) in model.iter().enumerate() {
                    let mut place = lists.first(list);
                    let found: Vec<_> = std::iter::from_fn(|| {
                        let at = place?;
                        place = lists.next(at);
                        Some((lists.entry(at), lists.get(at).bytes))
                    }).collect();
                    prop_assert_eq!(&found, expected);
                    prop_assert_eq!(lists.bytes_of(list), expected.iter().map(|(_, bytes)| bytes).sum::<u64>());
                }
                prop_assert_eq!(lists.len(), model.iter().map(Vec::len).sum::<usize>());
            }
        }
    }

    #[test]
    fn what_comes_and_goes_takes_no_more_room_than_what_is_there() {
        let mut lists = Lists::<1>::default();
        for id in 0..10_000 {
            lists.push(0, id, resident(1));
            if id >= 50 {
                lists.remove(id - 50);
            }
        }
        assert_eq!((lists.len(), lists.nodes.len()), (50, 51));
    }
}
