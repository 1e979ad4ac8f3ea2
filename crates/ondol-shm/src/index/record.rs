//! Records: how they are written and read.

use super::IndexedObject;
use super::layout::{Cell, Segment, flag, record_cells, record_word, word};
use super::query::Query;
use super::version;
use crate::fences::Real;
use crate::sync::{AtomicU64, Ordering};
use crate::{Generation, LayoutFingerprint, Location, ObjectMeta, PageId};

/// What a record says, at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Snapshot {
    pub(super) cell: u32,
    pub(super) version: u64,
    /// `None` if readers are to ask the server.
    pub(super) object: Option<IndexedObject>,
}

/// What a look at a record shows.
pub(super) enum Sight {
    /// The key's object.
    Match(Snapshot),
    /// Another key's, or no record at all.
    Other,
    /// The record is being written, or was while it was read.
    Unstable,
}

/// The key's words, the last one padded with zeros.
#[inline]
fn key_words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let (whole, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let padded = (!rest.is_empty()).then_some(last);
    whole.iter().copied().chain(padded).map(u64::from_le_bytes)
}

#[inline]
fn words_from(record: &[Cell], first: usize) -> impl Iterator<Item = &AtomicU64> {
    record.iter().flat_map(|cell| &cell.0).skip(first)
}

#[inline]
pub(super) fn look(segment: Segment<'_>, cell: u32, query: &Query<'_>) -> Sight {
    let Some(record) = segment.record(cell, record_cells(query.bytes.len())) else {
        return Sight::Other;
    };
    let version_word = record_word(record, word::VERSION);
    let Some(seen) = version::read::<Real>(version_word) else {
        return Sight::Unstable;
    };
    let load = |word| record_word(record, word).load(Ordering::Relaxed);
    let key_and_flags = load(word::KEY_AND_FLAGS);
    let same_fingerprint = load(word::FINGERPRINT) == query.fingerprint[0]
        && load(word::FINGERPRINT + 1) == query.fingerprint[1];
    let is_match = same_fingerprint
        && key_and_flags & flag::KEY_MASK == query.length_and_tag
        && key_words(query.bytes)
            .zip(words_from(record, word::KEY))
            .all(|(expected, word)| word.load(Ordering::Relaxed) == expected);
    let has = |bit| key_and_flags & bit != 0;
    let object = PageId::from_word(load(word::PAGE))
        .filter(|_| !has(flag::UNVERIFIED))
        .map(|page| IndexedObject {
            location: Location {
                page,
                generation: Generation(load(word::GENERATION)),
                len: load(word::LEN),
            },
            meta: ObjectMeta {
                layout: has(flag::HAS_LAYOUT)
                    .then(|| layout([load(word::LAYOUT), load(word::LAYOUT + 1)])),
                checksum: has(flag::HAS_CHECKSUM).then(|| load(word::CHECKSUM)),
            },
        });
    if !version::is_still::<Real>(version_word, seen) {
        Sight::Unstable
    } else if is_match {
        Sight::Match(Snapshot {
            cell,
            version: seen,
            object,
        })
    } else {
        Sight::Other
    }
}

fn layout(words: [u64; 2]) -> LayoutFingerprint {
    let [low, high] = words.map(u128::from);
    LayoutFingerprint((low | (high << 64)).to_le_bytes())
}

/// Writes a record into cells that hold none; they are as many as its key needs.
pub(super) fn write(record: &[Cell], query: &Query<'_>, object: &IndexedObject, unverified: bool) {
    let store = |word, value| record_word(record, word).store(value, Ordering::Relaxed);
    let IndexedObject { location, meta } = object;
    let flags = [
        (flag::HAS_LAYOUT, meta.layout.is_some()),
        (flag::HAS_CHECKSUM, meta.checksum.is_some()),
        (flag::UNVERIFIED, unverified),
    ];
    let flags = flags.iter().filter(|(_, is_set)| *is_set);
    let layout = u128::from_le_bytes(meta.layout.map_or([0; 16], |layout| layout.0));
    store(word::FINGERPRINT, query.fingerprint[0]);
    store(word::FINGERPRINT + 1, query.fingerprint[1]);
    // A page that no slot can name is no page for readers: they ask.
    store(word::PAGE, location.page.to_word().unwrap_or(0));
    store(word::GENERATION, location.generation.0);
    store(word::LEN, location.len);
    store(
        word::KEY_AND_FLAGS,
        flags.fold(query.length_and_tag, |word, (bit, _)| word | bit),
    );
    store(word::CHECKSUM, meta.checksum.unwrap_or(0));
    store(word::LAYOUT, layout as u64);
    store(word::LAYOUT + 1, (layout >> 64) as u64);
    for (word, value) in words_from(record, word::KEY).zip(key_words(query.bytes)) {
        word.store(value, Ordering::Relaxed);
    }
    let version = record_word(record, word::VERSION);
    version::publish::<Real>(version, version.load(Ordering::Relaxed));
}

/// Whether the record's version is the one that was seen; a fence of the caller's orders this.
#[inline]
pub(super) fn is_unchanged(segment: Segment<'_>, snapshot: &Snapshot) -> bool {
    let version = segment
        .cells
        .get(snapshot.cell as usize)
        .map(|cell| &cell.0[word::VERSION]);
    version.is_some_and(|version| version::is_unchanged(version, snapshot.version))
}
