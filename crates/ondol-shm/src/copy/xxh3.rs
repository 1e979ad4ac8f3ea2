//! XXH3 of 64 bits, with seed 0 and the default secret, as the
//! [specification of xxHash](https://github.com/Cyan4973/xxHash/blob/v0.8.3/doc/xxhash_spec.md) describes it.
//!
//! It is written out here for two reasons. A copy that sums what it copies needs each stripe while it is in registers, and no
//! library hands that out. And what libraries compile for any x86-64 processor has half the speed of AVX2, which has to be
//! looked for when the program runs. The steps that cost time are in `x86.rs`; here are the others, and all of them for
//! other processors. Input of up to 240 bytes goes another way in XXH3, which is left to `xxhash-rust`.

/// Bytes that are mixed into the lanes in one step.
pub(super) const STRIPE: usize = 64;

/// Bytes after which the lanes are scrambled: the secret has a key of its own for that many stripes.
pub(super) const BLOCK: usize = 1024;

/// The longest input that is not made of stripes.
const LONGEST_SHORT: usize = 240;

pub(super) type Stripe = [u8; STRIPE];
pub(super) type Lanes = [u64; 8];

pub(super) const PRIME32_1: u64 = 0x9e37_79b1;
const PRIME32_2: u64 = 0x85eb_ca77;
const PRIME32_3: u64 = 0xc2b2_ae3d;
const PRIME64_1: u64 = 0x9e37_79b1_85eb_ca87;
const PRIME64_2: u64 = 0xc2b2_ae3d_27d4_eb4f;
const PRIME64_3: u64 = 0x1656_67b1_9e37_79f9;
const PRIME64_4: u64 = 0x85eb_ca77_c2b2_ae63;
const PRIME64_5: u64 = 0x27d4_eb2f_1656_67c5;
const PRIME_MX1: u64 = 0x1656_6791_9e37_79f9;

pub(super) const INITIAL: Lanes = [
    PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1,
];

#[rustfmt::skip]
const SECRET: [u8; 192] = [
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
];

/// The key at byte `at` of the secret.
const fn key(at: usize) -> Lanes {
    let mut lanes = [0; 8];
    let mut lane = 0;
    while lane < 8 {
        let mut byte = 8;
        while byte > 0 {
            byte -= 1;
            lanes[lane] = lanes[lane] << 8 | SECRET[at + lane * 8 + byte] as u64;
        }
        lane += 1;
    }
    lanes
}

/// The key of each stripe of a block.
pub(super) const KEYS: [Lanes; BLOCK / STRIPE] = {
    let mut keys = [[0; 8]; BLOCK / STRIPE];
    let mut stripe = 0;
    while stripe < keys.len() {
        keys[stripe] = key(stripe * 8);
        stripe += 1;
    }
    keys
};
pub(super) const SCRAMBLE_KEY: Lanes = key(SECRET.len() - STRIPE);
const LAST_KEY: Lanes = key(SECRET.len() - STRIPE - 7);
const MERGE_KEY: Lanes = key(11);

/// The xxh3-64 of input that has no stripes; `None` for a longer one.
pub(super) fn short(bytes: &[u8]) -> Option<u64> {
    (bytes.len() <= LONGEST_SHORT).then(|| xxhash_rust::xxh3::xxh3_64(bytes))
}

/// How many stripes of `len` bytes are mixed in one after the other. The last 1 to 64 bytes are not among them.
pub(super) fn stripes(len: usize) -> usize {
    (len - 1) / STRIPE
}

/// The xxh3-64 of `bytes`, which are not [`short`], once their [`stripes`] are mixed into `lanes`.
pub(super) fn finish(mut lanes: Lanes, bytes: &[u8]) -> u64 {
    if let Some(last) = bytes.last_chunk() {
        mix(&mut lanes, last, &LAST_KEY);
    }
    let (pairs, _) = lanes.as_chunks::<2>();
    let (keys, _) = MERGE_KEY.as_chunks::<2>();
    let folds = pairs.iter().zip(keys).map(|(lanes, key)| {
        let product = u128::from(lanes[0] ^ key[0]) * u128::from(lanes[1] ^ key[1]);
        product as u64 ^ (product >> 64) as u64
    });
    let len = bytes.len() as u64;
    let mut sum = folds.fold(len.wrapping_mul(PRIME64_1), u64::wrapping_add);
    sum ^= sum >> 37;
    sum = sum.wrapping_mul(PRIME_MX1);
    sum ^ (sum >> 32)
}

fn mix(lanes: &mut Lanes, stripe: &Stripe, key: &Lanes) {
    let (words, _) = stripe.as_chunks::<8>();
    for lane in 0..8 {
        let keyed = u64::from_le_bytes(words[lane]) ^ key[lane];
        let product = u64::from(keyed as u32) * (keyed >> 32);
        let other = u64::from_le_bytes(words[lane ^ 1]);
        lanes[lane] = lanes[lane].wrapping_add(other).wrapping_add(product);
    }
}

/// The xxh3-64 of `bytes`, on any processor.
#[cfg(any(test, not(target_arch = "x86_64")))]
pub(super) fn portable(bytes: &[u8]) -> u64 {
    if let Some(sum) = short(bytes) {
        return sum;
    }
    let mut lanes = INITIAL;
    let (all, _) = bytes.as_chunks::<STRIPE>();
    for block in all[..stripes(bytes.len())].chunks(KEYS.len()) {
        for (stripe, key) in block.iter().zip(&KEYS) {
            mix(&mut lanes, stripe, key);
        }
        if block.len() == KEYS.len() {
            for (lane, key) in lanes.iter_mut().zip(SCRAMBLE_KEY) {
                *lane = ((*lane ^ (*lane >> 47)) ^ key).wrapping_mul(PRIME32_1);
            }
        }
    }
    finish(lanes, bytes)
}
