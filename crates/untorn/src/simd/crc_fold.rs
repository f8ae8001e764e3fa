//! CRC-32C by folding in 32-byte registers, for CPUs with VPCLMULQDQ but without AVX-512 (for AVX-512 the `crc` library
//! has its own way). Source: "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Gopal et al.,
//! Intel, 2009.
//!
//! A message is a polynomial over bits, and its CRC is the remainder. 16 bytes that are *d* bits before 16 others can
//! be replaced by their product with the remainder of x^d, added to the others. So the code folds each 256 bytes into
//! the next 256, and the CRC instruction sums the last ones, even if they are shorter.

use std::arch::is_x86_feature_detected;
use std::arch::x86_64::{
    __m256i, _MM_HINT_T0, _mm_crc32_u8, _mm_crc32_u64, _mm_prefetch, _mm256_clmulepi64_epi128, _mm256_loadu_si256,
    _mm256_set_epi64x, _mm256_setzero_si256, _mm256_xor_si256,
};

use super::crc::POLYNOMIAL;

/// Bytes of a register.
const WIDE: usize = 32;
/// Registers that are folded at once: as many products as the CPU has under way.
const REGISTERS: usize = 8;
const BLOCK: usize = WIDE * REGISTERS;
/// Bytes ahead that are fetched. The CPU fetches by itself to the end of a page and no further, and pages mostly
/// follow each other.
const AHEAD: usize = 1024;

/// Bits from where 16 bytes stand to where they are folded to.
const DISTANCE: u32 = 8 * BLOCK as u32;
/// What the second half of 16 bytes is multiplied by, and the first. The product of two numbers with their bits
/// reversed is reversed and one bit short, so the factors have that one.
const SECOND: i64 = power(DISTANCE - 32);
const FIRST: i64 = power(DISTANCE + 32);

/// The remainder of x^n, its bits reversed, doubled.
const fn power(n: u32) -> i64 {
    let mut power: u32 = 1 << 31;
    let mut done = 0;
    while done < n {
        power = power >> 1 ^ if power & 1 == 1 { POLYNOMIAL } else { 0 };
        done += 1;
    }
    (power as i64) << 1
}

/// Whether this is the way of this CPU.
pub(super) fn suits() -> bool {
    is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("sse4.2")
        && !is_x86_feature_detected!("avx512vl")
}

/// The CRC-32C of some bytes.
///
/// # Safety
/// The CPU has VPCLMULQDQ, AVX2 and SSE4.2.
#[target_feature(enable = "vpclmulqdq,avx2,sse4.2")]
pub(super) unsafe fn crc32c(bytes: &[u8]) -> u32 {
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    let mut crc = u64::from(u32::MAX);
    if let Some((first, blocks)) = blocks.split_first() {
        let factors = _mm256_set_epi64x(SECOND, FIRST, SECOND, FIRST);
        let mut folded = [_mm256_setzero_si256(); REGISTERS];
        for (nth, register) in folded.iter_mut().enumerate() {
            *register = load(first, nth);
        }
        folded[0] = _mm256_xor_si256(folded[0], _mm256_set_epi64x(0, 0, 0, crc as i64));
        for block in blocks {
            for line in 0..BLOCK / 64 {
                let ahead = block.as_ptr().wrapping_add(AHEAD + line * 64).cast();
                // SAFETY: a prefetch is a hint: it accesses no memory, and any address is allowed.
                #[allow(unused_unsafe, reason = "the oldest Rust that compiles this declares the function unsafe")]
                unsafe {
                    _mm_prefetch::<_MM_HINT_T0>(ahead);
                }
            }
            for (nth, register) in folded.iter_mut().enumerate() {
                let low = _mm256_clmulepi64_epi128::<0x00>(*register, factors);
                let high = _mm256_clmulepi64_epi128::<0x11>(*register, factors);
                *register = _mm256_xor_si256(_mm256_xor_si256(low, high), load(block, nth));
            }
        }
        // SAFETY: as long, and plain bits.
        let words: [u64; BLOCK / 8] = unsafe { std::mem::transmute(folded) };
        crc = words.into_iter().fold(0, |crc, word| _mm_crc32_u64(crc, word));
    }
    let (words, rest) = rest.as_chunks::<8>();
    crc = words.iter().fold(crc, |crc, word| _mm_crc32_u64(crc, u64::from_le_bytes(*word)));
    !rest.iter().fold(crc as u32, |crc, byte| _mm_crc32_u8(crc, *byte))
}

/// The `nth` 32 bytes of a block.
#[inline]
#[target_feature(enable = "avx2")]
fn load(block: &[u8; BLOCK], nth: usize) -> __m256i {
    let (registers, _) = block.as_chunks::<WIDE>();
    // SAFETY: 32 bytes, anywhere.
    unsafe { _mm256_loadu_si256(registers[nth].as_ptr().cast()) }
}
