//! A connector that is written in C, as a [`NativeConnector`].
//!
//! It keeps the guards of all memory that the connector may touch: from before a request is submitted until its completion was
//! drained. A request that is never completed keeps its memory for ever, together with the connector.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::fmt;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context, ensure};
use ondol_plugin::l2::{Completion, FutureId, NativeConnector, ObjectRef, OpenContext, PageMut};
use parking_lot::Mutex;
use serde_json::{Map, Value};

use crate::{ConnectorError, abi, text};

/// How many completions are asked for at a time, and how often at most before others get their turn.
const DRAIN_BATCH: usize = 64;
const DRAIN_ROUNDS: usize = 64;

/// No request has this number: it stands for a completion that cannot be read.
const NOBODY: u64 = 0;

/// The functions of a row, of which all that must be there are.
#[derive(Clone, Copy)]
pub(crate) struct Functions {
    open: abi::Open,
    event_fd: abi::EventFd,
    submit_batch_get: abi::SubmitGet,
    submit_batch_set: abi::SubmitSet,
    submit_batch_exists: abi::SubmitKeys,
    drain_completions: abi::Drain,
    close: abi::End,
    destroy: abi::End,
    submit_batch_delete: Option<abi::SubmitKeys>,
}

impl Functions {
    /// # Errors
    /// The names of those that are missing.
    pub(crate) fn of(row: &abi::Row) -> Result<Self, Vec<String>> {
        if let (
            Some(open),
            Some(event_fd),
            Some(submit_batch_get),
            Some(submit_batch_set),
            Some(submit_batch_exists),
            Some(drain_completions),
            Some(close),
            Some(destroy),
        ) = (
            row.open,
            row.event_fd,
            row.submit_batch_get,
            row.submit_batch_set,
            row.submit_batch_exists,
            row.drain_completions,
            row.close,
            row.destroy,
        ) {
            return Ok(Self {
                open,
                event_fd,
                submit_batch_get,
                submit_batch_set,
                submit_batch_exists,
                drain_completions,
                close,
                destroy,
                submit_batch_delete: row.submit_batch_delete,
            });
        }
        let required = [
            ("open", row.open.is_some()),
            ("event_fd", row.event_fd.is_some()),
            ("submit_batch_get", row.submit_batch_get.is_some()),
            ("submit_batch_set", row.submit_batch_set.is_some()),
            ("submit_batch_exists", row.submit_batch_exists.is_some()),
            ("drain_completions", row.drain_completions.is_some()),
            ("close", row.close.is_some()),
            ("destroy", row.destroy.is_some()),
        ];
        let missing = required.iter().filter(|(_, is_there)| !is_there);
        Err(missing.map(|(name, _)| (*name).to_owned()).collect())
    }
}

/// What a connector's `open` returned, with its functions.
struct Instance {
    functions: Functions,
    this: *mut c_void,
}

// SAFETY: the header says that the functions may be called from any thread.
unsafe impl Send for Instance {}
// SAFETY: the header says that submits may be called by several threads, and beside `drain_completions` and `close`. The
// calls that exclude others are made by who is alone: `drain_completions` under a lock, `destroy` when it is dropped.
unsafe impl Sync for Instance {}

pub(crate) struct CConnector {
    instance: Instance,
    /// A duplicate of the connector's own, so that it is open whatever the connector does with its own.
    event_fd: OwnedFd,
    held: Mutex<HashMap<u64, Held>>,
    requests: AtomicU64,
    draining: Mutex<()>,
    is_closed: AtomicBool,
}

/// What a request of the connector's may touch.
enum Held {
    Get(Vec<HeldPage>),
    /// The objects, and those of them in one piece that have two.
    Set {
        _objects: Vec<ObjectRef>,
        _whole: Vec<Option<Vec<u8>>>,
    },
    Keys(usize),
}

/// A page, and memory in one piece that stands for it if it has two.
struct HeldPage {
    page: PageMut,
    bounce: Option<Vec<u8>>,
}

/// Opens a connector.
pub(crate) fn open(
    library: &str,
    class: &str,
    functions: Functions,
    parameters: &Map<String, Value>,
    context: &OpenContext<'_>,
) -> Result<CConnector, ConnectorError> {
    let (library, class) = (library.to_owned(), class.to_owned());
    let this = match call_open(functions, parameters, context) {
        Ok(this) => this,
        Err(reason) => {
            return Err(ConnectorError::Open {
                library,
                class,
                reason,
            });
        }
    };
    let instance = Instance { functions, this };
    // SAFETY: `this` came from `open` and is not closed.
    let found = unsafe { (functions.event_fd)(this) };
    match duplicate(found) {
        Ok(event_fd) => Ok(CConnector {
            instance,
            event_fd,
            held: Mutex::default(),
            requests: AtomicU64::new(NOBODY),
            draining: Mutex::new(()),
            is_closed: AtomicBool::new(false),
        }),
        Err(reason) => {
            // SAFETY: `this` came from `open`, is not closed, and nobody else has it.
            unsafe { (functions.close)(this) };
            // SAFETY: it is closed, was given no request, and nobody else has it.
            unsafe { (functions.destroy)(this) };
            Err(ConnectorError::EventFd {
                library,
                class,
                found,
                reason,
            })
        }
    }
}

