//! Copies that go past the caches, with the non-temporal stores of x86-64, and XXH3 in the same registers.
//!
//! # Invariant
//! A non-temporal store goes to a whole line of 64 bytes, at a multiple of 64, that lies in the target. The parts of lines at
//! both ends are copied with ordinary stores. Every function that makes such stores ends with a store fence: they are ordered by
//! nothing else, and whoever is told of the copy by an ordinary store must find it.

use std::arch::x86_64::_mm_sfence;

use super::prefetch;
use super::xxh3::{self, BLOCK, INITIAL, KEYS, Lanes, PRIME32_1, SCRAMBLE_KEY, STRIPE};

/// A line of the caches, which is as long as a stripe.
type Line = xxh3::Stripe;

/// Where the lines of a target begin, and the same part of its source.
fn lines<'a>(target: &'a mut [u8], source: &'a [u8]) -> (usize, &'a mut [Line], &'a [Line]) {
    assert_eq!(target.len(), source.len(), "lengths of a copy differ");
    let head = target.as_ptr().align_offset(STRIPE).min(target.len());
    let (places, _) = target[head..].as_chunks_mut();
    let (lines, _) = source[head..].as_chunks();
    (head, places, lines)
}

/// Copies all but `done`, a range of whole lines.
fn copy_ends(target: &mut [u8], source: &[u8], done: std::ops::Range<usize>) {
    target[..done.start].copy_from_slice(&source[..done.start]);
    target[done.end..].copy_from_slice(&source[done.end..]);
}

