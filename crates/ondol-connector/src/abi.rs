//! The structures of `include/ondol_connector.h`, field by field. A test compares them with what a C compiler makes of the header.

use std::ffi::{c_char, c_int, c_void};

pub(crate) const VERSION: u32 = 1;
pub(crate) const MAX_NAME: usize = 255;
pub(crate) const MAX_TEXT: usize = 1023;
pub(crate) const MAX_ROWS: usize = 256;

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Parameter {
    pub(crate) name: *const c_char,
    pub(crate) default_value: *const c_char,
    pub(crate) summary: *const c_char,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Mapping {
    pub(crate) address: *mut c_void,
    pub(crate) length: usize,
    pub(crate) fd: c_int,
}

#[repr(C)]
pub(crate) struct OpenContext {
    pub(crate) struct_size: usize,
    pub(crate) name: *const c_char,
    pub(crate) mappings: *const Mapping,
    pub(crate) mapping_count: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Buffer {
    pub(crate) data: *mut c_void,
    pub(crate) length: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Bytes {
    pub(crate) data: *const c_void,
    pub(crate) length: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Completion {
    pub(crate) struct_size: usize,
    pub(crate) request_id: u64,
    pub(crate) ok: u32,
    pub(crate) error: *const c_char,
    pub(crate) per_key: *const u8,
    pub(crate) per_key_count: usize,
    pub(crate) lengths: *const u64,
    pub(crate) length_count: usize,
}

pub(crate) type Open =
    unsafe extern "C" fn(*const c_char, *const OpenContext, *mut c_char, usize) -> *mut c_void;
pub(crate) type EventFd = unsafe extern "C" fn(*mut c_void) -> c_int;
pub(crate) type SubmitGet =
    unsafe extern "C" fn(*mut c_void, u64, *const *const c_char, *const Buffer, usize) -> c_int;
pub(crate) type SubmitSet =
    unsafe extern "C" fn(*mut c_void, u64, *const *const c_char, *const Bytes, usize) -> c_int;
pub(crate) type SubmitKeys =
    unsafe extern "C" fn(*mut c_void, u64, *const *const c_char, usize) -> c_int;
pub(crate) type Drain = unsafe extern "C" fn(*mut c_void, *mut *const Completion, usize) -> usize;
pub(crate) type End = unsafe extern "C" fn(*mut c_void);

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Row {
    pub(crate) class_name: *const c_char,
    pub(crate) parameters: *const Parameter,
    pub(crate) parameter_count: usize,
    pub(crate) open: Option<Open>,
    pub(crate) event_fd: Option<EventFd>,
    pub(crate) submit_batch_get: Option<SubmitGet>,
    pub(crate) submit_batch_set: Option<SubmitSet>,
    pub(crate) submit_batch_exists: Option<SubmitKeys>,
    pub(crate) drain_completions: Option<Drain>,
    pub(crate) close: Option<End>,
    pub(crate) destroy: Option<End>,
    pub(crate) submit_batch_delete: Option<SubmitKeys>,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Table {
    pub(crate) abi_version: u32,
    pub(crate) struct_size: u32,
    pub(crate) row_size: usize,
    pub(crate) row_count: usize,
    pub(crate) rows: *const u8,
}
