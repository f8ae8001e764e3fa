//! Forged sidecars: honest ones with changes, sealed as the format requires.

use std::ops::Range;

use twox_hash::XxHash3_64;

use crate::hybrid;
use crate::input::Input;
use crate::judge::judge;
use crate::pair::{CHUNKS_AT, Forged, LANES, LANES_AT, LEN, PAGE, Pair, RETIREMENT_AT, SLOTS, UUID_AT};

/// One kind of change.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// A field of the superblock, in one copy or both, sealed anew or not.
    Superblock,
    /// A field of the retirement line, likewise.
    Retirement,
    /// Bytes of superblocks or retirement lines.
    RawHead,
    /// A whole record in a lane or in the spill file, sealed or not.
    Record,
    /// Bytes of a lane.
    RawLane,
    /// Bytes of the spill file.
    RawSpill,
    /// An entry of a sparse meta page.
    Slot,
    /// A bitmap of a dense meta page.
    Bitmap,
    /// A field of a header or an epoch's record in a log, sealed anew or not.
    Line,
    /// A whole epoch of a log: entries and a record that adds them up.
    Epoch,
    /// Bytes of anything.
    Raw,
    /// The sidecar's length.
    Length,
    /// The data file's bytes or length.
    Data,
    /// The data file's mark.
    Mark,
}

/// Fields in a row: the offset of the first, the width of each, and how many there are.
pub(crate) type Run = (usize, usize, usize);

/// The superblock's fields.
const SUPERBLOCK: [Run; 8] =
    [(0, 8, 1), (8, 4, 2), (16, 8, 4), (56, 8, 5), (96, 4, 3), (108, 1, 4), (112, 8, 1), (128, 8, 2)];
const RETIREMENT: [Run; 1] = [(0, 8, 6)];
const SPILLED: u16 = 2;
/// The most a sidecar is stretched to: as a hole, some chunks more than it needs.
const MAX_SIDE: u64 = 4 << 20;

/// Forges a sidecar as the input says and judges what untorn makes of it.
pub(crate) fn run(bytes: &[u8], pairs: &[Pair], kinds: &[Kind]) {
    let mut input = Input::new(bytes);
    let pair = input.pick(pairs);
    let mut forged = pair.forged();
    // The last choices are left to the judge.
    let count = input.below(24);
    changes(&mut input, count, |input| {
        let kind = *input.pick(kinds);
        change(&mut forged, kind, input);
        false
    });
    // A session set back lets records count again that an earlier one discarded, as soon as an open counts it up. An
    // honest sidecar's never goes back, so of such a one only that nothing panics is asked.
    let session = |side: &[u8]| [0, 1].map(|copy| word(side, retirement_at(copy) + 24));
    // A reader accepts a number at its limit now, but not the next time, after it was counted up.
    let heads = (0..2).flat_map(|copy| [copy * PAGE + 56, retirement_at(copy), retirement_at(copy) + 8]);
    let lines = (0..LANES * SLOTS).map(|slot| LANES_AT + 64 * slot);
    let epochs = hybrid::lines(&forged.side).flat_map(|line| [line, line + 48]);
    let lines: Vec<usize> = if pair.is_log() { epochs.collect() } else { lines.collect() };
    let far = heads.chain(lines).any(|at| word(&forged.side, at) > 1 << 61);
    let agrees = session(&forged.side) == session(&pair.side) && !far;
    let medium = pair.with(&forged).expect("the simulated medium accepts any bytes");
    judge(medium, &pair.options, agrees, &mut input);
}

pub(crate) fn put(bytes: &mut [u8], at: usize, value: u64, width: usize) {
    if let Some(place) = bytes.get_mut(at..at + width) {
        place.copy_from_slice(&value.to_le_bytes()[..width]);
    }
}

pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |bytes| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)))
}

