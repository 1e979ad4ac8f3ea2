//! Shares objects with other processes through a server, which `ondol serve` starts.
//!
//! Run it twice: the first run stores the object, the second finds it there.

use std::path::Path;

use ondol::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let socket = std::env::args_os().nth(1).map(Into::into);
    let found = share(&socket.unwrap_or_else(default_socket))?;
    println!(
        "{}",
        if found {
            "it was there"
        } else {
            "it is there now"
        }
    );
    Ok(())
}

/// Makes sure that the object is there; whether somebody had stored it before.
fn share(socket: &Path) -> Result<bool, HandlerError> {
    let mut config = HandlerConfig::default();
    // Objects of another model, type or shape are not found, and bytes are compared with their checksum.
    config.layout = Some(Layout::new("example/1", "u8", &[11], "flat").fingerprint());
    config.checksum = true;
    let handler = Handler::connect(socket, config)?;

    let key = Key::integer(42);
    if let Some(object) = handler.retrieve(&key)? {
        // A view of shared memory, kept from reuse until it is dropped.
        assert_eq!(&*object, b"hello again");
        return Ok(true);
    }
    let mut page = handler.alloc(11)?;
    page.copy_from_slice(b"hello again");
    // Of two processes that come here at once one is told that the key is there already.
    Ok(handler.store(&key, page)? == Stored::AlreadyPresent)
}

#[test]
fn what_one_handler_stores_the_next_one_finds() {
    use ondol::server::{DoorConfig, StateDir, UnixDoor};

    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::lock(dir.path()).unwrap();
    let engine = EngineConfig::new(["memfd:?size=64MiB".parse().unwrap()]);
    let door = DoorConfig::new(state.socket_path());
    let door = UnixDoor::open(Engine::open(engine).unwrap(), &state, door).unwrap();
    assert!(!share(door.socket()).unwrap());
    assert!(share(door.socket()).unwrap());
    door.stop();
}
