//! Records: how they are written and read.

use super::IndexedObject;
use super::layout::{Segment, flag, record_cells, word};
use super::query::Query;
use super::version;
use crate::fences::Real;
use crate::sync::{AtomicU64, Ordering};
use crate::{Generation, LayoutFingerprint, Location, ObjectMeta, PageId};

/// A record that was the key's, at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    cell: u32,
    version: u64,
}

/// What a look at a record shows.
pub(super) enum Sight {
    /// The key's object.
    Match(Seen),
    /// Another key's, or no record at all.
    Other,
    /// The record is being written, or was while it was read.
    Unstable,
}

/// The words that every record has.
type Fields = [AtomicU64; word::KEY];

#[inline]
fn load(fields: &Fields, word: usize) -> u64 {
    fields[word].load(Ordering::Relaxed)
}

/// Whether the words are those of the key, the last one padded with zeros.
#[inline]
fn is_key(words: &[AtomicU64], bytes: &[u8]) -> bool {
    let (whole, rest) = bytes.as_chunks::<8>();
    let differs =
        |word: &AtomicU64, bytes: [u8; 8]| word.load(Ordering::Relaxed) ^ u64::from_le_bytes(bytes);
    // Nearly always it is the key, so there is no use in an early end.
    let mut difference = 0;
    for (word, bytes) in words.iter().zip(whole) {
        difference |= differs(word, *bytes);
    }
    if let Some(word) = words.get(whole.len()).filter(|_| !rest.is_empty()) {
        difference |= differs(word, padded(rest));
    }
    difference == 0
}

#[inline]
fn padded(rest: &[u8]) -> [u8; 8] {
    let mut word = [0; 8];
    word[..rest.len()].copy_from_slice(rest);
    word
}

#[inline]
pub(super) fn look(segment: Segment<'_>, cell: u32, query: &Query<'_>) -> Sight {
    let record = segment.record(cell, record_cells(query.bytes.len()));
    let Some((fields, key)) = record.and_then(|record| record.split_first_chunk()) else {
        return Sight::Other;
    };
    let fields: &Fields = fields;
    let Some(version) = version::read::<Real>(&fields[word::VERSION]) else {
        return Sight::Unstable;
    };
    let is_match = load(fields, word::FINGERPRINT) == query.fingerprint[0]
        && load(fields, word::FINGERPRINT + 1) == query.fingerprint[1]
        && load(fields, word::KEY_AND_FLAGS) & flag::KEY_MASK == query.length_and_tag
        && is_key(key, query.bytes);
    if !version::is_still::<Real>(&fields[word::VERSION], version) {
        Sight::Unstable
    } else if is_match {
        Sight::Match(Seen { cell, version })
    } else {
        Sight::Other
    }
}

impl Seen {
    #[inline]
    fn fields<'a>(&self, segment: Segment<'a>) -> Option<&'a Fields> {
        segment
            .record(self.cell, record_cells(0))?
            .first_chunk::<{ word::KEY }>()
    }

    /// The object's page; what was read counts if the record is the same afterwards. `None` if readers are to ask.
    #[inline]
    pub(super) fn page(&self, segment: Segment<'_>) -> Option<PageId> {
        page(self.fields(segment)?)
    }

    /// The object, if the record is still the one that was seen and readers need not ask. If it was so before a fence, the
    /// answer is as of after that.
    #[inline]
    pub(super) fn object(&self, segment: Segment<'_>) -> Option<IndexedObject> {
        let fields = self.fields(segment)?;
        let object = object(fields)?;
        version::is_still::<Real>(&fields[word::VERSION], self.version).then_some(object)
    }
}

#[inline]
fn page(fields: &Fields) -> Option<PageId> {
    let is_verified = load(fields, word::KEY_AND_FLAGS) & flag::UNVERIFIED == 0;
    PageId::from_word(load(fields, word::PAGE)).filter(|_| is_verified)
}

#[inline]
fn object(fields: &Fields) -> Option<IndexedObject> {
    let page = page(fields)?;
    let flags = load(fields, word::KEY_AND_FLAGS);
    let layout = [word::LAYOUT, word::LAYOUT + 1].map(|word| u128::from(load(fields, word)));
    let layout = LayoutFingerprint((layout[0] | (layout[1] << 64)).to_le_bytes());
    let checksum = load(fields, word::CHECKSUM);
    Some(IndexedObject {
        location: Location {
            page,
            generation: Generation(load(fields, word::GENERATION)),
            len: load(fields, word::LEN),
        },
        meta: ObjectMeta {
            layout: (flags & flag::HAS_LAYOUT != 0).then_some(layout),
            checksum: (flags & flag::HAS_CHECKSUM != 0).then_some(checksum),
        },
    })
}

/// Writes a record into cells that hold none; they are as many as its key needs.
pub(super) fn write(
    record: &[AtomicU64],
    query: &Query<'_>,
    object: &IndexedObject,
    unverified: bool,
) {
    let store = |word: usize, value| record[word].store(value, Ordering::Relaxed);
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
    let (whole, rest) = query.bytes.as_chunks::<8>();
    let words = whole.iter().copied().chain([padded(rest)]);
    for (word, bytes) in record[word::KEY..].iter().zip(words) {
        word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
    }
    let version = &record[word::VERSION];
    version::publish::<Real>(version, version.load(Ordering::Relaxed));
}