fn call_open(
    functions: Functions,
    parameters: &Map<String, Value>,
    context: &OpenContext<'_>,
) -> Result<*mut c_void, String> {
    let json = Value::Object(parameters.clone()).to_string();
    let json = CString::new(json).map_err(|error| error.to_string())?;
    let name = CString::new(context.name()).map_err(|error| error.to_string())?;
    let mappings: Vec<_> = context
        .mappings()
        .iter()
        .map(|mapping| abi::Mapping {
            address: std::ptr::with_exposed_provenance_mut(mapping.address),
            length: mapping.length,
            fd: mapping.file.as_raw_fd(),
        })
        .collect();
    let c_context = abi::OpenContext {
        struct_size: size_of::<abi::OpenContext>(),
        name: name.as_ptr(),
        mappings: match mappings.is_empty() {
            true => std::ptr::null(),
            false => mappings.as_ptr(),
        },
        mapping_count: mappings.len(),
    };
    let mut error = [0_u8; abi::MAX_TEXT + 1];
    let error_text = error.as_mut_ptr().cast::<c_char>();
    // SAFETY: the texts end with NUL, the context is of this version, `error` has so many bytes, and all live until the call
    // returns.
    let this = unsafe { (functions.open)(json.as_ptr(), &c_context, error_text, error.len()) };
    if !this.is_null() {
        return Ok(this);
    }
    let end = error.iter().position(|byte| *byte == 0);
    let reason = String::from_utf8_lossy(&error[..end.unwrap_or(error.len())]).into_owned();
    Err(match reason.is_empty() {
        true => "it gives no reason".to_owned(),
        false => reason,
    })
}

fn duplicate(fd: c_int) -> Result<OwnedFd, String> {
    if fd < 0 {
        return Err("a negative number".to_owned());
    }
    // SAFETY: the header says that the descriptor is open until `destroy`. One that is not makes the next call fail.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::io::fcntl_dupfd_cloexec(fd, 0).map_err(|error| error.to_string())
}

impl CConnector {
    /// Submits a request whose memory is held already.
    fn submit(
        &self,
        keys: &[String],
        request: u64,
        call: impl FnOnce(*mut c_void, *const *const c_char) -> c_int,
    ) -> anyhow::Result<FutureId> {
        let answer = with_c_strings(keys, |keys| call(self.instance.this, keys));
        match answer {
            Ok(0) => Ok(FutureId(request)),
            refused => {
                // Not taken, so the connector touches nothing of it.
                drop(self.held.lock().remove(&request));
                let code = refused?;
                anyhow::bail!("the connector did not take the request and returned {code}")
            }
        }
    }

    /// Holds what a request may touch, and looks at it in the place where it stays.
    fn hold<T>(&self, held: Held, look: impl FnOnce(&mut Held) -> T) -> (u64, T) {
        let request = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        let mut all = self.held.lock();
        let held = all.entry(request).or_insert(held);
        let seen = look(held);
        (request, seen)
    }

    fn submit_keys(&self, keys: &[String], function: abi::SubmitKeys) -> anyhow::Result<FutureId> {
        ensure!(!keys.is_empty(), "a request without keys");
        let (request, ()) = self.hold(Held::Keys(keys.len()), |_| ());
        self.submit(keys, request, |this, names| {
            // SAFETY: `this` is open; `names` are so many texts.
            unsafe { function(this, request, names, keys.len()) }
        })
    }

