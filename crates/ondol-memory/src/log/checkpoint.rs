//! Checkpoints: the whole state as of one place of the log, in one file that is complete or not there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;

use ondol_plugin::Key;
use ondol_shm::{ClientId, Generation, PageId};

use super::codec::{
    Cursor, Malformed, put_extent, put_key, put_number, put_object, put_page, put_process,
};
use super::error::LogError;
use super::files::{self, checkpoint_name};
use super::format::{CHECKPOINT_MAGIC, FILE_HEADER, FileHeader, Identity};
use super::holdings::Holdings;
use super::progress::Progress;
use crate::pool::{PageState, RegionParts};
use crate::{ClientRecord, Image, Pool, StoredObject};

/// Kinds of blocks, in the order in which they stand.
mod kind {
    pub(super) const SUMMARY: u8 = 1;
    pub(super) const REGIONS: u8 = 2;
    pub(super) const CLIENTS: u8 = 3;
    pub(super) const GRANTS: u8 = 4;
    pub(super) const PINS: u8 = 5;
    pub(super) const REMOVED: u8 = 6;
    pub(super) const OBJECTS: u8 = 7;
    pub(super) const END: u8 = 8;
}

const BLOCK_HEADER: usize = 16;
/// A block is closed when it has this many bytes; the last entry may go beyond.
const BLOCK_BYTES: usize = 128 << 10;
/// Pages are listed in entries of at most this many.
const PAGES_PER_GRANT_ENTRY: usize = 4096;

/// Makes a checkpoint: a draft is written and synced, then it takes its name, then the name is made durable.
pub(super) fn write(
    dir: &Path,
    identity: &Identity,
    position: u64,
    image: &Image,
    stop: &AtomicBool,
) -> Result<u64, LogError> {
    let path = dir.join(checkpoint_name(position));
    let draft = files::draft_of(&path);
    let written = write_draft(&draft, identity, position, image, stop);
    if written.is_err() {
        // The draft is no use and takes room; if it stays, the next start removes it.
        let _ = fs::remove_file(&draft);
    }
    let bytes = written?;
    ondol_catalog::failpoint!("checkpoint.synced");
    fs::rename(&draft, &path).map_err(LogError::io("publish", &path))?;
    ondol_catalog::failpoint!("checkpoint.renamed");
    files::sync_dir(dir)?;
    ondol_catalog::failpoint!("checkpoint.published");
    Ok(bytes)
}

fn write_draft(
    draft: &Path,
    identity: &Identity,
    position: u64,
    image: &Image,
    stop: &AtomicBool,
) -> Result<u64, LogError> {
    let mut blocks = BlockWriter::create(draft, identity, position, stop)
        .map_err(LogError::io("make", draft))?;
    put_image(&mut blocks, image).map_err(LogError::io("write", draft))?;
    ondol_catalog::failpoint!("checkpoint.written");
    blocks
        .file
        .sync_all()
        .map_err(LogError::io("sync", draft))?;
    Ok(blocks.offset)
}

fn put_image(blocks: &mut BlockWriter<'_>, image: &Image) -> io::Result<()> {
    let pool = &image.pool;
    blocks.entry(kind::SUMMARY, |out| {
        put_number(out, pool.next_region());
        put_number(out, image.next_client);
        put_number(out, image.objects.len() as u64);
    })?;
    for (id, region) in pool.regions() {
        blocks.entry(kind::REGIONS, |out| {
            put_number(out, id.0);
            put_extent(out, region.extent());
            put_number(out, region.stride());
            put_number(out, u64::from(region.page_count()));
            region.pages().for_each(|(generation, state)| {
                put_number(out, generation.0);
                match state {
                    PageState::Free => out.push(0),
                    PageState::Committed => out.push(1),
                    PageState::Retired => out.push(2),
                    PageState::Granted(client) => {
                        out.push(3);
                        put_number(out, client.0);
                    }
                }
            });
            put_number(out, u64::from(region.free_count()));
            for index in region.free_pages() {
                put_number(out, u64::from(*index));
            }
        })?;
    }
    for (id, client) in &image.clients {
        blocks.entry(kind::CLIENTS, |out| {
            put_number(out, id.0);
            put_process(out, &client.process);
            out.extend_from_slice(&client.instance);
        })?;
    }
    for (client, request, pages) in pool.grants_by_request() {
        for pages in pages.chunks(PAGES_PER_GRANT_ENTRY) {
            blocks.entry(kind::GRANTS, |out| {
                put_number(out, client.0);
                put_number(out, request);
                put_number(out, pages.len() as u64);
                pages.iter().for_each(|page| put_page(out, *page));
            })?;
        }
    }
    for (id, client) in &image.clients {
        for (key, pin) in client
            .pins
            .iter()
            .flat_map(|(key, pins)| pins.iter().map(move |pin| (key, pin)))
        {
            blocks.entry(kind::PINS, |out| {
                put_number(out, id.0);
                put_number(out, *pin);
                put_key(out, key);
            })?;
        }
    }
    for (key, object) in image.removed.values() {
        blocks.object(kind::REMOVED, key, object)?;
    }
    for (key, object) in &image.objects {
        blocks.object(kind::OBJECTS, key, object)?;
    }
    blocks.finish_block()?;
    let count = blocks.blocks;
    blocks.entry(kind::END, |out| {
        put_number(out, count);
        put_number(out, image.objects.len() as u64);
    })?;
    blocks.finish_block()
}

