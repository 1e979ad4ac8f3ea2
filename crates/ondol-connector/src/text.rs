//! Texts that come from C.

use std::ffi::c_char;

/// The bytes before the NUL, at most `limit` of them, and whether that is all.
///
/// # Safety
/// `text` is not NULL, and readable up to its NUL or for `limit + 1` bytes, for as long as `'a`.
pub(crate) unsafe fn bytes<'a>(text: *const c_char, limit: usize) -> (&'a [u8], bool) {
    let text = text.cast::<u8>();
    let mut length = 0;
    // SAFETY: every byte before `length` was not NUL and `length` is at most `limit`, so this byte is readable.
    while length <= limit && unsafe { text.wrapping_add(length).read() } != 0 {
        length += 1;
    }
    // SAFETY: so many bytes were read just now.
    let found = unsafe { std::slice::from_raw_parts(text, length.min(limit)) };
    (found, length <= limit)
}

/// A text, cut at `limit` bytes; what is no UTF-8 is replaced. `None` if there is none.
///
/// # Safety
/// As for [`bytes`], unless `text` is NULL.
pub(crate) unsafe fn lossy(text: *const c_char, limit: usize) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: it is not NULL; the rest the caller promises.
    let (found, _) = unsafe { bytes(text, limit) };
    Some(String::from_utf8_lossy(found).into_owned())
}

/// A name: UTF-8, not empty, at most `limit` bytes.
///
/// # Errors
/// What is wrong with it.
///
/// # Safety
/// As for [`lossy`].
pub(crate) unsafe fn name(text: *const c_char, limit: usize) -> Result<String, String> {
    if text.is_null() {
        return Err("is NULL".to_owned());
    }
    // SAFETY: it is not NULL; the rest the caller promises.
    let (found, is_all) = unsafe { bytes(text, limit) };
    if !is_all {
        return Err(format!("is longer than {limit} bytes"));
    }
    match std::str::from_utf8(found) {
        Ok("") => Err("is empty".to_owned()),
        Ok(name) => Ok(name.to_owned()),
        Err(error) => Err(format!("is no UTF-8: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_of(text: &[u8]) -> Result<String, String> {
        // SAFETY: each of the texts below ends with NUL.
        unsafe { name(text.as_ptr().cast(), 4) }
    }

    #[test]
    fn names_are_checked_and_bounded() {
        assert_eq!(name_of(b"four\0"), Ok("four".to_owned()));
        assert!(name_of(b"fives\0").unwrap_err().contains("longer than 4"));
        assert!(name_of(b"\0").unwrap_err().contains("empty"));
        assert!(name_of(b"\xff\0").unwrap_err().contains("UTF-8"));
        // SAFETY: NULL is allowed.
        assert!(unsafe { name(std::ptr::null(), 4) }.is_err());
    }

    #[test]
    fn other_texts_are_cut() {
        let text = b"caf\xc3\xa9 au lait\0";
        // SAFETY: it ends with NUL.
        let cut = unsafe { lossy(text.as_ptr().cast(), 4) };
        assert_eq!(cut.as_deref(), Some("caf\u{fffd}"));
    }
}
