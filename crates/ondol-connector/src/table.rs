//! Tables of connectors: read once, checked field by field, and copied.

use std::error::Error;
use std::ffi::c_void;
use std::fmt;
use std::mem::{MaybeUninit, offset_of, size_of};
use std::path::Path;
use std::sync::Arc;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use ondol_plugin::l2::{ConnectorEntry, NativeConnector, OpenContext};
use parking_lot::Mutex;
use serde_json::{Map, Value};

use crate::c_connector::{self, Functions};
use crate::{ConnectorError, abi, text};

/// Bytes of a row, at most: far more than any version has.
const MAX_ROW_SIZE: usize = 1 << 16;

/// The function that a shared library of connectors exports.
pub const ENTRY_SYMBOL: &str = "ondol_connector_table";

/// The connectors of one library that is written in C, or in anything that speaks C.
#[derive(Clone)]
pub struct Table {
    library: String,
    rows: Vec<Row>,
    loaded: Option<Arc<Library>>,
}

/// A connector of a [`Table`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Class {
    /// Its name.
    pub name: String,
    /// What may be configured.
    pub parameters: Vec<ClassParameter>,
    /// The functions that it lacks; it cannot be opened unless there are none.
    pub missing: Vec<String>,
}

/// A parameter of a [`Class`], in the connector's own words.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClassParameter {
    /// Its name.
    pub name: String,
    /// What stands for it if it is not given; `None` if it must be.
    pub default: Option<String>,
    /// What it means.
    pub summary: String,
}

#[derive(Clone)]
struct Row {
    class: Class,
    functions: Option<Functions>,
}

impl Table {
    /// The table of connectors that are linked into this program.
    ///
    /// That the function keeps to `include/ondol_connector.h` cannot be checked; whoever links a library in has decided to
    /// trust it.
    ///
    /// # Errors
    /// [`ConnectorError`], if the table is not one that this program can read.
    pub fn linked(entry: ConnectorEntry) -> Result<Self, ConnectorError> {
        let library = "the linked library".to_owned();
        // SAFETY: a `ConnectorEntry` is by its definition the exported function of a connector library, which may be called
        // at any time from any thread.
        let table = unsafe { entry() };
        // SAFETY: the library is part of this program, so the table stays for ever.
        unsafe { Self::read(library, table, None) }
    }

    /// Loads a shared library and reads its table.
    ///
    /// Its code runs in this process, at the latest when a connector is opened, so it is trusted as the program itself is.
    /// It stays loaded for ever once a connector of it was opened.
    ///
    /// # Errors
    /// [`ConnectorError`], if it is no such library or its table is not one that this program can read.
    pub fn load(path: &Path) -> Result<Self, ConnectorError> {
        let failed = |reason: String| ConnectorError::Load {
            path: path.to_owned(),
            reason,
        };
        // The loader would search a name without a slash elsewhere.
        let file = path
            .canonicalize()
            .map_err(|error| failed(error.to_string()))?;
        // The loader would wait for a pipe.
        if !file.is_file() {
            return Err(failed("it is no plain file".to_owned()));
        }
        // SAFETY: initialisers of the library run here. Whoever configures a library has decided to trust it.
        let loaded = unsafe { Library::open(Some(&file), RTLD_NOW | RTLD_LOCAL) };
        let loaded = loaded.map_err(|error| failed(with_source(&error)))?;
        let no_entry = |reason: String| ConnectorError::NoEntry {
            path: path.to_owned(),
            symbol: ENTRY_SYMBOL,
            reason,
        };
        // SAFETY: a function of this name has this signature, says the header.
        let entry = unsafe { loaded.get::<ConnectorEntry>(ENTRY_SYMBOL.as_bytes()) };
        let entry = *entry.map_err(|error| no_entry(with_source(&error)))?;
        // SAFETY: the library is loaded, and the function may be called at any time from any thread.
        let table = unsafe { entry() };
        let library = path.display().to_string();
        // SAFETY: the table stays as long as the library is loaded, and what is read of it is copied; the functions are
        // kept together with the library.
        unsafe { Self::read(library, table, Some(Arc::new(loaded))) }
    }