fn change(forged: &mut Forged, kind: Kind, input: &mut Input<'_>) {
    let side = &mut forged.side;
    match kind {
        Kind::Superblock => field(side, &SUPERBLOCK, [0, PAGE], input, seal_superblock),
        Kind::Retirement => field(side, &RETIREMENT, [0, 1].map(retirement_at), input, seal_retirement),
        Kind::RawHead => {
            raw(side, 0, LANES_AT, input);
            for copy in 0..2 {
                if input.byte() % 2 == 1 {
                    seal_superblock(side, copy * PAGE);
                    seal_retirement(side, retirement_at(copy));
                }
            }
        }
        Kind::Record => Record::from(input).put(forged),
        Kind::RawLane => raw(side, LANES_AT, LANES_AT + LANES * SLOTS * 64, input),
        Kind::RawSpill => {
            let len = input.below(32) as usize * 64;
            forged.spill.resize(len, 0);
            raw(&mut forged.spill, 0, len, input);
        }
        Kind::Slot => {
            let at = CHUNKS_AT + input.below(256) as usize * 16;
            put(side, at, input.number(), 8);
            put(side, at + 8, input.number(), 8);
        }
        Kind::Bitmap => put(side, CHUNKS_AT + input.below(512) as usize * 8, input.number(), 8),
        Kind::Line => hybrid::line(side, input),
        Kind::Epoch => hybrid::epoch(forged, input),
        Kind::Raw => {
            let len = side.len();
            raw(side, 0, len, input);
        }
        Kind::Length => side.resize(input.below(MAX_SIDE) as usize, 0),
        Kind::Data => {
            if input.byte().is_multiple_of(2) {
                forged.data.resize(input.below(2 * LEN as u64) as usize, 3);
            } else {
                let len = forged.data.len();
                raw(&mut forged.data, 0, len, input);
            }
        }
        Kind::Mark => {
            let mut mark = [0; 16];
            mark.copy_from_slice(side.get(UUID_AT..UUID_AT + 16).unwrap_or(&[0; 16]));
            mark[0] ^= input.byte();
            forged.mark = Some((!input.byte().is_multiple_of(4)).then_some(mark));
        }
    }
}

/// Bytes of the input in the place of some between two offsets.
pub(crate) fn raw(bytes: &mut [u8], from: usize, to: usize, input: &mut Input<'_>) {
    let to = to.min(bytes.len());
    if from < to {
        let at = from + input.below((to - from) as u64) as usize;
        let new = input.bytes(64);
        let end = (at + new.len()).min(to);
        bytes[at..end].copy_from_slice(&new[..end - at]);
    }
}

/// Forges in `count` steps, or until the input is used up. Returns whether every step reports that it sealed nothing
/// anew, so that no change can be believed.
pub(crate) fn changes(input: &mut Input<'_>, count: u64, mut change: impl FnMut(&mut Input<'_>) -> bool) -> bool {
    let mut unforged = true;
    for _ in 0..count {
        unforged &= change(input);
        if input.is_empty() {
            break;
        }
    }
    unforged
}

/// Chooses one of these fields: its offset and width.
pub(crate) fn one_of(runs: &[Run], input: &mut Input<'_>) -> (usize, usize) {
    let fields = |&(first, width, count): &Run| (0..count).map(move |n| (first + n * width, width));
    *input.pick(&runs.iter().flat_map(fields).collect::<Vec<_>>())
}

/// Puts any number into one of these fields of one of two copies or both, and seals them anew or not.
pub(crate) fn field(
    bytes: &mut [u8],
    runs: &[Run],
    copies: [usize; 2],
    input: &mut Input<'_>,
    seal: impl Fn(&mut [u8], usize),
) {
    let (at, width) = one_of(runs, input);
    let value = input.number();
    let choice = input.byte();
    for (copy, start) in copies.into_iter().enumerate() {
        if choice >> copy & 1 == 0 {
            put(bytes, start + at, value, width);
            if choice >> (2 + copy) & 1 == 0 {
                seal(bytes, start);
            }
        }
    }
}

/// Puts the digest of these bytes with this seed behind them.
pub(crate) fn seal(bytes: &mut [u8], covered: Range<usize>, seed: u64) {
    let at = covered.end;
    if let Some(covered) = bytes.get(covered) {
        let check = XxHash3_64::oneshot_with_seed(seed, covered);
        put(bytes, at, check, 8);
    }
}

