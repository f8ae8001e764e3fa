//! A pack: changes of one open epoch, in order, as bytes of the spill file, which one entry of the log describes.
//!
//! ```text
//!  record │ bytes of a write │ record: a length │ record │ chunks of a spilled write │ record │ chunks of a pack
//! ```
//!
//! # Invariants
//!
//! 1. A record says the kind of its change, its place, and how many bytes follow. The change means what an entry with
//!    these bytes as data means, so a pack may have packs in it.
//! 2. A pack is whole if its chunks are, and those of everything in it. A reader verifies chunks before it believes a
//!    record.
//! 3. Any program may have written the spill file. So a reader takes a pack and everything in it for whole only if all
//!    of it has no more bytes than the spill file: chunks that belong to one change alone never have more.

use std::ops::Range;
use std::sync::Arc;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::format::Kind;
use super::spill::{LONGEST, Spilled};
use crate::error::Result;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRecord {
    kind: U32,
    reserved: U32,
    value: U64,
    len: U64,
}

/// Bytes of a record.
pub(super) const RECORD: u64 = size_of::<RawRecord>() as u64;

const _: () = assert!(RECORD == 24);

/// The record of a change with so many bytes of data.
pub(super) fn record(kind: Kind, value: u64, len: u64) -> [u8; RECORD as usize] {
    let kind = u32::from(kind.number());
    zerocopy::transmute!(RawRecord { kind: kind.into(), reserved: 0.into(), value: value.into(), len: len.into() })
}

/// A change that a pack has.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Packed<'a> {
    /// The bytes begin at byte `at` of this pack.
    Write {
        offset: u64,
        bytes: &'a [u8],
        pack: &'a Arc<Spilled>,
        at: u64,
    },
    SetLen(u64),
    Spilled {
        offset: u64,
        spilled: Spilled,
    },
}

/// A pack that is being read.
struct Stream {
    pack: Arc<Spilled>,
    /// The next byte to read.
    at: u64,
    /// Bytes that were read, of which the first ones were taken.
    buffer: Vec<u8>,
    taken: usize,
}

impl Stream {
    fn new(pack: Spilled) -> Self {
        Stream { pack: Arc::new(pack), at: 0, buffer: Vec::new(), taken: 0 }
    }

    /// Bytes that were not taken yet.
    fn left(&self) -> u64 {
        self.pack.len - self.at + (self.buffer.len() - self.taken) as u64
    }

    /// Takes the next bytes, as a range of the buffer. `None` if there are not so many, or they are not what was
    /// written.
    fn take(
        &mut self,
        count: u64,
        read: &impl Fn(&Spilled, Range<u64>, &mut Vec<u8>) -> Result<bool>,
    ) -> Result<Option<Range<usize>>> {
        if count > self.left() || count > LONGEST {
            return Ok(None);
        }
        let count = count as usize;
        if self.buffer.len() - self.taken < count {
            self.buffer.drain(..self.taken);
            self.taken = 0;
        }
        while self.buffer.len() - self.taken < count {
            // A chunk at a time, so that each is verified once.
            let chunk = self.pack.chunk();
            let end = (self.at + chunk - self.at % chunk).min(self.pack.len);
            if !read(&self.pack, self.at..end, &mut self.buffer)? {
                return Ok(None);
            }
            self.at = end;
        }
        let from = self.taken;
        self.taken += count;
        Ok(Some(from..self.taken))
    }
}

