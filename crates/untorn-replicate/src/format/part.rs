//! A part of a snapshot: a piece of the file that begins at a multiple of the part size.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic, `UNTORNPT` |
//! | 8 | 1 | version, 1 |
//! | 9 | 1 | compression: 0 none, 1 LZ4 block |
//! | 10 | 6 | zero |
//! | 16 | 16 | nonce |
//! | 32 | 8 | length of the piece |
//! | 40 | | the piece as stored |
//! | end | 16 | checksum of all before it, and of the part's name |
//!
//! The name is in the checksum so that a part never stands for another one.

use super::object::{compress, decompress};
use super::{Input, Sum};
use crate::error::{Error, Result};

const MAGIC: &[u8; 8] = b"UNTORNPT";
const HEADER: usize = 40;
const SUM: usize = 16;

/// Bytes of the file that a part has at most.
pub(crate) const PART: u64 = 4 << 20;

/// The checksum of a part of this name.
fn sum_with(name: &str, bytes: &[u8]) -> Sum {
    let mut hasher = twox_hash::XxHash3_128::new();
    hasher.write(bytes);
    hasher.write(name.as_bytes());
    hasher.finish_128().to_le_bytes()
}

/// The bytes of the part of this name.
pub(crate) fn encode(name: &str, piece: &[u8], nonce: &[u8; 16]) -> Vec<u8> {
    let (way, packed) = compress(piece);
    let stored = packed.as_deref().unwrap_or(piece);
    let mut bytes = Vec::with_capacity(HEADER + stored.len() + SUM);
    bytes.extend(MAGIC);
    bytes.extend([1, way, 0, 0, 0, 0, 0, 0]);
    bytes.extend(nonce);
    bytes.extend((piece.len() as u64).to_le_bytes());
    bytes.extend(stored);
    let sum = sum_with(name, &bytes);
    bytes.extend(sum);
    bytes
}

/// Reads the part of this name.
///
/// # Errors
/// [`Error::Corrupt`], [`Error::Unsupported`].
pub(crate) fn decode(name: &str, bytes: &[u8]) -> Result<Vec<u8>> {
    let corrupt = |what: &str| Error::Corrupt { name: name.to_owned(), what: what.to_owned() };
    let end = bytes.len().checked_sub(SUM).filter(|end| *end >= HEADER).ok_or_else(|| corrupt("it is too short"))?;
    let mut input = Input(&bytes[8..HEADER]);
    let ([version, way, ..], Some(_)) = (input.array::<8>().unwrap_or_default(), input.array::<16>()) else {
        return Err(corrupt("it is too short"));
    };
    let len = input.u64().unwrap_or_default();
    if bytes[..8] != *MAGIC {
        return Err(corrupt("it does not begin as a part of a snapshot"));
    }
    if version != 1 {
        return Err(Error::Unsupported { name: name.to_owned(), what: format!("version {version}") });
    }
    if sum_with(name, &bytes[..end]) != bytes[end..] {
        return Err(corrupt("its checksum does not match its bytes"));
    }
    decompress(way, &bytes[HEADER..end], len).map_err(|what| corrupt(&what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_reads_back_and_every_change_is_noticed() {
        let piece: Vec<u8> = (0..1000u32).map(|index| (index / 7) as u8).collect();
        let bytes = encode("x", &piece, &[9; 16]);
        assert_eq!(decode("x", &bytes).unwrap(), piece);
        assert!(decode("y", &bytes).is_err(), "it stands for another part");
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(decode("x", &changed).is_err(), "byte {at}");
            assert!(decode("x", &bytes[..at]).is_err(), "length {at}");
        }
    }
}
