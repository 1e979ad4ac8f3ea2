//! What a block holds: a header that names key and writer, and behind it words that follow from the header.
//!
//! Every byte is checked when a block is verified, so one that belongs to another key, to another writer's block or
//! to no block at all is found wherever it is. Words are made of additions, a shift and an exclusive or, which
//! compilers turn into vector instructions: making and checking them costs little more than touching the memory.

use std::fmt;

use ondol_handler::Key;
use xxhash_rust::xxh3::xxh3_64;

use crate::workload::mix;

/// Length of the header, and thereby of the shortest block.
pub(super) const HEADER_BYTES: usize = 64;

const MAGIC: u64 = u64::from_le_bytes(*b"ondolblk");
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Bytes that are compared before it is asked whether they differed.
const STRIP: usize = 4096;
const LANES: usize = 8;
const WORD: usize = 8;
const ROW: usize = LANES * WORD;

/// The name of a block: the number by which the workload knows it, and its key.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) id: u64,
    pub(super) key: Key,
}

/// Who writes a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writer {
    pub(super) instance: u32,
    pub(super) pid: u32,
    /// Differs from run to run, so that what an earlier run left in a page is never right. Its lowest bits are those of
    /// the incarnation of the server under which the block was written.
    pub(super) nonce: u64,
}

/// The bits of a nonce that tell the incarnation.
const INCARNATION: u64 = 0xffff;

impl Writer {
    /// The same writer under this incarnation of the server.
    pub(super) fn under(self, incarnation: u64) -> Self {
        let nonce = self.nonce & !INCARNATION | incarnation & INCARNATION;
        Self { nonce, ..self }
    }
}

/// Whether a block was written by another run than that of this nonce, or under another incarnation of the server.
pub(super) fn is_older(bytes: &[u8], nonce: u64, incarnation: u64) -> bool {
    let word = bytes.get(NONCE_AT..).and_then(<[u8]>::first_chunk);
    let found = word.map_or(0, |word| u64::from_le_bytes(*word));
    found != (nonce & !INCARNATION | incarnation & INCARNATION)
}

/// Offset of the nonce in the header.
const NONCE_AT: usize = 4 * WORD;

/// The first thing that is wrong with a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Damage {
    /// It is shorter than a header.
    Short { len: usize },
    /// A word of the header is not what it must be.
    Header {
        name: &'static str,
        found: u64,
        expected: u64,
    },
    /// A byte behind the header is wrong.
    Byte {
        offset: usize,
        found: u8,
        expected: u8,
        /// As the header tells.
        writer: u32,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { len } => {
                write!(f, "it has {len} bytes; expected at least {HEADER_BYTES}")
            }
            Self::Header {
                name,
                found,
                expected,
            } => write!(
                f,
                "its header has {name} {found:#x}; expected {expected:#x}"
            ),
            Self::Byte {
                offset,
                found,
                expected,
                writer,
            } => write!(
                f,
                "byte {offset} of what instance {writer} wrote is {found:#04x}; expected {expected:#04x}"
            ),
        }
    }
}

/// Two words behind what identifies the block: the seed of its words, and a word that guards the seed.
fn seal(identity: &[u64; 6]) -> [u64; 2] {
    // A bijection in each word, so that no change of a single one leaves the seed as it was.
    let seed = identity.iter().fold(GOLDEN, |seed, word| mix(seed ^ word));
    [seed, mix(!seed)]
}

/// The words of one row behind the header.
fn row(seed: u64, index: usize) -> [u64; LANES] {
    let base = seed.wrapping_add(GOLDEN.wrapping_mul((index * LANES) as u64));
    std::array::from_fn(|lane| {
        let word = base.wrapping_add(GOLDEN.wrapping_mul(lane as u64 + 1));
        word ^ (word >> 29)
    })
}

fn row_bytes(seed: u64, index: usize) -> [u8; ROW] {
    let mut bytes = [0; ROW];
    for (bytes, word) in bytes
        .as_chunks_mut::<WORD>()
        .0
        .iter_mut()
        .zip(row(seed, index))
    {
        *bytes = word.to_le_bytes();
    }
    bytes
}

/// Writes the whole of a block.
///
/// # Panics
/// If `bytes` is shorter than a header.
pub(super) fn fill(bytes: &mut [u8], block: &Block, writer: Writer) {
    let identity = [
        MAGIC,
        block.id,
        xxh3_64(block.key.bytes()),
        u64::from(writer.pid) << 32 | u64::from(writer.instance),
        writer.nonce,
        bytes.len() as u64,
    ];
    let [seed, guard] = seal(&identity);
    let (header, body) = bytes.split_at_mut(HEADER_BYTES);
    let words = identity.into_iter().chain([seed, guard]);
    for (bytes, word) in header.as_chunks_mut::<WORD>().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
    let (rows, tail) = body.as_chunks_mut::<ROW>();
    let full = rows.len();
    for (index, bytes) in rows.iter_mut().enumerate() {
        *bytes = row_bytes(seed, index);
    }
    tail.copy_from_slice(&row_bytes(seed, full)[..tail.len()]);
}

