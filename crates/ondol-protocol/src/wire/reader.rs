use super::{DecodeError, MAX_BATCH};

/// Takes a payload apart from its front; never reads past its end.
#[derive(Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(payload: &'a [u8]) -> Self {
        Self(payload)
    }

    pub(super) fn bytes(
        &mut self,
        len: usize,
        what: &'static str,
    ) -> Result<&'a [u8], DecodeError> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(DecodeError::Truncated {
            what,
            needed: len,
            left: self.0.len(),
        })?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn array<const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<[u8; N], DecodeError> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(DecodeError::Truncated {
            what,
            needed: N,
            left: self.0.len(),
        })?;
        self.0 = rest;
        Ok(*bytes)
    }

    pub(super) fn u8(&mut self, what: &'static str) -> Result<u8, DecodeError> {
        self.array(what).map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self, what: &'static str) -> Result<u16, DecodeError> {
        self.array(what).map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        self.array(what).map(u64::from_le_bytes)
    }

    pub(super) fn bool(&mut self, what: &'static str) -> Result<bool, DecodeError> {
        match self.u8(what)? {
            0 => Ok(false),
            1 => Ok(true),
            found => Err(DecodeError::Value {
                what,
                found: found.into(),
                expected: "0 or 1",
            }),
        }
    }

    /// A count of elements of which each takes at least `min` bytes: as many as can be there.
    pub(super) fn count(&mut self, min: usize, what: &'static str) -> Result<usize, DecodeError> {
        let found = self.u32(what)?;
        let count = usize::try_from(found).unwrap_or(usize::MAX);
        if count > MAX_BATCH {
            return Err(DecodeError::TooMany { what, found });
        }
        let needed = count * min;
        if needed > self.0.len() {
            return Err(DecodeError::Truncated {
                what,
                needed,
                left: self.0.len(),
            });
        }
        Ok(count)
    }

    /// What is left, to the end.
    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    pub(super) fn end(self) -> Result<(), DecodeError> {
        match self.0.len() {
            0 => Ok(()),
            left => Err(DecodeError::Trailing { left }),
        }
    }
}
