//! The layout of the redundancy file: superblocks and table blocks. `docs/format.md` gives the reasons.
//!
//! Every number is little-endian. Any program may have written the file, so each number is checked before use.

use std::path::Path;
use std::time::Duration;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout::Geometry;
use crate::engine::redundancy::History;
use crate::error::{Error, Result};
use crate::format::checksum::{is_sealed, seal};
use crate::format::dual_copy::{Codes, DualCopy, Head, RawIdentity, Refusal, look, neither, newest, place, sort_out};
use crate::format::sidecar::redundancy::{MAGIC, are_one};
use crate::format::sidecar::{MAX_LEN, MAX_NUMBER, PAGE};
use crate::options::{Checksum, Settings, StripeLayout, as_kept};
use crate::storage::{Identity, MediumFile, Stamp};

/// The bytes of one page.
pub(super) type Page = [u8; PAGE as usize];

/// Entries of a table block.
pub(super) const ENTRIES: u64 = 500;
/// The most pages whose repair one superblock announces.
pub(super) const MAX_INTENTS: usize = 64;

/// How the redundancy file was left, and so what a page that differs from its checksum is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// Nobody has it open. If size and modification time of the data file are those noted, what differs is damaged.
    Closed,
    /// Open, or left by a crash, by one who marks pages uncovered before they are stored to, and nobody stores: if
    /// size and modification time of the data file are those noted, what differs and is not marked is damaged.
    Announced,
    /// The same, and somebody does, or did since the time was noted: it says nothing, and what differs and is not
    /// marked is damaged.
    Storing,
    /// Open, or left by a crash, by one who learns of stores from page tables, which a crash empties: what differs is
    /// unknown.
    Tracked,
}

/// The superblock: what is protected, how, and how it was left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    pub(super) uuid: [u8; 16],
    pub(super) seq: u64,
    pub(super) identity: Identity,
    pub(super) geometry: Geometry,
    pub(super) checksum: Checksum,
    pub(super) left: Left,
    /// Of the data file, after the last flush of what is covered.
    pub(super) stamp: Stamp,
    /// Pages that are being repaired.
    pub(super) intents: Vec<u64>,
    /// What the blocks of the [list](super::repair_list) of all that a repair is about have as their sequence number;
    /// 0 if there is none.
    pub(super) list: u64,
    /// Of openings that name none.
    pub(super) period: Option<Duration>,
    /// Likewise.
    pub(super) max_uncovered: Option<u64>,
    /// Bytes that the file had before it got this length, until the medium has this length: after a crash it may have
    /// either.
    pub(super) resized_from: Option<u64>,
    pub(super) history: History,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawSuperblock {
    head: Head,
    identity: RawIdentity,
    /// Bytes of the data file.
    len: U64,
    /// Data pages of a stripe.
    stripe: U32,
    /// 1: consecutive. 2: spread.
    layout: U32,
    /// 1: CRC-32C. 2: XXH3.
    checksum: U32,
    /// 1: closed. 2: open, stores are announced. 3: open, stores are tracked. 4: as 2, and some were announced.
    left: U32,
    stamp_size: U64,
    stamp_modified: U64,
    scrubbed: U64,
    scrubs: U64,
    repaired: U64,
    intents: U64,
    intent: [U64; MAX_INTENTS],
    list: U64,
    /// In microseconds, and one more; 0: none is kept.
    period: U64,
    /// In pages, and one more; 0: none is kept.
    max_uncovered: U64,
    /// 0: the medium has the file's length.
    resized_from: U64,
    reserved: [u8; 3376],
    check: U64,
}

const _: () = {
    assert!(size_of::<RawSuperblock>() == PAGE as usize);
    assert!(std::mem::offset_of!(RawSuperblock, identity) == 64);
    assert!(std::mem::offset_of!(RawSuperblock, len) == 96);
    assert!(std::mem::offset_of!(RawSuperblock, stamp_size) == 120);
    assert!(std::mem::offset_of!(RawSuperblock, intent) == 168);
    assert!(std::mem::offset_of!(RawSuperblock, list) == 680);
    assert!(std::mem::offset_of!(RawSuperblock, resized_from) == 704);
    assert!(std::mem::offset_of!(RawSuperblock, check) == 4088);
};

const LAYOUTS: Codes<StripeLayout> =
    Codes("stripe layout", &[(1, StripeLayout::Consecutive), (2, StripeLayout::Spread)]);
const CHECKSUMS: Codes<Checksum> = Codes("checksum", &[(1, Checksum::Crc32c), (2, Checksum::Xxh3)]);
const LEFTS: Codes<Left> =
    Codes("closing state", &[(1, Left::Closed), (2, Left::Announced), (3, Left::Tracked), (4, Left::Storing)]);

