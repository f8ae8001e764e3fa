//! The layout of the log: the header of an entry, and the record of an epoch.
//!
//! Both are lines of 64 bytes. A checksum, seeded with their place and their session, proves that they are whole. An
//! entry's header has a checksum of the entry's bytes, and an epoch's record has a digest of the epoch's headers. So
//! one fence makes data, headers and record durable together, and recovery can tell whether the fence returned.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::checksum::xxh3;
use crate::format::record::{ChecksumSeed, LINE, Line};

/// What an entry's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Those of a write, which go to the file once their epoch has committed.
    Redo,
    /// Those that the file held before the epoch, which go back if it does not commit.
    Undo,
}

/// What the log says of one entry: bytes `offset..offset + len` of the cover that begins at block `block`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) epoch: u64,
    /// The first block of the cover.
    pub(super) block: u64,
    pub(super) kind: Kind,
    /// The cover has `1 << class` blocks, and the entry as many units of log.
    pub(super) class: u8,
    /// Where the bytes are, in the entry as in the cover.
    pub(super) offset: u32,
    pub(super) len: u32,
    /// Whether they stand in the lines behind the header, and not in the entry's units.
    pub(super) inline: bool,
    /// Checksum over them; `None` where they were durable before the epoch's record spoke of them.
    pub(super) sum: Option<u64>,
    /// Undo: checksum over the bytes that went to the file in their place, if they were written once.
    pub(super) after: Option<u64>,
    /// Every epoch up to this one was durable when the line was stored.
    pub(super) proves: u64,
}

/// What commits an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EpochRecord {
    pub(super) epoch: u64,
    /// The file's length.
    pub(super) len: u64,
    /// How many headers the epoch has, and the sum of their checks; `None` where everything of it was durable before
    /// the record was stored.
    pub(super) digest: Option<Digest>,
    /// Every epoch up to this one was durable when the record was stored.
    pub(super) proves: u64,
    /// When it was made, in milliseconds since 1970; 0 if that is not known.
    pub(super) time: u64,
}

/// Counts and adds up the headers of an epoch, in any order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Digest {
    pub(super) count: u64,
    pub(super) sum: u64,
}

impl Digest {
    pub(super) fn add(&mut self, check: u64) {
        self.count = self.count.wrapping_add(1);
        self.sum = self.sum.wrapping_add(check);
    }
}

const UNDO: u16 = 1;
const SUMMED: u16 = 2;
const AFTER: u16 = 4;
const INLINE: u16 = 8;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    epoch: U64,
    block: U64,
    flags: U16,
    class: u8,
    reserved: u8,
    offset: U32,
    len: U32,
    reserved_too: U32,
    sum: U64,
    after: U64,
    proves: U64,
    check: U64,
}

/// In place of the first block an epoch's record has what no header has there.
const NO_BLOCK: u64 = u64::MAX;
const DIGESTED: u64 = 1;
/// The flags of a record have its time above this bit.
const TIME_SHIFT: u32 = 16;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRecord {
    epoch: U64,
    no_block: U64,
    flags: U64,
    len: U64,
    count: U64,
    sum: U64,
    proves: U64,
    check: U64,
}

const _: () = {
    assert!(size_of::<RawHeader>() == LINE as usize);
    assert!(size_of::<RawRecord>() == LINE as usize);
    assert!(std::mem::offset_of!(RawHeader, sum) == 32);
    assert!(std::mem::offset_of!(RawHeader, check) == 56);
    assert!(std::mem::offset_of!(RawRecord, check) == 56);
};

/// The checksum over an entry's bytes.
#[inline]
pub(super) fn sum_of(bytes: &[u8]) -> u64 {
    xxh3(0, bytes)
}

/// The epoch that a line claims.
pub(super) fn epoch_of(line: &Line) -> u64 {
    RawHeader::read_from_bytes(line).map_or(0, |raw| raw.epoch.get())
}

#[inline]
fn check(checksum_seed: ChecksumSeed, at: u64, line: &Line) -> u64 {
    xxh3(checksum_seed.at(at), &line[..56])
}

#[inline]
fn seal_line(checksum_seed: ChecksumSeed, at: u64, mut line: Line) -> Line {
    let check = check(checksum_seed, at, &line);
    line[56..].copy_from_slice(&check.to_le_bytes());
    line
}

/// The check of a sealed line, which an epoch's digest adds up.
#[inline]
pub(super) fn check_of(line: &Line) -> u64 {
    RawHeader::read_from_bytes(line).map_or(0, |raw| raw.check.get())
}

impl Header {
    /// The line of the header that stands at byte `at` of the sidecar.
    #[inline]
    pub(super) fn encode(&self, checksum_seed: ChecksumSeed, at: u64) -> Line {
        let kind = if self.kind == Kind::Undo { UNDO } else { 0 };
        let summed = if self.sum.is_some() { SUMMED } else { 0 };
        let after = if self.after.is_some() { AFTER } else { 0 };
        let inline = if self.inline { INLINE } else { 0 };
        let raw = RawHeader {
            epoch: self.epoch.into(),
            block: self.block.into(),
            flags: (kind | summed | after | inline).into(),
            class: self.class,
            reserved: 0,
            offset: self.offset.into(),
            len: self.len.into(),
            reserved_too: 0.into(),
            sum: self.sum.unwrap_or(0).into(),
            after: self.after.unwrap_or(0).into(),
            proves: self.proves.into(),
            check: 0.into(),
        };
        seal_line(checksum_seed, at, zerocopy::transmute!(raw))
    }

