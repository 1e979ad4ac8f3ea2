use std::fmt;
use std::sync::Arc;

/// The longest key, in bytes, without its tag.
pub const MAX_KEY_BYTES: usize = 1024;

/// The name of an object: a tag that says whose naming it follows, and up to [`MAX_KEY_BYTES`] bytes.
///
/// Keys of different tags are never equal, so the string that a Maru client uses can not meet the name
/// that an LMCache client gave. Cloning a key copies no bytes.
///
/// ```
/// use ondol_plugin::{Key, KeyTag};
///
/// let key = Key::text("foo")?;
/// assert_eq!(key.tag(), KeyTag::MessagePack);
/// assert_eq!(key.bytes(), b"\xa3foo");
/// assert_eq!(key.to_string(), "foo");
/// assert_ne!(key, Key::new(KeyTag::Raw, b"foo")?);
/// # Ok::<(), ondol_plugin::KeyError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<[u8]>);

/// Whose naming a [`Key`] follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[repr(u8)]
pub enum KeyTag {
    /// One MessagePack scalar in its shortest encoding, as Maru's clients use: `5`, `"5"` and `nil` differ.
    MessagePack = 1,
    /// The canonical string of an LMCache object key.
    LmCache = 2,
    /// Bytes without further meaning.
    Raw = 3,
}

impl KeyTag {
    /// The tag with this number, as it stands in messages and logs.
    pub const fn from_u8(tag: u8) -> Option<Self> {
        match tag {
            1 => Some(Self::MessagePack),
            2 => Some(Self::LmCache),
            3 => Some(Self::Raw),
            _ => None,
        }
    }
}

/// Why bytes are not a [`Key`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The key is longer than [`MAX_KEY_BYTES`].
    #[error("key has {found} bytes; expected at most {MAX_KEY_BYTES}")]
    TooLong {
        /// The length found.
        found: usize,
    },
    /// The tag's number is not one of [`KeyTag`].
    #[error("key tag is {found}; expected 1 (MessagePack), 2 (LMCache) or 3 (raw)")]
    UnknownTag {
        /// The number found.
        found: u8,
    },
}

impl Key {
    /// A key of `tag` with these bytes.
    ///
    /// # Errors
    /// [`KeyError::TooLong`] beyond [`MAX_KEY_BYTES`].
    pub fn new(tag: KeyTag, bytes: &[u8]) -> Result<Self, KeyError> {
        if bytes.len() > MAX_KEY_BYTES {
            return Err(KeyError::TooLong { found: bytes.len() });
        }
        Ok(Self::tagged(tag, bytes))
    }

    fn tagged(tag: KeyTag, bytes: &[u8]) -> Self {
        // One allocation and a copy as a whole for nearly all keys; a chain of iterators would copy byte by byte.
        let mut short = [0; 128];
        match short.get_mut(..=bytes.len()) {
            Some(tagged) => {
                tagged[0] = tag as u8;
                tagged[1..].copy_from_slice(bytes);
                Self((&*tagged).into())
            }
            None => Self([&[tag as u8], bytes].concat().into()),
        }
    }

    /// A key from its tag's number and its bytes, as they stand in messages and logs.
    ///
    /// # Errors
    /// [`KeyError`] if either is out of range.
    pub fn from_wire(tag: u8, bytes: &[u8]) -> Result<Self, KeyError> {
        let tag = KeyTag::from_u8(tag).ok_or(KeyError::UnknownTag { found: tag })?;
        Self::new(tag, bytes)
    }

    /// The key that a Maru client means by this string: a MessagePack `str`.
    ///
    /// # Errors
    /// [`KeyError::TooLong`] if the encoded string exceeds [`MAX_KEY_BYTES`].
    pub fn text(text: &str) -> Result<Self, KeyError> {
        let len = text.len();
        let mut bytes = Vec::with_capacity(len + 3);
        match len {
            0..=31 => bytes.push(0xa0 | len as u8),
            32..=255 => bytes.extend([0xd9, len as u8]),
            256..=MAX_KEY_BYTES => bytes.extend([0xda, (len >> 8) as u8, len as u8]),
            _ => return Err(KeyError::TooLong { found: len }),
        }
        bytes.extend_from_slice(text.as_bytes());
        Self::new(KeyTag::MessagePack, &bytes)
    }