/// Seals the page that begins here as superblocks are: by a digest of all before its last eight bytes.
pub(crate) fn seal_superblock(bytes: &mut [u8], at: usize) {
    seal(bytes, at..at + PAGE - 8, 0);
}

fn retirement_at(copy: usize) -> usize {
    RETIREMENT_AT + 512 * copy
}

/// The retirement line that counts.
pub(crate) fn newer_retirement(side: &[u8]) -> usize {
    (0..2).map(retirement_at).max_by_key(|&at| word(side, at)).unwrap_or_default()
}

/// The seed that seals lines at this offset, in the session that counts.
pub(crate) fn seed_at(side: &[u8], at: usize) -> u64 {
    let session = word(side, newer_retirement(side) + 24);
    let uuid = side.get(UUID_AT..UUID_AT + 16).unwrap_or(&[0; 16]);
    XxHash3_64::oneshot_with_seed(session, uuid) ^ (at as u64).rotate_left(32)
}

fn seal_retirement(side: &mut [u8], at: usize) {
    let Some(uuid) = side.get(UUID_AT..UUID_AT + 16) else { return };
    let seed = XxHash3_64::oneshot(uuid);
    seal(side, at..at + 56, seed);
}

/// A record of any shape.
struct Record {
    slot: usize,
    /// Above the cut, or any number.
    seq: Result<u64, u64>,
    flags: u16,
    reserved: u16,
    /// The count to store; `None` for the number of entries.
    count: Option<u64>,
    entries: Vec<[u64; 3]>,
    sum: u64,
    len: u64,
    sealed: bool,
}

impl Record {
    fn from(input: &mut Input<'_>) -> Self {
        let shape = input.byte();
        let slot = input.below((LANES * SLOTS) as u64) as usize;
        let seq = if shape & 1 == 0 { Ok(u64::from(input.byte()) + 1) } else { Err(input.number()) };
        let flags = if shape & 2 == 0 { u16::from(input.byte() % 4) } else { input.number() as u16 };
        let reserved = if shape & 4 == 0 { 0 } else { input.number() as u16 };
        let count = if shape & 8 == 0 { None } else { Some(input.number()) };
        let len = if shape & 16 == 0 { LEN as u64 } else { input.number() };
        let sum = if shape & 32 == 0 { 0 } else { input.number() };
        let mut page = 0;
        let entries = (0..input.below(24)).map(|_| {
            page = if shape & 64 == 0 { page + input.below(3) } else { input.number() };
            [page, input.number(), input.number()]
        });
        let entries = entries.collect();
        Record { slot, seq, flags, reserved, count, entries, sum, len, sealed: shape & 128 == 0 }
    }

