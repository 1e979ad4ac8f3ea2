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

#[cfg(test)]
mod tests {
    use std::mem::{align_of, offset_of, size_of};
    use std::path::Path;
    use std::process::{Command, Stdio};

    use super::*;

    /// Runs a compiler on a text.
    fn compile(compiler: &str, variable: &str, arguments: &[&str], source: &str) -> bool {
        let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include");
        let compiler = std::env::var(variable).unwrap_or_else(|_| compiler.into());
        let mut child = Command::new(compiler)
            .args(["-Wall", "-Wextra", "-pedantic", "-Werror", "-I"])
            .arg(include)
            .args(arguments)
            .arg("-")
            .stdin(Stdio::piped())
            .spawn()
            .expect("a compiler");
        let mut input = child.stdin.take().unwrap();
        std::io::Write::write_all(&mut input, source.as_bytes()).unwrap();
        drop(input);
        child.wait().unwrap().success()
    }

    #[test]
    fn the_header_is_c_and_cpp() {
        let source = "#include \"ondol_connector.h\"\n#include \"ondol_connector.h\"\nint main(void) { return ONDOL_CONNECTOR_ABI == 1 ? 0 : 1; }\n";
        for standard in ["-std=c99", "-std=c11", "-std=c17"] {
            let arguments = [standard, "-fsyntax-only", "-x", "c"];
            assert!(compile("cc", "CC", &arguments, source), "{standard}");
        }
        for standard in ["-std=c++11", "-std=c++17", "-std=c++20"] {
            let arguments = [standard, "-fsyntax-only", "-x", "c++"];
            assert!(compile("c++", "CXX", &arguments, source), "{standard}");
        }
    }

    #[test]
    fn structures_lie_in_memory_as_a_c_compiler_lays_them() {
        let mut expected = Vec::new();
        let mut source =
            "#include \"ondol_connector.h\"\n#include <stdio.h>\nint main(void) {\n".to_owned();
        let mut ask = |question: String, answer: usize| {
            source += &format!("printf(\"%zu \", (size_t)({question}));\n");
            expected.push(answer);
        };
        macro_rules! ask {
            ($rust:ident, $c:literal: $($field:ident)*) => {
                ask(concat!("sizeof(", $c, ")").into(), size_of::<$rust>());
                ask(concat!("_Alignof(", $c, ")").into(), align_of::<$rust>());
                $(ask(concat!("offsetof(", $c, ", ", stringify!($field), ")").into(), offset_of!($rust, $field));)*
            };
        }
        ask!(Parameter, "ondol_parameter": name default_value summary);
        ask!(Mapping, "ondol_mapping": address length fd);
        ask!(OpenContext, "ondol_open_context": struct_size name mappings mapping_count);
        ask!(Buffer, "ondol_buffer": data length);
        ask!(Bytes, "ondol_bytes": data length);
        ask!(Completion, "ondol_completion": struct_size request_id ok error per_key per_key_count lengths length_count);
        ask!(Row, "ondol_connector": class_name parameters parameter_count open event_fd submit_batch_get
            submit_batch_set submit_batch_exists drain_completions close destroy submit_batch_delete);
        ask!(Table, "ondol_table": abi_version struct_size row_size row_count rows);
        ask("ONDOL_CONNECTOR_ABI".into(), VERSION as usize);
        ask("ONDOL_CONNECTOR_MAX_NAME".into(), MAX_NAME);
        ask("ONDOL_CONNECTOR_MAX_TEXT".into(), MAX_TEXT);
        ask("ONDOL_CONNECTOR_MAX_ROWS".into(), MAX_ROWS);
        source += "return 0; }\n";

        let dir = tempfile::TempDir::new().unwrap();
        let program = dir.path().join("layout");
        let arguments = ["-std=c11", "-x", "c", "-o", program.to_str().unwrap()];
        assert!(compile("cc", "CC", &arguments, &source));
        let printed = Command::new(&program).output().unwrap().stdout;
        let printed = String::from_utf8(printed).unwrap();
        let found: Vec<usize> = printed
            .split_whitespace()
            .map(|number| number.parse().unwrap())
            .collect();
        assert_eq!(found, expected);
    }
}