/// Gives each change of a pack to `each`, in order, with those of the packs in it. `read` appends bytes of a pack,
/// verified, and says whether they are what was written. `most` is the length of the spill file. False if the pack is
/// not whole, or `each` says so; then `each` had some of the changes.
pub(super) fn unpack(
    pack: &Spilled,
    most: u64,
    read: impl Fn(&Spilled, Range<u64>, &mut Vec<u8>) -> Result<bool>,
    mut each: impl FnMut(Packed<'_>) -> Result<bool>,
) -> Result<bool> {
    let Some(mut budget) = most.checked_sub(pack.len) else { return Ok(false) };
    let mut open = vec![Stream::new(pack.clone())];
    while let Some(stream) = open.last_mut() {
        if stream.left() == 0 {
            open.pop();
            continue;
        }
        let Some(head) = stream.take(RECORD, &read)? else { return Ok(false) };
        let Ok(raw) = RawRecord::read_from_bytes(&stream.buffer[head]) else { return Ok(false) };
        let (offset, len) = (raw.value.get(), raw.len.get());
        let kind = u16::try_from(raw.kind.get()).ok().and_then(Kind::of);
        let Some(data) = stream.take(len, &read)? else { return Ok(false) };
        let (bytes, pack, at) = (&stream.buffer[data], &stream.pack, stream.pack.len - stream.left() - len);
        let ends = |len: u64| offset.checked_add(len).is_some_and(|end| end <= i64::MAX as u64);
        let whole = match kind {
            Some(Kind::StagedWrite) if len > 0 && ends(len) => each(Packed::Write { offset, bytes, pack, at })?,
            Some(Kind::StagedLen) if len == 0 && ends(0) => each(Packed::SetLen(offset))?,
            Some(kind @ (Kind::StagedSpill | Kind::StagedPack)) => {
                let Some(spilled) = Spilled::decode(bytes) else { return Ok(false) };
                let Some(left) = budget.checked_sub(spilled.len) else { return Ok(false) };
                budget = left;
                if kind == Kind::StagedPack {
                    open.push(Stream::new(spilled));
                    continue;
                }
                ends(spilled.len) && each(Packed::Spilled { offset, spilled })?
            }
            _ => false,
        };
        if !whole {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A spill file of chunks of 16 bytes, and packs in it.
    #[derive(Default)]
    struct File(Vec<u8>);

    impl File {
        fn put(&mut self, bytes: &[u8]) -> Spilled {
            let first = self.0.len() as u64 / 16;
            self.0.extend(bytes);
            self.0.resize(self.0.len().next_multiple_of(16), 0);
            let chunks = (first..first + (bytes.len() as u64).div_ceil(16)).map(|number| (number, 0)).collect();
            Spilled::of(bytes.len() as u64, 16, chunks)
        }

        /// The contents of a pack, as text; `None` if it is not whole.
        fn read(&self, pack: &Spilled) -> Option<Vec<String>> {
            let mut found = Vec::new();
            let read = |spilled: &Spilled, range: Range<u64>, buffer: &mut Vec<u8>| {
                let at = spilled.place(range.start) as usize;
                let bytes = self.0.get(at..at + (range.end - range.start) as usize);
                buffer.extend(bytes.unwrap_or_default());
                Ok(bytes.is_some())
            };
            let whole = unpack(pack, self.0.len() as u64, read, |change| {
                found.push(match change {
                    Packed::Write { offset, bytes, .. } => format!("{offset}: {}", String::from_utf8_lossy(bytes)),
                    Packed::SetLen(len) => format!("= {len}"),
                    Packed::Spilled { offset, spilled } => format!("{offset}: {} bytes", spilled.len),
                });
                Ok(true)
            });
            whole.unwrap().then_some(found)
        }
    }

    fn write(offset: u64, bytes: &[u8]) -> Vec<u8> {
        [&record(Kind::StagedWrite, offset, bytes.len() as u64)[..], bytes].concat()
    }

    fn inner(kind: Kind, spilled: &Spilled) -> Vec<u8> {
        let data = spilled.encode();
        [&record(kind, 7, data.len() as u64)[..], &data].concat()
    }

    #[test]
    fn changes_come_in_order_also_those_of_packs_in_packs() {
        let mut file = File::default();
        let first = file.put(&[write(5, b"a write over chunks"), write(0, b"b")].concat());
        let large = file.put(&[1; 40]);
        let middle =
            [inner(Kind::StagedPack, &first), record(Kind::StagedLen, 3, 0).to_vec(), inner(Kind::StagedSpill, &large)];
        let middle = file.put(&middle.concat());
        let last = file.put(&[inner(Kind::StagedPack, &middle), write(9, b"last")].concat());
        let expected = ["5: a write over chunks", "0: b", "= 3", "7: 40 bytes", "9: last"];
        assert_eq!(file.read(&last).unwrap(), expected);
    }

    #[test]
    fn a_pack_that_says_too_much_is_not_whole() {
        let mut file = File::default();
        let whole = write(5, b"bytes");
        let wrong = [
            whole[..whole.len() - 1].to_vec(),
            whole[..10].to_vec(),
            write(0, b""),
            write(i64::MAX as u64, b"x"),
            [&record(Kind::StagedLen, 0, 1)[..], b"x"].concat(),
            record(Kind::StagedLen, u64::MAX, 0).to_vec(),
            [&record(Kind::Write, 0, 1)[..], b"x"].concat(),
            record(Kind::StagedWrite, 0, u64::MAX).to_vec(),
            [&record(Kind::StagedSpill, 0, 5)[..], b"wrong"].concat(),
        ];
        for (number, bytes) in wrong.iter().enumerate() {
            let pack = file.put(bytes);
            assert_eq!(file.read(&pack), None, "{number}");
        }
        let pack = file.put(&whole);
        assert!(file.read(&pack).is_some());
    }

    /// A pack of packs of packs, each of which has the one before many times.
    #[test]
    fn a_pack_cannot_be_had_more_often_than_the_file_is_long() {
        let mut file = File::default();
        let mut pack = file.put(&write(0, b"x"));
        for _ in 0..3 {
            pack = file.put(&inner(Kind::StagedPack, &pack).repeat(9));
        }
        assert_eq!(file.read(&pack), None);
        let large = file.put(&[1; 100]);
        let often = file.put(&inner(Kind::StagedSpill, &large).repeat(1000));
        assert_eq!(file.read(&often), None);
    }
}
