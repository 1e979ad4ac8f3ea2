use ondol_plugin::l2::ObjectKey;

/// The first bytes of a journal.
pub(crate) const MAGIC: [u8; 16] = *b"journal_file\0\0\0\x01";

/// The length of a record's head.
pub(crate) const HEAD_BYTES: usize = 32;

/// No name is longer: a model's name and a salt of 128 characters leave much room.
const MAX_NAME_BYTES: u32 = 1 << 16;

/// What a record says of its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Its bytes follow the name.
    Stored,
    /// It is deleted.
    Deleted,
}

/// The head of a record: what follows it are the name and the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    pub(crate) name_bytes: u32,
    pub(crate) object_bytes: u64,
    name_hash: u64,
}

impl Head {
    pub(crate) fn new(kind: Kind, name: &str, object_bytes: u64) -> Option<Self> {
        let name_bytes = u32::try_from(name.len()).ok()?;
        (name_bytes <= MAX_NAME_BYTES).then(|| Self {
            kind,
            name_bytes,
            object_bytes,
            name_hash: hash(name.as_bytes()),
        })
    }

    /// Bytes of the whole record.
    pub(crate) fn record_bytes(&self) -> u64 {
        HEAD_BYTES as u64 + u64::from(self.name_bytes) + self.object_bytes
    }

    pub(crate) fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        let kind: u32 = match self.kind {
            Kind::Stored => 1,
            Kind::Deleted => 2,
        };
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.name_bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.object_bytes.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.name_hash.to_le_bytes());
        let sum = hash(&bytes[..24]);
        bytes[24..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The head that these bytes are, if they are one.
    pub(crate) fn decode(bytes: &[u8; HEAD_BYTES]) -> Option<Self> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default());
        if word(24) != hash(&bytes[..24]) {
            return None;
        }
        let kind = match half(0) {
            1 => Kind::Stored,
            2 => Kind::Deleted,
            _ => return None,
        };
        let head = Self {
            kind,
            name_bytes: half(4),
            object_bytes: word(8),
            name_hash: word(16),
        };
        (head.name_bytes <= MAX_NAME_BYTES).then_some(head)
    }

    /// The key of a record with this head and this name, if they belong together.
    pub(crate) fn key(&self, name: &[u8]) -> Option<ObjectKey> {
        if self.name_hash != hash(name) {
            return None;
        }
        std::str::from_utf8(name).ok()?.parse().ok()
    }
}

/// FNV-1a, which finds heads that are none; the objects are checked by whoever stored them.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_comes_back_and_one_with_another_bit_does_not() {
        let head = Head::new(Kind::Stored, "model@00000000@0@ab", 7).unwrap();
        let bytes = head.encode();
        assert_eq!(Head::decode(&bytes), Some(head));
        for bit in 0..8 * HEAD_BYTES {
            let mut other = bytes;
            other[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Head::decode(&other), None, "bit {bit}");
        }
    }

    #[test]
    fn a_name_belongs_to_its_head() {
        let head = Head::new(Kind::Deleted, "model@00000000@0@ab", 0).unwrap();
        assert!(head.key(b"model@00000000@0@ab").is_some());
        assert!(head.key(b"model@00000000@0@ac").is_none());
        assert!(Head::decode(&[0; HEAD_BYTES]).is_none());
    }
}
