//! An object of the chain: a header, a body that may be compressed, and a checksum over both.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic, `UNTORNRP` |
//! | 8 | 2 | version, 1 |
//! | 10 | 1 | kind: 1 commits, 2 snapshot, 3 seal |
//! | 11 | 1 | compression of the body: 0 none, 1 LZ4 block |
//! | 12 | 4 | zero |
//! | 16 | 16 | the replica |
//! | 32 | 16 | place: epoch, number |
//! | 48 | 24 | previous commit, first and last commit of the object |
//! | 72 | 8 | time of the last commit, nanoseconds since 1970; 0 if unknown |
//! | 80 | 16 | checksum of the object before |
//! | 96 | 16 | nonce: stores give identical bytes an identical version |
//! | 112 | 16 | length of the body as stored, and as it is |
//! | 128 | | body |
//! | end | 16 | checksum of all before it, which the next object names |
//!
//! All numbers are little-endian.

use super::{Input, Place, Sum, sum_of};
use crate::error::{Error, Result};

const MAGIC: &[u8; 8] = b"UNTORNRP";
const VERSION: u16 = 1;
const HEADER: usize = 128;
const SUM: usize = 16;
/// Bytes that a body may have when it is decompressed. A writer stays far below.
pub(crate) const MOST: u64 = 1 << 30;

/// A byte of an LZ4 block stands for so many bytes at most.
const LZ4_RATIO: u64 = 255;

/// The contents of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// Commits that follow those before it.
    Commits,
    /// A whole file, in parts of their own.
    Snapshot,
    /// The end of an epoch: the writer of a later one made it.
    Seal,
}

/// The header of an object without what follows from its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) replica: [u8; 16],
    pub(crate) place: Place,
    /// The commit that the state before has.
    pub(crate) previous: u64,
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) time: u64,
    /// The checksum of the object before.
    pub(crate) before: Sum,
    pub(crate) nonce: [u8; 16],
}

/// An object that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) header: Header,
    pub(crate) body: Vec<u8>,
    /// The checksum that the next object names.
    pub(crate) sum: Sum,
    /// Bytes that it has in the store.
    pub(crate) stored: u64,
}

/// Compresses bytes if that makes them shorter: the way, and the bytes.
pub(crate) fn compress(bytes: &[u8]) -> (u8, Option<Vec<u8>>) {
    let packed = lz4_flex::block::compress(bytes);
    if packed.len() < bytes.len() { (1, Some(packed)) } else { (0, None) }
}

/// Takes the compression back.
pub(crate) fn decompress(way: u8, stored: &[u8], len: u64) -> std::result::Result<Vec<u8>, String> {
    match way {
        0 if stored.len() as u64 == len => Ok(stored.to_vec()),
        // No block gets longer than that, so a false length allocates no more than what was read accounts for.
        1 if len <= MOST && len / LZ4_RATIO <= stored.len() as u64 => {
            let len = len as usize;
            let raw = lz4_flex::block::decompress(stored, len).map_err(|error| error.to_string())?;
            if raw.len() == len { Ok(raw) } else { Err("it decompresses to another length".to_owned()) }
        }
        0 | 1 => Err("its body has an impossible length".to_owned()),
        other => Err(format!("it has the unknown compression {other}")),
    }
}

/// The bytes of an object, and its checksum.
pub(crate) fn encode(header: &Header, body: &[u8]) -> (Vec<u8>, Sum) {
    let (way, packed) = compress(body);
    let stored = packed.as_deref().unwrap_or(body);
    let mut bytes = Vec::with_capacity(HEADER + stored.len() + SUM);
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    let kind = match header.kind {
        Kind::Commits => 1,
        Kind::Snapshot => 2,
        Kind::Seal => 3,
    };
    bytes.extend([kind, way, 0, 0, 0, 0]);
    bytes.extend(header.replica);
    let Place { epoch, seq } = header.place;
    for number in [epoch, seq, header.previous, header.first, header.last, header.time] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(header.before);
    bytes.extend(header.nonce);
    bytes.extend((stored.len() as u64).to_le_bytes());
    bytes.extend((body.len() as u64).to_le_bytes());
    bytes.extend(stored);
    let sum = sum_of(&bytes);
    bytes.extend(sum);
    (bytes, sum)
}

