//! The retirement line: the number up to which the bitmaps have all records, and the session that may write records.
//!
//! There are two copies in different sectors, written alternately; the valid one with the higher sequence number
//! counts. Writing one retires records in a single 64-byte step: every record numbered up to `checkpoint` is dead,
//! and so is every record sealed in another session.

use std::path::Path;

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::number::Stamped;
use super::{MAX_LEN, MAX_NUMBER_AT_OPEN, PAGE};
use crate::error::{Error, Result};
use crate::format::checksum::{is_sealed, seal, xxh3};
use crate::format::dual_copy::{newest, read_both};
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
    /// When the commit of the checkpoint was made, in nanoseconds since 1970; 0 if that is not known.
    pub(crate) time: u64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    seq: U64,
    checkpoint: U64,
    len: U64,
    session: U64,
    side_len: U64,
    time: U64,
    reserved: [u8; 8],
    check: U64,
}

const _: () = assert!(size_of::<Raw>() == 64);

impl Retirement {
    fn encode(&self, uuid: &[u8; 16]) -> Raw {
        let mut raw = Raw {
            seq: self.seq.into(),
            checkpoint: self.checkpoint.into(),
            len: self.len.into(),
            session: self.session.into(),
            side_len: self.side_len.into(),
            time: self.time.into(),
            ..Raw::new_zeroed()
        };
        seal(xxh3(0, uuid), raw.as_mut_bytes());
        raw
    }

    fn decode(raw: &Raw, uuid: &[u8; 16]) -> Option<Self> {
        is_sealed(xxh3(0, uuid), raw.as_bytes()).then(|| Retirement {
            seq: raw.seq.get(),
            checkpoint: raw.checkpoint.get(),
            len: raw.len.get(),
            session: raw.session.get(),
            side_len: raw.side_len.get(),
            time: raw.time.get(),
        })
    }

    /// The number and the time of the checkpoint.
    pub(crate) fn stamped(&self) -> Stamped {
        Stamped { number: self.checkpoint, time: self.time }
    }

    /// Reads the copy that counts.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if neither is whole.
    pub(crate) fn read<F: MediumFile>(file: &F, path: &Path, uuid: &[u8; 16]) -> Result<Self> {
        let best = newest(read_both(file, AT, |_, raw| Self::decode(raw, uuid))?, |line| line.seq);
        let corrupt = |what: String| Error::Corrupt { path: path.to_owned(), offset: Some(AT[0]), what };
        let best = best.ok_or_else(|| corrupt("neither retirement line is valid".to_owned()))?;
        if best.len > MAX_LEN
            || [best.seq, best.checkpoint, best.session].iter().any(|&number| number > MAX_NUMBER_AT_OPEN)
        {
            return Err(corrupt(format!("the retirement line has impossible values: {best:?}")));
        }
        if file.len() < best.side_len {
            let (has, had) = (file.len(), best.side_len);
            return Err(corrupt(format!("the sidecar was truncated: it has {has} bytes and had {had}")));
        }
        Ok(best)
    }

    /// Whether a sidecar that calls itself fresh has been used: then a damaged superblock gave way to an older one.
    ///
    /// The first session is durable in one copy before "open" is stored, and it comes to the other copy together with
    /// "open". Nothing else is stored before both are durable. As long as a whole copy has no session, nothing was
    /// stored.
    ///
    /// # Errors
    /// As [`read`](Retirement::read).
    pub(crate) fn shows_use<F: MediumFile>(file: &F, path: &Path, uuid: &[u8; 16]) -> Result<bool> {
        Retirement::read(file, path, uuid)?;
        let lines = read_both(file, AT, |_, raw| Self::decode(raw, uuid))?;
        Ok(lines.into_iter().flatten().all(|line| line.session > 0))
    }

    /// Writes this as the newer copy, over the older one. Durable at the next fence.
    pub(crate) fn write<F: MediumFile>(&mut self, file: &F, uuid: &[u8; 16]) -> Result<()> {
        self.seq += 1;
        self.side_len = file.len();
        file.write(AT[(self.seq % 2) as usize], self.encode(uuid).as_bytes())
    }
}
