use crate::{
    ClientInfo, CommitOutcomes, ControlError, DeleteOutcome, EngineStats, Grant, Hit, Listing,
    PinOutcome, Prefetched, RegionInfo, Retrieved, StaleReason,
};

use super::header::{HEADER_BYTES, Header, Op, PROTOCOL_VERSION, Status};
use super::reader::Reader;
use super::value::{Wire, get_all, get_few, put_all, put_count, put_u32};
use super::{DecodeError, MAX_BATCH, MAX_PAYLOAD_BYTES};

/// The answer to a request that was carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Who the client is; the descriptor of its lease table travels along.
    Hello(ClientInfo),
    /// A part of the regions, in the order of their ids.
    Regions {
        /// The regions.
        regions: Vec<RegionInfo>,
        /// Whether there are more behind the last one.
        more: bool,
    },
    /// The descriptor travels along.
    OpenBacking,
    /// Pages to write.
    Grant(Vec<Grant>),
    /// What became of each page.
    ReturnPages(Vec<Result<(), StaleReason>>),
    /// What became of each object.
    Commit(CommitOutcomes),
    /// What was found.
    Retrieve(Retrieved),
    /// Where each object lies.
    Locate(Vec<Option<Hit>>),
    /// What became of each pin.
    Pin(Vec<PinOutcome>),
    /// What became of each pin.
    Unpin(Vec<PinOutcome>),
    /// What became of each object.
    Delete(Vec<DeleteOutcome>),
    /// A part of the list of objects.
    List(Listing),
    /// Statistics, as JSON text on the wire.
    Stats(Box<EngineStats>),
    /// The engine answers.
    Ping,
    /// The client has left.
    Leave,
    /// What is in memory.
    Prefetch(Prefetched),
    /// The descriptors of the index and of the client's slot table travel along, in this order.
    Index,
    /// There is no index for this client.
    NoIndex,
}

impl Answer {
    /// What was asked for.
    pub fn op(&self) -> Op {
        match self {
            Self::Hello(_) => Op::Hello,
            Self::Regions { .. } => Op::Regions,
            Self::OpenBacking => Op::OpenBacking,
            Self::Grant(_) => Op::Grant,
            Self::ReturnPages(_) => Op::ReturnPages,
            Self::Commit(_) => Op::Commit,
            Self::Retrieve(_) => Op::Retrieve,
            Self::Locate(_) => Op::Locate,
            Self::Pin(_) => Op::Pin,
            Self::Unpin(_) => Op::Unpin,
            Self::Delete(_) => Op::Delete,
            Self::List(_) => Op::List,
            Self::Stats(_) => Op::Stats,
            Self::Ping => Op::Ping,
            Self::Leave => Op::Leave,
            Self::Prefetch(_) => Op::Prefetch,
            Self::Index | Self::NoIndex => Op::Index,
        }
    }

    /// How many descriptors travel with the answer.
    pub fn descriptors(&self) -> usize {
        match self {
            Self::Hello(_) | Self::OpenBacking => 1,
            Self::Index => 2,
            _ => 0,
        }
    }