/// Reads an object that has this name.
///
/// # Errors
/// [`Error::Corrupt`], [`Error::Unsupported`].
pub(crate) fn decode(name: &str, bytes: &[u8]) -> Result<Object> {
    let corrupt = |what: &str| Error::Corrupt { name: name.to_owned(), what: what.to_owned() };
    let short = || corrupt("it is too short");
    let mut input = Input(bytes);
    if input.bytes(8).ok_or_else(short)? != MAGIC {
        return Err(corrupt("it does not begin as an object of a replica"));
    }
    let version = u16::from_le_bytes(input.array().ok_or_else(short)?);
    if version != VERSION {
        return Err(Error::Unsupported { name: name.to_owned(), what: format!("version {version}") });
    }
    let end = bytes.len().checked_sub(SUM).filter(|end| *end >= HEADER).ok_or_else(short)?;
    let sum = sum_of(&bytes[..end]);
    if sum != bytes[end..] {
        return Err(corrupt("its checksum does not match its bytes"));
    }
    let [kind, way, ..] = input.array::<6>().ok_or_else(short)?;
    let kind = match kind {
        1 => Kind::Commits,
        2 => Kind::Snapshot,
        3 => Kind::Seal,
        other => return Err(Error::Unsupported { name: name.to_owned(), what: format!("the kind {other}") }),
    };
    let replica = input.array().ok_or_else(short)?;
    let mut number = || input.u64().ok_or_else(short);
    let place = Place { epoch: number()?, seq: number()? };
    let (previous, first, last, time) = (number()?, number()?, number()?, number()?);
    let before = input.array().ok_or_else(short)?;
    let nonce = input.array().ok_or_else(short)?;
    let (stored, len) = (input.u64().ok_or_else(short)?, input.u64().ok_or_else(short)?);
    let packed = &bytes[HEADER..end];
    if packed.len() as u64 != stored {
        return Err(corrupt("its body has another length than its header says"));
    }
    let body = decompress(way, packed, len).map_err(|what| corrupt(&what))?;
    let header = Header { kind, replica, place, previous, first, last, time, before, nonce };
    Ok(Object { header, body, sum, stored: bytes.len() as u64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let place = Place { epoch: 3, seq: 1 << 40 };
        let (replica, before, nonce) = ([1; 16], [2; 16], [3; 16]);
        Header { kind: Kind::Commits, replica, place, previous: 4, first: 5, last: u64::MAX, time: 6, before, nonce }
    }

    #[test]
    fn an_object_reads_back_as_it_was_written() {
        for body in [vec![], vec![7; 100_000], (0..=255).collect::<Vec<u8>>()] {
            let (bytes, sum) = encode(&header(), &body);
            let object = decode("x", &bytes).unwrap();
            assert_eq!((object.header, object.body, object.sum), (header(), body, sum));
        }
    }

    #[test]
    fn every_changed_or_missing_byte_is_noticed() {
        let (bytes, _) = encode(&header(), &[7; 300]);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            assert!(decode("x", &changed).is_err(), "byte {at}");
            assert!(decode("x", &bytes[..at]).is_err(), "length {at}");
        }
    }

    #[test]
    fn a_false_length_with_a_right_checksum_is_refused() {
        let (bytes, _) = encode(&header(), &[7; 300]);
        for len in [0, 299, 301, MOST, u64::MAX] {
            let mut changed = bytes[..bytes.len() - SUM].to_vec();
            changed[120..128].copy_from_slice(&u64::to_le_bytes(len));
            let sum = sum_of(&changed);
            changed.extend(sum);
            assert!(matches!(decode("x", &changed), Err(Error::Corrupt { .. })), "{len}");
        }
    }
}