/// Writes entries of one kind after the other, in blocks with a checksum each.
struct BlockWriter<'a> {
    file: File,
    identity: &'a Identity,
    position: u64,
    offset: u64,
    kind: u8,
    block: Vec<u8>,
    blocks: u64,
    stop: &'a AtomicBool,
}

impl<'a> BlockWriter<'a> {
    fn create(
        draft: &Path,
        identity: &'a Identity,
        position: u64,
        stop: &'a AtomicBool,
    ) -> io::Result<Self> {
        ondol_catalog::failpoint!(
            "checkpoint.write",
            Err(io::Error::other("failpoint checkpoint.write"))
        );
        let mut file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(draft)?;
        let header = FileHeader {
            magic: CHECKPOINT_MAGIC,
            pool: identity.pool,
            position,
            len: 0,
        };
        file.write_all(&header.encode())?;
        Ok(Self {
            file,
            identity,
            position,
            offset: FILE_HEADER as u64,
            kind: 0,
            block: Vec::with_capacity(2 * BLOCK_BYTES),
            blocks: 0,
            stop,
        })
    }

    fn object(&mut self, kind: u8, key: &Key, object: &StoredObject) -> io::Result<()> {
        self.entry(kind, |out| {
            put_object(out, key, &object.location, &object.meta, object.client);
        })
    }

    fn entry(&mut self, kind: u8, put: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        if self.kind != kind || self.block.len() >= BLOCK_BYTES {
            self.finish_block()?;
            self.kind = kind;
        }
        if self.block.is_empty() {
            self.block.resize(BLOCK_HEADER, 0);
        }
        put(&mut self.block);
        Ok(())
    }

    fn finish_block(&mut self) -> io::Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        if self.stop.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        ondol_catalog::failpoint!(
            "checkpoint.block",
            Err(io::Error::other("failpoint checkpoint.block"))
        );
        let len = u32::try_from(self.block.len() - BLOCK_HEADER).map_err(io::Error::other)?;
        self.block.resize(self.block.len().next_multiple_of(8), 0);
        self.block[8..12].copy_from_slice(&len.to_le_bytes());
        self.block[12] = self.kind;
        let place = self.position.wrapping_add(self.offset);
        let checksum = self.identity.checksum(place, &self.block[8..]);
        self.block[..8].copy_from_slice(&checksum.to_le_bytes());
        self.file.write_all(&self.block)?;
        self.offset += self.block.len() as u64;
        self.blocks += 1;
        self.block.clear();
        Ok(())
    }
}

/// A block whose checksum is right.
struct Block {
    kind: u8,
    offset: u64,
    bytes: Vec<u8>,
    len: usize,
}

impl Block {
    fn payload(&self) -> &[u8] {
        &self.bytes[BLOCK_HEADER..BLOCK_HEADER + self.len]
    }
}

/// Reads the blocks of a checkpoint.
struct BlockReader<'a> {
    path: &'a Path,
    file: BufReader<File>,
    identity: &'a Identity,
    position: u64,
    offset: u64,
    blocks: u64,
}

