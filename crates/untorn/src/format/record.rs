//! The record: one or more 64-byte lines that prove by themselves, after a crash, whether all they speak of arrived.
//!
//! A record names pages, the slices of each that a commit changed, and the page's new validity bitmap. Its first line
//! carries a checksum over all its lines, seeded with the place and the session it was written in, and (unless the data
//! was fenced before it) a checksum over the data. So data and record need no order between them: one fence makes both
//! durable, and recovery can tell if a power cut came before it.
//!
//! Why XXH3 and not a CRC: the checksum separates "arrived" from "did not arrive", where any part of a line may be
//! missing; 64 bits make an accident impossible in practice, and it hides behind the draining of non-temporal stores at
//! every size (a CRC-32C does not from 1 KiB on).

use std::path::Path;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum::xxh3;
use crate::error::{Error, Result};

/// Bytes of one line: a cache line, and the unit in which lanes hand out space.
pub(crate) const LINE: u64 = 64;

/// The page number that marks an unused entry.
const NO_PAGE: u64 = u64::MAX;

/// The data was durable before the record was written, so a valid record needs no look at the data.
const CERTAIN: u16 = 1;
/// The entries stand in the spill file, not in the lane.
const SPILLED: u16 = 2;

/// What a commit did to one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Page number in the data file.
    pub(crate) page: u64,
    /// The page's validity bitmap after the commit: bit set, slice valid in the reflection page.
    pub(crate) bitmap: u64,
    /// The slices the commit wrote.
    pub(crate) mask: u64,
}

/// A record as the engines see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Greater than that of every earlier record of its lane and of its pages.
    pub(crate) seq: u64,
    /// Whether the data was fenced before the record.
    pub(crate) certain: bool,
    /// Checksum over the data ([`DataSum`]), 0 where `certain`.
    pub(crate) sum: u64,
    /// The file's length after the commit.
    pub(crate) len: u64,
    /// In ascending order of pages.
    pub(crate) entries: Vec<Entry>,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntry {
    page: U64,
    bitmap: U64,
    mask: U64,
}

/// First line of a record.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HeadLine {
    seq: U64,
    flags: U16,
    reserved: U16,
    /// Entries in all, or 0 for a record that only changes the length.
    count: U32,
    first: RawEntry,
    sum: U64,
    len: U64,
    check: U64,
}

/// Each further line: two entries.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct MoreLine {
    seq: U64,
    entries: [RawEntry; 2],
    /// 0, which no head line has here.
    reserved: U64,
}

const _: () = {
    assert!(size_of::<HeadLine>() == LINE as usize);
    assert!(size_of::<MoreLine>() == LINE as usize);
    assert!(std::mem::offset_of!(HeadLine, first) == 16);
    assert!(std::mem::offset_of!(HeadLine, check) == 56);
    assert!(std::mem::offset_of!(MoreLine, entries) == 8);
};

impl From<Entry> for RawEntry {
    fn from(entry: Entry) -> Self {
        RawEntry { page: entry.page.into(), bitmap: entry.bitmap.into(), mask: entry.mask.into() }
    }
}

impl From<RawEntry> for Entry {
    fn from(raw: RawEntry) -> Self {
        Entry { page: raw.page.get(), bitmap: raw.bitmap.get(), mask: raw.mask.get() }
    }
}

const UNUSED: Entry = Entry { page: NO_PAGE, bitmap: 0, mask: 0 };

/// The seed that ties checksums to one sidecar, one session and one place, so that neither a line of an earlier session
/// nor one that landed in the wrong place is ever taken for valid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChecksumSeed(u64);

impl ChecksumSeed {
    pub(crate) fn new(uuid: &[u8; 16], session: u64) -> Self {
        ChecksumSeed(xxh3(session, uuid))
    }

    /// The seed for the byte 0, from which follow all others.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// The seed for a line that stands at byte `offset` of the sidecar.
    #[inline]
    pub(crate) fn at(self, offset: u64) -> u64 {
        untorn_ring::place_seed(self.0, offset)
    }
}

/// The checksum over a commit's data: over each run of consecutive slices, in ascending order, each seeding the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DataSum(u64);

impl DataSum {
    /// The sum over one run.
    #[inline(always)]
    pub(crate) fn of(run: &[u8]) -> u64 {
        xxh3(0, run)
    }

    #[inline]
    pub(crate) fn add(&mut self, run: &[u8]) {
        self.0 = xxh3(self.0, run);
    }

    pub(crate) fn get(self) -> u64 {
        self.0
    }
}

/// Lines of a record with this many entries, its first included.
pub(crate) fn lines(entries: usize) -> u64 {
    1 + (entries.saturating_sub(1) as u64).div_ceil(2)
}

/// A line ready to be stored.
pub(crate) type Line = [u8; LINE as usize];

