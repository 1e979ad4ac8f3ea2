//! Copies into pages and out of objects, and the checksums that are made on the way.

use ondol_engine::{Engine, EngineConfig};
use ondol_handler::{Handler, HandlerConfig, Key, Object, ObjectMeta, Plugins};
use ondol_shm::checksum;

fn handler(with_checksums: bool) -> Handler {
    let config = EngineConfig::new(["memfd:?size=16MiB".parse().unwrap()]);
    let engine = Engine::open(config).unwrap();
    let mut config = HandlerConfig::default();
    config.checksum = with_checksums;
    config.plugins = Plugins::None;
    Handler::embedded(move || engine.attach(None, [0; 16]), config).unwrap()
}

/// Lengths below, at and above those from which another way to copy is taken.
const LENS: [usize; 6] = [0, 1, 300, 16 << 10, (16 << 10) + 7, (1 << 20) + 1];

fn bytes(len: usize) -> Vec<u8> {
    (0..len)
        .map(|index| (index * 7 + index / 251) as u8)
        .collect()
}

fn get(handler: &Handler, key: &Key) -> Object {
    handler.retrieve(key).unwrap().unwrap()
}

#[test]
fn what_is_written_from_a_buffer_is_copied_to_one_with_and_without_checksums() {
    for with_checksums in [false, true] {
        let handler = handler(with_checksums);
        for (key, len) in (0..).map(Key::integer).zip(LENS) {
            let source = bytes(len);
            let mut page = handler.alloc(len).unwrap();
            page.write_from(&source);
            handler.store(&key, page).unwrap();
            let object = get(&handler, &key);
            let expected = with_checksums.then(|| checksum(&source));
            assert_eq!(object.meta().checksum, expected, "{len}");
            let mut buffer = vec![0xee; len];
            object.copy_to(&mut buffer);
            assert!(buffer == source, "{len}");
            buffer.fill(0xee);
            object.copy_to_verified(&mut buffer).unwrap();
            assert!(buffer == source, "{len}");
        }
    }
}

#[test]
fn a_page_that_is_changed_after_it_was_summed_is_summed_anew() {
    let handler = handler(true);
    let mut page = handler.alloc(100_000).unwrap();
    page.write_from(&bytes(100_000));
    page[99_999] ^= 1;
    let expected = checksum(&page);
    handler.store(&Key::integer(1), page).unwrap();
    let object = get(&handler, &Key::integer(1));
    assert_eq!(object.meta().checksum, Some(expected));
    object.verify().unwrap();
}

#[test]
fn a_verified_copy_of_bytes_that_are_not_those_of_the_checksum_fails() {
    let handler = handler(false);
    for (key, len) in (0..).map(Key::integer).zip(LENS) {
        let source = bytes(len);
        let mut page = handler.alloc(len).unwrap();
        page.write_from(&source);
        let expected = checksum(&source) ^ 1;
        let meta = ObjectMeta {
            checksum: Some(expected),
            ..ObjectMeta::default()
        };
        handler.store_with(&key, page, meta).unwrap();
        let object = get(&handler, &key);
        let error = object.copy_to_verified(&mut vec![0; len]).unwrap_err();
        assert_eq!(error, object.verify().unwrap_err());
        assert_eq!((error.expected, error.found), (expected, expected ^ 1));
    }
}