impl<'a> BlockReader<'a> {
    fn open(path: &'a Path, identity: &'a Identity) -> Result<Self, LogError> {
        let file = File::open(path).map_err(LogError::io("open", path))?;
        let mut file = BufReader::with_capacity(1 << 20, file);
        let mut bytes = Vec::with_capacity(FILE_HEADER);
        file.by_ref()
            .take(FILE_HEADER as u64)
            .read_to_end(&mut bytes)
            .map_err(LogError::io("read", path))?;
        let header = files::check_header(path, &bytes, CHECKPOINT_MAGIC, identity)?;
        let name = checkpoint_name(header.position);
        // Under another name it would be followed by the wrong segments.
        if path.file_name().is_some_and(|found| found != name.as_str()) {
            let found = format!("the checkpoint of place {:#x}", header.position);
            return Err(LogError::corrupt(path, 32, found, "the one of its name"));
        }
        Ok(Self {
            path,
            file,
            identity,
            position: header.position,
            offset: FILE_HEADER as u64,
            blocks: 0,
        })
    }

    fn next(&mut self) -> Result<Block, LogError> {
        let mut bytes = Vec::with_capacity(2 * BLOCK_BYTES);
        self.fill(&mut bytes, BLOCK_HEADER as u64)?;
        let number = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let checksum = u64::from(number(0)) | u64::from(number(4)) << 32;
        let (len, kind) = (number(8), bytes[12]);
        self.fill(&mut bytes, u64::from(len).next_multiple_of(8))?;
        let place = self.position.wrapping_add(self.offset);
        if self.identity.checksum(place, &bytes[8..]) != checksum {
            return Err(self.corrupt("a block whose checksum is wrong"));
        }
        let offset = self.offset;
        self.offset += bytes.len() as u64;
        self.blocks += 1;
        Ok(Block {
            kind,
            offset,
            bytes,
            len: len as usize,
        })
    }

    /// Appends exactly `len` bytes of the file; memory grows with what is there, not with what is said to be.
    fn fill(&mut self, bytes: &mut Vec<u8>, len: u64) -> Result<(), LogError> {
        let read = self.file.by_ref().take(len).read_to_end(bytes);
        match read.map_err(LogError::io("read", self.path))? as u64 {
            read if read < len => Err(self.corrupt("the end of the file")),
            _ => Ok(()),
        }
    }

    fn corrupt(&self, found: &str) -> LogError {
        LogError::corrupt(self.path, self.offset, found, "a block of a checkpoint")
    }
}

/// What the reading thread hands to the one that builds.
enum Decoded {
    Objects(u64, Vec<(Key, StoredObject)>),
    Other(Block),
}

/// Reads a checkpoint over an empty pool. One thread reads, checks and decodes while the other builds.
pub(super) fn read(
    path: &Path,
    identity: &Identity,
    empty: Pool,
    stop: &AtomicBool,
    progress: &mut Progress,
) -> Result<Image, LogError> {
    let reader = BlockReader::open(path, identity)?;
    let file_len = fs::metadata(path)
        .map_err(LogError::io("look at", path))?
        .len();
    let mut builder = Builder::new(Image::new(empty), file_len);
    thread::scope(|scope| {
        let (sender, decoded) = sync_channel(4);
        let reading =
            scope.spawn(move || decode_blocks(reader, stop, |block| sender.send(block).is_ok()));
        let mut built = Ok(());
        for block in decoded {
            let (offset, added) = match block {
                Decoded::Objects(offset, objects) => (offset, builder.add_objects(objects)),
                Decoded::Other(block) => (block.offset, builder.add(&block)),
            };
            progress.tick(builder.image.objects.len() as u64);
            if let Err(Malformed(found)) = added {
                built = Err(LogError::corrupt(
                    path,
                    offset,
                    found,
                    "a state that holds together",
                ));
                break;
            }
        }
        // Ends the reader, should it still be at work: nobody takes what it sends.
        match (built, reading.join()) {
            (Err(error), _) | (Ok(()), Ok(Err(error))) => Err(error),
            (Ok(()), Ok(Ok(()))) => builder.finish().map_err(|Malformed(found)| {
                LogError::corrupt(path, file_len, found, "a state that holds together")
            }),
            (Ok(()), Err(_)) => Err(LogError::interrupted(path)),
        }
    })
}

