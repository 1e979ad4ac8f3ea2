//! Look-ups by a thread that the kernel kills at its first system call.

use std::io::Read;
use std::process::{Command, Stdio};

use super::*;

const ROLE: &str = "ONDOL_TEST_QUIET";

/// The client. Run by itself, it does nothing.
#[test]
fn entry() {
    let Some(role) = std::env::var_os(ROLE) else {
        return;
    };
    let mut writer = IndexWriter::create(2000, 100, 5).unwrap();
    let reader = reader_of(&writer);
    let (_view, slots) = slots_for(5);
    let keys: Vec<_> = (0..2000).map(|number| key(number, 100)).collect();
    for (key, number) in keys.iter().zip(0..1500) {
        writer.insert(key, &object(number), number == 3).unwrap();
    }
    let client = std::thread::spawn(move || {
        // The first one of a process finds the system's clock.
        let is_right = is_answered(&reader, &slots, &keys);
        // SAFETY: from here on this thread may read, write and exit only.
        let strict = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) };
        assert_eq!(strict, 0);
        if role == "a call" {
            let _ = rustix::process::getppid();
        }
        let is_right = is_right && is_answered(&reader, &slots, &keys);
        let text: &[u8] = if is_right { b"\nquiet\n" } else { b"\nwrong\n" };
        // SAFETY: the text is as long as it says.
        unsafe { libc::write(1, text.as_ptr().cast(), text.len()) };
        // To return would be a system call of another kind.
        loop {
            std::hint::spin_loop();
        }
    });
    // A thread that was killed has no result, and this fails.
    let Err(_) = client.join();
}

fn is_answered(reader: &IndexReader, slots: &Arc<SlotTable>, keys: &[Key]) -> bool {
    let (mut found, mut absent) = (0, 0);
    for count in [1, 16, 256, 2000] {
        for keys in keys.chunks(count) {
            reader.look(keys, |_, looked| {
                found += i32::from(matches!(looked, Looked::Found(_)));
                absent += i32::from(looked == Looked::Absent);
            });
            reader.lease(slots, keys, |_, looked| {
                found += i32::from(matches!(looked, Looked::Found(_)));
                absent += i32::from(matches!(looked, Looked::Absent));
            });
        }
    }
    (found, absent) == (1499 * 8, 500 * 8)
}

/// What the client says, which it does not outlive.
fn run(role: &str) -> String {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "index::tests::quiet::entry", "--nocapture"])
        .env(ROLE, role)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut text = String::new();
    let out = child.stdout.as_mut().unwrap();
    let mut byte = [0];
    while !text.ends_with("quiet\n")
        && !text.ends_with("wrong\n")
        && out.read(&mut byte).unwrap() == 1
    {
        text.push(byte[0].into());
    }
    child.kill().unwrap();
    child.wait().unwrap();
    text
}

#[test]
fn a_look_up_or_a_lease_is_no_system_call() {
    let text = run("look");
    assert!(text.ends_with("\nquiet\n"), "{text}");
}

#[test]
fn the_test_above_would_notice_one() {
    let text = run("a call");
    assert!(!text.contains("quiet\n"), "{text}");
}
