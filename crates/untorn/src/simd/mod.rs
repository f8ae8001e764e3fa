//! Checksums and parity with the CPU's best instructions, and a portable path with the same results.
//!
//! Each function has several *ways*: some use instructions that only some CPUs have, and one runs on any CPU.
//! [`crc32c_ways`] and [`parity_ways`] return the ways of this CPU, the one in use first, so that they can be compared
//! and measured (`untorn bench redundancy-kernels`).
//!
//! # Safety
//! Each unsafe call runs a function compiled for instructions whose presence was checked just before.
#![allow(unsafe_code)]

mod crc;
#[cfg(target_arch = "x86_64")]
mod crc_fold;
mod parity;

pub(crate) use crc::crc32c;
pub(crate) use parity::{parity, xor};

/// One of several ways to compute something. All give the same result.
#[derive(Clone, Copy, Debug)]
pub struct Way<F> {
    /// The instructions it uses: "x86_64-avx512-vpclmulqdq", "avx2", "portable" and the like.
    pub name: &'static str,
    /// The function.
    pub run: F,
}

/// Computes the CRC-32C of some bytes.
pub type Crc32c = fn(&[u8]) -> u32;

/// Fills the first slice with the exclusive or of the others, which have the same length.
pub type Parity = fn(&mut [u8], &[&[u8]]);

/// Reads bytes and returns the exclusive or of their 8-byte words; the last word is padded with zeros.
pub type Read = fn(&[u8]) -> u64;

/// The ways to compute a CRC-32C on this CPU. The first is the one in use.
///
/// ```
/// for way in untorn::testing::simd::crc32c_ways() {
///     assert_eq!((way.run)(b"123456789"), 0xe306_9283, "{}", way.name);
/// }
/// ```
pub fn crc32c_ways() -> Vec<Way<Crc32c>> {
    crc::ways()
}

/// The ways to compute parity on this CPU. The first is the one in use.
///
/// ```
/// for way in untorn::testing::simd::parity_ways() {
///     let mut parity = [0; 3];
///     (way.run)(&mut parity, &[&[1, 2, 3], &[1, 1, 1]]);
///     assert_eq!(parity, [0, 3, 2], "{}", way.name);
/// }
/// ```
pub fn parity_ways() -> Vec<Way<Parity>> {
    parity::ways()
}

/// The ways to only read memory on this CPU, the widest first: the baseline for the other measurements.
///
/// ```
/// assert_eq!((untorn::testing::simd::read_ways()[0].run)(&[7; 16]), 0);
/// ```
pub fn read_ways() -> Vec<Way<Read>> {
    parity::read_ways()
}
