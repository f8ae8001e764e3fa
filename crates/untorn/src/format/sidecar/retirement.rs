//! The retirement line: the number up to which the bitmaps have all records, and the session that may write records.
//!
//! There are two copies in different sectors, written alternately; the valid one with the higher sequence number
//! counts. Writing one retires records in a single 64-byte step: every record numbered up to `checkpoint` is dead,
//! and so is every record sealed in another session.

use std::path::Path;

use twox_hash::XxHash3_64;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{MAX_LEN, MAX_NUMBER_AT_OPEN, PAGE};
use crate::error::{Error, Result};
use crate::storage::MediumFile;

/// Byte offsets of the two copies: 512 apart, so that a torn page harms one at most.
const AT: [u64; 2] = [2 * PAGE, 2 * PAGE + 512];

/// What the line holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Retirement {
    pub(crate) seq: u64,
    /// Records up to this number stand in the bitmaps.
    pub(crate) checkpoint: u64,
    /// Length of the data file at the checkpoint.
    pub(crate) len: u64,
    /// Grows at every open for writing.
    pub(crate) session: u64,
    /// Length of the sidecar at the checkpoint: it never shrinks, so a shorter one was cut off.
    pub(crate) side_len: u64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    seq: U64,
    checkpoint: U64,
    len: U64,
    session: U64,
    side_len: U64,
    reserved: [u8; 16],
    check: U64,
}

const _: () = assert!(size_of::<Raw>() == 64);

impl Retirement {
    fn encode(&self, uuid: &[u8; 16]) -> [u8; 64] {
        let raw = Raw {
            seq: self.seq.into(),
            checkpoint: self.checkpoint.into(),
            len: self.len.into(),
            session: self.session.into(),
            side_len: self.side_len.into(),
            reserved: [0; 16],
            check: 0.into(),
        };
        let mut bytes: [u8; 64] = zerocopy::transmute!(raw);
        let check = Self::check(&bytes, uuid);
        bytes[56..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    fn check(bytes: &[u8; 64], uuid: &[u8; 16]) -> u64 {
        XxHash3_64::oneshot_with_seed(XxHash3_64::oneshot(uuid), &bytes[..56])
    }

    fn decode(bytes: &[u8; 64], uuid: &[u8; 16]) -> Option<Self> {
        let raw = Raw::read_from_bytes(bytes).ok()?;
        (Self::check(bytes, uuid) == raw.check.get()).then(|| Retirement {
            seq: raw.seq.get(),
            checkpoint: raw.checkpoint.get(),
            len: raw.len.get(),
            session: raw.session.get(),
            side_len: raw.side_len.get(),
        })
    }

    /// Reads the copy that counts.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if neither is whole.
    pub(crate) fn read<F: MediumFile>(file: &F, path: &Path, uuid: &[u8; 16]) -> Result<Self> {
        let mut best: Option<Retirement> = None;
        for at in AT {
            if file.len() < at + 64 {
                break;
            }
            let mut bytes = [0; 64];
            file.read(at, &mut bytes)?;
            if let Some(found) = Self::decode(&bytes, uuid)
                && best.is_none_or(|best| found.seq > best.seq)
            {
                best = Some(found);
            }
        }
        let corrupt = |what: String| Error::Corrupt { path: path.to_owned(), offset: Some(AT[0]), what };
        let best = best.ok_or_else(|| corrupt("neither retirement line is valid".to_owned()))?;
        if best.len > MAX_LEN
            || [best.seq, best.checkpoint, best.session].iter().any(|&number| number > MAX_NUMBER_AT_OPEN)
        {
            return Err(corrupt(format!("the retirement line has impossible values: {best:?}")));
        }
        if file.len() < best.side_len {
            return Err(corrupt(format!(
                "the sidecar was truncated: it has {} bytes and had \
                                        {}",
                file.len(),
                best.side_len
            )));
        }
        Ok(best)
    }

    /// Writes this as the newer copy, over the older one. Durable at the next fence.
    pub(crate) fn write<F: MediumFile>(&mut self, file: &F, uuid: &[u8; 16]) -> Result<()> {
        self.seq += 1;
        self.side_len = file.len();
        file.write(AT[(self.seq % 2) as usize], &self.encode(uuid))
    }
}