impl DualCopy for Superblock {
    type Raw = RawSuperblock;
    const MAGIC: [u8; 8] = MAGIC;
    const FILE: &'static str = "redundancy file";
    const NEITHER: &'static str = "neither superblock is valid; remove the redundancy file with `untorn unprotect` and \
                                   protect the file again";
    // One that names another file went astray, see [`Superblock::read`].
    const EITHER_REFUSES: bool = false;

    fn seq(&mut self) -> &mut u64 {
        &mut self.seq
    }

    fn encode(&self) -> RawSuperblock {
        let kept = |period| as_kept(period).as_micros().min(u128::from(u64::MAX - 1)) as u64 + 1;
        let mut raw = RawSuperblock {
            head: Head::new::<Self>(self.uuid, self.seq),
            identity: self.identity.into(),
            len: self.geometry.len.into(),
            stripe: self.geometry.stripe.into(),
            layout: u32::from(LAYOUTS.code(self.geometry.layout)).into(),
            checksum: u32::from(CHECKSUMS.code(self.checksum)).into(),
            left: u32::from(LEFTS.code(self.left)).into(),
            stamp_size: self.stamp.size.into(),
            stamp_modified: self.stamp.modified.into(),
            scrubbed: self.history.scrubbed.into(),
            scrubs: self.history.scrubs.into(),
            repaired: self.history.repaired.into(),
            intents: (self.intents.len() as u64).into(),
            list: self.list.into(),
            period: self.period.map_or(0, kept).into(),
            max_uncovered: self.max_uncovered.map_or(0, |pages| pages.saturating_add(1)).into(),
            resized_from: self.resized_from.unwrap_or(0).into(),
            ..RawSuperblock::new_zeroed()
        };
        for (raw, page) in raw.intent.iter_mut().zip(&self.intents) {
            *raw = (*page).into();
        }
        raw
    }

    fn decode(raw: &RawSuperblock) -> std::result::Result<Self, Refusal> {
        raw.head.check(MAX_NUMBER - 1)?;
        let (len, stripe) = (raw.len.get(), raw.stripe.get());
        if !(1..=MAX_LEN).contains(&len) || !(1..=Geometry::MAX_STRIPE).contains(&stripe) {
            let what = format!("the superblock has an impossible length or stripe: {len} bytes, {stripe} pages");
            return Err(Refusal::Corrupt(what));
        }
        let layout = LAYOUTS.value(raw.layout.get()).map_err(Refusal::Corrupt)?;
        let geometry = Geometry { len, stripe, layout };
        let checksum = CHECKSUMS.value(raw.checksum.get()).map_err(Refusal::Corrupt)?;
        let left = LEFTS.value(raw.left.get()).map_err(Refusal::Corrupt)?;
        let intents = raw.intents.get().min(MAX_INTENTS as u64) as usize;
        let intents: Vec<u64> = raw.intent[..intents].iter().map(|page| page.get()).collect();
        if intents.iter().any(|&page| page >= geometry.pages()) {
            return Err(Refusal::Corrupt("the superblock names a page beyond the end of the file".to_owned()));
        }
        Ok(Superblock {
            uuid: raw.head.uuid,
            seq: raw.head.seq.get(),
            identity: raw.identity.into(),
            geometry,
            checksum,
            left,
            stamp: Stamp { size: raw.stamp_size.get(), modified: raw.stamp_modified.get() },
            intents,
            list: raw.list.get(),
            period: raw.period.get().checked_sub(1).map(|period| as_kept(Duration::from_micros(period))),
            max_uncovered: raw.max_uncovered.get().checked_sub(1),
            resized_from: Some(raw.resized_from.get()).filter(|len| *len > 0),
            history: History { scrubbed: raw.scrubbed.get(), scrubs: raw.scrubs.get(), repaired: raw.repaired.get() },
        })
    }
}

