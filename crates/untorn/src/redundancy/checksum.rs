//! The checksum of a page.

use twox_hash::XxHash3_64;

use crate::options::Checksum;
use crate::simd::crc32c;

impl Checksum {
    /// Of these bytes.
    pub(crate) fn of(self, bytes: &[u8]) -> u64 {
        match self {
            Checksum::Crc32c => u64::from(crc32c(bytes)),
            Checksum::Xxh3 => XxHash3_64::oneshot(bytes),
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
