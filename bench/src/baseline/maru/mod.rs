//! A metadata server of Maru at a given address: where objects lie, not their bytes.

mod message;
mod zmtp;

use std::net::TcpStream;

use anyhow::{Context, Result, bail, ensure};
use ondol::Key;

use super::Peer;
use message::{Encoder, Kind, Value};
use zmtp::Requester;

/// It registers some 50,000 keys a second, so that these take twenty.
const MOST_KEYS: usize = 1_000_000;
const REGISTERED_AT_ONCE: usize = 512;
/// The region that keys are registered in is asked for, and never written.
const REGION_BYTES: u64 = 2 << 20;
const OBJECT_BYTES: u64 = 64;

/// A client with one request under way at a time, as Maru's own synchronous client is.
#[derive(Debug)]
pub(super) struct Maru {
    requester: Requester<TcpStream>,
    sequence: u32,
    region: u64,
    instance: String,
}

impl Maru {
    /// Connects, and gets a region: keys of regions that the server does not know are registered, but not found.
    pub(super) fn connect(address: &str) -> Result<Self> {
        let address = address.trim_start_matches("tcp://");
        let stream =
            TcpStream::connect(address).with_context(|| format!("connect to {address}"))?;
        stream.set_nodelay(true)?;
        let mut maru = Self {
            requester: Requester::greet(stream).with_context(|| format!("greet {address}"))?,
            sequence: 0,
            region: 0,
            instance: format!("ondol-bench-{}", std::process::id()),
        };
        let mut payload = Encoder::map(2);
        payload.text("instance_id").text(&maru.instance);
        payload.text("size").integer(REGION_BYTES);
        let answer = maru.call(Kind::RequestAlloc, &payload)?;
        let handle = answer
            .get("handle")
            .context("the server grants no region; its resource manager has none")?;
        maru.region = handle
            .get("region_id")
            .and_then(Value::as_integer)
            .context("a region has no id")?;
        Ok(maru)
    }

    fn call(&mut self, kind: Kind, payload: &Encoder) -> Result<Value> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = message::request(kind, self.sequence, payload);
        let answer = self.requester.ask(&request)?;
        message::answer(kind, self.sequence, answer)
    }

    fn keys(keys: &[Key]) -> Result<Encoder> {
        let mut payload = Encoder::map(1);
        payload.text("keys").array(keys.len());
        for key in keys {
            payload.text(std::str::from_utf8(key.bytes())?);
        }
        Ok(payload)
    }
}

impl Peer for Maru {
    fn name(&self) -> &str {
        "Maru metadata server"
    }

    fn server(&self) -> Option<u32> {
        None
    }

    fn keeps_bytes(&self) -> bool {
        false
    }

    fn most_keys(&self) -> usize {
        MOST_KEYS
    }

    fn put(&mut self, keys: &[Key], _: &[u8]) -> Result<()> {
        for keys in keys.chunks(REGISTERED_AT_ONCE) {
            let mut payload = Encoder::map(1);
            payload.text("entries").array(keys.len());
            for key in keys {
                payload.begin_map(4);
                payload.text("key").text(std::str::from_utf8(key.bytes())?);
                payload.text("region_id").integer(self.region);
                payload.text("kv_offset").integer(0);
                payload.text("kv_length").integer(OBJECT_BYTES);
            }
            let answer = self.call(Kind::BatchRegister, &payload)?;
            ensure!(
                answer.get("success") == Some(&Value::Bool(true)),
                "the server does not register keys: {answer:?}"
            );
        }
        Ok(())
    }

    fn get(&mut self, keys: &[Key], _: &mut [u8]) -> Result<usize> {
        let answer = self.call(Kind::BatchLookup, &Self::keys(keys)?)?;
        let Some(Value::Array(entries)) = answer.get("entries") else {
            bail!("a lookup is answered with {answer:?}");
        };
        let found = |entry: &&Value| entry.get("found") == Some(&Value::Bool(true));
        Ok(entries.iter().filter(found).count())
    }

    fn exists(&mut self, keys: &[Key]) -> Result<usize> {
        let answer = self.call(Kind::BatchExists, &Self::keys(keys)?)?;
        let Some(Value::Array(results)) = answer.get("results") else {
            bail!("exists is answered with {answer:?}");
        };
        Ok(results
            .iter()
            .filter(|found| **found == Value::Bool(true))
            .count())
    }

    fn ping(&mut self) -> Option<Result<()>> {
        Some(self.call(Kind::Heartbeat, &Encoder::map(0)).map(drop))
    }

    /// Has no message for it; each scenario has keys of its own.
    fn clear(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Drop for Maru {
    fn drop(&mut self) {
        let mut payload = Encoder::map(2);
        payload.text("instance_id").text(&self.instance);
        payload.text("region_id").integer(self.region);
        let _ = self.call(Kind::ReturnAlloc, &payload);
    }
}
