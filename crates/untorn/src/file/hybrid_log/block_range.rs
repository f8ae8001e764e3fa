//! Locking the blocks that an operation touches, cover by cover, in ascending order.

use super::Core;
use super::format::Kind;
use super::meta::{Claim, Extent, Meta};
use crate::error::{Error, Result};
use crate::format::sidecar::PAGE;
use crate::storage::Medium;
use crate::sync::page_seqlock::PageState;
use crate::sys::sync::Ordering;

/// What a slot says of its block: an entry in the log, by its first unit. 0 is none.
///
/// A link is not taken back when its entry has gone home: it is stale then, which the entry's [`Meta`] tells, and
/// mostly already the number that says how often the entry's chunk was used. So a checkpoint stores to no slot, and
/// threads that write and threads that checkpoint do not take each other's cache lines away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link(pub(super) u64);

const UNIT_BITS: u32 = 40;
const CLASS_BITS: u32 = 7;
const LAP: u32 = UNIT_BITS + CLASS_BITS;
/// Readers must look into the log, unless it is stale.
const REDO: u64 = 1 << 63;

impl Link {
    /// `lap` is 0 for undo.
    pub(super) fn new(unit: u64, class: u8, lap: u64, kind: Kind) -> Link {
        let redo = if kind == Kind::Redo { REDO } else { 0 };
        Link(redo | lap << LAP | u64::from(class) << UNIT_BITS | (unit + 1))
    }

    #[inline]
    pub(super) fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Whether a reader must look into the log.
    #[inline]
    pub(super) fn is_redo(self) -> bool {
        self.0 & REDO != 0
    }

    /// Whether readers of the block find all of it at home, and need look at no other slot.
    #[inline(always)]
    pub(super) fn is_at_home_alone(self) -> bool {
        self.0 >> UNIT_BITS == 0
    }

    pub(super) fn unit(self) -> u64 {
        (self.0 & ((1 << UNIT_BITS) - 1)) - 1
    }

    /// Blocks of its cover, as a power of two.
    #[inline]
    pub(super) fn class(self) -> u8 {
        (self.0 >> UNIT_BITS & ((1 << CLASS_BITS) - 1)) as u8
    }

    /// Which use of the chunk it is of, as far as it knows; 0 for undo.
    pub(super) fn lap(self) -> u64 {
        (self.0 & !REDO) >> LAP
    }

    /// The first block of the cover that has `block`.
    #[inline]
    pub(super) fn head(self, block: u64) -> u64 {
        block >> self.class() << self.class()
    }
}

/// What stands in the log for a locked cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Logged {
    /// Nothing: every slot of the cover is locked.
    Nothing,
    /// An entry of the open epoch: the cover's first slot is locked.
    Open(Link),
}

/// A locked cover.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockRange {
    /// Its first block.
    pub(super) head: u64,
    pub(super) class: u8,
    pub(super) logged: Logged,
}

impl BlockRange {
    /// The first byte.
    pub(super) fn start(&self) -> u64 {
        self.head * PAGE
    }

    /// The byte behind the last.
    pub(super) fn end(&self) -> u64 {
        (self.head + (1 << self.class)) * PAGE
    }

    /// All its blocks.
    pub(super) fn blocks(&self) -> std::ops::Range<u64> {
        self.head..self.head + (1 << self.class)
    }

    /// Bytes of the file as bytes of the cover.
    pub(super) fn extent(&self, offset: u64, len: usize) -> Extent {
        let offset = (offset - self.start()) as u32;
        Extent { offset, end: offset + len as u32 }
    }

    fn locked(&self) -> std::ops::Range<u64> {
        match self.logged {
            Logged::Nothing => self.blocks(),
            Logged::Open(_) => self.head..self.head + 1,
        }
    }
}

/// Why a cover was not locked.
pub(super) enum Hindrance {
    /// This epoch has to become durable first.
    NotDurable(u64),
    Failed(Error),
}

impl From<Error> for Hindrance {
    fn from(error: Error) -> Self {
        Hindrance::Failed(error)
    }
}

/// The class of a write of `len` bytes: the smallest cover that could hold it.
pub(super) fn class_for(len: u64) -> u8 {
    len.div_ceil(PAGE).max(1).next_power_of_two().trailing_zeros() as u8
}

