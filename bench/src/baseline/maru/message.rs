//! Maru's messages: 16 bytes of header in network order, then one MessagePack map.

use anyhow::{Context, Result, bail, ensure};

const MAGIC: u16 = 0xcf00;
const VERSION: u8 = 1;
const HEADER: usize = 16;
/// Set in the kind of an answer; those from 0xf0 on have it already.
const ANSWER: u8 = 0x80;
/// Maps and arrays in each other, at most.
const DEPTH: usize = 16;

/// The kinds of requests that the benchmark makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    RequestAlloc = 0x01,
    ReturnAlloc = 0x03,
    BatchRegister = 0x20,
    BatchLookup = 0x21,
    BatchExists = 0x22,
    Heartbeat = 0xf1,
}

/// A request.
pub(super) fn request(kind: Kind, sequence: u32, payload: &Encoder) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER + payload.0.len());
    message.extend_from_slice(&MAGIC.to_be_bytes());
    message.extend_from_slice(&[VERSION, kind as u8, 0, 0, 0, 0]);
    message.extend_from_slice(&sequence.to_be_bytes());
    message.extend_from_slice(&(payload.0.len() as u32).to_be_bytes());
    message.extend_from_slice(&payload.0);
    message
}

/// The payload of the answer to a request, which may not be an error.
pub(super) fn answer(kind: Kind, sequence: u32, message: &[u8]) -> Result<Value> {
    let (header, rest) = message
        .split_at_checked(HEADER)
        .context("an answer has no header")?;
    let word = |at: usize| {
        u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    ensure!(
        header[..3] == [0xcf, 0x00, VERSION],
        "an answer begins with {:02x?}",
        &header[..3]
    );
    let payload = rest.get(..word(12) as usize).context("an answer was cut")?;
    let mut decoder = Decoder(payload);
    let value = decoder.value(DEPTH)?;
    if let Some(error) = value.get("error") {
        bail!("the server says {error:?} to {kind:?}");
    }
    ensure!(
        header[3] == kind as u8 | ANSWER && word(8) == sequence,
        "request {sequence} of kind {kind:?} is answered with kind {:#x}, number {}",
        header[3],
        word(8)
    );
    Ok(value)
}

/// Writes MessagePack, integers in their shortest form.
#[derive(Debug)]
pub(super) struct Encoder(Vec<u8>);

impl Encoder {
    /// Begins with a map of so many entries.
    pub(super) fn map(entries: usize) -> Self {
        let mut encoder = Self(Vec::new());
        encoder.begin_map(entries);
        encoder
    }

    /// A map of so many entries, fewer than 16.
    pub(super) fn begin_map(&mut self, entries: usize) {
        debug_assert!(entries < 16, "a map of {entries} entries has another form");
        self.0.push(0x80 | entries as u8);
    }

    pub(super) fn array(&mut self, len: usize) -> &mut Self {
        match len {
            0..16 => self.0.push(0x90 | len as u8),
            _ => self.tagged(0xdc, &(len as u16).to_be_bytes()),
        }
        self
    }

    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        match text.len() {
            len @ 0..32 => self.0.push(0xa0 | len as u8),
            len @ 32..256 => self.tagged(0xd9, &[len as u8]),
            len => self.tagged(0xda, &(len as u16).to_be_bytes()),
        }
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    pub(super) fn integer(&mut self, value: u64) -> &mut Self {
        match value {
            0..0x80 => self.0.push(value as u8),
            0x80..0x100 => self.tagged(0xcc, &[value as u8]),
            0x100..0x1_0000 => self.tagged(0xcd, &(value as u16).to_be_bytes()),
            0x1_0000..0x1_0000_0000 => self.tagged(0xce, &(value as u32).to_be_bytes()),
            _ => self.tagged(0xcf, &value.to_be_bytes()),
        }
        self
    }

    fn tagged(&mut self, tag: u8, bytes: &[u8]) {
        self.0.push(tag);
        self.0.extend_from_slice(bytes);
    }
}

/// A decoded value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Nil,
    Bool(bool),
    Integer(u64),
    Text(String),
    Array(Vec<Value>),
    Map(Vec<(String, Value)>),
}

impl Value {
    /// The value of a map's key.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Map(entries) => entries
                .iter()
                .find(|(name, _)| name == key)
                .map(|(_, value)| value),
            _ => None,
        }
    }

    pub(super) fn as_integer(&self) -> Option<u64> {
        match self {
            Self::Integer(value) => Some(*value),
            _ => None,
        }
    }
}

/// Reads MessagePack.
struct Decoder<'a>(&'a [u8]);