/// The only line of a record over one page: the common case, kept free of allocation.
#[inline]
pub(crate) fn encode_single(
    checksum_seed: ChecksumSeed,
    offset: u64,
    seq: u64,
    entry: Entry,
    sum: Option<u64>,
    len: u64,
) -> Line {
    head(checksum_seed.at(offset), seq, sum, 0, 1, entry, len)
}

/// The check of a head line. Never 0, so that no line is both a head line and a further line, whose last word is 0:
/// however the lines of a lane were forged, each is asked for by one head line at most, or ends what one asks for.
#[inline]
fn check(seed: u64, first: &Line) -> u64 {
    xxh3(seed, &first[..56]).max(1)
}

#[inline]
fn head(seed: u64, seq: u64, sum: Option<u64>, flags: u16, count: u32, first: Entry, len: u64) -> Line {
    let flags = flags | if sum.is_none() { CERTAIN } else { 0 };
    let line = HeadLine {
        seq: seq.into(),
        flags: flags.into(),
        reserved: 0.into(),
        count: count.into(),
        first: first.into(),
        sum: sum.unwrap_or(0).into(),
        len: len.into(),
        check: 0.into(),
    };
    let mut bytes: Line = zerocopy::transmute!(line);
    let check = check(seed, &bytes);
    bytes[56..].copy_from_slice(&check.to_le_bytes());
    bytes
}

/// The number that a line claims.
pub(crate) fn number(line: &Line) -> u64 {
    HeadLine::read_from_bytes(line).map_or(0, |head| head.seq.get())
}

/// The lines of a record that stands in a lane, the first one first. The caller has seen that the lane has room for
/// them, and the largest lane has room for 2^17 entries, so their count fits its field.
pub(crate) fn encode(checksum_seed: ChecksumSeed, offset: u64, record: &Record) -> Vec<Line> {
    encode_as(checksum_seed, offset, record, record.entries.len() as u32, false)
}

/// The lines of a record whose entries stand in the spill file: the first line, which stands alone in the lane and
/// names none of them, then the lines of the file.
///
/// # Errors
/// [`Error::Invalid`] for more pages than the first line can count, which is more than 16 TiB changed in one commit.
pub(crate) fn encode_spilled(
    checksum_seed: ChecksumSeed,
    offset: u64,
    record: &Record,
    path: &Path,
) -> Result<Vec<Line>> {
    Ok(encode_as(checksum_seed, offset, record, countable(record.entries.len(), path)?, true))
}

fn countable(entries: usize, path: &Path) -> Result<u32> {
    u32::try_from(entries).map_err(|_| Error::Invalid {
        path: path.to_owned(),
        what: format!("a commit cannot change {entries} pages, at most {}; commit in smaller steps", u32::MAX),
    })
}

fn encode_as(checksum_seed: ChecksumSeed, offset: u64, record: &Record, count: u32, spilled: bool) -> Vec<Line> {
    let own = if spilled { 0 } else { 1.min(record.entries.len()) };
    let mut seed = checksum_seed.at(offset);
    // One more than in a lane: the first line of a spilled record has no entry of its own.
    let mut out = Vec::with_capacity(lines(record.entries.len()) as usize + 1);
    out.push([0; LINE as usize]);
    for pair in record.entries[own..].chunks(2) {
        let entries = [pair[0].into(), pair.get(1).copied().unwrap_or(UNUSED).into()];
        let line = MoreLine { seq: record.seq.into(), entries, reserved: 0.into() };
        let bytes: Line = zerocopy::transmute!(line);
        seed = xxh3(seed, &bytes);
        out.push(bytes);
    }
    let first = record.entries[..own].first().copied().unwrap_or(UNUSED);
    let flags = if spilled { SPILLED } else { 0 };
    let sum = (!record.certain).then_some(record.sum);
    out[0] = head(seed, record.seq, sum, flags, count, first, record.len);
    out
}

/// Where the further lines of a record are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum More {
    /// In the slots of the lane that follow.
    Lane,
    /// At the start of the spill file.
    Spill,
}

