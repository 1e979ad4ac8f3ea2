use ondol_plugin::Key;
use ondol_shm::RegionHandle;
use smallvec::SmallVec;

use crate::{Access, Commit, Grant, GrantRequest, Pin, Prefetch, Retrieve};

use super::header::{HEADER_BYTES, Header, Op, PROTOCOL_VERSION, Status};
use super::reader::Reader;
use super::value::{Wire, get_all, get_few, put_all, put_count, put_u32, put_u64};
use super::{DecodeError, EncodeError, MAX_BATCH, MAX_PAYLOAD_BYTES};

/// The first bytes of the first payload.
pub const HELLO_MAGIC: [u8; 8] = *b"ONDOLCTL";

/// The first message of every connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// A random number of the handler. Connections of one process with the same number are one client.
    pub instance: [u8; 16],
    /// When the client's process started, in clock ticks since boot. A server that sees another start time behind
    /// the socket is talking to a child that inherited it.
    pub start_time: u64,
    /// 0 as long as the client was told no incarnation, else the last one that it was told; the descriptor of its lease
    /// table then travels with the message. A server that knows the client, of its own or from its predecessor, answers
    /// with the same client's name and its own incarnation; any other with
    /// [`UnknownClient`](crate::ControlError::UnknownClient).
    pub incarnation: u64,
}

/// A request as it arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The first message.
    Hello(Hello),
    /// Regions with a higher id than this, in the order of their ids.
    Regions {
        /// The last id that is already known; 0 for none.
        after: u64,
    },
    /// A descriptor of a region's file.
    OpenBacking {
        /// The capability.
        handle: RegionHandle,
        /// How it is to be mapped.
        access: Access,
    },
    /// Pages to write.
    Grant(GrantRequest),
    /// Pages back.
    ReturnPages(Vec<Grant>),
    /// Objects to make visible.
    Commit(SmallVec<[Commit; 1]>),
    /// Objects to find and lease.
    Retrieve(Retrieve),
    /// Objects to find.
    Locate(Vec<Key>),
    /// Pins to make.
    Pin(Vec<Pin>),
    /// Pins to take back.
    Unpin(Vec<Pin>),
    /// Objects to remove.
    Delete(Vec<Key>),
    /// Objects to list.
    List {
        /// The key behind which to start.
        after: Option<Key>,
        /// The most objects wanted.
        limit: u32,
    },
    /// Statistics.
    Stats,
    /// A sign of life.
    Ping,
    /// The client leaves.
    Leave,
    /// Objects to bring to memory.
    Prefetch(Prefetch),
    /// Descriptors of the index and of the client's slot table.
    Index,
}

