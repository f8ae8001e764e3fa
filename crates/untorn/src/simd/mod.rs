//! Checksums and parity by what the CPU was found to have, beside a portable path that gives the same.
//!
//! Each has several *ways*: those that use instructions of some CPUs, and one that any has. [`crc32c_ways`] and
//! [`parity_ways`] give those that this CPU can go, the one that is used first, so that they can be held against each other
//! and measured (`untorn bench redundancy-kernels`).
//!
//! # Safety
//! Each unsafe call runs a function compiled for instructions that the CPU was asked for just before.
#![allow(unsafe_code)]

mod crc;
#[cfg(target_arch = "x86_64")]
mod crc_fold;
mod parity;

pub(crate) use crc::crc32c;
pub(crate) use parity::{parity, xor};

/// One of several ways to compute something. All of them give the same.
#[derive(Clone, Copy, Debug)]
pub struct Way<F> {
    /// What it uses: "x86_64-avx512-vpclmulqdq", "avx2", "portable" and the like.
    pub name: &'static str,
    /// The function.
    pub run: F,
}

/// The CRC-32C of some bytes.
pub type Crc32c = fn(&[u8]) -> u32;

/// Fills the first with the exclusive or of the others, which are as long as it.
pub type Parity = fn(&mut [u8], &[&[u8]]);

/// Reads bytes and gives the exclusive or of their words of 8, the last filled up with zeros.
pub type Read = fn(&[u8]) -> u64;

/// The ways to compute a CRC-32C on this CPU. The first is the one that is used.
///
/// ```
/// for way in untorn::simd::crc32c_ways() {
///     assert_eq!((way.run)(b"123456789"), 0xe306_9283, "{}", way.name);
/// }
/// ```
pub fn crc32c_ways() -> Vec<Way<Crc32c>> {
    crc::ways()
}

/// The ways to compute parity on this CPU. The first is the one that is used.
///
/// ```
/// for way in untorn::simd::parity_ways() {
///     let mut parity = [0; 3];
///     (way.run)(&mut parity, &[&[1, 2, 3], &[1, 1, 1]]);
///     assert_eq!(parity, [0, 3, 2], "{}", way.name);
/// }
/// ```
pub fn parity_ways() -> Vec<Way<Parity>> {
    parity::ways()
}

/// The ways to read memory on this CPU and do nothing else, the widest first: what the others are measured against.
///
/// ```
/// assert_eq!((untorn::simd::read_ways()[0].run)(&[7; 16]), 0);
/// ```
pub fn read_ways() -> Vec<Way<Read>> {
    parity::read_ways()
}
