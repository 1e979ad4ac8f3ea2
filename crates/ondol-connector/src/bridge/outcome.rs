//! What a completion means for the task of its request.
//!
//! A completion is believed only if it is well-formed. One that failed (`ok` is false) counts for nothing: its lists are not
//! even looked at, whatever a connector may have meant by them.

use anyhow::anyhow;
use ondol_plugin::l2::{
    Bitmap, Completion, LoadOutcome, LoadResult, Loaded, LookupResult, PageMut, StoreResult,
};

use super::Shared;
use super::requests::{Delete, Load, Lookup, PageMark, Request, Store};

/// What a connector did wrong in a completion.
#[derive(Debug, Default)]
struct Faults {
    malformed: Vec<String>,
    lost_pages: u64,
}

impl Faults {
    /// Counts them, before the task that they concern ends.
    fn record(self, shared: &Shared) {
        if self.malformed.is_empty() && self.lost_pages == 0 {
            return;
        }
        let mut record = shared.record.lock();
        record.lost_pages += self.lost_pages;
        for fault in self.malformed {
            record.malformed += 1;
            record.fault(&shared.name, fault);
        }
    }
}

/// Ends the request of a completion.
pub(super) fn finish(shared: &Shared, request: Request, completion: Completion) {
    match request {
        Request::Store(store) => finish_store(shared, store, completion),
        Request::Lookup(lookup) => finish_lookup(shared, lookup, completion),
        Request::Load(load) => finish_load(shared, load, completion),
        Request::Delete(delete) => finish_delete(shared, delete, completion),
    }
}

/// A completion that succeeded, with lists of the right length or none.
struct Answer {
    per_key: Option<Vec<bool>>,
    lengths: Option<Vec<u64>>,
}

impl Answer {
    /// # Errors
    /// Why the completion counts for nothing.
    fn read(completion: &mut Completion, keys: usize, faults: &mut Faults) -> Result<Self, String> {
        if !completion.ok {
            return Err(match completion.error.is_empty() {
                true => "the connector gives no reason".to_owned(),
                false => std::mem::take(&mut completion.error),
            });
        }
        let (per_key, lengths) = (completion.per_key.take(), completion.lengths.take());
        let lists = [
            ("results", per_key.as_ref().map(Vec::len)),
            ("lengths", lengths.as_ref().map(Vec::len)),
        ];
        for (what, found) in lists {
            if let Some(found) = found.filter(|found| *found != keys) {
                let reason = format!("a completion has a list of {found} {what}; expected {keys}");
                faults.malformed.push(reason.clone());
                return Err(reason);
            }
        }
        Ok(Self { per_key, lengths })
    }

    fn is_true(&self, index: usize) -> bool {
        self.per_key.as_ref().is_none_or(|list| list[index])
    }

    fn length(&self, index: usize) -> Option<u64> {
        self.lengths.as_ref().map(|list| list[index])
    }
}

fn finish_store(shared: &Shared, store: Store, mut completion: Completion) {
    let mut faults = Faults::default();
    let result = match Answer::read(&mut completion, store.items.len(), &mut faults) {
        Ok(answer) if (0..store.items.len()).all(|index| answer.is_true(index)) => {
            let mut inventory = shared.inventory.lock();
            let new = store
                .items
                .iter()
                .filter(|(key, bytes)| inventory.stored(key, *bytes));
            StoreResult::stored(new.map(|(_, bytes)| bytes).sum())
        }
        Ok(_) => {
            let reason = "a store succeeded, but not for all its keys";
            faults.malformed.push(reason.to_owned());
            StoreResult::retryable(reason)
        }
        Err(reason) => StoreResult::retryable(reason),
    };
    faults.record(shared);
    if let Some(ticket) = store.ticket {
        ticket.complete(result);
    }
}

