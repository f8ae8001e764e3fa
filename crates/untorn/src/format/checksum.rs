//! XXH3-64, with a path of our own for the lengths of the shortest write: a record's line and one slice.
//!
//! Between the fence of one write and the first store of the next every instruction counts, for the CPU looks only a
//! few hundred ahead. For 33 to 64 bytes XXH3 is four multiplications; spelt out, they take half the instructions of
//! the library's one function for all lengths. The result is the same, and the tests hold it to the library's.

use twox_hash::XxHash3_64;

/// The first words of XXH3's default secret, which are all that inputs of up to 64 bytes meet.
const SECRET: [u64; 8] = [
    0xbe4b_a423_396c_feb8,
    0x1cad_21f7_2c81_017c,
    0xdb97_9083_e96d_d4de,
    0x1f67_b3b7_a4a4_4072,
    0x78e5_c0cc_4ee6_79cb,
    0x2172_ffcc_7dd0_5a82,
    0x8e24_43f7_7446_08b8,
    0x4c26_3a81_e690_35e0,
];
const PRIME: u64 = 0x9e37_79b1_85eb_ca87;
const AVALANCHE: u64 = 0x1656_6791_9e37_79f9;

/// XXH3-64 of these bytes with this seed.
#[inline(always)]
pub(crate) fn xxh3(seed: u64, bytes: &[u8]) -> u64 {
    match (bytes.first_chunk(), bytes.last_chunk()) {
        (Some(head), Some(tail)) if (33..=64).contains(&bytes.len()) => short(seed, bytes.len(), head, tail),
        _ => XxHash3_64::oneshot_with_seed(seed, bytes),
    }
}

/// Puts the checksum of all bytes before the last eight into these eight.
pub(crate) fn seal(seed: u64, bytes: &mut [u8]) {
    if let Some((covered, check)) = bytes.split_last_chunk_mut() {
        *check = xxh3(seed, covered).to_le_bytes();
    }
}

/// Whether the last eight bytes are the checksum of all before them.
pub(crate) fn is_sealed(seed: u64, bytes: &[u8]) -> bool {
    bytes.split_last_chunk().is_some_and(|(covered, check)| *check == xxh3(seed, covered).to_le_bytes())
}

/// The case of 33 to 64 bytes, by their first 32 and their last 32, which may overlap.
#[inline(always)]
fn short(seed: u64, len: usize, head: &[u8; 32], tail: &[u8; 32]) -> u64 {
    let mixed = (len as u64)
        .wrapping_mul(PRIME)
        .wrapping_add(mix(seed, head, 16, 4))
        .wrapping_add(mix(seed, tail, 0, 6))
        .wrapping_add(mix(seed, head, 0, 0))
        .wrapping_add(mix(seed, tail, 16, 2));
    let folded = (mixed ^ (mixed >> 37)).wrapping_mul(AVALANCHE);
    folded ^ (folded >> 32)
}

/// Sixteen bytes from `at` on with the two words of the secret from `secret` on.
#[inline(always)]
fn mix(seed: u64, bytes: &[u8; 32], at: usize, secret: usize) -> u64 {
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(word)
    };
    let low = word(at) ^ SECRET[secret].wrapping_add(seed);
    let high = word(at + 8) ^ SECRET[secret + 1].wrapping_sub(seed);
    let product = u128::from(low) * u128::from(high);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_checksum_equals_the_reference_library(seed: u64, bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(xxh3(seed, &bytes), XxHash3_64::oneshot_with_seed(seed, &bytes));
        }
    }

    #[test]
    fn each_length_about_the_short_ones_is_what_the_library_says() {
        let bytes: Vec<u8> = (0..80).map(|n: u8| n.wrapping_mul(37) ^ 0x5a).collect();
        for len in 0..=bytes.len() {
            for seed in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef] {
                let bytes = &bytes[..len];
                assert_eq!(xxh3(seed, bytes), XxHash3_64::oneshot_with_seed(seed, bytes), "{len} bytes, seed {seed}");
            }
        }
    }
}