impl Decoder<'_> {
    fn take(&mut self, len: usize) -> Result<&[u8]> {
        let (taken, rest) = self.0.split_at_checked(len).context("a value was cut")?;
        self.0 = rest;
        Ok(taken)
    }

    /// A number in so many bytes.
    fn number(&mut self, bytes: usize) -> Result<u64> {
        let bytes = self.take(bytes)?.iter();
        Ok(bytes.fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn value(&mut self, depth: usize) -> Result<Value> {
        let depth = depth
            .checked_sub(1)
            .context("values are nested too deeply")?;
        let tag = self.take(1)?[0];
        Ok(match tag {
            0x00..=0x7f => Value::Integer(tag.into()),
            0x80..=0x8f => self.map((tag & 0x0f).into(), depth)?,
            0x90..=0x9f => self.array((tag & 0x0f).into(), depth)?,
            0xa0..=0xbf => self.text((tag & 0x1f).into())?,
            0xc0 => Value::Nil,
            0xc2 | 0xc3 => Value::Bool(tag == 0xc3),
            0xcc..=0xcf => Value::Integer(self.number(1 << (tag - 0xcc))?),
            0xd9..=0xdb => {
                let len = self.number(1 << (tag - 0xd9))?;
                self.text(len)?
            }
            0xdc | 0xdd => {
                let len = self.number(2 << (tag - 0xdc))?;
                self.array(len, depth)?
            }
            0xde | 0xdf => {
                let len = self.number(2 << (tag - 0xde))?;
                self.map(len, depth)?
            }
            tag => bail!("a value has tag {tag:#x}, which no answer of a Maru server has"),
        })
    }

    fn text(&mut self, len: u64) -> Result<Value> {
        let bytes = self.take(len as usize)?.to_vec();
        Ok(Value::Text(String::from_utf8(bytes)?))
    }

    fn array(&mut self, len: u64, depth: usize) -> Result<Value> {
        let mut values = Vec::new();
        for _ in 0..len {
            values.push(self.value(depth)?);
        }
        Ok(Value::Array(values))
    }

    fn map(&mut self, len: u64, depth: usize) -> Result<Value> {
        let mut entries = Vec::new();
        for _ in 0..len {
            match self.value(depth)? {
                Value::Text(key) => entries.push((key, self.value(depth)?)),
                key => bail!("a map has the key {key:?}; expected a text"),
            }
        }
        Ok(Value::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digit = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(digit).collect()
    }

    // What Maru 0.1.0 sends for these messages.
    const ALLOC: &str =
        "cf00010100000000000000010000001982ab696e7374616e63655f6964a141a473697a65ce06400000";
    const ALLOCATED: &str = "cf00018100000000000000010000004982a773756363657373c3a668616e646c6584a9726567696f6e5f696407a66f6666736574ce00400000a66c656e677468ce00200000aa617574685f746f6b656ecff123456789abcdef";
    const REGISTER: &str = "cf0001200000000000000001000000328\
        1a7656e74726965739184a36b6579a16ba9726567696f6e5f696407a96b765f6f666673657400a96b765f6c656e67746801";
    const HEARTBEAT: &str = "cf0001f100000000000000010000000180";
    const UNDECODABLE: &str = "cf00018000000000000000000000001d81a56572726f72b5696e7465726e616c20736572766572206572726f72";

    #[test]
    fn requests_are_what_maru_sends() {
        let mut alloc = Encoder::map(2);
        alloc
            .text("instance_id")
            .text("A")
            .text("size")
            .integer(0x0640_0000);
        assert_eq!(request(Kind::RequestAlloc, 1, &alloc), bytes(ALLOC));
        let mut register = Encoder::map(1);
        register.text("entries").array(1).begin_map(4);
        register.text("key").text("k").text("region_id").integer(7);
        register
            .text("kv_offset")
            .integer(0)
            .text("kv_length")
            .integer(1);
        assert_eq!(request(Kind::BatchRegister, 1, &register), bytes(REGISTER));
        assert_eq!(
            request(Kind::Heartbeat, 1, &Encoder::map(0)),
            bytes(HEARTBEAT)
        );
    }

    #[test]
    fn answers_are_read() {
        let found = answer(Kind::RequestAlloc, 1, &bytes(ALLOCATED)).unwrap();
        let handle = found.get("handle").unwrap();
        assert_eq!(handle.get("region_id").unwrap().as_integer(), Some(7));
        assert_eq!(
            handle.get("auth_token").unwrap().as_integer(),
            Some(0xf123_4567_89ab_cdef)
        );
        assert_eq!(
            answer(Kind::Heartbeat, 1, &bytes(HEARTBEAT)).unwrap(),
            Value::Map(Vec::new())
        );
    }

    #[test]
    fn an_answer_that_is_none_is_refused() {
        let error = |kind, sequence, message: &[u8]| {
            answer(kind, sequence, message).unwrap_err().to_string()
        };
        let said = error(Kind::BatchExists, 1, &bytes(UNDECODABLE));
        assert!(said.contains("internal server error"), "{said}");
        let said = error(Kind::RequestAlloc, 2, &bytes(ALLOCATED));
        assert!(said.contains("number 1"), "{said}");
        let whole = bytes(ALLOCATED);
        for cut in 0..whole.len() {
            answer(Kind::RequestAlloc, 1, &whole[..cut]).expect_err("it was cut");
        }
    }

    #[test]
    fn lengths_and_integers_of_every_form_come_back() {
        let long = "x".repeat(300);
        let mut encoder = Encoder::map(1);
        encoder.text("all").array(20);
        let integers = [
            0,
            0x7f,
            0x80,
            0xff,
            0x100,
            0xffff,
            0x1_0000,
            u64::from(u32::MAX),
            1 << 32,
            u64::MAX,
        ];
        for value in integers {
            encoder.integer(value);
        }
        let texts = [
            "",
            &long[..31],
            &long[..32],
            &long[..255],
            &long[..256],
            &long,
            "a",
            "b",
            "c",
            "d",
        ];
        for text in texts {
            encoder.text(text);
        }
        let Value::Map(entries) = Decoder(&encoder.0).value(DEPTH).unwrap() else {
            panic!("a map");
        };
        let expected = integers.map(Value::Integer).into_iter();
        let expected = expected.chain(texts.map(|text| Value::Text(text.into())));
        assert_eq!(entries[0].1, Value::Array(expected.collect()));
    }

    #[test]
    fn nesting_has_an_end() {
        let error = Decoder(&[0x91; 1000]).value(DEPTH).unwrap_err();
        assert!(error.to_string().contains("too deeply"), "{error}");
    }
}