    fn put(&self, out: &mut Vec<u8>) -> Result<(), ControlError> {
        match self {
            Self::Hello(info) => info.put(out),
            Self::Regions { regions, more } => put_part(regions, *more, out),
            Self::OpenBacking | Self::Ping | Self::Leave => {}
            Self::Grant(grants) => put_all(grants, out),
            Self::ReturnPages(results) => put_all(results, out),
            Self::Commit(outcomes) => put_all(outcomes, out),
            Self::Retrieve(Retrieved {
                hits,
                mismatches,
                pending,
            }) => {
                out.push((*pending).into());
                put_u32(*mismatches, out);
                put_all(hits, out);
            }
            Self::Index => out.push(true.into()),
            Self::NoIndex => out.push(false.into()),
            Self::Locate(hits) => put_all(hits, out),
            Self::Pin(outcomes) | Self::Unpin(outcomes) => put_all(outcomes, out),
            Self::Delete(outcomes) => put_all(outcomes, out),
            Self::List(Listing { objects, more }) => put_part(objects, *more, out),
            Self::Prefetch(Prefetched { found, pending }) => {
                out.push((*pending).into());
                put_all(found, out);
            }
            Self::Stats(stats) => serde_json::to_writer(out, stats)
                .map_err(|error| ControlError::Failed(format!("statistics: {error}")))?,
        }
        Ok(())
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are none; the inner error is the server's.
    pub fn decode(
        header: &Header,
        payload: &[u8],
    ) -> Result<Result<Self, ControlError>, DecodeError> {
        let mut reader = Reader::new(payload);
        let answer = match header.status {
            status if status == Status::Done as u8 => {
                Ok(Self::get(Op::from_u8(header.op)?, &mut reader)?)
            }
            status if status == Status::Error as u8 => Err(ControlError::get(&mut reader)?),
            found => {
                return Err(DecodeError::Status {
                    found,
                    expected: "0x80 or 0x81, an answer",
                });
            }
        };
        reader.end()?;
        Ok(answer)
    }

    fn get(op: Op, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match op {
            Op::Hello => Self::Hello(Wire::get(reader)?),
            Op::Regions => {
                let (regions, more) = get_part(reader, "regions")?;
                Self::Regions { regions, more }
            }
            Op::OpenBacking => Self::OpenBacking,
            Op::Grant => Self::Grant(get_all(reader, "granted pages")?),
            Op::ReturnPages => Self::ReturnPages(get_all(reader, "returned pages")?),
            Op::Commit => Self::Commit(get_few(reader, "commit outcomes")?),
            Op::Retrieve => Self::Retrieve(Retrieved {
                pending: reader.bool("mark of objects on their way")?,
                mismatches: reader.u32("count of mismatches")?,
                hits: get_all(reader, "hits")?,
            }),
            Op::Locate => Self::Locate(get_all(reader, "hits")?),
            Op::Pin => Self::Pin(get_all(reader, "pin outcomes")?),
            Op::Unpin => Self::Unpin(get_all(reader, "pin outcomes")?),
            Op::Delete => Self::Delete(get_all(reader, "delete outcomes")?),
            Op::List => {
                let (objects, more) = get_part(reader, "objects")?;
                Self::List(Listing { objects, more })
            }
            Op::Stats => Self::Stats(
                serde_json::from_slice(reader.rest())
                    .map_err(|error| DecodeError::Stats(error.to_string()))?,
            ),
            Op::Ping => Self::Ping,
            Op::Leave => Self::Leave,
            Op::Prefetch => Self::Prefetch(Prefetched {
                pending: reader.bool("mark of objects on their way")?,
                found: get_all(reader, "marks of objects")?,
            }),
            Op::Index => match reader.bool("mark of an index")? {
                true => Self::Index,
                false => Self::NoIndex,
            },
        })
    }
}

/// As many of the elements as a frame holds; what does not fit is left for the next question.
fn put_part<T: Wire>(values: &[T], more: bool, out: &mut Vec<u8>) {
    let start = out.len();
    out.push(0);
    put_count(0, out);
    let mut count = 0;
    for value in values.iter().take(MAX_BATCH) {
        let end = out.len();
        value.put(out);
        if out.len() - HEADER_BYTES > MAX_PAYLOAD_BYTES {
            out.truncate(end);
            break;
        }
        count += 1;
    }
    out[start] = (more || count < values.len()).into();
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    out[start + 1..start + 5].copy_from_slice(&count.to_le_bytes());
}

fn get_part<T: Wire>(
    reader: &mut Reader<'_>,
    what: &'static str,
) -> Result<(Vec<T>, bool), DecodeError> {
    let more = reader.bool("mark of more to come")?;
    Ok((get_all(reader, what)?, more))
}

/// Replaces what is in `out` by the frame that answers the request with this operation and number.
///
/// An answer that is longer than a frame may be is replaced by an error that says so; lists of objects and of
/// regions are cut instead and say that there is more.
pub fn encode_answer(
    out: &mut Vec<u8>,
    op: u8,
    sequence: u64,
    answer: Result<&Answer, &ControlError>,
) {
    let result = match answer {
        Ok(answer) => try_encode(out, op, sequence, answer),
        Err(error) => Err(error.clone()),
    };
    if let Err(error) = result {
        start(out);
        error.put(out);
        finish(out, op, Status::Error, sequence);
    }
}

fn try_encode(
    out: &mut Vec<u8>,
    op: u8,
    sequence: u64,
    answer: &Answer,
) -> Result<(), ControlError> {
    start(out);
    answer.put(out)?;
    let len = out.len() - HEADER_BYTES;
    if len > MAX_PAYLOAD_BYTES {
        let text = format!(
            "the answer has {len} bytes; a frame holds at most {MAX_PAYLOAD_BYTES}: ask in parts"
        );
        return Err(ControlError::Failed(text));
    }
    finish(out, op, Status::Done, sequence);
    Ok(())
}

fn start(out: &mut Vec<u8>) {
    out.clear();
    out.resize(HEADER_BYTES, 0);
}

fn finish(out: &mut [u8], op: u8, status: Status, sequence: u64) {
    let header = Header {
        payload_len: u32::try_from(out.len() - HEADER_BYTES).unwrap_or(u32::MAX),
        op,
        status: status as u8,
        version: PROTOCOL_VERSION,
        sequence,
    };
    out[..HEADER_BYTES].copy_from_slice(&header.encode());
}