    /// The connectors that there are.
    pub fn classes(&self) -> impl Iterator<Item = &Class> {
        self.rows.iter().map(|row| &row.class)
    }

    /// Opens a connector.
    ///
    /// # Errors
    /// [`ConnectorError`]: there is no such connector, it lacks a function, or it does not open.
    pub fn open(
        &self,
        class_name: &str,
        parameters: &Map<String, Value>,
        context: &OpenContext<'_>,
    ) -> Result<Box<dyn NativeConnector>, ConnectorError> {
        let row = self.rows.iter().find(|row| row.class.name == class_name);
        let Some(row) = row else {
            return Err(ConnectorError::UnknownClass {
                library: self.library.clone(),
                found: class_name.to_owned(),
                known: self.classes().map(|class| class.name.clone()).collect(),
            });
        };
        let Some(functions) = row.functions else {
            return Err(ConnectorError::Incomplete {
                library: self.library.clone(),
                class: class_name.to_owned(),
                missing: row.class.missing.clone(),
            });
        };
        // Threads of the library may run its code from now on, whatever becomes of the connector.
        if let Some(loaded) = &self.loaded {
            keep_loaded(loaded);
        }
        let connector =
            c_connector::open(&self.library, class_name, functions, parameters, context)?;
        Ok(Box::new(connector))
    }