impl<M: Medium> Core<M> {
    pub(super) fn slot(&self, block: u64) -> Result<&PageState> {
        // No block lies beyond what the file may grow to, which the length was checked against.
        self.index.make(block).ok_or_else(|| Error::OutOfRange {
            path: self.path().to_owned(),
            offset: block * PAGE,
            len: PAGE,
            file_len: self.max_len,
        })
    }

    pub(super) fn meta(&self, link: Link) -> &Meta {
        &self.chunks.metas[link.unit() as usize]
    }

    /// The link of a new redo entry.
    pub(super) fn redo_link(&self, unit: u64, class: u8) -> Link {
        Link::new(unit, class, self.chunks.lap(unit), Kind::Redo)
    }

    /// The entry that a redo link of the cover at `head` names, and its epoch; `None` if it is stale, and the bytes
    /// are at home.
    #[inline]
    pub(super) fn live(&self, link: Link, head: u64) -> Option<(&Meta, u64)> {
        let meta = self.meta(link);
        // Before all that tells whether the entry is still there: that of one which took its place would pass for
        // this one's.
        let epoch = meta.epoch.load(Ordering::Acquire);
        if self.chunks.lap(link.unit()) != link.lap() {
            return None;
        }
        // The lap counts round. If the entry is another's, or this cover's own of another time, it shows: its own would
        // have replaced the link.
        (meta.is_live() && meta.block.load(Ordering::Acquire) == head).then_some((meta, epoch))
    }

    /// The link of a slot.
    fn link(slot: &PageState) -> Link {
        Link(slot.bitmap())
    }

    /// Locks, with readers kept out, a cover that has the byte `offset`, from which `len` more are to be written, and
    /// that begins at `floor` or behind. What the log has of it from earlier epochs is at home then, and forgotten.
    ///
    /// The caller holds a lane.
    pub(super) fn lock_cover(&self, offset: u64, len: u64, floor: u64) -> std::result::Result<BlockRange, Hindrance> {
        let block = offset / PAGE;
        let mut class = class_for(len).min(self.chunks.top_class());
        let mut round = 0;
        loop {
            let slot = self.slot(block)?;
            let link = Self::link(slot);
            if link.is_none() {
                match self.lock_fresh(block, &mut class, floor)? {
                    Some(block_range) => return Ok(block_range),
                    None => continue,
                }
            }
            let head = link.head(block);
            if head < floor {
                // A cover that is coming apart, and has let go of its blocks up to the floor already. To wait for its
                // first slot, which somebody else may lock next, would be to wait for a lower one than those held
                // here.
                self.medium.relax(round);
                round = round.saturating_add(1);
                continue;
            }
            let first = self.slot(head)?;
            first.lock(true, self.relax());
            if Self::link(slot) != link || Self::link(first) != link {
                first.unlock();
                continue;
            }
            match self.open_entry(head, link) {
                Ok(true) => return Ok(BlockRange { head, class: link.class(), logged: Logged::Open(link) }),
                Ok(false) => {}
                Err(hindrance) => {
                    first.unlock();
                    return Err(hindrance);
                }
            }
            if link.class() == 0 && class == 0 {
                // The new entry takes the old one's place.
                return Ok(BlockRange { head, class, logged: Logged::Nothing });
            }
            self.dissolve(head, link)?;
        }
    }

    /// Whether the link of a locked cover names an entry of the open epoch. If not, nothing is left in the log for it
    /// then.
    pub(super) fn open_entry(&self, head: u64, link: Link) -> std::result::Result<bool, Hindrance> {
        if !link.is_redo() {
            let meta = self.meta(link);
            // Before the rest, as in `live`.
            let epoch = meta.epoch.load(Ordering::Acquire);
            let undo = meta.what() == Some((Kind::Undo, link.class())) && meta.block.load(Ordering::Acquire) == head;
            return Ok(undo && epoch == self.epoch());
        }
        let Some((_, epoch)) = self.live(link, head) else { return Ok(false) };
        if epoch == self.epoch() {
            return Ok(true);
        }
        if epoch > self.durable() {
            return Err(Hindrance::NotDurable(epoch));
        }
        self.take_home(link)?;
        Ok(false)
    }

