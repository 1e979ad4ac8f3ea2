use ondol_plugin::Key;

use crate::codec::Codec;

/// Where a stored object is loaded into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// Straight into a page of memory, with its trailer beside it.
    Page {
        /// Length of the page.
        len: u64,
        /// Length of the trailer's part.
        trailer: usize,
    },
    /// Into a buffer of this length, to be decoded.
    Buffer {
        /// Its length.
        len: u64,
    },
}

/// Why an object cannot be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    /// Nobody knows how long it is.
    UnknownLength,
    /// It is longer than memory.
    TooLong,
}

impl Room {
    /// Where to load an object of `stored` bytes, 0 if that is not known, of which the caller expects `expected`.
    /// `capacity` is that of memory.
    pub(super) fn of(
        codec: &Codec,
        key: &Key,
        stored: u64,
        expected: Option<u64>,
        capacity: u64,
    ) -> Result<Self, Unfit> {
        let room = if codec.is_plain() {
            plain(codec.trailer_len(key), stored, expected)
        } else {
            match (stored, expected) {
                (0, None) => Err(Unfit::UnknownLength),
                (0, Some(len)) => Ok(Self::Buffer {
                    len: codec.stored_bound(key, len),
                }),
                (len, _) => Ok(Self::Buffer { len }),
            }
        }?;
        // A length that a backend made up must not cost that much memory; transforms and trailer may add a little.
        if room.bytes() > capacity.saturating_add(capacity / 64).saturating_add(4096) {
            return Err(Unfit::TooLong);
        }
        Ok(room)
    }

    /// Bytes that a load may fill.
    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::Page { len, trailer } => len.saturating_add(trailer as u64),
            Self::Buffer { len } => len,
        }
    }
}

fn plain(trailer: usize, stored: u64, expected: Option<u64>) -> Result<Room, Unfit> {
    let trailer_len = trailer as u64;
    match (stored, expected) {
        (0, None) => Err(Unfit::UnknownLength),
        (0, Some(len)) => Ok(Room::Page { len, trailer }),
        // As long as the object alone: a file of LMCache's, which has no trailer.
        (stored, Some(len)) if stored == len || stored == len.saturating_add(trailer_len) => {
            Ok(Room::Page { len, trailer })
        }
        (stored, None) if stored > trailer_len => Ok(Room::Page {
            len: stored - trailer_len,
            trailer,
        }),
        // Stored with transforms that are not configured any more, or cut, or nothing but a trailer: the codec will tell.
        (len, _) => Ok(Room::Buffer { len }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_as_long_as_what_is_stored_without_its_trailer() {
        let page = |len| Ok(Room::Page { len, trailer: 80 });
        assert_eq!(plain(80, 1080, None), page(1000));
        assert_eq!(plain(80, 1080, Some(1000)), page(1000));
        assert_eq!(plain(80, 0, Some(1000)), page(1000));
        assert_eq!(plain(80, 0, Some(0)), page(0));
    }

    #[test]
    fn a_file_without_a_trailer_fits_the_page_that_was_expected() {
        assert_eq!(
            plain(80, 1000, Some(1000)),
            Ok(Room::Page {
                len: 1000,
                trailer: 80
            })
        );
    }

    #[test]
    fn what_is_shorter_than_a_trailer_goes_into_a_buffer() {
        assert_eq!(plain(80, 80, None), Ok(Room::Buffer { len: 80 }));
        assert_eq!(plain(80, 3, None), Ok(Room::Buffer { len: 3 }));
    }

    #[test]
    fn another_length_than_expected_goes_into_a_buffer() {
        assert_eq!(plain(80, 1081, Some(1000)), Ok(Room::Buffer { len: 1081 }));
        assert_eq!(plain(80, 999, Some(1000)), Ok(Room::Buffer { len: 999 }));
    }

    #[test]
    fn what_nobody_knows_the_length_of_is_not_loaded() {
        assert_eq!(plain(80, 0, None), Err(Unfit::UnknownLength));
    }
}