    /// Copies a table.
    ///
    /// # Safety
    /// `table` is what the function of a connector library returned. The table, and the functions in it, stay for as long as `loaded` is,
    /// or for ever without one.
    unsafe fn read(
        library: String,
        table: *const c_void,
        loaded: Option<Arc<Library>>,
    ) -> Result<Self, ConnectorError> {
        let malformed = |reason: String| ConnectorError::Malformed {
            library: library.clone(),
            reason,
        };
        if table.is_null() || !table.cast::<abi::Table>().is_aligned() {
            return Err(malformed("it is NULL or not aligned".to_owned()));
        }
        // SAFETY: it is aligned, and a table of any version begins with these two fields.
        let [found, length] = unsafe { table.cast::<[u32; 2]>().read() };
        if found != abi::VERSION {
            return Err(ConnectorError::Version {
                library,
                found,
                expected: abi::VERSION,
            });
        }
        let too_small = |structure, found, expected| ConnectorError::TooSmall {
            library: library.clone(),
            structure,
            found,
            expected,
        };
        if (length as usize) < size_of::<abi::Table>() {
            return Err(too_small(
                "ondol_table",
                length as usize,
                size_of::<abi::Table>(),
            ));
        }
        // SAFETY: it is aligned and of this version, and as long as its maker's `sizeof` said.
        let head = unsafe { table.cast::<abi::Table>().read() };
        // What stands behind `destroy` may be left out.
        let needed = offset_of!(abi::Row, submit_batch_delete);
        if head.row_size < needed {
            return Err(too_small("ondol_connector", head.row_size, needed));
        }
        // With so few rows of so few bytes no place of a row is out of a pointer's reach.
        if head.row_size > MAX_ROW_SIZE {
            return Err(malformed(format!(
                "its rows have {} bytes; expected at most {MAX_ROW_SIZE}",
                head.row_size
            )));
        }
        if head.row_count > abi::MAX_ROWS {
            return Err(malformed(format!(
                "it has {} rows; expected at most {}",
                head.row_count,
                abi::MAX_ROWS
            )));
        }
        if head.row_count > 0 && head.rows.is_null() {
            return Err(malformed("its rows are NULL".to_owned()));
        }
        let mut rows: Vec<Row> = Vec::with_capacity(head.row_count);
        for index in 0..head.row_count {
            // SAFETY: `rows` points to `row_count` rows of `row_size` bytes.
            let at = unsafe { head.rows.add(index * head.row_size) };
            // SAFETY: a row of `row_size` bytes is there, and it is a row of this version.
            let row = unsafe { copy_row(at, head.row_size) };
            // SAFETY: the texts and parameters of a row are as the header says.
            let row = unsafe { Row::read(&row) };
            let row = row.map_err(|reason| malformed(format!("row {index}: {reason}")))?;
            if rows.iter().any(|other| other.class.name == row.class.name) {
                return Err(malformed(format!("two rows are {:?}", row.class.name)));
            }
            rows.push(row);
        }
        Ok(Self {
            library,
            rows,
            loaded,
        })
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("library", &self.library)
            .field("classes", &self.classes().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

/// What the loader says, with the system's own words, which stand behind it.
fn with_source(error: &dyn Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// Keeps a library for as long as the process lives.
fn keep_loaded(library: &Arc<Library>) {
    static KEPT: Mutex<Vec<Arc<Library>>> = Mutex::new(Vec::new());
    let mut kept = KEPT.lock();
    if !kept.iter().any(|other| Arc::ptr_eq(other, library)) {
        kept.push(Arc::clone(library));
    }
}

/// A row, with zeros for what its maker did not know.
///
/// # Safety
/// A row of this version of `row_size` bytes, at least the required ones, is at `at`.
unsafe fn copy_row(at: *const u8, row_size: usize) -> abi::Row {
    let mut row = MaybeUninit::<abi::Row>::zeroed();
    let length = row_size.min(size_of::<abi::Row>());
    // SAFETY: so many bytes are at either place, and the places are different ones.
    unsafe { std::ptr::copy_nonoverlapping(at, row.as_mut_ptr().cast::<u8>(), length) };
    // SAFETY: every field is a pointer, a number or an optional function: all zeros is a value of each, and what was copied
    // is a row by the caller's promise.
    unsafe { row.assume_init() }
}

impl Row {
    /// # Safety
    /// The pointers of `row` are as the header says.
    unsafe fn read(row: &abi::Row) -> Result<Self, String> {
        // SAFETY: the name is a text.
        let name = unsafe { text::name(row.class_name, abi::MAX_NAME) };
        let name = name.map_err(|reason| format!("its class_name {reason}"))?;
        let count = match row.parameters.is_null() {
            true => 0,
            false => row.parameter_count,
        };
        if count > abi::MAX_ROWS {
            return Err(format!(
                "{name} has {count} parameters; expected at most {}",
                abi::MAX_ROWS
            ));
        }
        let mut parameters = Vec::with_capacity(count);
        for index in 0..count {
            let at = row.parameters.wrapping_add(index);
            // SAFETY: `parameters` points to `parameter_count` of them.
            let parameter = unsafe { at.read_unaligned() };
            // SAFETY: its fields are texts or NULL.
            let parameter = unsafe { ClassParameter::read(&parameter) };
            let parameter = parameter
                .map_err(|reason| format!("parameter {index} of {name}: its name {reason}"))?;
            parameters.push(parameter);
        }
        let (functions, missing) = match Functions::of(row) {
            Ok(functions) => (Some(functions), Vec::new()),
            Err(missing) => (None, missing),
        };
        Ok(Self {
            class: Class {
                name,
                parameters,
                missing,
            },
            functions,
        })
    }
}

impl ClassParameter {
    /// # Safety
    /// The texts are as the header says.
    unsafe fn read(parameter: &abi::Parameter) -> Result<Self, String> {
        // SAFETY: a text or NULL.
        let name = unsafe { text::name(parameter.name, abi::MAX_NAME) }?;
        // SAFETY: a text or NULL.
        let default = unsafe { text::lossy(parameter.default_value, abi::MAX_TEXT) };
        // SAFETY: a text or NULL.
        let summary = unsafe { text::lossy(parameter.summary, abi::MAX_TEXT) };
        Ok(Self {
            name,
            default,
            summary: summary.unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The place of the third row was computed with an overflow.
    #[test]
    fn rows_of_a_size_that_no_row_has_are_refused() {
        let row = 0_usize;
        let table = abi::Table {
            abi_version: abi::VERSION,
            struct_size: size_of::<abi::Table>() as u32,
            row_size: usize::MAX / 2,
            row_count: 3,
            rows: (&raw const row).cast(),
        };
        // SAFETY: the table lives longer than the call, and there is no function in it.
        let read = unsafe { Table::read("it".to_owned(), (&raw const table).cast(), None) };
        let error = read.map(drop).expect_err("no row is that large");
        assert!(error.to_string().contains("at most 65536"), "{error}");
    }
}
