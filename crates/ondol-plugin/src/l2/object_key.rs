use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The longest cache salt, in characters.
pub const MAX_SALT_CHARS: usize = 128;

/// The name of an object in a storage backend, as LMCache names it (`ObjectKey`, 0.5.6). Cloning copies nothing.
///
/// Its canonical string is `model@rank8@group@hash[@salt]`: the rank as eight, the group as few hexadecimal digits, the hash in
/// lower-case hexadecimal, the salt only if there is one.
///
/// ```
/// use ondol_plugin::l2::{KvRank, ObjectKey};
///
/// let key = ObjectKey::new("meta-llama/Llama-3.1-8B", KvRank::of_worker(0, 1)?, 0, [0xab; 4], "")?;
/// assert_eq!(key.to_string(), "meta-llama/Llama-3.1-8B@01000100@0@abababab");
/// assert_eq!(key.file_name(), "meta-llama-SEP-Llama-3.1-8B@0x01000100@0@abababab.data");
/// assert_eq!(key.to_string().parse::<ObjectKey>()?, key);
/// # Ok::<(), ondol_plugin::l2::ObjectKeyError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey(Arc<Parts>);

#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Parts {
    model_name: Box<str>,
    kv_rank: KvRank,
    object_group: u32,
    chunk_hash: Box<[u8]>,
    cache_salt: Box<str>,
}

/// Which part of a model's parallel layout wrote an object: four fields of eight bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KvRank(pub u32);

/// Why something is no [`ObjectKey`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectKeyError {
    /// A character that separates or ends names.
    #[error("{field} is {value:?}; expected none of {forbidden}")]
    Forbidden {
        /// Which part.
        field: &'static str,
        /// Its value.
        value: String,
        /// What must not be in it.
        forbidden: &'static str,
    },
    /// A part that must not be empty.
    #[error("{field} is empty")]
    Empty {
        /// Which part.
        field: &'static str,
    },
    /// A salt that is too long.
    #[error("cache_salt has {found} characters; expected at most {MAX_SALT_CHARS}")]
    SaltTooLong {
        /// How many it has.
        found: usize,
    },
    /// A rank or a size that does not fit its eight bits.
    #[error("{field} is {found}; expected at most 255, as it is packed into eight bits")]
    RankTooLarge {
        /// Which field.
        field: &'static str,
        /// Its value.
        found: u32,
    },
    /// A string that is not canonical.
    #[error("{found:?} is no object key; expected model@rank8@group@hash[@salt]: {reason}")]
    Malformed {
        /// The string.
        found: String,
        /// What is wrong with it.
        reason: &'static str,
    },
}

impl KvRank {
    /// Packs the four fields.
    ///
    /// # Errors
    /// [`ObjectKeyError::RankTooLarge`].
    pub fn new(
        world_size: u32,
        global_rank: u32,
        local_world_size: u32,
        local_rank: u32,
    ) -> Result<Self, ObjectKeyError> {
        let fields = [
            ("world_size", world_size),
            ("global_rank", global_rank),
            ("local_world_size", local_world_size),
            ("local_rank", local_rank),
        ];
        let mut packed = 0;
        for (field, found) in fields {
            if found > 255 {
                return Err(ObjectKeyError::RankTooLarge { field, found });
            }
            packed = packed << 8 | found;
        }
        Ok(Self(packed))
    }

    /// The rank of one worker of `world_size`, as LMCache's multi-process server packs it.
    ///
    /// # Errors
    /// [`ObjectKeyError::RankTooLarge`].
    pub fn of_worker(worker: u32, world_size: u32) -> Result<Self, ObjectKeyError> {
        Self::new(world_size, worker, world_size, worker)
    }
}

impl ObjectKey {
    /// A key of its parts.
    ///
    /// # Errors
    /// [`ObjectKeyError`] if a part has a character that it must not have, or is too long or empty.
    pub fn new(
        model_name: &str,
        kv_rank: KvRank,
        object_group: u32,
        chunk_hash: impl AsRef<[u8]>,
        cache_salt: &str,
    ) -> Result<Self, ObjectKeyError> {
        let forbidden = |field, value: &str, forbidden| ObjectKeyError::Forbidden {
            field,
            value: value.to_owned(),
            forbidden,
        };
        if model_name.is_empty() {
            return Err(ObjectKeyError::Empty {
                field: "model_name",
            });
        }
        if model_name.contains(['@', '\0']) {
            return Err(forbidden("model_name", model_name, "`@` and NUL"));
        }
        if chunk_hash.as_ref().is_empty() {
            return Err(ObjectKeyError::Empty {
                field: "chunk_hash",
            });
        }
        if cache_salt.contains(['@', '/', '\\', '\0']) {
            return Err(forbidden(
                "cache_salt",
                cache_salt,
                "`@`, `/`, `\\` and NUL",
            ));
        }
        let found = cache_salt.chars().count();
        if found > MAX_SALT_CHARS {
            return Err(ObjectKeyError::SaltTooLong { found });
        }
        Ok(Self(Arc::new(Parts {
            model_name: model_name.into(),
            kv_rank,
            object_group,
            chunk_hash: chunk_hash.as_ref().into(),
            cache_salt: cache_salt.into(),
        })))
    }