/// A request as it is sent, borrowed from its caller.
#[derive(Clone, Copy, Debug)]
#[expect(
    missing_docs,
    reason = "each is the variant of Request of the same name"
)]
pub enum RequestRef<'a> {
    Hello(&'a Hello),
    Regions {
        after: u64,
    },
    OpenBacking {
        handle: &'a RegionHandle,
        access: Access,
    },
    Grant(GrantRequest),
    ReturnPages(&'a [Grant]),
    Commit(&'a [Commit]),
    Retrieve(&'a Retrieve),
    Locate(&'a [Key]),
    Pin(&'a [Pin]),
    Unpin(&'a [Pin]),
    Delete(&'a [Key]),
    List {
        after: Option<&'a Key>,
        limit: u32,
    },
    Stats,
    Ping,
    Leave,
    Prefetch(&'a Prefetch),
    Index,
}

impl RequestRef<'_> {
    /// What is asked for.
    pub fn op(&self) -> Op {
        match self {
            Self::Hello(_) => Op::Hello,
            Self::Regions { .. } => Op::Regions,
            Self::OpenBacking { .. } => Op::OpenBacking,
            Self::Grant(_) => Op::Grant,
            Self::ReturnPages(_) => Op::ReturnPages,
            Self::Commit(_) => Op::Commit,
            Self::Retrieve(_) => Op::Retrieve,
            Self::Locate(_) => Op::Locate,
            Self::Pin(_) => Op::Pin,
            Self::Unpin(_) => Op::Unpin,
            Self::Delete(_) => Op::Delete,
            Self::List { .. } => Op::List,
            Self::Stats => Op::Stats,
            Self::Ping => Op::Ping,
            Self::Leave => Op::Leave,
            Self::Prefetch(_) => Op::Prefetch,
            Self::Index => Op::Index,
        }
    }

    fn batch_len(&self) -> usize {
        match self {
            Self::ReturnPages(pages) => pages.len(),
            Self::Commit(commits) => commits.len(),
            Self::Retrieve(request) => request.keys.len(),
            Self::Prefetch(request) => request.keys.len(),
            Self::Pin(pins) | Self::Unpin(pins) => pins.len(),
            Self::Locate(keys) | Self::Delete(keys) => keys.len(),
            _ => 0,
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello(hello) => {
                out.extend_from_slice(&HELLO_MAGIC);
                out.extend_from_slice(&hello.instance);
                put_u64(hello.start_time, out);
                put_u64(hello.incarnation, out);
            }
            Self::Regions { after } => put_u64(*after, out),
            Self::OpenBacking { handle, access } => {
                handle.put(out);
                access.put(out);
            }
            Self::Grant(request) => request.put(out),
            Self::ReturnPages(pages) => put_all(pages, out),
            Self::Commit(commits) => put_all(commits, out),
            Self::Retrieve(request) => {
                put_u32(request.group, out);
                out.push(request.prefix.into());
                request.expect.put(out);
                put_u32(request.wait_ms, out);
                put_u64(request.expected_len, out);
                put_count(request.keys.len(), out);
                for (key, lease) in request.keys.iter().zip(&request.leases) {
                    key.put(out);
                    lease.put(out);
                }
            }
            Self::Pin(pins) | Self::Unpin(pins) => put_all(pins, out),
            Self::Locate(keys) | Self::Delete(keys) => put_all(keys, out),
            Self::List { after, limit } => {
                out.push(after.is_some().into());
                if let Some(key) = after {
                    key.put(out);
                }
                put_u32(*limit, out);
            }
            Self::Prefetch(request) => {
                put_u32(request.group, out);
                out.push(request.prefix.into());
                put_u32(request.wait_ms, out);
                put_u64(request.expected_len, out);
                put_all(&request.keys, out);
            }
            Self::Stats | Self::Ping | Self::Leave | Self::Index => {}
        }
    }
}

/// Replaces what is in `out` by the frame of a request.
///
/// # Errors
/// [`EncodeError`] if the request is larger than a frame may be; `out` then holds nothing that may be sent.
pub fn encode_request(
    out: &mut Vec<u8>,
    sequence: u64,
    request: RequestRef<'_>,
) -> Result<(), EncodeError> {
    let found = request.batch_len();
    if found > MAX_BATCH {
        return Err(EncodeError::TooMany { found });
    }
    if let RequestRef::Retrieve(Retrieve { keys, leases, .. }) = request
        && keys.len() != leases.len()
    {
        let (keys, leases) = (keys.len(), leases.len());
        return Err(EncodeError::Unpaired { keys, leases });
    }
    out.clear();
    out.resize(HEADER_BYTES, 0);
    request.put(out);
    let found = out.len() - HEADER_BYTES;
    let payload_len = u32::try_from(found).unwrap_or(u32::MAX);
    if found > MAX_PAYLOAD_BYTES {
        return Err(EncodeError::TooLong { found });
    }
    let header = Header {
        payload_len,
        op: request.op() as u8,
        status: Status::Request as u8,
        version: PROTOCOL_VERSION,
        sequence,
    };
    out[..HEADER_BYTES].copy_from_slice(&header.encode());
    Ok(())
}

impl Request {
    /// The request as it is sent.
    pub fn as_ref(&self) -> RequestRef<'_> {
        match self {
            Self::Hello(hello) => RequestRef::Hello(hello),
            Self::Regions { after } => RequestRef::Regions { after: *after },
            Self::OpenBacking { handle, access } => RequestRef::OpenBacking {
                handle,
                access: *access,
            },
            Self::Grant(request) => RequestRef::Grant(*request),
            Self::ReturnPages(pages) => RequestRef::ReturnPages(pages),
            Self::Commit(commits) => RequestRef::Commit(commits),
            Self::Retrieve(request) => RequestRef::Retrieve(request),
            Self::Locate(keys) => RequestRef::Locate(keys),
            Self::Pin(keys) => RequestRef::Pin(keys),
            Self::Unpin(keys) => RequestRef::Unpin(keys),
            Self::Delete(keys) => RequestRef::Delete(keys),
            Self::List { after, limit } => RequestRef::List {
                after: after.as_ref(),
                limit: *limit,
            },
            Self::Stats => RequestRef::Stats,
            Self::Ping => RequestRef::Ping,
            Self::Leave => RequestRef::Leave,
            Self::Prefetch(request) => RequestRef::Prefetch(request),
            Self::Index => RequestRef::Index,
        }
    }

    /// Reads a request.
    ///
    /// # Errors
    /// [`DecodeError`] names the field and what was expected.
    pub fn decode(header: &Header, payload: &[u8]) -> Result<Self, DecodeError> {
        if header.status != Status::Request as u8 {
            return Err(DecodeError::Status {
                found: header.status,
                expected: "0x00, a request",
            });
        }
        let op = Op::from_u8(header.op)?;
        let mut reader = Reader::new(payload);
        let request = Self::get(op, &mut reader)?;
        reader.end()?;
        Ok(request)
    }

    fn get(op: Op, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match op {
            Op::Hello => {
                let found = reader.array("magic")?;
                if found != HELLO_MAGIC {
                    return Err(DecodeError::Magic { found });
                }
                Self::Hello(Hello {
                    instance: reader.array("handler instance")?,
                    start_time: reader.u64("start time")?,
                    incarnation: reader.u64("incarnation")?,
                })
            }
            Op::Regions => Self::Regions {
                after: reader.u64("last region id")?,
            },
            Op::OpenBacking => Self::OpenBacking {
                handle: Wire::get(reader)?,
                access: Wire::get(reader)?,
            },
            Op::Grant => Self::Grant(Wire::get(reader)?),
            Op::ReturnPages => Self::ReturnPages(get_all(reader, "pages to return")?),
            Op::Commit => Self::Commit(get_few(reader, "commits")?),
            Op::Retrieve => Self::Retrieve(get_retrieve(reader)?),
            Op::Locate => Self::Locate(get_all(reader, "keys to locate")?),
            Op::Pin => Self::Pin(get_all(reader, "pins to make")?),
            Op::Unpin => Self::Unpin(get_all(reader, "pins to take back")?),
            Op::Delete => Self::Delete(get_all(reader, "keys to delete")?),
            Op::List => Self::List {
                after: Wire::get(reader)?,
                limit: reader.u32("limit of the listing")?,
            },
            Op::Stats => Self::Stats,
            Op::Ping => Self::Ping,
            Op::Leave => Self::Leave,
            Op::Prefetch => Self::Prefetch(get_prefetch(reader)?),
            Op::Index => Self::Index,
        })
    }
}

fn get_group(reader: &mut Reader<'_>) -> Result<u32, DecodeError> {
    let group = reader.u32("group size")?;
    if group == 0 {
        return Err(DecodeError::Value {
            what: "group size",
            found: 0,
            expected: "at least 1",
        });
    }
    Ok(group)
}

fn get_prefetch(reader: &mut Reader<'_>) -> Result<Prefetch, DecodeError> {
    Ok(Prefetch {
        group: get_group(reader)?,
        prefix: reader.bool("mark of a prefix")?,
        wait_ms: reader.u32("wait")?,
        expected_len: reader.u64("expected length")?,
        keys: get_all(reader, "keys to bring")?,
    })
}

fn get_retrieve(reader: &mut Reader<'_>) -> Result<Retrieve, DecodeError> {
    let group = get_group(reader)?;
    let prefix = reader.bool("mark of a prefix")?;
    let expect = Wire::get(reader)?;
    let wait_ms = reader.u32("wait")?;
    let expected_len = reader.u64("expected length")?;
    let count = reader.count(Key::MIN + ondol_shm::LeaseRef::MIN, "keys to retrieve")?;
    let mut keys = Vec::with_capacity(count);
    let mut leases = Vec::with_capacity(count);
    for _ in 0..count {
        keys.push(Wire::get(reader)?);
        leases.push(Wire::get(reader)?);
    }
    Ok(Retrieve {
        keys,
        leases,
        group,
        prefix,
        expect,
        wait_ms,
        expected_len,
    })
}
