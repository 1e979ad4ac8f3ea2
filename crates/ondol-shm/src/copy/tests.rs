use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use xxhash_rust::xxh3::xxh3_64;

use super::*;
use crate::ReadMapping;

fn kernels() -> impl Iterator<Item = CopyKernel> {
    let absent = CopyKernel::ALL
        .into_iter()
        .filter(|kernel| !kernel.is_available());
    absent.for_each(|kernel| println!("SKIPPED: this processor has no {kernel:?}"));
    CopyKernel::ALL
        .into_iter()
        .filter(|kernel| kernel.is_available())
}

/// Bytes of which no two neighbours, and no two lines, are alike.
fn bytes(len: usize) -> Vec<u8> {
    let mixed = (0..len as u64).map(|index| index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 37);
    mixed.map(|word| word as u8).collect()
}

/// Copies with and without a checksum, and expects the bytes in `target[place]` and nowhere else.
fn check(kernel: CopyKernel, target: &mut [u8], place: Range<usize>, source: &[u8]) {
    const UNTOUCHED: u8 = 0xc5;
    let told = format!("{kernel:?} of {} bytes to {place:?}", source.len());
    let verify = |target: &[u8]| {
        assert!(target[place.clone()] == *source, "{told}");
        let [before, after] = [&target[..place.start], &target[place.end..]];
        let outside = before.iter().chain(after);
        assert!(outside.copied().all(|byte| byte == UNTOUCHED), "{told}");
    };
    target.fill(UNTOUCHED);
    kernel.copy(&mut target[place.clone()], source);
    verify(target);
    target.fill(UNTOUCHED);
    let sum = kernel.copy_with_checksum(&mut target[place.clone()], source);
    assert_eq!(sum, xxh3_64(source), "{told}");
    verify(target);
}

#[test]
fn every_short_length_arrives_whole_at_every_alignment() {
    let source = bytes(1024);
    let mut target = [0; 1024];
    for kernel in kernels() {
        for at in 0..64 {
            // Every alignment of the source meets every one of the target, over the lengths.
            for len in 0..600 {
                let from = (at + len) % 64;
                let target = &mut target[..at + len + 64];
                check(kernel, target, at..at + len, &source[from..from + len]);
            }
        }
    }
}

#[test]
fn long_copies_arrive_whole_around_every_threshold() {
    let source = bytes(READER_STREAM_BYTES + 8192);
    let mut target = vec![0; source.len()];
    let near = |len: usize| (len - 2..len + 3).chain([len - 64, len + 64, len + 1000]);
    let lens = [1024, 2048, 4096, PAGE_STREAM_BYTES, 65_536];
    for kernel in kernels() {
        for len in lens.into_iter().flat_map(near) {
            for (at, from) in [(0, 0), (1, 0), (0, 1), (63, 17), (32, 8)] {
                let target = &mut target[..len + 128];
                check(kernel, target, at..at + len, &source[from..from + len]);
            }
        }
        for len in near(READER_STREAM_BYTES) {
            check(kernel, &mut target, 5..5 + len, &source[7..7 + len]);
        }
    }
}

#[test]
fn the_chosen_kernel_copies_whole_on_both_sides_of_its_threshold() {
    let source = bytes(READER_STREAM_BYTES);
    for len in [
        0,
        1,
        241,
        PAGE_STREAM_BYTES - 1,
        PAGE_STREAM_BYTES,
        READER_STREAM_BYTES - 1,
        READER_STREAM_BYTES,
    ] {
        let source = &source[..len];
        let mut target = vec![0; len];
        copy(&mut target, source);
        assert!(target == source, "{len}");
        target.fill(0);
        assert_eq!(copy_with_checksum(&mut target, source), xxh3_64(source));
        assert!(target == source, "{len}");
        target.fill(0);
        copy_out(&mut target, source);
        assert!(target == source, "{len}");
        target.fill(0);
        copy_out_verified(&mut target, source, xxh3_64(source)).unwrap();
        assert!(target == source, "{len}");
        let found = copy_out_verified(&mut target, source, !xxh3_64(source)).unwrap_err();
        assert_eq!(found, xxh3_64(source));
    }
}

/// Memory between two pages that nobody may touch.
struct Fenced {
    start: *mut u8,
    len: usize,
}

const PAGE: usize = 4096;

