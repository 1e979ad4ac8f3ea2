//! What must and what must not be there, from what the clients wrote down.
//!
//! Every store has a number, which its bytes carry, so an object that is read names the very store that made it.

use std::collections::{HashMap, HashSet};

use crate::journal::{DeleteOutcome, Entry, Kind, Moment, StoreOutcome, now};

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    pub(crate) what: String,
}

impl Fault {
    pub(crate) fn new(kind: Kind, what: impl Into<String>) -> Self {
        Self {
            kind,
            what: what.into(),
        }
    }
}

#[derive(Debug)]
struct Store {
    key: String,
    from: Moment,
    /// Unanswered: the client was killed, or is still waiting.
    answer: Option<(StoreOutcome, Moment)>,
}

#[derive(Debug)]
struct Delete {
    from: Moment,
    answer: Option<(DeleteOutcome, Moment)>,
}

#[derive(Debug, Default)]
struct History {
    stores: Vec<u64>,
    deletes: Vec<u64>,
}

/// Everything that was ever asked of one pool.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    /// Whether nothing ever leaves memory for nowhere, so that whatever was acknowledged must be there.
    keeps_all: bool,
    stores: HashMap<u64, Store>,
    deletes: HashMap<u64, Delete>,
    keys: HashMap<String, History>,
    /// From when to when servers ran that may be unable to bring what they have.
    hampered: Vec<(Moment, Moment)>,
    /// When the pool began.
    since: Moment,
    /// Stores and deletes that were asked of the pool before, and may be answered late.
    earlier: HashSet<u64>,
}

impl Oracle {
    pub(crate) fn new(keeps_all: bool) -> Self {
        Self {
            keeps_all,
            ..Self::default()
        }
    }

    /// The oracle of the pool that takes the place of this one and is empty now. A client that is stopped meanwhile may
    /// still write down what a call brought that it made of the old one.
    pub(crate) fn follow(&self) -> Self {
        let asked = self.stores.keys().chain(self.deletes.keys());
        Self {
            keeps_all: self.keeps_all,
            since: now(),
            earlier: asked.chain(&self.earlier).copied().collect(),
            ..Self::default()
        }
    }

    /// Whether something that was acknowledged and is missing is lost.
    pub(crate) fn keeps_all(&self) -> bool {
        self.keeps_all
    }

    /// From now on what was acknowledged may be missing; what was deleted must still not come back.
    pub(crate) fn may_lose(&mut self) {
        self.keeps_all = false;
    }

    /// A server begins; if it is hampered, what it does not find may be there all the same.
    pub(crate) fn server_begins(&mut self, hampered: bool) {
        if let Some((_, end)) = self
            .hampered
            .last_mut()
            .filter(|(_, end)| *end == Moment::MAX)
        {
            *end = now();
        }
        if hampered {
            self.hampered.push((now(), Moment::MAX));
        }
    }

