//! The contents of the store: names, objects, parts of snapshots, and the ownership record.

pub(crate) mod body;
pub(crate) mod bundle;
pub(crate) mod object;
pub(crate) mod part;
pub(crate) mod record;

use std::fmt::Write;

/// A checksum, and as long as a nonce and a token.
pub(crate) type Sum = [u8; 16];

/// Bytes that an object has at most, with its header and its checksum.
pub(crate) const LONGEST: u64 = object::MOST + 4096;

/// The name of the ownership record.
pub(crate) const OWNER: &str = "owner";

/// The place of an object in the chain. Places are ordered as the chain is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub(crate) struct Place {
    /// The epoch of its writer.
    pub(crate) epoch: u64,
    /// Its number in the epoch, from 1.
    pub(crate) seq: u64,
}

impl Place {
    /// The place after it in the same epoch.
    pub(crate) fn next(self) -> Self {
        // A forged number must not overflow; no object has such a name.
        Place { seq: self.seq.saturating_add(1), ..self }
    }

    /// The name of its object.
    pub(crate) fn object(self) -> String {
        format!("o/{:016x}/{:016x}", self.epoch, self.seq)
    }
}

/// The name of a part of a snapshot. Each attempt at a snapshot has another number in its epoch, so that no name is
/// used twice.
pub(crate) fn part_name(epoch: u64, attempt: u64, index: u64) -> String {
    format!("p/{epoch:016x}/{attempt:08x}/{index:08x}")
}

/// The checksum of bytes: XXH3 with 128 bits.
pub(crate) fn sum_of(bytes: &[u8]) -> Sum {
    twox_hash::XxHash3_128::oneshot(bytes).to_le_bytes()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// 16 bytes as hexadecimal digits in JSON.
pub(crate) mod hex16 {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8; 16], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::hex(bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 16], D::Error> {
        let text = String::deserialize(deserializer)?;
        // A sign would be taken as part of a number.
        let is_plain = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = if is_plain { u128::from_str_radix(&text, 16).ok() } else { None };
        number.map(u128::to_be_bytes).ok_or_else(|| D::Error::custom("it has no 32 hexadecimal digits"))
    }
}

/// Takes little-endian numbers off untrusted bytes.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}