    /// Stores it, chained and sealed as the format says.
    fn put(&self, forged: &mut Forged) {
        let side = &mut forged.side;
        let cut = word(side, newer_retirement(side) + 8);
        let seq = match self.seq {
            Ok(above) => cut.wrapping_add(above),
            Err(any) => any,
        };
        let lane = self.slot / SLOTS * SLOTS;
        let at = |n: usize| LANES_AT + (lane + (self.slot + n) % SLOTS) * 64;
        let spilled = self.flags & SPILLED != 0;
        let own = if spilled { 0 } else { 1.min(self.entries.len()) };
        let mut seed = seed_at(side, at(0));
        let mut spill = Vec::new();
        for (n, pair) in self.entries[own..].chunks(2).enumerate() {
            let mut line = [0; 64];
            put(&mut line, 0, seq, 8);
            let unused = [u64::MAX, 0, 0];
            let words = pair[0].iter().chain(pair.get(1).unwrap_or(&unused));
            for (word, &value) in words.enumerate() {
                put(&mut line, 8 + 8 * word, value, 8);
            }
            seed = XxHash3_64::oneshot_with_seed(seed, &line);
            if spilled {
                spill.extend_from_slice(&line);
            } else if let Some(place) = side.get_mut(at(n + 1)..at(n + 1) + 64) {
                place.copy_from_slice(&line);
            }
        }
        let mut line = [0; 64];
        put(&mut line, 0, seq, 8);
        put(&mut line, 8, self.flags.into(), 2);
        put(&mut line, 10, self.reserved.into(), 2);
        put(&mut line, 12, self.count.unwrap_or(self.entries.len() as u64), 4);
        let first = self.entries[..own].first().unwrap_or(&[u64::MAX, 0, 0]);
        for (word, &value) in first.iter().enumerate() {
            put(&mut line, 16 + 8 * word, value, 8);
        }
        put(&mut line, 40, self.sum, 8);
        put(&mut line, 48, self.len, 8);
        if self.sealed {
            let check = XxHash3_64::oneshot_with_seed(seed, &line[..56]).max(1);
            put(&mut line, 56, check, 8);
        }
        if let Some(place) = side.get_mut(at(0)..at(0) + 64) {
            place.copy_from_slice(&line);
        }
        if spilled {
            forged.spill = spill;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pair::{PAIRS, PATH};

    /// The numbers of records that recovery applied and discarded, or the error's text if it refused.
    fn opened(pair: &Pair, forged: &Forged) -> Result<(u64, u64), String> {
        let file = pair.options.open_on(pair.with(forged).unwrap(), PATH).map_err(|error| error.to_string())?;
        let recovery = file.info().recovery;
        Ok((recovery.replayed, recovery.discarded))
    }

    #[test]
    fn unchanged_forgeries_open() {
        for pair in PAIRS.iter() {
            opened(pair, &pair.forged()).unwrap();
        }
    }

    /// A fuzzer whose seals are wrong would never get past the first check.
    #[test]
    fn a_forged_record_with_a_right_seal_counts() {
        for pair in PAIRS.iter() {
            let (before, _) = opened(pair, &pair.forged()).unwrap();
            // This byte of both superblocks tells how the sidecar was left.
            let closed = pair.side[111] == 3 && pair.side[PAGE + 111] == 3;
            for flags in [0, 1, 2, 3] {
                let entries = vec![[1, 0, 1], [2, 0, 0], [4, 0, 3]];
                let (slot, seq, len) = (4, Ok(100), LEN as u64);
                let record = Record { slot, seq, flags, reserved: 0, count: None, entries, sum: 1, len, sealed: true };
                let mut forged = pair.forged();
                record.put(&mut forged);
                // Its data is not what its sum says, so it counts only where it is flagged certain.
                let (replayed, discarded) = opened(pair, &forged).unwrap();
                if closed {
                    assert_eq!((replayed, discarded), (0, 0), "a record counts after a clean close");
                    continue;
                }
                let counts = u64::from(flags & 1);
                assert!(replayed >= counts && discarded >= 1 - counts, "flags {flags}: {replayed}, {discarded}");
                let mut unsealed = pair.forged();
                Record { sealed: false, ..record }.put(&mut unsealed);
                let (replayed, discarded) = opened(pair, &unsealed).unwrap();
                assert!(replayed <= before && discarded == 0, "flags {flags}, not sealed: {replayed}, {discarded}");
            }
        }
    }

    #[test]
    fn a_superblock_sealed_anew_is_believed() {
        for pair in PAIRS.iter() {
            let mut forged = pair.forged();
            for copy in 0..2 {
                put(&mut forged.side, copy * PAGE + 8, 9, 4);
            }
            assert!(opened(pair, &forged).unwrap_err().contains("neither superblock is valid"));
            (0..2).for_each(|copy| seal_superblock(&mut forged.side, copy * PAGE));
            assert!(opened(pair, &forged).unwrap_err().contains("format version 9"));
            let mut forged = pair.forged();
            for copy in 0..2 {
                put(&mut forged.side, retirement_at(copy) + 16, 1 << 40, 8);
                seal_retirement(&mut forged.side, retirement_at(copy));
            }
            // A length beyond the file's, but a later record's length counts.
            match opened(pair, &forged) {
                Ok((replayed, _)) => assert!(replayed > 0),
                Err(error) => assert!(error.contains("its last commit"), "{error}"),
            }
        }
    }
}
