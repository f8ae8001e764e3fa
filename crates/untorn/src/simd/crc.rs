//! CRC-32C (Castagnoli). Source: RFC 3720, appendix B.4.

use crc_fast::CrcAlgorithm;

#[cfg(target_arch = "x86_64")]
use super::crc_fold;
use super::{Crc32c, Way};
use crate::sys::FirstUse;

/// The polynomial, its bits reversed.
pub(super) const POLYNOMIAL: u32 = 0x82f6_3b78;

/// What a byte does to the sum, if 0 to 7 bytes follow it before the sum is looked at.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut behind = 1;
    while behind < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[behind - 1][byte];
            tables[behind][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        behind += 1;
    }
    tables
}

/// The CRC-32C of some bytes.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if crc_fold::suits() {
        // SAFETY: the CPU has just been found to have what it takes.
        return unsafe { crc_fold::crc32c(bytes) };
    }
    by_library(bytes)
}

fn by_library(bytes: &[u8]) -> u32 {
    // Of an algorithm of 32 bits the upper half is zero.
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// See [`crc32c_ways`](super::crc32c_ways).
pub(super) fn ways() -> Vec<Way<Crc32c>> {
    static NAME: FirstUse<String> = FirstUse::new();
    let name = NAME.get(|| crc_fast::get_calculator_target(CrcAlgorithm::Crc32Iscsi));
    let mut ways: Vec<Way<Crc32c>> = Vec::new();
    #[cfg(target_arch = "x86_64")]
    if crc_fold::suits() {
        ways.push(Way { name: "x86_64-avx2-vpclmulqdq", run: crc32c });
    }
    ways.push(Way { name, run: by_library });
    ways.push(Way { name: "portable", run: crc32c_portable });
    ways
}

/// The reference: eight bytes at a time, by tables.
fn crc32c_portable(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut crc = u32::MAX;
    for word in words {
        let word = u64::from_le_bytes(*word) ^ u64::from(crc);
        crc = 0;
        for (behind, byte) in word.to_be_bytes().into_iter().enumerate() {
            crc ^= TABLES[behind][usize::from(byte)];
        }
    }
    for byte in rest {
        crc = crc >> 8 ^ TABLES[0][usize::from(*byte ^ crc as u8)];
    }
    !crc
}
