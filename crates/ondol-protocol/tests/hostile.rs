//! What is not a message: never a panic, never an allocation beyond what arrived.

mod common;

use common::{Message, examples};
use ondol_plugin::{Key, KeyTag};
use ondol_protocol::wire::{
    Answer, DecodeError, FrameReader, HEADER_BYTES, Header, MAX_BATCH, MAX_PAYLOAD_BYTES, Op,
    PROTOCOL_VERSION, Request, RequestRef, encode_answer, encode_request,
};
use ondol_protocol::{ControlError, Listing, Retrieve};
use ondol_shm::LeaseRef;

/// SplitMix64: all a mutation needs.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

fn decode_all(bytes: &[u8]) {
    let Some((head, payload)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return;
    };
    let mut header = Header::decode(head);
    for op in Op::ALL {
        header.op = op as u8;
        for status in [0x00, 0x80, 0x81] {
            header.status = status;
            // What is accepted says again what it said.
            if let Ok(request) = Request::decode(&header, payload) {
                let again = Message::Request(request);
                assert_eq!(again.decode(&again.encode(1)), Ok((1, again)));
            }
            if let Ok(answer) = Answer::decode(&header, payload) {
                let again = Message::Answer(op, answer);
                assert_eq!(again.decode(&again.encode(1)), Ok((1, again)));
            }
        }
    }
}

/// `ONDOL_SEED` replays one round, `ONDOL_ROUNDS` asks for more of them.
#[test]
fn mutated_messages_are_errors_or_messages() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().unwrap());
    let first: u64 = number("ONDOL_SEED").unwrap_or(1);
    let rounds: u64 = match number("ONDOL_SEED") {
        Some(_) => 1,
        None => number("ONDOL_ROUNDS").unwrap_or(300),
    };
    let examples: Vec<Vec<u8>> = examples()
        .iter()
        .map(|(_, message)| message.encode(1))
        .collect();
    for seed in first..first + rounds {
        // Shown only if the test fails.
        println!("ONDOL_SEED={seed}");
        let mut random = Random(seed);
        for example in &examples {
            let mut bytes = example.clone();
            for _ in 0..=random.below(4) {
                mutate(&mut bytes, &mut random);
            }
            decode_all(&bytes);
        }
    }
}

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    const NUMBERS: [u32; 6] = [0, 1, 0x7fff_ffff, 0xffff_ffff, 65_536, 65_537];
    if bytes.is_empty() {
        return;
    }
    let at = random.below(bytes.len());
    match random.below(6) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.next() as u8,
        2 => bytes.truncate(at),
        3 => bytes.insert(at, random.next() as u8),
        4 => {
            let part = bytes[at..].to_vec();
            bytes.extend_from_slice(&part);
        }
        _ => {
            let number = NUMBERS[random.below(NUMBERS.len())].to_le_bytes();
            let end = (at + 4).min(bytes.len());
            bytes[at..end].copy_from_slice(&number[..end - at]);
        }
    }
}

#[test]
fn a_message_cut_anywhere_is_an_error() {
    for (name, message) in examples() {
        let bytes = message.encode(1);
        let header = Header::decode(bytes.first_chunk().unwrap());
        let payload = &bytes[HEADER_BYTES..];
        for len in 0..payload.len() {
            let cut = &payload[..len];
            let accepted = match message {
                Message::Request(_) => Request::decode(&header, cut).is_ok(),
                Message::Answer(..) => Answer::decode(&header, cut).is_ok(),
            };
            assert!(!accepted, "{name}, cut to {len} bytes");
        }
    }
}

#[test]
fn a_message_with_a_byte_behind_it_is_an_error() {
    for (name, message) in examples() {
        let mut bytes = message.encode(1);
        let header = Header::decode(bytes.first_chunk().unwrap());
        bytes.push(0);
        let payload = &bytes[HEADER_BYTES..];
        let error = match message {
            Message::Request(_) => Request::decode(&header, payload).map(drop).unwrap_err(),
            Message::Answer(..) => Answer::decode(&header, payload).map(drop).unwrap_err(),
        };
        assert!(
            matches!(
                error,
                DecodeError::Trailing { left: 1 } | DecodeError::Stats(_)
            ),
            "{name}: {error:?}"
        );
    }
}