impl Fenced {
    fn new(pages: usize) -> Self {
        let len = pages * PAGE;
        let (access, flags) = (ProtFlags::empty(), MapFlags::PRIVATE);
        // SAFETY: a new mapping, wherever there is room.
        let map = unsafe { mmap_anonymous(std::ptr::null_mut(), len + 2 * PAGE, access, flags) };
        let start = map.unwrap().cast::<u8>().wrapping_add(PAGE);
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: inside the new mapping, which nobody else knows.
        unsafe { mprotect(start.cast(), len, access) }.unwrap();
        Self { start, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `len` bytes of the mapping can be read and written, hold zeros at first, and are borrowed with it.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, of which no borrow is left.
        unsafe { munmap(self.start.wrapping_sub(PAGE).cast(), self.len + 2 * PAGE) }.unwrap();
    }
}

#[test]
fn nothing_beside_source_and_target_is_touched() {
    let (mut source, mut target) = (Fenced::new(8), Fenced::new(8));
    let whole = source.len;
    source.bytes().copy_from_slice(&bytes(whole));
    let lens = (0..130).chain([
        255,
        1023,
        4095,
        4096,
        4097,
        16_383,
        16_384,
        whole - 1,
        whole,
    ]);
    for kernel in kernels() {
        for len in lens.clone() {
            for from in [0..len, whole - len..whole] {
                for to in [0..len, whole - len..whole] {
                    let (source, target) = (source.bytes(), target.bytes());
                    check(kernel, target, to, &source[from.clone()]);
                    // Reads of what is only summed stay inside, too.
                    assert_eq!(
                        checksum(&source[from.clone()]),
                        xxh3_64(&source[from.clone()])
                    );
                }
            }
        }
    }
}

#[test]
fn who_is_told_of_a_copy_finds_it_whole() {
    // Without the fence about one copy in a million is seen too early.
    const COPIES: u64 = 200_000;
    const PLACES: u64 = 64;
    const WORDS: usize = PAGE / 8;
    let len = PLACES as usize * PAGE;
    let file = memfd_create("ondol-test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, len as u64).unwrap();
    // One mapping to write and one to read, as two processes have them.
    // SAFETY: the file has no name, so nobody else changes or shortens it.
    let mut write = unsafe { memmap2::MmapOptions::new().len(len).map_mut(&file) }.unwrap();
    let read = ReadMapping::new(file.as_fd(), len as u64).unwrap();
    let (read, told) = (&read, &AtomicU64::new(0));
    for kernel in kernels() {
        told.store(0, Ordering::Relaxed);
        write.fill(0);
        let stale = std::thread::scope(|scope| {
            let reader = scope.spawn(move || {
                let mut stale = 0;
                let mut seen = 0;
                while seen < COPIES {
                    // Not looked at all the time, so that the line stays with the writer and is changed at once.
                    (0..300).for_each(|_| std::hint::spin_loop());
                    seen = told.load(Ordering::Acquire);
                    let place = (seen % PLACES) as usize * PAGE;
                    for word in [WORDS - 1, WORDS - 9, WORDS / 2, 0] {
                        let word = read.word(place + word * 8);
                        // SAFETY: a word of a mapping that lives; others change it as a whole.
                        let found = unsafe { &*word.cast::<AtomicU64>() }.load(Ordering::Relaxed);
                        // A newer copy to the same place is no fault.
                        stale += u64::from(found < seen);
                    }
                }
                stale
            });
            let (places, _) = write.as_chunks_mut::<PAGE>();
            for number in 1..=COPIES {
                let source = [number.to_ne_bytes(); WORDS];
                kernel.copy(
                    &mut places[(number % PLACES) as usize],
                    source.as_flattened(),
                );
                told.store(number, Ordering::Release);
            }
            reader.join().unwrap()
        });
        assert_eq!(stale, 0, "{kernel:?}: words that were not there yet");
    }
}

#[test]
fn the_widest_kernel_is_one_that_the_processor_has() {
    assert!(CopyKernel::Plain.is_available());
    assert!(CopyKernel::widest().is_available());
    let small = CopyKernel::for_len(PAGE_STREAM_BYTES - 1, PAGE_STREAM_BYTES);
    assert_eq!(small, CopyKernel::Plain);
    let large = CopyKernel::for_len(PAGE_STREAM_BYTES, PAGE_STREAM_BYTES);
    assert_eq!(large, CopyKernel::widest());
}

#[test]
#[should_panic(expected = "lengths of a copy differ")]
fn a_copy_to_a_place_of_another_length_is_refused() {
    CopyKernel::widest().copy(&mut [0; 100], &[0; 101]);
}

#[test]
#[should_panic(expected = "lengths of a copy differ")]
fn a_summed_copy_to_a_place_of_another_length_is_refused() {
    CopyKernel::widest().copy_with_checksum(&mut [0; 1000], &[0; 1001]);
}

proptest! {
    #[test]
    fn a_checksum_is_that_of_the_reference(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
        prop_assert_eq!(checksum(&bytes), xxh3_64(&bytes));
        prop_assert_eq!(xxh3::portable(&bytes), xxh3_64(&bytes));
        for kernel in kernels() {
            let mut target = vec![0; bytes.len()];
            prop_assert_eq!(kernel.copy_with_checksum(&mut target, &bytes), xxh3_64(&bytes));
            prop_assert!(target == bytes);
        }
    }
}
