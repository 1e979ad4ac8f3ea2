//! What each way to copy makes of the memory's bandwidth: all kernels in turns, with and without a checksum, into and out of
//! populated shared memory.
//!
//! `cargo bench -p ondol-shm --bench copy` takes about a minute and 1.5 GiB. A row has gigabytes (10^9 bytes) per second of
//! one core, the median of the rounds, and in brackets the ratio to `memcpy` in the same rounds. *Cold* memory is gone
//! through from end to end, far more than fits a cache; *hot* memory is one block, used again and again.

use std::hint::black_box;
use std::time::Instant;

use memmap2::{MmapMut, MmapOptions};
use ondol_shm::{CopyKernel, checksum, copy, copy_out, copy_out_verified, copy_with_checksum};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use xxhash_rust::xxh3::xxh3_64;

/// Bytes that a round copies: so few that most rounds are over before the scheduler gives the processor to another.
const ROUND: usize = 8 << 20;
const ROUNDS: usize = 45;
/// Rounds until a cold place comes again.
const PLACES: usize = 64;

type Copy = Box<dyn Fn(&mut [u8], &[u8])>;
type PlainCopy = fn(&mut [u8], &[u8]);
type Named<T> = (&'static str, T);

/// Bytes that the kernel has given already.
fn memory(shared: bool) -> MmapMut {
    let len = ROUND * PLACES;
    let mut map = if shared {
        let file = memfd_create("ondol-bench", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, len as u64).unwrap();
        // SAFETY: the file has no name, so nobody else changes or shortens it.
        unsafe { MmapOptions::new().len(len).map_mut(&file) }.unwrap()
    } else {
        MmapMut::map_anon(len).unwrap()
    };
    let words = map.chunks_exact_mut(8).zip(0_u64..);
    words.for_each(|(word, index)| {
        word.copy_from_slice(&index.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    });
    map
}

/// Gigabytes per second of every copy, in turns.
fn measure(copies: &[Named<Copy>], to: (&mut [u8], bool), from: (&[u8], bool), block: usize) {
    let mut rates = vec![Vec::with_capacity(ROUNDS); copies.len()];
    for round in 0..ROUNDS {
        for turn in 0..copies.len() {
            // Another one first in every round, and every place for every one.
            let index = (turn + round) % copies.len();
            let (_, copy) = &copies[index];
            let place = (round * copies.len() + turn) % PLACES * ROUND;
            let start = Instant::now();
            for at in (place..place + ROUND).step_by(block) {
                let [target, source] = [to.1, from.1].map(|is_hot| if is_hot { 0 } else { at });
                copy(
                    &mut to.0[target..target + block],
                    &from.0[source..source + block],
                );
            }
            rates[index].push(ROUND as f64 / start.elapsed().as_secs_f64() / 1e9);
        }
    }
    let medians: Vec<_> = rates
        .iter_mut()
        .map(|rates| {
            rates.sort_unstable_by(f64::total_cmp);
            rates[ROUNDS / 2]
        })
        .collect();
    let named = copies.iter().zip(&medians);
    let cells =
        named.map(|((name, _), rate)| format!("{name} {rate:.1} ({:.2})", rate / medians[0]));
    println!(
        "  {:>4} KiB  {}",
        block >> 10,
        cells.collect::<Vec<_>>().join("  ")
    );
}

fn name(kernel: CopyKernel) -> &'static str {
    match kernel {
        CopyKernel::Plain => "memcpy",
        CopyKernel::Sse2 => "sse2",
        CopyKernel::Avx2 => "avx2",
        CopyKernel::Avx512 => "avx512",
    }
}

/// `memcpy`, all kernels with this wrapped around, and what the library would choose.
fn ways(with: impl Fn(CopyKernel) -> Copy, chosen: Named<PlainCopy>) -> Vec<Named<Copy>> {
    let kernels = CopyKernel::ALL.into_iter();
    let available = kernels.filter(|kernel| kernel.is_available());
    let mut ways: Vec<_> = available
        .map(|kernel| (name(kernel), with(kernel)))
        .collect();
    ways.push((chosen.0, Box::new(chosen.1)));
    ways
}

fn main() {
    let mut pool = memory(true);
    let mut own = memory(false);
    let bare = |kernel: CopyKernel| -> Copy { Box::new(move |to, from| kernel.copy(to, from)) };
    let summed = |kernel: CopyKernel| -> Copy {
        Box::new(move |to, from| {
            black_box(kernel.copy_with_checksum(to, from));
        })
    };
    let into = ways(bare, ("copy", copy));
    let out = ways(bare, ("copy_out", copy_out));
    let mut into_summed = ways(
        summed,
        ("copy_with_checksum", |to, from| {
            black_box(copy_with_checksum(to, from));
        }),
    );
    into_summed[0] = ("memcpy", bare(CopyKernel::Plain));
    into_summed.push((
        "xxh3, then copy",
        Box::new(|to, from| {
            black_box(xxh3_64(from));
            copy(to, from);
        }),
    ));
    let verified: Vec<Named<Copy>> = vec![
        ("memcpy", bare(CopyKernel::Plain)),
        (
            "copy_out_verified",
            Box::new(|to, from| {
                let _ = black_box(copy_out_verified(to, from, 0));
            }),
        ),
        (
            "memcpy, then xxh3",
            Box::new(|to, from| {
                to.copy_from_slice(from);
                black_box(xxh3_64(to));
            }),
        ),
    ];
    let sums: Vec<Named<Copy>> = vec![
        (
            "xxhash-rust",
            Box::new(|_, from| {
                black_box(xxh3_64(from));
            }),
        ),
        (
            "checksum",
            Box::new(|_, from| {
                black_box(checksum(from));
            }),
        ),
    ];
    const BLOCKS: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 2 << 20];
    for (source, target) in [(false, false), (true, false), (false, true), (true, true)] {
        let words = |is_hot| if is_hot { "hot" } else { "cold" };
        println!("{} memory to {} pages", words(source), words(target));
        for block in BLOCKS {
            measure(&into, (&mut pool, target), (&own, source), block);
        }
        if !target {
            println!(
                "{} memory to {} pages, with a checksum",
                words(source),
                words(target)
            );
            for block in BLOCKS {
                measure(&into_summed, (&mut pool, target), (&own, source), block);
            }
        }
    }
    for (target, words) in [(true, "hot"), (false, "cold")] {
        println!("cold pages to {words} memory");
        for block in BLOCKS {
            measure(&out, (&mut own, target), (&pool, false), block);
        }
        println!("cold pages to {words} memory, verified");
        for block in BLOCKS {
            measure(&verified, (&mut own, target), (&pool, false), block);
        }
    }
    for (source, words) in [(false, "cold"), (true, "hot")] {
        println!("a checksum of {words} pages");
        for block in BLOCKS {
            measure(&sums, (&mut own, true), (&pool, source), block);
        }
    }
}
