use ondol_plugin::l2::{KvRank, ObjectKey};

/// An object with bytes that tell it from every other one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) key: ObjectKey,
    pub(crate) body: Vec<u8>,
    pub(crate) trailer: Vec<u8>,
}

impl Sample {
    /// The sample of a number, with a body and a trailer of these lengths.
    pub(crate) fn new(number: u64, body: usize, trailer: usize) -> Self {
        Self::salted(number, body, trailer, "")
    }

    /// The same under a salt.
    pub(crate) fn salted(number: u64, body: usize, trailer: usize, salt: &str) -> Self {
        Self {
            key: key("org/model-1", number, salt),
            body: bytes(number, body),
            trailer: bytes(!number, trailer),
        }
    }

    /// The same for another model.
    pub(crate) fn of_model(mut self, model: &str, number: u64) -> Self {
        self.key = key(model, number, "");
        self
    }

    /// Bytes of both parts.
    pub(crate) fn stored_len(&self) -> usize {
        self.body.len() + self.trailer.len()
    }

    /// Both parts.
    pub(crate) fn stored(&self) -> Vec<u8> {
        [&self.body[..], &self.trailer].concat()
    }
}

/// Many samples of one size, numbered from `first`.
pub(crate) fn samples(first: u64, count: u64, body: usize, trailer: usize) -> Vec<Sample> {
    (first..first + count)
        .map(|number| Sample::new(number, body, trailer))
        .collect()
}

/// Their keys.
pub(crate) fn keys(samples: &[Sample]) -> Vec<ObjectKey> {
    samples.iter().map(|sample| sample.key.clone()).collect()
}

#[expect(clippy::expect_used, reason = "the parts are legal")]
fn key(model: &str, number: u64, salt: &str) -> ObjectKey {
    let mut hash = [0x5a; 32];
    hash[..8].copy_from_slice(&number.to_be_bytes());
    ObjectKey::new(model, KvRank(0x0100_0100), 0, hash, salt).expect("a legal key")
}

/// Bytes of a fast generator, another row for each number.
fn bytes(number: u64, len: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
