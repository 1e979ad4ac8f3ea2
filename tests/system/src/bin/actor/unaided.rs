//! Look-ups of a process that the system kills for any call of it.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::io;
use std::path::Path;
use std::time::Duration;

use ondol_handler::{Handler, HandlerError};
use ondol_tests::{check, key, keys, plain};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

use crate::hazard::leave;

/// Number of objects `k0`, `k1`, …
const COUNT: usize = 256;
/// So often everything is done at first with leave to make system calls, for the memory that it takes.
const WARM: usize = 200;

/// Looks up what there is (`found`), or what it has to ask the server for (`asked`), and ends well if nothing was wrong.
pub(crate) fn run(socket: &Path, what: &str) {
    let handler = Handler::connect(socket, plain(&[4096])).expect("a connected handler");
    let names = keys("k", COUNT);
    let texts: Vec<_> = (0..COUNT).map(|index| format!("k{index}")).collect();
    let batch = handler.batch_retrieve(&names).expect("an answer");
    let is_whole = texts.iter().zip(&batch).all(|(text, object)| {
        let object = object.as_ref().expect("an object");
        check(object, text).is_ok()
    });
    assert!(is_whole, "objects are not what they should be");
    drop(batch);
    let mut absent = names.clone();
    absent[COUNT / 2] = key("absent");
    let look = || -> Result<bool, HandlerError> {
        let mut fine = true;
        let batch = handler.batch_retrieve(&names)?;
        for object in batch.iter().flatten() {
            black_box(object[0]);
        }
        fine &= batch.iter().flatten().count() == COUNT;
        fine &= handler.batch_retrieve(&absent)?.iter().flatten().count() == COUNT - 1;
        fine &= handler.match_prefix(&absent)?.len() == COUNT / 2;
        fine &= handler.match_prefix_groups(&absent, 3)?.len() == COUNT / 2 - COUNT / 2 % 3;
        fine &= handler.retrieve_group(&names)?.is_some();
        fine &= handler.retrieve_group(&absent)?.is_none();
        fine &= handler
            .retrieve(&names[7])?
            .is_some_and(|object| object.len() == 4096);
        fine &= handler.retrieve(&absent[COUNT / 2])?.is_none();
        fine &= handler.exists(&names[7])? && !handler.exists(&absent[COUNT / 2])?;
        fine &= handler
            .batch_exists(&absent)?
            .iter()
            .filter(|there| **there)
            .count()
            == COUNT - 1;
        Ok(fine)
    };
    for _ in 0..WARM {
        assert!(look().expect("answers"), "look-ups were answered wrongly");
    }
    println!("ready");
    let _ = io::stdin().lines().next();
    let filter = only_the_end();
    apply_filter(&filter).expect("a filter of system calls");
    let mut fine = true;
    for _ in 0..WARM {
        fine &= look().unwrap_or(false);
    }
    if what == "asked" {
        let _ = handler.retrieve_within(&absent[COUNT / 2], Duration::from_millis(1));
    }
    leave(i32::from(!fine));
}

/// Lets the calling thread end its process. Whatever else it asks of the system kills the process.
fn only_the_end() -> BpfProgram {
    let arch = std::env::consts::ARCH
        .try_into()
        .expect("a known processor");
    let allowed = BTreeMap::from([(libc::SYS_exit_group, Vec::new())]);
    let filter = SeccompFilter::new(
        allowed,
        SeccompAction::KillProcess,
        SeccompAction::Allow,
        arch,
    );
    let filter = filter.expect("a filter");
    filter.try_into().expect("a program")
}