    /// Reads a completion and gives back what its request held.
    ///
    /// # Safety
    /// `completion` is NULL or one that `drain_completions` gave just now.
    unsafe fn finish(&self, completion: *const abi::Completion) -> Completion {
        // SAFETY: the caller's promise.
        let raw = match unsafe { read_completion(completion) } {
            Ok(raw) => raw,
            Err(reason) => return stray(reason),
        };
        let held = self.held.lock().remove(&raw.request_id);
        let Some(held) = held else {
            return Completion {
                future: raw.request_id,
                ..Completion::default()
            };
        };
        let keys = held.keys();
        // SAFETY: the lists of a completion are as the header says until the next drain.
        let per_key = unsafe { copy_list(raw.per_key, raw.per_key_count, keys) };
        // SAFETY: likewise.
        let lengths = unsafe { copy_list(raw.lengths, raw.length_count, keys) };
        // SAFETY: a text or NULL.
        let error = unsafe { text::lossy(raw.error, abi::MAX_TEXT) };
        let ok = raw.ok == 1;
        let per_key: Option<Vec<bool>> =
            per_key.map(|list| list.into_iter().map(|entry| entry == 1).collect());
        let pages = match held {
            Held::Get(pages) if ok => unbounce(pages, per_key.as_deref(), lengths.as_deref()),
            Held::Get(pages) => pages.into_iter().map(|held| held.page).collect(),
            Held::Set { .. } | Held::Keys(_) => Vec::new(),
        };
        Completion {
            future: raw.request_id,
            ok,
            error: error.unwrap_or_default(),
            per_key,
            lengths,
            pages,
        }
    }

    fn close_once(&self) {
        if !self.is_closed.swap(true, Ordering::AcqRel) {
            // SAFETY: it is open and `close` was not called before.
            unsafe { (self.instance.functions.close)(self.instance.this) };
        }
    }
}

impl NativeConnector for CConnector {
    fn event_fd(&self) -> BorrowedFd<'_> {
        self.event_fd.as_fd()
    }

    fn submit_batch_get(&self, keys: &[String], pages: Vec<PageMut>) -> anyhow::Result<FutureId> {
        ensure_same(keys.len(), pages.len())?;
        let count = pages.len();
        let pages = pages.into_iter().map(HeldPage::new).collect();
        // The addresses are taken where the pages stay: in a list whose elements do not move when the map does.
        let (request, buffers) = self.hold(Held::Get(pages), Held::buffers);
        self.submit(keys, request, |this, names| {
            let submit = self.instance.functions.submit_batch_get;
            // SAFETY: `this` is open; names and buffers are so many; the memory of the buffers is held until the completion
            // of this request was drained, and nobody else touches it meanwhile.
            unsafe { submit(this, request, names, buffers.as_ptr(), count) }
        })
    }

    fn submit_batch_set(
        &self,
        keys: &[String],
        objects: Vec<ObjectRef>,
    ) -> anyhow::Result<FutureId> {
        ensure_same(keys.len(), objects.len())?;
        let whole: Vec<Option<Vec<u8>>> = objects
            .iter()
            .map(|object| (!object.trailer().is_empty()).then(|| object.to_vec()))
            .collect();
        let bytes: Vec<_> = objects
            .iter()
            .zip(&whole)
            .map(|(object, whole)| {
                let bytes = whole.as_deref().unwrap_or_else(|| object.body());
                abi::Bytes {
                    data: bytes.as_ptr().cast(),
                    length: bytes.len(),
                }
            })
            .collect();
        let held = Held::Set {
            _objects: objects,
            _whole: whole,
        };
        let (request, ()) = self.hold(held, |_| ());
        self.submit(keys, request, |this, names| {
            let submit = self.instance.functions.submit_batch_set;
            // SAFETY: `this` is open; names and objects are so many; the bytes are held until the completion of this request
            // was drained.
            unsafe { submit(this, request, names, bytes.as_ptr(), bytes.len()) }
        })
    }

    fn submit_batch_exists(&self, keys: &[String]) -> anyhow::Result<FutureId> {
        self.submit_keys(keys, self.instance.functions.submit_batch_exists)
    }

    fn submit_batch_delete(&self, keys: &[String]) -> anyhow::Result<Option<FutureId>> {
        match self.instance.functions.submit_batch_delete {
            Some(function) => self.submit_keys(keys, function).map(Some),
            None => Ok(None),
        }
    }

    fn drain_completions(&self) -> Vec<Completion> {
        let _alone = self.draining.lock();
        let mut drained = Vec::new();
        for _ in 0..DRAIN_ROUNDS {
            let mut batch = [std::ptr::null(); DRAIN_BATCH];
            let drain = self.instance.functions.drain_completions;
            // SAFETY: `this` is not destroyed, nobody else drains, and `batch` has so many places.
            let count = unsafe { drain(self.instance.this, batch.as_mut_ptr(), DRAIN_BATCH) };
            if count > DRAIN_BATCH {
                drained.push(stray(format!(
                    "drain_completions returned {count}; expected at most {DRAIN_BATCH}"
                )));
                break;
            }
            for completion in &batch[..count] {
                // SAFETY: the connector gave it just now, and it stays until the next drain.
                drained.push(unsafe { self.finish(*completion) });
            }
            if count < DRAIN_BATCH {
                break;
            }
        }
        drained
    }

    fn close(&self) {
        self.close_once();
    }
}