    /// Takes what clients have written down since the last time; what is wrong with it.
    pub(crate) fn learn(&mut self, entries: Vec<Entry>) -> Vec<Fault> {
        // All changes first, as what one client reads another one has stored.
        let mut seen = Vec::new();
        let mut faults = Vec::new();
        for entry in entries {
            match entry {
                Entry::Store { writer, key, at } => {
                    let history = self.keys.entry(key.clone()).or_default();
                    history.stores.push(writer);
                    let store = Store {
                        key,
                        from: at,
                        answer: None,
                    };
                    self.stores.insert(writer, store);
                }
                Entry::Stored {
                    writer,
                    outcome,
                    at,
                } => match self.stores.get_mut(&writer) {
                    Some(store) => store.answer = Some((outcome, at)),
                    None if self.earlier.contains(&writer) => {}
                    None => faults.push(Fault::new(
                        Kind::Broken,
                        format!("store {writer} was answered, but never asked for"),
                    )),
                },
                Entry::Delete { number, key, at } => {
                    self.keys.entry(key).or_default().deletes.push(number);
                    let delete = Delete {
                        from: at,
                        answer: None,
                    };
                    self.deletes.insert(number, delete);
                }
                Entry::Deleted {
                    number,
                    outcome,
                    at,
                } => match self.deletes.get_mut(&number) {
                    Some(delete) => delete.answer = Some((outcome, at)),
                    None if self.earlier.contains(&number) => {}
                    None => faults.push(Fault::new(
                        Kind::Broken,
                        format!("delete {number} was answered, but never asked for"),
                    )),
                },
                Entry::Fault { kind, what } => faults.push(Fault { kind, what }),
                Entry::Read { from, .. }
                | Entry::Brought { from, .. }
                | Entry::Miss { from, .. }
                    if from < self.since => {}
                Entry::Read { .. } | Entry::Brought { .. } | Entry::Miss { .. } => seen.push(entry),
            }
        }
        for entry in seen {
            faults.extend(match entry {
                Entry::Read {
                    key,
                    writer,
                    from,
                    to,
                }
                | Entry::Brought {
                    key,
                    writer,
                    from,
                    to,
                } => self.judge_read(&key, writer, from, to),
                Entry::Miss { key, from, to } => self.judge_miss(&key, from, to),
                _ => None,
            });
        }
        faults
    }

    /// Whether an object of this writer's may be seen by a call that ran from `from` to `to`.
    pub(crate) fn judge_read(
        &self,
        key: &str,
        writer: u64,
        from: Moment,
        to: Moment,
    ) -> Option<Fault> {
        let phantom = |what: String| {
            let what = format!("{key} holds the bytes of store {writer} at {from}: {what}");
            Some(Fault::new(Kind::Phantom, what))
        };
        let Some(store) = self.stores.get(&writer) else {
            return phantom("nobody asked for that store".to_owned());
        };
        if store.key != key {
            return phantom(format!("that was a store of {}", store.key));
        }
        if store.from > to {
            return phantom(format!("that was asked for later, at {}", store.from));
        }
        match store.answer {
            Some((outcome @ (StoreOutcome::Refused | StoreOutcome::Present), at)) if at < from => {
                return phantom(format!("that was answered {:?} at {at}", outcome.word()));
            }
            // What was certainly there before a delete that was acknowledged went with it.
            Some((StoreOutcome::New, stored)) => {
                let history = &self.keys[key];
                let deletes = history
                    .deletes
                    .iter()
                    .map(|number| (number, &self.deletes[number]));
                for (number, delete) in deletes {
                    if let Some((DeleteOutcome::Deleted, deleted)) = delete.answer
                        && delete.from > stored
                        && deleted < from
                    {
                        return phantom(format!(
                            "that was acknowledged at {stored}, and delete {number} of {key}, asked for at {}, was \
                             acknowledged at {deleted}",
                            delete.from
                        ));
                    }
                }
            }
            _ => {}
        }
        None
    }

    /// Whether a key may be missing in a call that ran from `from` to `to`.
    pub(crate) fn judge_miss(&self, key: &str, from: Moment, to: Moment) -> Option<Fault> {
        let hampered = |(begin, end): &(Moment, Moment)| *begin <= to && from <= *end;
        if !self.keeps_all || self.hampered.iter().any(hampered) {
            return None;
        }
        let history = self.keys.get(key)?;
        // Deletes that may have had an effect, and until when they may have had it.
        let deletes: Vec<(Moment, Moment)> = history
            .deletes
            .iter()
            .map(|number| &self.deletes[number])
            .filter_map(|delete| match delete.answer {
                Some((DeleteOutcome::Unchanged, _)) => None,
                Some((DeleteOutcome::Deleted, at)) => Some((delete.from, at)),
                Some((DeleteOutcome::Unknown, _)) | None => Some((delete.from, Moment::MAX)),
            })
            .collect();
        for writer in &history.stores {
            let store = &self.stores[writer];
            if let Some((StoreOutcome::New | StoreOutcome::Present, stored)) = store.answer
                && stored < from
                && !deletes
                    .iter()
                    .any(|(asked, done)| *done > store.from && *asked < to)
            {
                let what = format!(
                    "{key} is missing at {from}, but store {writer} was acknowledged at {stored} and nobody deleted it since"
                );
                return Some(Fault::new(Kind::Lost, what));
            }
        }
        None
    }

