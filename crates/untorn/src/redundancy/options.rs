//! What may be chosen about redundancy.

use std::fmt;
use std::str::FromStr;

use twox_hash::XxHash3_64;

use crate::simd::crc32c;

/// The checksum of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// CRC-32C (Castagnoli), with the CPU's own instructions where it has them. Any one burst of up to 32 flipped bits is
    /// noticed for certain, anything else but once in 2³² times.
    #[default]
    Crc32c,
    /// XXH3, 64 bits: damage goes unnoticed once in 2⁶⁴ times.
    Xxh3,
}

impl Checksum {
    /// Of these bytes.
    pub(crate) fn of(self, bytes: &[u8]) -> u64 {
        match self {
            Checksum::Crc32c => u64::from(crc32c(bytes)),
            Checksum::Xxh3 => XxHash3_64::oneshot(bytes),
        }
    }
}

/// Which pages share a parity page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StripeLayout {
    /// Neighbours: what a program stores to neighbours costs one parity page.
    #[default]
    Consecutive,
    /// Pages as far from each other as can be: a bad region of a device does not hit a whole stripe.
    Spread,
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Checksum::Crc32c => "crc32c",
            Checksum::Xxh3 => "xxh3",
        })
    }
}

impl FromStr for Checksum {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "crc32c" => Ok(Checksum::Crc32c),
            "xxh3" => Ok(Checksum::Xxh3),
            other => Err(format!("{other:?} is no checksum; use crc32c or xxh3")),
        }
    }
}

impl fmt::Display for StripeLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            StripeLayout::Consecutive => "consecutive",
            StripeLayout::Spread => "spread",
        })
    }
}

impl FromStr for StripeLayout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "consecutive" => Ok(StripeLayout::Consecutive),
            "spread" => Ok(StripeLayout::Spread),
            other => Err(format!("{other:?} is no layout of stripes; use consecutive or spread")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// CRC-32C as its definition has it: bit by bit. Source: RFC 3720, appendix B.4.
    fn reference(bytes: &[u8]) -> u64 {
        let mut crc = u32::MAX;
        for &byte in bytes {
            crc ^= u32::from(byte);
            for _ in 0..8 {
                crc = crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
            }
        }
        u64::from(!crc)
    }

    #[test]
    fn the_examples_of_the_standard() {
        assert_eq!(Checksum::Crc32c.of(&[0; 32]), 0x8a91_36aa);
        assert_eq!(Checksum::Crc32c.of(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(Checksum::Crc32c.of(b"123456789"), 0xe306_9283);
        assert_eq!(Checksum::Xxh3.of(&[]), 0x2d06_8005_38d3_94c2);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn crc32c_is_its_definition(bytes in proptest::collection::vec(any::<u8>(), 0..9000), skip in 0..9_usize) {
            let bytes = &bytes[skip.min(bytes.len())..];
            prop_assert_eq!(Checksum::Crc32c.of(bytes), reference(bytes));
            for way in crate::simd::crc32c_ways() {
                prop_assert_eq!(u64::from((way.run)(bytes)), reference(bytes), "{}", way.name);
            }
        }
    }
}