/// The same code for registers of each width.
macro_rules! kernels {
    (
        $width:ident, $feature:literal, $vector:ident,
        $stream:ident, $splat:ident, $xor:ident, $add:ident, $multiply:ident, $shuffle:ident, $right:ident, $left:ident
    ) => {
        pub(super) mod $width {
            use std::arch::x86_64::{
                $add, $left, $multiply, $right, $shuffle, $splat, $stream, $vector, $xor,
            };

            use super::*;

            /// A line, or a stripe, or all lanes.
            type Vectors = [$vector; STRIPE / size_of::<$vector>()];

            #[inline]
            #[target_feature(enable = $feature)]
            fn load(line: &Line) -> Vectors {
                // SAFETY: as many bytes as the line has; vectors may hold any.
                unsafe { line.as_ptr().cast::<Vectors>().read_unaligned() }
            }

            #[inline]
            #[target_feature(enable = $feature)]
            fn load_lanes(lanes: &Lanes) -> Vectors {
                // SAFETY: as many bytes as the lanes have; vectors may hold any.
                unsafe { lanes.as_ptr().cast::<Vectors>().read_unaligned() }
            }

            /// Stores a line past the caches.
            ///
            /// # Safety
            /// The place is at a multiple of 64.
            #[inline]
            #[target_feature(enable = $feature)]
            unsafe fn stream(place: &mut Line, line: &Vectors) {
                let place: *mut $vector = place.as_mut_ptr().cast();
                for (part, vector) in line.iter().enumerate() {
                    // SAFETY: a part of the place, at a multiple of its own size as the caller vouches.
                    unsafe { $stream(place.wrapping_add(part).cast(), *vector) };
                }
            }

            #[inline]
            #[target_feature(enable = $feature)]
            fn mix(lanes: &mut Vectors, stripe: &Vectors, key: &Lanes) {
                let key = load_lanes(key);
                for ((lane, words), key) in lanes.iter_mut().zip(stripe).zip(key) {
                    let keyed = $xor(*words, key);
                    let product = $multiply(keyed, $right::<32>(keyed));
                    let swapped = $shuffle::<0b01_00_11_10>(*words);
                    *lane = $add(*lane, $add(swapped, product));
                }
            }

            #[inline]
            #[target_feature(enable = $feature)]
            fn scramble(lanes: &mut Vectors) {
                let prime = $splat(PRIME32_1 as i64);
                for (lane, key) in lanes.iter_mut().zip(load_lanes(&SCRAMBLE_KEY)) {
                    let mixed = $xor($xor(*lane, $right::<47>(*lane)), key);
                    let high = $multiply($right::<32>(mixed), prime);
                    *lane = $add($multiply(mixed, prime), $left::<32>(high));
                }
            }

            /// The xxh3-64 of bytes that are not short. `each` is given each stripe with its number, in order.
            #[inline]
            #[target_feature(enable = $feature)]
            fn sum(bytes: &[u8], mut each: impl FnMut(usize, &Vectors)) -> u64 {
                let mut lanes = load_lanes(&INITIAL);
                let (stripes, _) = bytes.as_chunks::<STRIPE>();
                let mut number = 0;
                for block in stripes[..xxh3::stripes(bytes.len())].chunks(KEYS.len()) {
                    for (stripe, key) in block.iter().zip(&KEYS) {
                        prefetch(bytes, number * STRIPE);
                        let stripe = load(stripe);
                        each(number, &stripe);
                        mix(&mut lanes, &stripe, key);
                        number += 1;
                    }
                    if block.len() == BLOCK / STRIPE {
                        scramble(&mut lanes);
                    }
                }
                let mut sums = [0; 8];
                // SAFETY: as many bytes as the lanes have.
                unsafe { sums.as_mut_ptr().cast::<Vectors>().write_unaligned(lanes) };
                xxh3::finish(sums, bytes)
            }

            #[target_feature(enable = $feature)]
            pub(in super::super) fn checksum(bytes: &[u8]) -> u64 {
                xxh3::short(bytes).unwrap_or_else(|| sum(bytes, |_, _| {}))
            }

            /// Copies with ordinary stores.
            #[target_feature(enable = $feature)]
            pub(in super::super) fn copy_and_sum(target: &mut [u8], source: &[u8]) -> u64 {
                assert_eq!(target.len(), source.len(), "lengths of a copy differ");
                if let Some(sum) = xxh3::short(source) {
                    target.copy_from_slice(source);
                    return sum;
                }
                let whole = xxh3::stripes(source.len());
                let (places, _) = target.as_chunks_mut::<STRIPE>();
                let places = &mut places[..whole];
                let sum = sum(source, |number, stripe| {
                    let place: *mut Vectors = places[number].as_mut_ptr().cast();
                    // SAFETY: as many bytes as the place has.
                    unsafe { place.write_unaligned(*stripe) };
                });
                copy_ends(target, source, 0..whole * STRIPE);
                sum
            }

            #[target_feature(enable = $feature)]
            pub(in super::super) fn copy(target: &mut [u8], source: &[u8]) {
                let (head, places, lines) = lines(target, source);
                let whole = places.len();
                for (number, (place, line)) in places.iter_mut().zip(lines).enumerate() {
                    prefetch(source, number * STRIPE);
                    // SAFETY: lines of a target are at multiples of 64.
                    unsafe { stream(place, &load(line)) };
                }
                copy_ends(target, source, head..head + whole * STRIPE);
                _mm_sfence();
            }

            #[target_feature(enable = $feature)]
            pub(in super::super) fn copy_with_checksum(target: &mut [u8], source: &[u8]) -> u64 {
                if let Some(sum) = xxh3::short(source) {
                    copy(target, source);
                    return sum;
                }
                let (head, places, lines) = lines(target, source);
                let whole = places.len().min(xxh3::stripes(source.len()));
                let (places, lines) = (&mut places[..whole], &lines[..whole]);
                let sum = if head == 0 {
                    sum(source, |number, stripe| {
                        // SAFETY: lines of a target are at multiples of 64.
                        unsafe { stream(&mut places[number], stripe) };
                    })
                } else {
                    // Stripes are no lines here, but there is one for the other, and it has just been loaded.
                    sum(source, |number, _| {
                        if number < whole {
                            // SAFETY: lines of a target are at multiples of 64.
                            unsafe { stream(&mut places[number], &load(&lines[number])) };
                        }
                    })
                };
                copy_ends(target, source, head..head + whole * STRIPE);
                _mm_sfence();
                sum
            }
        }
    };
}

kernels!(
    sse2,
    "sse2",
    __m128i,
    _mm_stream_si128,
    _mm_set1_epi64x,
    _mm_xor_si128,
    _mm_add_epi64,
    _mm_mul_epu32,
    _mm_shuffle_epi32,
    _mm_srli_epi64,
    _mm_slli_epi64
);
kernels!(
    avx2,
    "avx2",
    __m256i,
    _mm256_stream_si256,
    _mm256_set1_epi64x,
    _mm256_xor_si256,
    _mm256_add_epi64,
    _mm256_mul_epu32,
    _mm256_shuffle_epi32,
    _mm256_srli_epi64,
    _mm256_slli_epi64
);
kernels!(
    avx512,
    "avx512f",
    __m512i,
    _mm512_stream_si512,
    _mm512_set1_epi64,
    _mm512_xor_si512,
    _mm512_add_epi64,
    _mm512_mul_epu32,
    _mm512_shuffle_epi32,
    _mm512_srli_epi64,
    _mm512_slli_epi64
);