    /// Stores that were acknowledged with a new object.
    pub(crate) fn stored(&self) -> u64 {
        let new = |store: &&Store| matches!(store.answer, Some((StoreOutcome::New, _)));
        self.stores.values().filter(new).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(writer: u64, from: Moment, answer: Option<(StoreOutcome, Moment)>) -> Vec<Entry> {
        let key = "k".to_owned();
        let answer = answer.map(|(outcome, at)| Entry::Stored {
            writer,
            outcome,
            at,
        });
        let asked = Entry::Store {
            writer,
            key,
            at: from,
        };
        std::iter::once(asked).chain(answer).collect()
    }

    fn delete(number: u64, from: Moment, answer: Option<(DeleteOutcome, Moment)>) -> Vec<Entry> {
        let key = "k".to_owned();
        let answer = answer.map(|(outcome, at)| Entry::Deleted {
            number,
            outcome,
            at,
        });
        let asked = Entry::Delete {
            number,
            key,
            at: from,
        };
        std::iter::once(asked).chain(answer).collect()
    }

    fn after(entries: Vec<Vec<Entry>>) -> Oracle {
        let mut oracle = Oracle::new(true);
        assert_eq!(oracle.learn(entries.concat()), []);
        oracle
    }

    fn kind(fault: Option<Fault>) -> Option<Kind> {
        fault.map(|fault| fault.kind)
    }

    #[test]
    fn what_was_asked_of_the_pool_before_is_not_held_against_the_next() {
        let mut old = Oracle::new(true);
        old.learn(store(1, 10, None));
        let mut oracle = old.follow();
        let key = || "k".to_owned();
        let late = vec![
            Entry::Stored {
                writer: 1,
                outcome: StoreOutcome::New,
                at: now(),
            },
            Entry::Read {
                key: key(),
                writer: 1,
                from: 20,
                to: now(),
            },
        ];
        assert_eq!(oracle.learn(late), []);
        let read = Entry::Read {
            key: key(),
            writer: 1,
            from: now(),
            to: now(),
        };
        assert_eq!(oracle.learn(vec![read]).len(), 1, "an object came back");
    }

    #[test]
    fn an_object_that_nobody_stored_is_a_phantom() {
        use StoreOutcome::{New, Present, Refused, Unknown};
        let oracle = after(vec![
            store(1, 10, Some((New, 20))),
            store(2, 10, Some((Refused, 20))),
            store(3, 10, Some((Present, 20))),
            store(4, 10, Some((Unknown, 20))),
            store(5, 10, None),
            store(6, 90, None),
        ]);
        let judged = |writer| kind(oracle.judge_read("k", writer, 50, 60));
        assert_eq!([1, 4, 5].map(judged), [None; 3]);
        assert_eq!([0, 2, 3, 6].map(judged), [Some(Kind::Phantom); 4]);
        assert_eq!(kind(oracle.judge_read("l", 1, 50, 60)), Some(Kind::Phantom));
        // A read that overlaps the store's answer.
        assert_eq!(oracle.judge_read("k", 3, 15, 25), None);
    }

    #[test]
    fn what_was_deleted_does_not_come_back() {
        use DeleteOutcome::{Deleted, Unchanged, Unknown};
        let seen = |deleted: Vec<Entry>, stored| {
            let oracle = after(vec![store(1, 10, stored), deleted]);
            kind(oracle.judge_read("k", 1, 50, 60))
        };
        let new = Some((StoreOutcome::New, 20));
        assert_eq!(
            seen(delete(1, 30, Some((Deleted, 40))), new),
            Some(Kind::Phantom)
        );
        assert_eq!(seen(delete(1, 30, Some((Unchanged, 40))), new), None);
        assert_eq!(seen(delete(1, 30, Some((Unknown, 40))), new), None);
        assert_eq!(
            seen(delete(1, 30, Some((Deleted, 55))), new),
            None,
            "still running"
        );
        assert_eq!(
            seen(delete(1, 15, Some((Deleted, 40))), new),
            None,
            "before the store"
        );
        let unknown = Some((StoreOutcome::Unknown, 20));
        assert_eq!(seen(delete(1, 30, Some((Deleted, 40))), unknown), None);
    }

    #[test]
    fn what_was_acknowledged_is_there_unless_somebody_deleted_it() {
        use DeleteOutcome::{Deleted, Unchanged, Unknown};
        use StoreOutcome::{New, Present, Refused};
        let missed = |entries: Vec<Vec<Entry>>| kind(after(entries).judge_miss("k", 50, 60));
        assert_eq!(
            missed(vec![store(1, 10, Some((New, 20)))]),
            Some(Kind::Lost)
        );
        assert_eq!(
            missed(vec![store(1, 10, Some((Present, 20)))]),
            Some(Kind::Lost)
        );
        assert_eq!(missed(vec![store(1, 10, Some((Refused, 20)))]), None);
        assert_eq!(missed(vec![store(1, 10, None)]), None);
        assert_eq!(missed(vec![store(1, 10, Some((New, 55)))]), None);
        let with = |deleted| missed(vec![store(1, 10, Some((New, 20))), deleted]);
        assert_eq!(with(delete(1, 30, Some((Deleted, 40)))), None);
        assert_eq!(with(delete(1, 30, Some((Unknown, 40)))), None);
        assert_eq!(with(delete(1, 5, None)), None, "it may come late");
        assert_eq!(with(delete(1, 30, Some((Unchanged, 40)))), Some(Kind::Lost));
        assert_eq!(with(delete(1, 1, Some((Deleted, 5)))), Some(Kind::Lost));
        assert_eq!(
            with(delete(1, 70, None)),
            Some(Kind::Lost),
            "asked for afterwards"
        );
        let mut pressed = Oracle::new(false);
        pressed.learn(store(1, 10, Some((New, 20))));
        assert_eq!(pressed.judge_miss("k", 50, 60), None, "it may be evicted");
        let mut hampered = after(vec![store(1, 10, Some((New, 20)))]);
        hampered.server_begins(true);
        let during = now();
        hampered.server_begins(false);
        assert_eq!(hampered.judge_miss("k", during, during), None);
        assert_eq!(kind(hampered.judge_miss("k", 50, 60)), Some(Kind::Lost));
        let after_it = now() + 1;
        assert_eq!(
            kind(hampered.judge_miss("k", after_it, after_it)),
            Some(Kind::Lost)
        );
        let mut emptied = after(vec![store(1, 10, Some((New, 20)))]);
        emptied.may_lose();
        assert_eq!(emptied.judge_miss("k", 50, 60), None);
        assert_eq!(emptied.judge_read("k", 1, 50, 60), None);
    }

    #[test]
    fn what_clients_report_is_passed_on() {
        let mut oracle = Oracle::new(true);
        let found = oracle.learn(vec![
            Entry::Read {
                key: "k".to_owned(),
                writer: 1,
                from: 5,
                to: 6,
            },
            store(1, 1, Some((StoreOutcome::New, 2))).remove(0),
            Entry::Fault {
                kind: Kind::Corrupt,
                what: "a byte".to_owned(),
            },
        ]);
        assert_eq!(found, [Fault::new(Kind::Corrupt, "a byte")]);
    }
}