impl Superblock {
    /// Reads both copies of the companion of this file: the one that counts, and whether each is whole. One that
    /// speaks of another file, or of another companion that this file had once, is a write that went astray, as long
    /// as the other one does not: a page of another file's companion looks like one of this. If both speak of another
    /// file, it is that one's companion.
    pub(super) fn read<F: MediumFile>(side: &F, path: &Path, of: &F) -> Result<(Self, [bool; 2])> {
        let ours = of.identity()?;
        let mut copies = [None, None];
        for (copy, at) in copies.iter_mut().zip([place(0), place(1)]) {
            let mut raw = RawSuperblock::new_zeroed();
            if side.len() < at + PAGE || !side.read_unless_bad(at, raw.as_mut_bytes())? {
                continue;
            }
            *copy = match look::<Superblock>(at, &raw, path) {
                // A later version of this program may have written one of the two: the other does not count any more.
                // Every version names the file at the same place.
                Some(Err(error @ Error::Unsupported { .. })) if are_one(&raw.identity.into(), &ours) => {
                    return Err(error);
                }
                looked => looked,
            };
        }
        let (mut copies, refused) = sort_out(copies);
        leave_out(&mut copies, |copy| Ok(copy.is_of(&ours)))?;
        if let [Some(first), Some(second)] = &copies
            && first.uuid != second.uuid
        {
            leave_out(&mut copies, |copy| copy.has_tables(side))?;
        }
        // Each version has its place, so one that is elsewhere took the place of the other.
        let mut whole = [0, 1].map(|nth| copies[nth].as_ref().is_some_and(|copy| copy.seq % 2 == nth as u64));
        if let ([Some(first), Some(second)], [true, true]) = (&copies, whole)
            && first.seq.abs_diff(second.seq) != 1
        {
            // They are written by turns, and each is durable before the next: the older one is a version that came
            // back.
            whole[usize::from(second.seq <= first.seq)] = false;
        }
        let newest = newest(copies, |copy| copy.seq);
        Ok((newest.ok_or_else(|| refused.unwrap_or_else(|| neither::<Self>(path)))?, whole))
    }

    /// Whether this is of the redundancy file of that file.
    pub(super) fn is_of(&self, file: &Identity) -> bool {
        are_one(&self.identity, file)
    }