    /// Carries the entry of a locked cover home, or waits for whoever is at it. Its epoch is durable.
    pub(super) fn take_home(&self, link: Link) -> Result<()> {
        let meta = self.meta(link);
        let mut round = 0;
        loop {
            match meta.claim(link) {
                Claim::Done => return Ok(()),
                Claim::Mine => {
                    let carried = self.carry_home(link);
                    // The bytes are visible at home before anybody can find that they are there.
                    self.medium.order();
                    meta.settle(carried.is_ok());
                    return carried;
                }
                Claim::Others => self.medium.relax(round),
            }
            round = round.saturating_add(1);
        }
    }

    /// Locks a cover of blocks that have no entry; `None` if the block has got one meanwhile. `class` shrinks until the
    /// cover fits between others.
    fn lock_fresh(&self, block: u64, class: &mut u8, floor: u64) -> Result<Option<BlockRange>> {
        loop {
            let head = block >> *class << *class;
            let end = head + (1 << *class);
            if *class > 0 && (head < floor || end * PAGE > self.max_len.next_multiple_of(PAGE)) {
                *class -= 1;
                continue;
            }
            let mut locked = head;
            while locked < end {
                let slot = self.slot(locked)?;
                slot.lock(true, self.relax());
                locked += 1;
                if !Self::link(slot).is_none() {
                    break;
                }
            }
            if locked == end && Self::link(self.slot(end - 1)?).is_none() {
                return Ok(Some(BlockRange { head, class: *class, logged: Logged::Nothing }));
            }
            for block in head..locked {
                self.slot(block)?.unlock();
            }
            if *class == 0 {
                return Ok(None);
            }
            *class -= 1;
        }
    }

    /// Makes the slots of a cover forget its entry, and unlocks the first one, which the caller has locked. What the
    /// entry held is visible without it.
    pub(super) fn dissolve(&self, head: u64, link: Link) -> Result<()> {
        let first = self.slot(head)?;
        // A reader of several blocks goes by the first slot alone, and the others may get new entries at once.
        first.begin_publishing();
        for block in head + 1..head + (1 << link.class()) {
            let slot = self.slot(block)?;
            slot.lock(true, self.relax());
            slot.publish(0, slot.version() + 1);
        }
        first.publish(0, first.version() + 1);
        Ok(())
    }

    /// Unlocks covers as they were.
    pub(super) fn unlock(&self, block_ranges: &[BlockRange]) {
        for block in block_ranges.iter().flat_map(BlockRange::locked) {
            if let Some(slot) = self.index.get(block) {
                slot.unlock_disturbed();
            }
        }
    }

    /// Unlocks a cover, with this entry in the log for it, if any.
    pub(super) fn publish(&self, block_range: &BlockRange, link: Link) {
        // The first one last: a look-up that comes from another slot finds it locked, or whole.
        for block in block_range.locked().rev() {
            if let Some(slot) = self.index.get(block) {
                slot.publish(link.0, slot.version() + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_keeps_what_it_was_made_of() {
        let links =
            [(0, 0, 0, Kind::Redo), (9, 0, 0, Kind::Undo), (1 << 39, 9, 0, Kind::Undo), (511, 16, 65_535, Kind::Redo)];
        for (unit, class, lap, kind) in links {
            let link = Link::new(unit, class, lap, kind);
            assert_eq!((link.unit(), link.class(), link.lap()), (unit, class, lap));
            assert_eq!((link.is_redo(), link.is_none()), (kind == Kind::Redo, false));
            assert_eq!(link.is_at_home_alone(), kind == Kind::Undo && class == 0);
        }
        assert_eq!(Link::new(3, 4, 1, Kind::Redo).head(35), 32);
        assert!(Link(0).is_none() && !Link(0).is_redo() && Link(0).is_at_home_alone());
    }

    #[test]
    fn the_class_is_the_smallest_that_holds_the_write() {
        let classes = [(1, 0), (4096, 0), (4097, 1), (8192, 1), (8193, 2), (2 << 20, 9), (4 << 20, 10)];
        classes.iter().for_each(|&(len, class)| assert_eq!(class_for(len), class, "{len} bytes"));
    }
}
