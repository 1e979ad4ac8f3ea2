//! Reads through an embedded handler.

use std::hint::black_box;
use std::rc::Rc;

use ondol_engine::{Engine, EngineConfig};
use ondol_handler::{Handler, HandlerConfig};

use crate::{Path, keys};

const OBJECTS: usize = 1024;
const BATCH: usize = 256;

pub(crate) fn paths() -> anyhow::Result<Vec<Path>> {
    let engine = Engine::open(EngineConfig::new(["memfd:?size=16MiB".parse()?]))?;
    let attach = move || engine.attach(None, [0; 16]);
    let handler = Rc::new(Handler::embedded(attach, HandlerConfig::default())?);
    let all = Rc::new(keys(2 * OBJECTS));
    for key in &all[..OBJECTS] {
        handler.store(key, handler.alloc(4096)?)?;
    }
    let path = |name: &str, units, read: fn(&Handler, &[_])| {
        let (handler, keys) = (Rc::clone(&handler), Rc::clone(&all));
        Path::new(name, units, move || read(&handler, &keys))
    };
    Ok(vec![
        path("handler.retrieve", OBJECTS, |handler, keys| {
            for key in &keys[..OBJECTS] {
                assert!(black_box(handler.retrieve(key)).is_ok_and(|found| found.is_some()));
            }
        }),
        path("handler.batch-retrieve.256", OBJECTS, |handler, keys| {
            for keys in keys[..OBJECTS].chunks(BATCH) {
                assert!(black_box(handler.batch_retrieve(keys)).is_ok());
            }
        }),
        path("handler.exists", 2 * OBJECTS, |handler, keys| {
            for key in keys {
                assert!(black_box(handler.exists(key)).is_ok());
            }
        }),
        path("handler.batch-exists.256", 2 * OBJECTS, |handler, keys| {
            for keys in keys.chunks(BATCH) {
                assert!(black_box(handler.batch_exists(keys)).is_ok());
            }
        }),
    ])
}