    /// Whether the tables in this file are tied to this superblock.
    fn has_tables<F: MediumFile>(&self, side: &F) -> Result<bool> {
        let mut bytes = [0; PAGE as usize];
        for at in [0, 1].map(|copy| self.geometry.block_at(0, copy)) {
            let is_there = side.len() >= at + PAGE && side.read_unless_bad(at, &mut bytes)?;
            if is_there && Block::decode(&bytes, 0, self.tie()).is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes the next version over the older copy, readable or not. Whatever was written before is durable.
    pub(super) fn write<F: MediumFile>(&mut self, side: &F) -> Result<()> {
        self.seq += 1;
        self.rewrite(side)
    }

    /// Writes this version again, over the copy that holds it.
    pub(super) fn rewrite<F: MediumFile>(&self, side: &F) -> Result<()> {
        side.write_anew(place(self.seq), self.sealed().as_bytes())
    }

    /// Whether the medium holds this version.
    pub(super) fn is_whole<F: MediumFile>(&self, side: &F) -> Result<bool> {
        self.holds(side, self.seq)
    }

    /// Which copies are whole on the medium: that of this version, and that of the one before.
    pub(super) fn whole_copies<F: MediumFile>(&self, side: &F) -> Result<[bool; 2]> {
        let mut whole = [false; 2];
        for seq in [self.seq, self.seq.saturating_sub(1)] {
            whole[(seq % 2) as usize] = self.holds(side, seq)?;
        }
        Ok(whole)
    }

    /// Whether the medium holds this version of this redundancy file's superblock.
    fn holds<F: MediumFile>(&self, side: &F, seq: u64) -> Result<bool> {
        let mut raw = RawSuperblock::new_zeroed();
        let is_there = side.read_stored_unless_bad(place(seq), raw.as_mut_bytes())?;
        Ok(is_there && is_sealed(0, raw.as_bytes()) && raw.head.uuid == self.uuid && raw.head.seq.get() == seq)
    }

    /// What another redundancy file of the same file shall be like.
    pub(super) fn settings(&self) -> Settings {
        let Geometry { stripe, layout, .. } = self.geometry;
        Settings {
            stripe: Some(stripe),
            layout: Some(layout),
            checksum: Some(self.checksum),
            keep: self.period,
            keep_max_uncovered: self.max_uncovered,
            batch: Settings::BATCH,
        }
    }

    /// What ties a table block to this file.
    pub(super) fn tie(&self) -> u64 {
        u64::from_le_bytes(self.uuid[..8].try_into().expect("eight bytes of sixteen"))
    }
}

/// Leaves out the copy of which this does not hold, if it does of the other.
fn leave_out(copies: &mut [Option<Superblock>; 2], mut holds: impl FnMut(&Superblock) -> Result<bool>) -> Result<()> {
    let mut held = [false; 2];
    for (copy, held) in copies.iter().zip(&mut held) {
        *held = copy.as_ref().map_or(Ok(false), &mut holds)?;
    }
    if held[0] != held[1] {
        copies[usize::from(held[0])] = None;
    }
    Ok(())
}

/// One block of a table: checksums of consecutive pages, and which of them are uncovered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) seq: u64,
    /// A bit for each entry: the page may differ from its checksum, and from what its stripe's parity speaks of.
    pub(super) uncovered: [u8; 64],
    pub(super) sums: Vec<u64>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawBlock {
    /// Of the tables, one after the other.
    index: U64,
    seq: U64,
    tie: U64,
    uncovered: [u8; 64],
    sums: [U64; ENTRIES as usize],
    check: U64,
}

const _: () = {
    assert!(size_of::<RawBlock>() == PAGE as usize);
    assert!(std::mem::offset_of!(RawBlock, sums) == 88);
    assert!(std::mem::offset_of!(RawBlock, check) == 4088);
};

impl Block {
    pub(super) fn new() -> Self {
        Block { seq: 0, uncovered: [0; 64], sums: vec![0; ENTRIES as usize] }
    }

    pub(super) fn encode(&self, index: u64, tie: u64) -> Page {
        let mut raw = RawBlock::new_zeroed();
        raw.index = index.into();
        raw.seq = self.seq.into();
        raw.tie = tie.into();
        raw.uncovered = self.uncovered;
        for (raw, sum) in raw.sums.iter_mut().zip(&self.sums) {
            *raw = (*sum).into();
        }
        let mut bytes: Page = zerocopy::transmute!(raw);
        seal(0, &mut bytes);
        bytes
    }

    /// Decodes one copy; `None` if it is not whole, or another block, or another file's.
    pub(super) fn decode(bytes: &Page, index: u64, tie: u64) -> Option<Self> {
        let raw = RawBlock::read_from_bytes(bytes).ok().filter(|_| is_sealed(0, bytes))?;
        let ours = raw.index.get() == index && raw.tie.get() == tie && raw.seq.get() < MAX_NUMBER;
        ours.then(|| Block {
            seq: raw.seq.get(),
            uncovered: raw.uncovered,
            sums: raw.sums.iter().map(|sum| sum.get()).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_superblock_survives_its_bytes_and_no_byte_may_differ() {
        let superblock = Superblock {
            uuid: *b"0123456789abcdef",
            seq: 7,
            identity: Identity { device: 1, inode: 2, generation: 3, birth: 4 },
            geometry: Geometry { len: 100_000, stripe: 4, layout: StripeLayout::Spread },
            checksum: Checksum::Xxh3,
            left: Left::Announced,
            stamp: Stamp { size: 100_000, modified: 5 },
            intents: vec![0, 24],
            list: 6,
            period: Some(Duration::from_millis(7)),
            max_uncovered: Some(0),
            resized_from: Some(90_000),
            history: History { scrubbed: 1, scrubs: 2, repaired: 3 },
        };
        let decoded = |raw: &RawSuperblock| look::<Superblock>(0, raw, Path::new("x")).transpose().unwrap();
        // None is kept that would keep a core busy, nor one that is rounded to none.
        for (kept, found) in [(0, 0), (300, 1_000_000), (1_000, 1_000_000), (2_000_000, 2_000_000)] {
            let period = |nanos| Some(Duration::from_nanos(nanos));
            let raw = Superblock { period: period(kept), ..superblock.clone() }.sealed();
            assert_eq!(decoded(&raw).unwrap().period, period(found));
        }
        let mut raw = superblock.sealed();
        assert_eq!(decoded(&raw), Some(superblock));
        for at in 0..PAGE as usize {
            raw.as_mut_bytes()[at] ^= 1 << (at % 8);
            assert_eq!(decoded(&raw), None, "byte {at}");
            raw.as_mut_bytes()[at] ^= 1 << (at % 8);
        }
    }

    #[test]
    fn a_block_survives_its_bytes_and_is_no_other_block() {
        let mut block = Block::new();
        block.seq = 3;
        block.uncovered[62] = 8;
        block.sums[499] = u64::MAX;
        let bytes = block.encode(9, 77);
        assert_eq!(Block::decode(&bytes, 9, 77), Some(block));
        assert_eq!(Block::decode(&bytes, 8, 77), None);
        assert_eq!(Block::decode(&bytes, 9, 78), None);
        for at in 0..bytes.len() {
            let mut bytes = bytes;
            bytes[at] ^= 1 << (at % 8);
            assert_eq!(Block::decode(&bytes, 9, 77), None, "byte {at}");
        }
    }
}
