//! What the parent and its instances tell each other, one JSON object or word a line.
//!
//! The parent writes a [`Task`] to an instance's standard input, then one more line to let it begin (if it is paced, one
//! for each request). When it closes the pipe, by will or by death, the instance stops after its current request.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::tally::Tally;

/// What one instance is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) socket: PathBuf,
    pub(super) instance: u32,
    /// Part of every key.
    pub(super) workload: String,
    /// Names this run.
    pub(super) nonce: u64,
    pub(super) seed: u64,
    pub(super) block_bytes: usize,
    /// Bytes of pages that the instance may keep in stock.
    pub(super) stock_bytes: u64,
    pub(super) hold: f64,
    /// Whether each request needs a turn, and each that is done is told.
    pub(super) paced: bool,
    /// How many seconds to wait for a server that is away.
    pub(super) patience: u64,
    /// How many seconds each lookup waits for storage.
    pub(super) l2_wait: Option<u64>,
    pub(super) requests: Vec<Vec<u64>>,
}

/// What an instance says on its standard output.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Said {
    /// It is connected and waits to begin.
    Ready,
    /// How many requests are done.
    Done(u64),
    /// A block did not hold what it should.
    Damage(String),
    /// It gave up.
    Failed(String),
    /// It is through.
    Report(Box<Tally>),
}