/// Decodes the record whose first line stands at byte `offset`. `more` is asked for the `n`th further line, from 0;
/// `None` from it, or a checksum that does not match, gives `None`: the bytes are no record, or one that did not
/// arrive whole.
pub(crate) fn decode(
    checksum_seed: ChecksumSeed,
    offset: u64,
    first: &Line,
    max_entries: u64,
    mut more: impl FnMut(More, u64) -> Option<Line>,
) -> Option<Record> {
    let head = HeadLine::read_from_bytes(first).ok()?;
    let count = u64::from(head.count.get());
    if head.seq.get() == 0 || head.check.get() == 0 || count > max_entries {
        return None;
    }
    let flags = head.flags.get();
    let mut entries = Vec::new();
    let mut seed = checksum_seed.at(offset);
    let from = if flags & SPILLED != 0 { More::Spill } else { More::Lane };
    let mut left = count;
    if from == More::Lane && count > 0 {
        entries.push(Entry::from(head.first));
        left -= 1;
    }
    for n in 0..left.div_ceil(2) {
        let bytes = more(from, n)?;
        let line = MoreLine::read_from_bytes(&bytes).ok()?;
        if line.seq.get() != head.seq.get() || line.reserved.get() != 0 {
            return None;
        }
        seed = xxh3(seed, &bytes);
        entries.extend(line.entries.iter().take((left - 2 * n).min(2) as usize).map(|&raw| Entry::from(raw)));
    }
    if check(seed, first) != head.check.get() {
        return None;
    }
    if entries.windows(2).any(|pair| pair[0].page >= pair[1].page) {
        return None;
    }
    Some(Record {
        seq: head.seq.get(),
        certain: flags & CERTAIN != 0,
        sum: head.sum.get(),
        len: head.len.get(),
        entries,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checksum_seed() -> ChecksumSeed {
        ChecksumSeed::new(&[7; 16], 3)
    }

    fn record(pages: u64) -> Record {
        let entries = (0..pages).map(|page| Entry { page: page * 3, bitmap: page ^ 0xff, mask: page | 1 }).collect();
        Record { seq: 42, certain: false, sum: 99, len: 1 << 20, entries }
    }

    fn decode_lines(checksum_seed: ChecksumSeed, offset: u64, lines: &[Line], from: More) -> Option<Record> {
        decode(checksum_seed, offset, &lines[0], 1 << 20, |asked, n| {
            (asked == from).then(|| lines.get(n as usize + 1).copied()).flatten()
        })
    }

    #[test]
    fn round_trip_at_every_size_in_lane_and_spill() {
        for pages in 0..20 {
            let record = record(pages);
            let in_lane = encode(checksum_seed(), 4096, &record);
            assert_eq!(in_lane.len() as u64, lines(pages as usize));
            assert_eq!(decode_lines(checksum_seed(), 4096, &in_lane, More::Lane).as_ref(), Some(&record));
            let spilled = encode_spilled(checksum_seed(), 4096, &record, Path::new("f")).unwrap();
            assert_eq!(decode_lines(checksum_seed(), 4096, &spilled, More::Spill).as_ref(), Some(&record));
        }
    }

    #[test]
    fn single_is_the_same_as_the_general_form() {
        let record = record(1);
        let single = encode_single(checksum_seed(), 64, 42, record.entries[0], Some(99), 1 << 20);
        assert_eq!(vec![single], encode(checksum_seed(), 64, &record));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let good = encode(checksum_seed(), 4096, &record(4));
        for line in 0..good.len() {
            for bit in 0..512 {
                let mut bad = good.clone();
                bad[line][bit / 8] ^= 1 << (bit % 8);
                assert_eq!(decode_lines(checksum_seed(), 4096, &bad, More::Lane), None, "line {line} bit {bit}");
            }
        }
    }

    #[test]
    fn a_record_of_another_place_or_session_is_none() {
        let lines = encode(checksum_seed(), 4096, &record(3));
        assert_eq!(decode_lines(checksum_seed(), 4160, &lines, More::Lane), None);
        assert_eq!(decode_lines(ChecksumSeed::new(&[7; 16], 4), 4096, &lines, More::Lane), None);
        assert_eq!(decode_lines(ChecksumSeed::new(&[8; 16], 3), 4096, &lines, More::Lane), None);
    }

    #[test]
    fn pages_out_of_order_are_refused() {
        let mut record = record(3);
        record.entries.swap(0, 2);
        let lines = encode(checksum_seed(), 0, &record);
        assert_eq!(decode_lines(checksum_seed(), 0, &lines, More::Lane), None);
    }

    #[test]
    fn more_pages_than_a_record_counts_are_an_error() {
        assert_eq!(countable(u32::MAX as usize, Path::new("f")).unwrap(), u32::MAX);
        let error = countable(u32::MAX as usize + 1, Path::new("f")).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    }

    #[test]
    fn a_head_line_is_no_further_line_and_the_other_way_round() {
        let mut asked = 0;
        // The head of a record of five pages, sealed for its place, with a head line behind it where a further line
        // was.
        let lines = encode(checksum_seed(), 4096, &record(5));
        let found = decode(checksum_seed(), 4096, &lines[0], 1 << 20, |_, _| {
            asked += 1;
            Some(lines[0])
        });
        assert_eq!((found, asked), (None, 1));
        // A further line that claims, as a head, as many entries as its page number's upper half says.
        let further: Line = zerocopy::transmute!(MoreLine {
            seq: 42.into(),
            entries: [RawEntry { page: (9 << 32).into(), bitmap: 1.into(), mask: 1.into() }; 2],
            reserved: 0.into(),
        });
        assert_eq!(HeadLine::read_from_bytes(&further).unwrap().count.get(), 9);
        assert_eq!(decode(checksum_seed(), 4096, &further, 1 << 20, |_, _| panic!("no line is asked for")), None);
    }
}