    /// The key that a Maru client means by this non-negative integer: a MessagePack `uint` in its shortest form.
    pub fn integer(value: u64) -> Self {
        let mut bytes = [0; 9];
        let used = match value {
            0..=0x7f => {
                bytes[0] = value as u8;
                1
            }
            0x80..=0xff => {
                bytes[..2].copy_from_slice(&[0xcc, value as u8]);
                2
            }
            0x100..=0xffff => {
                bytes[0] = 0xcd;
                bytes[1..3].copy_from_slice(&(value as u16).to_be_bytes());
                3
            }
            0x1_0000..=0xffff_ffff => {
                bytes[0] = 0xce;
                bytes[1..5].copy_from_slice(&(value as u32).to_be_bytes());
                5
            }
            _ => {
                bytes[0] = 0xcf;
                bytes[1..9].copy_from_slice(&value.to_be_bytes());
                9
            }
        };
        Self::tagged(KeyTag::MessagePack, &bytes[..used])
    }

    /// Whose naming this key follows.
    pub fn tag(&self) -> KeyTag {
        KeyTag::from_u8(self.0[0]).unwrap_or(KeyTag::Raw)
    }

    /// The bytes, without the tag.
    pub fn bytes(&self) -> &[u8] {
        &self.0[1..]
    }

    /// The string, if this is the key of one.
    pub fn as_text(&self) -> Option<&str> {
        if self.tag() != KeyTag::MessagePack {
            return None;
        }
        let text = match self.bytes() {
            [first @ 0xa0..=0xbf, text @ ..] if usize::from(first & 0x1f) == text.len() => text,
            [0xd9, len, text @ ..] if usize::from(*len) == text.len() => text,
            [0xda, high, low, text @ ..]
                if usize::from(u16::from_be_bytes([*high, *low])) == text.len() =>
            {
                text
            }
            _ => return None,
        };
        std::str::from_utf8(text).ok()
    }

    fn as_integer(&self) -> Option<u64> {
        if self.tag() != KeyTag::MessagePack {
            return None;
        }
        match *self.bytes() {
            [value @ 0..=0x7f] => Some(value.into()),
            [0xcc, value] => Some(value.into()),
            [0xcd, a, b] => Some(u16::from_be_bytes([a, b]).into()),
            [0xce, a, b, c, d] => Some(u32::from_be_bytes([a, b, c, d]).into()),
            [0xcf, a, b, c, d, e, f, g, h] => Some(u64::from_be_bytes([a, b, c, d, e, f, g, h])),
            _ => None,
        }
    }
}

/// A string key prints as its text, an integer key as `int:5`, an LMCache key as `lmcache:…`, any other
/// as its tag and lower-case hexadecimal.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(text) = self.as_text() {
            return write!(f, "{}", text.escape_debug());
        }
        if let Some(value) = self.as_integer() {
            return write!(f, "int:{value}");
        }
        let tag = match self.tag() {
            KeyTag::LmCache => match std::str::from_utf8(self.bytes()) {
                Ok(text) => return write!(f, "lmcache:{}", text.escape_debug()),
                Err(_) => "lmcache-hex",
            },
            KeyTag::MessagePack => "msgpack",
            KeyTag::Raw => "raw",
        };
        write!(f, "{tag}:")?;
        self.bytes()
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_text_and_integer_are_different_keys() {
        assert_ne!(Key::integer(5), Key::text("5").unwrap());
        assert_eq!(Key::integer(5).bytes(), [5]);
        assert_eq!(Key::integer(300).bytes(), [0xcd, 0x01, 0x2c]);
        assert_eq!(
            Key::integer(u64::MAX).to_string(),
            format!("int:{}", u64::MAX)
        );
    }

    #[test]
    fn text_survives_every_length_class() {
        for len in [0, 1, 31, 32, 255, 256, MAX_KEY_BYTES - 3] {
            let text = "k".repeat(len);
            let key = Key::text(&text).unwrap();
            assert_eq!(key.as_text(), Some(text.as_str()));
            assert_eq!(Key::from_wire(key.tag() as u8, key.bytes()).unwrap(), key);
        }
    }

    #[test]
    fn what_is_too_long_is_refused_with_its_length() {
        assert_eq!(
            Key::new(KeyTag::Raw, &[0; 1025]),
            Err(KeyError::TooLong { found: 1025 })
        );
        assert_eq!(
            Key::text(&"k".repeat(5000)),
            Err(KeyError::TooLong { found: 5000 })
        );
        assert_eq!(
            Key::from_wire(9, b""),
            Err(KeyError::UnknownTag { found: 9 })
        );
    }

    #[test]
    fn bytes_that_are_no_text_print_as_hexadecimal() {
        assert_eq!(
            Key::new(KeyTag::Raw, &[0, 255]).unwrap().to_string(),
            "raw:00ff"
        );
        assert_eq!(
            Key::new(KeyTag::MessagePack, &[0xa5, b'x'])
                .unwrap()
                .as_text(),
            None
        );
    }
}