/// Reads every block to the end block; `take` says whether it wants more.
fn decode_blocks(
    mut reader: BlockReader<'_>,
    stop: &AtomicBool,
    mut take: impl FnMut(Decoded) -> bool,
) -> Result<(), LogError> {
    let mut objects = 0;
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(LogError::interrupted(reader.path));
        }
        let block = reader.next()?;
        let malformed = |Malformed(found)| {
            LogError::corrupt(reader.path, block.offset, found, "a block of a checkpoint")
        };
        let wanted = match block.kind {
            kind::OBJECTS => {
                let decoded = read_objects(block.payload()).map_err(malformed)?;
                objects += decoded.len() as u64;
                take(Decoded::Objects(block.offset, decoded))
            }
            kind::END => {
                let mut cursor = Cursor(block.payload());
                let counts = cursor
                    .number()
                    .and_then(|blocks| Ok((blocks, cursor.number()?)));
                let found = counts.map_err(malformed)?;
                let expected = (reader.blocks - 1, objects);
                if found != expected {
                    return Err(malformed(Malformed("an end block that counts otherwise")));
                }
                return Ok(());
            }
            _ => take(Decoded::Other(block)),
        };
        if !wanted {
            return Err(LogError::interrupted(reader.path));
        }
    }
}

fn read_objects(payload: &[u8]) -> Result<Vec<(Key, StoredObject)>, Malformed> {
    let mut cursor = Cursor(payload);
    // No object takes fewer bytes; most take more.
    let mut objects = Vec::with_capacity(payload.len() / 64);
    while !cursor.is_empty() {
        objects.push(cursor.object()?);
    }
    Ok(objects)
}

/// Checks a checkpoint and counts what is in it.
pub(super) fn count(path: &Path, identity: &Identity) -> Result<Holdings, LogError> {
    let mut holdings = Holdings::default();
    let mut counted = Ok(());
    decode_blocks(
        BlockReader::open(path, identity)?,
        &AtomicBool::new(false),
        |decoded| {
            match decoded {
                Decoded::Objects(_, objects) => holdings.objects += objects.len() as u64,
                Decoded::Other(block) if counted.is_ok() => {
                    let malformed = |Malformed(found)| {
                        LogError::corrupt(path, block.offset, found, "a block of a checkpoint")
                    };
                    counted = count_block(&mut holdings, &block).map_err(malformed);
                }
                Decoded::Other(_) => {}
            }
            true
        },
    )?;
    counted.map(|()| holdings)
}

fn count_block(holdings: &mut Holdings, block: &Block) -> Result<(), Malformed> {
    let mut cursor = Cursor(block.payload());
    while matches!(block.kind, kind::CLIENTS | kind::GRANTS | kind::PINS) && !cursor.is_empty() {
        let client = cursor.client()?;
        match block.kind {
            kind::CLIENTS => {
                let process = cursor.process()?;
                cursor.array::<16>()?;
                holdings.attach(client, process);
            }
            kind::GRANTS => {
                cursor.number()?;
                let pages = cursor.number()?;
                for _ in 0..pages {
                    cursor.page()?;
                }
                holdings.granted(client, pages);
            }
            _ => {
                cursor.number()?;
                cursor.key()?;
                holdings.pinned(client);
            }
        }
    }
    Ok(())
}

/// Puts an image together out of blocks.
struct Builder {
    image: Image,
    file_len: u64,
    next_region: Option<u64>,
    /// A request's pages may stand in several entries.
    grants: BTreeMap<(ClientId, u64), Vec<PageId>>,
    kind: u8,
}

impl Builder {
    fn new(image: Image, file_len: u64) -> Self {
        Self {
            image,
            file_len,
            next_region: None,
            grants: BTreeMap::new(),
            kind: 0,
        }
    }

    fn in_order(&mut self, kind: u8) -> Result<(), Malformed> {
        if kind < self.kind {
            return Err(Malformed("blocks out of their order"));
        }
        self.kind = kind;
        Ok(())
    }

    fn add(&mut self, block: &Block) -> Result<(), Malformed> {
        self.in_order(block.kind)?;
        let mut cursor = Cursor(block.payload());
        while !cursor.is_empty() {
            match block.kind {
                kind::SUMMARY => self.add_summary(&mut cursor)?,
                kind::REGIONS => self.add_region(&mut cursor)?,
                kind::CLIENTS => self.add_client(&mut cursor)?,
                kind::GRANTS => self.add_grants(&mut cursor)?,
                kind::PINS => self.add_pin(&mut cursor)?,
                kind::REMOVED => self.add_removed(&mut cursor)?,
                _ => return Err(Malformed("a block of an unknown kind")),
            }
        }
        Ok(())
    }

