//! Everything that a socket may bring: the bytes as a stream, cut as the first byte says, and every frame in it as a
//! request and as an answer. What is accepted must say again what it said.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ondol_protocol::wire::{
    Answer, Frame, FrameReader, HEADER_BYTES, Header, Op, Request, Status, encode_answer,
    encode_request,
};

fuzz_target!(|bytes: &[u8]| {
    let Some((step, mut stream)) = bytes.split_first() else {
        return;
    };
    if let Some((head, payload)) = stream.split_first_chunk::<HEADER_BYTES>() {
        // A payload that no header describes, so that the fuzzer need not find its length.
        let header = Header::decode(head);
        decode(Frame { header, payload });
    }
    let mut frames = FrameReader::new();
    while !stream.is_empty() {
        let space = frames.space();
        let len = usize::from(*step).max(1).min(stream.len()).min(space.len());
        space[..len].copy_from_slice(&stream[..len]);
        frames.filled(len);
        stream = &stream[len..];
        loop {
            match frames.frame() {
                Ok(Some(frame)) => decode(frame),
                Ok(None) => break,
                Err(_) => return,
            }
            frames.consume();
        }
    }
});

fn decode(frame: Frame<'_>) {
    let mut header = frame.header;
    let mut out = Vec::new();
    header.status = Status::Request as u8;
    if let Ok(request) = Request::decode(&header, frame.payload) {
        encode_request(&mut out, header.sequence, request.as_ref()).expect("it fitted before");
        let again = Request::decode(&read(&out), &out[HEADER_BYTES..]);
        assert_eq!(again, Ok(request));
    }
    for status in [Status::Done, Status::Error] {
        header.status = status as u8;
        let Ok(answer) = Answer::decode(&header, frame.payload) else {
            continue;
        };
        encode_answer(&mut out, header.op, header.sequence, answer.as_ref());
        let again = Answer::decode(&read(&out), &out[HEADER_BYTES..]);
        // Statistics are JSON: what is equal need not be spelled the same, and may not fit any more.
        if Op::from_u8(header.op) != Ok(Op::Stats) {
            assert_eq!(again, Ok(answer));
        }
    }
}

fn read(frame: &[u8]) -> Header {
    Header::decode(frame.first_chunk().expect("a header"))
}
