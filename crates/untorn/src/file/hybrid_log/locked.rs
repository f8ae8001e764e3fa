//! The fallback for a read that writers keep overtaking, or that is too long for an optimistic read to track: it locks
//! what it reads.
//!
//! # What it locks
//!
//! It locks all covers of the range in ascending order and unlocks them together, so all bytes are of the instant at
//! which the last one is locked. Lock-free readers go on meanwhile, and so do writers elsewhere. It holds no lane: a
//! committing thread waits for all lanes, and a commit must not wait for a read, nor a read for the flush of a commit.
//! The read checks afterwards what a lane would have kept constant:
//!
//! - the *length*: the count of changes shows a change during the read;
//! - *epochs*: they may end, and entries may be checkpointed. While a cover's lock is held, no entry replaces another
//!   in it, so the bytes are either still in the log or in the data file by then.
//!
//! A block that was never written near has no slot, and a read creates none. The read uses the leaves that the index
//! had when it began, and checks afterwards whether its range has another one.
//!
//! If either check fails, the read creates the missing leaves and starts again, and now it prevents changes of the
//! length, which takes no lane either. It does not wait for a thread that is about to change the length, because that
//! thread may wait for a flush, or for the lanes that a commit holds. The length stays the same meanwhile, so the read
//! tries without.

use super::Core;
use super::block_range::Link;
use super::index::{Index, Leaves};
use super::read::{Seen, TRIES};
use crate::error::Result;
use crate::format::sidecar::PAGE;
use crate::storage::{Medium, MediumFile};
use crate::sync::page_seqlock::PageState;
use crate::sync::word_lock::WordLockGuard;
use crate::sys::sync::{Ordering, fence};

/// A cover whose lock this thread holds.
struct LockedBlockRange<'a> {
    /// Its first slot, which stands for it.
    first: &'a PageState,
    head: u64,
    link: Link,
}

impl LockedBlockRange<'_> {
    fn end(&self) -> u64 {
        (self.head + (1 << self.link.class())) * PAGE
    }
}

impl<M: Medium> Core<M> {
    #[cold]
    pub(super) fn read_locked(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        if self.read_locking(offset, dst)? {
            return Ok(());
        }
        let end = self.end_of(offset, dst.len(), self.len())?;
        for leaf in offset / PAGE / Index::FAN..end.div_ceil(PAGE).div_ceil(Index::FAN) {
            self.slot(leaf * Index::FAN)?;
        }
        let mut round = 0;
        loop {
            // Not to wait for a resize, which may wait for a commit. But where nobody does anything but resize, turn
            // after turn may be lost to that.
            let length_stays = match self.head.resizing.try_lock() {
                None if round >= TRIES => Some(self.wait_for_the_length()),
                tried => tried,
            };
            if self.read_locking(offset, dst)? {
                return Ok(());
            }
            drop(length_stays);
            self.medium.relax(round);
            round = round.saturating_add(1);
        }
    }

