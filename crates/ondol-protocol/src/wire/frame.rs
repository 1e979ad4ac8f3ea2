use std::fmt;

use super::header::{HEADER_BYTES, Header};
use super::{DecodeError, MAX_PAYLOAD_BYTES};

/// What is asked of a socket at once while nothing is known of the frame.
const CHUNK: usize = 8 << 10;

/// Room that is kept between frames.
const KEEP: usize = 64 << 10;

/// Puts frames together from a stream of bytes.
///
/// The buffer grows with the bytes that arrive, not with the length that a header announces, and is given back
/// after a long frame.
///
/// ```
/// use ondol_protocol::wire::{FrameReader, Op, Request, RequestRef, encode_request};
///
/// let mut stream = Vec::new();
/// encode_request(&mut stream, 7, RequestRef::Ping)?;
///
/// let mut frames = FrameReader::new();
/// frames.space()[..stream.len()].copy_from_slice(&stream);
/// frames.filled(stream.len());
/// let frame = frames.frame()?.expect("a whole frame");
/// assert_eq!(frame.header.sequence, 7);
/// assert_eq!(Request::decode(&frame.header, frame.payload)?, Request::Ping);
/// frames.consume();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct FrameReader {
    buffer: Vec<u8>,
    filled: usize,
    limit: usize,
}

/// One frame.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Its header.
    pub header: Header,
    /// Its payload.
    pub payload: &'a [u8],
}

impl FrameReader {
    /// A reader that takes payloads of up to [`MAX_PAYLOAD_BYTES`].
    pub fn new() -> Self {
        Self::with_limit(MAX_PAYLOAD_BYTES)
    }

    /// A reader that takes payloads of up to `limit` bytes.
    pub fn with_limit(limit: usize) -> Self {
        Self {
            buffer: Vec::new(),
            filled: 0,
            limit,
        }
    }

    /// From now on takes payloads of up to `limit` bytes.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Room for bytes that arrive, never empty.
    pub fn space(&mut self) -> &mut [u8] {
        let wanted = self.room_wanted();
        if self.buffer.len() < wanted {
            self.buffer.resize(wanted, 0);
        }
        &mut self.buffer[self.filled..]
    }

    /// How many bytes the reader holds once [`space`](Self::space) is called, what has arrived included.
    pub fn room_wanted(&self) -> usize {
        let needed = match self.header() {
            Some(header) => frame_len(&header).min(HEADER_BYTES + self.limit),
            None => 0,
        };
        // At most doubled, so that a header alone cannot make us allocate what it announces.
        needed
            .min(self.filled.saturating_mul(2))
            .max(self.filled + CHUNK)
            .max(self.buffer.len())
    }

    /// How many bytes the reader holds, used or not.
    pub fn room(&self) -> usize {
        self.buffer.len()
    }

    /// Says that the first `len` bytes of [`space`](Self::space) have arrived.
    ///
    /// # Panics
    /// If that is more than there was room for.
    pub fn filled(&mut self, len: usize) {
        assert!(
            len <= self.buffer.len() - self.filled,
            "{len} bytes, room for {}",
            self.buffer.len() - self.filled
        );
        self.filled += len;
    }

    /// The first frame, if it has arrived whole.
    ///
    /// # Errors
    /// [`DecodeError`] as soon as its header is there and bad; the stream cannot be followed any further, but
    /// [`header`](Self::header) still tells what was asked.
    pub fn frame(&self) -> Result<Option<Frame<'_>>, DecodeError> {
        let Some(header) = self.header() else {
            return Ok(None);
        };
        header.check(self.limit)?;
        let whole = self.buffer[..self.filled].get(HEADER_BYTES..frame_len(&header));
        Ok(whole.map(|payload| Frame { header, payload }))
    }

    /// The header of the first frame, if it has arrived; not judged.
    pub fn header(&self) -> Option<Header> {
        self.buffer[..self.filled].first_chunk().map(Header::decode)
    }

    /// Whether some bytes of a frame have arrived.
    pub fn is_started(&self) -> bool {
        self.filled > 0
    }

    /// Removes the first frame; does nothing if it has not arrived whole.
    pub fn consume(&mut self) {
        let Ok(Some(Frame { payload, .. })) = self.frame() else {
            return;
        };
        let len = HEADER_BYTES + payload.len();
        self.buffer.copy_within(len..self.filled, 0);
        self.filled -= len;
        if self.buffer.len() > KEEP && self.filled <= KEEP {
            self.buffer.truncate(KEEP);
            self.buffer.shrink_to(KEEP);
        }
    }
}

impl Default for FrameReader {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for FrameReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameReader")
            .field("header", &self.header())
            .field("filled", &self.filled)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

fn frame_len(header: &Header) -> usize {
    usize::try_from(header.payload_len)
        .unwrap_or(usize::MAX)
        .saturating_add(HEADER_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Op, PROTOCOL_VERSION, RequestRef, encode_request};
    use ondol_plugin::{Key, KeyTag};

    fn feed(frames: &mut FrameReader, mut bytes: &[u8], step: usize) -> usize {
        let mut seen = 0;
        while !bytes.is_empty() {
            let space = frames.space();
            let len = step.min(bytes.len()).min(space.len());
            space[..len].copy_from_slice(&bytes[..len]);
            frames.filled(len);
            bytes = &bytes[len..];
            while let Some(frame) = frames.frame().unwrap() {
                assert_eq!(frame.header.sequence, seen as u64);
                seen += 1;
                frames.consume();
            }
        }
        seen
    }

    #[test]
    fn frames_come_whole_however_the_stream_is_cut() {
        let keys = vec![Key::new(KeyTag::Raw, &[7; 100]).unwrap(); 50];
        let mut stream = Vec::new();
        let mut frame = Vec::new();
        let requests = [
            RequestRef::Ping,
            RequestRef::Locate(&keys),
            RequestRef::Stats,
            RequestRef::Locate(&keys),
        ];
        for (sequence, request) in requests.into_iter().enumerate() {
            encode_request(&mut frame, sequence as u64, request).unwrap();
            stream.extend_from_slice(&frame);
        }
        for step in [1, 3, 16, 17, 4096, usize::MAX] {
            let mut frames = FrameReader::new();
            assert_eq!(feed(&mut frames, &stream, step), requests.len());
            assert!(!frames.is_started());
        }
    }

    #[test]
    fn an_announced_length_is_not_allocated_before_its_bytes_come() {
        let header = Header {
            payload_len: MAX_PAYLOAD_BYTES as u32,
            op: Op::Locate as u8,
            status: 0,
            version: PROTOCOL_VERSION,
            sequence: 0,
        };
        let mut frames = FrameReader::new();
        assert_eq!(feed(&mut frames, &header.encode(), 16), 0);
        assert!(frames.space().len() <= CHUNK);
        assert_eq!(feed(&mut frames, &[0; 1 << 20], usize::MAX), 0);
        assert!(frames.buffer.capacity() <= (1 << 20) * 2 + CHUNK);
        assert_eq!(
            feed(
                &mut frames,
                &vec![0; MAX_PAYLOAD_BYTES - (1 << 20)],
                usize::MAX
            ),
            1
        );
        assert!(
            frames.buffer.capacity() <= KEEP,
            "a long frame's room is given back"
        );
    }

    #[test]
    fn a_bad_header_is_an_error_at_once() {
        let mut frames = FrameReader::with_limit(40);
        frames.space()[..16].copy_from_slice(b"GET / HTTP/1.1\r\n");
        frames.filled(16);
        assert!(matches!(frames.frame(), Err(DecodeError::Version { .. })));
    }
}
