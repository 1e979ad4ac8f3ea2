use std::sync::Arc;

use crate::l2::{MAX_TRAILER_BYTES, ObjectRef, PageMut, StoredTooLong};

/// Memory that has a place, and somebody who sees it die.
struct Guarded(
    Box<[u8]>,
    #[expect(dead_code, reason = "it is counted")] Arc<()>,
);

impl AsRef<[u8]> for Guarded {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AsMut<[u8]> for Guarded {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

#[test]
fn a_stored_object_fills_the_body_and_goes_on_in_the_trailer() {
    let mut page = PageMut::new(vec![9; 4], 3);
    assert_eq!(page.room(), 7);
    assert_eq!(page.fill(b"abcdefg"), Ok(7));
    assert_eq!(page.parts(), (&b"abcd"[..], &b"efg"[..]));
    assert_eq!(page.fill(b"xy"), Ok(2));
    assert_eq!(page.parts(), (&b"xycd"[..], &b"efg"[..]));
    assert_eq!(page.fill(b"12345"), Ok(5));
    assert_eq!(page.parts(), (&b"1234"[..], &b"5fg"[..]));
    assert_eq!(page.fill(b""), Ok(0));
    let (body, trailer) = page.parts_mut();
    body[0] = b'!';
    trailer[2] = b'?';
    assert_eq!(page.parts(), (&b"!234"[..], &b"5f?"[..]));
}

#[test]
fn what_is_too_long_leaves_the_page_as_it_was() {
    let mut page = PageMut::new(vec![9; 4], 1);
    assert_eq!(
        page.fill(b"abcdef"),
        Err(StoredTooLong { found: 6, room: 5 })
    );
    assert_eq!(page.parts(), (&[9; 4][..], &[0][..]));
    let mut none = PageMut::new(Vec::new(), 0);
    assert_eq!(none.fill(b""), Ok(0));
    assert_eq!(none.fill(b"a"), Err(StoredTooLong { found: 1, room: 0 }));
}

#[test]
fn the_same_memory_comes_out_of_a_page_as_went_in() {
    let alive = Arc::new(());
    let memory = Guarded(vec![0; 4].into(), Arc::clone(&alive));
    let address = memory.0.as_ptr();
    let mut page = PageMut::new(memory, 2);
    page.fill(b"abcdef").unwrap();
    // Asked for something else, the page stays what it is: the guard is not lost.
    let page = page.into_memory::<Vec<u8>>().unwrap_err();
    assert_eq!(page.parts(), (&b"abcd"[..], &b"ef"[..]));
    assert_eq!(Arc::strong_count(&alive), 2);
    let (memory, trailer) = page.into_memory::<Guarded>().unwrap();
    assert_eq!(memory.0.as_ptr(), address);
    assert_eq!((&memory.0[..], &trailer[..]), (&b"abcd"[..], &b"ef"[..]));
    drop(memory);
    assert_eq!(Arc::strong_count(&alive), 1);
}

#[test]
fn a_page_is_filled_with_the_copy_that_it_was_made_with() {
    fn shout(to: &mut [u8], from: &[u8]) {
        to.copy_from_slice(&from.to_ascii_uppercase());
    }
    let mut page = PageMut::with_copy(vec![9; 4], 2, shout);
    assert_eq!(page.fill(b"ab"), Ok(2));
    assert_eq!(page.parts(), (&b"AB\x09\x09"[..], &[0, 0][..]));
    assert_eq!(page.fill(b"abcdef"), Ok(6));
    assert_eq!(page.parts(), (&b"ABCD"[..], &b"ef"[..]));
    page.parts_mut().0[0] = b'!';
    let (memory, _) = page.into_memory::<Vec<u8>>().unwrap();
    assert_eq!(memory, b"!BCD");
}

#[test]
fn clones_of_an_object_keep_its_memory_and_copy_nothing() {
    let alive = Arc::new(());
    let memory = Guarded(b"body".to_vec().into(), Arc::clone(&alive));
    let object = ObjectRef::with_trailer(memory, *b"tail");
    let clone = object.clone();
    assert_eq!(object.body().as_ptr(), clone.body().as_ptr());
    assert_eq!(
        (clone.stored_len(), clone.to_vec()),
        (8, b"bodytail".to_vec())
    );
    drop(object);
    assert_eq!(
        (clone.body(), clone.trailer()),
        (&b"body"[..], &b"tail"[..])
    );
    assert_eq!(Arc::strong_count(&alive), 2);
    drop(clone);
    assert_eq!(Arc::strong_count(&alive), 1);
}

#[test]
fn a_trailer_may_be_as_long_as_the_limit() {
    let object = ObjectRef::with_trailer([], vec![1; MAX_TRAILER_BYTES]);
    assert_eq!(object.stored_len(), MAX_TRAILER_BYTES);
    assert_eq!(ObjectRef::new(b"x").trailer(), b"");
}

#[test]
#[should_panic(expected = "trailer of 2049 bytes")]
fn a_longer_trailer_is_a_bug_of_the_core() {
    ObjectRef::with_trailer([], vec![1; MAX_TRAILER_BYTES + 1]);
}