    /// The model.
    pub fn model_name(&self) -> &str {
        &self.0.model_name
    }

    /// Which rank wrote it.
    pub fn kv_rank(&self) -> KvRank {
        self.0.kv_rank
    }

    /// The object group; 0 unless a model has several.
    pub fn object_group(&self) -> u32 {
        self.0.object_group
    }

    /// The hash of the chunk and all before it.
    pub fn chunk_hash(&self) -> &[u8] {
        &self.0.chunk_hash
    }

    /// The salt that keeps tenants apart; often empty.
    pub fn cache_salt(&self) -> &str {
        &self.0.cache_salt
    }

    /// The name of its file in LMCache's `fs` layout: `/` of the model becomes `-SEP-`.
    pub fn file_name(&self) -> String {
        let model = self.0.model_name.replace('/', "-SEP-");
        format!("{model}@0x{}.data", Rest(&self.0))
    }

    /// The key of a file in LMCache's `fs` layout; `None` if it is not the name of one. A model whose own name has `-SEP-` in it
    /// is read as if that were `/`.
    pub fn from_file_name(name: &str) -> Option<Self> {
        let stem = name.strip_suffix(".data")?;
        let (model, rest) = stem.split_once('@')?;
        let rest = rest.strip_prefix("0x")?;
        let model = model.replace("-SEP-", "/");
        format!("{model}@{rest}").parse().ok()
    }
}

/// Everything of a canonical string behind the model.
struct Rest<'a>(&'a Parts);

impl fmt::Display for Rest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}@{:x}@", self.0.kv_rank.0, self.0.object_group)?;
        // Names are made for each key of each batch, and formatting byte by byte would be most of their cost.
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut hash = String::with_capacity(2 * self.0.chunk_hash.len());
        for byte in &self.0.chunk_hash {
            hash.push(DIGITS[usize::from(byte >> 4)].into());
            hash.push(DIGITS[usize::from(byte & 15)].into());
        }
        f.write_str(&hash)?;
        if !self.0.cache_salt.is_empty() {
            write!(f, "@{}", self.0.cache_salt)?;
        }
        Ok(())
    }
}

/// The canonical string.
impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.0.model_name, Rest(&self.0))
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectKey({self})")
    }
}

/// Reads a canonical string, and no other spelling of it.
impl FromStr for ObjectKey {
    type Err = ObjectKeyError;

    fn from_str(text: &str) -> Result<Self, ObjectKeyError> {
        let malformed = |reason| ObjectKeyError::Malformed {
            found: text.to_owned(),
            reason,
        };
        let mut parts = text.split('@');
        let mut next = || parts.next();
        let (model, rank, group, hash, salt) =
            match (next(), next(), next(), next(), next(), next()) {
                (Some(model), Some(rank), Some(group), Some(hash), None, None) => {
                    (model, rank, group, hash, "")
                }
                (Some(model), Some(rank), Some(group), Some(hash), Some(salt), None)
                    if !salt.is_empty() =>
                {
                    (model, rank, group, hash, salt)
                }
                _ => return Err(malformed("it has not four or five parts")),
            };
        let is_hex = |text: &str| {
            !text.is_empty()
                && text
                    .bytes()
                    .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        if rank.len() != 8 || !is_hex(rank) {
            return Err(malformed(
                "the rank is not eight lower-case hexadecimal digits",
            ));
        }
        let rank = u32::from_str_radix(rank, 16).map_err(|_| malformed("the rank is no number"))?;
        if !is_hex(group) || (group.len() > 1 && group.starts_with('0')) {
            return Err(malformed(
                "the group is no hexadecimal number in its shortest form",
            ));
        }
        let group =
            u32::from_str_radix(group, 16).map_err(|_| malformed("the group is too large"))?;
        if !is_hex(hash) || !hash.len().is_multiple_of(2) {
            return Err(malformed(
                "the hash is not pairs of lower-case hexadecimal digits",
            ));
        }
        // The digits were checked.
        let value = |digit: u8| match digit {
            b'0'..=b'9' => digit - b'0',
            _ => digit - b'a' + 10,
        };
        let pairs = hash.as_bytes().chunks_exact(2);
        let hash: Vec<u8> = pairs
            .map(|pair| value(pair[0]) << 4 | value(pair[1]))
            .collect();
        Self::new(model, KvRank(rank), group, hash, salt)
    }
}
