use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use ondol_plugin::Key;

use super::IndexedObject;

/// The server's name of an object's record within one index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordId(pub(super) u32);

/// There is no place for another object: the index is to be replaced by a larger one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the index has no place for another object")]
pub struct IndexFull;

/// The one writer of an index.
#[derive(Debug)]
pub struct IndexWriter {}

impl IndexWriter {
    /// An empty index for about `objects` objects of keys that are `key_bytes` long on average, under the name
    /// `incarnation`, which no other index of this pool has had and which is not 0.
    ///
    /// # Errors
    /// If the system has no memory or descriptor left.
    pub fn create(_objects: u64, _key_bytes: u64, _incarnation: u64) -> io::Result<Self> {
        todo!()
    }

    /// The name of this index.
    pub fn incarnation(&self) -> u64 {
        todo!()
    }

    /// The file, for this process.
    pub fn file(&self) -> BorrowedFd<'_> {
        todo!()
    }

    /// A descriptor of the file that can be mapped for reading only, for a client.
    ///
    /// # Errors
    /// If the system has no descriptor left.
    pub fn open_for_reader(&self) -> io::Result<OwnedFd> {
        todo!()
    }

    /// Makes an object findable; none of its name is. One that is `unverified` is found, but readers are to ask the server
    /// for it.
    ///
    /// # Errors
    /// [`IndexFull`]; then nothing has changed.
    pub fn insert(
        &mut self,
        _key: &Key,
        _object: &IndexedObject,
        _unverified: bool,
    ) -> Result<RecordId, IndexFull> {
        todo!()
    }

    /// Readers need not ask the server for this object any more.
    pub fn set_verified(&mut self, _record: RecordId) {
        todo!()
    }

    /// Makes an object unfindable: no lease that is published from now on is confirmed. Its page may be reused once
    /// [`SlotTables`](crate::SlotTableView) have been scanned after this.
    pub fn remove(&mut self, _record: RecordId) {
        todo!()
    }

    /// How many visible objects the index does not hold. While there are any, readers take no absence for an answer.
    pub fn set_unindexed(&mut self, _objects: u64) {
        todo!()
    }

    /// No reader may rely on this index any more; whoever tries asks the server for another one.
    pub fn retire(&mut self) {
        todo!()
    }

    /// Number of objects.
    pub fn len(&self) -> u64 {
        todo!()
    }

    /// Whether there is no object.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of shared memory.
    pub fn bytes(&self) -> u64 {
        todo!()
    }
}
