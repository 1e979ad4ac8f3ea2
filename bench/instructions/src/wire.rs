//! Messages of the socket: a batch retrieve and its answer, a batch of commits.

use std::hint::black_box;

use anyhow::Context;
use ondol_plugin::RegionId;
use ondol_protocol::wire::{Answer, HEADER_BYTES, Header, Request, encode_answer, encode_request};
use ondol_protocol::{Commit, Hit, Retrieve, Retrieved};
use ondol_shm::{Generation, LeaseRef, Location, ObjectMeta, PageId};

use crate::{Path, keys};

const BATCH: usize = 256;

pub(crate) fn paths() -> anyhow::Result<Vec<Path>> {
    let keys = keys(BATCH);
    let lease = |slot| LeaseRef { slot, sequence: 1 };
    let retrieve = Request::Retrieve(Retrieve {
        keys: keys.clone(),
        leases: (0..BATCH as u32).map(lease).collect(),
        group: 1,
        prefix: false,
        expect: None,
        wait_ms: 0,
        expected_len: 0,
    });
    let commits = (0..).zip(&keys).map(|(index, key)| Commit {
        key: key.clone(),
        location: location(index),
        meta: ObjectMeta::default(),
    });
    let commit = Request::Commit(commits.collect());
    let hit = |index| {
        Some(Hit {
            location: location(index),
            meta: ObjectMeta::default(),
        })
    };
    let answer = Answer::Retrieve(Retrieved {
        hits: (0..BATCH as u32).map(hit).collect(),
        ..Retrieved::default()
    });
    let mut paths = Vec::new();
    for (name, request) in [("retrieve", retrieve), ("commit", commit)] {
        let mut frame = Vec::new();
        encode_request(&mut frame, 1, request.as_ref())?;
        let header = header(&frame)?;
        let mut out = Vec::new();
        let encode = move || {
            assert!(encode_request(&mut out, 1, black_box(&request).as_ref()).is_ok());
        };
        let decode = move || {
            let payload = black_box(&frame[HEADER_BYTES..]);
            assert!(black_box(Request::decode(&header, payload)).is_ok());
        };
        paths.push(Path::new(format!("wire.{name}.encode.256"), BATCH, encode));
        paths.push(Path::new(format!("wire.{name}.decode.256"), BATCH, decode));
    }
    let mut frame = Vec::new();
    encode_answer(&mut frame, answer.op() as u8, 1, Ok(&answer));
    let header = header(&frame)?;
    let mut out = Vec::new();
    let encode = move || encode_answer(&mut out, answer.op() as u8, 1, Ok(black_box(&answer)));
    let decode = move || {
        let payload = black_box(&frame[HEADER_BYTES..]);
        assert!(black_box(Answer::decode(&header, payload)).is_ok_and(|answer| answer.is_ok()));
    };
    paths.push(Path::new("wire.retrieved.encode.256", BATCH, encode));
    paths.push(Path::new("wire.retrieved.decode.256", BATCH, decode));
    Ok(paths)
}

fn header(frame: &[u8]) -> anyhow::Result<Header> {
    let bytes = frame
        .first_chunk()
        .context("a frame begins with a header")?;
    Ok(Header::decode(bytes))
}

fn location(index: u32) -> Location {
    Location {
        page: PageId {
            region: RegionId(1),
            index,
        },
        generation: Generation(1),
        len: 4096,
    }
}