/// Checks the whole of a block, whoever wrote it.
pub(super) fn verify(bytes: &[u8], block: &Block) -> Result<(), Damage> {
    let Some((header, body)) = bytes.split_at_checked(HEADER_BYTES) else {
        return Err(Damage::Short { len: bytes.len() });
    };
    let mut words = [0; HEADER_BYTES / WORD];
    for (word, bytes) in words.iter_mut().zip(header.as_chunks::<WORD>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    let [magic, id, key, writer, nonce, len, found_seed, found_guard] = words;
    let [seed, guard] = seal(&[magic, id, key, writer, nonce, len]);
    for (name, found, expected) in [
        ("magic", magic, MAGIC),
        ("block", id, block.id),
        ("key", key, xxh3_64(block.key.bytes())),
        ("length", len, bytes.len() as u64),
        ("seed", found_seed, seed),
        ("guard", found_guard, guard),
    ] {
        if found != expected {
            return Err(Damage::Header {
                name,
                found,
                expected,
            });
        }
    }
    let locate = |first_row: usize, bytes: &[u8]| {
        let expected = (first_row..).flat_map(|index| row_bytes(seed, index));
        bytes
            .iter()
            .copied()
            .zip(expected)
            .enumerate()
            .find(|(_, (found, expected))| found != expected)
            .map_or(Ok(()), |(at, (found, expected))| {
                Err(Damage::Byte {
                    offset: HEADER_BYTES + first_row * ROW + at,
                    found,
                    expected,
                    writer: writer as u32,
                })
            })
    };
    let (rows, tail) = body.as_chunks::<ROW>();
    for (strip, rows) in rows.chunks(STRIP / ROW).enumerate() {
        let first_row = strip * (STRIP / ROW);
        let mut wrong = [0; LANES];
        for (index, bytes) in rows.iter().enumerate() {
            let expected = row(seed, first_row + index);
            for ((wrong, expected), found) in
                wrong.iter_mut().zip(expected).zip(bytes.as_chunks().0)
            {
                *wrong |= expected ^ u64::from_le_bytes(*found);
            }
        }
        if wrong != [0; LANES] {
            return locate(first_row, rows.as_flattened());
        }
    }
    locate(rows.len(), tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITER: Writer = Writer {
        instance: 3,
        pid: 4711,
        nonce: 0x1234_5678_9abc_def0,
    };

    fn block(id: u64) -> Block {
        Block {
            id,
            key: Key::text(&format!("test/{id}")).unwrap(),
        }
    }

    fn filled(len: usize, writer: Writer) -> Vec<u8> {
        let mut bytes = vec![0xa5; len];
        fill(&mut bytes, &block(7), writer);
        bytes
    }

    #[test]
    fn what_was_written_verifies_at_any_length() {
        for len in (HEADER_BYTES..HEADER_BYTES + 3 * ROW).chain([4095, 4096, 65_536, 100_001]) {
            assert_eq!(verify(&filled(len, WRITER), &block(7)), Ok(()), "{len}");
        }
    }

    #[test]
    fn a_block_tells_the_incarnation_under_which_it_was_written() {
        for incarnation in [0, 1, 0x1234_5678_9abc_def0] {
            let bytes = filled(100, WRITER.under(incarnation));
            assert_eq!(verify(&bytes, &block(7)), Ok(()));
            assert!(!is_older(&bytes, WRITER.nonce, incarnation));
            assert!(is_older(&bytes, WRITER.nonce, incarnation + 1));
            assert!(is_older(&bytes, WRITER.nonce ^ 1 << 40, incarnation));
        }
    }

    #[test]
    fn a_single_flipped_bit_is_found_wherever_it_is() {
        for len in [HEADER_BYTES, 200, 3 * STRIP + 13] {
            let mut bytes = filled(len, WRITER);
            for offset in 0..len {
                let bit = 1 << (offset % 8);
                bytes[offset] ^= bit;
                match verify(&bytes, &block(7)) {
                    Err(Damage::Byte {
                        offset: at,
                        found,
                        expected,
                        writer,
                    }) => {
                        assert_eq!((at, found, expected ^ found), (offset, bytes[at], bit));
                        assert_eq!(writer, WRITER.instance);
                    }
                    Err(Damage::Header { .. }) if offset < HEADER_BYTES => {}
                    other => panic!("byte {offset} of {len}: {other:?}"),
                }
                bytes[offset] ^= bit;
            }
            assert_eq!(verify(&bytes, &block(7)), Ok(()));
        }
    }

    #[test]
    fn every_byte_depends_on_key_writer_and_place() {
        let first = filled(65_536, WRITER);
        let mut other_key = vec![0; 65_536];
        fill(&mut other_key, &block(8), WRITER);
        let other_run = Writer {
            nonce: WRITER.nonce + 1,
            ..WRITER
        };
        let other_instance = Writer {
            instance: WRITER.instance + 1,
            ..WRITER
        };
        let body = |bytes: &[u8]| bytes[HEADER_BYTES..].as_chunks::<WORD>().0.to_vec();
        for other in [
            other_key,
            filled(65_536, other_run),
            filled(65_536, other_instance),
        ] {
            let pairs = body(&first).into_iter().zip(body(&other));
            assert_eq!(pairs.filter(|(first, other)| first == other).count(), 0);
            // A page that is half one block and half another.
            let torn = [&first[..32_768], &other[32_768..]].concat();
            assert!(matches!(
                verify(&torn, &block(7)),
                Err(Damage::Byte {
                    offset: 32_768..,
                    ..
                })
            ));
        }
        let words: std::collections::HashSet<_> = body(&first).into_iter().collect();
        assert_eq!(words.len(), body(&first).len());
    }

    #[test]
    fn another_blocks_bytes_are_refused() {
        let bytes = filled(4096, WRITER);
        for (damage, name) in [
            (verify(&bytes, &block(8)), "block"),
            (verify(&bytes[..4095], &block(7)), "length"),
            (verify(&[0; 4096], &block(7)), "magic"),
            (verify(&bytes, &Block { id: 7, ..block(8) }), "key"),
        ] {
            match damage {
                Err(Damage::Header { name: found, .. }) => assert_eq!(found, name),
                other => panic!("{name}: {other:?}"),
            }
        }
        assert_eq!(
            verify(&bytes[..63], &block(7)),
            Err(Damage::Short { len: 63 })
        );
    }
}