impl Drop for CConnector {
    fn drop(&mut self) {
        self.close_once();
        drop(self.drain_completions());
        let held = std::mem::take(self.held.get_mut());
        if held.is_empty() {
            // SAFETY: it is closed, nobody else has it, and it owes no completion.
            unsafe { (self.instance.functions.destroy)(self.instance.this) };
            return;
        }
        tracing::error!(
            requests = held.len(),
            "a connector closed without completing all requests; their memory is never used again"
        );
        Box::leak(Box::new(held));
    }
}

impl fmt::Debug for CConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CConnector")
            .field("held", &self.held.lock().len())
            .finish_non_exhaustive()
    }
}

impl Held {
    fn keys(&self) -> usize {
        match self {
            Self::Get(pages) => pages.len(),
            Self::Set { _objects, .. } => _objects.len(),
            Self::Keys(count) => *count,
        }
    }

    fn buffers(&mut self) -> Vec<abi::Buffer> {
        match self {
            Self::Get(pages) => pages.iter_mut().map(HeldPage::buffer).collect(),
            Self::Set { .. } | Self::Keys(_) => Vec::new(),
        }
    }
}

impl HeldPage {
    fn new(page: PageMut) -> Self {
        let has_trailer = !page.parts().1.is_empty();
        let bounce = has_trailer.then(|| vec![0; page.room()]);
        Self { page, bounce }
    }

    fn buffer(&mut self) -> abi::Buffer {
        let bytes = match &mut self.bounce {
            Some(bounce) => bounce.as_mut_slice(),
            None => self.page.parts_mut().0,
        };
        abi::Buffer {
            data: bytes.as_mut_ptr().cast(),
            length: bytes.len(),
        }
    }
}

/// Copies what was loaded into the pages that have two parts.
fn unbounce(
    pages: Vec<HeldPage>,
    loaded: Option<&[bool]>,
    lengths: Option<&[u64]>,
) -> Vec<PageMut> {
    let copy = |(index, held): (usize, HeldPage)| {
        let HeldPage { mut page, bounce } = held;
        let is_loaded = loaded.is_none_or(|loaded| loaded.get(index) == Some(&true));
        if let Some(bounce) = bounce.filter(|_| is_loaded) {
            let length = match lengths {
                Some(lengths) => lengths.get(index).copied().unwrap_or(0),
                None => bounce.len() as u64,
            };
            let loaded = usize::try_from(length)
                .ok()
                .and_then(|end| bounce.get(..end));
            // A length beyond the page is the bridge's to find.
            if let Some(loaded) = loaded {
                let _ = page.fill(loaded);
            }
        }
        page
    };
    pages.into_iter().enumerate().map(copy).collect()
}

fn ensure_same(keys: usize, buffers: usize) -> anyhow::Result<()> {
    ensure!(keys > 0, "a request without keys");
    ensure!(keys == buffers, "{keys} keys and {buffers} buffers");
    Ok(())
}

fn with_c_strings<T>(
    keys: &[String],
    call: impl FnOnce(*const *const c_char) -> T,
) -> anyhow::Result<T> {
    let strings: Result<Vec<_>, _> = keys.iter().map(|key| CString::new(key.as_str())).collect();
    let strings = strings.context("a key with a NUL in it")?;
    let pointers: Vec<_> = strings.iter().map(|key| key.as_ptr()).collect();
    Ok(call(pointers.as_ptr()))
}

fn stray(reason: String) -> Completion {
    Completion {
        future: NOBODY,
        error: reason,
        ..Completion::default()
    }
}

/// # Safety
/// `completion` is NULL or readable for as many bytes as its first field says.
unsafe fn read_completion(completion: *const abi::Completion) -> Result<abi::Completion, String> {
    if completion.is_null() {
        return Err("drain_completions gave NULL".to_owned());
    }
    // SAFETY: it is not NULL, and every completion has this field.
    let length = unsafe { completion.cast::<usize>().read_unaligned() };
    let expected = size_of::<abi::Completion>();
    if length < expected {
        return Err(format!(
            "drain_completions gave a completion of {length} bytes; expected at least {expected}"
        ));
    }
    // SAFETY: it has at least so many bytes.
    Ok(unsafe { completion.read_unaligned() })
}

/// A list of a completion; `None` if there is none. Of one that is too long one entry too many is read, so that it is seen to be.
///
/// # Safety
/// `list` is NULL or has `count` entries.
unsafe fn copy_list<T: Copy>(list: *const T, count: usize, expected: usize) -> Option<Vec<T>> {
    let read = |index| {
        // SAFETY: `index` is below `count`.
        let at = unsafe { list.add(index) };
        // SAFETY: an entry is there.
        unsafe { at.read_unaligned() }
    };
    (!list.is_null()).then(|| (0..count.min(expected + 1)).map(read).collect())
}