fn finish_lookup(shared: &Shared, lookup: Lookup, mut completion: Completion) {
    let keys = &lookup.keys.keys;
    let mut faults = Faults::default();
    let answer = Answer::read(&mut completion, keys.len(), &mut faults);
    faults.record(shared);
    let Some(ticket) = lookup.ticket else {
        return;
    };
    let answer = match answer {
        Ok(answer) => answer,
        Err(reason) => {
            let none = Bitmap::new(keys.len());
            lookup.keys.unlock_but(&none, &shared.locks);
            ticket.complete(LookupResult::failed(keys.len(), reason));
            return;
        }
    };
    let mut found = Vec::with_capacity(keys.len());
    let mut inventory = shared.inventory.lock();
    for (index, key) in keys.iter().enumerate() {
        // What is being deleted is not locked and so not found.
        let is_found = answer.is_true(index) && lookup.keys.locked.test(index);
        found.push(is_found.then(|| answer.length(index).unwrap_or(0)));
        match answer.length(index) {
            _ if !answer.is_true(index) => inventory.was_missing(key, lookup.mark),
            Some(length) if is_found => {
                inventory.learn(key, length);
            }
            _ => {}
        }
    }
    drop(inventory);
    let result = LookupResult::new(found);
    lookup.keys.unlock_but(&result.found, &shared.locks);
    ticket.complete(result);
}

fn finish_load(shared: &Shared, load: Load, mut completion: Completion) {
    let keys = load.keys.len();
    let mut faults = Faults::default();
    let answer = Answer::read(&mut completion, keys, &mut faults);
    let Some(ticket) = load.ticket else {
        faults.record(shared);
        return;
    };
    let mut pages = std::mem::take(&mut completion.pages).into_iter();
    let mut loaded = Vec::with_capacity(keys);
    for (index, mark) in load.marks.iter().enumerate() {
        let page = pages.next().filter(|page| PageMark::of(page) == *mark);
        let outcome = match &answer {
            Err(reason) => LoadOutcome::Failed(reason.clone()),
            Ok(answer) => outcome(answer, index, *mark, page.as_ref(), &completion.error),
        };
        if page.is_none() {
            faults.lost_pages += 1;
        }
        if let LoadOutcome::Failed(reason) = &outcome
            && answer.as_ref().is_ok_and(|answer| answer.is_true(index))
        {
            faults.malformed.push(reason.clone());
        }
        loaded.push(Loaded { page, outcome });
    }
    if let Ok(answer) = &answer {
        let mut inventory = shared.inventory.lock();
        for (key, loaded) in load.keys.iter().zip(&loaded) {
            if let (LoadOutcome::Found(bytes), Some(_)) = (&loaded.outcome, &answer.lengths) {
                inventory.learn(key, *bytes);
            }
        }
    }
    faults.record(shared);
    ticket.complete(LoadResult(loaded));
}

fn outcome(
    answer: &Answer,
    index: usize,
    mark: PageMark,
    page: Option<&PageMut>,
    error: &str,
) -> LoadOutcome {
    if !answer.is_true(index) {
        return match error.is_empty() {
            true => LoadOutcome::Missing,
            false => LoadOutcome::Failed(error.to_owned()),
        };
    }
    if page.is_none() {
        return LoadOutcome::Failed("the connector did not give its page back".to_owned());
    }
    let room = mark.room();
    match answer.length(index).unwrap_or(room) {
        length if length <= room => LoadOutcome::Found(length),
        length => LoadOutcome::Failed(format!(
            "the connector loaded {length} bytes into a page; expected at most {room}"
        )),
    }
}

fn finish_delete(shared: &Shared, mut delete: Delete, mut completion: Completion) {
    let mut faults = Faults::default();
    let answer = Answer::read(&mut completion, delete.keys.len(), &mut faults);
    let result = answer.map_err(|reason| anyhow!(reason)).map(|answer| {
        let gone = delete.keys.iter().enumerate();
        let gone: Vec<_> = gone
            .filter(|(index, _)| answer.is_true(*index))
            .map(|(_, key)| key)
            .collect();
        let mut inventory = shared.inventory.lock();
        // What was stored meanwhile may be there or not: it counts until somebody finds it missing.
        gone.iter()
            .for_each(|(_, key)| inventory.was_missing(key, delete.mark));
        gone.into_iter().map(|(place, _)| *place).collect()
    });
    shared
        .locks
        .end_delete(delete.keys.iter().map(|(_, key)| key));
    faults.record(shared);
    delete.answer(result);
}