    fn add_summary(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Malformed> {
        self.next_region = Some(cursor.number()?);
        self.image.next_client = cursor.number()?;
        // What is said here is worth no more memory than the file could fill.
        let objects = cursor.number()?.min(self.file_len / 8);
        self.image.objects.reserve(objects as usize);
        Ok(())
    }

    fn add_region(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Malformed> {
        let (id, extent, stride) = (cursor.region()?, cursor.extent()?, cursor.number()?);
        let count = cursor.number()?;
        let mut pages = Vec::with_capacity((count.min(cursor.0.len() as u64)) as usize);
        for _ in 0..count {
            let generation = Generation(cursor.number()?);
            let state = match cursor.byte()? {
                0 => PageState::Free,
                1 => PageState::Committed,
                2 => PageState::Retired,
                3 => PageState::Granted(cursor.client()?),
                _ => return Err(Malformed("a page in an unknown state")),
            };
            pages.push((generation, state));
        }
        let count = cursor.number()?;
        let mut free = Vec::with_capacity((count.min(cursor.0.len() as u64)) as usize);
        for _ in 0..count {
            free.push(cursor.number_u32()?);
        }
        let parts = RegionParts {
            extent,
            stride,
            pages,
            free,
        };
        let restored = self.image.pool.restore_region(id, parts);
        restored.map_err(Malformed)
    }

    fn add_client(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Malformed> {
        let id = cursor.client()?;
        let record = ClientRecord {
            process: cursor.process()?,
            instance: cursor.array()?,
            pins: BTreeMap::new(),
        };
        match self.image.clients.insert(id, record) {
            None if id.0 < self.image.next_client => Ok(()),
            _ => Err(Malformed("a client twice or above the highest name")),
        }
    }

    fn add_grants(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Malformed> {
        let (client, request) = (cursor.client()?, cursor.number()?);
        if !self.image.clients.contains_key(&client) {
            return Err(Malformed("a grant to nobody"));
        }
        let pages = self.grants.entry((client, request)).or_default();
        for _ in 0..cursor.number()? {
            pages.push(cursor.page()?);
        }
        Ok(())
    }

    fn add_pin(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Malformed> {
        let (client, pin, key) = (cursor.client()?, cursor.number()?, cursor.key()?);
        let record = self.image.clients.get_mut(&client);
        let record = record.ok_or(Malformed("a pin of nobody"))?;
        let pins: &mut BTreeSet<u64> = record.pins.entry(key).or_default();
        match pins.insert(pin) {
            true => Ok(()),
            false => Err(Malformed("a pin twice")),
        }
    }

    fn add_removed(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Malformed> {
        let (key, object) = cursor.object()?;
        if !self.image.pool.holds(&object.location, PageState::Retired) {
            return Err(Malformed("a removed object whose page holds another"));
        }
        let page = object.location.page;
        match self.image.removed.insert(page, (key, object)) {
            None => Ok(()),
            Some(_) => Err(Malformed("a page with two removed objects")),
        }
    }

    fn add_objects(&mut self, objects: Vec<(Key, StoredObject)>) -> Result<(), Malformed> {
        self.in_order(kind::OBJECTS)?;
        for (key, object) in objects {
            if !self
                .image
                .pool
                .holds(&object.location, PageState::Committed)
            {
                return Err(Malformed("an object whose page holds another"));
            }
            if self.image.objects.insert(key, object).is_some() {
                return Err(Malformed("an object twice"));
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Image, Malformed> {
        let pool = &mut self.image.pool;
        for ((client, request), pages) in self.grants {
            pool.restore_grants(client, request, pages)
                .map_err(Malformed)?;
        }
        let next_region = self.next_region.ok_or(Malformed("no summary"))?;
        pool.finish_restore(next_region).map_err(Malformed)?;
        let committed: u64 = pool
            .regions()
            .map(|(_, region)| u64::from(region.committed_count()))
            .sum();
        if committed != self.image.objects.len() as u64 {
            return Err(Malformed("a page in use without its object"));
        }
        Ok(self.image)
    }
}
