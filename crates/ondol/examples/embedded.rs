//! Stores an object and reads it back, with the engine in this process.

use ondol::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::open(EngineConfig::new(["memfd:?size=64MiB".parse()?]))?;
    let connect = move || engine.attach(None, [0; 16]);
    let handler = Handler::embedded(connect, HandlerConfig::default())?;

    let key = Key::text("prompt/0")?;
    let mut page = handler.alloc(5)?;
    page.copy_from_slice(b"hello");
    handler.store(&key, page)?;

    let object = handler.retrieve(&key)?.ok_or("stored a moment ago")?;
    println!("{key}: {}", String::from_utf8_lossy(&object));
    Ok(())
}