#[test]
fn requests_and_answers_are_not_taken_for_each_other() {
    for (name, message) in examples() {
        let bytes = message.encode(1);
        let header = Header::decode(bytes.first_chunk().unwrap());
        let payload = &bytes[HEADER_BYTES..];
        let error = match message {
            Message::Request(_) => Answer::decode(&header, payload).map(drop),
            Message::Answer(..) => Request::decode(&header, payload).map(drop),
        };
        assert!(
            matches!(error, Err(DecodeError::Status { .. })),
            "{name}: {error:?}"
        );
    }
}

fn header(op: Op) -> Header {
    Header {
        payload_len: 0,
        op: op as u8,
        status: 0,
        version: PROTOCOL_VERSION,
        sequence: 0,
    }
}

#[test]
fn a_count_is_held_against_the_bytes_that_are_left() {
    for op in [
        Op::ReturnPages,
        Op::Commit,
        Op::Locate,
        Op::Pin,
        Op::Unpin,
        Op::Delete,
    ] {
        let decode = |count: u32| Request::decode(&header(op), &count.to_le_bytes()).unwrap_err();
        assert!(matches!(
            decode(u32::MAX),
            DecodeError::TooMany {
                found: u32::MAX,
                ..
            }
        ));
        assert!(matches!(
            decode(MAX_BATCH as u32 + 1),
            DecodeError::TooMany { .. }
        ));
        // Refused for all of them at once: nothing was allocated to hold them.
        for count in [1, MAX_BATCH] {
            match decode(count as u32) {
                DecodeError::Truncated {
                    needed, left: 0, ..
                } => assert!(needed >= 3 * count, "{op:?}: {needed}"),
                error => panic!("{op:?}: {error:?}"),
            }
        }
    }
}

#[test]
fn a_pin_without_its_number_is_an_error() {
    let mut out = Vec::new();
    let keys = [Key::integer(1), Key::integer(2)];
    encode_request(&mut out, 0, RequestRef::Locate(&keys)).unwrap();
    for op in [Op::Pin, Op::Unpin] {
        // The same bytes as a list of keys.
        Request::decode(&header(Op::Locate), &out[HEADER_BYTES..]).unwrap();
        let error = Request::decode(&header(op), &out[HEADER_BYTES..]).unwrap_err();
        assert!(matches!(error, DecodeError::Truncated { .. }), "{error:?}");
    }
    // As many pins as a message may carry are held against the bytes of their keys and numbers.
    let count = (MAX_BATCH as u32).to_le_bytes();
    match Request::decode(&header(Op::Pin), &count).unwrap_err() {
        DecodeError::Truncated { needed, .. } => assert_eq!(needed, 11 * MAX_BATCH),
        error => panic!("{error:?}"),
    }
}

#[test]
fn keys_keep_their_limits_on_the_wire() {
    let decode = |tag: u8, len: u16| {
        let mut payload = vec![1, 0, 0, 0, tag];
        payload.extend_from_slice(&len.to_le_bytes());
        payload.resize(payload.len() + usize::from(len), 7);
        Request::decode(&header(Op::Locate), &payload)
    };
    decode(3, 1024).unwrap();
    for (tag, len) in [(3, 1025), (3, u16::MAX), (0, 1), (4, 1)] {
        assert!(
            matches!(decode(tag, len), Err(DecodeError::Key(_))),
            "{tag}, {len}"
        );
    }
}

#[test]
fn a_group_of_nothing_is_refused() {
    let request = Retrieve {
        keys: Vec::new(),
        leases: Vec::new(),
        group: 0,
        prefix: false,
        expect: None,
        wait_ms: 0,
        expected_len: 0,
    };
    let mut out = Vec::new();
    encode_request(&mut out, 0, RequestRef::Retrieve(&request)).unwrap();
    let error = Request::decode(&header(Op::Retrieve), &out[HEADER_BYTES..]).unwrap_err();
    assert_eq!(error.to_string(), "group size is 0; expected at least 1");
}