    /// Keeps the length from changing, before whoever has not begun to change it yet.
    fn wait_for_the_length(&self) -> WordLockGuard<'_> {
        self.head.reads_waiting.fetch_add(1, Ordering::AcqRel);
        let held = self.head.resizing.lock(self.relax());
        self.head.reads_waiting.fetch_sub(1, Ordering::AcqRel);
        held
    }

    fn end_of(&self, offset: u64, len: usize, file_len: u64) -> Result<u64> {
        let end = offset.checked_add(len as u64).filter(|&end| end <= file_len);
        end.ok_or_else(|| self.out_of_range(offset, len as u64, file_len))
    }

    /// False if what is read is not to be believed, because the length changed or something was first written near.
    fn read_locking(&self, offset: u64, dst: &mut [u8]) -> Result<bool> {
        let resizes = self.head.resizes.load(Ordering::Acquire);
        let end = self.end_of(offset, dst.len(), self.len())?;
        let leaves = self.index.leaves();
        let (mut outcome, mut locked) = (Ok(()), offset);
        // After a failure nobody is kept waiting for the rest.
        while locked < end && outcome.is_ok() {
            let at = locked;
            let block_range = lock_to_read(&self.index, at / PAGE, offset / PAGE, leaves, self.relax());
            locked = block_range.as_ref().map_or_else(|| Index::leaf_end(at / PAGE) * PAGE, LockedBlockRange::end);
            let part = &mut dst[(at - offset) as usize..(locked.min(end) - offset) as usize];
            outcome = match block_range {
                Some(block_range) => self.read_held(&block_range, at, part),
                None => self.data.read(at, part),
            };
        }
        // The loads of the copies must not move below those that tell whether to believe them.
        fence(Ordering::Acquire);
        let blocks = offset / PAGE..end.div_ceil(PAGE);
        let held = resizes.is_multiple_of(2)
            && self.head.resizes.load(Ordering::Relaxed) == resizes
            && self.index.has_no_more_than(leaves, blocks);
        self.unlock_read(offset, locked, leaves);
        outcome.and_then(|()| self.handle_state.readable()).map(|()| held)
    }

    /// Lets go of what was locked between two offsets, and lets what is home count as clean: else every read as long
    /// as this one would lock it all again. Nobody could change the links meanwhile, so the same walk finds the same
    /// covers.
    fn unlock_read(&self, offset: u64, locked: u64, leaves: Leaves) {
        let mut at = offset;
        while at < locked {
            let Some(slot) = self.index.get_of(leaves, at / PAGE) else {
                at = Index::leaf_end(at / PAGE) * PAGE;
                continue;
            };
            let link = Link(slot.bitmap());
            let head = link.head(at / PAGE);
            if let Some(first) = self.index.get(head) {
                self.unlock_calmed(at / PAGE, first, link);
            }
            at = (head + (1 << link.class())) * PAGE;
        }
    }

    /// Reads bytes of one cover whose lock is held: its entry may go home, but nothing takes its place.
    fn read_held(&self, block_range: &LockedBlockRange<'_>, offset: u64, dst: &mut [u8]) -> Result<()> {
        loop {
            let entry = if block_range.link.is_redo() { self.live(block_range.link, block_range.head) } else { None };
            let read_guard = block_range.first.read_locked();
            let seen = Seen {
                slot: Some(block_range.first),
                read_guard,
                entry,
                start: block_range.head * PAGE,
                end: block_range.end(),
            };
            self.gather(&seen, offset, dst)?;
            fence(Ordering::Acquire);
            if seen.entry_is_there() {
                return Ok(());
            }
            // It is at home by now, and the next look finds that out.
        }
    }
}

/// Locks the cover of a block; `None` if it had no slot when the index had these leaves. Everything from `begin` up
/// to the block is locked already.
fn lock_to_read(
    index: &Index,
    block: u64,
    begin: u64,
    leaves: Leaves,
    mut relax: impl FnMut(u32),
) -> Option<LockedBlockRange<'_>> {
    let slot = index.get_of(leaves, block)?;
    let mut round = 0;
    loop {
        let head = Link(slot.bitmap()).head(block);
        // A cover that is coming apart may have let go of some of its blocks already, which are locked here. To wait
        // for its first slot would be to wait for a lower one than those; whoever takes it apart needs none of them.
        if block == begin || head == block {
            // A cover lies in one leaf.
            let first = index.get_of(leaves, head)?;
            first.lock(false, &mut relax);
            // Whoever had it locked before may have given it another entry, even one of another size. As long as the
            // block is still of a cover that begins here, that one is locked now.
            let link = Link(slot.bitmap());
            if link.head(block) == head && Link(first.bitmap()) == link {
                return Some(LockedBlockRange { first, head, link });
            }
            first.unlock();
        }
        relax(round);
        round = round.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::hybrid_log::format::Kind;

    /// A cover of four blocks comes apart, and has let go of the second. A reader has that one, and waits for the
    /// third. The others are let go of, and a writer locks the first and wants the second: the reader, who is past
    /// the first, must not wait for it.
    #[test]
    fn a_reader_waits_for_no_slot_below_those_it_has() {
        let index = Index::new(8).unwrap();
        let slots = [0, 1, 2, 3].map(|block| index.make(block).unwrap());
        let whole = Link::new(0, 2, 0, Kind::Undo);
        slots.iter().for_each(|slot| slot.restore(whole.0));
        let leaves = index.leaves();
        slots[0].lock(true, |_| panic!("nobody has it"));
        let dissolve = |block: usize| {
            slots[block].lock(true, |_| panic!("nobody has it"));
            slots[block].publish(0, slots[block].version() + 1);
        };
        dissolve(1);

        let second = lock_to_read(&index, 1, 1, leaves, |_| panic!("it stands for itself")).unwrap();
        assert_eq!((second.head, second.end()), (1, 2 * PAGE));
        let mut waits = 0;
        let third = lock_to_read(&index, 2, 1, leaves, |_| {
            waits += 1;
            assert!(waits == 1, "it waits for who waits for it");
            [2, 3].into_iter().for_each(dissolve);
            slots[0].publish(0, slots[0].version() + 1);
            slots[0].lock(true, |_| panic!("nobody has it"));
            assert!(!slots[1].try_hold(), "what the writer wants next is the reader's");
        });
        let third = third.unwrap();
        assert_eq!((third.head, third.end(), waits), (2, 3 * PAGE, 1));
        assert!(!slots[2].try_hold());
    }
}