    /// The header that stands at byte `at`; `None` if the bytes are none, or one that did not arrive whole.
    pub(super) fn decode(checksum_seed: ChecksumSeed, at: u64, line: &Line) -> Option<Self> {
        let raw = RawHeader::read_from_bytes(line).ok()?;
        if raw.epoch.get() == 0 || raw.block.get() == NO_BLOCK || raw.check.get() != check(checksum_seed, at, line) {
            return None;
        }
        let flags = raw.flags.get();
        Some(Header {
            epoch: raw.epoch.get(),
            block: raw.block.get(),
            kind: if flags & UNDO != 0 { Kind::Undo } else { Kind::Redo },
            class: raw.class,
            offset: raw.offset.get(),
            len: raw.len.get(),
            inline: flags & INLINE != 0,
            sum: (flags & SUMMED != 0).then(|| raw.sum.get()),
            after: (flags & AFTER != 0).then(|| raw.after.get()),
            proves: raw.proves.get(),
        })
    }
}

impl EpochRecord {
    /// The line of the record that stands at byte `at` of the sidecar.
    pub(super) fn encode(&self, checksum_seed: ChecksumSeed, at: u64) -> Line {
        let Digest { count, sum } = self.digest.unwrap_or_default();
        let raw = RawRecord {
            epoch: self.epoch.into(),
            no_block: NO_BLOCK.into(),
            flags: (self.digest.map_or(0, |_| DIGESTED) | self.time << TIME_SHIFT).into(),
            len: self.len.into(),
            count: count.into(),
            sum: sum.into(),
            proves: self.proves.into(),
            check: 0.into(),
        };
        seal_line(checksum_seed, at, zerocopy::transmute!(raw))
    }

    /// The record that stands at byte `at`; `None` if the bytes are none, or one that did not arrive whole.
    pub(super) fn decode(checksum_seed: ChecksumSeed, at: u64, line: &Line) -> Option<Self> {
        let raw = RawRecord::read_from_bytes(line).ok()?;
        if raw.epoch.get() == 0 || raw.no_block.get() != NO_BLOCK || raw.check.get() != check(checksum_seed, at, line) {
            return None;
        }
        let digest = Digest { count: raw.count.get(), sum: raw.sum.get() };
        Some(EpochRecord {
            epoch: raw.epoch.get(),
            len: raw.len.get(),
            digest: (raw.flags.get() & DIGESTED != 0).then_some(digest),
            proves: raw.proves.get(),
            time: raw.flags.get() >> TIME_SHIFT,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            epoch: 7,
            block: 1 << 40,
            kind: Kind::Undo,
            class: 9,
            offset: 100,
            len: 2 << 20,
            inline: false,
            sum: Some(5),
            after: Some(6),
            proves: 6,
        }
    }

    fn record() -> EpochRecord {
        EpochRecord {
            epoch: 9,
            len: 1 << 30,
            digest: Some(Digest { count: 4, sum: 77 }),
            proves: 8,
            time: 1_764_394_431_123,
        }
    }

    fn checksum_seed() -> ChecksumSeed {
        ChecksumSeed::new(&[7; 16], 3)
    }

    #[test]
    fn round_trip() {
        let redo = Header { kind: Kind::Redo, sum: None, after: None, ..header() };
        for header in [header(), redo, Header { inline: true, ..redo }] {
            let line = header.encode(checksum_seed(), 640);
            assert_eq!(Header::decode(checksum_seed(), 640, &line), Some(header));
            assert_eq!(EpochRecord::decode(checksum_seed(), 640, &line), None);
            assert_eq!(epoch_of(&line), 7);
        }
        for record in [record(), EpochRecord { digest: None, ..record() }] {
            let line = record.encode(checksum_seed(), 64);
            assert_eq!(EpochRecord::decode(checksum_seed(), 64, &line), Some(record));
            assert_eq!(Header::decode(checksum_seed(), 64, &line), None);
        }
    }

    #[test]
    fn flipped_bits_and_foreign_places_or_sessions_are_noticed() {
        let (header, record) = (header().encode(checksum_seed(), 640), record().encode(checksum_seed(), 640));
        for bit in 0..512 {
            let mut bad = [header, record];
            bad.iter_mut().for_each(|line| line[bit / 8] ^= 1 << (bit % 8));
            assert_eq!(Header::decode(checksum_seed(), 640, &bad[0]), None, "bit {bit}");
            assert_eq!(EpochRecord::decode(checksum_seed(), 640, &bad[1]), None, "bit {bit}");
        }
        let other = ChecksumSeed::new(&[7; 16], 4);
        assert_eq!((Header::decode(checksum_seed(), 704, &header), Header::decode(other, 640, &header)), (None, None));
        assert_eq!(
            (EpochRecord::decode(checksum_seed(), 704, &record), EpochRecord::decode(other, 640, &record)),
            (None, None)
        );
    }
}