#[test]
fn what_a_frame_cannot_hold_is_not_sent() {
    let mut out = Vec::new();
    let key = Key::new(KeyTag::Raw, &[7; 1024]).unwrap();
    let mut keys = vec![key; 17_000];
    let error = encode_request(&mut out, 0, RequestRef::Locate(&keys)).unwrap_err();
    assert!(error.to_string().contains("16777216"), "{error}");
    keys.resize(MAX_BATCH + 1, Key::integer(1));
    let error = encode_request(&mut out, 0, RequestRef::Locate(&keys)).unwrap_err();
    assert!(error.to_string().contains("65537"), "{error}");
    let lease = LeaseRef {
        slot: 0,
        sequence: 0,
    };
    let request = Retrieve {
        keys: vec![Key::integer(1)],
        leases: vec![lease; 2],
        group: 1,
        prefix: false,
        expect: None,
        wait_ms: 0,
        expected_len: 0,
    };
    let error = encode_request(&mut out, 0, RequestRef::Retrieve(&request)).unwrap_err();
    assert!(
        error.to_string().contains("one lease for each key"),
        "{error}"
    );
}

#[test]
fn the_largest_batch_fits() {
    let keys: Vec<Key> = (0..MAX_BATCH as u64).map(Key::integer).collect();
    let message = Message::Request(Request::Locate(keys));
    assert_eq!(message.decode(&message.encode(1)), Ok((1, message)));
}

#[test]
fn a_list_is_cut_at_the_frames_end() {
    let (_, example) = examples()
        .into_iter()
        .find(|(name, _)| name == "0c-list.answer")
        .unwrap();
    let Message::Answer(_, Ok(Answer::List(example))) = example else {
        panic!("{example:?}");
    };
    let mut object = example.objects[0].clone();
    object.key = Key::new(KeyTag::Raw, &[7; 1024]).unwrap();
    let listing = Listing {
        objects: vec![object; 20_000],
        more: false,
    };
    let mut out = Vec::new();
    encode_answer(&mut out, Op::List as u8, 0, Ok(&Answer::List(listing)));
    assert!(out.len() <= HEADER_BYTES + MAX_PAYLOAD_BYTES);
    assert!(out.len() > HEADER_BYTES + MAX_PAYLOAD_BYTES - 1100);
    let header = Header::decode(out.first_chunk().unwrap());
    let Ok(Ok(Answer::List(cut))) = Answer::decode(&header, &out[HEADER_BYTES..]) else {
        panic!("not a listing");
    };
    assert!(cut.more && cut.objects.len() < 20_000);
}

#[test]
fn a_long_text_is_cut_at_a_character() {
    // Three bytes each, so that the limit falls into one.
    let text = "한".repeat(2000);
    let mut out = Vec::new();
    encode_answer(
        &mut out,
        Op::Ping as u8,
        0,
        Err(&ControlError::Refused(text.clone())),
    );
    let header = Header::decode(out.first_chunk().unwrap());
    let Ok(Err(ControlError::Refused(cut))) = Answer::decode(&header, &out[HEADER_BYTES..]) else {
        panic!("not a refusal");
    };
    assert!(text.starts_with(&cut) && cut.len() == 4095);
}

#[test]
fn text_that_is_none_is_refused() {
    let mut header = header(Op::Ping);
    header.status = 0x81;
    let error = Answer::decode(&header, &[3, 2, 0, 0xc3, 0x28]).unwrap_err();
    assert_eq!(error.to_string(), "text of the error is not UTF-8");
}

#[test]
fn frames_come_whole_out_of_any_stream() {
    let mut random = Random(7);
    let mut stream = Vec::new();
    let mut sent = Vec::new();
    for (_, message) in examples() {
        let bytes = message.encode(sent.len() as u64);
        stream.extend_from_slice(&bytes);
        sent.push(bytes);
    }
    for _ in 0..50 {
        let mut frames = FrameReader::new();
        let mut rest = stream.as_slice();
        let mut seen = 0;
        while !rest.is_empty() {
            let space = frames.space();
            let len = (1 + random.below(300)).min(rest.len()).min(space.len());
            space[..len].copy_from_slice(&rest[..len]);
            frames.filled(len);
            rest = &rest[len..];
            while let Some(frame) = frames.frame().unwrap() {
                assert_eq!(frame.header.encode(), sent[seen][..HEADER_BYTES]);
                assert_eq!(frame.payload, &sent[seen][HEADER_BYTES..]);
                seen += 1;
                frames.consume();
            }
        }
        assert_eq!(seen, sent.len());
    }
}
