//! What no client should do: fork, and write where it may only read.

use std::io;
use std::path::Path;
use std::sync::Arc;

use ondol_handler::{DeleteOutcome, Handler, HandlerConfig, HandlerError, Health, Object, PageMut};
use ondol_tests::{check, fill, key};

use crate::client::connect;
use crate::server;

/// Holds an object, a page and a pin, forks, and prints what the child found wrong.
pub(crate) fn fork(socket: &Path) {
    let handler = connect(socket, &[]);
    let mut page = handler.alloc(65_536).unwrap();
    fill(&mut page, "forked", 1);
    handler.store(&key("forked"), page).unwrap();
    let object = handler.retrieve(&key("forked")).unwrap().unwrap();
    let page = handler.alloc(65_536).unwrap();
    let spare = handler.alloc(65_536).unwrap();
    assert!(handler.pin(&key("forked")).unwrap());

    let Some(child) = split() else {
        leave(in_the_child(handler, object, page, spare))
    };
    let mut wrong = Vec::new();
    wrong.extend(fate(child));
    if let Err(error) = check(&object, "forked") {
        wrong.push(format!("the parent's object: {error}"));
    }
    match handler.store(&key("parent"), page) {
        Ok(ondol_handler::Stored::New) => {}
        other => wrong.push(format!("the parent's page: {other:?}")),
    }
    drop(spare);
    report(&wrong);
}

/// A server that forks: its child drops door, engine and a handler of its own, which are the parent's.
pub(crate) fn fork_server(dir: &Path) {
    let (engine, door, state) = server::open(dir, "8");
    let inside = Arc::clone(&engine);
    let handler = Handler::embedded(
        move || inside.attach(None, [0; 16]),
        HandlerConfig::default(),
    )
    .unwrap();
    let outside = connect(door.socket(), &[]);
    let mut page = handler.alloc(1000).unwrap();
    fill(&mut page, "forked", 1);
    handler.store(&key("forked"), page).unwrap();
    assert!(handler.pin(&key("forked")).unwrap());
    assert!(outside.exists(&key("forked")).unwrap());
    let page = handler.alloc(1000).unwrap();
    let object = outside.retrieve(&key("forked")).unwrap().unwrap();

    let Some(child) = split() else {
        drop((handler, outside));
        drop((page, object));
        door.stop();
        drop((door, engine, state));
        leave(0)
    };
    let mut wrong = Vec::new();
    wrong.extend(fate(child));
    if !door.socket().exists() {
        wrong.push("the child removed the socket".to_owned());
    }
    match outside.exists(&key("forked")) {
        Ok(true) => {}
        other => wrong.push(format!("the connection of before: {other:?}")),
    }
    let fresh = connect(door.socket(), &[]);
    match fresh.delete(&key("forked")) {
        Ok(DeleteOutcome::Pinned) => {}
        other => wrong.push(format!("the parent's pin: {other:?}")),
    }
    if let Err(error) = check(&object, "forked") {
        wrong.push(format!("the parent's object: {error}"));
    }
    if let Err(error) = handler.store(&key("later"), page) {
        wrong.push(format!("the parent's page: {error}"));
    }
    report(&wrong);
}

/// Forks; the child in the parent, nothing in the child.
fn split() -> Option<libc::pid_t> {
    // SAFETY: the child uses memory of its own, takes no lock that another thread of the parent's may hold (which is
    // what is tested), and leaves through `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", io::Error::last_os_error());
    if child == 0 {
        // A child that waits for such a lock ends with a signal.
        // SAFETY: sets a timer of this process.
        unsafe { libc::alarm(30) };
        return None;
    }
    Some(child)
}

/// Ends a child at once; nothing of the parent's is flushed or run twice.
pub(crate) fn leave(status: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(status) }
}

/// Waits for a child; what was wrong with it.
fn fate(child: libc::pid_t) -> Option<String> {
    let mut status = 0;
    // SAFETY: `status` is a valid place and `child` our own.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    if libc::WIFSIGNALED(status) {
        return Some(format!(
            "the child died of signal {}",
            libc::WTERMSIG(status)
        ));
    }
    let step = libc::WEXITSTATUS(status);
    (step != 0).then(|| format!("the child could do what it must not: step {step}"))
}

/// Prints what was wrong, or `ok`, and waits for the end of the input.
fn report(wrong: &[String]) {
    let verdict = wrong.join("; ");
    println!("{}", if wrong.is_empty() { "ok" } else { &verdict });
    let _ = io::stdin().lines().count();
}

/// Tries what must fail, then drops what it inherited; the number of the step that was wrong, or 0.
fn in_the_child(handler: Handler, object: Object, page: PageMut, spare: PageMut) -> i32 {
    let name = key("forked");
    let names = [name.clone()];
    let mut steps = Vec::new();
    let mut refused = |result: Result<(), HandlerError>| {
        steps.push(matches!(result, Err(HandlerError::Forked)));
    };
    refused(handler.alloc(1).map(drop));
    refused(handler.store(&key("child"), page).map(drop));
    refused(handler.batch_store(&names, vec![spare]).map(drop));
    refused(handler.retrieve(&name).map(drop));
    refused(handler.batch_retrieve(&names).map(drop));
    refused(handler.match_prefix(&names).map(drop));
    refused(handler.retrieve_group(&names).map(drop));
    refused(handler.exists(&name).map(drop));
    refused(handler.prefetch(&names).map(drop));
    refused(handler.pin(&name).map(drop));
    refused(handler.unpin(&name).map(drop));
    refused(handler.delete(&name).map(drop));
    refused(handler.list(None, 1).map(drop));
    refused(handler.stats().map(drop));
    refused(handler.reconnect());
    steps.push(!handler.stage(&names).ready());
    steps.push(matches!(handler.health(), Health::Unreachable(_)));
    if let Some(wrong) = steps.iter().position(|fine| !fine) {
        return wrong as i32 + 1;
    }

    // Shared memory is not inherited, so the child's own may come to lie where the parent's is mapped.
    let sizes = [8 << 20, 8 << 20, 512 << 10, 512 << 10, 1 << 20, 4 << 20];
    let mut own: Vec<Vec<u8>> = Vec::new();
    for size in sizes.into_iter().cycle().take(36) {
        own.push(vec![0x5a; size - 8192]);
    }
    handler.close();
    drop(object);
    drop(handler);
    let mut intact = true;
    for memory in &mut own {
        intact &= memory.iter().all(|byte| *byte == 0x5a);
        memory.fill(0xa5);
    }
    if intact { 0 } else { 100 }
}

/// Writes through an object.
pub(crate) fn fault(socket: &Path, text: &str) {
    let handler = connect(socket, &[]);
    let object = handler.retrieve(&key(text)).unwrap().unwrap();
    println!("ready");
    let _ = io::stdin().lines().next();
    let first = object.as_ptr().cast_mut();
    // SAFETY: none: this breaks the promise that objects are only read. It is done to see that the system stops it.
    unsafe { first.write_volatile(!object[0]) };
    println!("the write went through");
}
